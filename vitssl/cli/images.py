"""The images of a run: what it used each of them for, and which labels it saw."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TextIO

from vitssl import config
from vitssl.config import ConfigError
from vitssl.data import UNLABELLED
from vitssl.data.building.names import of_images
from vitssl.data.index import Index, load_index
from vitssl.data.loading.subset import split_of

COLUMNS = ("index", "name", "split", "class", "use", "label")


def write(folder: Path, stream: TextIO) -> None:
    """Write a row of `COLUMNS`, as CSV, for every image that a run, trained or not, uses.

    - ``index``: the image's position in the shards' index.
    - ``name``: what the shards' source calls it; empty if that is not known (`vitssl.data.building.names`).
    - ``split``, ``class``: where it is in the shards, and its class there; empty without one.
    - ``use``: train, val (held out) or test.
    - ``label``: of a training image, whether the weights are trained with its class: seen, hidden or none; empty of others. A
      pretraining sees no class, though an evaluator of its features may learn from those that ``data.labels`` does not hide.

    Raises:
        ConfigError: the shards do not exist, or are not those that the run was made for.
    """
    run = config.load(folder)
    index, table = _index(run.data, folder), csv.writer(stream, lineterminator="\n")
    parts, names, reads = split_of(index, run), of_images(index), config.reads_labels(run)
    uses, classes = parts.uses(), [*index.classes, ""]  # label -1 takes the last one
    table.writerow(COLUMNS)
    for position in (uses != "").nonzero()[0].tolist():
        label, use = index.label[position], uses[position]
        seen = "none" if label == UNLABELLED else "seen" if reads and parts.labels[position] != UNLABELLED else "hidden"
        name = "" if names is None else str(names[position])
        table.writerow((position, name, index.splits[index.split[position]], classes[label], use, seen if use == "train" else ""))


def _index(data: config.Data, folder: Path) -> Index:
    """Return the index of a run's shards."""
    if data.shards == config.NO_SHARDS:
        raise ConfigError(f"{folder} was imported without images")
    index = load_index(data.shards)
    if data.sha256 not in (None, index.sha256):
        raise ConfigError(f"{index.folder} is not what {folder} was trained on (data.sha256); build that again")
    return index
