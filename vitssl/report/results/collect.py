"""A sweep folder as data: what its run folders hold, what every run cost, and how far it got.

Reads JSON and YAML files, and checks the arrays and pictures beside them (`saved_files`); checkpoints are not opened. Works on a sweep
that is half finished, or has not begun.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from vitssl import run_folder, run_state, sweep_folder
from vitssl.config import ConfigError, Run, Site, dotted, fill, load
from vitssl.config.evals import pending
from vitssl.costs.emissions import grid_name, intensity_kg_per_kwh, is_restated
from vitssl.files import read_events, read_json
from vitssl.records import COST, EVALUATED, MEASURED, check_as
from vitssl.report.results import analyses, saved_files
from vitssl.report.results.sums import spent
from vitssl.run_folder import DONE, ERROR, ERRORS, EVALS, EVENTS, JOB, RUN
from vitssl.run_state import State
from vitssl.words import printable

Reading = tuple[str, str]  # the name of an evaluator, and the key of its metric
T = TypeVar("T")


@dataclass
class Arm:
    """One arm of the sweep file, with the paper's numbers for it."""

    name: str
    row: str  # the name of its row in the paper's table; may be empty
    published: Any  # a number, or numbers by axis value
    published_cost: dict[str, Any] | None
    quoted: bool  # the paper only quotes this row from elsewhere
    not_runnable: str | None  # why it cannot run; None if it can
    note: str | None
    baseline: str | None  # the arm that it is compared with, if that is not the sweep's baseline


