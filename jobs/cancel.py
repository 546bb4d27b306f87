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

from jobs.slurm import cluster
from jobs.sweep_runs import runs_named, runs_of, shared_runs, waiting_for, yet_to_queue
from vitssl import sweep_folder
from vitssl.arguments import Parser, guarded
from vitssl.config import ConfigError
from vitssl.run_folder import CANCELLED, is_trained
from vitssl.words import counted, note


def main(arguments: list[str] | None = None) -> int:
    """Cancel what the command line names. Exit code: 0, or 2 for a user's mistake."""
    parser = Parser(prog="jobs/cancel.py", description=__doc__)
    parser.add_argument("sweep", type=sweep_folder.find_sweep, help="the sweep's folder, for example runs/quickstart, or its name in runs/")
    names_help = "stop only these: arms, or runs by as much of their names as stands for no other; default: the whole sweep"
    parser.add_argument("names", nargs="*", default=[], metavar="arm-or-run", help=names_help)
    options = parser.parse_args(arguments)
    return guarded(lambda: cancel_some(options.sweep, options.names) if options.names else cancel(options.sweep))


def cancel(sweep: Path) -> None:
    """Cancel the SLURM jobs of a sweep, including its report's, and ask its local launcher to stop."""
    current, earlier = runs_of(sweep)
    pid = sweep_folder.launcher_pid(sweep)
    if pid is not None and sweep_folder.is_asked_to_stop(sweep):  # a second signal would end the runs before they have saved
        print(f"process {pid} has already been asked to save and stop, and is still doing so")
    elif pid is not None:
        _ask_to_stop(pid)
    readable = _readable_folders([*current, *earlier, sweep])
    entries, unqueued = cluster.queued(readable), _unqueued_runs(sweep, readable)
    if sweep in entries and not entries[sweep].is_mine:
        unqueued.clear()  # another user's job keeps running, and will still queue its runs
    ended = _cancel_jobs(entries)
    _leave_out(sweep, unqueued)
    if remote := sweep_folder.remote_launcher(sweep):
        note(f"{remote} may still run it; cancel it there")
    elif not ended and not unqueued and pid is None:
        print(f"nothing of {sweep} is running or queued")


def _ask_to_stop(pid: int) -> None:
    """Ask the launcher with the process id ``pid`` on this machine to save and stop."""
    try:
        os.kill(pid, signal.SIGTERM)
        print(f"asked process {pid} to save and stop")
    except PermissionError:
        note(f"process {pid} on this machine belongs to another user and keeps running; only that user can stop it")
    except ProcessLookupError:
        print(f"process {pid} has just ended on its own")


def cancel_some(sweep: Path, names: list[str]) -> None:
    """Cancel the SLURM jobs of the arms and runs in ``names``, and of the runs that wait for them.

    A run of a named arm keeps running if another arm needs it too, unless the run itself is named.

    Raises:
        ConfigError: a process of this machine trains the sweep, which can only be stopped as a whole.
    """
    chosen = runs_named(sweep, names)
    if (pid := sweep_folder.launcher_pid(sweep)) is not None:
        raise ConfigError(f"process {pid} on this machine trains the whole sweep {sweep}; to stop it, run cancel.py without names")
    readable = _readable_folders([*dict.fromkeys(folder for group in (*runs_of(sweep), chosen) for folder in group), sweep])
    runs = [folder for folder in readable if folder != sweep]
    entries, unqueued = cluster.queued(runs), _unqueued_runs(sweep, readable)
    for folder, arm in shared_runs(sweep, names).items():
        if folder in entries or folder in unqueued:
            note(f"{folder.name} keeps running, since arm {arm} needs it too; name it to stop it")
            chosen.discard(folder)
    pending = entries.keys() | unqueued
    waiting = waiting_for(chosen & pending, pending) - chosen
    ended = _cancel_jobs({folder: entry for folder, entry in entries.items() if folder in chosen | waiting})
    if waiting_names := sorted(folder.name for folder in waiting & ended):
        print(f"of which {counted(len(waiting_names), 'job')} waited for the others: {' '.join(waiting_names)}")
    dropped = unqueued & (chosen | waiting)
    _leave_out(sweep, dropped)
    if not ended and not dropped:
        print(f"nothing of {' '.join(names)} in {sweep} is running or queued")


def _unqueued_runs(sweep: Path, known: list[Path]) -> set[Path]:
    """Return the folders in ``known`` whose runs still wait for room in SLURM's queue; none if the sweep itself is not in ``known``."""
    unqueued = yet_to_queue(sweep, (folder for folder in known if folder != sweep)) if sweep in known else set()
    return {folder for folder in unqueued if not is_trained(folder)}


def _leave_out(sweep: Path, unqueued: set[Path]) -> None:
    """Mark the runs in ``unqueued`` as cancelled, so that the job that was to queue them leaves them out."""
    for folder in unqueued:
        _mark(folder)
    if unqueued:
        print(f"{counted(len(unqueued), 'run')} that job {cluster.job_id(sweep)} would have queued later will not be queued")


def _readable_folders(folders: list[Path]) -> list[Path]:
    """Return the ``folders`` whose job record is readable, and print a note for each of the others: they must not block cancelling."""
    damaged = cluster.damaged(folders)
    for folder, problem in damaged.items():
        reason = f"its job record is unreadable (squeue --me may list its job): {problem}"
        note(f"{folder.name} was not cancelled: {reason}")
    return [folder for folder in folders if folder not in damaged]


def _cancel_jobs(entries: dict[Path, cluster.Entry]) -> set[Path]:
    """Cancel the jobs in ``entries`` that belong to this user, and return their folders."""
    ids = {folder: cluster.queued_id(folder) for folder, entry in entries.items() if entry.is_mine}
    for folder, entry in entries.items():
        if not entry.is_mine:
            note(f"job {cluster.queued_id(folder)} ({folder.name}) belongs to {entry.user} and keeps running")
    if ids:
        cluster.output("scancel", *ids.values())
        print(f"cancelled {counted(len(ids), 'job')}: {' '.join(ids.values())}")
    for folder in ids:
        _mark(folder)
    return set(ids)


def _mark(folder: Path) -> None:
    """Record in ``folder`` that its run was cancelled, since SLURM forgets its jobs and `status` would not know."""
    try:
        (folder / CANCELLED).touch()
    except OSError as error:
        note(f"could not record in its folder that {folder.name} was cancelled ({error.strerror})")


if __name__ == "__main__":
    sys.exit(main())
