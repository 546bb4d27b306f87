"""Checkpoints that are written beside training: exact, the last two, none lost to a damaged file or to a long evaluation."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from tests.conftest import but_for_a_release
from tests.ranks import run_ranks, start_ranks
from tests.training.test_train import CLASSIFY, DROP, SSAT, same, wait_for_step
from vitssl import evaluators, train
from vitssl.checkpoints import run_checkpoint, saver, tensor_files
from vitssl.checkpoints.saver import Saver
from vitssl.config import ConfigError
from vitssl.files import read_events

OFTEN = {"loop": {"max_steps": 20, "eval_every": 0, "log_every": 1, "checkpoint_minutes": 1e-9}}
FACTS = {"classes": ["a"], "mean": [0.5] * 3, "std": [0.5] * 3}


def content(value: float) -> dict:
    return {"model": {"weight": torch.full((3,), value)}, "data": FACTS, "progress": {"step": int(value)}}


def stopped_after(run: Path, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train so many steps, with a checkpoint after each, and be asked to stop."""
    stop, step, taken = run.parent / "stop", train.train_step, []
    with monkeypatch.context() as patched:
        patched.setenv("VITSSL_STOP_FILE", str(stop))
        patched.setattr(train, "train_step", lambda *args: taken.append(1) or (len(taken) == steps and stop.touch()) or step(*args))
        assert train.main([str(run)]) == train.STOPPED
    stop.unlink()


def steps(run: Path) -> dict[str, int]:
    return {path.name: tensor_files.read(path)["progress"]["step"] for path in run.glob("*.pt")}


# --------------------------------------------------------------------------------------------------------------- writing


def test_a_checkpoint_holds_what_there_was_when_it_was_asked_for(tmp_path):
    saver, busy, weight = Saver(tmp_path), threading.Event(), torch.zeros(3)
    saver._thread.submit(busy.wait)  # the disk is slow
    optimizer = {"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": [{"betas": (0.9, 0.95), "params": [0]}]}
    with saver:
        saver.save({"model": {"weight": weight}, "optimizer": optimizer}, "epoch-0001.pt")
        weight += 1
        optimizer["state"][0]["step"] += 1
        assert not list(tmp_path.iterdir())
        busy.set()
    for name in ("last.pt", "epoch-0001.pt"):
        written = tensor_files.read(tmp_path / name)
        assert torch.equal(written["model"]["weight"], torch.zeros(3)) and written["optimizer"]["state"][0]["step"] == 1
        assert written["optimizer"]["param_groups"] == [{"betas": (0.9, 0.95), "params": [0]}]


def test_the_one_before_the_last_stays_until_the_run_is_done(tmp_path):
    with Saver(tmp_path) as saver:
        for value in (1.0, 2.0, 3.0):
            saver.save(content(value))
    assert steps(tmp_path) == {"last.pt": 3, "previous.pt": 2}
    saver.finish()
    assert steps(tmp_path) == {"last.pt": 3}


def test_a_checkpoint_that_cannot_be_written_is_an_error_of_the_run(folder, monkeypatch):
    """Not only when the next one is due."""
    run = folder("run", CLASSIFY, OFTEN)
    broken, step, taken = run / ".last.pt.1", train.train_step, []
    broken.mkdir()  # in place of what a killed attempt left
    monkeypatch.setattr(train, "train_step", lambda *args: taken.append(1) or step(*args))
    with pytest.raises(OSError, match=r"\.last\.pt\.1"):
        train.main([str(run)])
    assert 1 <= len(taken) < 20 and not (run / "done.json").exists() and (run / "error.json").exists()


# ------------------------------------------------------------------------------------------------------------- going on


def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(folder, monkeypatch, capfd):
    whole, cut = folder("whole", SSAT, DROP, OFTEN), folder("cut", SSAT, DROP, OFTEN)
    assert train.main([str(whole)]) == 0
    stopped_after(cut, 7, monkeypatch)
    assert steps(cut) == {"last.pt": 7, "previous.pt": 6}
    damaged = (cut / "last.pt").read_bytes()[:-1000]
    (cut / "last.pt").write_bytes(damaged)
    assert train.main([str(cut)]) == 0
    (said,) = [line for line in capfd.readouterr().out.splitlines() if "damaged" in line]
    assert said.endswith("(kept as damaged.pt): training continues from the checkpoint before it")
    assert same(whole, cut) and (cut / "damaged.pt").read_bytes() == damaged and not (cut / "previous.pt").exists()


