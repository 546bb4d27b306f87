"""Commands, waiting and run folders, for the tests of this folder."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from jobs import cluster
from tests.jobs.standin import HELD_AT


def sh(*words: str) -> str:
    return subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


def wait_for(condition: Callable[[], object], timeout_s: float = 60) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"timed out: {sh('squeue')}"
        time.sleep(0.1)


def run_folder(sweep: Path, arm: str) -> Path:
    (found,) = sweep.glob(f"{arm}-*")
    return found


def starts(folder: Path) -> list[int]:
    path = folder / "starts.txt"
    return [int(line.split()[0]) for line in path.read_text().splitlines()] if path.exists() else []


def history(folder: Path) -> list[str]:
    """SLURM's end state of each incarnation of a run's job."""
    return sh("sacct", "-X", "-n", "-P", "-D", "-j", cluster.job_id(folder), "-o", "State").split("\n")


def held(folder: Path) -> bool:
    checkpoint = folder / "last.pt"
    return checkpoint.exists() and int(checkpoint.read_text()) == HELD_AT


def goes_on(folder: Path, hold: Path) -> None:
    """Let a held run that was stopped or killed go on, once it is back."""
    wait_for(lambda: len(starts(folder)) > 1)
    hold.unlink()


def is_done(folder: Path) -> bool:
    return (folder / "done.json").exists()


def kill_task(folder: Path) -> None:
    """kill -9 of submitit's process, which holds everything of a run."""
    os.kill(task_of(folder), signal.SIGKILL)


def task_of(folder: Path) -> int:
    return int(Path(f"/proc/{training_of(folder)}/stat").read_text().rpartition(")")[2].split()[1])


def training_of(folder: Path) -> int:
    return int(sh("pgrep", "-f", f"^[^ ]*python[^ ]* -m standin {folder}$").split()[0])