@dataclass
class RunFolder:
    """The content of one run folder."""

    path: Path
    state: State
    error: str = ""  # why it failed, or which record is damaged
    run: Run | None = None  # run.yaml, where missing fields have their defaults; None if there is none
    job: dict[str, Any] = field(default_factory=dict)
    cost: dict[str, Any] = field(default_factory=dict)  # cost.json
    done: dict[str, Any] = field(default_factory=dict)
    # by the name of a configured evaluator: its config, epoch and metrics, if they are of the present configuration
    evals: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)  # those of every attempt, from errors.jsonl and error.json
    emissions: list[dict[str, Any]] = field(default_factory=list)  # one per attempt and node
    spent: dict[str, float] = field(default_factory=dict)  # the costs of SUMMED over all attempts and nodes
    site: Site = field(default_factory=Site)
    analyses: list[Path] = field(default_factory=list)  # the JSON files of its analyses
    damaged: list[str] = field(default_factory=list)  # what is wrong with further analyses, which are left out
    converted: bool = False  # whether its emissions were recomputed for the grid that a later command named

    @cached_property
    def run_fields(self) -> dict[str, Any]:
        """The fields of the Run by their dotted names, with every default explicit, for comparisons; empty if there is no Run."""
        return dotted(asdict(self.run)) if self.run else {}

    @property
    def config(self) -> Run:
        """The Run of a run that has begun: `read_folder` refuses its folder if it has none."""
        if self.run is None:
            raise ValueError(f"{self.path} has no run.yaml that can be read")
        return self.run

    def metrics(self, evaluator: str) -> dict[str, float]:
        """Return the final metrics of a built-in evaluator (test, val, test_ema, ...) or a configured one; empty if there are none."""
        if built_in := self.done.get(evaluator) if evaluator in EVALUATED else None:
            return built_in
        return self.evals.get(evaluator, {}).get("metrics", {})

    def events_of(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of one kind, in order."""
        return [e for e in self.events if e["event"] == kind]

    @property
    def recorded(self) -> bool:
        """Whether the cost of the run is known. Imported weights cost nothing here, so theirs is."""
        return bool(self.emissions) or "imported" in self.job

    @property
    def is_killed(self) -> bool:
        """Whether it stopped without having been asked to, so that the steps since its last checkpoint are lost."""
        return self.state == "stopped" and not run_state.has_saved(self.events)

    @property
    def attempts(self) -> int:
        """The number of attempts that began to train, or that recorded energy; 0, as in the status, if a record is damaged."""
        return 0 if self.state == "unreadable" else run_folder.num_attempts(self.events, self.emissions)

    @property
    def progress(self) -> str:
        """How far training got, such as ``step 500 of 2000``; empty before it begins."""
        starts = self.events_of("start")
        return f"step {self.events[-1]['step']} of {starts[-1]['steps']}" if starts else ""

    @property
    def cut_log(self) -> str:
        """Where its log ends if the rest is lost, in words; empty if it goes up to the last step, as that of a trained run does."""
        if not self.done or not self.events:
            return ""
        last, end = max(event["step"] for event in self.events), self.done["step"]
        return f"its log ends at step {last:,} of {end:,}" if last < end else ""


@dataclass
class Cell:
    """One arm at one point of the axes, seed included: the stages that its accuracy depends on, of which the last one is evaluated."""

    arm: str
    axes: dict[str, Any]
    stages: list[tuple[str, RunFolder]]

    @property
    def state(self) -> State:
        """The state ``done`` if every stage is done, otherwise the state of the first stage that is not."""
        return next((run.state for _, run in self.stages if run.state != "done"), "done")

    @property
    def last(self) -> RunFolder:
        """The run of the last stage."""
        return self.stages[-1][1]

    def result(self, evaluator: str, metric: str) -> float | None:
        """Return a metric (such as top1, in %) of the last stage, also of test_best or selected; None unless all stages are done."""
        return self.last.metrics(evaluator).get(metric) if self.state == "done" else None


@dataclass
class Sweep:
    """A sweep folder, read: its arms, its cells, and every run that they use."""

    folder: Path
    facts: dict[str, Any]  # sweep.json
    arms: list[Arm]
    cells: list[Cell]
    runs: dict[Path, RunFolder]  # by folder; each run once, however many cells use it
    report: Path  # the folder of its report

    @property
    def name(self) -> str:
        return self.facts["name"]

    def link(self, run: RunFolder) -> str:
        """Return the relative URL from the report's folder to a run's folder."""
        return quote(os.path.relpath(run.path, self.report)) + "/"

    @property
    def currency(self) -> str | None:
        """The currency in which the runs are paid; None if there are several, whose sum would mean nothing."""
        paid = {run.site.currency for run in self.runs.values() if run.site.price_per_gpu_hour}
        return None if len(paid) > 1 else next(iter(paid), Site().currency)

    @property
    def hours_name(self) -> str:
        """The header for hours of devices: GPU-hours if any run used a GPU, otherwise device-hours."""
        return "GPU-hours" if self.on_gpu else "device-hours"

    @property
    def busy_name(self) -> str:
        """The header for the part of these hours that GPUs were busy, or for the hours that the cores of CPUs worked."""
        return "of them GPU-busy hours" if self.on_gpu else "CPU-hours"

    @property
    def busy_key(self) -> str:
        """The figure of `RunFolder.spent` under `busy_name`; among runs on GPUs, a run on a CPU has none."""
        return "gpu_busy_hours" if self.on_gpu else "cpu_hours"

    @cached_property
    def others(self) -> list[RunFolder]:
        """The runs in the sweep's folder that are not of its last command, but of other arms, values or fields."""
        folders = {path.parent for path in self.folder.glob(f"*/{RUN}")} - self.runs.keys()
        return [_read(folder, fill(Site, self.facts["site"])) for folder in sorted(folders)]

    @property
    def on_gpu(self) -> bool:
        """Whether any run used a GPU."""
        return any(run.spent["gpu_hours"] > 0 for run in self.runs.values())


def collect(folder: str | Path, report: Path | None = None) -> Sweep:
    """Read a sweep folder and every run folder that it names.

    Args:
        folder: the sweep's folder.
        report: the folder of its report; None: ``report`` in the sweep's folder.

    Raises:
        ConfigError: there is no sweep.json, or it is damaged.
    """
    folder = Path(folder)
    facts = sweep_folder.read(folder)
    site = fill(Site, facts["site"])
    runs: dict[Path, RunFolder] = {}
    cells = []
    for cell in facts["cells"]:
        stages = []
        for stage in cell["stages"]:
            path = folder / stage["folder"]
            if path not in runs:
                runs[path] = _read(path, site)
            stages.append((stage["stage"], runs[path]))
        cells.append(Cell(cell["arm"], cell["axes"], stages))
    _convert([run for run in runs.values() if run.emissions and is_restated(run.site, site)], site)
    arms = [Arm(**{f.name: arm[f.name] for f in fields(Arm)}) for arm in facts["arms"]]
    sweep = Sweep(folder, facts, arms, cells, runs, report or folder / "report")
    if sweep.currency is None:
        for run in runs.values():
            run.spent["money"] = 0.0
    return sweep


def _convert(runs: list[RunFolder], site: Site) -> None:
    """Recompute the emissions of ``runs`` for the grid that the sweep's last command named for their site."""
    kg_per_kwh = intensity_kg_per_kwh(site) if runs else 0.0
    for run in runs:
        run.site = replace(run.site, country=site.country, intensity_kg_per_kwh=site.intensity_kg_per_kwh)
        named_grid = {"intensity_kg_per_kwh": kg_per_kwh, "country": grid_name(site)}
        run.emissions = [record | named_grid | {"co2e_kg": record["energy_kwh"] * kg_per_kwh} for record in run.emissions]
        run.spent["co2e_kg"] = sum(record["co2e_kg"] for record in run.emissions)
        run.converted = True


def _read(path: Path, site: Site) -> RunFolder:
    """Read a run folder; if a record is damaged, return which one and the run's energy, so that the other runs can still be reported."""
    try:
        return read_folder(path, site)
    except ConfigError as error:
        job: dict[str, Any] = _if_readable(read_json, path / JOB, {})
        emissions: list[dict[str, Any]] = _if_readable(run_folder.emissions_of, path, [])
        site = _site(job, site)
        return RunFolder(path, "unreadable", str(error), emissions=emissions, spent=spent(emissions, site), site=site)


def _check(run: RunFolder) -> None:
    """Refuse a run of which a record that tables and plots need is missing or incomplete, although the run has begun or is done."""
    imported = "imported" in run.job
    if run.done and not (run.path / run_folder.COST).exists():
        anew = "" if imported else f", or delete {DONE} beside it and repeat the command, which makes both anew from the trained weights"
        raise ConfigError(f"it is missing although the run is done; restore it from a backup{anew}", place=str(run.path / run_folder.COST))
    if run.done:  # the speed of an imported network is not measured
        check_as(MEASURED if imported else COST, run.cost, run.path / run_folder.COST)
    if run.done and not imported and not run.events and (run.path / EVENTS).exists():
        raise ConfigError("it has no complete line although the run is done; restore it from a backup", place=str(run.path / EVENTS))
    if not run.run and (run.done or run.cost or run.events or run.emissions):
        state = "is done" if run.done else "has begun"
        raise ConfigError(f"it is missing although the run {state}; restore it from a backup", place=str(run.path / RUN))


def _if_readable(read: Callable[[Path], T], path: Path, otherwise: T) -> T:
    """Return what ``read`` finds at ``path``; if that is damaged, ``otherwise``."""
    try:
        return read(path)
    except ConfigError:
        return otherwise


def _site(job: dict[str, Any], site: Site) -> Site:
    """Return the site that a run's job names, or else the sweep's."""
    return fill(Site, job["site"]) if job.get("site") else site


def read_folder(path: Path, site: Site) -> RunFolder:
    """Read a run folder.

    Args:
        path: the folder.
        site: the sweep's site, for a run that no launcher has described yet.

    Raises:
        ConfigError: a record is damaged, or missing although the run has begun or is done.
    """
    job, failure = read_json(path / JOB), read_json(path / ERROR)
    site = _site(job, site)
    events, emissions = read_events(path / EVENTS), run_folder.emissions_of(path)
    configured = load(path) if (path / RUN).is_file() else None
    evals = read_json(path / EVALS)
    outdated = pending(configured, evals) if configured else {}
    run = RunFolder(
        path, run_state.recorded_state(path, events, emissions),
        error=printable(failure.get("message", "")), job=job, cost=read_json(path / run_folder.COST),
        done=read_json(path / DONE), evals={name: entry for name, entry in evals.items() if name not in outdated},
        run=configured,
        events=events, emissions=emissions, spent=spent(emissions, site), site=site,
        failures=[*read_events(path / ERRORS), *([failure] if failure else [])],
    )  # fmt: skip
    _check(run)
    saved_files.check(path)
    run.analyses, run.damaged = analyses.find(path)
    return run
