"""What splits are called: in folders, lists, tables and the options of a source, in whatever case."""

from __future__ import annotations

import os
from pathlib import Path

TRAIN = ("train", "training")
HELD_OUT = ("test", "testing", "val", "valid", "validation")  # the first that exists is the test split, the next one the split "val"
UNLABELED = "unlabeled"
UNLABELED_SPELLINGS = (UNLABELED, "unlabelled")
LEFT_BEHIND = ("__MACOSX", "@eaDir")  # folders that are in archives made on a Mac, and on a Synology


def spelled(name: str) -> str:
    """The name of a split as this project writes it: Train is train, and unlabelled is unlabeled; other names stay as they are."""
    lower = name.lower()
    if lower in UNLABELED_SPELLINGS:
        return UNLABELED
    return lower if lower in TRAIN + HELD_OUT else name


def is_hidden(name: str) -> bool:
    """Is a file or folder of this name nobody's data?"""
    return name.startswith(".") or name in LEFT_BEHIND


def subfolders(path: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and not is_hidden(entry.name))


def split_folders(root: Path, names: tuple[str, ...]) -> list[str]:
    """The folders in ``root`` that are splits of these names, in the order of the names; of two that differ in case alone the lower one.

    One class among others may be called Train, as the vehicle: alone of its kind, and without folders in it, Train is no split.
    """
    there = {name.lower(): name for name in (subfolders(root) if root.is_dir() else ())}  # of Train and train the latter, which comes last
    several = any(name in there for name in TRAIN) and any(name in there for name in HELD_OUT)
    found = [(name, there[name]) for name in names if name in there]
    return [folder for name, folder in found if folder == name or several or subfolders(root / folder)]


def unlabeled_folders(root: Path) -> list[str]:
    """The folders in ``root`` of images without labels."""
    return [name for name in subfolders(root) if spelled(name) == UNLABELED]


def first_named(root: Path, names: tuple[str, ...]) -> Path:
    """The folder of the first of these names that is there, else of the first name."""
    return root / next(iter(split_folders(root, names)), names[0])