@pytest.mark.release
def test_ranks_go_on_from_the_same_checkpoint(folder):
    whole, cut = folder("whole", SSAT, DROP, OFTEN), folder("cut", SSAT, DROP, OFTEN)
    stop = cut.parent / "stop"
    assert run_ranks(whole, 2) == [0, 0]
    processes = start_ranks(cut, 2, VITSSL_STOP_FILE=str(stop))
    wait_for_step(cut, 5)
    stop.touch()
    assert [process.wait(60) for process in processes] == [train.STOPPED] * 2
    (cut / "last.pt").write_bytes(b"PK")
    assert run_ranks(cut, 2) == [0, 0] and same(whole, cut)


def test_killed_while_a_checkpoint_was_moved_into_place_it_goes_on(folder, monkeypatch):
    whole, killed = folder("whole", CLASSIFY, OFTEN), folder("killed", CLASSIFY, OFTEN)
    assert train.main([str(whole)]) == 0
    stopped_after(killed, 7, monkeypatch)
    (killed / "last.pt").unlink()
    assert saver.newest(killed)["progress"]["step"] == 6 and list(steps(killed)) == ["last.pt"]
    assert train.main([str(killed)]) == 0 and same(whole, killed)


def test_without_a_checkpoint_that_can_be_read_nothing_is_trained(tmp_path):
    assert saver.newest(tmp_path) is None
    for name in ("previous.pt", "last.pt"):
        (tmp_path / name).write_bytes(b"PK")
        with pytest.raises(ConfigError, match=rf"{name} is not a checkpoint that can be read \(.*\); {run_checkpoint.ADVICE}$"):
            saver.newest(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.pt", "previous.pt"]


# ------------------------------------------------------------------------------------------------------ long evaluations


@pytest.mark.parametrize("at", but_for_a_release([1, 2, 3], [2]))
def test_killed_in_an_evaluation_it_goes_on_with_that_evaluation(folder, monkeypatch, at):
    """The last one too, which is of what the run leaves, and that of the best weights after it."""
    loop = {"loop": {"epochs": 2, "eval_every": 1, "log_every": 1}, "data.val_fraction": 0.2}
    whole, killed = folder("whole", CLASSIFY, loop), folder("killed", CLASSIFY, loop)
    assert train.main([str(whole)]) == 0
    evaluate, calls = evaluators.evaluate, []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt
        return evaluate(*args, **kwargs)

    monkeypatch.setattr(train, "UNSAVED_S", 0.0)
    monkeypatch.setattr(evaluators, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train.main([str(killed)])
    owed = tensor_files.read(killed / "last.pt")["progress"]
    evaluated = [event["step"] for event in read_events(whole / "metrics.jsonl") if event["event"] == "eval"]
    assert owed["to_evaluate"] and owed["step"] == evaluated[min(at, 2) - 1]
    assert train.main([str(killed)]) == 0 and same(whole, killed)
    best = [tensor_files.read(run / "best.pt")["model"] for run in (whole, killed)]
    assert all(torch.equal(best[0][name], best[1][name]) for name in best[0])
    lines = [[(e["step"], e["test"]) for e in read_events(run / "metrics.jsonl") if e["event"] == "eval"] for run in (whole, killed)]
    assert lines[0] == lines[1] and not tensor_files.read(killed / "last.pt")["progress"]["to_evaluate"]


def test_a_result_that_no_checkpoint_has_is_cut(folder, monkeypatch):
    """Killed right after an evaluation, it evaluates again, and the record has it once."""
    run = folder("run", CLASSIFY, {"loop": {"epochs": 2, "eval_every": 1, "log_every": 1}})

    class Killed(BaseException):
        pass

    def killed(*args):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(train, "UNSAVED_S", 0.0)
        patched.setattr(train.Log, "say", killed)
        with pytest.raises(Killed):
            train.main([str(run)])
    assert [event["event"] for event in read_events(run / "metrics.jsonl")].count("eval") == 1
    assert train.main([str(run)]) == 0
    evaluated = [event["step"] for event in read_events(run / "metrics.jsonl") if event["event"] == "eval"]
    assert len(evaluated) == len(set(evaluated)) == 2
