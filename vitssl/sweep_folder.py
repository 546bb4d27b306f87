"""A sweep's folder: what its files are called, which one is meant, and who runs it on this machine; without torch."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from vitssl.config import ConfigError
from vitssl.config.base import closest
from vitssl.files import read_json

SWEEP = "sweep.json"  # what was asked for: cells, runs, site, commands
GRID = "grid.csv"  # the grid's carbon intensity by time, where its site has a file of that
SUBMITTING = ".submitting"  # the lock of a sweep that is being submitted
LOCAL = "local.json"  # the process that runs it on one machine
BOOT = Path("/proc/sys/kernel/random/boot_id")


def is_sweep(folder: Path) -> bool:
    return (folder / SWEEP).is_file()


def named(typed: str | Path) -> Path:
    """The folder of a sweep, as typed, or of that name in `runs/`."""
    path, in_runs = Path(typed), Path("runs", typed)
    return in_runs if not path.exists() and in_runs.is_dir() else path


def read(folder: Path) -> dict[str, Any]:
    """What the launcher wrote down of a sweep.

    Raises:
        ConfigError: the folder is not a sweep's, with one that was probably meant; or the record is damaged.
    """
    if facts := read_json(folder / SWEEP):
        return facts
    near = _near(folder)
    example = f", such as {near}" if near else ""
    raise ConfigError(f"{folder / SWEEP} does not exist: this is not a sweep's folder (runs/NAME{example})")


def _near(typed: Path) -> Path | None:
    """The folder that holds a run, the one of that name or of one like it, or another one that is there."""
    found = [path.parent for folder in (typed, Path("runs")) for path in sorted(folder.glob(f"*/{SWEEP}"))]
    alike = closest(typed.name, [folder.name for folder in found])
    candidates = (typed.parent, Path("runs") / typed.name, *(folder for folder in found if folder.name in alike), *found)
    return next(filter(is_sweep, candidates), None)


def running(sweep: Path) -> int | None:
    """The id of the process that runs this sweep on this machine now."""
    launcher = read_json(sweep / LOCAL)
    if not launcher:
        return None
    born = launcher["born"]
    alive = born is not None and launcher["host"] == socket.gethostname() and born_at(launcher["pid"]) == born
    return launcher["pid"] if alive else None


def elsewhere(sweep: Path) -> str:
    """The process of another machine that began to run this sweep and has not said that it ended; empty where there is none."""
    launcher = read_json(sweep / LOCAL)
    return f"process {launcher['pid']} of {launcher['host']}" if launcher and launcher["host"] != socket.gethostname() else ""


def was_asked(sweep: Path) -> bool:
    """Was its launcher asked to save and stop?"""
    stop_file = read_json(sweep / LOCAL).get("stop_file")
    return stop_file is not None and Path(stop_file).exists()


def born_at(pid: int) -> str | None:
    """When a process of this machine was started, which tells it from a later one with the same id; None where there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # from the third on: the second, a name, may hold spaces
    except OSError:
        return None
    return f"{fields[19]} ticks after boot {BOOT.read_text().strip()}"
