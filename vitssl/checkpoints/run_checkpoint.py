"""The content of a run's checkpoint, and the checks of a file before any of its content is used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, NoReturn, TypeGuard

import torch
from torch import Tensor, nn

from vitssl import records
from vitssl.checkpoints.tensor_files import check_finite, first_of, is_state, mismatches, read
from vitssl.config import ConfigError
from vitssl.files import read_json
from vitssl.run_folder import BEST, DIVERGED, DONE, JOB, LAST, is_trained

SCALER = torch.amp.GradScaler("cpu").state_dict().keys()
ADVICE = "restore the file from a backup, or delete it to train anew"


@dataclass
class Progress:
    """The part of a checkpoint besides tensors; plain values only."""

    step: int = 0  # optimiser steps done
    time_s: float = 0.0  # wall seconds of training, over all attempts
    attempt: int = 0
    best_test: dict[str, float] = field(default_factory=dict)  # best on the TEST set; only ever reported under that name
    best_val: dict[str, float] = field(default_factory=dict)
    last: dict[str, dict[str, float]] = field(default_factory=dict)  # the newest evaluation
    to_evaluate: bool = False  # the checkpoint was saved before the evaluation of its step


def existing_checkpoint(folder: Path, name: str) -> Path:
    """Return the path of a checkpoint in a run folder.

    Raises:
        ConfigError: there is no checkpoint of that name; the error lists those that exist.
    """
    path = folder / name
    if path.exists():
        if name == DIVERGED:
            raise ConfigError(f"{path} is the state in which training diverged, for torch.load to look into, and no checkpoint to use")
        return path
    existing = ", ".join(path.name for path in sorted(folder.glob("*.pt")) if path.name != DIVERGED) or "none"
    why = ""
    if name == BEST and is_trained(folder) and read_json(folder / DONE).get("selected"):
        why = ", which held-out images chose: it was deleted, and only training the run anew makes another"
    elif name == BEST:
        why = "; only runs that classify and have held-out images have best.pt (data.val_fraction, data.val_split)"
    lost = name == LAST and is_trained(folder) and "imported" not in read_json(folder / JOB)
    advice = f"; delete {folder}, and repeat the command of its sweep to train it anew" if lost else ""
    raise ConfigError(f"{folder} has no {name}{why}; its checkpoints: {existing}{advice}")


def read_run(path: Path) -> dict[str, Any]:
    """Read the checkpoint of a run (``last.pt``, ``best.pt``, one that was kept, imported weights) to the CPU.

    Raises:
        ConfigError: naming the file, and the part of it that is damaged or not as this version writes it.
    """
    content = read(path)
    for name, is_as_written in WRITTEN.items():
        if not is_as_written(content.get(name)):
            _refuse(path, f"{name} has unexpected content")
    for name in NUMBERS.intersection(content):
        check_finite(content[name], name, path)
    return content


def load_model(network: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """Load a file's weights into a network; raise a ConfigError if they are another network's."""
    network.load_state_dict(fitted(network, state, path))


def fitted(network: nn.Module, state: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return a file's weights, or their moving average, in the data types of ``network``.

    Raises:
        ConfigError: they are another network's, or a number overflows the network's type.
    """
    ours = network.state_dict()
    if problems := mismatches(ours, state):
        reason = f"{first_of(problems)}: it was written for another network than run.yaml's"
        raise ConfigError(f"{reason}; restore whichever of the two was changed", place=str(path))
    cast = {name: value.to(ours[name].dtype) for name, value in state.items()}
    check_finite(cast, "", path)
    return cast


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any], path: Path) -> None:
    """Load a file's state into an optimizer; raise a ConfigError if it is another optimizer's.

    The optimizer keeps its implementation (``foreach``, ``fused``), since SGD of earlier versions was not fused, and its own state of
    weights for which the file has none.
    """
    initial = {parameter: values for parameter, values in optimizer.state.items() if isinstance(parameter, Tensor)}
    implementations: list[dict[str, Any]] = [
        {name: group[name] for name in ("foreach", "fused") if name in group} for group in optimizer.param_groups
    ]
    try:
        optimizer.load_state_dict(state)
    # shapes are compared below; a RuntimeError is not caught, as a full GPU is no damage
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        _refuse(path, f"optimizer: {str(error).splitlines()[0]}")
    for group, implementation in zip(optimizer.param_groups, implementations, strict=True):
        group.update(implementation)
    for parameter, values in optimizer.state.items():
        if not isinstance(parameter, Tensor) or not isinstance(values, dict):
            _refuse(path, "optimizer: it has a state of something that is not a weight")
        for name, value in values.items():
            if isinstance(value, Tensor) and value.dim() and value.shape != parameter.shape:
                _refuse(path, f"optimizer: {name} has shape {tuple(value.shape)}, its weight {tuple(parameter.shape)}")
    for parameter, values in initial.items():
        saved = {name: value for name, value in optimizer.state[parameter].items() if value is not None}
        optimizer.state[parameter] = values | saved


def _refuse(path: Path, reason: str) -> NoReturn:
    raise ConfigError(f"{reason}; {ADVICE}", place=str(path))


# ---------------------------------------------------------------------------------------------------- what is written


def _is_optimizer(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether ``value`` is the state of an optimizer as torch gives it.

    It holds tensors and numbers of each weight, by the weight's number, and plain settings of groups of weights.
    """
    if not isinstance(value, dict) or not isinstance(value.get("state"), dict) or not isinstance(value.get("param_groups"), list):
        return False
    of_weights = all(isinstance(number, int) and isinstance(values, dict) for number, values in value["state"].items())
    return of_weights and all(isinstance(group, dict) and all(map(_is_setting, group.values())) for group in value["param_groups"])


def _is_setting(value: Any) -> bool:
    parts = value if isinstance(value, list | tuple) else [value]
    return all(part is None or isinstance(part, bool | int | float | str) for part in parts)


def _fits(schema: Any) -> Callable[[Any], bool]:
    """Return a check that a value has the form of a schema of `vitssl.records`."""
    return lambda value: not any(records.problems(schema, value))


def _or_absent(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


RESULT = {...: records.Number(low=-inf, high=inf, or_not_finite=True)}  # a loss may be of any size
PROGRESS = {
    "step": records.COUNT, "time_s": records.AMOUNT, "attempt": records.COUNT, "best_test": RESULT, "best_val": RESULT,
    "last": {...: RESULT}, "to_evaluate": bool,
}  # fmt: skip
DATA = {"classes": [str], "mean": [records.FINITE], "std": [records.FINITE]}  # no classes: pretrained weights from elsewhere
# entry -> its check; best.pt has the first two entries, imported weights also "ema"
WRITTEN: dict[str, Callable[[Any], bool]] = {
    "model": is_state,
    "data": lambda value: _fits(DATA)(value) and len(value["mean"]) == len(value["std"]) == 3,
    "ema": _or_absent(is_state),
    "progress": _or_absent(lambda value: _fits(PROGRESS)(value) and value.keys() == PROGRESS.keys()),
    "optimizer": _or_absent(_is_optimizer),
    "scaler": _fits((dict.fromkeys(SCALER, records.Number(high=1e300)), None)),
    "identity": _fits((str, None)),
    "schema": _fits((records.COUNT, None)),
}
NUMBERS = {"model", "ema", "optimizer"}  # entries whose tensors must be finite
