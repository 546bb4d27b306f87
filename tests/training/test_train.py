"""The loop: resume to the bit, equal results for any number of ranks, loud failures."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import vitssl
from tests.conftest import but_for_a_release
from tests.objectives.conftest import declared
from tests.ranks import free_port, run_ranks, spawn, start_programs, start_ranks
from vitssl import config, dist, train
from vitssl.checkpoints import tensor_files
from vitssl.checkpoints.run_checkpoint import Progress
from vitssl.config import ConfigError
from vitssl.config.evals import ClassificationConfig
from vitssl.files import read_events
from vitssl.objectives import mae
from vitssl.training import evaluate
from vitssl.training.evaluate import evaluate_folder
from vitssl.views import pipeline

ROOT = Path(__file__).parents[2]
CLASSIFY = {"objectives.classify": {}}
MAE = {"objectives.mae": {"decoder_dim": 16, "decoder_depth": 1, "decoder_heads": 2}}
SSAT = {"objectives": {"classify": {"weight": 0.1}, "mae": {**MAE["objectives.mae"], "weight": 0.9}}}
_DINO = {"hidden_dim": 16, "bottleneck_dim": 8, "out_dim": 12, "freeze_last_layer_epochs": 0.25, "weight": 0.9}
DINO = {
    "objectives": {"classify": {"weight": 0.1}, "dino": _DINO},
    "data.views": {"second": {"scale": [0.5, 1.0]}, "local": {"size": 4, "count": 2}},
}
DRLOC = {"objectives": {"classify": {"pool": "mean"}, "drloc": {"pairs": 4, "hidden_dim": 16, "end_epoch": 1, "weight": 0.5}}}
LAYERS = {"classify": CLASSIFY, "mae": MAE, "ssat": SSAT, "simclr": declared("CURVE")["simclr"], "dino": DINO, "drloc": DRLOC}
CURVES, OVER_RANKS = LAYERS | declared("CURVE"), declared("OVER_RANKS")
DROP = {"backbone.drop_path": 0.1}  # noise from torch's generators too
LONG = {"loop": {"epochs": 2, "log_every": 1, "eval_every": 0}}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "last.pt", weights_only=True)["model"]


def same(a: Path, b: Path) -> bool:
    return same_state(weights(a), weights(b))


def same_state(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def in_two_parts(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Train in this process, asked to stop in step 7, and go on to the end."""
    stop, step, taken = tmp_path / "stop", train.train_step, []
    monkeypatch.setenv("VITSSL_STOP_FILE", str(stop))
    monkeypatch.setattr(train, "train_step", lambda *args: taken.append(1) or (len(taken) == 7 and stop.touch()) or step(*args))
    assert train.main([str(folder)]) == train.STOPPED and len(taken) == 7
    stop.unlink()
    assert train.main([str(folder)]) == 0 and len(taken) == steps


def wait_for_step(folder: Path, step: int) -> None:
    end = time.time() + 60
    while not any(e["step"] >= step for e in read_events(folder / "metrics.jsonl")):
        assert time.time() < end, "training did not get that far"
        time.sleep(0.02)


CACHED, STREAMED = {}, {"data": {"cache_gb": 0.0, "workers": 1, "shuffle_window": 200}}
FOR_A_RELEASE = [("dino", 2, CACHED), ("lut", 2, CACHED), ("ssat", 4, CACHED), ("mae", 2, STREAMED)]
RANKS = [("ssat", 1, CACHED)]


