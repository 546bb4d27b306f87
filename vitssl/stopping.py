"""Requests to stop, by the launcher or by a signal."""

from __future__ import annotations

import os
import signal
from typing import Any


class StopRequest:
    """A request that this run stops: the launcher's stop file, or a signal.

    Signals only set a flag, which is looked at between steps, or between evaluators. A second one ends the process at once.
    """

    def __init__(self) -> None:
        self._file = os.environ.get("VITSSL_STOP_FILE")
        self._flagged = False

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
        return self._flagged or (self._file is not None and os.path.exists(self._file))
