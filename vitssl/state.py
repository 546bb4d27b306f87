"""What a checkpoint holds, how it is written and read, and how a run starts from another run's weights."""

from __future__ import annotations

import argparse
import errno
import pickle
import re
import struct
import zipfile
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from vitssl import config
from vitssl.atomic import replacing
from vitssl.backbones.base import Backbone
from vitssl.config import ConfigError, Run
from vitssl.config.base import closest
from vitssl.files import read_json

LAST, BEST = "last.pt", "best.pt"
CHUNK_BYTES = 1 << 24
WEIGHTS = ("model", "ema", "teacher")  # of a run
REAL = {
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
}  # fmt: skip
EXTRAS = ("backbone.mask_token",)  # of a backbone: there only where an objective uses it
# what files of the papers hold besides tensors: their command line, or their configuration (Swin's code, Drloc's), read as a mapping
ALSO_READ = (argparse.Namespace, (OrderedDict, "yacs.config.CfgNode"))


def save(path: Path, state: dict[str, Any], former: Path | None = None) -> None:
    """Write a state as a file, or nothing (`replacing`)."""
    for stale in path.parent.glob(f".{path.name}.*"):
        stale.unlink()  # of an attempt that was killed while it wrote; there is one writer
    # by its name, torch would not say that a disk is full
    with replacing(path, former) as temporary, temporary.open("wb") as stream:
        torch.save(state, stream)


def read(path: Path, mapped: bool = False) -> dict[str, Any]:
    """A checkpoint, on the CPU; tensors and plain values only, so that a foreign file cannot run code. ``mapped``: its tensors are read
    from disk when they are used, and not compared with its checksums.

    Raises:
        ConfigError: no such file, or one that is damaged, cut short, or holds more than tensors and plain values.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name the file of weights in it")
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; name a file of weights that does")
    try:
        if not mapped:
            _check_intact(path)
        with torch.serialization.safe_globals(list(ALSO_READ)):
            content = load_file(path) if is_safetensors(path) else torch.load(path, "cpu", weights_only=True, mmap=mapped)
    # a text file is a KeyError or an IndexError of pickle's, a file that was cut short an OSError
    except (pickle.UnpicklingError, EOFError, OSError, RuntimeError, KeyError, IndexError, SafetensorError) as error:
        raise ConfigError(f"{path} is not a checkpoint that can be read ({_why(error)})") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds a {type(content).__name__}, not the tensors of a network by name")
    return content


def _why(error: Exception) -> str:
    """What libraries say in their own terms, or with advice on their arguments."""
    if isinstance(error, pickle.UnpicklingError | KeyError | IndexError):
        return (
            "it holds other things than tensors and plain values, such as a whole model (save its state_dict()), or is another kind of file"
        )
    if isinstance(error, EOFError) or "zip archive" in str(error) or getattr(error, "errno", None) == errno.EINVAL:
        return "it is empty, cut short or damaged"
    return (str(error) or type(error).__name__).splitlines()[0]


def _check_intact(path: Path) -> None:
    """Compare each part of a file of torch's with the checksum that was written with it, which torch does not.

    Raises:
        RuntimeError: a part is not what was written, or is compressed.
    """
    try:
        if not zipfile.is_zipfile(path):
            return  # safetensors and torch's former format have none
        with zipfile.ZipFile(path) as archive:
            for part in archive.infolist():
                if part.compress_type != zipfile.ZIP_STORED:  # it may be a thousand times as large as the file
                    raise RuntimeError(f"{part.filename} is compressed, which torch does not write")
                if part.CRC:  # torch can be told to leave it out
                    with archive.open(part) as stream:
                        while stream.read(CHUNK_BYTES):
                            pass
    except (zipfile.BadZipFile, zlib.error, struct.error, ValueError, NotImplementedError) as error:  # of its own records too
        raise RuntimeError(f"damaged: {error}") from None


def is_state(value: Any) -> bool:
    """Is it tensors by name, and at least one?"""
    return isinstance(value, dict) and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in value.items()) and bool(value)


def check_finite(value: Any, name: str, path: Path) -> None:
    """Look at every tensor of nested dictionaries and lists.

    Raises:
        ConfigError: one is not finite: training diverged elsewhere, or the file is damaged; or it is no plain tensor of real numbers, whose
            values a network can take over.
    """
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ():
        check_finite(part, f"{name}.{key}" if name else str(key), path)
    if not isinstance(value, Tensor):
        return
    if not _is_plain(value):
        what = f"{name} is not a plain tensor of real numbers ({value.dtype}, {value.layout})"
        raise ConfigError(f"{what}; take another checkpoint", place=str(path))
    if value.is_floating_point() and not torch.isfinite(value).all():
        raise ConfigError(f"{name} has values that are not finite; take another checkpoint", place=str(path))


def _is_plain(value: Tensor) -> bool:
    """Does it hold all its values, as real numbers? One that was expanded asks for more memory than the file has bytes."""
    if value.layout != torch.strided or value.is_meta or value.dtype not in REAL:
        return False
    return value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def is_safetensors(path: Path) -> bool:
    """By content, as a fetched file may have any name: eight bytes of a length, then JSON."""
    with path.open("rb") as file:
        return file.read(9)[8:] == b"{"


def checkpoint_path(source: str) -> Path:
    """``init_from``: a run folder's last checkpoint, or the file itself."""
    path = Path(source)
    return path / LAST if path.is_dir() else path


