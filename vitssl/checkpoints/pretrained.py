"""Weights that a run starts from, those of another run or of a foreign file, and weights of its teachers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vitssl import config
from vitssl.backbones.base import Backbone
from vitssl.checkpoints.tensor_files import check_finite, first_of, is_state, mismatches, read
from vitssl.config import ConfigError, Run
from vitssl.config.base import closest, did_you_mean, parts_of
from vitssl.files import read_json
from vitssl.run_folder import JOB, LAST

WEIGHTS = ("model", "ema", "teacher")  # that a checkpoint of a run may hold
EXTRAS = ("backbone.mask_token",)  # of a backbone, only if an objective uses them
CLASSIFIERS = ("backbone.head.", "backbone.fc.", "backbone.head_dist.")  # of a bare network; dropped, as they belong to other classes
TEACHER = re.compile(r"objectives\.\w+\.teacher\.backbone\.")  # path in a Model of a teacher that follows the backbone


def checkpoint_path(source: str) -> Path:
    """Return the file that ``init_from`` means: a run folder's last checkpoint, or the file itself."""
    path = Path(source)
    return path / LAST if path.is_dir() else path


def chosen(content: dict[str, Any], which: str) -> dict[str, Tensor]:
    """Return one of the weights in a checkpoint of this project: the trained ones, their moving average, or a teacher's backbone alone.

    Args:
        content: the checkpoint.
        which: model, ema or teacher.

    Raises:
        ConfigError: the checkpoint holds no such weights.
    """
    if which not in WEIGHTS:
        raise ConfigError(f"{which!r} is none of {', '.join(WEIGHTS)}{did_you_mean(closest(which, WEIGHTS))}", "weights")
    if which == "model":
        return content["model"]
    if which == "ema":
        if content.get("ema") is None:
            raise ConfigError(f"holds no averaged weights; a run with loop.ema_decay has them in {LAST}")
        return content["ema"]
    names = {name: match for name in content["model"] if (match := TEACHER.match(name))}
    if len({match[0] for match in names.values()}) > 1:
        raise ConfigError("holds the teachers of several objectives, and which is meant is not said")
    teacher = {TEACHER.sub("backbone.", name): content["model"][name] for name in names}
    if not teacher:
        kinds = parts_of(config.Objectives).items()
        having = ", ".join(f"objectives.{name}" for name, kind in kinds if issubclass(kind, config.ObjectiveConfig) and kind.has_teacher)
        raise ConfigError(f"holds no teacher that follows the backbone; a run of an objective that averages it has one ({having})")
    return teacher


def weights(source: str, which: str = "model") -> dict[str, Tensor]:
    """Return the tensors of a checkpoint under this project's names, whoever wrote it.

    Args:
        source: a run folder, a checkpoint of this project, or a foreign file: a state dict, bare or under the key that the released
            checkpoints of DeiT, MAE and Swin ("model") or T2T-ViT ("state_dict_ema") use.
        which: as in `chosen`; a foreign file has one network only, the model.

    Raises:
        ConfigError: there is no such file, or it holds no tensors.
    """
    path = checkpoint_path(source)
    content = _read_to_start(path)
    if which != "model":
        if "data" not in content:
            raise ConfigError(f"{path} is not a checkpoint of a run, so it has no {which}; leave it out", "init_weights")
        try:
            return chosen(content, which)
        except ConfigError as error:
            raise ConfigError(f"{path} {error.reason}", "init_weights") from None
    state = next((content[key] for key in ("model", "state_dict_ema", "state_dict") if key in content), content)
    named = state.items() if isinstance(state, dict) else ()
    tensors = {name: value for name, value in named if isinstance(name, str) and isinstance(value, Tensor)}
    if not tensors:
        raise ConfigError(f"{path} holds no weights by name; files of other programs: vitssl import --help")
    if any(name.startswith("backbone.") for name in tensors):
        return tensors
    return {f"backbone.{name.removeprefix('module.')}": value for name, value in tensors.items()}  # a bare network, perhaps wrapped in DDP


