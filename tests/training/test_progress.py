"""What a run says while it trains and when it ends."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from vitssl import config, train
from vitssl.files import read_events, read_json
from vitssl.training import log
from vitssl.training.lines import terms_of
from vitssl.training.log import Meter
from vitssl.words import about, counted, duration

MAE = {"objectives.mae": {"decoder_dim": 16, "decoder_depth": 1, "decoder_heads": 2}}
SHORT = {"loop": {"epochs": 2, "warmup_epochs": 0, "log_every": 1, "eval_every": 1}}


@pytest.fixture
def trained(make_run, digits, tmp_path: Path, monkeypatch, capsys):
    """`trained(*layers)`: train a tiny Run of the digits; gives its folder and the lines that it printed."""
    monkeypatch.setattr(log, "QUIET_S", 0.0)  # a line for every step

    def made(*layers) -> tuple[Path, list[str]]:
        folder = tmp_path / "run"
        config.save(make_run(*layers, shards=digits), folder)
        assert train.main([str(folder)]) == 0
        return folder, capsys.readouterr().err.splitlines()

    return made


def test_a_pretraining_says_what_came_out(trained) -> None:
    folder, lines = trained(MAE, SHORT, {"data.images": {"per_class": 8}, "evals.knn": {"type": "knn", "k": 3}})
    knn = read_json(folder / "evals.json")["knn"]["metrics"]["top1"]
    loss = [event for event in read_events(folder / "metrics.jsonl") if event["event"] == "train"][-1]["terms"]["mae"]
    assert re.fullmatch(rf"run: 2 epochs in \d+ s; knn top-1 {knn:.2f} %; loss mae {loss:.3f}", lines[-1])
    assert sum("knn top-1" in line for line in lines) == 2  # after the first epoch, and at the end


def test_a_classifying_run_too_once(trained) -> None:
    folder, lines = trained({"objectives.classify": {}}, SHORT, {"data.images": {"per_class": 8}, "loop.max_steps": 4})
    top1 = read_json(folder / "done.json")["test"]["top1"]
    assert re.fullmatch(rf"run: 1\.60 epochs in \d+ s; test top-1 {top1:.2f} %; loss classify \d\.\d+", lines[-1])
    assert [line for line in lines if "top-1" in line][:-1] == [line for line in lines if line.startswith("run: epoch 1/2: test top-1")]


def test_losses_come_in_one_order_whichever_came_first() -> None:
    """In a first step without a labelled image there is no loss of labels."""
    state = SimpleNamespace(terms={"simclr": 1.0, "classify": 2.0})
    assert terms_of(state, ", ") == "classify 2.000, simclr 1.000"


def test_the_last_batch_begins_no_epoch(trained) -> None:
    """20 images in batches of 16: three batches see each of them twice, and 8 a third time."""
    folder, lines = trained({"objectives.classify": {}}, SHORT, {"data.images": {"per_class": 2}, "optim.batch_size": 16})
    shown = [match[1] for line in lines if (match := re.match(r"run: epoch (\S+),? ?", line))]
    assert [epoch.rstrip(",;:") for epoch in shown] == ["0.8/2", "1.6/2", "1/2", "2.0/2"]
    events = read_events(folder / "metrics.jsonl")
    assert [event["epoch"] for event in events if event["event"] == "train"] == [0.8, 1.6, 2.0]
    assert events[0]["epochs"] == 2 and read_json(folder / "done.json")["epochs"] == 2.0
    repeated, _ = trained({"objectives.classify": {}}, SHORT, {"data.repeats": 3, "data.images": {"per_class": 2}, "optim.batch_size": 50})
    evaluations = [event["epoch"] for event in read_events(repeated / "metrics.jsonl") if event["event"] == "eval"]
    assert max(evaluations) == 2.0


def test_cost_json_has_the_speed_that_all_attempts_logged(trained) -> None:
    layers = ({"objectives.classify": {}}, SHORT, {"data.images": {"per_class": 2}, "optim.batch_size": 16})
    folder, _ = trained(*layers)
    for name in ("done.json", "cost.json"):  # as the report advises where cost.json is lost
        (folder / name).unlink()
    trained(*layers)  # which has nothing left to train
    events = read_events(folder / "metrics.jsonl")
    speeds = [event["images_per_s"] for event in events if event["event"] == "train"]
    device = {event["device"] for event in events if event["event"] == "start"}
    assert len(speeds) == 3 and [event["event"] for event in events].count("start") == 2
    assert read_json(folder / "cost.json")["training"] == {"images_per_s": sum(speeds[1:]) / 2, "images": 48, "device": device.pop()}


# ------------------------------------------------------------------------------------------------------- time that is left


def line_after_steps(folder: Path, capsys, monkeypatch, steps: int = 10, total: int = 40) -> str:
    """The newest line of a log after some steps of 20 ms."""
    monkeypatch.setattr(log, "QUIET_S", 0.0)
    written = log.Log(folder, 0, total, active=True)
    for step in range(1, steps + 1):
        time.sleep(0.02)
        written.advance(step, f"epoch {step / 10:.1f}/4", "mae 0.123 900 img/s")
    written.close()
    return capsys.readouterr().err.splitlines()[-1]


def test_a_run_alone_says_its_own_time(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.delenv(log.SWEEP, raising=False)
    assert re.fullmatch(
        rf"{tmp_path.name}: epoch 1\.0/4, \d+ s left; mae 0\.123 900 img/s", line_after_steps(tmp_path, capsys, monkeypatch)
    )


@pytest.mark.parametrize(
    ("others", "left"),
    [
        ({"seconds": 600.0, "times_this": 0.0}, "; about 10 min left for the sweep"),
        ({"seconds": 1200.0, "times_this": 0.0, "side_by_side": 2}, "; about 10 min left for the sweep"),
        ({"seconds": 1200.0, "times_this": 0.0, "side_by_side": 2, "longest": 900.0}, "; about 15 min left for the sweep"),
        ({"seconds": 1.0, "times_this": 0.0, "side_by_side": 2}, "; less than a minute left for the sweep"),
        ({"seconds": 0.0, "times_this": 1000.0}, r"; about \d+ min left for the sweep"),  # of 40 steps of a fiftieth of a second
        ({"seconds": 0.0, "times_this": 0.0}, ""),
    ],
)
def test_a_run_of_a_sweep_says_the_sweeps(tmp_path, capsys, monkeypatch, others, left) -> None:
    monkeypatch.setenv(log.SWEEP, json.dumps({"position": "[3/12]"} | others))
    monkeypatch.setattr(log, "SETTLED_S", 0.0)
    line = line_after_steps(tmp_path, capsys, monkeypatch)
    assert re.fullmatch(rf"\[3/12\] {tmp_path.name}: epoch 1\.0/4, \d+ s left{left}; mae 0\.123 900 img/s", line), line


def test_a_pace_of_first_steps_is_not_that_of_other_runs(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv(log.SWEEP, json.dumps({"seconds": 0.0, "times_this": 1000.0}))
    assert "for the sweep" not in line_after_steps(tmp_path, capsys, monkeypatch)


def test_what_those_beside_have_done_meanwhile_is_not_left(tmp_path, capsys, monkeypatch) -> None:
    """Of 20 min beside a run of less than a second half are over."""
    monkeypatch.setenv(log.SWEEP, json.dumps({"seconds": 1200.0, "times_this": 0.0, "side_by_side": 2, "longest": 0.0}))
    ten_minutes_ago = time.time() - 600
    monkeypatch.setattr(log.Log, "event", lambda *_, **more: None)
    begin = log.Log.__init__

    def before(self, *arguments, **more) -> None:
        begin(self, *arguments, **more)
        self._begun_s = ten_minutes_ago

    monkeypatch.setattr(log.Log, "__init__", before)
    assert "; about 5 min left for the sweep" in line_after_steps(tmp_path, capsys, monkeypatch)


def test_slow_steps_have_a_pace_too(tmp_path, capsys, monkeypatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(log, "QUIET_S", 0.0)
    written = log.Log(tmp_path, 0, 10, active=True)
    monkeypatch.setattr(written._bar, "get_time", lambda: now[0])
    written._bar.reset(written._task)
    for step in (1, 2):
        now[0] += 60
        written.advance(step, f"epoch {step}", "")
    written.close()
    assert "epoch 2, 8.0 min left" in capsys.readouterr().err


def test_numbers_in_words() -> None:
    assert [counted(n, "run") for n in (0, 1, 2, 1234, 2.5)] == ["0 runs", "1 run", "2 runs", "1,234 runs", "2.50 runs"]
    assert counted(1.0, "class", "classes") == "1 class" and counted(2, "class", "classes") == "2 classes"
    assert [duration(s) for s in (0.4, 99, 100, 1500, 6000, 36000)] == ["0 s", "99 s", "1.7 min", "25 min", "1.7 h", "10 h"]
    assert [about(s) for s in (59, 60, 140, 290, 1500, 6000)] == [
        "less than a minute",
        "about 1 min",
        "about 2.5 min",
        "about 5 min",
        "about 25 min",
        "about 1.7 h",
    ]


def test_what_a_run_of_this_machines_launcher_says_is_kept(trained, monkeypatch) -> None:
    classify = ({"objectives.classify": {}}, SHORT, {"data.images": {"per_class": 2}, "optim.batch_size": 16})
    folder, _ = trained(*classify)
    assert not (folder / "log").exists()
    monkeypatch.setenv(log.SWEEP, json.dumps({"position": "[1/1]"}))
    (folder / "done.json").unlink()
    (folder / "last.pt").unlink()
    _, lines = trained(*classify)
    kept = (folder / "log" / "local.txt").read_text().splitlines()
    assert [line.partition("  ")[2] for line in kept] == lines and lines[-1].startswith("run: 2 epochs in ")
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", line) for line in kept)


def test_a_line_of_the_log_is_written_once_with_the_means_of_its_steps() -> None:
    meter = Meter()
    assert meter.pop_line() is None
    for loss in (1.0, 3.0):
        meter.add({"terms": {"ce": torch.tensor(2 * loss)}, "loss": {"loss": torch.tensor(loss), "grad_norm": torch.tensor(0.5)}})
    meter.add({"terms": {}, "weighted": {}, "loss": {"loss": torch.tensor(2.0), "grad_norm": torch.tensor(0.5)}})
    step_s = meter.begin_line(32, step=3)
    meter.add({"terms": {"ce": torch.tensor(9.0)}, "loss": {"loss": torch.tensor(9.0), "grad_norm": torch.tensor(9.0)}})
    line, means = meter.pop_line(), {"loss": 2.0, "grad_norm": 0.5, "terms": {"ce": 4.0}, "weighted": {}}
    assert line == {"step": 3, **means, "images_per_s": pytest.approx(32 / step_s)}, "a term is a mean over the steps that had it"
    assert meter.pop_line() is None
