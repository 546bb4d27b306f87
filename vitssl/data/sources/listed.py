"""Data sets given by lists and tables of image files: the rows of `lists` and `tables` become samples."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

from vitssl.config import ConfigError
from vitssl.data import UNLABELLED
from vitssl.data.sources import held_out, lists, tables
from vitssl.data.sources.folders import existing
from vitssl.data.sources.samples import Options, Sample, Source, refuse_repeated_options
from vitssl.words import is_control

MOST_CLASS_NAME_CHARS = 1000  # characters of a class's name
LIST_OPTIONS = ("images", "label")  # all others are splits, except for shares and their seed
NUMBER = re.compile(r"[+-]?[0-9]*[.,]?[0-9]+%?")


def open_list(path: str, options: Options) -> Source:
    root = existing("list", path)
    if "train" not in options:
        raise ConfigError(f"list:{path}: no list for training; expected list:{path}?train=FILE&test=FILE")
    drawn = {key: values for key, values in options.items() if key in held_out.OPTIONS and _is_drawn(key, values)}
    splits = {split: items for split, items in options.items() if split not in {*LIST_OPTIONS, *drawn}}
    refuse_repeated_options(f"list:{path}", options, splits)
    hold_out = held_out.parse_hold_out(f"list:{path}", drawn)
    held_out.refuse_existing_splits(hold_out, drawn, splits)
    label = _label_column(path, options)
    rows = {split: [row for item in items for row in _listed(root, item, label)] for split, items in splits.items()}
    name = f"{root.resolve().name}/{Path(splits['train'][0]).stem}"
    return _from_rows(name, root / options.get("images", ["."])[-1], rows, hold_out)


def _is_drawn(key: str, values: list[str]) -> bool:
    """Whether an option is a seed or a share, that is a number and not the name of a list."""
    return key == "seed" or any(NUMBER.fullmatch(value) for value in values)


def _label_column(path: str, options: Options) -> int | None:
    if "label" not in options:
        return None
    text = options["label"][-1]
    if not re.fullmatch("[0-9]{1,4}", text) or int(text) < 2:
        raise ConfigError(f"list:{path}: label={text[:80]} is not the number of a column from 2 on; the path is column 1")
    return int(text)


def _listed(root: Path, item: str, label: int | None) -> list[lists.Row]:
    name, colon, file = item.partition(":")
    if colon and label:
        raise ConfigError(f"list:{root}: label={label} beside {item}, which lists images of one class and has no labels; leave one out")
    return lists.read_class_list(root / file, name) if colon else lists.read_list(root / item, label)


def open_cub(path: str, options: Options) -> Source:
    root = existing("cub", path)
    return _from_rows(root.resolve().name, root / "images", lists.read_cub(root), held_out.parse_hold_out(f"cub:{path}", {}))


def open_csv(path: str, options: Options) -> Source:
    source, file = f"csv:{path}", Path(path).expanduser()
    refuse_repeated_options(source, options)
    group = options.get("group", [""])[-1]
    hold_out = held_out.parse_hold_out(source, options, unit=f"values of {group}" if group else "images")
    rows = tables.read_csv(file, {what: values[0] for what, values in options.items() if what not in (*held_out.OPTIONS, "images")})
    held_out.refuse_existing_splits(hold_out, options, rows)
    return _from_rows(file.stem, file.parent / options.get("images", ["."])[-1], rows, hold_out)


def _from_rows(name: str, root: Path, rows: dict[str, list[lists.Row]], hold_out: held_out.HoldOut) -> Source:
    """Make a source from rows by split. The classes are those of the train split, in the order of their labels."""
    for row in itertools.chain(*rows.values()):
        _check(row)
    _check_images_exist(root, [row for split_rows in rows.values() for row in split_rows])
    if "train" not in rows:
        raise ConfigError(f"{hold_out.source}: no images in split 'train'; it has {', '.join(rows) or 'no images'}")
    names = _class_names(rows["train"])
    labels = {"": UNLABELLED} | {label: k for k, label in enumerate(names)}
    splits = {split: [_sample(root, row, split, labels) for row in split_rows] for split, split_rows in rows.items()}
    groups = {split: [row.group or row.path for row in split_rows] for split, split_rows in rows.items()}
    elsewhere = set(itertools.chain(*(groups[split] for split in groups if split != "train")))
    classes = list(names.values())
    splits |= held_out.divided(hold_out, classes, splits["train"], groups["train"], elsewhere)
    return Source(name, classes, splits, grouped=any(row.group for row in itertools.chain(*rows.values())))


def _check(row: lists.Row) -> None:
    """Refuse a row with text that cannot be printed, stored as UTF-8, or be the name of a class.

    Raises:
        ConfigError: there is such text; the message names the place in the list.
    """
    for text in (row.path, row.label, row.name):
        if not text.isprintable() and any(map(is_control, text)):
            raise ConfigError(f"{row.where}: {text[:80]!r} has a control character, or is not UTF-8")
    if max(len(row.label), len(row.name)) > MOST_CLASS_NAME_CHARS:
        raise ConfigError(f"{row.where}: {row.label[:80]!r} and so on, {len(row.label):,} characters, is not a class")


def _check_images_exist(root: Path, rows: list[lists.Row]) -> None:
    """Refuse a list if images of it are missing.

    Raises:
        ConfigError: images are missing; the message names the place of the first one and how many there are.
    """
    missing = [row for row in rows if not os.path.isfile(os.path.join(root, row.path))]
    if missing:
        more = f" ({len(missing):,} of {len(rows):,} are missing)" if len(missing) > 1 else ""
        raise ConfigError(f"{missing[0].where}: there is no image {os.path.join(root, missing[0].path)}{more}{_last_word(missing[0])}")


def _sample(root: Path, row: lists.Row, split: str, labels: dict[str, int]) -> Sample:
    path = os.path.join(root, row.path)
    if row.label not in labels:
        raise ConfigError(f"{row.where}: class {row.label!r} of split {split!r} does not occur in the train split")
    return Sample(row.path, labels[row.label], path, row.group)


def _last_word(row: lists.Row) -> str:
    if row.certain:
        return ""
    rule = f"its last word, {row.label[:80]!r}, is taken for the label, and all before it for the path"
    return f"; {rule}; label=2 takes column 2, and column 1 for the path"


def _class_names(rows: list[lists.Row]) -> dict[str, str]:
    """Return the name of each label, in the labels' order (numbers by value): the rows' names if they are one to one, else the label."""
    names: dict[str, set[str]] = {}
    for row in rows:
        if row.label:
            names.setdefault(row.label, set()).add(row.name)
    unique = all(len(candidates) == 1 for candidates in names.values()) and len(set().union(*names.values())) == len(names)
    return {label: min(names[label]) if unique else label for label in sorted(names, key=_natural)}


def _natural(label: str) -> tuple:
    return (0, int(label), label) if label.isdecimal() else (1, 0, label)
