"""Run the failed runs of a sweep again, without its file: `python jobs/retry.py runs/quickstart [ARM_OR_RUN ...]`.

Runs that waited for them run too; finished and queued runs stay as they are. With names, all unfinished runs of these arms or names run
again, including cancelled ones.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Iterable
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from jobs import environment

    environment.require()

from rich.console import Console

from jobs import local
from jobs.command import job_of
from jobs.plan.existing_runs import identity_of
from jobs.plan.graph import Graph, Job, only_evaluated
from jobs.plan.launch import Launch
from jobs.plan.shards import fingerprint, index_of
from jobs.slurm import cluster
from jobs.source import snapshot
from jobs.submit import launch_all
from jobs.sweep_runs import lineage_of, parents_of, repeat_command, runs_named, runs_of, waiting_for, yet_to_queue
from vitssl import sweep_folder
from vitssl.arguments import Parser, guarded
from vitssl.config import ConfigError, Site, assign, checkpoints, load, merge
from vitssl.config.sweep import Resources
from vitssl.data.index_schema import INDEX_FILE
from vitssl.files import read_json
from vitssl.records import refuse
from vitssl.run_folder import JOB, RUN, error_of, is_trained
from vitssl.sweep_folder import SWEEP
from vitssl.terminal import console as screen
from vitssl.words import counted, few, note


def main(arguments: list[str] | None = None) -> int:
    """Run again what the command line names, or what failed.

    Exit code: 0 done, queued or nothing to do, 1 a run failed again, 128 + N signal N stopped it (Ctrl-C: 130), 2 a user's mistake.
    """
    parser = Parser(prog="jobs/retry.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=sweep_folder.find_sweep, help="the sweep's folder, for example runs/quickstart, or its name in runs/")
    names_help = "arms to run again, or runs by as much of their names as stands for no other; default: what failed"
    parser.add_argument("names", nargs="*", default=[], metavar="arm-or-run", help=names_help)
    parser.add_argument("--wait", action="store_true", help="on SLURM: wait until all runs are done, then print the report's table")
    options = parser.parse_args(arguments)
    return guarded(lambda: retry(options.sweep.resolve(), options.names, options.wait, screen()))


def retry(sweep: Path, names: list[str], wait: bool, console: Console) -> int:
    """Run the failed or named runs again, and the runs that wait for them, on the executor that ran them before.

    Returns:
        The exit code, as of `main`.

    Raises:
        ConfigError: nothing failed although some runs are neither done nor queued; what is named has not begun; a record is damaged;
            the shards of a run are gone; the executor does not answer, or is running the sweep now.
    """
    local.refuse_running(sweep)
    current, earlier = runs_of(sweep)
    jobs = jobs_of([*current, *earlier])
    entries = cluster.queued(jobs)
    held = {folder for folder, entry in entries.items() if entry.state == "HELD"}
    if names:
        named_runs = runs_named(sweep, names)
        to_retry = {folder for folder in named_runs & jobs.keys() if not jobs[folder].is_done}
        _say_what_has_not_begun(sweep, sorted(folder.name for folder in named_runs - jobs.keys()), alone=not to_retry)
    else:
        to_retry = {folder for folder in current if folder in held or (error_of(folder) and not jobs[folder].is_done)}
    if not to_retry:
        message = f"nothing {'of ' + ' '.join(names) if names else 'that failed'} is left to do"
        others = [f for f in current if f not in entries and (f not in jobs or not jobs[f].is_done)]
        if others and not names:  # an error, since a script would take exit code 0 for done or queued
            advice = f"to continue {counted(len(others), 'other run')} (stopped, cancelled or not begun), {repeat_command(sweep)}"
            raise ConfigError(f"{message}; {advice}", place=str(sweep))
        print(f"{sweep}: {message}")
        return 0
    to_retry |= {folder for folder in waiting_for(to_retry, jobs) if not jobs[folder].is_trained}
    # one job follows all runs of a sweep, and queues those that SLURM had no room for. Its replacement has to know of all of them
    relevant = entries.keys() | yet_to_queue(sweep, jobs) | set().union(*map(lineage_of, to_retry))
    selected = [job for folder, job in jobs.items() if folder in relevant]
    for job in (job for job in selected if not job.is_done):
        _check_shards(job)
    launch = _launch(sweep, {job_of(folder).get("executor", "local") for folder in to_retry})
    console.print(f"Trying {counted(len(to_retry), 'run')} again: {' '.join(sorted(folder.name for folder in to_retry))}", soft_wrap=True)
    return launch_all(Graph(selected, []), launch, wait, console, lambda: _take_snapshot(launch))


def _say_what_has_not_begun(sweep: Path, names: list[str], alone: bool) -> None:
    """Print a note on named runs that have no records to try them by; if no other run is left to do (``alone``), it is an error."""
    if not names:
        return
    reason = f"{few(names)} {'has' if len(names) == 1 else 'have'} not begun; to start {'it' if len(names) == 1 else 'them'}"
    text = f"{reason}, {repeat_command(sweep)}"
    if alone:
        raise ConfigError(text, place=str(sweep))
    note(text)


def jobs_of(run_folders: Iterable[Path]) -> dict[Path, Job]:
    """Return {run folder: job} of submitted runs, as they were submitted, parents first.

    Raises:
        ConfigError: a record is damaged, for example because a run starts from itself by way of its parents.
    """
    jobs: dict[Path, Job] = {}

    def add(folder: Path, descendants: tuple[Path, ...] = ()) -> Job:
        if folder in descendants:
            refuse(folder / JOB, "parents: the run starts from itself, directly or by way of others")
        if folder not in jobs:
            parents = [add(parent, (*descendants, folder)) for parent in parents_of(folder)]
            jobs[folder] = _job(folder, parents)
        return jobs[folder]

    for folder in run_folders:
        if (folder / JOB).exists():  # the local launcher writes it only when the run begins
            add(folder)
    return jobs


def _job(folder: Path, parents: list[Job]) -> Job:
    path = folder / JOB
    record = read_json(path)
    fields = {f.name: record[f.name] for f in dataclasses.fields(Resources) if f.name in record}
    resources = merge(Resources, fields, where=str(path))
    if is_trained(folder):  # only evaluation may be left to do
        resources = only_evaluated(resources)
    arm, stage, axes = record.get("arm", ""), record.get("stage", ""), record.get("axes", {})
    run, parent_folders = load(folder), {parent.folder.name: parent.folder for parent in parents}
    for field, value in checkpoints(run).items():  # the sweep's folder may have been moved or copied
        assign(run, field, str(parent_folders.get(Path(value).name, value)))
    return Job(identity_of(folder), run, folder, arm, stage, axes, resources, parents)


def _check_shards(job: Job) -> None:
    """Check that the shards of a run are where its `run.yaml` says and hold what it asks for; a sweep may have been copied without them.

    Raises:
        ConfigError: they are not, with the place of the file.
    """
    place, shards = str(job.folder / RUN), Path(job.run.data.shards)
    try:
        index_of(shards)
        fingerprint(job.run)
    except ConfigError as error:
        advice = "" if (shards / INDEX_FILE).exists() else "; or copy them there, or set data.shards in this file to where they are"
        raise ConfigError(f"{error.reason}{advice}", error.field, place) from None


def _launch(sweep: Path, executors: set[str]) -> Launch:
    """Return a `Launch` for the executor that ran the runs before, at the site of the sweep's last submission.

    Raises:
        ConfigError: the runs had several executors, or SLURM does not answer.
    """
    if len(executors) > 1:
        raise ConfigError("some of these ran on this machine, others on SLURM; name runs of one kind", place=str(sweep))
    if executors == {"slurm"} and not cluster.answers():
        raise ConfigError("these runs were submitted to SLURM, and no cluster answers here (scontrol ping)", place=str(sweep))
    facts = sweep_folder.read(sweep)
    site, start = merge(Site, facts["site"], where=str(sweep / SWEEP)), facts.get("start")
    if site.intensity_csv is not None:  # the sweep's folder may have been moved or copied
        site.intensity_csv = str(sweep / sweep_folder.GRID)
    if start is not None and start["begin"] < time.time():  # the greenest time is over, so the runs are tried again at once
        site.additional.pop("begin", None)
        start = None
    return Launch(sweep, executors.pop(), site, Path(), start=start)


def _take_snapshot(launch: Launch) -> None:
    launch.source = snapshot(launch.sweep)


if __name__ == "__main__":
    sys.exit(main())
