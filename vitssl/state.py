"""What a checkpoint holds, how it is written and found again, and how a run starts from another run's weights."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitssl.backbones.base import Backbone
from vitssl.config import ConfigError, Run

LAST, BEST = "last.pt", "best.pt"


def save(path: Path, state: dict[str, Any]) -> None:
    """Write atomically and durably: after a crash or a full disk ``path`` holds the old state or the new one."""
    for stale in path.parent.glob(f".{path.name}.*"):
        stale.unlink()  # of an attempt that was killed while it wrote; there is one writer
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read(path: Path) -> dict[str, Any]:
    """A checkpoint, on the CPU; tensors and plain values only, so that a foreign file cannot run code.

    Raises:
        ConfigError: no such file, or one that is cut short or holds more than tensors and plain values.
    """
    if not path.is_file():
        raise ConfigError(f"{path} does not exist: there is no checkpoint to start from")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, EOFError, RuntimeError) as error:
        raise ConfigError(f"{path} is not a checkpoint that can be read ({str(error).splitlines()[0]})") from None


def checkpoint_path(source: str) -> Path:
    """``init_from``: a run folder's last checkpoint, or the file itself."""
    path = Path(source)
    return path / LAST if path.is_dir() else path


def init_from(model: nn.Module, backbone: Backbone, run: Run) -> None:
    """Start the backbone, and the objectives named in ``run.init_objectives``, from another run's weights.

    Raises:
        ConfigError: a tensor is missing, unexpected or of another shape, and no pattern of ``run.init_except`` excuses it.
    """
    path = checkpoint_path(run.init_from)
    wanted = ("backbone.", *(f"objectives.{name}." for name in run.init_objectives))
    theirs = {k: v for k, v in read(path)["model"].items() if k.startswith(wanted)}
    theirs = backbone.adapt(theirs, prefix="backbone.")
    ours = {k: v for k, v in model.state_dict().items() if k.startswith(wanted)}
    problems = _mismatches(ours, theirs)
    excused = {name for name in problems if any(re.search(pattern, name) for pattern in run.init_except)}
    if left := [f"{name} {what}" for name, what in problems.items() if name not in excused]:
        more = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
        raise ConfigError(f"init_from: {path}: {left[0]}{more}; name it in init_except if that is meant")
    model.load_state_dict({k: v for k, v in theirs.items() if k not in problems}, strict=False)


def _mismatches(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, str]:
    problems = {name: "is missing there" for name in ours.keys() - theirs.keys()}
    problems |= {name: "is not part of this model" for name in theirs.keys() - ours.keys()}
    for name in ours.keys() & theirs.keys():
        if ours[name].shape != theirs[name].shape:
            problems[name] = f"has shape {tuple(theirs[name].shape)} there and {tuple(ours[name].shape)} here"
    return dict(sorted(problems.items()))
