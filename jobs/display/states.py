"""The states of a sweep's runs, from their folders and SLURM's queue."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.logs import cause
from jobs.slurm import cluster
from jobs.sweep_runs import lineage_of, parents_of, runs_of
from vitssl import sweep_folder
from vitssl.config import ConfigError, load
from vitssl.config.metrics import metric_parts
from vitssl.files import read_events, read_json
from vitssl.run_folder import DONE, EVALS, EVENTS, JOB, SLURM_JOB, emissions_of, error_of, is_trained, lost_kwh, num_attempts, to_evaluate
from vitssl.run_state import State, recorded_state
from vitssl.sweep_folder import SWEEP

ENDED = ("done", "failed", "cancelled", "unreadable")
HOW = {"failed": "failed", "cancelled": "was cancelled"}
IDLE_STATES = (*ENDED, "stopped", "not begun")  # states in which nothing more happens by itself
HANGS_S = 180  # after a run's last record, until its job counts as hanging; normally it ends a minute after the run is done
WITHOUT_PROGRESS = re.compile(r"restart \d|held: ")  # how `batch.sh` begins its comments on restarts without progress
EXIT_CODE = re.compile(r"exit code -?\d+")  # in errors that give no other reason


@dataclass
class Status:
    """The state of one run, from its folder and the queue."""

    name: str
    stage: str
    state: str  # a `run_state.State`, one of SLURM's in lower case, "waiting" for the launcher, or "unknown"
    epoch: float | None = None
    progress: float | None = None  # share of the steps done
    left_s: float | None = None
    score: str = ""  # by the sweep's metric; if that is not known, by another one, with its name
    job_id: str | None = None
    error: str | None = None
    attempts: int = 0  # number of attempts to train it so far
    lost_kwh: float = 0.0  # energy of steps that a kill lost, and that were trained again


@dataclass
class Overview:
    """The states of a sweep's runs, and its jobs in SLURM's queue, at one moment."""

    statuses: list[Status] = field(default_factory=list)
    queue: dict[Path, cluster.Entry] = field(default_factory=dict)  # by folder, of the runs and the sweep, whose job makes the report
    note: str = ""  # if SLURM does not answer, or the sweep's record is damaged
    damaged: dict[Path, str] = field(default_factory=dict)  # {folder: problem} for which it is unknown whether they are in the queue

    def status_of(self, folder: Path) -> Status:
        """Return the state of the run in ``folder``."""
        return next(s for s in self.statuses if s.name == folder.name)

    def has_ended(self, sweep: Path) -> bool:
        """Whether nothing more happens by itself. Jobs of runs that are over are ignored, even if they have not ended."""
        if sweep_folder.launcher_pid(sweep) is not None:  # a process of this machine trains, evaluates or makes the report
            return False
        jobs = {folder: entry for folder, entry in self.queue.items() if folder == sweep or not is_over(self, folder)}
        unfinished = {s.name for s in self.statuses if s.state not in IDLE_STATES}
        return unfinished <= {folder.name for folder in jobs} and cluster.stands_still(jobs.values())


def read_overview(sweep: Path, only: Path | None = None) -> Overview:
    """Return the present state of a sweep or, with ``only``, of one run and its ancestors.

    If SLURM does not answer, runs that were submitted are "unknown", unless their folders show that they are done.

    Raises:
        ConfigError: the folder is not a sweep's.
    """
    current, earlier = runs_of(sweep)
    examined = {*current, *earlier, sweep} if only is None else lineage_of(only)
    known = [folder for folder in (*current, *earlier, sweep) if folder in examined]
    overview = Overview(damaged=cluster.damaged(known))
    folders = [folder for folder in known if folder not in overview.damaged]
    try:
        overview.queue = cluster.queued(folders)
    except ConfigError as error:
        overview.note = f"{error}; which runs are in SLURM's queue is unknown"
        overview.queue = {folder: cluster.Entry("unknown") for folder in folders if (folder / SLURM_JOB).exists()}
    if sweep in overview.damaged:
        overview.note = "; ".join(filter(None, [overview.note, overview.damaged[sweep]]))
    relevant = overview.queue.keys() | overview.damaged.keys() | {only}
    pid, metric = sweep_folder.launcher_pid(sweep), read_json(sweep / SWEEP).get("metric", "top1")
    shown = current | {folder: stage for folder, stage in earlier.items() if folder in relevant}
    overview.statuses = [_readable(folder, stage, overview.queue, pid, metric) for folder, stage in shown.items() if folder in examined]
    _cancelled_with_parents(sweep, overview.statuses)
    return overview


def is_over(overview: Overview, folder: Path) -> bool:
    """Whether nothing more happens to a run by itself; something does if a trained run is still being evaluated."""
    status = overview.status_of(folder)
    if status.state != "done":
        return status.state in IDLE_STATES
    in_work = folder in overview.queue or (sweep_folder.launcher_pid(folder.parent) is not None and status.error is None)
    return not in_work or not to_evaluate(folder, load(folder))


def _cancelled_with_parents(sweep: Path, statuses: list[Status]) -> None:
    """Mark runs as cancelled, and say why, if SLURM dropped their job because a parent failed or was cancelled. Parents come first."""
    states = {s.name: s for s in statuses}
    for s in statuses:
        if s.state != "not begun" or not (sweep / s.name / SLURM_JOB).exists():
            continue
        ended = [states[p.name] for p in parents_of(sweep / s.name) if p.name in states and states[p.name].state in ("failed", "cancelled")]
        if ended:
            s.state, s.error = "cancelled", f"cancelled: {ended[0].name}, which it starts from, {HOW[ended[0].state]}"


def _readable(folder: Path, stage: str, queue: dict[Path, cluster.Entry], here: int | None, metric: str) -> Status:
    """Return the status of a run; if one of its records is damaged, it is "unreadable", with the record as its error."""
    try:
        return _status(folder, stage, queue, here, metric)
    except ConfigError as error:
        return Status(folder.name, stage, "unreadable", error=str(error))


def _status(folder: Path, stage: str, queue: dict[Path, cluster.Entry], here: int | None, metric: str) -> Status:
    job_id, entry = cluster.job_id(folder), queue.get(folder)
    events, emissions = read_events(folder / EVENTS), emissions_of(folder)
    state = _state(folder, recorded_state(folder, events, emissions), entry, here)
    status = Status(folder.name, stage, state, error=error_of(folder), job_id=job_id)
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
    final = {name: entry["metrics"] for name, entry in read_json(folder / EVALS).items()}
    status.score = _score([final, *(event for event in reversed(events) if event["event"] == "eval")], metric)
    _estimate(status, events)
    status.attempts, status.lost_kwh = num_attempts(events, emissions), lost_kwh(events, emissions)
    for name in (JOB, DONE):  # raise an error if these are damaged: starting the run, and the time left, depend on them
        read_json(folder / name)
    return status


def _score(evaluations: list[dict[str, Any]], metric: str) -> str:
    """Return the sweep's metric, as text, from the first of ``evaluations`` that has it.

    If none has it, return the first metric of the test split or else of the first evaluator, with its name; empty if there is none.
    """
    evaluator, key = metric_parts(metric)
    for evaluation in evaluations:
        if key in (evaluation.get(evaluator) or {}):
            return f"{evaluation[evaluator][key]:.2f}"
    newest = next((evaluation for evaluation in evaluations if "test" in evaluation), next(filter(None, evaluations), {}))
    measured = {name: metrics for name, metrics in newest.items() if isinstance(metrics, dict) and metrics}
    if not measured:
        return ""
    name = "test" if "test" in measured else next(iter(measured))
    other_key, value = next(iter(measured[name].items()))
    qualifiers = [part for part in (name if name != evaluator else "", other_key if other_key != key else "") if part]
    return f"{value:.2f}" + (f" ({' '.join(qualifiers)})" if qualifiers else "")


def _hangs(folder: Path) -> bool:
    """Whether the job of a trained run, with nothing left to evaluate, should have ended by now (batch.sh)."""
    last_written = max(path.stat().st_mtime for path in (folder / DONE, folder / EVALS) if path.exists())
    return time.time() - last_written > HANGS_S and not to_evaluate(folder, load(folder))


def _left_behind(folder: Path, job_id: str) -> str | None:
    """Return an error if SLURM cancelled a run's job because the job before it ended badly, although the parents are done; else None."""
    parents = parents_of(folder)
    if not parents or not all(map(is_trained, parents)):
        return None
    return f"job {job_id} was cancelled, but the run it starts from is done; repeat the command that submitted the sweep to queue it again"


