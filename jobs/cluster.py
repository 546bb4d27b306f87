"""What SLURM's queue holds, and which of its jobs a run folder belongs to."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from vitssl.config import ConfigError
from vitssl.files import read_json

JOB_FILE = "slurm.json"


def jobs() -> dict[str, str]:
    """{id: state} of this user's jobs that are pending or running; array elements one by one."""
    lines = output("squeue", "-h", "-r", "--me", "-o", "%i %T").splitlines()
    return dict(line.split(maxsplit=1) for line in lines)


def is_waiting(job: str) -> bool:
    """Is this job pending or running? Where SLURM does not answer now, it is not known to have ended."""
    try:
        return job in jobs()
    except ConfigError:
        return True


def job_id(folder: Path) -> str | None:
    """SLURM's id of the newest job of a run, or of a sweep's report."""
    return read_json(folder / JOB_FILE).get("job_id")


def queued(folders: Iterable[Path]) -> dict[Path, str]:
    """{folder: state} of those whose newest job is pending or running; SLURM is asked only where one was ever submitted.

    A machine without SLURM's commands (a laptop that looks at copied folders) knows of no queue.
    """
    known = {folder: found for folder in folders if (found := job_id(folder)) is not None and shutil.which("squeue")}
    waiting = jobs() if known else {}
    return {folder: waiting[found] for folder, found in known.items() if found in waiting}


def answers() -> bool:
    """Is there a cluster here? SLURM's commands may be installed where none is."""
    if shutil.which("sbatch") is None:
        return False
    try:
        return subprocess.run(["scontrol", "ping"], capture_output=True, check=False, timeout=5).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def max_array_size() -> int:
    """How many elements this cluster's arrays may have: the limit is on the index, which starts at 0."""
    found = re.search(r"MaxArraySize\s*=\s*(\d+)", output("scontrol", "show", "config"))
    return int(found[1]) if found else 1000


def output(*words: str) -> str:
    """What a SLURM command prints.

    Raises:
        ConfigError: the command failed, as where the controller does not answer.
    """
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    if found.returncode:
        raise ConfigError(f"{words[0]} failed: {' '.join(found.stderr.split())}")
    return found.stdout
