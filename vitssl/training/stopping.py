"""Requests to stop: by the launcher or its death, by a signal, or because SLURM's time ends before another step could be saved."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path
from typing import Any

from vitssl.variables import ENDS_AT, STOP_FILE

STOPPED = 75  # EX_TEMPFAIL: exit code of a run that stopped on request and is to be continued; after 0, dependent jobs would start
SLACK_S = 90  # SLURM checks the time once a minute, and asking it for another start takes time too


LAUNCHER = "launcher"  # a file beside the stop file, which the launcher keeps locked as long as it lives


def is_stop_requested(stop_file: str) -> bool:
    """Whether the launcher wants its run to stop, or is gone (for example killed), so that nobody would learn how the run ended."""
    return os.path.exists(stop_file) or _is_free(os.path.join(os.path.dirname(stop_file), LAUNCHER))


def _is_free(lock_file: str) -> bool:
    """Whether the file exists and nobody has locked it."""
    try:
        with open(lock_file, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, BlockingIOError):
        return False
    return True


class StopRequest:
    """A request that this run stops: the launcher's stop file or death, a signal, or the end of the job's time.

    Signals only set a flag, which is checked between steps while training, and between evaluators when a finished run is evaluated. A
    second signal ends the process at once. SLURM warns a fixed time before a job's end (jobs/node.py); ``needs`` is told how long a step
    and a save take, in case that is longer.
    """

    def __init__(self) -> None:
        self._file = os.environ.get(STOP_FILE)
        self._flagged = False
        self._ends_at = float(os.environ.get(ENDS_AT, "inf"))  # on the clock of time.time()
        self._most_s = (self._ends_at - time.time()) / 4  # stopping may take up at most a quarter of the job's time
        self._needs_s = 0.0

    def needs(self, seconds: float) -> None:
        """Note that a step, and a save after it, take up to ``seconds``."""
        self._needs_s = seconds

    def accept(self) -> None:
        """Create the stop file, which tells this node's launcher that nothing failed, whichever rank was asked to stop."""
        if self._file is not None:
            Path(self._file).touch()

    def __enter__(self) -> StopRequest:
        on_usr2 = signal.SIG_IGN if self._file else self._flag
        handlers = {signal.SIGTERM: self._flag, signal.SIGINT: self._flag, signal.SIGUSR2: on_usr2}
        self._before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _flag(self, number: int, frame: Any) -> None:
        if self._flagged:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._flagged = True

    def __bool__(self) -> bool:
        return self._flagged or (self._file is not None and is_stop_requested(self._file)) or self._out_of_time()

    def _out_of_time(self) -> bool:
        return time.time() + min(self._needs_s + SLACK_S, self._most_s) >= self._ends_at