def _read_to_start(path: Path) -> dict[str, Any]:
    """Read a file of weights that another run starts from; if it is a damaged one of a run, the error says how to train that run anew."""
    try:
        return read(path)
    except ConfigError as error:
        job = read_json(path.parent / JOB) if path.exists() else {}
        can_retrain = job and "imported" not in job
        raise ConfigError(
            f"{error}; delete {path.parent}, and repeat the command to train that run anew" if can_retrain else str(error)
        ) from None


def init_from(model: nn.Module, backbone: Backbone, run: Run) -> None:
    """Load another run's weights into the backbone and the objectives named in ``run.init_objectives``.

    Raises:
        ConfigError: a tensor is missing, unexpected or of another shape, and no pattern of ``run.init_except`` excuses it; or such a
            pattern matches no name.
    """
    assert run.init_from is not None, "this Run starts from no other's weights"
    path, prefixes = checkpoint_path(run.init_from), ("backbone.", *(f"objectives.{name}." for name in run.init_objectives))
    theirs = {k: v for k, v in weights(run.init_from, run.init_weights).items() if k.startswith(prefixes)}
    check_finite(theirs, "", path)
    converted = backbone.convert_state_dict(theirs, prefix="backbone.")
    theirs = {name: value for name, value in converted.items() if not name.startswith(CLASSIFIERS)}
    ours = {k: v for k, v in model.state_dict().items() if k.startswith(prefixes)}
    problems = mismatches(ours, theirs)
    for pattern in run.init_except:
        if not any(re.search(pattern, name) for name in ours.keys() | theirs.keys()):
            raise ConfigError(f"{pattern!r} is in no name of the weights, such as {next(iter(theirs), 'backbone.')}", "init_except")
    excused = {name for name in problems if name in EXTRAS or any(re.search(pattern, name) for pattern in run.init_except)}
    if unexcused := {name: problem for name, problem in problems.items() if name not in excused}:
        other_network = f"the file is of another network than this {run.backbone.network}; name that network, or another file"
        advice = other_network if 2 * len(unexcused) > len(ours) else "name it in init_except if that is meant"
        raise ConfigError(f"{path}: {first_of(unexcused)}; {advice}", "init_from")
    fitting = {k: v for k, v in theirs.items() if k not in problems}
    model.load_state_dict(fitting, strict=False)
    loaded = {name: value for name, value in model.state_dict().items() if name in fitting}
    check_finite(loaded, "", path)  # a number may overflow the network's type


def load_teachers(model: nn.Module, run: Run, mean: list[float], std: list[float]) -> None:
    """Load trained weights into the networks that objectives use and do not train.

    A field of an objective that names trained weights (``config.checkpoints``), such as objectives.locality.teacher, is also the path of
    the network in the model: a backbone, which ``<field>_backbone`` describes.

    Args:
        model: the Model whose teachers are filled.
        run: its Run.
        mean: channel mean of the Run's images, which teachers see as they are.
        std: their channel standard deviation.

    Raises:
        ConfigError: a teacher's Run or checkpoint is missing, is of another network, or was trained on pixels of another scale.
    """
    for field, source in config.checkpoints(run.objectives, "objectives.").items():
        path = checkpoint_path(source)
        config.check_fits(run, field, config.load(path.parent), where=str(path.parent))
        content = _read_to_start(path)
        if not is_state(content.get("model")) or not isinstance(content.get("data"), dict):
            raise ConfigError(f"{path} is not a checkpoint of a run", field)
        check_finite(content["model"], "model", path)
        if content["data"]["mean"] != list(mean) or content["data"]["std"] != list(std):
            raise ConfigError(f"{path} was trained with other channel statistics; set the same data.normalize for both Runs", field)
        teacher = model.get_submodule(field)
        assert isinstance(teacher, Backbone)
        trained = {name: value for name, value in content["model"].items() if name.startswith("backbone.") and name not in EXTRAS}
        converted = teacher.convert_state_dict(trained, "backbone.")
        teacher.load_state_dict({name.removeprefix("backbone."): value for name, value in converted.items()})
