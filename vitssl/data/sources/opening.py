"""Where images come from: a source string names a data set, `open_source` lists its samples.

    digits                          scikit-learn's 8x8 grey digits
    folder:PATH  or just PATH       PATH/train/<class>/..., PATH/test|val/<class>/... and perhaps PATH/unlabeled/...
    folder:PATH?test=0.2&seed=0     PATH/<class>/..., or PATH/train/<class>/... without a test split: a fifth of each class is held out
                                    for testing, drawn from the seed and the names; val=0.1 likewise for the split "val"
    folder:PATH?classes=FILE        only the classes that FILE lists, one a line (ImageNet-100)
    folder:PATH?unlabeled=FOLDER    images without labels that are elsewhere, too; if FOLDER is ".", no image of PATH has a label
    torchvision:NAME[?root=PATH]    downloaded where the network allows
    list:PATH?train=FILE&test=FILE  lists of images and labels, in one of the layouts of `vitssl.data.sources.lists`; further splits
                                    likewise; images=FOLDER says where the images are, if not in PATH; train=CLASS:FILE adds a
                                    list of the images of one class, in the folder of its name; a split may have several; label=2 takes
                                    the labels from the second column of text, where path is the first; else they are in the last;
                                    a number, such as test=0.2&seed=0, holds out a share, as in a folder
    cub:PATH                        the layout of CUB-200-2011 and NABirds
    npz:FILE                        MedMNIST's arrays: train_images, train_labels, ...
    idx:PATH                        a folder of MNIST-format files (train-images-idx3-ubyte[.gz], ...)
    csv:FILE                        columns path, label and, optionally, split; path=COLUMN and label=COLUMN choose others;
                                    images=FOLDER says where the images are, if not beside FILE; test=0.2&seed=0 holds out a share
                                    where there is no such split, as in a folder, and group=COLUMN keeps all images of a patient
                                    or a scene together
    wds:TARS?test=TARS              a WebDataset, which stays where it is (`vitssl.data.sources.webdatasets`): TARS such as x-{000..146}.tar

What follows a "?" is relative to PATH, unless it is absolute. A sample's image is a path of a file, or its pixels; files are
listed here and read when the shards are written.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from vitssl.config import ConfigError
from vitssl.config.base import closest, did_you_mean
from vitssl.data.index_schema import holds_shards
from vitssl.data.sources import arrays, held_out, listed, torchvision_sets, webdatasets
from vitssl.data.sources.folders import notes, open_folder
from vitssl.data.sources.samples import Options, Source
from vitssl.data.sources.splits import UNLABELED, spelled
from vitssl.records import LINE
from vitssl.words import has_control, one_line


def check_order(source: str, out: Path) -> None:
    """Refuse a source and a folder that were typed the other way round.

    Raises:
        ConfigError: ``out`` names a data set, and ``source`` does not.
    """
    if _is_kind(str(out)) or (Path(out).is_dir() and not holds_shards(out) and not _is_source(source)):
        typed = shlex.join(["vitssl", "shards", "build", str(out), source])
        raise ConfigError(f"the source comes first, then the folder to write: {typed}")


def _is_source(source: str) -> bool:
    """Whether ``source`` names a data set."""
    return source == "digits" or _is_kind(source) or os.path.isdir(source)


def _is_kind(source: str) -> bool:
    """Whether ``source`` starts with a kind of source and a colon."""
    kind, colon, _ = source.partition(":")
    return bool(colon) and kind in _KINDS


def names_a_source(text: str) -> bool:
    """Whether ``text`` names a source, such as wds:in/*.tar, or is meant to, instead of being the path of a folder."""
    kind, colon, _ = text.partition(":")
    return bool(colon) and bool(closest(kind, list(_KINDS)))


def check_kind(source: str) -> None:
    """Raise a ConfigError if ``source`` is of no known kind, whether or not its images are here."""
    kind, colon, _ = source.partition(":")
    if (colon and kind in _KINDS) or source == "digits" or os.path.isdir(source):  # isdir also takes a text that is too long to be a path
        return
    kinds = ", ".join(["digits", *(f"{kind}:..." for kind in _KINDS)])
    similar = closest(kind, list(_KINDS) if colon else ["digits"])
    folder = f"; write folder:{source}" if os.path.isdir(source.partition("?")[0]) else ""
    hint = folder or did_you_mean([f"{name}{colon}" for name in similar])
    raise ConfigError(f"source {source[:200]!r} is neither an existing folder nor one of {kinds}{hint}")


def open_source(source: str) -> Source:
    """Open the data set that a source string names.

    Raises:
        ConfigError: there is no such source, a split is missing, a class has no images, or labels do not fit; the message is one line.
    """
    if has_control(source):
        raise ConfigError(f"source {source[:200]!r} has a line break or another control character")
    check_kind(source)
    kind, colon, rest = source.partition(":")
    if colon and kind in _KINDS:
        opened = _open(kind, rest)
    else:
        opened = arrays.open_digits() if source == "digits" else open_folder(source, {})
    opened.name = one_line(opened.name)
    for name in opened.classes:
        if problem := LINE.problem(name):
            raise ConfigError(f"{source}: {problem}, and is not a name for a class; rename it")
    for split in opened.splits:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", split):
            raise ConfigError(f"{source}: {split!r} is not a name for a split; use letters, digits, _ and -")
    for split in ("train", *opened.splits):
        if not opened.splits.get(split):
            raise ConfigError(f"{source}: no images in split {split!r}; it has {', '.join(opened.splits) or 'no images'}")
    return opened


def folder_notes(source: str) -> Iterator[str]:
    """Yield the notes about a source that is a folder of images (`folders.notes`).

    Raises:
        ConfigError: the source has an option that folders do not have, or one without a value.
    """
    kind, colon, rest = source.partition(":")
    if colon and kind == "folder":
        yield from notes(*_parsed(kind, rest))
    elif not (colon and kind in _KINDS):
        yield from notes(source, {})


def _open(kind: str, rest: str) -> Source:
    """Open the source of a known kind, given what follows the colon."""
    return _KINDS[kind][0](*_parsed(kind, rest))


def _parsed(kind: str, rest: str) -> tuple[str, Options]:
    """Return the path and the options of a source of a known kind, given what follows the colon."""
    known = _KINDS[kind][1]
    path, _, query = rest.partition("?")
    options: Options = {}
    for option in filter(None, query.split("&")):
        key, _, value = option.partition("=")
        key = spelled(key)
        if known is not None and key not in known:
            raise ConfigError(f"{kind}:{rest}: unknown option {key!r}; known: {', '.join(known) or 'none'}")
        if not value:
            raise ConfigError(f"{kind}:{rest}: option {key!r} has no value; write {key}=...")
        options.setdefault(key, []).append(value)
    return path, options


# kind -> (the function that opens it, the options that it takes or None for any)
_KINDS: dict[str, tuple[Callable[[str, Options], Source], tuple[str, ...] | None]] = {
    "folder": (open_folder, ("classes", "test", "val", "seed", UNLABELED)),
    "torchvision": (torchvision_sets.open_torchvision, ("root",)),
    "list": (listed.open_list, None),
    "cub": (listed.open_cub, ()),
    "npz": (arrays.open_npz, ()),
    "idx": (arrays.open_idx, ()),
    "csv": (listed.open_csv, ("path", "label", "images", *held_out.OPTIONS, "group")),
    "wds": (webdatasets.open_tars, webdatasets.OPTIONS),
}
