"""Show the state of a sweep's runs: `python jobs/status.py runs/quickstart`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from jobs import environment

    environment.require()

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jobs import cluster, local
from jobs.folders import error_of
from jobs.tables import print_table
from jobs.time_left import Seen, Work, time_of
from vitssl.arguments import Parser, guarded
from vitssl.config import ConfigError
from vitssl.files import read_events, read_json, read_sweep
from vitssl.terminal import console as screen
from vitssl.words import about, counted, duration

ENDED = ("done", "failed", "cancelled", "unreadable")


@dataclass
class Status:
    """The state of one run, from its folder and the queue."""

    name: str
    stage: str
    state: str
    epoch: float | None = None
    progress: float | None = None  # share of the steps done
    left_s: float | None = None
    top1: str = ""  # of the test split; after a pretraining of its first evaluator, with that one's name
    job_id: str | None = None
    error: str | None = None


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0, or 2 for a user's mistake."""
    parser = Parser(prog="jobs/status.py", description=__doc__)
    parser.add_argument("sweep", type=Path, help="the sweep's folder, for example runs/quickstart")
    folder = parser.parse_args(arguments).sweep
    return guarded(lambda: show(folder, screen()))


def show(sweep: Path, console: Console) -> None:
    """Print the table of a sweep's runs."""
    table = Table(title=str(sweep), title_justify="left")
    for column in ("run", "stage", "state", "epoch", "left", "top-1 %", "job"):
        table.add_column(column)
    statuses = collect(sweep)
    for s in statuses:
        epoch = "" if s.epoch is None else f"{s.epoch:.1f} ({s.progress or 0:.0%})"
        left = "" if s.left_s is None else duration(s.left_s)
        table.add_row(s.name, s.stage, s.state, epoch, left, s.top1, s.job_id or "")
    print_table(table, console, drop=("stage", "job", "epoch", "left"))
    if report := _report(sweep, all(s.state in ENDED for s in statuses)):
        console.print(report, highlight=False, soft_wrap=True)
    if left := time_left(sweep, statuses):
        console.print(left, highlight=False, soft_wrap=True)
    for s in statuses:
        if s.error is not None:
            console.print(Text.assemble((s.name, "red"), f": {s.error}"), soft_wrap=True)


def _report(sweep: Path, ended: bool) -> str:
    """What SLURM says of the sweep's report, as long as it is in the queue, or of the job that is to queue the runs left."""
    entry, job, left = _queued([sweep]).get(sweep), cluster.job_id(sweep), cluster.left(sweep)
    if left and not ended:
        more = f"{counted(left, 'run')} more than SLURM takes at once"
        if entry is None:
            return f"{more}: job {job}, which was to queue them, has ended; the command that submitted the sweep goes on"
        return f"{more}: job {job}, {entry.state.lower()}, queues them as others end"
    if entry is None:
        return ""
    waits = entry.state == "PENDING" and ended
    here = f"; all runs have ended, and `vitssl report {sweep}` makes it here" if waits else ""
    return f"Report: job {job}, {entry.state.lower()}{f' ({entry.reason})' if waits else ''}{here}"


def time_left(sweep: Path, statuses: list[Status]) -> str:
    """What can be said of the time until a sweep is done, by the pace seen; empty where nothing is left to do or nothing was seen."""
    told = read_json(sweep / "sweep.json").get("work", {})
    works = {name: Work(facts["images"], facts["architecture"]) for name, facts in told.items()}
    todo, seen = [s for s in statuses if s.state not in ENDED], Seen()
    for s in statuses:
        if s.name in works and s.state != "unreadable":
            seen.add(works[s.name], time_of(sweep / s.name))
            seen.add(works[s.name].part(1 - (s.progress or 0)), s.left_s or 0)
    if not todo or any(s.name not in works for s in todo):
        return ""
    left_s = [seen.total_s([works[s.name].part(1 - (s.progress or 0))]) if s.left_s is None else s.left_s for s in todo]
    known_s = [time_s for time_s in left_s if time_s is not None]
    return _left_in_words(todo, sum(known_s), max(known_s), local.running(sweep) is not None) if known_s else ""


def _left_in_words(todo: list[Status], sum_s: float, longest_s: float, one_by_one: bool) -> str:
    runs, running, queued = counted(len(todo), "run"), sum(s.state == "running" for s in todo), sum(s.job_id is not None for s in todo)
    if one_by_one:
        return f"{about(sum_s)} left for the sweep: {runs} to go, one after the other"
    if running == len(todo):
        return f"{about(longest_s)} left for the sweep: {runs} to go, at the same time"
    if running or queued:
        return f"{about(sum_s)} of computing left, summed over {runs}, of which {running} run now; when the others start is up to SLURM"
    return f"{about(sum_s)} of computing left in {runs}, none of which runs or is queued; the command that began them goes on"


