"""What a run reports while it trains: metrics.jsonl (the record), lines on the console, and scalars for loggers such as TensorBoard."""

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
from vitssl.run_folder import EVENTS, logged_speeds
from vitssl.terminal import console
from vitssl.training import loggers
from vitssl.variables import SWEEP
from vitssl.words import about, counted, duration

PACE_S = 600.0  # period over which the pace is measured that gives the time left: long enough for two log lines of a slow run
SETTLED_S = 10.0  # after this time the pace of a run is steady enough to estimate other runs from it
QUIET_S = 30.0  # time without a line after which `advance` writes the next one; on a terminal there is a progress bar instead
LINES = "log/local.txt"  # in the run's folder: its lines, if the launcher sets SWEEP, since it keeps no other log of them


class Log:
    """The log of one attempt on the main rank; on other ranks it does nothing.

    On resume, measurements after the checkpoint are removed, since their steps are trained and evaluated again.

    Attributes:
        lost_steps: the number of removed steps, as far as they had been logged.
        speeds: the images/s of all lines of training, of earlier attempts too.
    """

    def __init__(self, folder: Path, step: int, total_steps: int, active: bool, to_evaluate: bool = False, also: Sequence[str] = ()):
        self.active, self.lost_steps = active, 0
        self.speeds: list[float] = []
        if not active:
            return
        self._path = folder / EVENTS
        # starts and ends of all earlier attempts stay, since they record what was spent
        last_steps = {"start": total_steps, "end": total_steps, "eval": step - to_evaluate}
        events = read_events(self._path)
        self.lost_steps = max((e["step"] - step for e in events if e["event"] == "train" and e["step"] > step), default=0)
        kept = [e for e in events if e["step"] <= last_steps.get(e["event"], step)]
        write_atomically(self._path, "".join(json.dumps(e) + "\n" for e in kept).encode())
        self.speeds = logged_speeds(kept)
        self._file = self._path.open("a", buffering=1)
        self._loggers = loggers.start(folder, step, also)
        self._sweep, self._begun_s = json.loads(os.environ.get(SWEEP, "{}")), time.time()
        self._lines_path = folder / LINES if self._sweep else None
        self._name = " ".join(filter(None, (self._sweep.get("position"), folder.name)))
        self._bar, self._last_line_s = _progress_bar(alone=self._sweep.get("side_by_side", 1) == 1), time.time()
        self._task = self._bar.add_task(self._sweep.get("position") or folder.name, total=total_steps, completed=step, note="")
        self._bar.start()

    def event(self, kind: str, step: int, /, **values: Any) -> None:
        """Append an event, with the present time, to metrics.jsonl; loggers get the floats of training and evaluation events."""
        if not self.active:
            return
        line = {"event": kind, "step": step, "time": time.time(), **values}
        self._file.write(json.dumps(line) + "\n")
        self.speeds += logged_speeds([line])
        if kind in ("train", "eval"):
            scalars = {f"{kind}/{name.replace('.', '/')}": value for name, value in dotted(values).items() if isinstance(value, float)}
            for logger in self._loggers:
                logger.scalars(step, scalars)

    def advance(self, step: int, epoch: str, note: str) -> None:
        """Move the progress bar to ``step`` and show the epoch, the time left, and then ``note``, as far as there is room."""
        if not self.active:
            return
        self._bar.update(self._task, completed=step)
        line = f"{epoch}{self._left()}; {note}"
        self._bar.update(self._task, note=line)
        if time.time() - self._last_line_s > QUIET_S:
            self._say(f"{self._name}: {line}", on_screen=self._bar.disable)

    def _left(self) -> str:
        """Return the time left for this run and, if the launcher names other runs, for the sweep; empty while the pace is unknown.

        With ``own_s`` seconds left for this run, ``since_s`` seconds after its start, and the launcher's figures (see `SWEEP`):

            others_s = seconds + times_this * (steps of this run / steps per second)
            all_s = own_s + max(0, others_s - (side_by_side - 1) * since_s)
            time left for the sweep = max(own_s, longest - since_s, all_s / side_by_side)
        """
        task = self._bar.tasks[0]
        if task.time_remaining is None or not task.speed or task.total is None:
            return ""
        own_s, own_text = task.time_remaining, f", {duration(task.time_remaining)} left"
        since_s, width = time.time() - self._begun_s, self._sweep.get("side_by_side", 1)
        times_this = self._sweep.get("times_this", 0.0)
        if times_this and since_s < SETTLED_S:  # the pace of the first steps, which are slow, would be multiplied
            return own_text
        others_s = self._sweep.get("seconds", 0.0) + times_this * task.total / task.speed
        if not others_s:
            return own_text
        # since this run started, the (side_by_side - 1) runs beside it have worked off a part of the others' time
        all_s, beside_s = own_s + max(0.0, others_s - (width - 1) * since_s), self._sweep.get("longest", 0.0) - since_s
        return f"{own_text}; {about(max(own_s, beside_s, all_s / width))} left for the sweep"

    def say(self, text: str) -> None:
        if self.active:
            self._say(text)

    def _say(self, text: str, on_screen: bool = True) -> None:
        self._last_line_s = time.time()
        with suppress(OSError):  # the terminal may have gone; training must still go on to save its state
            if on_screen:
                self._bar.console.print(text, soft_wrap=True)
        with suppress(OSError):
            if self._lines_path is not None:
                self._lines_path.parent.mkdir(exist_ok=True)
                with self._lines_path.open("a", encoding="utf-8", errors="surrogateescape") as lines:
                    lines.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")

    def close(self) -> None:
        if self.active:
            with suppress(OSError):
                self._bar.stop()
            self._file.close()
            for logger in self._loggers:
                logger.close()


