"""Who stops when before SLURM ends a job: training, by its own times or SLURM's warning, and the task that waits for it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from jobs import node
from jobs.node import StopSignals, warning_s
from vitssl.training import stopping
from vitssl.training.stopping import StopRequest

SLACK_S = 60  # SLURM warns so much earlier at most


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SimpleNamespace]:
    """The time, and the alarm that the task has set."""
    now = SimpleNamespace(s=0.0, alarm=None)
    monkeypatch.setattr(stopping, "time", SimpleNamespace(time=lambda: now.s))
    monkeypatch.setattr(node, "time", SimpleNamespace(time=lambda: now.s))
    monkeypatch.setattr(node.signal, "alarm", lambda seconds: setattr(now, "alarm", now.s + seconds))
    monkeypatch.setenv("VITSSL_STOP_FILE", str(tmp_path / "stop"))
    numbers = (signal.SIGUSR2, signal.SIGTERM, signal.SIGALRM)
    before = [signal.getsignal(number) for number in numbers]
    yield now
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("early_s", [0, 30, SLACK_S])
@pytest.mark.parametrize("needs_s", [0, 60, 100, 150, 400])
@pytest.mark.parametrize("hours", [0.1, 0.5, 24])
def test_the_task_waits_for_a_save_and_leaves_before_the_end(clock, tmp_path, monkeypatch, hours, needs_s, early_s) -> None:
    end = hours * 3600
    monkeypatch.setenv("VITSSL_ENDS_AT", f"{end:.0f}")
    signals, run = StopSignals(tmp_path / "stop", warning_s(hours)), StopRequest()
    signals.ends_at = end
    run.needs(needs_s)
    warned, stopped = end - warning_s(hours) - early_s, None
    for second in range(max(0, int(end) - 7200), int(end)):
        clock.s = second
        if second == int(warned):
            signal.raise_signal(signal.SIGUSR2)
        if stopped is None and run:
            stopped = second
            run.accept()
    assert clock.alarm == end - node.LEAVE_S
    quarter = end / 4
    assert stopped + min(needs_s, quarter - 90) <= clock.alarm  # what it needs, as far as a quarter of its time is enough for it


def test_where_the_end_is_unknown_a_short_jobs_task_leaves_in_time(clock, tmp_path) -> None:
    for hours in (0.05, 0.1, 1):
        (tmp_path / "stop").unlink(missing_ok=True)
        StopSignals(tmp_path / "stop", warning_s(hours))
        clock.s = end = hours * 3600
        clock.s -= warning_s(hours)
        signal.raise_signal(signal.SIGUSR2)
        assert clock.s + 10 <= clock.alarm <= end - node.LEAVE_S
    clock.alarm = None
    signal.raise_signal(signal.SIGTERM)
    assert clock.alarm is None, "the run stops already, and is not to be ended earlier than the first signal said"
