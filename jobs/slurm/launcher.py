"""The SLURM executor: arrays of equal jobs through submitit, chained by dependencies, with a report at the end.

A sweep with more jobs than SLURM takes at once is queued in parts: after the first array of each part, a job (`Rest`) queues the next part.

Every array element runs `jobs.node.Node` once per node. A trap in the batch script (`batch.sh`) puts a job that was stopped or killed
back into the queue.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from jobs.folders import Busy, locked, status_command, write_run
from jobs.node import Node, Report, not_done, record_not_started
from jobs.plan.graph import Graph, Job
from jobs.plan.launch import Launch
from jobs.slurm import cluster, limits, preflight, sbatch
from jobs.slurm.cluster import ENDING_S
from jobs.sweep_runs import yet_to_queue
from vitssl.config import ConfigError
from vitssl.run_folder import CANCELLED, JOB, SLURM_JOB, error_of, is_trained
from vitssl.words import counted, note

ASKS_AGAIN_S = 5.0  # pause before a controller that does not answer is asked again


@dataclass
class Array:
    """A job array: jobs of equal resources with the same dependency, and the executor that submits them."""

    jobs: list[Job]
    executor: sbatch.Executor

    @property
    def id(self) -> str:
        """SLURM's id of the array, without an index; empty until it is queued."""
        return self.executor.job_id


def run(graph: Graph, launch: Launch, console: Console) -> None:
    """Queue the jobs that are neither done nor queued, as many as SLURM takes at once, and a job that queues the rest or makes the report.

    Raises:
        ConfigError: SLURM refused a job; nothing from this submission remains queued, unless the message says so.
    """
    in_queue = cluster.queued_once_settled(job.folder for job in graph.jobs if not job.is_done)
    _cancel_doomed_jobs(graph, in_queue)
    _drop_met_dependencies(graph, in_queue, launch)
    for folder in (held := [folder for folder, entry in in_queue.items() if entry.state == "HELD"]):
        cluster.release(folder)
    todo = [job for job in graph.jobs if not job.is_done and job.folder not in in_queue]
    if _is_left_to_pending_job(todo, launch):
        arrays, last_job = list[Array](), cluster.queued_id(launch.sweep)
    else:
        room = preflight.check(todo, launch)
        _note_left_out(graph, launch.sweep)
        for job in todo:
            write_run(job, launch)
            (job.folder / SLURM_JOB).unlink(missing_ok=True)
        arrays, last_job = _queue(graph, todo, room, launch)
    done, queued = sum(job.is_done for job in graph.jobs), sum(len(array.jobs) for array in arrays)
    names = ", ".join(f"{a.id} ({a.jobs[0].arm} {a.jobs[0].stage} x {len(a.jobs)})" for a in arrays) or "none"
    released = f", of which {len(held)} held: released" if held else ""
    submitted = f"{queued} submitted in {counted(len(arrays), 'array')}: {names}"
    console.print(f"{done} already done, {len(in_queue)} already in the queue{released}, {submitted}")
    if n_left := len(todo) - queued:
        wait = f"{counted(n_left, 'run')} {'wait' if n_left > 1 else 'waits'}: job {last_job} queues them when there is room"
        console.print(f"{wait}; the last such job makes the report", soft_wrap=True)
    maker = "" if n_left else f"job {last_job}, "
    console.print(f"Report: {maker}{launch.sweep / 'report'}", soft_wrap=True)
    console.print(f"Follow it with: {status_command(launch.sweep)}", soft_wrap=True)


def _is_left_to_pending_job(todo: list[Job], launch: Launch) -> bool:
    """Whether SLURM takes no job now, but none is needed: a pending job of this user will queue all of ``todo``, or make the report."""
    entry = cluster.queued([launch.sweep]).get(launch.sweep)
    if entry is None or entry.state != "PENDING" or not entry.is_mine:
        return False
    unqueued = yet_to_queue(launch.sweep, (job.folder for job in todo))
    return all(job.folder in unqueued for job in todo) and limits.room(launch.site).room < 1


def _note_left_out(graph: Graph, sweep: Path) -> None:
    """Print a note if a job was to queue runs later that are no part of this submission, whose own last job replaces it."""
    others = {path.parent for path in sweep.glob(f"*/{JOB}")} - {job.folder for job in graph.jobs}
    if left_out := [folder for folder in yet_to_queue(sweep, others) if not is_trained(folder)]:
        runs = f"{counted(len(left_out), 'run')} that job {cluster.job_id(sweep)} would have queued later"
        note(f"{runs} will not be queued, as this submission has other runs; repeat the command that has them")


