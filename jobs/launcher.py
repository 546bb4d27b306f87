"""The SLURM executor: arrays of equal jobs through submitit, chained by dependencies, a report at the end.

Every array element runs `jobs.node.Node` once per node. A trap in the batch script (`batch.sh`) puts a job that was stopped or killed
back into the queue.
"""

from __future__ import annotations

import dataclasses
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from jobs import cluster, sbatch
from jobs.folders import Launch, error_of, is_done, is_trained, status_command, write_run
from jobs.graph import Graph, Job
from jobs.node import Node, Report, report_command
from vitssl.config import ConfigError
from vitssl.words import counted

WAIT_S = 5.0


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
    """Queue every job that is neither done nor queued, and the report.

    Raises:
        ConfigError: SLURM refused a job, and nothing of this submission stays queued.
    """
    in_queue = cluster.settled(job.folder for job in graph.jobs if not is_done(job))
    queued = {job.identity: cluster.job_id(job.folder) for job in graph.jobs if job.folder in in_queue}  # SLURM's ids
    todo = [job for job in graph.jobs if not is_done(job) and job.identity not in queued]
    for job in todo:
        write_run(job, launch)
        for stale in ("error.json", "cancelled"):
            (job.folder / stale).unlink(missing_ok=True)
    for folder in (held := [folder for folder, entry in in_queue.items() if entry.state == "HELD"]):
        cluster.go_on(folder)
    arrays: list[Array] = []
    with sbatch.outside_of_jobs():
        try:
            for jobs in _groups(todo, queued):
                arrays.append(Array(jobs, sbatch.of_runs(jobs, _dependency(jobs, queued), launch, write=True)))
                _submit(arrays[-1], queued, launch)
            report = _submit_report(queued, launch, len(graph.jobs))
        except ConfigError as error:
            raise ConfigError(f"{error}; {_taken_back(arrays)}") from None
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_taken_back(arrays)) from None
    done, running = sum(is_done(job) for job in graph.jobs), len(queued) - len(todo)
    listed = ", ".join(f"{a.id} ({a.jobs[0].arm} {a.jobs[0].stage} x {len(a.jobs)})" for a in arrays) or "none"
    released = f", of which {len(held)} held: released" if held else ""
    submitted = f"{len(todo)} submitted in {counted(len(arrays), 'array')}: {listed}"
    console.print(f"{done} done before, {running} in the queue before{released}, {submitted}", highlight=False)
    console.print(f"Report: job {report}, {launch.sweep / 'report'}", soft_wrap=True, highlight=False)
    console.print(f"Follow it with: {status_command(launch.sweep)}", soft_wrap=True, highlight=False)


# ---------------------------------------------------------------------------------------------------------------- plan


def _groups(todo: list[Job], queued: dict[str, str], limit: int | None = None) -> Iterator[list[Job]]:
    """Split jobs into arrays: same arm and stage, same resources, same kind of waiting, at most SLURM's array size."""
    groups: dict[Any, list[Job]] = {}
    waiting = {job.identity for job in todo} | set(queued)
    for job in todo:
        kind = sum(parent.identity in waiting for parent in job.parents)
        groups.setdefault((_depth(job), job.arm, job.stage, kind, dataclasses.astuple(job.resources)), []).append(job)
    size = limit or cluster.max_array_size()
    # parents first: a run that two arms share makes a later group the parent of an earlier one
    for jobs in (groups[key] for key in sorted(groups, key=lambda key: key[0])):
        for first in range(0, len(jobs), size):
            yield from _aligned(jobs[first : first + size], todo, queued)


def _depth(job: Job) -> int:
    return 1 + max((_depth(parent) for parent in job.parents), default=-1)


def _aligned(jobs: list[Job], todo: list[Job], queued: dict[str, str]) -> Iterator[list[Job]]:
    """The whole list if its parents are an array in the same order; else one list per set of parents."""
    parents = [_pending(job, queued) for job in jobs]
    if not any(parents) or _mirror(parents) is not None:
        yield jobs
        return
    by_parents: dict[tuple[str, ...], list[Job]] = {}
    for job, ids in zip(jobs, parents, strict=True):
        by_parents.setdefault(tuple(ids), []).append(job)
    yield from by_parents.values()


def _pending(job: Job, queued: dict[str, str]) -> list[str]:
    """SLURM's ids of the parents that are not done. Parents come first in a graph, so those are queued by now."""
    return [queued[parent.identity] for parent in job.parents if not is_trained(parent)]


def _mirror(parents: list[list[str]]) -> str | None:
    """The array whose elements 0, 1, 2, ... are the only parents of these jobs, in this order."""
    if len(parents) < 2 or any(len(ids) != 1 for ids in parents):
        return None
    array = parents[0][0].split("_")[0]
    return array if [ids[0] for ids in parents] == [f"{array}_{i}" for i in range(len(parents))] else None


