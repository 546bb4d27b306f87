"""The states of a sweep's runs, from their folders and SLURM's queue."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.chosen import line_of, parents_of, runs_of
from jobs.logs import cause
from jobs.slurm import cluster
from vitssl import sweep_folder
from vitssl.config import ConfigError, load
from vitssl.config.evals import metric_parts
from vitssl.files import read_events, read_json
from vitssl.run_folder import CANCELLED, DONE, ERROR, EVALS, SLURM_JOB, error_of, is_trained, lost_kwh, to_evaluate
from vitssl.sweep_folder import SWEEP

ENDED = ("done", "failed", "cancelled", "unreadable")
HOW = {"failed": "failed", "cancelled": "was cancelled"}
GONE = (*ENDED, "stopped", "not begun")  # nothing happens any more by itself
HANGS_S = 180  # after its last word; a job ends a minute after its run is done
WITHOUT_PROGRESS = re.compile(r"restart \d|held: ")  # as `batch.sh` writes of such restarts
EXIT_CODE = re.compile(r"exit code -?\d+")  # all that is known of the end of a process which left no reason


@dataclass
class Status:
    """The state of one run, from its folder and the queue."""

    name: str
    stage: str
    state: str
    epoch: float | None = None
    progress: float | None = None  # share of the steps done
    left_s: float | None = None
    score: str = ""  # by the sweep's metric; where that is not known another one, with its name
    job_id: str | None = None
    error: str | None = None
    attempts: int = 0  # at training it, so far
    lost_kwh: float = 0.0  # of steps that were trained again, because a kill lost them


@dataclass
class Picture:
    """A sweep at one moment."""

    statuses: list[Status] = field(default_factory=list)
    queue: dict[Path, cluster.Entry] = field(default_factory=dict)  # of the runs' folders and the sweep's, whose job is the report's
    note: str = ""  # where SLURM does not answer
    damaged: dict[Path, str] = field(default_factory=dict)  # folders of which it is unknown whether they are in the queue, and why

    def of(self, folder: Path) -> Status:
        """The state of a run."""
        return next(s for s in self.statuses if s.name == folder.name)

    def ended(self, sweep: Path) -> bool:
        """Does nothing happen any more by itself? The job of a run that is over may not have ended."""
        if sweep_folder.running(sweep) is not None:  # this machine trains, evaluates, or makes the report
            return False
        jobs = {folder: entry for folder, entry in self.queue.items() if folder == sweep or not is_over(self, folder)}
        left = {s.name for s in self.statuses if s.state not in GONE}
        return left <= {folder.name for folder in jobs} and cluster.stands_still(jobs.values())


def look(sweep: Path, only: Path | None = None) -> Picture:
    """A sweep as it is now, or ``only`` one run of it, and what that starts from.

    If SLURM does not answer, runs that were submitted are "unknown", unless their folders show that they are done.

    Raises:
        ConfigError: the folder is not a sweep's.
    """
    asked_for, before = runs_of(sweep)
    looked_at = {*asked_for, *before, sweep} if only is None else line_of(only)
    known = [folder for folder in (*asked_for, *before, sweep) if folder in looked_at]
    picture = Picture(damaged=cluster.damaged(known))
    folders = [folder for folder in known if folder not in picture.damaged]
    try:
        picture.queue = cluster.queued(folders)
    except ConfigError as error:
        picture.note = f"{error}; which runs are in SLURM's queue is unknown"
        picture.queue = {folder: cluster.Entry("unknown") for folder in folders if (folder / SLURM_JOB).exists()}
    if sweep in picture.damaged:
        picture.note = "; ".join(filter(None, [picture.note, picture.damaged[sweep]]))
    there = picture.queue.keys() | picture.damaged.keys() | {only}
    here, metric = sweep_folder.running(sweep), read_json(sweep / SWEEP).get("metric", "top1")
    shown = asked_for | {folder: stage for folder, stage in before.items() if folder in there}
    picture.statuses = [_readable(folder, stage, picture.queue, here, metric) for folder, stage in shown.items() if folder in looked_at]
    _cancelled_with_parents(sweep, picture.statuses)
    return picture


def is_over(picture: Picture, folder: Path) -> bool:
    """Does nothing happen any more to a run by itself? One that is trained may be evaluated now."""
    status = picture.of(folder)
    if status.state != "done":
        return status.state in GONE
    in_work = folder in picture.queue or (sweep_folder.running(folder.parent) is not None and status.error is None)
    return not in_work or not to_evaluate(folder, load(folder))


def _cancelled_with_parents(sweep: Path, statuses: list[Status]) -> None:
    """Say of jobs that SLURM dropped, because what they start from did not succeed, that they were, and of whom; parents come first."""
    states = {s.name: s for s in statuses}
    for s in statuses:
        if s.state != "not begun" or not (sweep / s.name / SLURM_JOB).exists():
            continue
        ended = [states[p.name] for p in parents_of(sweep / s.name) if p.name in states and states[p.name].state in ("failed", "cancelled")]
        if ended:
            s.state, s.error = "cancelled", f"cancelled: {ended[0].name}, which it starts from, {HOW[ended[0].state]}"


def _readable(folder: Path, stage: str, waiting: dict[Path, cluster.Entry], here: int | None, metric: str) -> Status:
    """The state of a run; of one with a damaged record which record that is."""
    try:
        return _status(folder, stage, waiting, here, metric)
    except ConfigError as error:
        return Status(folder.name, stage, "unreadable", error=str(error))


def _status(folder: Path, stage: str, waiting: dict[Path, cluster.Entry], here: int | None, metric: str) -> Status:
    job_id, entry = cluster.job_id(folder), waiting.get(folder)
    status = Status(folder.name, stage, _state(folder, entry, here), error=error_of(folder), job_id=job_id)
    if status.error is None and entry is not None and WITHOUT_PROGRESS.match(entry.comment):
        status.error = entry.comment
    elif status.error is None and entry is not None and entry.state == "HELD":
        status.error = f"held by SLURM or a person ({entry.reason}); the command that submitted it releases it"
    unexplained = status.state == "stopped" if status.error is None else EXIT_CODE.search(status.error)
    if job_id is not None and unexplained:
        status.error = "; ".join(filter(None, [status.error, cause(folder)])) or None
    if status.error is None and entry is None and job_id is not None and status.state == "not begun":
        status.error = _left_behind(folder, job_id)
    if status.state == "done" and entry is not None and entry.state == "RUNNING" and _hangs(folder):
        status.error = f"done, but its job has not ended: scancel {job_id}"
    events = read_events(folder / "metrics.jsonl")
    at_end = {name: entry["metrics"] for name, entry in read_json(folder / EVALS).items()}
    status.score = _score([at_end, *(event for event in reversed(events) if event["event"] == "eval")], metric)
    _estimate(status, events)
    status.lost_kwh = lost_kwh(events, [read_json(record) for record in sorted(folder.glob("emissions-*.json"))])
    for name in ("job.json", DONE):  # which starting it, and the time left, depend on
        read_json(folder / name)
    return status


def _score(evaluations: list[dict[str, Any]], metric: str) -> str:
    """The sweep's metric in the first of the evaluations that has it; where none does, the first one of the test split, or of the first
    evaluator, with its name; empty where there is none."""
    evaluator, key = metric_parts(metric)
    for evaluation in evaluations:
        if key in (evaluation.get(evaluator) or {}):
            return f"{evaluation[evaluator][key]:.2f}"
    newest = next((evaluation for evaluation in evaluations if "test" in evaluation), next(filter(None, evaluations), {}))
    found = {name: metrics for name, metrics in newest.items() if isinstance(metrics, dict) and metrics}
    if not found:
        return ""
    name = "test" if "test" in found else next(iter(found))
    other, value = next(iter(found[name].items()))
    of = [part for part in (name if name != evaluator else "", other if other != key else "") if part]
    return f"{value:.2f}" + (f" ({' '.join(of)})" if of else "")


def _hangs(folder: Path) -> bool:
    """Should the job of a trained run have ended by now (batch.sh)? It may evaluate it, too."""
    wrote = max(path.stat().st_mtime for path in (folder / DONE, folder / EVALS) if path.exists())
    return time.time() - wrote > HANGS_S and not to_evaluate(folder, load(folder))


def _left_behind(folder: Path, job_id: str) -> str | None:
    """Of a run whose job SLURM cancelled because the job before it did not end well, although what it starts from is done."""
    parents = parents_of(folder)
    if not parents or not all(map(is_trained, parents)):
        return None
    return f"job {job_id} was cancelled, but the run it starts from is done; repeat the command that submitted the sweep to queue it again"


def _state(folder: Path, queued: cluster.Entry | None, here: int | None) -> str:
    if is_trained(folder):
        return "done"
    if queued is not None:
        return queued.state.lower()
    if (folder / ERROR).exists():
        return "failed"
    if (folder / CANCELLED).exists():
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
    status.attempts = starts[-1]["attempt"] + 1
    first, last, total = starts[-1], events[-1], starts[-1]["steps"]
    status.progress = last["step"] / total
    if "steps_per_epoch" in first:
        status.epoch = last["step"] / first["steps_per_epoch"]
    if status.epoch is not None and "epochs" in first:  # the last batch may hold images of one more, which counts as none
        status.epoch = min(status.epoch, first["epochs"])
    done = last["step"] - first["step"]
    if status.state == "running" and done > 0:
        status.left_s = (total - last["step"]) * (last["time"] - first["time"]) / done
