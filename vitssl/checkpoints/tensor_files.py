"""Files of tensors by name: written whole or not at all, and checked when they are read, whoever wrote them."""

from __future__ import annotations

import argparse
import errno
import pickle
import struct
import zipfile
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from vitssl.atomic import replacing
from vitssl.config import ConfigError
from vitssl.paths import check_weights_file

CHUNK_BYTES = 1 << 24
REAL = {
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
}  # fmt: skip
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
    check_weights_file(path)
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


def mismatches(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, str]:
    """{name of a tensor: what is wrong with it} of weights that are to be loaded into a network."""
    problems = {name: "is missing" for name in ours.keys() - theirs.keys()}
    problems |= {name: "is not part of the network" for name in theirs.keys() - ours.keys()}
    for name in ours.keys() & theirs.keys():
        if ours[name].shape != theirs[name].shape:
            problems[name] = f"has shape {tuple(theirs[name].shape)}, and {tuple(ours[name].shape)} is expected"
    return dict(sorted(problems.items()))


def first_of(problems: dict[str, str]) -> str:
    """What is wrong with the first of some tensors, and with how many more something is."""
    name, what = next(iter(problems.items()))
    return f"{name} {what}" + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")