def _cancel_doomed_jobs(graph: Graph, in_queue: dict[Path, cluster.Entry]) -> None:
    """Cancel queued jobs that wait for a run that ended untrained, and remove them from ``in_queue``. SLURM itself does so only later."""
    doomed: list[Path] = []
    waiting = [job for job in graph.jobs if job.folder in in_queue]
    lost = _ended_untrained(parent for job in waiting for parent in job.parents if parent.folder not in in_queue)
    for job in graph.jobs:  # parents come first, so the children of a cancelled job are cancelled too
        if (
            any(parent.folder in lost or parent.folder in doomed for parent in job.parents)
            and job.folder in in_queue
            and in_queue[job.folder].state in ("PENDING", "HELD")
        ):
            del in_queue[job.folder]
            doomed.append(job.folder)
    if doomed:
        cluster.output("scancel", *(cluster.queued_id(folder) for folder in doomed))


def _drop_met_dependencies(graph: Graph, in_queue: dict[Path, cluster.Entry], launch: Launch) -> None:
    """Release jobs that wait for a job whose run is already done: if SLURM has lost track of its step, that job never ends."""
    dependency = ",".join(filter(None, sbatch.site_dependencies(launch.site)))
    for job in (job for job in graph.jobs if job.folder in in_queue and in_queue[job.folder].reason == "Dependency"):
        if job.parents and all(parent.is_trained for parent in job.parents):
            cluster.output("scontrol", "update", f"jobid={cluster.queued_id(job.folder)}", f"dependency={dependency}")


def _ended_untrained(parents: Iterable[Job]) -> set[Path]:
    """Return the folders of ``parents``, none of which is in the queue, that are not trained and will not be.

    Folders that do not say why are looked at again for some time, since NFS may show `done.json` late.
    """
    folders = {parent.folder for parent in parents if not parent.is_trained}
    explained = {folder for folder in folders if error_of(folder) or (folder / CANCELLED).exists() or cluster.job_id(folder) is None}
    return explained | not_done(folders - explained)


def check(graph: Graph, launch: Launch) -> None:
    """Raise the errors that `run` would raise before it queues anything, for a dry run."""
    todo = [job for job in graph.jobs if not job.is_done]
    in_queue = cluster.queued(job.folder for job in todo)
    todo = [job for job in todo if job.folder not in in_queue]
    if not _is_left_to_pending_job(todo, launch):
        preflight.check(todo, launch)


@dataclass
class Rest:
    """The job that follows a part of a sweep larger than SLURM's queue, and queues the next part and the job that follows that.

    Each run is queued once, so a failed run does not come back. Runs that `jobs/cancel.py` has named in the meantime are left out. The last
    part ends with the report.
    """

    graph: Graph
    left: list[Job]
    launch: Launch

    def __call__(self) -> None:
        """Queue the next part, or put this job back into the queue.

        It goes back if SLURM has no room for a part yet, does not answer, or is about to end this job. It also does while a person submits
        the sweep, since that submission may still be refused or stopped.
        """
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # if this job is cancelled, what it has queued is taken back
        signal.signal(signal.SIGUSR2, _out_of_time)
        job = os.environ["SLURM_JOB_ID"]
        try:
            with locked(self.launch.sweep):
                if self._queue_next_part(job):
                    return
        except (Busy, cluster.NoAnswer, OutOfTime):
            pass
        _requeue(job)

    def _queue_next_part(self, job: str) -> bool:
        """Queue the next part if there is room for one. Return whether this job is no longer needed; False if there was no room."""
        sweep = self.launch.sweep
        if cluster.job_id(sweep) != job:
            return True  # somebody has submitted the whole sweep again
        room = limits.room(self.launch.site).room - 1
        if room > 0:  # an earlier attempt of this job may have queued some of the runs, which may have failed by now
            unqueued = yet_to_queue(sweep, (job.folder for job in self.left))
            _queue(self.graph, [job for job in self.left if job.folder in unqueued], room, self.launch)
        return room > 0


class OutOfTime(KeyboardInterrupt):
    """Raised when SLURM is about to end this job. What it has queued of a part is taken back, as if a person had interrupted it."""


def _out_of_time(number: int, frame: Any) -> None:
    raise OutOfTime


def _requeue(job: str) -> None:
    """Put this job back into the queue. If the controller does not answer, ask again for as long as the job's own time lasts."""
    while True:
        try:
            cluster.output("scontrol", "requeue", job)
            break
        except cluster.NoAnswer:
            time.sleep(ASKS_AGAIN_S)
    time.sleep(ENDING_S)


