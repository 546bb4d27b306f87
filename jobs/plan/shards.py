"""The shards of a data set, as the launcher needs them: what a folder holds, and which of its images a Run uses.

- What is on disk: `index_of` loads the index of shards that are built, and fails without them.
- What is expected: `expected_index` is that index, or before the shards are built a `planned_index` (`vitssl.data.index`). It has
  splits and labels, but no images and no content hash, and is made from the source's files (`_listed`) or from published counts.
- What is read: `image_counts` and the functions that use it say how many of these images a Run trains on, holds out and tests on.

What was computed is kept for the rest of the process: indexes by `functools.cache`, image counts in `_COUNTED`, and in `_CHECKED` which
evaluators were found to have images.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from vitssl.config import ConfigError, Data, Run, classifies, needs_labels, total_steps, unknown_error
from vitssl.config.evals import evals_of
from vitssl.data import UNLABELLED
from vitssl.data.building import findings, paper_counts
from vitssl.data.index import Index, load_index, parse_splits, planned_index
from vitssl.data.loading.subset import check_evaluator, split_of
from vitssl.data.sources import webdatasets
from vitssl.data.sources.opening import open_source
from vitssl.data.sources.samples import group_numbers
from vitssl.words import counted, listed

EVALUATED = 1 / 3  # the cost of evaluating an image, relative to training on it: a forward pass without a backward pass


@functools.cache
def index_of(folder: Path) -> Index:
    """Return the index on disk of a folder of shards, after checking that every shard is there in its full length."""
    try:
        return load_index(folder)
    except ConfigError as error:
        raise ConfigError(str(error), "data.shards") from None


def expected_index(data: Data) -> Index | None:
    """Return the index of the shards that a Run has or will have, or None if it is not known.

    If the shards are built, it is the index on disk. Otherwise it is made from the files of the source. If these are not here, or are tars,
    it is made from the published counts of the data set that the folder is named after, if they have all splits that the Run names.
    """
    folder, source = Path(data.shards), data.source
    if (folder / "index.json").exists():
        return index_of(folder)
    # how many images a user's tars hold is only known once they are read
    if source == "digits" or (source and not source.startswith("wds:") and is_here(source)):
        return _listed(folder, source)
    printed = paper_counts.expected(folder)
    splits = data.train_split if data.folds else f"{data.train_split}+{data.test_split}"
    known = printed is not None and set(parse_splits(splits, printed.splits)) <= set(printed.splits)
    return printed if known else None


@functools.cache
def _listed(folder: Path, source: str) -> Index:
    """Return the expected index of shards that are not built yet, from the files of their ``source``."""
    try:
        opened = open_source(source)
    except ConfigError as error:
        raise ConfigError(str(error), "data.source") from None
    labels = {split: np.array([sample.label for sample in samples]) for split, samples in opened.splits.items()}
    group = group_numbers(sample for _, sample in opened.samples()) if opened.grouped else None
    return planned_index(folder, f"{opened.name} (as listed)", opened.classes, labels, group)


@functools.cache
def folders_of(folder: str) -> list[str]:
    """Return the folders that a container must see to read shards: their own, and those of the tars that they link to."""
    links = [path for path in Path(folder).glob("*.tar") if path.is_symlink()]
    return [folder, *sorted({str(place.parent) for link in links for place in (link.readlink(), link.resolve())})]


def fingerprint(run: Run) -> str | None:
    """Return the content hash of a Run's shards, or None if they are not built yet.

    Raises:
        ConfigError: the Run asks for other content, for a split or more images than there are, or to classify a single class; its batch is
            larger than all images; or an evaluator has no images.
    """
    folder = run.data.shards
    index = expected_index(run.data)
    if index is None:
        return None
    if index.sha256 and run.data.sha256 not in (None, index.sha256):
        raise ConfigError(f"the Run asks for {run.data.sha256} but {folder} holds {index.sha256}", "data.sha256")
    if classifies(run) and not index.classes:
        raise ConfigError(f"{folder}: no image has a label; these shards are for stages that do not classify", "data.shards")
    for field in ("train_split", "test_split") if classifies(run) and run.data.folds is None else ("train_split",):
        for split in parse_splits(getattr(run.data, field), index.splits):
            if split not in index.splits:
                no_test_split = field == "test_split" and "test" not in index.splits
                advice = "; build with ?test=0.2&seed=0, or cross-validate: data.folds=5" if no_test_split else ""
                raise ConfigError(f"{folder}: {unknown_error(split, index.splits)}{advice}", f"data.{field}")
    if classifies(run) and len(index.classes) == 1:
        reason = f"{folder} has one class, {index.classes[0]!r}: there is nothing to classify; each class needs its own folder"
        raise ConfigError(reason, "data.shards")
    images = num_images(run)
    if run.optim.batch_size > images * run.data.repeats:
        half = 1 << max(0, (images // 2).bit_length() - 1)  # rounded down to a power of two
        candidates = ["images", *(["labels"] if needs_labels(run) else [])]
        subsets = [f"data.{name}" for name in candidates if getattr(run.data, name) is not None]
        which_images = f"that {' and '.join(subsets)} {'leave' if subsets[1:] else 'leaves'} to train on" if subsets else "to train on"
        reason = f"{run.optim.batch_size} is more than the {counted(images, 'image')} {which_images}; set it lower, such as {half}"
        raise ConfigError(reason, "optim.batch_size")
    _check_evals(run, index)
    return index.sha256 or None


def _check_evals(run: Run, index: Index) -> None:
    """Check that the evaluators of a Run have images to look at and, if they learn, images to learn from."""
    evals, key = evals_of(run), f"{images_key(run)}{run.evals}"
    if not evals or key in _CHECKED:
        return
    parts = split_of(index, run)
    for name, cfg in evals.items():
        try:
            check_evaluator(cfg, index, parts, index_of(Path(cfg.shards)) if cfg.shards else None)
        except ConfigError as error:
            raise ConfigError(error.reason, f"evals.{name}.{error.field or ('shards' if cfg.shards else 'split')}") from None
    _CHECKED.add(key)


def describe(run: Run) -> str:
    """Describe in words what a Run's shards hold, as the name of a folder may differ from its content."""
    folder, index = run.data.shards, expected_index(run.data)
    origin = f"to be made from {run.data.source}" if run.data.source else f"not there yet (`vitssl shards build SOURCE {folder}`)"
    if index is None:
        return f"{folder}: {origin}; its contents, and so the cost, are known only then"
    images = {split: sum(shard["images"] for shard in index.shards if shard["split"] == split) for split in index.splits}
    split_counts = ", ".join(f"{count:,} {split}" for split, count in images.items())
    prefix = "" if index.sha256 else f"{origin}, which also gives the runs their final names; expected: "
    groups = "" if index.group is None else f" in {counted(len(np.unique(index.group)), 'group')}"
    return f"{folder}: {prefix}{index.name}, {counted(len(index.classes), 'class', 'classes')}, {split_counts} images{groups}"


