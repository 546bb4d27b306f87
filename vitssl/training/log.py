"""What a run says while it trains: metrics.jsonl (the record), a console line, and scalars for loggers such as TensorBoard."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TextColumn
from torch import Tensor

from vitssl import __version__, dist
from vitssl.atomic import write_atomically
from vitssl.config import dotted
from vitssl.files import read_events
from vitssl.terminal import console
from vitssl.training import loggers
from vitssl.words import about, counted, duration

PACE_S = 600.0  # the time left goes by the pace of so long a time: two lines at least, of slow runs too
SETTLED_S = 10.0  # then the pace of a run may be that of others
QUIET_S = 30.0  # without a terminal, a line at least this often
# Environment variable by which a launcher says what else its sweep has to do, as JSON: "position" of this run, such as [3/12], and how many
# runs are trained "side_by_side"; for the others "seconds" of their own, as far as their pace is known when this one starts, and
# "times_this", how often the work of this run the rest is; and the seconds of the "longest" that is trained beside it.
SWEEP = "VITSSL_SWEEP"
LINES = "log/local.txt"  # in a run's folder: what it said, where that launcher keeps no log, as a batch job's output is kept


class Log:
    """The main rank's log of one attempt; other ranks hold one that is silent.

    On resume, what was written after the checkpoint is cut: those steps are trained, and evaluated, again.

    Attributes:
        lost_steps: how many of them there were, as far as they had been logged.
    """

    def __init__(self, folder: Path, step: int, total_steps: int, active: bool, to_evaluate: bool = False, also: Sequence[str] = ()):
        self.active, self.lost_steps = active, 0
        if not active:
            return
        self._path = folder / "metrics.jsonl"
        # starts and ends of earlier attempts stay: they say what was spent
        kept = {"start": total_steps, "end": total_steps, "eval": step - to_evaluate}
        before = read_events(self._path)
        self.lost_steps = max((e["step"] - step for e in before if e["event"] == "train" and e["step"] > step), default=0)
        keep = [e for e in before if e["step"] <= kept.get(e["event"], step)]
        write_atomically(self._path, "".join(json.dumps(e) + "\n" for e in keep).encode())
        self._file = self._path.open("a", buffering=1)
        self._loggers = loggers.start(folder, step, also)
        self._sweep, self._begun_s = json.loads(os.environ.get(SWEEP, "{}")), time.time()
        self._lines = folder / LINES if self._sweep else None
        self._name = " ".join(filter(None, (self._sweep.get("position"), folder.name)))
        self._bar, self._last_line_s = _progress_bar(alone=self._sweep.get("side_by_side", 1) == 1), time.time()
        self._task = self._bar.add_task(self._sweep.get("position") or folder.name, total=total_steps, completed=step, note="")
        self._bar.start()

    def event(self, kind: str, step: int, /, **values: Any) -> None:
        """Append one line to metrics.jsonl, with the time."""
        if not self.active:
            return
        self._file.write(json.dumps({"event": kind, "step": step, "time": time.time(), **values}) + "\n")
        if kind in ("train", "eval"):
            scalars = {f"{kind}/{name.replace('.', '/')}": value for name, value in dotted(values).items() if isinstance(value, float)}
            for logger in self._loggers:
                logger.scalars(step, scalars)

    def advance(self, step: int, epoch: str, note: str) -> None:
        """Move the progress bar to ``step``; a line says the epoch, the time left, and then the note, as far as there is room."""
        if not self.active:
            return
        self._bar.update(self._task, completed=step)
        line = f"{epoch}{self._left()}; {note}"
        self._bar.update(self._task, note=line)
        if time.time() - self._last_line_s > QUIET_S:
            self._say(f"{self._name}: {line}", on_screen=self._bar.disable)

    def _left(self) -> str:
        """The time left for this run, and for the sweep if others come after it."""
        task = self._bar.tasks[0]
        if task.time_remaining is None or not task.speed or task.total is None:
            return ""
        own_s, own = task.time_remaining, f", {duration(task.time_remaining)} left"
        since_s, width = time.time() - self._begun_s, self._sweep.get("side_by_side", 1)
        times_this = self._sweep.get("times_this", 0.0)
        if times_this and since_s < SETTLED_S:  # many times the first steps, which are slow
            return own
        others_s = self._sweep.get("seconds", 0.0) + times_this * task.total / task.speed
        if not others_s:
            return own
        # those beside this one go on meanwhile
        all_s, beside_s = own_s + max(0.0, others_s - (width - 1) * since_s), self._sweep.get("longest", 0.0) - since_s
        return f"{own}; {about(max(own_s, beside_s, all_s / width))} left for the sweep"

    def say(self, text: str) -> None:
        if self.active:
            self._say(text)

    def _say(self, text: str, on_screen: bool = True) -> None:
        self._last_line_s = time.time()
        with suppress(OSError):  # the terminal has gone; what was trained is to be saved all the same
            if on_screen:
                self._bar.console.print(text, soft_wrap=True)
        with suppress(OSError):
            if self._lines is not None:
                self._lines.parent.mkdir(exist_ok=True)
                with self._lines.open("a", encoding="utf-8", errors="surrogateescape") as lines:
                    lines.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")

    def close(self) -> None:
        if self.active:
            with suppress(OSError):
                self._bar.stop()
            self._file.close()
            for logger in self._loggers:
                logger.close()


def _progress_bar(alone: bool) -> Progress:
    # without a terminal (a batch job's log), and where other runs write to it too, the bar is off and `say` alone writes
    screen = console(file=sys.stderr)
    columns = (
        BarColumn(bar_width=10),
        TextColumn("{task.description} {task.fields[note]}", markup=False),  # one column: rich would shorten the first of several too
    )
    shown = screen.is_terminal and alone
    return Progress(*columns, console=screen, disable=not shown, transient=True, speed_estimate_period=PACE_S)


def machine(device: torch.device) -> dict[str, Any]:
    """Where and with what this process runs, for the report's provenance."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_model()
    versions = {package: metadata.version(package) for package in ("torch", "timm", "torchvision", "numpy")}
    return {
        "device": name,
        "host": socket.gethostname(),
        "versions": {"vitssl": __version__, "python": platform.python_version(), **versions},
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    names = (
        [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    )
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name} ({counted(len(names) or os.cpu_count() or 1, 'CPU')})"


class _OnHost:
    """A tensor's copy in the CPU's memory, which is waited for when it is looked at."""

    def __init__(self, value: Tensor):
        # pinned memory, or the copy would wait for the device
        self._copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda).copy_(value, non_blocking=True)
        self._event = torch.cuda.Event() if value.is_cuda else None
        if self._event:
            self._event.record()

    def get(self) -> Tensor:
        if self._event:
            self._event.synchronize()
        return self._copy