def collect(sweep: Path) -> list[Status]:
    """The state of every run of a sweep, in the order of its cells.

    Raises:
        ConfigError: the folder is not a sweep's.
    """
    asked_for, before = runs_of(sweep)
    waiting, here = _queued(asked_for | before), local.running(sweep)
    shown = asked_for | {folder: stage for folder, stage in before.items() if folder in waiting}
    return [_readable(folder, stage, waiting, here) for folder, stage in shown.items()]


def _queued(folders: Iterable[Path]) -> dict[Path, cluster.Entry]:
    """SLURM's queue; if it does not answer, runs that were submitted are "unknown" unless their folders show that they are done."""
    try:
        return cluster.queued(folders)
    except ConfigError as error:
        print(f"note: {error}; which runs are in SLURM's queue is unknown", file=sys.stderr)
        return {folder: cluster.Entry("unknown") for folder in folders if (folder / cluster.JOB_FILE).exists()}


def runs_of(sweep: Path) -> tuple[dict[Path, str], dict[Path, str]]:
    """{run folder: stage} of a sweep's last submission, and of earlier submissions' further runs, which may still be queued.

    Raises:
        ConfigError: the folder is not a sweep's.
    """
    facts = read_sweep(sweep)
    asked_for = {sweep / stage["folder"]: stage["stage"] for cell in facts["cells"] for stage in cell["stages"]}
    before = [path for path in sorted(sweep.glob("*/job.json")) if path.parent not in asked_for]
    return asked_for, {path.parent: read_json(path).get("stage", "") for path in before}


def _readable(folder: Path, stage: str, waiting: dict[Path, cluster.Entry], here: int | None) -> Status:
    """The state of a run; of one with a damaged record which record that is."""
    try:
        return _status(folder, stage, waiting, here)
    except ConfigError as error:
        return Status(folder.name, stage, "unreadable", error=str(error))


def _status(folder: Path, stage: str, waiting: dict[Path, cluster.Entry], here: int | None) -> Status:
    job_id, entry = cluster.job_id(folder), waiting.get(folder)
    error = error_of(folder) or (entry.comment if entry is not None and entry.state == "HELD" else None)
    status = Status(folder.name, stage, _state(folder, entry, here), error=error, job_id=job_id)
    if error is None and entry is None and job_id is not None and status.state == "not begun":
        status.error = _left_behind(folder, job_id)
    events = read_events(folder / "metrics.jsonl")
    evaluations = [event for event in reversed(events) if event["event"] == "eval"]
    newest = next((event for event in evaluations if "test" in event), evaluations[0] if evaluations else None)
    if newest is not None:
        name = "test" if "test" in newest else next(name for name, metrics in newest.items() if isinstance(metrics, dict))
        status.top1 = f"{newest[name]['top1']:.2f}" + (f" ({name})" if name != "test" else "")
    _estimate(status, events)
    for name in ("job.json", "done.json"):  # which starting it, and the time left, depend on
        read_json(folder / name)
    return status


def _left_behind(folder: Path, job_id: str) -> str | None:
    """Of a run whose job SLURM cancelled because the job before it did not end well, although what it starts from is done."""
    parents = [Path(parent) for parent in read_json(folder / "job.json").get("parents", [])]
    if not parents or not all((parent / "done.json").exists() for parent in parents):
        return None
    return f"job {job_id} was cancelled, but what it starts from is done; the command that submitted the sweep queues it again"


def _state(folder: Path, queued: cluster.Entry | None, here: int | None) -> str:
    if (folder / "done.json").exists():
        return "done"
    if queued is not None:
        return queued.state.lower()
    if (folder / "error.json").exists():
        return "failed"
    if (folder / "cancelled").exists():
        return "cancelled"
    begun = (folder / "metrics.jsonl").exists()
    if here is not None:
        return "running" if begun else "waiting"
    return "stopped" if begun else "not begun"


def _estimate(status: Status, events: list[dict[str, Any]]) -> None:
    """Set the progress of the last step, and the time left at the pace of the last attempt."""
    starts = [event for event in events if event["event"] == "start"]
    if not starts:
        return
    first, last, total = starts[-1], events[-1], starts[-1]["steps"]
    status.progress = last["step"] / total
    if "steps_per_epoch" in first:
        status.epoch = last["step"] / first["steps_per_epoch"]
    if status.epoch is not None and "epochs" in first:  # the last batch may hold images of one more, which counts as none
        status.epoch = min(status.epoch, first["epochs"])
    done = last["step"] - first["step"]
    if status.state == "running" and done > 0:
        status.left_s = (total - last["step"]) * (last["time"] - first["time"]) / done


if __name__ == "__main__":
    sys.exit(main())
