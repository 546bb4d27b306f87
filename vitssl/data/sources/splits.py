"""The names of splits in folders, lists, tables and the options of a source, whatever their case."""

from __future__ import annotations

import os
from pathlib import Path

TRAIN = ("train", "training")
# split: its names in a source, the usual one first
SPELLINGS = {"test": ("test", "testing"), "val": ("val", "valid", "validation")}
HELD_OUT = (*SPELLINGS["test"], *SPELLINGS["val"])  # the first that exists is the test split, the next one the split "val"
UNLABELED = "unlabeled"
UNLABELED_SPELLINGS = (UNLABELED, "unlabelled")
LEFT_BEHIND = ("__MACOSX", "@eaDir")  # folders in archives that were made on a Mac, and on a Synology


def spelled(name: str) -> str:
    """Return the name of a split as this project writes it: Train is train, and unlabelled is unlabeled; other names stay as they are."""
    lower = name.lower()
    if lower in UNLABELED_SPELLINGS:
        return UNLABELED
    return lower if lower in TRAIN + HELD_OUT else name


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name is hidden, or was left behind by another system."""
    return name.startswith(".") or name in LEFT_BEHIND


def subfolders(path: Path) -> list[str]:
    """Return the names of the folders in ``path`` that are not hidden, sorted."""
    return sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and not is_hidden(entry.name))


def split_folders(root: Path, names: tuple[str, ...]) -> list[str]:
    """Return the folders in ``root`` that are splits with these ``names``, in their order; of Train and train, the lower-case one.

    One class among others may be called Train, such as the vehicle. So Train is no split if no test split is beside it and no folder in it.
    """
    actual = {name.lower(): name for name in (subfolders(root) if root.is_dir() else ())}  # of Train and train the latter, which sorts last
    several = any(name in actual for name in TRAIN) and any(name in actual for name in HELD_OUT)
    existing = [(name, actual[name]) for name in names if name in actual]
    return [folder for name, folder in existing if folder == name or several or subfolders(root / folder)]


def unlabeled_folders(root: Path) -> list[str]:
    """Return the folders in ``root`` of images without labels."""
    return [name for name in subfolders(root) if spelled(name) == UNLABELED]


def first_named(root: Path, names: tuple[str, ...]) -> Path:
    """Return the folder of the first of ``names`` that exists, or of the first name if none does."""
    return root / next(iter(split_folders(root, names)), names[0])