class Meter:
    """Means since the last line of the log, over the steps that had a term, kept on the device; and whether losses and gradients were
    finite.

    What a step gave is looked at, and a line of the log written, one step later, when it has long been computed, so that no step waits
    for the device.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], tuple[Tensor, int]]  # over steps, and their number, by kind and name
        self._restart()
        self._unseen: deque[tuple[list[str], _OnHost]] = deque()  # of each step the names of its terms; loss and gradient, and the terms
        self._line: tuple[dict[tuple[str, str], int], _OnHost, dict[str, Any]] | None = None

    def add(self, values: dict[str, dict[str, Tensor]]) -> None:
        for kind, terms in values.items():
            for name, value in terms.items():
                total, count = self._sums.get((kind, name), (0, 0))
                self._sums[kind, name] = total + value, count + 1
        self._steps += 1
        of_step = torch.stack([sum(values["loss"].values()), *values["terms"].values()])
        self._unseen.append((list(values["terms"]), _OnHost(of_step)))

    def finite(self, newest: bool = False) -> bool:
        """Were all steps so far? The newest one is left to the next call; with ``newest`` this waits for it."""
        while len(self._unseen) > (0 if newest else 1):
            if not torch.isfinite(self._unseen[0][1].get()[0]):
                return False
            self._unseen.popleft()
        return True

    def broken(self) -> list[str]:
        """Of the step that `finite` refused, on this rank, the terms that were not finite; none where all were so, or none."""
        if not self._unseen:
            return []
        names, values = self._unseen[0]
        finite = torch.isfinite(values.get()[1:]).tolist()
        return [name for name, was in zip(names, finite, strict=True) if not was] if any(finite) else []

    def take(self, batch_size: int, **facts: Any) -> float:
        """Begin a line of the log: means over steps and ranks since the last one, images/s over all ranks, and ``facts``.

        Gives the seconds of a step.
        """
        totals = torch.stack([total for total, _ in self._sums.values()]).float()
        counts = {place: count * dist.world_size() for place, (_, count) in self._sums.items()}
        step_s = (time.time() - self._since) / self._steps
        self._line = counts, _OnHost(dist.all_sum(totals)), facts | {"images_per_s": batch_size / step_s}
        self._restart()
        return step_s

    def line(self) -> dict[str, Any] | None:
        """The line that `take` began, once; None where it began none."""
        if self._line is None:
            return None
        (counts, copy, facts), self._line = self._line, None
        values: dict[str, dict[str, float]] = {"loss": {}, "terms": {}, "weighted": {}}
        for ((kind, name), count), total in zip(counts.items(), copy.get().tolist(), strict=True):
            values[kind][name] = total / count
        return {**facts, **values.pop("loss"), **values}

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is done within, such as an evaluation, takes no time of the steps around it."""
        began = time.time()
        yield
        self._since += time.time() - began

    def _restart(self) -> None:
        self._sums, self._steps, self._since = {}, 0, time.time()
