"""What SLURM's queue holds, and which of its jobs a run folder belongs to."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from vitssl.config import ConfigError

JOB_FILE = "slurm.json"


def jobs() -> dict[str, str]:
    """{id: state} of this user's jobs that are pending or running; array elements one by one."""
    lines = output("squeue", "-h", "-r", "--me", "-o", "%i %T").splitlines()
    return dict(line.split(maxsplit=1) for line in lines)


def job_id(folder: Path) -> str | None:
    """SLURM's id of the newest job of a run, or of a sweep's report."""
    path = folder / JOB_FILE
    return json.loads(path.read_text())["job_id"] if path.exists() else None


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
