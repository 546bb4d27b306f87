"""When a run stops by itself: before SLURM ends its job, however long a step and a save take."""

from __future__ import annotations

import fcntl
import time
from types import SimpleNamespace

import pytest

from tests.checkpoints.test_saver import CLASSIFY, OFTEN, same, steps
from vitssl import train
from vitssl.checkpoints import tensor_files
from vitssl.training import stopping
from vitssl.training.stopping import SLACK_S, StopRequest


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that the test moves, in a job of an hour."""
    now = SimpleNamespace(s=1000.0)
    monkeypatch.setattr(stopping, "time", SimpleNamespace(time=lambda: now.s))
    monkeypatch.setenv("VITSSL_ENDS_AT", "4600")
    return now


@pytest.mark.parametrize(("needs_s", "before_s"), [(0.0, SLACK_S), (200.0, SLACK_S + 200), (5000.0, 900)])
def test_it_stops_early_enough_for_a_step_and_a_save_and_at_most_a_quarter_of_the_time_before(clock, needs_s, before_s) -> None:
    request = StopRequest()
    request.needs(needs_s)
    clock.s = 4600 - before_s - 1
    assert not request
    clock.s += 1
    assert request


def test_where_nobody_says_when_the_time_ends_it_does_not(monkeypatch) -> None:
    monkeypatch.delenv("VITSSL_ENDS_AT", raising=False)
    request = StopRequest()
    request.needs(1e9)
    assert not request


def test_a_launcher_that_is_gone_asks_too(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("VITSSL_STOP_FILE", str(tmp_path / "stop"))
    request = StopRequest()
    assert not request  # whoever started the run holds no lock
    with (tmp_path / stopping.LAUNCHER).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not request
    assert request


def test_a_run_saves_before_the_end_of_its_job_and_goes_on_from_there(folder, clock, monkeypatch) -> None:
    whole, cut = folder("whole", CLASSIFY, OFTEN), folder("cut", CLASSIFY, OFTEN)
    with monkeypatch.context() as unhurried:
        unhurried.delenv("VITSSL_ENDS_AT")
        assert train.main([str(whole)]) == 0
    step, stop = train.train_step, cut.parent / "stop"

    def slow(*args):
        clock.s += 250
        return step(*args)

    with monkeypatch.context() as patched:
        patched.setattr(train, "train_step", slow)
        patched.setenv("VITSSL_STOP_FILE", str(stop))
        patched.setenv("VITSSL_ENDS_AT", "3100")
        assert train.main([str(cut)]) == train.STOPPED
    assert steps(cut)["last.pt"] == 9 and stop.exists()  # 1000 + 9 x 250 + 90 s are more than 3100
    stop.unlink()
    clock.s = 1000
    assert train.main([str(cut)]) == 0 and same(whole, cut)


@pytest.mark.release
def test_what_a_step_and_a_save_take_is_measured(folder, monkeypatch) -> None:
    told, run = [], folder("run", CLASSIFY, OFTEN)
    monkeypatch.setattr(StopRequest, "needs", lambda self, seconds: told.append(seconds))
    save = tensor_files.save
    monkeypatch.setattr("vitssl.checkpoints.saver.tensor_files.save", lambda *args, **options: time.sleep(0.2) or save(*args, **options))
    assert train.main([str(run)]) == 0
    assert told and all(0.2 < seconds < 10 for seconds in told[2:])