def _dependency(jobs: list[Job], queued: dict[str, str]) -> str | None:
    parents = [_pending(job, queued) for job in jobs]
    if not any(parents):
        return None
    # an element without a counterpart in the other array would be cancelled at once
    if (array := _mirror(parents)) is not None:
        return f"aftercorr:{array}"
    return "afterok:" + ":".join(parents[0])


# -------------------------------------------------------------------------------------------------------------- submit


def _taken_back(arrays: list[Array]) -> str:
    """Cancel what was queued of a submission that did not get through; in words what is left of it."""
    if ids := [array.id for array in arrays if array.id]:
        try:
            cluster.output("scancel", *ids)
        except ConfigError as error:
            return f"queued already, and not taken back ({error}): end that with scancel {' '.join(ids)}"
    for job in (job for array in arrays for job in array.jobs):
        (job.folder / cluster.JOB_FILE).unlink(missing_ok=True)
    return "nothing of this submission stays queued"


def _submit(array: Array, queued: dict[str, str], launch: Launch) -> None:
    submitted = array.executor.submit_array([Node(str(job.folder), launch.module) for job in array.jobs])
    for job, handle in zip(array.jobs, submitted, strict=True):
        queued[job.identity] = handle.job_id
        cluster.record(job.folder, handle.job_id)


def _submit_report(queued: dict[str, str], launch: Launch, runs: int) -> str:
    ids = ":".join(dict.fromkeys(job_id.split("_")[0] for job_id in queued.values()))
    executor = sbatch.of_report(
        launch, f"afterany:{ids}" if ids else None, runs, cluster.time_limit_min(launch.site.report.get("partition", launch.site.partition))
    )
    job = executor.submit(Report(str(launch.sweep), launch.about() | {"source": str(launch.source)}))
    entry = cluster.queued([launch.sweep]).get(launch.sweep)
    if entry is not None and entry.state == "PENDING" and entry.is_mine:  # the report of an earlier submission: only one is to run
        cluster.output("scancel", cluster.job_id(launch.sweep))
    cluster.record(launch.sweep, job.job_id)
    return job.job_id


# ---------------------------------------------------------------------------------------------------------------- wait


def wait_for(graph: Graph, launch: Launch, console: Console) -> int:
    """Wait for the report job, printing how each run ends; then show the report. Exit code 1: a run is not done.

    Where runs are held, and all others are done or wait for those, there is nothing to wait for.
    """
    try:
        _wait(graph, launch.sweep, console)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"the jobs go on; follow them with: {status_command(launch.sweep)}") from None
    about = launch.about() | {"source": str(launch.source)}
    subprocess.run(report_command(launch.sweep, about), check=False, cwd=launch.source)
    return 0 if all(is_done(job) for job in graph.jobs) else 1


def _wait(graph: Graph, sweep: Path, console: Console) -> None:
    told: set[str] = set()
    there = True
    while there:
        there, comments = _waiting(graph, sweep)
        for job in graph.jobs:
            ended = "done" if is_done(job) else error_of(job.folder) or comments.get(job.folder)
            if job.identity not in told and ended:
                told.add(job.identity)
                console.print(f"{job.name}: {ended}", soft_wrap=True, highlight=False)
        time.sleep(WAIT_S if there else 0)


def _waiting(graph: Graph, sweep: Path) -> tuple[bool, dict[Path, str]]:
    """Does anything go on by itself? If SLURM does not answer, it may. And {folder: why} of the runs that are held."""
    try:
        entries = cluster.queued(job.folder for job in graph.jobs if not is_done(job))
        report = cluster.queued([sweep]).get(sweep)
        if report is not None and report.state == "PENDING" and report.is_mine and not entries:
            # it may have to wait for long, or for ever, and can be made here
            cluster.output("scancel", cluster.job_id(sweep))
            report = None
    except ConfigError:
        return True, {}
    held = {folder: entry.comment or entry.reason for folder, entry in entries.items() if entry.state == "HELD"}
    blocked = all(folder in held or entry.reason == "Dependency" for folder, entry in entries.items())
    return report is not None and not (held and blocked), held


# -------------------------------------------------------------------------------------------------------------- dry run


def show_scripts(graph: Graph, launch: Launch, console: Console) -> None:
    """Print the batch script of every array that a submission would queue."""
    queued: dict[str, str] = {}
    todo = [job for job in graph.jobs if not is_done(job)]
    launch.source = launch.sweep / "source" / "HASH"
    limit = None if cluster.answers() else 1000
    for number, jobs in enumerate(_groups(todo, queued, limit), start=1):
        dependency = _dependency(jobs, queued)
        for index, job in enumerate(jobs):
            queued[job.identity] = f"JOB{number}_{index}" if len(jobs) > 1 else f"JOB{number}"
        console.rule(f"JOB{number}: {jobs[0].arm} {jobs[0].stage} x {len(jobs)}")
        for job in jobs:
            console.print(f"# {job.folder}", soft_wrap=True, highlight=False)
        print(sbatch.of_runs(jobs, dependency, launch, write=False).script(len(jobs)))
    console.rule("the report, when all others have ended")
    print(sbatch.of_report(launch, "afterany:..." if todo else None, len(graph.jobs), None).script(1))
