"""What training refuses or survives around its run folder: a second trainer, a GPU that is not there, a full one at the end."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest
import torch

from vitssl import __version__, config, model, train
from vitssl.costs import cost
from vitssl.files import read_events
from vitssl.training import attempt

CLASSIFY = {"objectives.classify": {}, "loop.max_steps": 2}


@pytest.fixture
def folder(make_run, digits, tmp_path):
    def make(*layers):
        config.save(make_run(CLASSIFY, *layers, shards=digits), tmp_path / "run")
        return tmp_path / "run"

    return make


def test_two_processes_do_not_train_one_run(folder, monkeypatch, capsys):
    run = folder()
    monkeypatch.setattr(attempt, "LEAVING_S", 0.1)
    monkeypatch.setenv("VITSSL_STOP_FILE", str(run.parent / "scratch" / "stop"))
    (run.parent / "scratch").mkdir()
    with open(run / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert train.main([str(run)]) == 2
        said = capsys.readouterr().err
        assert f"{run}: another process is training this run" in said and said.count("waiting up to 0.1 s for it to end") == 1
        assert not (run / "last.pt").exists() and not (run / "error.json").exists(), "it is not the other's error"
        assert [path.name for path in (run.parent / "scratch").iterdir()] == ["busy"], "its launcher knows, through torchrun too"
    assert train.main([str(run)]) == 0, "the lock went with its holder"
    assert [e["event"] for e in read_events(run / "metrics.jsonl")].count("start") == 1


@pytest.mark.release
def test_a_run_whose_output_nobody_reads_is_trained(folder):
    """`submit ... | head`: the reader leaves when it has seen enough."""
    run, (read, write) = folder({"loop.eval_every": 1}), os.pipe()
    os.close(read)
    process = subprocess.run([sys.executable, "-m", "vitssl.train", str(run)], stdout=write, stderr=write, check=False)
    os.close(write)
    assert process.returncode == 0 and (run / "done.json").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="wants a machine without a GPU")
def test_a_slurm_job_with_gpus_does_not_train_on_a_cpu(folder, capsys):
    run = folder({"loop.device": "auto"})
    (run / "job.json").write_text(json.dumps({"executor": "slurm", "gpus_per_node": 4}))
    assert train.main([str(run)]) == 2
    assert "asked SLURM for 4 GPUs per node and torch sees none" in capsys.readouterr().err
    (run / "job.json").write_text(json.dumps({"executor": "local", "gpus_per_node": 4}))
    assert train.main([str(run)]) == 0


def test_inference_is_timed_with_a_batch_that_fits(make_run, monkeypatch):
    run = make_run(CLASSIFY)
    network, seen = model.build(run, 10), []
    predict = model.Model.predict

    def small(self, batch):
        seen.append(len(batch.index_B))
        if len(batch.index_B) > 8:
            raise torch.OutOfMemoryError("full")
        return predict(self, batch)

    monkeypatch.setattr(model.Model, "predict", small)
    assert cost.throughput(network, run, torch.device("cpu"))["inference_batch_size"] == 8
    assert list(dict.fromkeys(seen)) == [32, 16, 8]


def test_a_moment_that_is_not_quiet_shows_in_the_spread_of_the_inference_speed(make_run, monkeypatch):
    run = make_run(CLASSIFY)
    assert speed([0.5, 0.5, *[0.05] * 5, *[0.1] * 4], run, monkeypatch) == (640.0, 1.0), "two batches to warm up, and nine"


def test_of_a_slow_network_fewer_batches_are_timed(make_run, monkeypatch):
    """A large one on a CPU would take longer for this figure than for its training's last epoch."""
    run = make_run(CLASSIFY)
    assert speed([8.0, 6.0, 4.0, 2.0, 4.0], run, monkeypatch) == (8.0, 0.25)
    assert speed([9.0, 0.5, *[0.25] * 4], run, monkeypatch) == (128.0, 0.0), "a slow start does not count"


def speed(took_s, run, monkeypatch):
    """What is measured of batches that take so long, all of which are timed."""
    times = iter([0.0] + [end for k in range(len(took_s)) for end in [sum(took_s[: k + 1])] * 2])
    monkeypatch.setattr(cost.time, "perf_counter", lambda: next(times))
    measured = cost.throughput(model.build(run, 10), run, torch.device("cpu"))
    assert len(list(times)) == 1, "as many batches as are said"
    return pytest.approx((measured["inference_images_per_s"], measured["inference_spread"]))


