"""Shards that are already written: a check that reads them in full, and a description for people."""

from __future__ import annotations

from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np

from vitssl import pool
from vitssl.config import ConfigError
from vitssl.config.data import SHUFFLE_WINDOW
from vitssl.data.building import findings
from vitssl.data.building.paper_counts import comparison
from vitssl.data.index import REBUILD, Index, fingerprint, load_index, read_image, read_index, size_problems
from vitssl.data.index_schema import INDEX_FILE
from vitssl.data.loading import order
from vitssl.files import hash_file
from vitssl.words import counted, first_few

UNEQUAL = 3  # times the images of the smallest class, from which on the largest one is remarkable
MOST_NAMED, MOST_LISTED = 5, 12  # classes that a warning names, and that the table lists
NO_CLASSES = "none, since no image has a label: these shards are for pretraining alone"
WITHOUT_TEST = (
    "warning: there is no split called test, which accuracy is measured on: hold out a share in another folder of shards (?test=0.2&seed=0 "
    "behind the source, where it is folder:, csv: or list:), or cross-validate (data.folds=5)"
)


def verify(folder: str | Path, *, workers: int | None = None, progress: bool = True) -> list[str]:
    """Read every shard again, and return a line for each that is missing, truncated or altered and for each image that cannot be decoded.

    Raises:
        ConfigError: there is no index, or it is damaged.
    """
    index = read_index(folder)
    problems = list(size_problems(index))
    if fingerprint(index) != index.sha256:
        problems.append(f"{index.folder / INDEX_FILE}: altered, its content does not have the sha256 that it states; {REBUILD}")
    with pool.progress_bar(f"verifying {index.name}", len(index.shards), progress) as advance:

        def add(shard_problems: list[str]) -> None:
            problems.extend(shard_problems)
            advance(1)

        pool.run(partial(_verify_shard, index), range(len(index.shards)), workers=pool.processes(workers, index.shards), advance=add)
    return sorted(set(problems))


def _verify_shard(index: Index, number: int) -> list[str]:
    """Return a line for each problem of one shard whose size is right; others are reported already."""
    shard = index.shards[number]
    path = index.folder / shard["name"]
    if not path.is_file() or path.stat().st_size != shard["bytes"]:
        return []  # reported by `size_problems`
    problems = []
    if hash_file(path) != shard["sha256"]:
        problems.append(f"{path}: altered, its sha256 is not the index's; {REBUILD}")
    with open(path, "rb") as stream:
        for position in np.flatnonzero(index.shard == number).tolist():
            try:
                read_image(stream.fileno(), index, position)
            except ConfigError as error:
                problems.append(str(error))
    return problems


def info(folder: str | Path) -> str:
    """Return a table of what a folder of shards holds, for people."""
    index = load_index(folder)
    counts = comparison(index)
    totals = [counted(len(index), "image"), counted(len(index.classes), "class", "classes"), counted(len(index.shards), "shard")]
    lines = [
        f"{index.name}: {', '.join(totals)}",
        f"classes  {first_few(index.classes, MOST_LISTED) if index.classes else NO_CLASSES}",
        f"folder   {index.folder}",
        *([f"source   {index.built_from}"] if index.built_from else []),
        f"sha256   {index.sha256}",
        f"mean     {' '.join(f'{m:.4f}' for m in index.mean)}   (train, RGB in [0, 1])",
        f"std      {' '.join(f'{s:.4f}' for s in index.std)}",
        *([f"counts   {counts}"] if counts else []),
        *([] if "test" in index.splits or not index.classes else [WITHOUT_TEST]),
        *_group_lines(index),
        *findings.lines(index),
        *_rare_line(index),
        *_unequal_line(index),
        *_order_line(index),
        "",
        f"{'split':<12}{'images':>10}{'labelled':>10}{'per class':>14}{'pixels (h x w)':>24}{'MB':>10}",
    ]
    return "\n".join(lines + [_info_row(index, split) for split in index.splits])


def _group_lines(index: Index) -> list[str]:
    """Return lines that say how many groups each split has, and which two splits share groups."""
    if index.group is None:
        return []
    groups = {split: set(index.group[index.where(split)].tolist()) for split in index.splits}
    shared = {(one, other): len(groups[one] & groups[other]) for one, other in combinations(groups, 2)}
    warnings = [f"warning: {counted(n, 'group')} of {one} also in {other}" for (one, other), n in shared.items() if n]
    return [f"groups   {', '.join(f'{len(numbers):,} in {split}' for split, numbers in groups.items())}", *warnings]


def _rare_line(index: Index) -> list[str]:
    """Return a warning of classes with hardly any images to learn from, if there are such classes."""
    labels = index.label[index.where("train")]
    counts = np.bincount(labels[labels >= 0], minlength=len(index.classes))
    rare = [f"{name} {count}" for name, count in zip(index.classes, counts, strict=True) if count < 2]
    if not rare or not counts.any():
        return []
    return [f"warning: classes with fewer than two labelled training images: {first_few(rare, MOST_NAMED)}"]


def _unequal_line(index: Index) -> list[str]:
    """Return a note of how many labelled training images the classes have, and of how to count them alike, if they are very unequal."""
    labels = index.label[index.where("train")]
    counts = dict(zip(index.classes, np.bincount(labels[labels >= 0], minlength=len(index.classes)).tolist(), strict=True))
    if max(counts.values(), default=0) < UNEQUAL * max(1, min(counts.values(), default=0)):
        return []
    shown = [f"{name} {counts[name]:,}" for name in sorted(counts, key=lambda name: counts[name])]
    shown = shown if len(shown) <= MOST_LISTED else [*shown[:MOST_NAMED], "...", shown[-1]]
    advice = "metric=balanced_accuracy and objectives.classify.class_weight=balanced count them alike"
    return [f"classes are unequal ({', '.join(shown)} training images): {advice}"]


def _order_line(index: Index) -> list[str]:
    """Return a line if a large training split is sorted by class, so that its images cannot be read in the order of their shards."""
    train = index.where("train")
    if len(train) <= SHUFFLE_WINDOW or order.is_mixed(index, train):
        return []
    return ["order    sorted by class: where they are streamed, each image is read at random; --rebuild mixes shards that are not in place"]


def _info_row(index: Index, split: str) -> str:
    positions = index.where(split)
    labels = index.label[positions]
    counts = np.bincount(labels[labels >= 0], minlength=len(index.classes))
    low, high = index.sizes_N2[positions].min(0), index.sizes_N2[positions].max(0)
    pixels = f"{low[0]} x {low[1]}" if (low == high).all() else f"{low[0]}-{high[0]} x {low[1]}-{high[1]}"
    per_class = "-".join(dict.fromkeys([f"{counts.min()}", f"{counts.max()}"])) if len(counts) else "no classes"
    megabytes = sum(shard["bytes"] for shard in index.shards if shard["split"] == split) / 1e6
    return f"{split:<12}{len(positions):>10,}{(labels >= 0).sum():>10,}{per_class:>14}{pixels:>24}{megabytes:>10.1f}"
