"""Parts that the comparisons share: a clock, and medians over rounds in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch


@dataclass
class Comparison:
    """Medians over the rounds; ``ratio`` is the median over the rounds of the ratio ours / rival."""

    unit: str
    ours: float
    rival: float
    ratio: float
    rounds: int
    note: str


@dataclass
class Bench:
    """The images, the device and the number of rounds of the comparisons."""

    images: Path
    scratch: Path
    device: torch.device
    repeats: int

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def compare(self, unit: str, ours: Callable[[], float], rival: Callable[[], float], note: str) -> Comparison:
        """Compare two functions that return a figure in ``unit``, called in turn; the first round is not counted."""
        pairs = [(ours(), rival()) for _ in range(self.repeats + 1)][1:]
        mine, theirs = np.array(pairs).T
        median, rival_median, ratio = (float(np.median(figures)) for figures in (mine, theirs, mine / theirs))
        return Comparison(unit, median, rival_median, ratio, self.repeats, note)

    def compare_seconds(self, ours: Callable[[], Any], rival: Callable[[], Any], note: str, times: int = 1) -> Comparison:
        """Compare the seconds of two pieces of work, each the mean over ``times`` calls in a row."""
        return self.compare("s", lambda: self.seconds(ours, times), lambda: self.seconds(rival, times), note)

    def seconds(self, work: Callable[[], Any], times: int = 1) -> float:
        """Return the mean seconds of ``work`` over ``times`` calls, until the device is done."""
        self._wait()
        started = time.perf_counter()
        for _ in range(times):
            work()
        self._wait()
        return (time.perf_counter() - started) / times

    def _wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(self.device)
