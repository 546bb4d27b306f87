"""Loggers of a run's scalars besides metrics.jsonl: TensorBoard, and Weights & Biases and MLflow if `loop.loggers` names them."""

from __future__ import annotations

import fcntl
import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch.utils.tensorboard import SummaryWriter

from vitssl.config import ConfigError, dotted, read_yaml
from vitssl.files import flock, open_lock, read_json, write_json
from vitssl.run_folder import RUN

if TYPE_CHECKING:
    from mlflow.utils.async_logging.run_operations import RunOperations

KNOWN_AS = "loggers.json"  # in the run folder: the ids under which other loggers continue the run
EXTRA = "pip install 'vitssl[loggers]'"


class Logger(Protocol):
    """A destination of scalars."""

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Log what was measured at ``step``, by name."""

    def close(self) -> None:
        """End the log of this attempt."""


def start(folder: Path, step: int, names: Sequence[str]) -> list[Logger]:
    """Start the loggers of an attempt that begins after ``step``.

    Raises:
        ConfigError: a logger is not installed, has nowhere to log to, or does not answer. A logger that answered in an earlier attempt and
            does not answer now is left out of this attempt instead.
    """
    return [TensorBoard(folder, step), *filter(None, (_other(name, folder) for name in names))]


def _other(name: str, folder: Path) -> Logger | None:
    """Start the logger called ``name``; None if it does not answer now but did in an earlier attempt."""
    try:
        return OTHERS[name](folder)
    except Away as error:
        if name not in read_json(folder / KNOWN_AS):
            raise
        print(f"{error.reason}; this attempt continues without it; metrics.jsonl has all measurements", file=sys.stderr)
        return None


class Away(ConfigError):
    """Raised when a logger does not answer."""


class TensorBoard:
    def __init__(self, folder: Path, step: int):
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def scalars(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandB:
    """Weights & Biases, in ``RUN/wandb`` unless WANDB_MODE=online (`wandb sync` uploads it); the project is the sweep.

    A step that is trained again after a kill is logged again; its newest value comes last.
    """

    def __init__(self, folder: Path):
        try:
            import wandb
        except ImportError:
            raise ConfigError(f"wandb is not installed where this run trains; {EXTRA}", "loop.loggers") from None
        project, mode = os.environ.get("WANDB_PROJECT", folder.parent.name), os.environ.get("WANDB_MODE", "offline")
        fields: dict[str, Any] = {"console": "off", "silent": True, "mode": mode}
        try:
            settings = wandb.Settings(**fields)
        except ValueError:
            raise ConfigError(f"WANDB_MODE={mode} is none of wandb's modes, such as online or offline", "loop.loggers") from None
        run_id = read_json(folder / KNOWN_AS).get("wandb") or secrets.token_hex(8)
        try:
            self._run = wandb.init(
                project=project, name=folder.name, id=run_id, resume="allow", dir=folder,
                config=read_yaml(folder / RUN, variables=False), settings=settings,
            )  # fmt: skip
        except wandb.Error as error:
            raise Away(f"wandb: {_first_line(error)}", "loop.loggers") from None
        _remember(folder, "wandb", run_id)
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def scalars(self, step: int, values: dict[str, float]) -> None:
        self._run.log({"step": step, **values})

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """MLflow, in the store that MLFLOW_TRACKING_URI names; the experiment is the sweep.

    Training does not wait for the store, and does not end if the store becomes unavailable.
    """

    def __init__(self, folder: Path):
        try:
            from mlflow import MlflowClient, MlflowException
            from mlflow.entities import Metric, Param
        except ImportError:
            raise ConfigError(f"mlflow is not installed where this run trains; {EXTRA}", "loop.loggers") from None
        if "MLFLOW_TRACKING_URI" not in os.environ:
            raise ConfigError("MLFLOW_TRACKING_URI says where mlflow keeps its records; set it, for jobs in site.env", "loop.loggers")
        self._error, self._metric = MlflowException, Metric
        self._last: RunOperations | None = None  # the newest records, on their way
        name, known_id = os.environ.get("MLFLOW_EXPERIMENT_NAME", folder.parent.name), read_json(folder / KNOWN_AS).get("mlflow")
        try:
            self._client = MlflowClient()
            self._run = known_id or self._client.create_run(self._experiment(folder, name), run_name=folder.name).info.run_id
            if known_id is None:
                fields = dotted(read_yaml(folder / RUN, variables=False))
                # without fields that are off
                params = [Param(field, str(value)) for field, value in fields.items() if value not in (None, {})]
                self._client.log_batch(self._run, params=params)
            self._client.update_run(self._run, status="RUNNING")
        except MlflowException as error:
            raise Away(f"mlflow: {_first_line(error)}", "loop.loggers") from None
        _remember(folder, "mlflow", self._run)

    def _experiment(self, folder: Path, name: str) -> str:
        if experiment := self._client.get_experiment_by_name(name):  # outside the lock: the client asks an unavailable server for minutes
            return experiment.experiment_id
        with open_lock(folder.parent / ".mlflow", "loop.loggers") as lock:  # runs of a sweep that start together must not create one each
            flock(lock, fcntl.LOCK_EX)
            experiment = self._client.get_experiment_by_name(name)
            return experiment.experiment_id if experiment else self._client.create_experiment(name)

    def scalars(self, step: int, values: dict[str, float]) -> None:
        now_ms = int(time.time() * 1000)
        metrics = [self._metric(name, value, now_ms, step) for name, value in values.items()]
        self._last = self._client.log_batch(self._run, metrics=metrics, synchronous=False)

    def close(self) -> None:
        try:
            if self._last is not None:
                self._last.wait()
            self._client.set_terminated(self._run)
        except self._error as error:
            print(f"mlflow: some records were not delivered; metrics.jsonl has them ({_first_line(error)})", file=sys.stderr)


OTHERS: dict[str, Callable[[Path], Logger]] = {"wandb": WandB, "mlflow": MLflow}


def _remember(folder: Path, logger: str, known_as: str) -> None:
    """Store the id by which a logger knows this run, for all later attempts."""
    write_json(folder / KNOWN_AS, read_json(folder / KNOWN_AS) | {logger: known_as})


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