def _progress_bar(alone: bool) -> Progress:
    # the bar is off without a terminal (in a batch job), and if other runs write to the same one; then only `say` writes
    screen = console(file=sys.stderr)
    columns = (
        BarColumn(bar_width=10),
        # a single column: rich would shorten the first of several columns too
        TextColumn("{task.description} {task.fields[note]}", markup=False),
    )
    shown = screen.is_terminal and alone
    return Progress(*columns, console=screen, disable=not shown, transient=True, speed_estimate_period=PACE_S)


def machine(device: torch.device) -> dict[str, Any]:
    """Return the device, the host and the versions of packages of this process, for the report's provenance."""
    versions = {package: metadata.version(package) for package in ("torch", "timm", "torchvision", "numpy")}
    return {
        "device": device_name(device),
        "host": socket.gethostname(),
        "versions": {"vitssl": __version__, "python": platform.python_version(), **versions},
    }


def device_name(device: torch.device) -> str:
    """Return the model of a GPU, or of this machine's CPUs and their number."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_model()


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    names = (
        [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    )
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name} ({counted(len(names) or os.cpu_count() or 1, 'CPU')})"


class _OnHost:
    """A copy of a tensor in the CPU's memory, made in the background and waited for when it is read."""

    def __init__(self, value: Tensor):
        # pinned memory: otherwise the copy would wait for the device
        self._copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda).copy_(value, non_blocking=True)
        self._event = torch.cuda.Event() if value.is_cuda else None
        if self._event:
            self._event.record()

    def get(self) -> Tensor:
        if self._event:
            self._event.synchronize()
        return self._copy


class Meter:
    """Means of the loss terms since the last log line, kept on the device, and whether losses and gradients were finite.

    A term is averaged over the steps that had it. The values of a step are read, and a log line is written, one step later, when they have
    long been computed, so that no step waits for the device.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], tuple[Tensor, int]]  # (kind, name) -> sum over steps, number of steps
        self._restart()
        self._unseen: deque[tuple[list[str], _OnHost]] = deque()  # per step: names of its terms; (loss + gradient norm, terms)
        self._line: tuple[dict[tuple[str, str], int], _OnHost, dict[str, Any]] | None = None

    def add(self, values: dict[str, dict[str, Tensor]]) -> None:
        for kind, terms in values.items():
            for name, value in terms.items():
                total, count = self._sums.get((kind, name), (0, 0))
                self._sums[kind, name] = total + value, count + 1
        self._steps += 1
        loss, *more = values["loss"].values()
        step_values = torch.stack([sum(more, start=loss), *values["terms"].values()])
        self._unseen.append((list(values["terms"]), _OnHost(step_values)))

    def is_finite(self, newest: bool = False) -> bool:
        """Whether losses and gradients of all steps so far were finite; the newest step is left to the next call.

        With ``newest`` this includes the newest step, and waits for the device.
        """
        while len(self._unseen) > (0 if newest else 1):
            if not torch.isfinite(self._unseen[0][1].get()[0]):
                return False
            self._unseen.popleft()
        return True

    def nonfinite_terms(self) -> list[str]:
        """Return the terms that were not finite, on this rank, in the step that `is_finite` refused; empty if all or none were finite."""
        if not self._unseen:
            return []
        names, values = self._unseen[0]
        finite = torch.isfinite(values.get()[1:]).tolist()
        return [name for name, is_finite in zip(names, finite, strict=True) if not is_finite] if any(finite) else []

    def begin_line(self, batch_size: int, **facts: Any) -> float:
        """Begin a log line: means over steps and ranks since the last line, images per second over all ranks, and ``facts``.

        Returns:
            The mean seconds of a step.
        """
        totals = torch.stack([total for total, _ in self._sums.values()]).float()
        counts = {key: count * dist.world_size() for key, (_, count) in self._sums.items()}
        step_s = (time.time() - self._since) / self._steps
        self._line = counts, _OnHost(dist.all_sum(totals)), facts | {"images_per_s": batch_size / step_s}
        self._restart()
        return step_s

    def pop_line(self) -> dict[str, Any] | None:
        """Return the line that `begin_line` began, once; None if there is none."""
        if self._line is None:
            return None
        (counts, copy, facts), self._line = self._line, None
        values: dict[str, dict[str, float]] = {"loss": {}, "terms": {}, "weighted": {}}
        for ((kind, name), count), total in zip(counts.items(), copy.get().tolist(), strict=True):
            values[kind][name] = total / count
        return {**facts, **values.pop("loss"), **values}

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Context whose time, for example of an evaluation, does not count as time of the steps around it."""
        began = time.time()
        yield
        self._since += time.time() - began

    def _restart(self) -> None:
        self._sums, self._steps, self._since = {}, 0, time.time()
