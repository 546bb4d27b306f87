"""Stop a sweep or parts of it: `python jobs/cancel.py runs/quickstart [ARM_OR_RUN ...]`. Saved files and other sweeps' jobs stay."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from jobs import environment

    environment.require()

from jobs.chosen import named, runs_of, shared, waiting_for, yet_to_queue
from jobs.slurm import cluster
from vitssl import sweep_folder
from vitssl.arguments import Parser, guarded
from vitssl.config import ConfigError
from vitssl.run_folder import CANCELLED, is_trained
from vitssl.words import counted, note


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0, or 2 for a user's mistake."""
    parser = Parser(prog="jobs/cancel.py", description=__doc__)
    parser.add_argument("sweep", type=sweep_folder.named, help="the sweep's folder, for example runs/quickstart, or its name in runs/")
    only = "stop only these: arms, or runs by a part of their names; default: the whole sweep"
    parser.add_argument("names", nargs="*", default=[], metavar="arm-or-run", help=only)
    options = parser.parse_args(arguments)
    return guarded(lambda: cancel_some(options.sweep, options.names) if options.names else cancel(options.sweep))


def cancel(sweep: Path) -> None:
    """End this sweep's SLURM jobs, the report's included, and ask its local launcher to stop."""
    asked_for, before = runs_of(sweep)
    pid = sweep_folder.running(sweep)
    if pid is not None and sweep_folder.was_asked(sweep):  # a second signal would end the runs before they have saved
        print(f"process {pid} has already been asked to save and stop, and is still doing so")
    elif pid is not None:
        _ask(pid)
    known = _known([*asked_for, *before, sweep])
    entries, later = cluster.queued(known), _later(sweep, known)
    if sweep in entries and not entries[sweep].is_mine:
        later.clear()  # that job stays, and what it is to queue is its owner's
    ended = _end(entries)
    _leave_out(sweep, later)
    if other := sweep_folder.elsewhere(sweep):
        note(f"{other} may still run it; cancel it there")
    elif not ended and not later and pid is None:
        print(f"nothing of {sweep} is running or queued")


def _ask(pid: int) -> None:
    """Ask a launcher of this machine to stop."""
    try:
        os.kill(pid, signal.SIGTERM)
        print(f"asked process {pid} to save and stop")
    except PermissionError:
        note(f"process {pid} on this machine belongs to another user and keeps running; only that user can stop it")
    except ProcessLookupError:
        print(f"process {pid} has just ended on its own")


def cancel_some(sweep: Path, names: list[str]) -> None:
    """End the SLURM jobs of arms and runs, and of what waits for those. A run of an arm that another arm needs too goes on."""
    meant = named(sweep, names)
    if (pid := sweep_folder.running(sweep)) is not None:
        raise ConfigError(f"process {pid} on this machine trains the whole sweep {sweep}; to stop it, run cancel.py without names")
    known = _known([*dict.fromkeys(folder for of in (*runs_of(sweep), meant) for folder in of), sweep])
    runs = [folder for folder in known if folder != sweep]
    entries, later = cluster.queued(runs), _later(sweep, known)
    for folder, arm in shared(sweep, names).items():
        if folder in entries or folder in later:
            note(f"{folder.name} keeps running, since arm {arm} needs it too; name it to stop it")
            meant.discard(folder)
    there = entries.keys() | later
    waiting = waiting_for(meant & there, there) - meant
    ended = _end({folder: entry for folder, entry in entries.items() if folder in meant | waiting})
    if left := sorted(folder.name for folder in waiting & ended):
        print(f"of which {counted(len(left), 'job')} waited for the others: {' '.join(left)}")
    never = later & (meant | waiting)
    _leave_out(sweep, never)
    if not ended and not never:
        print(f"nothing of {' '.join(names)} in {sweep} is running or queued")


def _later(sweep: Path, known: list[Path]) -> set[Path]:
    """Those of these folders whose runs wait for room in SLURM's queue."""
    left = yet_to_queue(sweep, (folder for folder in known if folder != sweep)) if sweep in known else set()
    return {folder for folder in left if not is_trained(folder)}


def _leave_out(sweep: Path, later: set[Path]) -> None:
    """Have the job that is to queue these runs later, or the next such job, leave them out."""
    for folder in later:
        _mark(folder)
    if later:
        print(f"{counted(len(later), 'run')} that job {cluster.job_id(sweep)} would have queued later will not be queued")


def _known(folders: list[Path]) -> list[Path]:
    """Without those whose record of a job is damaged, which are named: the others are cancelled all the same."""
    damaged = cluster.damaged(folders)
    for folder, problem in damaged.items():
        reason = f"its job record is unreadable (squeue --me may list its job): {problem}"
        note(f"{folder.name} was not cancelled: {reason}")
    return [folder for folder in folders if folder not in damaged]


def _end(entries: dict[Path, cluster.Entry]) -> set[Path]:
    """Cancel those of these jobs that are this user's; the folders of those."""
    ids = {folder: cluster.job_id(folder) for folder, entry in entries.items() if entry.is_mine}
    for folder, entry in entries.items():
        if not entry.is_mine:
            note(f"job {cluster.job_id(folder)} ({folder.name}) belongs to {entry.user} and keeps running")
    if ids:
        cluster.output("scancel", *ids.values())
        print(f"cancelled {counted(len(ids), 'job')}: {' '.join(ids.values())}")
    for folder in ids:
        _mark(folder)
    return set(ids)


def _mark(folder: Path) -> None:
    """For `status`: SLURM forgets its jobs."""
    try:
        (folder / CANCELLED).touch()
    except OSError as error:
        note(f"could not record in its folder that {folder.name} was cancelled ({error.strerror})")


if __name__ == "__main__":
    sys.exit(main())
