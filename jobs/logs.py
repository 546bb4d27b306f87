"""The logs of runs: print the end of the newest one, follow it, and find out from it why a run ended."""

from __future__ import annotations

import codecs
import io
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
END_BYTES = 1 << 16  # of a log that are searched for why the run ended
TAIL_BYTES = 1 << 20  # of a log that are read to print its last lines


def newest(folder: Path) -> Path | None:
    """Return the newest log of a run: of training or, if training never began, of its newest SLURM job. None if there is neither."""
    return max(_of_training(folder) or _of_job(folder), key=lambda path: (path.stat().st_mtime_ns, path.name), default=None)


def logs_of(folder: Path) -> list[Path]:
    """Return the newest log of training, if any, and the logs of the newest job, to which SLURM writes too."""
    return [*filter(None, [newest(folder)]), *(path for path in _of_job(folder) if path != newest(folder))]


def _of_training(folder: Path) -> list[Path]:
    return list((folder / "log").glob("*.txt"))


def _of_job(folder: Path) -> list[Path]:
    job = read_json(folder / SLURM_JOB).get("job_id")
    submitit = folder.parent / "submitit"  # holds the logs of the job's tasks, and of its batch script
    return [*(submitit / job).glob("*_log.out"), *submitit.glob(f"{job}_log.out")] if job else []


def end_of(path: Path) -> str:
    """Return the last `END_BYTES` of a log as text; empty if there is no such file."""
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
    _Log(path).print_end(lines, final=True)


def follow(folder: Path, lines: int, ended: Callable[[], bool]) -> None:
    """Print the end of a run's newest log, then what is added to it and the logs of later attempts, until the run has ended.

    ``ended`` asks SLURM, so it is called only now and then, and whenever the run has written a record.
    """
    log: _Log | None = None
    asked_s, seen = 0.0, None
    while True:
        is_over, records = False, [_written(folder / name) for name in (DONE, EVALS, ERROR)]
        if records != seen or time.monotonic() > asked_s + cluster.ASKED_EVERY_S:
            is_over, asked_s, seen = ended(), time.monotonic(), records
        latest = newest(folder)  # after `ended`, so that what was printed before the end is shown
        if log is not None:
            log.print_new(final=is_over or latest != log.path)
        if latest is not None and (log is None or latest != log.path):
            log = _Log(latest)
            log.print_end(lines, final=is_over)
        if is_over:
            return
        time.sleep(PAUSE_S)


def _written(path: Path) -> int | None:
    """Return when a file was written, in ns; None if it does not exist."""
    return path.stat().st_mtime_ns if path.exists() else None


class _Log:
    """A log that is printed as it grows: what one reading cuts, of a character or of a line break, is printed with the next."""

    def __init__(self, path: Path) -> None:
        self.path, self._position = path, 0
        # each redrawing of a progress line becomes a line of its own
        self._decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)

    def print_end(self, lines: int, final: bool) -> None:
        """Print the log's path on stderr and its last lines on stdout; ``final``: nothing of it will be printed later."""
        print(f"==> {self.path} <==", file=sys.stderr, flush=True)
        self._position = max(0, self.path.stat().st_size - TAIL_BYTES)
        print("".join(self._new_text(final).splitlines(keepends=True)[-lines:]), end="", flush=True)

    def print_new(self, final: bool) -> None:
        """Print what was added since the last reading; ``final``: nothing will be printed later."""
        print(self._new_text(final), end="", flush=True)

    def _new_text(self, final: bool) -> str:
        """Return what was added since the last reading, with control characters written as escapes."""
        with self.path.open("rb") as stream:
            stream.seek(self._position)
            content = stream.read()
        self._position += len(content)
        return printable(self._decoder.decode(content, final))


# --------------------------------------------------------------------------------------------------------------- causes


# why a job ended that left no reason in its run's folder, by what SLURM, the system or a rank wrote to its logs
NO_SPACE = "no disk space is left where it writes: free some (`vitssl prune` lists what no run needs any more)"
READ_ONLY = "where it writes is read-only"
KILLED_REASON = "a task was killed from outside (signal 9), probably for lack of memory"
CAUSES = {  # by the pattern in logs, which fit SLURM 22.05 and torch 2.9 or newer
    r"oom[-_]kill|out-of-memory handler|OUT_OF_MEMORY": "the job's memory was used up: raise resources.mem_gb, or lower data.workers",
    r"OutOfMemoryError": "the GPU's memory was used up: lower loop.micro_batch_size",
    r"Signal 9 \(SIGKILL\)|exit ?code *:? -9|task \S+: Killed": f"{KILLED_REASON}: raise resources.mem_gb, or lower data.workers",
    r"No space left on device|no space for its checkpoints|Disk quota exceeded": NO_SPACE,
    r"DUE TO TIME LIMIT": "its time ran out before it had saved: raise resources.hours",
    r"DUE TO NODE FAILURE": "its node failed",
}
# time-outs of gloo, of NCCL, and of the store where processes meet
SILENCE = (
    r"Timed out waiting \d+ms for \w+ operation|collective operation timeout|wait timeout after \d+ms|"
    r"client socket has timed out|seconds waiting for clients"
)


def cause(folder: Path) -> str | None:
    """Return why a run ended without a reason of its own: by its disk, or the newest known message in its last logs. None if unknown."""
    disk = os.statvfs(folder)
    if disk.f_flag & os.ST_RDONLY:
        return READ_ONLY
    if _is_full(disk):
        return NO_SPACE
    matches: list[tuple[float, int, str]] = []  # (time of the log, position in it, meaning)
    for path in logs_of(folder):
        text = end_of(path)
        for pattern, meaning in (CAUSES | {SILENCE: SILENCE}).items():
            matches += [(path.stat().st_mtime, match.start(), meaning) for match in re.finditer(pattern, text)]
    newest_meaning = max(matches)[2] if matches else None
    return _silence(folder) if newest_meaning == SILENCE else newest_meaning


def _silence(folder: Path) -> str:
    """Return a sentence on which nodes of the newest attempt waited in vain, and for which: each node has its own log (node.py)."""
    waited = _waited_in_vain(newest(folder))
    silent = [host for host, in_vain in waited.items() if not in_vain]
    if not silent:
        return f"the processes{' on ' if waited else ''}{listed(waited)} waited for one another in vain: one hangs, or the network does"
    waiting = listed(host for host in waited if host not in silent)
    return f"{waiting} waited in vain for {listed(silent)}: one hangs, or the network does (site.exclude={','.join(silent)} avoids it)"


def _waited_in_vain(latest: Path | None) -> dict[str, bool]:
    """Return {host: whether it waited in vain} of the nodes whose logs belong to the attempt of the ``latest`` log."""
    if latest is None or (attempt := re.match(r"train-\d+-\d+-", latest.name)) is None:
        return {}
    begin = attempt[0]
    logs = sorted(latest.parent.glob(f"{begin}*.txt"))
    return {path.stem.removeprefix(begin): re.search(SILENCE, end_of(path)) is not None for path in logs}


def _is_full(there: os.statvfs_result) -> bool:
    """Whether a file system has no free block, or no free inode, for this user."""
    return there.f_bavail == 0 or (there.f_files > 0 and there.f_favail == 0)
