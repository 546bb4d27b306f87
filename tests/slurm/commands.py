"""Commands, waiting and run folders, for the tests of this folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jobs import status
from jobs.slurm import cluster
from tests.jobs.standin import HELD_AT

TIMED_OUT = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"


def sh(*words: str) -> str:
    return subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


def wait_for(condition: Callable[[], object], timeout_s: float = 180) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"timed out after {timeout_s:.0f} s: {sh('squeue')}"
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
    return parent_of(training_of(folder))


def parent_of(pid: int) -> int:
    """Raises ProcessLookupError where it has ended, as `os.kill` does."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except FileNotFoundError:
        raise ProcessLookupError(f"{pid} has ended") from None


def controller() -> int:
    return int((Path(os.environ["SLURM_CONF"]).parents[1] / "run" / "slurmctld.pid").read_text())


def training_of(folder: Path) -> int:
    return int(sh("pgrep", "-f", f"^[^ ]*python[^ ]* -m standin {folder}$").split()[0])


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def restarts(folder: Path) -> int:
    return int(re.search(r"Restarts=(\d+)", sh("scontrol", "show", "job", cluster.job_id(folder)))[1])


def state_of(folder: Path) -> status.Status:
    return next(s for s in status.read_overview(folder.parent).statuses if s.name == folder.name)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """For root too, whom no mode keeps out."""
    sh("mount", "--bind", "-o", "ro", str(folder), str(folder))
    try:
        yield
    finally:
        # a job that is ending may still write its log there
        wait_for(lambda: subprocess.run(["umount", str(folder)], check=False).returncode == 0)


def misbehaving_sbatch(folder: Path, lines: str, asked: str = "") -> None:
    """An sbatch in a folder that is to be first on the path: ``lines`` run before what is queued, ``asked`` before what is only asked.

    $n counts the calls, and $real is the real one.
    """
    here = folder / "sbatch"
    real = next(found for path in os.get_exec_path() if path != str(folder) and (found := shutil.which("sbatch", path=path)))
    counted = f"echo >> {folder}/calls; n=$(wc -l < {folder}/calls); real={real}"
    told = f'if [ "$1" = --test-only ]; then\n{asked}\nexec {real} "$@"\nfi'
    here.write_text(f'#!/bin/bash\n{told}\n{counted}\n{lines}\nexec $real "$@"\n')
    here.chmod(0o755)
