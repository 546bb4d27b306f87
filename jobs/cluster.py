"""What SLURM's queue holds, and which of its jobs a run folder belongs to."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from vitssl.config import ConfigError, Site
from vitssl.files import read_json

JOB_FILE = "slurm.json"
# fields of a site that this machine alone has no use for, and how an error calls them; an image may be one for this machine, or not
OF_A_CLUSTER = {name: name for name in ("partition", "account", "qos", "constraint")}
OF_A_CLUSTER |= {"gpu_type": "gpu_type", "additional": "sbatch options", "image": "image"}


def jobs() -> dict[str, str]:
    """{id: state} of this user's jobs that are pending or running; one entry per array element."""
    lines = output("squeue", "-h", "-r", "--me", "-o", "%i %T").splitlines()
    return dict(line.split(maxsplit=1) for line in lines)


def is_waiting(job: str) -> bool:
    """Is this job pending or running? If SLURM does not answer, it may still be."""
    try:
        return job in jobs()
    except ConfigError:
        return True


def job_id(folder: Path) -> str | None:
    """SLURM's id of the newest job of a run, or of a sweep's report."""
    return read_json(folder / JOB_FILE).get("job_id")


def queued(folders: Iterable[Path]) -> dict[Path, str]:
    """{folder: state} of those whose newest job is pending or running; SLURM is asked only if any was ever submitted.

    A machine without SLURM's commands (a laptop with copied folders) has an empty queue.
    """
    ids = {folder: job for folder in folders if (job := job_id(folder)) is not None and shutil.which("squeue")}
    states = jobs() if ids else {}
    return {folder: states[job] for folder, job in ids.items() if job in states}


def answers() -> bool:
    """Is there a cluster here? SLURM's commands may be installed where none is."""
    ping = _ping()
    return ping is not None and ping.returncode == 0


def expected(site: Site) -> str | None:
    """What tells that jobs are meant for a cluster, even where none answers; None: nothing does."""
    for name, called in OF_A_CLUSTER.items():
        if value := getattr(site, name):
            return f"the site {site.name} names the {called} {', '.join(value) if isinstance(value, dict) else value}"
    return "SLURM is set up on this machine" if _is_set_up() else None


def _is_set_up() -> bool:
    """Do SLURM's commands know of a cluster? A package that is installed, and no more, has neither a slurm.conf nor a server of one."""
    ping = _ping()
    return shutil.which("sbatch") is not None and (ping is None or "configuration source" not in ping.stderr)


def _ping() -> subprocess.CompletedProcess[str] | None:
    """The controller's answer; None where there are no commands, or none came in time."""
    if shutil.which("sbatch") is None:
        return None
    try:
        return subprocess.run(["scontrol", "ping"], capture_output=True, text=True, check=False, timeout=5)
    except subprocess.TimeoutExpired:
        return None


def max_array_size() -> int:
    """How many elements this cluster's arrays may have: the limit is on the index, which starts at 0."""
    match = re.search(r"MaxArraySize\s*=\s*(\d+)", output("scontrol", "show", "config"))
    return int(match[1]) if match else 1000


def output(*words: str) -> str:
    """What a SLURM command prints.

    Raises:
        ConfigError: the command failed, as where the controller does not answer.
    """
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    if result.returncode:
        raise ConfigError(f"{words[0]} failed: {' '.join(result.stderr.split())}")
    return result.stdout
