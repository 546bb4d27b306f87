"""The SLURM executor: arrays of equal jobs through submitit, chained by dependencies, a report at the end.

A sweep that has more jobs than SLURM takes at once is queued in parts: a job that follows the first array of each (`Rest`) queues the next.

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

from jobs.chosen import yet_to_queue
from jobs.folders import Busy, locked, status_command, write_run
from jobs.node import Node, Report, not_done, refuse
from jobs.plan.graph import Graph, Job
from jobs.plan.launch import Launch
from jobs.slurm import cluster, limits, preflight, sbatch
from jobs.slurm.cluster import ENDING_S
from vitssl.config import ConfigError
from vitssl.run_folder import CANCELLED, SLURM_JOB, error_of
from vitssl.words import counted

ASKS_AGAIN_S = 5.0  # of a controller that does not answer


@dataclass
class Array:
    """Jobs of equal resources that start together, and what they wait for."""

    jobs: list[Job]
    executor: sbatch.Executor

    @property
    def id(self) -> str:
        """SLURM's, without an index; empty until it is queued."""
        return self.executor.job_id


def run(graph: Graph, launch: Launch, console: Console) -> None:
    """Queue every job that is neither done nor queued, as many as SLURM takes at once, and what follows them: the rest, or the report.

    Raises:
        ConfigError: SLURM refused a job, and nothing from this submission remains queued.
    """
    in_queue = cluster.settled(job.folder for job in graph.jobs if not job.is_done)
    _take_out_what_waits_in_vain(graph, in_queue)
    _let_go_what_waits_for_nothing(graph, in_queue, launch)
    for folder in (held := [folder for folder, entry in in_queue.items() if entry.state == "HELD"]):
        cluster.go_on(folder)
    todo = [job for job in graph.jobs if not job.is_done and job.folder not in in_queue]
    if _only_room_is_missing(todo, launch):
        arrays, last = [], cluster.job_id(launch.sweep)
    else:
        room = preflight.check(todo, launch)
        for job in todo:
            write_run(job, launch)
            (job.folder / SLURM_JOB).unlink(missing_ok=True)
        arrays, last = _queue(graph, todo, room, launch)
    done, queued = sum(job.is_done for job in graph.jobs), sum(len(array.jobs) for array in arrays)
    listed = ", ".join(f"{a.id} ({a.jobs[0].arm} {a.jobs[0].stage} x {len(a.jobs)})" for a in arrays) or "none"
    released = f", of which {len(held)} held: released" if held else ""
    submitted = f"{queued} submitted in {counted(len(arrays), 'array')}: {listed}"
    console.print(f"{done} already done, {len(in_queue)} already in the queue{released}, {submitted}")
    if left := len(todo) - queued:
        wait = f"{counted(left, 'run')} {'wait' if left > 1 else 'waits'}: job {last} queues them when there is room"
        console.print(f"{wait}; the last such job makes the report", soft_wrap=True)
    by = "" if left else f"job {last}, "
    console.print(f"Report: {by}{launch.sweep / 'report'}", soft_wrap=True)
    console.print(f"Follow it with: {status_command(launch.sweep)}", soft_wrap=True)


def _only_room_is_missing(todo: list[Job], launch: Launch) -> bool:
    """Does SLURM take no job now, and none is needed? What is to be done is queued by a job that is there, or that job makes the report."""
    follows = cluster.queued([launch.sweep]).get(launch.sweep)
    if follows is None or follows.state != "PENDING" or not follows.is_mine:
        return False
    later = yet_to_queue(launch.sweep, (job.folder for job in todo))
    return all(job.folder in later for job in todo) and limits.room(launch.site).room < 1


def _take_out_what_waits_in_vain(graph: Graph, in_queue: dict[Path, cluster.Entry]) -> None:
    """Cancel jobs that wait for one that has ended without its run being trained, as SLURM itself does, but at a time of its own."""
    vain: list[Path] = []
    waiting = [job for job in graph.jobs if job.folder in in_queue]
    lost = _lost(parent for job in waiting for parent in job.parents if parent.folder not in in_queue)
    for job in graph.jobs:  # parents come first: whose parent is taken out follows it
        if (
            any(parent.folder in lost or parent.folder in vain for parent in job.parents)
            and job.folder in in_queue
            and in_queue[job.folder].state in ("PENDING", "HELD")
        ):
            del in_queue[job.folder]
            vain.append(job.folder)
    if vain:
        cluster.output("scancel", *(cluster.job_id(folder) for folder in vain))


