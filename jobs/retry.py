"""Run the failed runs of a sweep again, without its file: `python jobs/retry.py runs/quickstart [ARM_OR_RUN ...]`.

Runs that waited for them run too; finished and queued ones stay as they are. With names: all of those that are not done, also cancelled
ones.
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
from jobs.chosen import line_of, named, parents_of, runs_of, waiting_for, yet_to_queue
from jobs.command import job_of
from jobs.plan.existing import identity_of
from jobs.plan.graph import Graph, Job, only_evaluated
from jobs.plan.launch import Launch
from jobs.slurm import cluster
from jobs.source import snapshot
from jobs.submit import launch_all
from vitssl import sweep_folder
from vitssl.arguments import Parser, guarded
from vitssl.config import ConfigError, Site, assign, checkpoints, load, merge
from vitssl.config.sweep import Resources
from vitssl.files import read_json
from vitssl.run_folder import error_of, is_trained
from vitssl.sweep_folder import SWEEP
from vitssl.terminal import console as screen
from vitssl.words import counted


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 done, queued or nothing to do, 1 a run failed again, 128 + N signal N stopped it (Ctrl-C: 130), 2 a user's mistake."""
    parser = Parser(prog="jobs/retry.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=sweep_folder.named, help="the sweep's folder, for example runs/quickstart, or its name in runs/")
    only = "arms to run again, or runs by a part of their names; default: what failed"
    parser.add_argument("names", nargs="*", default=[], metavar="arm-or-run", help=only)
    parser.add_argument("--wait", action="store_true", help="on SLURM: wait until all runs are done, then print the report's table")
    options = parser.parse_args(arguments)
    return guarded(lambda: retry(options.sweep.resolve(), options.names, options.wait, screen()))


def retry(sweep: Path, names: list[str], wait: bool, console: Console) -> int:
    """Run again, where they were run before, what failed or is named, and what waits for it.

    Raises:
        ConfigError: nothing failed, and not all is done or queued; a record is damaged, what ran them does not answer, or runs them now.
    """
    local.refuse_running(sweep)
    asked_for, before = runs_of(sweep)
    jobs = jobs_of([*asked_for, *before])
    entries = cluster.queued(jobs)
    held = {folder for folder, entry in entries.items() if entry.state == "HELD"}
    if names:
        meant = named(sweep, names)
        if never := sorted(folder.name for folder in meant - jobs.keys()):
            raise ConfigError("it was never submitted; submit it with jobs/submit.py", place=never[0])
        again = {folder for folder in meant if not jobs[folder].is_done}
    else:
        again = {folder for folder in asked_for if folder in held or (error_of(folder) and not jobs[folder].is_done)}
    if not again:
        nothing = f"nothing {'of ' + ' '.join(names) if names else 'that failed'} is left to do"
        left = [f for f in asked_for if f not in entries and (f not in jobs or not jobs[f].is_done)]
        if left and not names:  # not 0, by which a script would take the sweep for done or queued
            advice = f"to continue {counted(len(left), 'other run')}, repeat the command that submitted the sweep"
            raise ConfigError(f"{nothing}; {advice} (stopped, cancelled or never started)", place=str(sweep))
        print(f"{sweep}: {nothing}")
        return 0
    again |= {folder for folder in waiting_for(again, jobs) if not jobs[folder].is_trained}
    # one job follows all runs of a sweep, and queues those that SLURM had no room for: a new one is to know of them
    wanted = entries.keys() | yet_to_queue(sweep, jobs) | set().union(*map(line_of, again))
    chosen = [job for folder, job in jobs.items() if folder in wanted]
    launch = _launch(sweep, {job_of(folder).get("executor", "local") for folder in again})
    console.print(f"Trying {counted(len(again), 'run')} again: {' '.join(sorted(folder.name for folder in again))}", soft_wrap=True)
    return launch_all(Graph(chosen, []), launch, wait, console, lambda: _take_snapshot(launch))


def jobs_of(run_folders: Iterable[Path]) -> dict[Path, Job]:
    """The jobs of run folders as they were submitted, parents first."""
    jobs: dict[Path, Job] = {}

    def add(folder: Path) -> Job:
        if folder not in jobs:
            parents = [add(parent) for parent in parents_of(folder)]
            jobs[folder] = _job(folder, parents)
        return jobs[folder]

    for folder in run_folders:
        if (folder / "job.json").exists():  # this machine's launcher writes it when it comes to the run
            add(folder)
    return jobs


def _job(folder: Path, parents: list[Job]) -> Job:
    path = folder / "job.json"
    record = read_json(path)
    fields = {f.name: record[f.name] for f in dataclasses.fields(Resources) if f.name in record}
    resources = merge(Resources, fields, where=str(path))
    if is_trained(folder):  # only evaluation may be left to do
        resources = only_evaluated(resources)
    arm, stage, axes = record.get("arm", ""), record.get("stage", ""), record.get("axes", {})
    run, here = load(folder), {parent.folder.name: parent.folder for parent in parents}
    for field, value in checkpoints(run).items():  # the sweep's folder may have been moved, or be a copy
        assign(run, field, str(here.get(Path(value).name, value)))
    return Job(identity_of(folder), run, folder, arm, stage, axes, resources, parents)


def _launch(sweep: Path, executors: set[str]) -> Launch:
    """Where the runs were submitted to before, at the site of the sweep's last submission."""
    if len(executors) > 1:
        raise ConfigError("some of these ran on this machine, others on SLURM; name runs of one kind", place=str(sweep))
    if executors == {"slurm"} and not cluster.answers():
        raise ConfigError("these runs were submitted to SLURM, and no cluster answers here (scontrol ping)", place=str(sweep))
    facts = sweep_folder.read(sweep)
    site, start = merge(Site, facts["site"], where=str(sweep / SWEEP)), facts.get("start")
    if start is not None and start["begin"] < time.time():  # what was tried at the greenest time is tried again now
        site.additional.pop("begin", None)
        start = None
    return Launch(sweep, executors.pop(), site, Path(), start=start)


def _take_snapshot(launch: Launch) -> None:
    launch.source = snapshot(launch.sweep)


if __name__ == "__main__":
    sys.exit(main())
