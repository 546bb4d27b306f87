"""What it saved that runs began when the grid was expected to be greenest (`--greenest-within`), against beginning at once."""

from __future__ import annotations

from vitssl import intensity
from vitssl.config import ConfigError
from vitssl.files import GRID
from vitssl.report.collect import RunFolder, Sweep
from vitssl.report.units import quantity
from vitssl.words import counted, duration


def sentence(sweep: Sweep) -> str:
    """Both amounts; empty where no run was made to wait, or nothing says what had been earlier."""
    waited = [run for run in sweep.runs.values() if _waited_s(run) > 0 and run.emissions]
    told = [run for run in waited if all("kwh_by_quarter_hour" in record for record in run.emissions)]
    try:
        grid = intensity.read(sweep.folder / GRID) if told else None
    except ConfigError as error:
        return f"What it saved that {counted(len(told), 'run')} waited for a greener grid is not known: {error}."
    if grid is None:
        return ""
    then, at_once = (sum(_co2e_kg(run, grid, share) for run in told) for share in (0.0, 1.0))
    share = f", {abs(1 - then / at_once):.0%} {'less' if then <= at_once else 'more'}" if at_once else ""
    longest = duration(max(map(_waited_s, told)))
    return (
        f"{counted(len(told), 'run')} waited up to {longest} for a greener grid and caused {quantity(then, 'kg')} of CO2e instead of "
        f"{quantity(at_once, 'kg')} had they begun at once{share}."
    )


def _waited_s(run: RunFolder) -> float:
    start = run.job.get("start") or {}
    return start.get("begin", 0.0) - start.get("asked", 0.0)


def _co2e_kg(run: RunFolder, grid: intensity.Intensity, share: float) -> float:
    """Had the run begun earlier by this share of the time that it waited."""
    return sum(intensity.co2e_kg(record["kwh_by_quarter_hour"], grid, share * _waited_s(run)) for record in run.emissions)