def _queue(graph: Graph, todo: list[Job], room: int, launch: Launch) -> tuple[list[Array], str]:
    """Queue the first ``room`` jobs of ``todo``, and the job that follows them: `Rest` if jobs are left, otherwise the report.

    Returns:
        The queued arrays, and the id of the job that follows.

    Raises:
        ConfigError: SLURM refused a job, or a file could not be written; the jobs queued so far were taken back.
    """
    in_queue = cluster.queued(job.folder for job in graph.jobs if not job.is_done)
    queued = {job.identity: cluster.queued_id(job.folder) for job in graph.jobs if job.folder in in_queue}  # SLURM's ids
    part, rest = _startable(todo[:room], queued), todo[room:]
    arrays: list[Array] = []
    followers: list[Array] = []  # the job that follows, once its submission has begun
    with sbatch.outside_of_jobs():
        try:
            for jobs in sbatch.arrays_of(part, queued):
                arrays.append(Array(jobs, sbatch.runs_executor(jobs, sbatch.dependency_of(jobs, queued), launch, write=True)))
                _submit(arrays[-1], queued)
            if rest:
                after = [arrays[0].id] if arrays else queued.values()  # there is room for more before the last array of a part has ended
                return arrays, _submit_last(Rest(graph, rest, launch), "rest", after, followers, len(graph.jobs), launch, left=len(rest))
            report = Report(str(launch.sweep), launch.report_job)
            return arrays, _submit_last(report, "report", queued.values(), followers, len(graph.jobs), launch)
        except OSError as error:  # a full disk or a quota; the error does not name the file
            raise ConfigError(f"{launch.sweep}: {error.strerror}; {_taken_back(arrays + followers)}") from None
        except (ConfigError, KeyboardInterrupt) as error:
            message = "; ".join(filter(None, [str(error), _taken_back(arrays + followers)]))
            raise type(error)(message) from None


def _startable(jobs: list[Job], queued: dict[str, str]) -> list[Job]:
    """Return the ``jobs`` that can still start. For each of the others, record in its folder which of its parents is not done."""
    kept: dict[str, Job] = {}
    own_ids = {job.identity for job in jobs}
    lost = _ended_untrained(
        parent for job in jobs for parent in job.parents if parent.identity not in own_ids and parent.identity not in queued
    )
    for job in jobs:
        missing = [p for p in job.parents if p.folder in lost or (p.identity in own_ids and p.identity not in kept and not p.is_trained)]
        if missing:
            record_not_started(job.folder, missing[0].folder)
        else:
            kept[job.identity] = job
    return list(kept.values())


# -------------------------------------------------------------------------------------------------------------- submit


def _taken_back(arrays: list[Array]) -> str:
    """Cancel the ``arrays`` of a submission that failed midway, and return a sentence on what remains queued."""
    if ids := [array.id for array in arrays if array.id]:
        try:
            cluster.output("scancel", *ids)
        except ConfigError as error:
            return f"already queued, and could not be withdrawn ({error}): cancel with scancel {' '.join(ids)}"
    for job in (job for array in arrays for job in array.jobs):
        with suppress(OSError):  # the record names a job that is gone
            (job.folder / SLURM_JOB).unlink()
    return "nothing from this submission remains queued"


def _submit(array: Array, queued: dict[str, str]) -> None:
    submitted = array.executor.submit_array([Node(str(job.folder)) for job in array.jobs])
    for job, handle in zip(array.jobs, submitted, strict=True):
        queued[job.identity] = handle.job_id
        cluster.record(job.folder, handle.job_id)


def _submit_last(
    task: Callable[[], Any], name: str, after: Iterable[str], begun: list[Array], runs: int, launch: Launch, **facts: Any
) -> str:  # fmt: skip
    """Queue ``task`` to run when the jobs ``after`` have ended, record it with ``facts`` as the sweep's own job, and return its id.

    Its array is appended to ``begun`` before it is submitted, so that it can be taken back.
    """
    ids = ":".join(dict.fromkeys(job_id.split("_")[0] for job_id in after))
    executor = sbatch.report_executor(launch, name, f"afterany:{ids}" if ids else None, runs, limits.report_limit_min(launch.site))
    begun.append(Array([], executor))
    executor.submit(task)
    entry = cluster.queued([launch.sweep]).get(launch.sweep)
    if entry is not None and entry.state == "PENDING" and entry.is_mine:  # it is of an earlier submission, and only one may run
        cluster.output("scancel", cluster.queued_id(launch.sweep))
    cluster.record(launch.sweep, executor.job_id, **facts)
    (launch.sweep / CANCELLED).unlink(missing_ok=True)  # an earlier job of the sweep itself may have been cancelled
    return executor.job_id