def _state(folder: Path, recorded: State, queued: cluster.Entry | None, here: int | None) -> str:
    """Return the state of a run: the ``recorded`` one, unless the queue or the launcher knows better.

    Args:
        folder: the run's folder.
        recorded: its state by the records in its folder.
        queued: its job in SLURM's queue, if there is one.
        here: the id of the process of this machine that runs the sweep, if there is one.
    """
    if recorded == "done":
        return recorded
    if queued is not None:
        return queued.state.lower()
    if here is not None:
        return "waiting" if recorded in ("not begun", "stopped") else recorded
    return "stopped" if recorded == "running" and not _may_run_elsewhere(folder) else recorded


def _may_run_elsewhere(folder: Path) -> bool:
    """Whether a run may be trained by a cluster whose queue cannot be seen from here, or by a launcher on another machine."""
    return not cluster.has_queue() if cluster.job_id(folder) is not None else bool(sweep_folder.remote_launcher(folder.parent))


def _estimate(status: Status, events: list[dict[str, Any]]) -> None:
    """Set the progress at the last step, and the time left at the pace of the last attempt."""
    starts = [event for event in events if event["event"] == "start"]
    if not starts:
        return
    first, last, total = starts[-1], events[-1], starts[-1]["steps"]
    status.progress = last["step"] / total
    if "steps_per_epoch" in first:
        status.epoch = last["step"] / first["steps_per_epoch"]
    if status.epoch is not None and "epochs" in first:  # the last batch may reach into one more epoch, which does not count
        status.epoch = min(status.epoch, first["epochs"])
    done = last["step"] - first["step"]
    if status.state == "running" and done > 0:
        status.left_s = (total - last["step"]) * (last["time"] - first["time"]) / done