CLASSIFIERS = ("backbone.head.", "backbone.fc.", "backbone.head_dist.")  # of a bare network; they belong to other classes
TEACHER = re.compile(r"objectives\.\w+\.teacher\.backbone\.")  # where a teacher that follows the backbone is in a Model


def chosen(content: dict[str, Any], which: str) -> dict[str, Tensor]:
    """Of what a checkpoint of this project holds: the trained weights, their moving average, or a teacher's backbone alone.

    Args:
        content: the checkpoint.
        which: model, ema or teacher.

    Raises:
        ConfigError: it holds no such weights.
    """
    if which not in WEIGHTS:
        near = closest(which, WEIGHTS)
        raise ConfigError(f"{which!r} is none of {', '.join(WEIGHTS)}{f' (did you mean {near[0]}?)' if near else ''}", "weights")
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
        raise ConfigError(
            "holds no teacher that follows the backbone; a run of an objective that averages it has one (objectives.dino, objectives.lut)"
        )
    return teacher


def weights(source: str, which: str = "model") -> dict[str, Tensor]:
    """The tensors of a checkpoint under this project's names, whoever wrote it.

    Args:
        which: as in `chosen`; a foreign file has one network only, the model.
        source: a run folder, a checkpoint of this project, or a foreign file: a state dict, bare or under the key that the
            released checkpoints of DeiT, MAE and Swin ("model") or T2T-ViT ("state_dict_ema") use.

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
    return {f"backbone.{name.removeprefix('module.')}": value for name, value in tensors.items()}  # a bare network, perhaps DDP's


def _read_to_start(path: Path) -> dict[str, Any]:
    """A file of weights that another run starts from; of a run that trains anew where it is damaged, that is said."""
    try:
        return read(path)
    except ConfigError as error:
        job = read_json(path.parent / "job.json") if path.exists() else {}
        anew = job and "imported" not in job
        raise ConfigError(f"{error}; delete {path.parent}, and repeat the command to train that run anew" if anew else str(error)) from None


def init_from(model: nn.Module, backbone: Backbone, run: Run) -> None:
    """Start the backbone, and the objectives named in ``run.init_objectives``, from another run's weights.

    Raises:
        ConfigError: a tensor is missing, unexpected or of another shape, and no pattern of ``run.init_except`` excuses it; or such a
            pattern is in no name.
    """
    wanted = ("backbone.", *(f"objectives.{name}." for name in run.init_objectives))
    theirs = {k: v for k, v in weights(run.init_from, run.init_weights).items() if k.startswith(wanted)}
    check_finite(theirs, "", checkpoint_path(run.init_from))
    converted = backbone.convert_state_dict(theirs, prefix="backbone.")
    theirs = {name: value for name, value in converted.items() if not name.startswith(CLASSIFIERS)}
    ours = {k: v for k, v in model.state_dict().items() if k.startswith(wanted)}
    problems = mismatches(ours, theirs)
    for pattern in run.init_except:
        if not any(re.search(pattern, name) for name in ours.keys() | theirs.keys()):
            raise ConfigError(f"{pattern!r} is in no name of the weights, such as {next(iter(theirs), 'backbone.')}", "init_except")
    excused = {name for name in problems if name in EXTRAS or any(re.search(pattern, name) for pattern in run.init_except)}
    if left := [f"{name} {what}" for name, what in problems.items() if name not in excused]:
        more = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
        other = f"the file is of another network than this {run.backbone.network}; name that network, or another file"
        advice = other if 2 * len(left) > len(ours) else "name it in init_except if that is meant"
        raise ConfigError(f"{checkpoint_path(run.init_from)}: {left[0]}{more}; {advice}", "init_from")
    taken = {k: v for k, v in theirs.items() if k not in problems}
    model.load_state_dict(taken, strict=False)
    loaded = {name: value for name, value in model.state_dict().items() if name in taken}
    check_finite(loaded, "", checkpoint_path(run.init_from))  # a number may be beyond the network's type


def load_teachers(model: nn.Module, run: Run, mean: list[float], std: list[float]) -> None:
    """Put trained weights into the networks that objectives use and do not train.

    A field of an objective that names trained weights (``config.checkpoints``), such as objectives.locality.teacher, is the path
    of such a network in the model too: a backbone, as ``<field>_backbone`` describes it.

    Args:
        model: whose teachers are filled.
        run: its Run.
        mean: channel mean of its images, which its teachers see as they are.
        std: their channel standard deviation.

    Raises:
        ConfigError: a teacher's Run or checkpoint is not there, or it is another network, or trained on pixels of another scale.
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
        teacher: Backbone = model.get_submodule(field)
        trained = {name: value for name, value in content["model"].items() if name.startswith("backbone.") and name not in EXTRAS}
        converted = teacher.convert_state_dict(trained, "backbone.")
        teacher.load_state_dict({name.removeprefix("backbone."): value for name, value in converted.items()})


def mismatches(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, str]:
    """{name of a tensor: what is wrong with it} of weights that are to be loaded into a network."""
    problems = {name: "is missing" for name in ours.keys() - theirs.keys()}
    problems |= {name: "is not part of the network" for name in theirs.keys() - ours.keys()}
    for name in ours.keys() & theirs.keys():
        if ours[name].shape != theirs[name].shape:
            problems[name] = f"has shape {tuple(theirs[name].shape)}, and {tuple(ours[name].shape)} is expected"
    return dict(sorted(problems.items()))
