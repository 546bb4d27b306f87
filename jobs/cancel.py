"""Stop a sweep: `python jobs/cancel.py runs/quickstart`. Only this sweep's jobs; what is saved stays."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from jobs import environment

    environment.require()

from jobs import cluster, local
from jobs.chosen import runs_of
from vitssl.arguments import Parser, guarded
from vitssl.words import counted


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0, or 2 for a user's mistake."""
    parser = Parser(prog="jobs/cancel.py", description=__doc__)
    parser.add_argument("sweep", type=Path, help="the sweep's folder, for example runs/quickstart")
    folder = parser.parse_args(arguments).sweep
    return guarded(lambda: cancel(folder))


def cancel(sweep: Path) -> None:
    """End this sweep's SLURM jobs, the report's included, and ask its local launcher to stop.

    Raises:
        ConfigError: the folder is not a sweep's, or SLURM does not answer.
    """
    asked_for, before = runs_of(sweep)
    pid = local.running(sweep)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        print(f"asked process {pid} to save and stop")
    entries = cluster.queued([*asked_for, *before, sweep])
    ids = {folder: cluster.job_id(folder) for folder, entry in entries.items() if entry.is_mine}
    for folder, entry in entries.items():
        if not entry.is_mine:
            print(f"note: job {cluster.job_id(folder)} ({folder.name}) is not yours but {entry.user}'s, and stays", file=sys.stderr)
    if ids:
        cluster.output("scancel", *ids.values())
        print(f"cancelled {counted(len(ids), 'job')}: {' '.join(ids.values())}")
    for folder in ids:
        _mark(folder)
    if pid is None and not ids:
        print(f"nothing of {sweep} is running or queued")


def _mark(folder: Path) -> None:
    """For `status`: SLURM forgets its jobs."""
    try:
        (folder / "cancelled").touch()
    except OSError as error:
        print(f"note: that {folder.name} was cancelled could not be written in its folder ({error.strerror})", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
