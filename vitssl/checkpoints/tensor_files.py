"""Files of tensors by name: written completely or not at all, and checked when they are read, whoever wrote them."""

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
# what the papers' files hold besides tensors: a command line, or a configuration (Swin's and Drloc's code), read as a mapping
ALSO_READ = (argparse.Namespace, (OrderedDict, "yacs.config.CfgNode"))


def save(path: Path, state: dict[str, Any], former: Path | None = None) -> None:
    """Write a state to a file, completely or not at all (`replacing`)."""
    for stale in path.parent.glob(f".{path.name}.*"):
        stale.unlink()  # left by an attempt that was killed while it wrote: there is only one writer
    # a stream, since torch does not report a full disk for a file that it opens by name
    with replacing(path, former) as temporary, temporary.open("wb") as stream:
        torch.save(state, stream)


def read(path: Path) -> dict[str, Any]:
    """Read a checkpoint to the CPU: tensors and plain values only, so that a foreign file cannot run code.

    Raises:
        ConfigError: there is no such file, or it is damaged, cut short, or holds more than tensors and plain values.
    """
    check_weights_file(path)
    try:
        _check_intact(path)
        with torch.serialization.safe_globals(list(ALSO_READ)):
            content = load_file(path) if is_safetensors(path) else torch.load(path, "cpu", weights_only=True)
    # pickle raises a KeyError or an IndexError for a text file; a file that was cut short raises an OSError
    except (pickle.UnpicklingError, EOFError, OSError, RuntimeError, KeyError, IndexError, SafetensorError) as error:
        raise ConfigError(f"{path} is not a checkpoint that can be read ({_reason_text(error)})") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds a {type(content).__name__}, not the tensors of a network by name")
    return content


def _reason_text(error: Exception) -> str:
    """Return the reason of an error in plain words if libraries word it in their own terms, or with advice on their arguments."""
    if isinstance(error, pickle.UnpicklingError | KeyError | IndexError):
        return (
            "it holds other things than tensors and plain values, such as a whole model (save its state_dict()), or is another kind of file"
        )
    if isinstance(error, EOFError) or "zip archive" in str(error) or getattr(error, "errno", None) == errno.EINVAL:
        return "it is empty, cut short or damaged"
    return (str(error) or type(error).__name__).splitlines()[0]


def _check_intact(path: Path) -> None:
    """Compare each part of a torch file with the checksum that was written with it, which torch does not do.

    Raises:
        RuntimeError: a part is not what was written, or is compressed.
    """
    try:
        if not zipfile.is_zipfile(path):
            return  # safetensors and torch's former format have no checksums
        with zipfile.ZipFile(path) as archive:
            for part in archive.infolist():
                if part.compress_type != zipfile.ZIP_STORED:  # unpacked, it might be a thousand times as large as the file
                    raise RuntimeError(f"{part.filename} is compressed, which torch does not write")
                if part.CRC:  # torch can be told to leave checksums out
                    with archive.open(part) as stream:
                        while stream.read(CHUNK_BYTES):
                            pass
    # also raised if the archive's own records are damaged
    except (zipfile.BadZipFile, zlib.error, struct.error, ValueError, NotImplementedError) as error:
        raise RuntimeError(f"damaged: {error}") from None


def is_state(value: Any) -> bool:
    """Whether ``value`` is a dictionary of tensors by name, with at least one tensor."""
    return isinstance(value, dict) and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in value.items()) and bool(value)


def check_finite(value: Any, name: str, path: Path) -> None:
    """Check every tensor of nested dictionaries and lists.

    Raises:
        ConfigError: a tensor is not finite, as training diverged elsewhere or the file is damaged; or it is not a plain tensor of real
            numbers, whose values a network can take over.
    """
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ():
        check_finite(part, f"{name}.{key}" if name else str(key), path)
    if not isinstance(value, Tensor):
        return
    if not _is_plain(value):
        reason = f"{name} is not a plain tensor of real numbers ({value.dtype}, {value.layout})"
        raise ConfigError(f"{reason}; take another checkpoint", place=str(path))
    if value.is_floating_point() and not torch.isfinite(value).all():
        raise ConfigError(f"{name} has values that are not finite; take another checkpoint", place=str(path))


def _is_plain(value: Tensor) -> bool:
    """Whether a tensor holds all its values, as real numbers. An expanded one would need more memory than the file has bytes."""
    if value.layout != torch.strided or value.is_meta or value.dtype not in REAL:
        return False
    return value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def is_safetensors(path: Path) -> bool:
    """Whether a file is in safetensors' format, by its content (8 bytes of a length, then JSON), as a fetched file may have any name."""
    with path.open("rb") as file:
        return file.read(9)[8:] == b"{"


def mismatches(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, str]:
    """Return {name of a tensor: what is wrong with it} for weights ``theirs`` to be loaded into a network with the weights ``ours``."""
    problems = {name: "is missing" for name in ours.keys() - theirs.keys()}
    problems |= {name: "is not part of the network" for name in theirs.keys() - ours.keys()}
    for name in ours.keys() & theirs.keys():
        if ours[name].shape != theirs[name].shape:
            problems[name] = f"has shape {tuple(theirs[name].shape)}, and {tuple(ours[name].shape)} is expected"
    return dict(sorted(problems.items()))


def first_of(problems: dict[str, str]) -> str:
    """Return what is wrong with the first of some tensors, and the number of further tensors with problems."""
    name, problem = next(iter(problems.items()))
    return f"{name} {problem}" + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")