@pytest.mark.parametrize(("name", "ranks", "data"), [*RANKS, *(pytest.param(*case, marks=pytest.mark.release) for case in FOR_A_RELEASE)])
def test_stopped_in_mid_epoch_and_resumed_equals_undisturbed_to_the_bit(folder, tmp_path, name, ranks, data):
    whole, parts = (folder(part, CLASSIFY, CURVES[name], DROP, LONG, data) for part in ("whole", "parts"))
    run_ranks(whole, ranks)
    stop = tmp_path / "stop"
    processes = start_ranks(parts, ranks, VITSSL_STOP_FILE=str(stop))
    wait_for_step(parts, 10)
    stop.touch()
    assert {p.wait(60) for p in processes} == {train.STOPPED}
    at = json.loads((parts / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    assert at >= 10 and at % 42 and not (parts / "done.json").exists()
    stop.unlink()
    assert set(run_ranks(parts, ranks, VITSSL_STOP_FILE=str(stop))) == {0}
    assert same(whole, parts)
    steps = [e["step"] for e in read_events(parts / "metrics.jsonl") if e["event"] == "train"]
    assert steps == list(range(1, len(steps) + 1)), "every step is logged once"
    assert json.loads((parts / "done.json").read_text())["test"]["count"] == 450, "every test image is counted once"


@pytest.mark.parametrize("name", but_for_a_release(CURVES, ("ssat", "dino")))
def test_steps_and_resumed_steps_equal_as_many_at_once(folder, tmp_path, monkeypatch, name):
    whole, parts = (folder(n, CURVES[name], DROP, {"loop": {"max_steps": 20, "eval_every": 0}}) for n in ("whole", "parts"))
    assert train.main([str(whole)]) == 0
    in_two_parts(parts, tmp_path, monkeypatch, steps=20)
    assert same(whole, parts)


@pytest.mark.release
@pytest.mark.parametrize("cut", [{}, {"loop.micro_batch_size": 16}])
def test_views_of_several_steps_made_together_train_as_those_of_each(folder, tmp_path, monkeypatch, cut):
    """As on a GPU; sums of the resampling are taken in another order. Stopped and resumed, too."""
    alone, together, parts = (folder(name, DINO, {"loop": {"max_steps": 20, "eval_every": 0, "log_every": 1}}, cut) for name in "abc")
    assert train.main([str(alone)]) == 0
    monkeypatch.setitem(pipeline.MOST_AT_ONCE, "cpu", 3)
    monkeypatch.setitem(pipeline.CHUNK_FLOATS, "cpu", 10**9)
    made, make_batches, slices = [], pipeline.TrainViews.make_batches, 2 if cut else 1
    number = lambda raw: raw.step * slices + raw.rows.start // 16  # noqa: E731
    monkeypatch.setattr(
        pipeline.TrainViews, "make_batches", lambda self, raws: made.append([number(raw) for raw in raws]) or make_batches(self, raws)
    )
    assert train.main([str(together)]) == 0
    assert made == [[*range(first, min(first + 3, 20 * slices))] for first in range(0, 20 * slices, 3)]
    whole = made.copy()
    in_two_parts(parts, tmp_path, monkeypatch, steps=20)
    first = 7 * slices
    assert [*range(first, -(-first // 3) * 3)] in made[len(whole) :] and made[-4:] == whole[-4:]
    losses = [
        [event["loss"] for event in read_events(run / "metrics.jsonl") if event["event"] == "train"] for run in (alone, together, parts)
    ]
    assert len(losses[0]) == 20 and losses[1] == pytest.approx(losses[0], rel=1e-3) and losses[2] == pytest.approx(losses[1], rel=1e-3)


def test_killed_loses_at_most_the_checkpoint_period(folder):
    often = {"loop.checkpoint_minutes": 1e-9}
    whole, killed = folder("whole", SSAT, DROP, LONG), folder("killed", SSAT, DROP, LONG, often)
    assert train.main([str(whole)]) == 0
    (process,) = start_ranks(killed, 1)
    wait_for_step(killed, 30)
    process.kill()
    process.wait(60)
    # killed between the two moves of a save, it leaves previous.pt alone
    newest = next(path for name in ("last.pt", "previous.pt") if (path := killed / name).exists())
    assert torch.load(newest, weights_only=True)["progress"]["step"] >= 28
    assert train.main([str(killed)]) == 0
    assert same(whole, killed)
    assert not list(killed.glob(".last*")), "no half-written checkpoint stays behind"


def test_a_killed_rank_is_not_taken_for_a_failure_of_the_others(folder):
    """Only a rank's own failure goes into error.json, which tells the launcher not to try again."""
    run = folder("run", CLASSIFY, {"loop": {"epochs": 50, "log_every": 1, "eval_every": 0}})
    processes = start_ranks(run, 2)
    wait_for_step(run, 5)
    processes[1].kill()
    assert processes[0].wait(60) not in (0, 2, train.STOPPED)
    assert not (run / "error.json").exists(), (run / "error.json").read_text()


@pytest.mark.release
def test_a_rank_that_fails_says_why_and_the_others_end_too(folder):
    run = folder("run", CLASSIFY, {"loop": {"epochs": 50, "log_every": 1, "eval_every": 0}})
    (run / "tensorboard").write_text("no folder")  # which rank 0 alone writes in
    processes = start_programs(run, 2)
    errors = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [1, 1]
    assert "[rank0]: Traceback" in errors[0] and "FileExistsError" in errors[0] and "[rank1]: Traceback" in errors[1]
    assert "FileExistsError" in json.loads((run / "error.json").read_text())["message"]


@pytest.mark.release
def test_a_record_that_is_a_folder_is_a_mistake_in_one_line(folder):
    run = folder("run", CLASSIFY, {"loop": {"epochs": 50, "log_every": 1, "eval_every": 0}})
    (run / "metrics.jsonl").mkdir()
    (process,) = start_programs(run, 1)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 2 and "Traceback" not in error
    assert f"error: {run / 'metrics.jsonl'}: cannot be read (Is a directory)" in error


def _slow_to_save(rank: int, port: int, folder: str, stops: bool) -> None:
    """Rank 0 takes a second longer than the other, to write its state when it is asked to stop, or has diverged."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ["VITSSL_STOP_FILE"] = f"{folder}/stop"
    save, step = tensor_files.save, train.train_step
    tensor_files.save = lambda *args, **named: time.sleep(1.0) or save(*args, **named)
    train.train_step = lambda *args: (stops and Path(folder, "stop").touch()) or step(*args)
    code = train.main([folder])
    Path(folder, f"ended-{rank}").write_text(f"{code} {sorted(path.name for path in Path(folder).glob('*.pt'))}")
    dist.stop()


@pytest.mark.parametrize(("lr", "ended"), [(1e-3, "75 ['last.pt']"), (1e30, "1 ['diverged.pt']")])
def test_no_rank_ends_with_a_code_before_the_state_is_saved(folder, lr, ended):
    """torchrun would kill the rank that saves 30 s later."""
    run = folder("run", CLASSIFY, LONG, {"optim": {"name": "sgd", "lr": lr}})
    spawn(_slow_to_save, free_port(), str(run), lr < 1)
    assert [(run / f"ended-{rank}").read_text() for rank in (0, 1)] == [ended] * 2


def test_a_signal_stops_a_single_process_with_its_state(folder):
    run = folder("run", CLASSIFY, LONG)
    (process,) = start_ranks(run, 1)
    wait_for_step(run, 5)
    os.kill(process.pid, signal.SIGUSR2)
    assert process.wait(30) == train.STOPPED
    assert (run / "last.pt").exists()


def test_a_stop_before_the_first_step_writes_no_checkpoint_which_would_be_taken_for_progress(folder, tmp_path, monkeypatch):
    run = folder("run", CLASSIFY, {"loop": {"max_steps": 20, "eval_every": 0}})
    in_two_parts(run, tmp_path, monkeypatch, steps=20)
    (run / "done.json").unlink()
    written = (run / "last.pt").stat().st_ino
    assert train.main([str(run)]) == 0 and (run / "last.pt").stat().st_ino == written, "no step was left"
    in_part, stop = folder("part", CLASSIFY, LONG), tmp_path / "stop"
    stop.touch()
    assert [train.main([str(in_part)]) for _ in range(2)] == [train.STOPPED] * 2 and not (in_part / "last.pt").exists()


def test_ranks_and_accumulation_do_not_change_the_result(folder):
    """A global batch is one batch: 1 process, 2 ranks, and 2 ranks x 2 slices give the same weights up to rounding."""
    steps = {"loop": {"epochs": 2, "max_steps": 8}, "optim": {"name": "sgd", "lr": 0.1}, "data.labels": {"fraction": 0.5}}
    clip = {"optim.clip": "global", "optim.clip_norm": 0.1}
    both = {"objectives": {"classify": {}, "mae": {**MAE["objectives.mae"], "weight": 0.0}}}  # keeps the unlabelled images in
    one, two, four = (folder(n, both, steps, clip, {"loop.micro_batch_size": m}) for n, m in (("one", None), ("two", None), ("four", 8)))
    for path, ranks in ((one, 1), (two, 2), (four, 2)):
        run_ranks(path, ranks)
    expected = weights(one)
    for path in (two, four):
        got = weights(path)
        assert all(torch.allclose(got[k], expected[k], atol=2e-5) for k in expected if "mae" not in k)


CONVOLUTIONAL = {
    "objectives": {"classify": {"pool": "mean"}, "drloc": {"pairs": 4, "hidden_dim": 16, "features": "normed", "weight": 0.0}},
    "data.image_size": 32,
    "backbone": {"name": "cvt_pico", "embed_dim": 16, "depth": None, "num_heads": 1, "patch_size": None},
}


@pytest.mark.release
@pytest.mark.parametrize("variant", ["microsoft", "drloc"])
def test_two_ranks_train_a_cvt_as_one_process_does(folder, variant):
    """Its batch norms, forwards and backwards, are the global batch's; per GPU they are not."""
    steps = {"loop": {"epochs": 2, "max_steps": 6}, "optim": {"name": "sgd", "lr": 0.05}, "backbone.variant": variant}
    one, two = (folder(name, CONVOLUTIONAL, steps) for name in ("one", "two"))
    own = folder("own", CONVOLUTIONAL, steps, {"backbone.batch_norm": "per_gpu"})
    run_ranks(one, 1)
    run_ranks(two, 2)
    run_ranks(own, 2)
    expected, got, other = weights(one), weights(two), weights(own)
    trained = [name for name in expected if "num_batches" not in name and "drloc" not in name]
    assert not [k for k in trained if not torch.allclose(got[k], expected[k], rtol=1e-4, atol=2e-5)]
    assert any(not torch.allclose(other[k], expected[k], rtol=1e-3, atol=1e-3) for k in trained)


@pytest.mark.release
def test_a_step_without_labels_has_no_loss_of_labels(folder):
    """Ten labels in a thousand images: most steps of 32 have none, and their zeros are no part of the loss that is logged."""
    few = CURVES["ssat"], {"data.labels": {"per_class": 1}, "loop": {"max_steps": 30, "log_every": 1, "eval_every": 0}}
    events = []
    for run in (folder("each", *few), folder("all", *few, {"loop.log_every": 30})):
        assert train.main([str(run)]) == 0
        events.append([event for event in read_events(run / "metrics.jsonl") if event["event"] == "train"])
    each, (line,) = events
    known = [event["terms"]["classify"] for event in each if "classify" in event["terms"]]
    assert 0 < len(known) < 30 and min(known) > 0.5
    assert line["terms"]["classify"] == pytest.approx(sum(known) / len(known), rel=1e-5)
    for kind, name in (("weighted", "classify"), ("terms", "mae")):
        assert line[kind][name] == pytest.approx(sum(event[kind][name] for event in each) / 30, rel=1e-5)


@pytest.mark.parametrize("name", but_for_a_release([name for name, fields in OVER_RANKS.items() if isinstance(fields, dict)], ("dino",)))
def test_negatives_statistics_and_centres_are_the_global_batchs(folder, name):
    """Losses and weights of 2 ranks (and slices) are those of one process; the teacher and its centre are among the weights."""
    steps = {"loop": {"epochs": 2, "max_steps": 14, "log_every": 1}, "optim": {"name": "sgd", "lr": 0.02}}
    one, two = folder("one", CURVES[name], steps), folder("two", CURVES[name], steps, OVER_RANKS[name])
    assert train.main([str(one)]) == 0
    run_ranks(two, 2)
    losses = [[e["loss"] for e in read_events(path / "metrics.jsonl") if e["event"] == "train"] for path in (one, two)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    got, expected = weights(two), weights(one)
    atol = {k: 1e-4 if "running" in k else 2e-5 for k in expected}  # averages of values of size 2, near zero here and there
    assert not [k for k in expected if "num_batches" not in k and not torch.allclose(got[k], expected[k], rtol=1e-4, atol=atol[k])]


@pytest.mark.parametrize(("batch", "micro", "parts"), [(32, None, 1), (32, 32, 1), (32, 10, 4), (30, 8, 5), (7, 1, 7)])
def test_slices_are_equal_and_no_larger_than_asked(make_run, batch, micro, parts):
    run = make_run(CLASSIFY, {"optim.batch_size": batch, "loop.micro_batch_size": micro})
    assert config.slices(run, 1) == parts
    assert config.slices(make_run(CLASSIFY, {"optim.batch_size": 3 * batch, "loop.micro_batch_size": micro}), 3) == parts


def test_a_batch_that_only_tiny_slices_divide_is_refused(make_run):
    run = make_run(CLASSIFY, {"optim.batch_size": 254, "loop.micro_batch_size": 64})
    with pytest.raises(
        ConfigError, match=r"micro_batch_size: 64: a process's 127 images .* into 127 equal slices of 1; optim.batch_size=256 would fit"
    ):
        config.check_slices(run, 2)
    mixed = make_run(CLASSIFY, {"optim.batch_size": 8, "loop.micro_batch_size": 1, "data.views.main.mixup_alpha": 0.8})
    with pytest.raises(ConfigError, match=r"loop\.micro_batch_size: mixup and cutmix need another image in each forward pass"):
        config.check_slices(mixed, 2)


def test_evaluations_come_when_a_step_ends_several_epochs(folder):
    """30 images in batches of 64: the steps end epochs 2, 4, 6, 8, 10, 12, 14 and 15."""
    loop = {"epochs": 15, "eval_every": 5, "keep_every": 3, "warmup_epochs": 1}
    run = folder("run", CLASSIFY, {"data.images": {"per_class": 3}, "optim.batch_size": 64, "loop": loop})
    assert train.main([str(run)]) == 0
    evaluated = [event["step"] for event in read_events(run / "metrics.jsonl") if event["event"] == "eval"]
    assert evaluated == [3, 5, 8]
    assert [path.name for path in sorted(run.glob("epoch-*.pt"))] == [f"epoch-{epoch:04d}.pt" for epoch in (4, 6, 10, 12, 15)]


@pytest.mark.release
def test_a_line_of_the_log_is_of_all_steps_since_the_line_before_evaluations_or_not(folder):
    """43 steps an epoch: the evaluation after step 43 comes between the lines of steps 40 and 50."""
    each, tenth = (folder(f"run{n}", CLASSIFY, {"loop": {"max_steps": 60, "log_every": n}}) for n in (1, 10))
    for run in (each, tenth):
        assert train.main([str(run)]) == 0
    losses = [event["loss"] for event in read_events(each / "metrics.jsonl") if event["event"] == "train"]
    lines = {event["step"]: event["loss"] for event in read_events(tenth / "metrics.jsonl") if event["event"] == "train"}
    assert lines == {step: pytest.approx(sum(losses[step - 10 : step]) / 10, rel=1e-5) for step in range(10, 61, 10)}


def test_a_diverging_run_says_so_and_keeps_its_states(folder, capsys):
    run = folder("run", CLASSIFY, LONG, {"optim": {"lr": 1e30, "name": "sgd"}})
    assert train.main([str(run)]) == 1
    assert "not finite by step" in capsys.readouterr().err
    assert "not finite" in json.loads((run / "error.json").read_text())["message"]
    assert (run / "diverged.pt").exists() and not (run / "done.json").exists()
    (run / "last.pt").unlink(missing_ok=True)
    with pytest.raises(ConfigError, match=r"has no last\.pt; its checkpoints: none$"):
        vitssl.load(run)
    with pytest.raises(ConfigError, match=r"diverged\.pt is the state in which training diverged"):
        vitssl.load(run, "diverged.pt")


@pytest.mark.filterwarnings("error::UserWarning")
def test_a_folder_that_is_removed_is_said_to_be_and_nothing_else(folder, monkeypatch, capsys):
    """Neither that TensorBoard's thread cannot write there, nor that the energy of the last seconds cannot."""
    failures = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    run, step = folder("run", CLASSIFY, LONG), train.train_step

    def after_which_it_is_gone(*arguments):
        if run.is_dir():
            while run.is_dir():  # a thread may write there meanwhile
                shutil.rmtree(run, ignore_errors=True)
            file = run / "tensorboard" / "events"  # TensorBoard opens its own by bytes
            for what in (lambda: file.open("wb"), lambda: os.open(os.fsencode(file), os.O_WRONLY), lambda: {}["of another cause"]):
                thread = threading.Thread(target=what)
                thread.start()
                thread.join()
        return step(*arguments)

    monkeypatch.setattr(train, "train_step", after_which_it_is_gone)
    assert train.main([str(run)]) == 1
    assert f"error: {run} was removed during training" in capsys.readouterr().err
    assert [failure.exc_type for failure in failures] == [KeyError]


def test_an_error_is_written_in_one_piece_among_the_lines_of_other_runs(tmp_path, monkeypatch):
    pieces: list[str] = []
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=pieces.append))
    assert train.main([str(tmp_path)]) == 2
    assert pieces == [f"error: {tmp_path} is not a run folder; to train a sweep: python jobs/submit.py SWEEP\n"]


def test_done_is_not_done_again(folder):
    run = folder("run", CLASSIFY, {"loop": {"epochs": 1, "warmup_epochs": 0}})
    assert train.main([str(run)]) == 0
    before = {p.name: p.stat().st_mtime_ns for p in run.iterdir() if p.is_file()}
    assert train.main([str(run)]) == 0
    assert before == {p.name: p.stat().st_mtime_ns for p in run.iterdir() if p.is_file()}


@pytest.mark.release
def test_a_kept_checkpoint_is_not_saved_again_at_the_next_boundary(folder, monkeypatch):
    loop = {"epochs": 3, "keep_every": 1, "eval_every": 0, "checkpoint_minutes": 0.0}
    run = folder("run", CLASSIFY, {"loop": loop})
    saved, save = [], train.save
    monkeypatch.setattr(train, "save", lambda train_state: saved.append(train_state.progress.step) or save(train_state))
    assert train.main([str(run)]) == 0
    assert len(saved) == len(set(saved)) and {43, 85, 127} <= set(saved)
    assert (run / "epoch-0001.pt").stat().st_nlink == 1, "the links to it went with what replaced them"


@pytest.mark.parametrize(("epochs", "expected"), but_for_a_release([(4, [2, 4]), (5, [2, 4, 5])], [(5, [2, 4, 5])]))
def test_a_kept_checkpoint_and_the_end_are_all_that_keeping_saves(folder, monkeypatch, epochs, expected):
    run = folder("run", CLASSIFY, {"loop": {"epochs": epochs, "keep_every": 2, "eval_every": 0}})
    saved, save = [], train.save
    monkeypatch.setattr(train, "save", lambda train_state: saved.append(train_state.epochs_done) or save(train_state))
    assert train.main([str(run)]) == 0
    assert saved == expected
    steps = {path.name: torch.load(path, weights_only=True)["progress"]["step"] for path in run.glob("*.pt")}
    assert steps == {"epoch-0002.pt": 85, "epoch-0004.pt": 169, "last.pt": 169 if epochs == 4 else 211}


def test_a_batch_norm_of_one_image_is_one_line_of_the_config(folder, capsys):
    tiny = {
        "data.image_size": 32,
        "backbone": {"name": "resnet_pico", "embed_dim": None, "depth": None, "num_heads": None, "patch_size": None},
    }
    run = folder("run", {"objectives.classify.pool": "mean"}, tiny, {"loop.micro_batch_size": 1})
    assert train.main([str(run)]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert line.startswith("error: optim.batch_size: a batch norm gets one value per channel")


def test_a_split_is_opened_once_for_all_evaluations(folder, monkeypatch):
    from vitssl.data.loading import loader

    run = folder("run", CLASSIFY, {"data.val_fraction": 0.2, "loop": {"epochs": 2, "eval_every": 1, "ema_decay": 0.9}})
    opened, open_images = [], loader.open_images
    monkeypatch.setattr(loader, "open_images", lambda *args: opened.append(len(args[1])) or open_images(*args))
    assert train.main([str(run)]) == 0
    assert [e["event"] for e in read_events(run / "metrics.jsonl")].count("eval") == 2
    assert sorted(opened) == [269, 450, 1078], "the held-out, the test and the training images"


def test_other_shards_or_another_config_are_refused(folder, capsys):
    run = folder("run", CLASSIFY, {"data.sha256": "0" * 64})
    assert train.main([str(run)]) == 2
    assert "data.sha256" in capsys.readouterr().err
    run = folder("stopped", CLASSIFY, {"loop.max_steps": 3})
    assert train.main([str(run)]) == 0
    (run / "done.json").unlink()
    config.save(config.merge(config.Run, config.read_yaml(run / "run.yaml"), ["optim.lr=1"]), run)
    assert train.main([str(run)]) == 2
    assert "another config" in capsys.readouterr().err


def test_validation_selects_and_the_average_is_evaluated(folder):
    run = folder("run", CLASSIFY, {"data.val_fraction": 0.2, "loop": {"epochs": 3, "ema_decay": 0.9}})
    assert train.main([str(run)]) == 0
    done = json.loads((run / "done.json").read_text())
    evals = [e for e in read_events(run / "metrics.jsonl") if e["event"] == "eval"]
    best = max(evals, key=lambda e: e["val"]["top1"])
    assert done["selected"]["top1"] == best["test"]["top1"]
    assert done["test"]["top1"] == evals[-1]["test"]["top1"]
    assert done["test_best"]["top1"] == max(e["test"]["top1"] for e in evals)
    assert done["test_ema"]["count"] == 450
    assert (run / "best.pt").exists()
    assert evaluate_folder(run, ClassificationConfig(weights="ema")) == done["test_ema"] != done["test"]


def test_held_out_images_choose_by_the_metric_that_is_asked_for(folder):
    """Of several epochs, also by what takes all predictions at once; the test images' results are kept with it."""
    run = folder("run", CLASSIFY, {"data": {"val_fraction": 0.2, "val_metric": "balanced_accuracy"}, "loop": {"epochs": 3}})
    assert train.main([str(run)]) == 0
    done = json.loads((run / "done.json").read_text())
    evals = [e for e in read_events(run / "metrics.jsonl") if e["event"] == "eval"]
    best = max(evals, key=lambda e: e["val"]["balanced_accuracy"])
    assert done["selected"]["epoch"] == best["epoch"] and done["selected"].items() >= best["test"].items()
    assert done["selected_val"] == best["val"]
    assert all("macro_f1" in e["test"] for e in evals)
    assert evaluate_folder(run, ClassificationConfig(), "best.pt")["balanced_accuracy"] == done["selected"]["balanced_accuracy"]


@pytest.mark.parametrize(
    ("metric", "before", "new", "better"),
    [
        ("top1", {}, 0.0, True),
        ("top1", {"top1": 50.0}, 50.0, False),
        ("macro_f1", {"top1": 90.0, "macro_f1": 50.0}, 51.0, True),
        ("loss", {"loss": 0.5}, 0.4, True),
        ("loss", {"loss": 0.5}, 0.6, False),
        ("loss", {"loss": float("nan")}, 9.0, True),
        ("loss", {"loss": 9.0}, float("nan"), False),
    ],
)
def test_what_is_better_depends_on_the_metric(metric, before, new, better):
    assert evaluate.is_better({metric: new}, before, metric) is better


def test_an_epoch_that_is_better_by_another_metric_is_not_chosen():
    run = config.Run(data=config.Data(val_metric="balanced_accuracy"))
    state = SimpleNamespace(run=run, progress=Progress(), epoch=0.0)
    for top1, balanced in ((90.0, 50.0), (50.0, 60.0), (95.0, 55.0)):
        state.epoch += 1
        evaluate._remember_best(state, {name: {"top1": top1, "balanced_accuracy": balanced} for name in ("val", "test")})
    assert state.progress.best_val == {"top1": 50.0, "balanced_accuracy": 60.0, "epoch": 2.0}
    assert state.progress.best_test["epoch"] == 3, "by top-1, whatever chooses"


def test_evaluations_are_shown_by_what_held_out_images_choose_by():
    run = config.Run(data=config.Data(val_metric="loss"))
    metrics = {"test": {"top1": 50.0, "loss": 1.5}, "val": {"top1": 40.0, "loss": 1.25}, "knn": {"top1": 30.0}}
    assert evaluate.headlines(metrics, run) == "test NLL 1.50, val NLL 1.25, knn top-1 30.00 %"


class Killed(BaseException):
    """Nothing of the loop runs any more."""


def test_the_best_weights_are_those_of_the_best_evaluation_after_a_kill_too(folder, monkeypatch):
    run = folder("run", CLASSIFY, {"data.val_fraction": 0.2, "loop": {"epochs": 4}, "optim.lr": 3e-3})
    step, remember = train.train_step, evaluate._remember_best

    def killed(train_state, *rest):
        if train_state.epochs_done == 2 and not train_state.evals_due():
            train_state.saver.wait()
            raise Killed
        return step(train_state, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(train, "train_step", killed)
        with pytest.raises(Killed):
            train.main([str(run)])
    last, best = (torch.load(run / name, weights_only=True) for name in ("last.pt", "best.pt"))
    assert int(last["progress"]["best_val"]["epoch"]) == 2 and same_state(last["model"], best["model"]) and best.keys() == {"model", "data"}
    (run / "best.pt").unlink()  # killed between the two

    def worse(train_state, *rest):  # as a GPU may compute another time, and what is better came in an evaluation that was lost
        remember(train_state, *rest)
        if train_state.is_best:
            train_state.progress.best_val = last["progress"]["best_val"]

    monkeypatch.setattr(evaluate, "_remember_best", worse)
    assert train.main([str(run)]) == 0
    assert same_state(torch.load(run / "best.pt", weights_only=True)["model"], best["model"])
    selected = json.loads((run / "done.json").read_text())["selected"]
    assert evaluate_folder(run, ClassificationConfig(), "best.pt") == {k: v for k, v in selected.items() if k != "epoch"}


def test_a_run_without_averaged_weights_says_so(folder):
    run = folder("run", CLASSIFY, {"loop": {"epochs": 1, "warmup_epochs": 0, "max_steps": 1}})
    assert train.main([str(run)]) == 0
    with pytest.raises(config.ConfigError, match=r"last.pt: holds no averaged weights; a run with loop.ema_decay has them in last.pt"):
        vitssl.load(run, weights="ema")


def test_a_loaded_run_predicts_as_it_was_evaluated(folder, digits):
    run = folder("run", CLASSIFY, {"loop.epochs": 3, "optim.lr": 3e-3})
    assert train.main([str(run)]) == 0
    assert evaluate_folder(run, ClassificationConfig()) == json.loads((run / "done.json").read_text())["test"]
    from PIL import Image
    from sklearn.datasets import load_digits

    images = [Image.fromarray((image * 15.9375).astype("uint8")) for image in load_digits().images[:5]]
    probabilities_BK = vitssl.load(run).predict(images)
    assert probabilities_BK.shape == (5, 10)
    assert torch.allclose(probabilities_BK.sum(1), torch.ones(5), atol=1e-5)


def test_a_chain_starts_from_the_pretrained_backbone(folder):
    parent = folder("pre", MAE, {"loop": {"epochs": 1, "warmup_epochs": 0}})
    assert train.main([str(parent)]) == 0
    assert json.loads((parent / "done.json").read_text())["test"] is None
    child = folder("fine", CLASSIFY, {"init_from": str(parent), "loop.max_steps": 1, "optim": {"lr": 0.0, "min_lr": 0.0}})
    assert train.main([str(child)]) == 0
    theirs, ours = weights(parent), weights(child)
    assert all(torch.equal(ours[k], theirs[k]) for k in ours if k.startswith("backbone."))


@pytest.mark.release
def test_learning_happens(folder):
    run = folder("run", CLASSIFY, {"loop": {"epochs": 15, "eval_every": 0}, "optim.lr": 3e-3})
    assert train.main([str(run)]) == 0
    assert json.loads((run / "done.json").read_text())["test"]["top1"] > 50


def guided(folder) -> dict:
    """Layers of a Run under locality guidance, by a teacher that was trained for two steps."""
    network = {f"backbone.{name}": None for name in ("depth", "num_heads", "patch_size")} | {"backbone.name": "resnet8"}
    teacher = folder("teacher", CLASSIFY, network, {"backbone.embed_dim": 4, "objectives.classify.pool": "mean", "loop.max_steps": 2})
    assert train.main([str(teacher)]) == 0
    described = {"name": "resnet8", "embed_dim": 4}
    guidance = {"teacher": str(teacher), "teacher_backbone": described, "teacher_px": 8, "blocks": [0, 1], "stages": [1, 2]}
    return {"objectives": {"classify": {}, "locality": guidance}}


@pytest.mark.parametrize("name", [*CURVES, "locality"])
def test_golden_loss_curve(folder, name):
    """A change that should move these replaces them in the same commit (delete the file and run the test twice)."""
    layers = CURVES[name] if name in CURVES else guided(folder)
    run = folder("run", layers, {"loop": {"epochs": 1, "max_steps": 12, "warmup_epochs": 0.2, "log_every": 1}})
    assert train.main([str(run)]) == 0
    losses = [e["loss"] for e in read_events(run / "metrics.jsonl") if e["event"] == "train"]
    golden = ROOT / "tests" / "golden" / f"{name}.json"
    if not golden.exists():
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(json.dumps([round(loss, 5) for loss in losses]))
        pytest.fail(f"wrote {golden.name}: there was no curve to compare with")
    assert losses == pytest.approx(json.loads(golden.read_text()), abs=2e-3)


@pytest.mark.parametrize("half", ["bf16", "fp16"])
def test_sixteen_bits_stay_near_fp32(folder, half, capsys):
    curves = []
    for precision in ("fp32", half):
        run = folder(precision, SSAT, {"loop": {"max_steps": 6, "log_every": 1, "precision": precision}})
        assert train.main([str(run)]) == 0
        curves.append([e["loss"] for e in read_events(run / "metrics.jsonl") if e["event"] == "train"])
    assert curves[0] == pytest.approx(curves[1], abs=0.03)
    assert curves[0] != curves[1]
    emulated = dist.is_bf16_emulated(torch.device("cpu"), half)
    assert ("this CPU has no native bf16, which makes it slow; use loop.precision=fp32" in capsys.readouterr().err) == emulated


def test_in_fp16_the_scale_of_the_loss_is_resumed_too(folder, tmp_path, monkeypatch):
    """It begins so large that MAE's first step overflows, is left out and halves it; without it another step would be left out later."""
    fp16 = {"loop": {"max_steps": 20, "eval_every": 0, "log_every": 1, "precision": "fp16"}}
    whole, parts = (folder(n, MAE, fp16) for n in ("whole", "parts"))
    assert train.main([str(whole)]) == 0
    in_two_parts(parts, tmp_path, monkeypatch, steps=20)
    assert same(whole, parts)
    norms = [e["grad_norm"] for e in read_events(whole / "metrics.jsonl") if e["event"] == "train"]
    assert norms[0] == 0 and min(norms[1:]) > 0
    assert torch.load(parts / "last.pt", weights_only=True)["scaler"]["scale"] == 2.0**15


@pytest.mark.release
def test_compiled_inside_ddp_it_trains_as_without(folder, tmp_path):
    """loop.compile with torch's own compiler; of an objective without noise, which compiled code draws otherwise."""
    loop = {"max_steps": 6, "eval_every": 0, "log_every": 1}
    both = [folder(f"compile_{on}", CLASSIFY, {"backbone.depth": 1, "loop": {**loop, "compile": on}}) for on in (True, False)]
    programs = start_programs(both[0], 2, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "inductor"), TORCHINDUCTOR_COMPILE_THREADS="1")
    errors = [program.communicate(timeout=240)[1] for program in programs]
    assert [program.returncode for program in programs] == [0, 0], errors[0]
    assert train.main([str(both[1])]) == 0  # on one rank: their number does not matter
    losses = [[e["loss"] for e in read_events(one / "metrics.jsonl") if e["event"] == "train"] for one in both]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and losses[0] != losses[1]


@pytest.mark.parametrize("log_every", [1, 10])
def test_a_term_that_is_not_finite_is_named_beside_others_that_are(folder, capsys, monkeypatch, log_every):
    forward = mae.Mae.forward
    broken = lambda *args: {name: term * float("nan") for name, term in forward(*args).items()}  # noqa: E731
    monkeypatch.setattr(mae.Mae, "forward", broken)
    run = folder("run", CURVES["ssat"], LONG, {"loop.log_every": log_every})
    assert train.main([str(run)]) == 1
    assert re.search(r"not finite by step 2 \(epoch 0\.\d+; of its terms only mae\)", capsys.readouterr().err)