def test_a_file_system_without_locks_is_one_line(folder, monkeypatch, capsys):
    def refuse(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    run = folder()
    monkeypatch.setattr(fcntl, "flock", refuse)
    assert train.main([str(run)]) == 2
    assert capsys.readouterr().err == (
        f"error: {run}: files cannot be locked there (Function not implemented); name a folder of another file system\n"
    )


def test_every_failure_is_kept_and_the_last_one_stands_alone(tmp_path):
    for reason in ("disk is full", "loss is not finite"):
        with pytest.raises(attempt.Diverged), attempt.ErrorFile(tmp_path):
            raise attempt.Diverged(reason)
    assert [failure["message"] for failure in read_events(tmp_path / "errors.jsonl")] == ["disk is full", "loss is not finite"]
    assert json.loads((tmp_path / "error.json").read_text())["message"] == "loss is not finite"
    assert [failure["attempt"] for failure in read_events(tmp_path / "errors.jsonl")] == [0, 1]


def test_ranks_that_fail_in_one_attempt_write_its_number(tmp_path):
    """That of its energy record: each rank took it before the first record was written."""
    (tmp_path / "emissions-3-n1.json").write_text("{}")
    with pytest.raises(attempt.Diverged, match="first"), attempt.ErrorFile(tmp_path):
        with pytest.raises(attempt.Diverged, match="second"), attempt.ErrorFile(tmp_path):
            assert attempt.number(tmp_path) == 4
            (tmp_path / "emissions-4-n1.json").write_text("{}")
            raise attempt.Diverged("second")
        raise attempt.Diverged("first")
    assert [(line["message"], line["attempt"]) for line in read_events(tmp_path / "errors.jsonl")] == [("second", 4), ("first", 4)]
    assert attempt.number(tmp_path) == 5
    assert json.loads((tmp_path / "error.json").read_text())["message"] == "second"  # which failed first


def _failing_in_place_of(first):
    error = RuntimeError("CUDA error: operation failed due to a previous error during capture")
    error.__context__ = first
    return error


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "; lower loop.micro_batch_size (images per GPU and forward pass; "),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            "; lower loop.micro_batch_size (images per",
        ),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "; lower loop.micro_batch_size, or ask for more by resources.mem_gb"),
        (MemoryError("for the cache"), "; lower loop.micro_batch_size, or ask for more by resources.mem_gb"),
        (RuntimeError("CUDA error: operation not permitted when stream is capturing"), "; nothing may wait for the GPU while a step is"),
        (_failing_in_place_of(torch.OutOfMemoryError("CUDA out of memory")), "; lower loop.micro_batch_size (images per"),
    ],
)
def test_what_settings_or_room_can_prevent_is_said(tmp_path, error, advice):
    with pytest.raises(type(error)), attempt.ErrorFile(tmp_path):
        raise error
    assert json.loads((tmp_path / "error.json").read_text())["message"].startswith(f"{type(error).__name__}: {error}{advice}")


def test_a_checkpoint_that_does_not_fit_on_the_disk_says_so(tmp_path):
    with open("/dev/full", "wb", buffering=0) as disk, pytest.raises(RuntimeError), attempt.ErrorFile(tmp_path):
        try:
            disk.write(b"x")
        except OSError:
            raise RuntimeError("unexpected pos 704 vs 598")  # noqa: B904, as torch.save has it
    message = json.loads((tmp_path / "error.json").read_text())["message"]
    assert message.startswith("No space left on device: make room (`vitssl prune` lists what no run needs any more)")
    with pytest.raises(OSError, match="quota"), attempt.ErrorFile(tmp_path):
        raise OSError(errno.EDQUOT, "Disk quota exceeded", "last.pt")
    assert json.loads((tmp_path / "error.json").read_text())["message"].startswith("last.pt: Disk quota exceeded: make room")


def test_a_run_without_room_for_its_checkpoints_is_refused_before_it_trains(folder, monkeypatch, capsys):
    run = folder()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100_000))
    assert train.main([str(run)]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(
        rf"error: {run}: no space for its checkpoints, which need [\d.]+ MB, and 0.1 MB are free; make room there, or .*: --runs", error
    )
    assert not (run / "last.pt").exists() and not read_events(run / "metrics.jsonl")


def test_a_disk_that_runs_full_is_one_line(folder, monkeypatch, capsys):
    def full(*_, **__):
        raise RuntimeError("unexpected pos") from OSError(errno.ENOSPC, "No space left on device")

    run = folder()
    monkeypatch.setattr("vitssl.checkpoints.saver.tensor_files.save", full)
    assert train.main([str(run)]) == 1
    told = f"error: {run}: No space left on device: make room (`vitssl prune` lists what no run needs any more)"
    assert capsys.readouterr().err.splitlines()[-1].startswith(told)


def test_a_full_disk_hides_no_failure_and_spoils_no_later_line(tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "errors.jsonl").write_text('{"message": "disk is full", "attempt": 0}\n{"mess')
    with monkeypatch.context() as patched, pytest.raises(attempt.Diverged, match="not finite"), attempt.ErrorFile(tmp_path):
        patched.setattr(attempt, "write_json", full)
        raise attempt.Diverged("loss is not finite")
    assert capsys.readouterr().err == f"{tmp_path}: the failure below could not be recorded there (No space left on device)\n"
    with pytest.raises(attempt.Diverged), attempt.ErrorFile(tmp_path):
        raise attempt.Diverged("again")
    assert [failure["message"] for failure in read_events(tmp_path / "errors.jsonl")] == ["disk is full", "again"]


def test_a_container_of_another_version_is_refused(folder, capsys, monkeypatch):
    run = folder({})
    (run / "job.json").write_text(json.dumps({"site": {"image": "/shared/vitssl.sif"}}))
    built = [SimpleNamespace(version="0.0.9")]
    monkeypatch.setattr(metadata, "distributions", lambda name: built)
    assert train.main([str(run)]) == 2
    said = capsys.readouterr().err
    assert f"site.image: /shared/vitssl.sif was built for vitssl 0.0.9, and this run's source is {__version__}: build it anew" in said
    built[:] = []  # an image of packages alone
    assert train.main([str(run)]) == 0