def _let_go_what_waits_for_nothing(graph: Graph, in_queue: dict[Path, cluster.Entry], launch: Launch) -> None:
    """Jobs that wait for a job, though the run that they start from is done: where SLURM has lost sight of a step, that job never ends."""
    behind = ",".join(filter(None, sbatch.behind(launch.site)))
    for job in (job for job in graph.jobs if job.folder in in_queue and in_queue[job.folder].reason == "Dependency"):
        if job.parents and all(parent.is_trained for parent in job.parents):
            cluster.output("scontrol", "update", f"jobid={cluster.job_id(job.folder)}", f"dependency={behind}")


def _lost(parents: Iterable[Job]) -> set[Path]:
    """The folders of those of these runs, none in the queue, that are not trained; where nothing says why, `done.json` may be seen late."""
    folders = {parent.folder for parent in parents if not parent.is_trained}
    told = {folder for folder in folders if error_of(folder) or (folder / CANCELLED).exists() or cluster.job_id(folder) is None}
    return told | not_done(folders - told)


def check(graph: Graph, launch: Launch) -> None:
    """What `run` would refuse, for a dry run."""
    todo = [job for job in graph.jobs if not job.is_done]
    in_queue = cluster.queued(job.folder for job in todo)
    todo = [job for job in todo if job.folder not in in_queue]
    if not _only_room_is_missing(todo, launch):
        preflight.check(todo, launch)


@dataclass
class Rest:
    """The job after a part of a sweep that is larger than SLURM's queue: it queues the next part, and what follows that.

    Each part takes runs from those left, none twice: what fails does not come back, and the last part ends with the report. What
    `jobs/cancel.py` has named in the meantime is left out.
    """

    graph: Graph
    left: list[Job]
    launch: Launch

    def __call__(self) -> None:
        """Queue the next part, or go back into the queue.

        That is where SLURM has no room for one yet, does not answer or ends this job's time; and where a person submits the sweep now, who
        may yet be refused or stop.
        """
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # cancelled: what is queued by then is taken back
        signal.signal(signal.SIGUSR2, _out_of_time)
        job = os.environ["SLURM_JOB_ID"]
        try:
            with locked(self.launch.sweep):
                if self._ends(job):
                    return
        except (Busy, cluster.Silent, OutOfTime):
            pass
        _requeue(job)

    def _ends(self, job: str) -> bool:
        """Queue the next part, if there is room for one. False: there was none."""
        sweep = self.launch.sweep
        if cluster.job_id(sweep) != job:
            return True  # somebody has submitted the sweep again, all of it
        room = limits.room(self.launch.site).room - 1
        if room > 0:  # this job may have been ended while it queued runs, and those may have failed by now
            later = yet_to_queue(sweep, (job.folder for job in self.left))
            _queue(self.graph, [job for job in self.left if job.folder in later], room, self.launch)
        return room > 0


class OutOfTime(KeyboardInterrupt):
    """SLURM ends this job soon; what it has queued of a part is taken back, as if a person had ended it."""


def _out_of_time(number: int, frame: Any) -> None:
    raise OutOfTime


def _requeue(job: str) -> None:
    """Put this job back into the queue, however long the controller does not answer: the job's own time bounds that."""
    while True:
        try:
            cluster.output("scontrol", "requeue", job)
            break
        except cluster.Silent:
            time.sleep(ASKS_AGAIN_S)
    time.sleep(ENDING_S)


def _queue(graph: Graph, todo: list[Job], room: int, launch: Launch) -> tuple[list[Array], str]:
    """Queue the first of these jobs, as many as there is room for, and the job that follows, whose id it gives; or none of them."""
    in_queue = cluster.queued(job.folder for job in graph.jobs if not job.is_done)
    queued = {job.identity: cluster.job_id(job.folder) for job in graph.jobs if job.folder in in_queue}  # SLURM's ids
    part, left = _startable(todo[:room], queued), todo[room:]
    arrays: list[Array] = []
    last: list[Array] = []  # what follows, once it is begun
    with sbatch.outside_of_jobs():
        try:
            for jobs in sbatch.arrays_of(part, queued):
                arrays.append(Array(jobs, sbatch.of_runs(jobs, sbatch.dependency_of(jobs, queued), launch, write=True)))
                _submit(arrays[-1], queued, launch)
            if left:
                first = [arrays[0].id] if arrays else queued.values()  # room for more is there before the last of a part has ended
                return arrays, _submit_last(Rest(graph, left, launch), "rest", first, last, len(graph.jobs), launch, left=len(left))
            report = Report(str(launch.sweep), launch.of_report)
            return arrays, _submit_last(report, "report", queued.values(), last, len(graph.jobs), launch)
        except OSError as error:  # a full disk, a quota: of what was being written it names no file
            raise ConfigError(f"{launch.sweep}: {error.strerror}; {_taken_back(arrays + last)}") from None
        except (ConfigError, KeyboardInterrupt) as error:
            said = "; ".join(filter(None, [str(error), _taken_back(arrays + last)]))
            raise type(error)(said) from None


