"""What a run printed: the end of its newest log, what is added to it, and what it says of the run's end."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

from jobs.slurm import cluster
from vitssl.config import ConfigError
from vitssl.files import read_json
from vitssl.run_folder import DONE, ERROR, EVALS, SLURM_JOB
from vitssl.words import listed, printable

PAUSE_S = 0.5
END_BYTES = 1 << 16  # of a log, in which it says why it ended
TAIL_BYTES = 1 << 20  # of a log's end, in which its last lines are looked for


def newest(folder: Path) -> Path | None:
    """The log of a run's newest attempt: what training printed, or, where none began, what SLURM's job did. None: there is neither."""
    return max(_of_training(folder) or _of_job(folder), key=lambda path: (path.stat().st_mtime_ns, path.name), default=None)


def logs_of(folder: Path) -> list[Path]:
    """The newest log of training, and those of the newest job, to which SLURM writes too."""
    return [*filter(None, [newest(folder)]), *(path for path in _of_job(folder) if path != newest(folder))]


def _of_training(folder: Path) -> list[Path]:
    return list((folder / "log").glob("*.txt"))


def _of_job(folder: Path) -> list[Path]:
    job = read_json(folder / SLURM_JOB).get("job_id")
    submitit = folder.parent / "submitit"  # of its tasks, and of its batch script
    return [*(submitit / job).glob("*_log.out"), *submitit.glob(f"{job}_log.out")] if job else []


def end_of(path: Path) -> str:
    """What a log says last; empty where there is none."""
    if not path.exists():
        return ""
    with path.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, 2) - END_BYTES))
        return stream.read().decode(errors="replace")


def show(folder: Path, lines: int, state: str) -> None:
    """Print the end of a run's newest log, and its path on stderr."""
    path = newest(folder)
    if path is None:
        raise ConfigError(f"there is no log: the run is {state}", place=str(folder))
    _begin(path, lines)


def follow(folder: Path, lines: int, ended: Callable[[], bool]) -> None:
    """As `show`, and go on with what is added, and with the log of the next attempt, until the run has ended.

    ``ended`` asks SLURM, and so is called seldom, and when the run has written a record.
    """
    path: Path | None = None
    place, asked_s, known = 0, 0.0, None
    while True:
        over, records = False, [_written(folder / name) for name in (DONE, EVALS, ERROR)]
        if records != known or time.monotonic() > asked_s + cluster.ASKED_EVERY_S:
            over, asked_s, known = ended(), time.monotonic(), records
        latest = newest(folder)  # after that: what was printed before the end is shown
        if path is not None:
            place = _print_from(path, place)
        if latest is not None and latest != path:
            place, path = _begin(latest, lines), latest
        if over:
            return
        time.sleep(PAUSE_S)


def _written(path: Path) -> int | None:
    """When a file was written; None where there is none."""
    return path.stat().st_mtime_ns if path.exists() else None


def _begin(path: Path, lines: int) -> int:
    """Name a log, and print its last lines; where it ended."""
    print(f"==> {path} <==", file=sys.stderr, flush=True)
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - TAIL_BYTES))
        text = stream.read(TAIL_BYTES)
    print("".join(_text(text).splitlines(keepends=True)[-lines:]), end="", flush=True)
    return size


def _print_from(path: Path, place: int) -> int:
    with path.open("rb") as stream:
        stream.seek(place)
        text = stream.read()
    print(_text(text), end="", flush=True)
    return place + len(text)


def _text(content: bytes) -> str:
    """What may go to a terminal; a progress line that is drawn again and again is a line each time."""
    return printable(content.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n"))


# --------------------------------------------------------------------------------------------------------------- causes


# why jobs ended that left no reason in their run's folder, by what SLURM, the system or a rank said in their logs
NO_SPACE = "no disk space is left where it writes: free some (`vitssl prune` lists what no run needs any more)"
READ_ONLY = "where it writes is read-only"
KILLED = "a task was killed from outside (signal 9), probably for lack of memory"
CAUSES = {  # in logs, from SLURM 22.05 and torch 2.9 on
    r"oom[-_]kill|out-of-memory handler|OUT_OF_MEMORY": "the job's memory was used up: raise resources.mem_gb, or lower data.workers",
    r"OutOfMemoryError": "the GPU's memory was used up: lower loop.micro_batch_size",
    r"Signal 9 \(SIGKILL\)|exit ?code *:? -9|task \S+: Killed": f"{KILLED}: raise resources.mem_gb, or lower data.workers",
    r"No space left on device|no space for its checkpoints|Disk quota exceeded": NO_SPACE,
    r"DUE TO TIME LIMIT": "its time ran out before it had saved: raise resources.hours",
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
