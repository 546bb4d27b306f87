"""Weights & Biases and MLflow get what TensorBoard gets, over all attempts at a run; what they need and lack is said in a line.

They are of the extra `loggers`, which `.ci/run` installs for the tests of a release.
"""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vitssl import config, train
from vitssl.files import read_events, read_json, write_json
from vitssl.training import loggers

SHORT = {"objectives.classify": {}, "loop": {"max_steps": 6, "eval_every": 0, "log_every": 2}}


@pytest.fixture
def folder(make_run, digits, tmp_path):
    def make(*names: str) -> Path:
        run = tmp_path / "sweep" / "run"
        config.save(make_run(SHORT, {"loop.loggers": list(names)}, shards=digits), run)
        return run

    return make


def in_two_attempts(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, step = run.parent / "stop", train.train_step
    with monkeypatch.context() as patched:
        patched.setenv("VITSSL_STOP_FILE", str(stop))
        patched.setattr(train, "train_step", lambda state, *rest: (state.progress.step == 3 and stop.touch()) or step(state, *rest))
        assert train.main([str(run)]) == train.STOPPED
    assert train.main([str(run)]) == 0


def losses(run: Path) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in read_events(run / "metrics.jsonl") if event["event"] == "train"}


@pytest.mark.release
def test_mlflow_has_the_scalars_of_all_attempts_in_one_run(folder, monkeypatch, tmp_path):
    tracking = pytest.importorskip("mlflow").MlflowClient
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run = folder("mlflow")
    in_two_attempts(run, monkeypatch)
    client = tracking()
    (found,) = client.search_runs([client.get_experiment_by_name("sweep").experiment_id])
    assert found.info.run_name == "run" and found.info.status == "FINISHED"
    assert found.data.params["optim.batch_size"] == "32" and "loop.max_steps" in found.data.params
    history = client.get_metric_history(found.info.run_id, "train/loss")
    assert {metric.step: metric.value for metric in history} == losses(run) and set(losses(run)) == {2, 4, 6}
    assert found.data.metrics["eval/test/top1"] == read_json(run / "done.json")["test"]["top1"]


@pytest.mark.release
def test_mlflow_that_goes_away_ends_no_training(folder, monkeypatch, tmp_path, capfd):
    pytest.importorskip("mlflow")
    store = tmp_path / "store"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run, step = folder("mlflow"), train.train_step
    monkeypatch.setattr(train, "train_step", lambda *args: (store.exists() and store.rename(tmp_path / "gone") and None) or step(*args))
    assert train.main([str(run)]) == 0
    assert "mlflow: some records were not delivered; metrics.jsonl has them" in capfd.readouterr().err


@pytest.mark.release
def test_wandb_gets_the_scalars_offline_under_one_id(folder, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    sent: list[dict[str, Any]] = []
    log = wandb.Run.log
    monkeypatch.setattr(wandb.Run, "log", lambda self, values: sent.append(values) or log(self, values))
    run = folder("wandb")
    in_two_attempts(run, monkeypatch)
    known = read_json(run / "loggers.json")["wandb"]
    written = list((run / "wandb").glob(f"offline-run-*/run-{known}.wandb"))
    assert len(written) >= 1 and all(path.stat().st_size > 500 for path in written)
    assert {values["step"]: values["train/loss"] for values in sent if "train/loss" in values} == losses(run)
    assert sent[-1]["eval/test/top1"] == read_json(run / "done.json")["test"]["top1"]


@pytest.mark.release
def test_wandb_that_is_away_at_a_restart_does_not_end_the_run(tmp_path, monkeypatch, capsys):
    """Nobody listens on that port of this machine."""
    wandb = pytest.importorskip("wandb")
    init = wandb.init
    monkeypatch.setattr(wandb, "init", lambda settings, **words: init(settings=of_nobody(settings), **words))
    monkeypatch.setenv("WANDB_MODE", "online")
    (tmp_path / "run.yaml").write_text("seed: 0\n")
    with pytest.raises(config.ConfigError, match=r"^loop\.loggers: wandb: "):
        loggers.start(tmp_path, 0, ["wandb"])
    assert not (tmp_path / "loggers.json").exists()
    write_json(tmp_path / "loggers.json", {"wandb": "77"})
    (only,) = loggers.start(tmp_path, 0, ["wandb"])
    assert isinstance(only, loggers.TensorBoard)
    assert "; this attempt continues without it; metrics.jsonl has all measurements\n" in capsys.readouterr().err


def test_wandb_in_a_mode_that_it_lacks_is_one_line(folder, monkeypatch, capsys):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "ofline")
    assert train.main([str(folder("wandb"))]) == 2
    expected = "error: loop.loggers: WANDB_MODE=ofline is none of wandb's modes, such as online or offline\n"
    assert capsys.readouterr().err.endswith(expected)


def of_nobody(settings: Any) -> Any:
    settings.base_url, settings.api_key, settings.init_timeout = "http://127.0.0.1:9", "a" * 40, 3
    return settings


def test_mlflow_that_is_away_at_a_restart_does_not_end_the_run(tmp_path, monkeypatch, capsys):
    class Gone(Exception):
        pass

    class Client:
        def get_experiment_by_name(self, *asked: Any, **more: Any) -> None:
            raise Gone("API request failed: connection refused\nmore")

        create_run = update_run = get_experiment_by_name

    mlflow = SimpleNamespace(MlflowClient=Client, MlflowException=Gone)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mlflow.entities", SimpleNamespace(Metric=None, Param=None))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:1")
    with pytest.raises(config.ConfigError, match="mlflow: API request failed: connection refused"):
        loggers.start(tmp_path, 0, ["mlflow"])
    write_json(tmp_path / "loggers.json", {"mlflow": "77"})
    (only,) = loggers.start(tmp_path, 0, ["mlflow"])
    assert isinstance(only, loggers.TensorBoard)
    assert capsys.readouterr().err == (
        "mlflow: API request failed: connection refused; this attempt continues without it; metrics.jsonl has all measurements\n"
    )


@pytest.mark.parametrize("name", loggers.OTHERS)
def test_a_logger_that_is_not_installed_is_one_line(folder, monkeypatch, capsys, name):
    real = builtins.__import__

    def absent(module: str, *args: Any, **kwargs: Any) -> Any:
        if module == name:
            raise ImportError(f"No module named {name!r}")
        return real(module, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    assert train.main([str(folder(name))]) == 2
    expected = f"error: loop.loggers: {name} is not installed where this run trains; pip install 'vitssl[loggers]'\n"
    assert capsys.readouterr().err.endswith(expected)


@pytest.mark.release
def test_mlflow_without_a_place_is_one_line(folder, monkeypatch, capsys):
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert train.main([str(folder("mlflow"))]) == 2
    assert "loop.loggers: MLFLOW_TRACKING_URI says where mlflow keeps its records" in capsys.readouterr().err
