"""A sweep's folder: the names of its files, which folder is meant, and which process runs it on this machine. This imports no torch."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from vitssl.config import ConfigError
from vitssl.config.base import closest
from vitssl.files import read_json
from vitssl.run_folder import SLURM_JOB

SWEEP = "sweep.json"  # what was asked for: cells, runs, site, commands
SWEEP_FILE = "sweep.yaml"  # the sweep file, as the last submission read it
GRID = "grid.csv"  # the grid's carbon intensity over time, if the sweep's site has such a file
SUBMITTING = ".submitting"  # the lock of a sweep that is being submitted
LOCAL = "local.json"  # the process that runs the sweep on one machine
BOOT = Path("/proc/sys/kernel/random/boot_id")


def is_sweep(folder: Path) -> bool:
    return (folder / SWEEP).is_file()


def find_sweep(typed: str | Path) -> Path:
    """Return the folder of a sweep: ``typed`` itself, or the folder of that name in `runs/`."""
    path, in_runs = Path(typed), Path("runs", typed)
    return in_runs if not path.exists() and in_runs.is_dir() else path


def read(folder: Path) -> dict[str, Any]:
    """Return the launcher's record of a sweep.

    Raises:
        ConfigError: the folder is not a sweep's (the error suggests one that may have been meant), or the record is damaged.
    """
    if facts := read_json(folder / SWEEP):
        return facts
    suggestion = _near(folder)
    example = f", such as {suggestion}" if suggestion else ""
    raise ConfigError(f"{folder / SWEEP} does not exist: this is not a sweep's folder (runs/NAME{example})")


def _near(typed: Path) -> Path | None:
    """Return the sweep that ``typed`` is a run of, else one in ``runs/`` of that or a similar name, else any sweep, or None."""
    sweeps = [path.parent for folder in (typed, Path("runs")) for path in sorted(folder.glob(f"*/{SWEEP}"))]
    similar_names = closest(typed.name, [folder.name for folder in sweeps])
    candidates = (typed.parent, Path("runs") / typed.name, *(folder for folder in sweeps if folder.name in similar_names), *sweeps)
    return next(filter(is_sweep, candidates), None)


def is_reported(sweep: Path) -> bool:
    """Whether the report was made after the last submission to SLURM of a sweep that was submitted there."""
    report, job = sweep / "report" / "report.html", sweep / SLURM_JOB
    return report.exists() and report.stat().st_mtime >= job.stat().st_mtime


def launcher_pid(sweep: Path) -> int | None:
    """Return the id of the process that runs this sweep on this machine now, or None."""
    launcher = read_json(sweep / LOCAL)
    if not launcher:
        return None
    born = launcher["born"]
    alive = born is not None and launcher["host"] == socket.gethostname() and born_at(launcher["pid"]) == born
    return launcher["pid"] if alive else None


def remote_launcher(sweep: Path) -> str:
    """Name the process of another machine that began to run this sweep and has not reported its end; empty if there is none."""
    launcher = read_json(sweep / LOCAL)
    return f"process {launcher['pid']} of {launcher['host']}" if launcher and launcher["host"] != socket.gethostname() else ""


def is_asked_to_stop(sweep: Path) -> bool:
    """Whether the sweep's launcher was asked to save and stop."""
    stop_file = read_json(sweep / LOCAL).get("stop_file")
    return stop_file is not None and Path(stop_file).exists()


def born_at(pid: int) -> str | None:
    """Return when a process of this machine was started, or None if there is no such process.

    The time distinguishes the process from a later one with the same id.
    """
    try:
        # from the third field on; the second, a name in parentheses, may hold spaces
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return f"{fields[19]} ticks after boot {BOOT.read_text().strip()}"
