"""The option `--greenest-within 24h`: start the runs when the grid is expected to be greenest, and state what that saves."""

from __future__ import annotations

import argparse
import re
import time
from dataclasses import asdict, dataclass
from datetime import datetime

from jobs.plan.graph import Graph
from jobs.plan.launch import Launch
from jobs.plan.overrides import CLI
from jobs.plan.predict import Prediction, longest_chain_hours
from vitssl.config import ConfigError
from vitssl.costs import intensity
from vitssl.words import duration

OPTION = "--greenest-within"
MOST_S = 31 * 86400.0
UNITS_S = {"m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Start:
    """When the runs of a submission begin. Times are in seconds since 1970, mean carbon intensities in kg CO2e per kWh.

    Attributes:
        asked: the time of the submission.
        begin: the time at which the runs begin.
        at_once: the mean intensity if they began at ``asked``.
        then: the mean intensity if they begin at ``begin``.
    """

    asked: float
    begin: float
    at_once: float
    then: float

    def __str__(self) -> str:
        now, begin = datetime.fromtimestamp(self.asked), datetime.fromtimestamp(self.begin)
        if self.begin == self.asked:
            return f"Now is the greenest time to start: {1000 * self.at_once:.0f} g CO2e/kWh on average while it runs"
        moment = f"{begin:%H:%M}" if begin.date() == now.date() else f"{begin:%Y-%m-%d %H:%M}"
        saved = f"{100 * (1 - self.then / self.at_once):.0f} % less CO2e" if self.at_once else "no less CO2e"
        means = f"{1000 * self.then:.0f} instead of {1000 * self.at_once:.0f} g/kWh on average"
        return f"Starts at {moment}, in {duration(self.begin - self.asked)}, when the grid is greenest: {means}, {saved} than starting now"


def seconds(text: str) -> float:
    """Return the seconds of a time such as 24h, 90m or 2d."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([mhd])", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a time such as 24h, 90m or 2d")
    time_s = float(match[1]) * UNITS_S[match[2]]
    if time_s > MOST_S:
        raise argparse.ArgumentTypeError(f"{text} is longer than 31d")
    return time_s


def find(within_s: float, graph: Graph, predictions: list[Prediction], launch: Launch) -> Start:
    """Return the start within ``within_s`` seconds that gives the longest chain of runs the lowest mean carbon intensity.

    Raises:
        ConfigError: the runs are local, the site has no file of intensities, or sets when jobs begin.
    """
    if launch.executor != "slurm":
        raise ConfigError("local runs start at once; only SLURM can wait (--executor slurm)", OPTION, CLI)
    if launch.site.intensity_csv is None:
        raise ConfigError("it needs site.intensity_csv, a file of the grid's intensity by time (jobs/README.md)", OPTION, CLI)
    if "begin" in launch.site.additional:
        raise ConfigError("site.additional sets begin too; keep one of the two", OPTION, CLI)
    grid, now, length_s = intensity.read(launch.site.intensity_csv), time.time(), 3600 * longest_chain_hours(graph, predictions)
    begin = grid.greenest(now, within_s, length_s)
    return Start(now, begin, grid.over(now, now + length_s), grid.over(begin, begin + length_s))


def apply(start: Start, launch: Launch) -> None:
    """Make SLURM start the runs at ``start``, and record it in ``launch`` for the report."""
    launch.start = asdict(start)
    if start.begin > start.asked:
        launch.site.additional["begin"] = f"{datetime.fromtimestamp(start.begin):%Y-%m-%dT%H:%M:%S}"
