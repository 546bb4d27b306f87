"""The option `--wait`: print how each run of a sweep on SLURM ends as soon as it does, and then the report."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from jobs.command import write_report
from jobs.folders import status_command
from jobs.plan.graph import Graph
from jobs.plan.launch import Launch
from jobs.slurm import cluster
from vitssl.run_folder import error_of

WAIT_S = 5.0  # between looks into the run folders


def wait_for(graph: Graph, launch: Launch, console: Console) -> int:
    """Wait for the runs and the report's job, printing how each run ends, then show the report.

    Waiting also stops if all unfinished runs are held or wait for held ones.

    Returns:
        The exit code: 0 if all runs are done and the report was written, 1 otherwise.
    """
    try:
        _wait(graph, launch.sweep, console)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"the jobs keep running; follow them with: {status_command(launch.sweep)}") from None
    reported = write_report(launch.sweep, launch.report_job)
    return 0 if reported and all(job.is_done for job in graph.jobs) else 1


def _wait(graph: Graph, sweep: Path, console: Console) -> None:
    printed: set[str] = set()
    held: dict[Path, str] = {}
    is_active, asked_s = True, -cluster.ASKED_EVERY_S
    while is_active:
        if time.monotonic() >= asked_s + cluster.ASKED_EVERY_S:
            (is_active, held), asked_s = _waiting(graph, sweep), time.monotonic()
        for job in graph.jobs:
            error = error_of(job.folder)
            outcome = "done" if job.is_done else f"failed: {error}" if error else held.get(job.folder)
            if job.identity not in printed and outcome:
                printed.add(job.identity)
                console.print(f"{job.name}: {outcome}", soft_wrap=True)
        time.sleep(WAIT_S if is_active else 0)


def _waiting(graph: Graph, sweep: Path) -> tuple[bool, dict[Path, str]]:
    """Return (whether any job goes on by itself, {folder: reason} of held runs). If SLURM does not answer, jobs may go on."""
    try:
        entries = cluster.queued([*(job.folder for job in graph.jobs if not job.is_done), sweep])
        report = entries.get(sweep)
        others = entries.keys() - {sweep}
        if report is not None and not others and report.state == "PENDING" and report.is_mine and not cluster.unqueued_count(sweep):
            # the job may wait long, or for ever, and the report can be made here
            cluster.output("scancel", cluster.queued_id(sweep))
            entries = {}
    except cluster.NoAnswer:
        return True, {}
    held = {folder: entry for folder, entry in entries.items() if entry.state == "HELD" and folder != sweep}
    reasons = {folder: entry.comment or f"held: {entry.reason}" for folder, entry in held.items()}
    return not cluster.stands_still(entries.values()), reasons