def _startable(jobs: list[Job], queued: dict[str, str]) -> list[Job]:
    """Without those whose parents have failed by now, which are told so."""
    kept: dict[str, Job] = {}
    own = {job.identity for job in jobs}
    lost = _lost(parent for job in jobs for parent in job.parents if parent.identity not in own and parent.identity not in queued)
    for job in jobs:
        missing = [p for p in job.parents if p.folder in lost or (p.identity in own and p.identity not in kept and not p.is_trained)]
        if missing:
            refuse(job.folder, missing[0].folder)
        else:
            kept[job.identity] = job
    return list(kept.values())


# -------------------------------------------------------------------------------------------------------------- submit


def _taken_back(arrays: list[Array]) -> str:
    """Cancel what was queued of a submission that did not get through; in words what is left of it."""
    if ids := [array.id for array in arrays if array.id]:
        try:
            cluster.output("scancel", *ids)
        except ConfigError as error:
            return f"already queued, and could not be withdrawn ({error}): cancel with scancel {' '.join(ids)}"
    for job in (job for array in arrays for job in array.jobs):
        with suppress(OSError):  # a job that it names has gone
            (job.folder / SLURM_JOB).unlink()
    return "nothing from this submission remains queued"


def _submit(array: Array, queued: dict[str, str], launch: Launch) -> None:
    submitted = array.executor.submit_array([Node(str(job.folder)) for job in array.jobs])
    for job, handle in zip(array.jobs, submitted, strict=True):
        queued[job.identity] = handle.job_id
        cluster.record(job.folder, handle.job_id)


def _submit_last(
    task: Callable[[], Any], name: str, after: Iterable[str], begun: list[Array], runs: int, launch: Launch, **facts: Any
) -> str:  # fmt: skip
    """Queue what follows when these jobs have ended, recorded as the sweep's own job with these facts; it is in ``begun`` from then on."""
    ids = ":".join(dict.fromkeys(job_id.split("_")[0] for job_id in after))
    executor = sbatch.of_report(launch, name, f"afterany:{ids}" if ids else None, runs, limits.report_limit_min(launch.site))
    begun.append(Array([], executor))
    executor.submit(task)
    entry = cluster.queued([launch.sweep]).get(launch.sweep)
    if entry is not None and entry.state == "PENDING" and entry.is_mine:  # of an earlier submission: only one is to run
        cluster.output("scancel", cluster.job_id(launch.sweep))
    cluster.record(launch.sweep, executor.job_id, **facts)
    (launch.sweep / CANCELLED).unlink(missing_ok=True)  # which an earlier one of these jobs was
    return executor.job_id


# -------------------------------------------------------------------------------------------------------------- dry run


def show_scripts(graph: Graph, launch: Launch, console: Console) -> None:
    """Print the batch script of every array that a submission would queue."""
    queued: dict[str, str] = {}
    todo = [job for job in graph.jobs if not job.is_done]
    launch.source = launch.sweep / "source" / "HASH"
    here = cluster.answers()
    limit, report_limit = (None, limits.report_limit_min(launch.site)) if here else (1000, None)
    for number, jobs in enumerate(sbatch.arrays_of(todo, queued, limit), start=1):
        dependency = sbatch.dependency_of(jobs, queued)
        for index, job in enumerate(jobs):
            queued[job.identity] = f"JOB{number}_{index}" if len(jobs) > 1 else f"JOB{number}"
        console.rule(f"JOB{number}: {jobs[0].arm} {jobs[0].stage} x {len(jobs)}")
        for job in jobs:
            console.print(f"# {job.folder}", soft_wrap=True)
        print(sbatch.of_runs(jobs, dependency, launch, write=False).script(len(jobs)))
    console.rule("the report, when all others have ended")
    print(sbatch.of_report(launch, "report", "afterany:..." if todo else None, len(graph.jobs), report_limit).script(1))
