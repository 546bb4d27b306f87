"""Why jobs ended that left no reason in their run's folder: what SLURM, the system or a rank said in their logs."""

from __future__ import annotations

import os
import re
from pathlib import Path

from jobs.logs import end_of, logs_of, newest
from vitssl.words import listed

NO_SPACE = "no space is left where it writes: make room (`vitssl prune` lists what no run needs any more)"
READ_ONLY = "where it writes is read-only"
KILLED = "a task was killed from outside (signal 9), probably for lack of memory"
CAUSES = {  # in logs, from SLURM 22.05 and torch 2.9 on
    r"oom[-_]kill|out-of-memory handler|OUT_OF_MEMORY": "the job's memory was used up: raise resources.mem_gb, or lower data.workers",
    r"OutOfMemoryError": "the GPU's memory was used up: lower loop.micro_batch_size",
    r"Signal 9 \(SIGKILL\)|exit ?code *:? -9|task \S+: Killed": f"{KILLED}: raise resources.mem_gb, or lower data.workers",
    r"No space left on device|no space for its checkpoints|Disk quota exceeded": NO_SPACE,
    r"DUE TO TIME LIMIT": "its time was over before it had saved: raise resources.hours",
    r"DUE TO NODE FAILURE": "its node failed",
}
# of gloo, NCCL, and the store where processes meet
SILENCE = (
    r"Timed out waiting \d+ms for \w+ operation|collective operation timeout|wait timeout after \d+ms|"
    r"client socket has timed out|seconds waiting for clients"
)


def cause(folder: Path) -> str | None:
    """What the newest words about it in a run's last logs mean; None where there are none."""
    there = os.statvfs(folder)
    if there.f_flag & os.ST_RDONLY:
        return READ_ONLY
    if _is_full(there):
        return NO_SPACE
    found: list[tuple[float, int, str]] = []  # when, where and what
    for path in logs_of(folder):
        text = end_of(path)
        for pattern, meaning in (CAUSES | {SILENCE: SILENCE}).items():
            found += [(path.stat().st_mtime, match.start(), meaning) for match in re.finditer(pattern, text)]
    meant = max(found)[2] if found else None
    return _silence(folder) if meant == SILENCE else meant


def _silence(folder: Path) -> str:
    """Which nodes of the newest attempt waited in vain, and for which: each has a log of its own (node.py)."""
    latest = newest(folder)
    attempt = re.match(r"train-\d+-\d+-", latest.name) if latest else None
    waited = {
        path.stem.removeprefix(attempt[0]): re.search(SILENCE, end_of(path)) is not None
        for path in (sorted(latest.parent.glob(f"{attempt[0]}*.txt")) if attempt else ())
    }
    silent = [host for host, in_vain in waited.items() if not in_vain]
    if not silent:
        return f"the processes{' on ' if waited else ''}{listed(waited)} waited for one another in vain: one hangs, or the network does"
    waiting = listed(host for host in waited if host not in silent)
    return f"{waiting} waited in vain for {listed(silent)}: one hangs, or the network does (site.exclude={','.join(silent)} avoids it)"


def _is_full(there: os.statvfs_result) -> bool:
    """Has this file system no block, or no inode, for us?"""
    return there.f_bavail == 0 or (there.f_files > 0 and there.f_favail == 0)