def held_out(runs: Iterable[Run]) -> list[str]:
    """Return a line for each folder of shards, saying how many images ``data.val_fraction`` holds out.

    The line gives the fewest and the most images that any Run holds out.
    """
    by_folder: dict[str, set[int]] = {}
    for run in runs:
        if run.data.val_fraction and expected_index(run.data):
            by_folder.setdefault(run.data.shards, set()).add(image_counts(run)["val_images"])
    counts = {folder: (f"{min(numbers):,} to " if len(numbers) > 1 else "", max(numbers)) for folder, numbers in by_folder.items()}
    return [
        f"{folder}: {from_fewest}{counted(most, 'image')} held out of training (data.val_fraction)"
        for folder, (from_fewest, most) in counts.items()
    ]


def unread(runs: Iterable[Run]) -> list[str]:
    """Return a line for each folder of shards with splits that no Run reads."""
    by_folder: dict[str, list[Data]] = {}
    for run in runs:
        by_folder.setdefault(run.data.shards, []).append(run.data)
    lines = []
    for folder, folder_data in by_folder.items():
        index = expected_index(folder_data[0])
        splits = index.splits if index else []
        named_splits = [
            split for data in folder_data for split in (data.train_split, None if data.folds else data.test_split, data.val_split)
        ]
        read = set(parse_splits("+".join(filter(None, named_splits)), splits))
        if unread_splits := [split for split in splits if split not in read]:
            all_splits = "+".join(dict.fromkeys([*folder_data[0].train_split.split("+"), *unread_splits]))
            folds = f"; folds of all images are 'data.train_split={all_splits}'" if folder_data[0].folds else ""
            lines.append(f"note: no run reads the images of {listed(unread_splits)} in {folder} (data.train_split, data.val_split){folds}")
    return lines


def facts(run: Run) -> dict[str, Any]:
    """Return the facts about a Run's data for its job.json, so that a report reads no shards."""
    index = index_of(Path(run.data.shards))
    sizes = index.sizes_N2
    return {
        "name": index.name, "built_from": index.built_from, "classes": len(index.classes), "sha256": index.sha256, **image_counts(run),
        "smallest_px": sizes.min(0).tolist(), "largest_px": sizes.max(0).tolist(),
        **({} if index.group is None else {"groups": len(np.unique(index.group))}),
        **_near_duplicates(run, index),
    }  # fmt: skip


