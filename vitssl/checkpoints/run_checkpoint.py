"""What a run's checkpoint holds, and whether a file is one: checked before anything of it is used."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from vitssl import records
from vitssl.checkpoints.tensor_files import check_finite, first_of, is_state, mismatches, read, save
from vitssl.config import ConfigError

SCALER = torch.amp.GradScaler("cpu").state_dict().keys()
FORMER = {"selected"}  # of progress: what earlier versions wrote
ADVICE = "restore the file from a backup, or delete it to train anew"


@dataclass
class Progress:
    """What a checkpoint holds besides tensors; plain values only."""

    step: int = 0  # optimiser steps done
    time_s: float = 0.0  # wall seconds of training, over all attempts
    attempt: int = 0
    best_test: dict[str, float] = field(default_factory=dict)  # best on the TEST set; only ever reported under that name
    best_val: dict[str, float] = field(default_factory=dict)
    last: dict[str, dict[str, float]] = field(default_factory=dict)  # the newest evaluation
    to_evaluate: bool = False  # it was saved before an evaluation of this step

    @classmethod
    def of(cls, saved: dict[str, Any]) -> Progress:
        """From its values in a checkpoint, which an earlier version may have written."""
        return cls(**{name: value for name, value in saved.items() if name not in FORMER})


def read_run(path: Path) -> dict[str, Any]:
    """The checkpoint of a run (``last.pt``, ``best.pt``, one that was kept, imported weights), on the CPU.

    Raises:
        ConfigError: naming the file, and what of it is damaged or not as this version writes it.
    """
    content = read(path)
    for name, is_as_written in WRITTEN.items():
        if not is_as_written(content.get(name)):
            _refuse(path, f"{name} has unexpected content")
    for name in NUMBERS.intersection(content):
        check_finite(content[name], name, path)
    return content


def load_model(network: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """`load_state_dict`; raises ConfigError where the file's weights are another network's."""
    network.load_state_dict(fitted(network, state, path))


def fitted(network: nn.Module, state: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """A file's weights, or their average, in the types of a network's.

    Raises:
        ConfigError: they are another network's, or a number is beyond the network's type.
    """
    ours = network.state_dict()
    if problems := mismatches(ours, state):
        reason = f"{first_of(problems)}: it was written for another network than run.yaml's"
        raise ConfigError(f"{reason}; restore whichever of the two was changed", place=str(path))
    cast = {name: value.to(ours[name].dtype) for name, value in state.items()}
    check_finite(cast, "", path)
    return cast


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any], path: Path) -> None:
    """`load_state_dict`; raises ConfigError where the file's state is another optimizer's.

    How it computes, and what it has for weights of which the file has nothing, stays: SGD of earlier versions was not fused.
    """
    own = {parameter: values for parameter, values in optimizer.state.items() if isinstance(parameter, Tensor)}
    forms = [{name: group[name] for name in ("foreach", "fused") if name in group} for group in optimizer.param_groups]
    try:
        optimizer.load_state_dict(state)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:  # other shapes are found below; a full GPU is no damage
        _refuse(path, f"optimizer: {str(error).splitlines()[0]}")
    for group, form in zip(optimizer.param_groups, forms, strict=True):
        group.update(form)
    for parameter, values in optimizer.state.items():
        if not isinstance(parameter, Tensor) or not isinstance(values, dict):
            _refuse(path, "optimizer: it has a state of something that is not a weight")
        for name, value in values.items():
            if isinstance(value, Tensor) and value.dim() and value.shape != parameter.shape:
                _refuse(path, f"optimizer: {name} has shape {tuple(value.shape)}, its weight {tuple(parameter.shape)}")
    for parameter, values in own.items():
        saved = {name: value for name, value in optimizer.state[parameter].items() if value is not None}
        optimizer.state[parameter] = values | saved


def optimizer_bytes(path: Path) -> int:
    """How large the optimizer's state in a checkpoint is; 0 where there is none, or the file cannot be read."""
    try:
        optimizer = read(path, mapped=True).get("optimizer")
    except ConfigError:
        return 0
    values = [value for of_weight in optimizer["state"].values() for value in of_weight.values()] if _is_optimizer(optimizer) else []
    return sum(value.nbytes for value in values if isinstance(value, Tensor))


def drop_optimizer(path: Path) -> None:
    """Write a run's checkpoint without the optimizer's state; nothing can be trained further from it.

    Raises:
        ConfigError: it is damaged, and stays as it is.
        OSError, RuntimeError: there is no room for it beside the former one, which stays.
    """
    mode = path.stat().st_mode
    save(path, read_run(path) | {"optimizer": None})
    path.chmod(mode)


def _refuse(path: Path, reason: str) -> NoReturn:
    raise ConfigError(f"{reason}; {ADVICE}", place=str(path))


# ---------------------------------------------------------------------------------------------------- what is written


def _is_data(value: Any) -> bool:
    """What `vitssl.training.train_state.TrainState.data_facts` gives."""
    if not isinstance(value, dict) or not {"classes", "mean", "std"} <= value.keys():
        return False
    classes, *statistics = value["classes"], value["mean"], value["std"]
    named = isinstance(classes, list) and not any(records.problems([str], classes))  # none: pretrained weights from elsewhere
    return named and all(isinstance(numbers, list) and len(numbers) == 3 and all(map(_is_number, numbers)) for numbers in statistics)


def _is_progress(value: Any) -> bool:
    if not isinstance(value, dict) or not value.keys() <= {f.name for f in dataclasses.fields(Progress)} | FORMER:
        return False
    progress = Progress.of(value)
    counted = all(isinstance(count, int) and count >= 0 for count in (progress.step, progress.attempt))
    timed = _is_number(progress.time_s) and progress.time_s >= 0 and isinstance(progress.to_evaluate, bool)
    results = _is_result(progress.best_test) and _is_result(progress.best_val)
    return counted and timed and results and isinstance(progress.last, dict) and all(map(_is_result, progress.last.values()))


def _is_result(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(number, float | int) for number in value.values())


def _is_optimizer(value: Any) -> bool:
    """Tensors and numbers of each weight by its number, and plain settings of groups of weights, as torch's optimizers give them."""
    if not isinstance(value, dict) or not isinstance(value.get("state"), dict) or not isinstance(value.get("param_groups"), list):
        return False
    of_weights = all(isinstance(number, int) and isinstance(values, dict) for number, values in value["state"].items())
    return of_weights and all(isinstance(group, dict) and all(map(_is_setting, group.values())) for group in value["param_groups"])


def _is_scaler(value: Any) -> bool:
    """The numbers of torch's GradScaler."""
    return isinstance(value, dict) and value.keys() == SCALER and all(_is_number(number) and number >= 0 for number in value.values())


def _is_setting(value: Any) -> bool:
    parts = value if isinstance(value, list | tuple) else [value]
    return all(part is None or isinstance(part, bool | int | float | str) for part in parts)


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int) and abs(value) < float("inf")


def _or_absent(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


# best.pt has the first two, imported weights "ema" too
WRITTEN: dict[str, Callable[[Any], bool]] = {
    "model": is_state,
    "data": _is_data,
    "ema": _or_absent(is_state),
    "progress": _or_absent(_is_progress),
    "optimizer": _or_absent(_is_optimizer),
    "scaler": _or_absent(_is_scaler),
    "identity": _or_absent(lambda value: isinstance(value, str)),
    "schema": _or_absent(lambda value: isinstance(value, int)),
}
NUMBERS = {"model", "ema", "optimizer"}  # of tensors that are finite