def _near_duplicates(run: Run, index: Index) -> dict[str, int]:
    """Count the test images that have a near-duplicate in a split to train on.

    ``near_duplicates`` counts those with one in a split that has labels, and ``near_duplicates_unlabelled`` all others. The result is empty
    if near-duplicates were not looked for, as between folds.
    """
    found = findings.read(index.folder)
    if found is None or run.data.folds:
        return {}
    test, train = (parse_splits(splits, index.splits) for splits in (run.data.test_split, run.data.train_split))
    labelled = {split for split in train if split in index.splits and (index.label[index.where(split)] != UNLABELLED).any()}
    pairs = [(split, name, other) for split, name, other, *_ in found.near_duplicates if split in test and other in train]
    with_label = {(split, name) for split, name, other in pairs if other in labelled}
    without_label = {(split, name) for split, name, _ in pairs} - with_label
    return {"near_duplicates": len(with_label), "near_duplicates_unlabelled": len(without_label)}


_COUNTED: dict[str, dict[str, int]] = {}  # {`images_key`: `image_counts`} of the Runs that were counted
_CHECKED: set[str] = set()  # `images_key` and evaluators of the Runs whose evaluators have images


def num_images(run: Run) -> int:
    """Return how many images a Run trains on, after `data.images`, the held-out split, and the labels that it needs."""
    return image_counts(run)["train_images"]


def images_trained(run: Run) -> int:
    """Return how many images a Run trains on over all epochs; its last batch is a whole one."""
    return total_steps(run, num_images(run)) * run.optim.batch_size


def images_evaluated(run: Run) -> float:
    """Return how many images a classifying Run evaluates over all evaluations; 0 for others."""
    if not classifies(run):
        return 0.0
    counts = image_counts(run)
    steps = total_steps(run, counts["train_images"])
    epochs = min(run.loop.epochs, steps * run.optim.batch_size / counts["train_images"])  # the last batch may begin another epoch
    times = min(steps, math.ceil(epochs / run.loop.eval_every)) if run.loop.eval_every else 1  # one step may end several epochs
    regular = times * (counts["val_images"] + counts["test_images"] * (1 if run.loop.ema_decay is None else 2))
    return regular + (counts["val_images"] + counts["test_images"] if counts["val_images"] and times > 1 else 0)  # at the end, with best.pt


def equivalent_images(run: Run) -> float:
    """Return the work of a Run, in images trained on: an evaluated image counts as the part of one that it costs."""
    return images_trained(run) + EVALUATED * images_evaluated(run)


def images_key(run: Run) -> str:
    """Return a key of everything that decides which images a Run uses; its seed counts only if images are drawn or folded by it."""
    by_seed = run.data.folds is not None or any(subset is not None and subset.redraw for subset in (run.data.images, run.data.labels))
    return f"{run.data}{needs_labels(run)}{classifies(run)}{run.seed if by_seed else None}"


def image_counts(run: Run) -> dict[str, int]:
    """Return how many images a Run trains on, how many of them have a label, how many it holds out, and how many it tests on.

    Raises:
        ConfigError: as `vitssl.data.loading.subset.train_and_heldout`.
    """
    key = images_key(run)
    if key not in _COUNTED:
        index = expected_index(run.data)
        assert index is not None
        split = split_of(index, run)
        labelled = int((split.labels[split.train] >= 0).sum())
        _COUNTED[key] = {
            "train_images": len(split.train), "labelled_images": labelled, "val_images": len(split.val), "test_images": len(split.test)
        }  # fmt: skip
    return _COUNTED[key]


# ------------------------------------------------------------------------------------------------------------- sources


def split_source(source: str) -> tuple[str, str, str]:
    """Split a source into what comes before its path, the path, and what comes behind it; each may be empty.

    A source is KIND:PATH?OPTIONS, PATH, or torchvision:NAME?root=PATH.
    """
    kind, colon, rest = source.partition(":")
    if kind == "torchvision":
        before, option, path = source.partition("?root=")
        return before + option, path, ""
    if not colon:
        return ("", "", source) if source == "digits" else ("", source, "")
    path, option, after = rest.partition("?")
    return kind + colon, path, option + after


def absolute_source(source: str) -> str:
    """Return ``source`` with an absolute path: it is relative to the user's folder, while shards are built in the project's."""
    before, path, after = split_source(source)
    return f"{before}{Path(path).expanduser().resolve()}{after}" if path else source


def is_here(source: str) -> bool:
    """Whether the files of ``source`` are on this machine; False for a download."""
    path = split_source(source)[1]
    if source.startswith("wds:"):
        return webdatasets.has_tars(path)
    return bool(path) and not source.startswith("torchvision:") and Path(path).exists()
