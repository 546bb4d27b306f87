"""What the launcher needs of a data set's shards: that they exist, which content they hold, how many images."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from vitssl.config import ConfigError, Data, Run, classifies, needs_labels, total_steps, unknown
from vitssl.config.evals import evals_of
from vitssl.data import UNLABELLED
from vitssl.data.building import findings, paper_counts
from vitssl.data.index import Index, load_index, named, unwritten
from vitssl.data.loading.subset import check_evaluator, split_of
from vitssl.data.sources import webdatasets
from vitssl.data.sources.opening import open_source
from vitssl.data.sources.samples import group_numbers
from vitssl.words import counted, listed

EVALUATED = 1 / 3  # of what it costs to train on an image: a forward pass, and none backward


@functools.cache
def index_of(folder: Path) -> Index:
    """The index of a folder of shards, with every shard present in full length."""
    try:
        return load_index(folder)
    except ConfigError as error:
        raise ConfigError(str(error), "data.shards") from None


def expected_index(data: Data) -> Index | None:
    """What a Run's shards hold. Where they are not built yet, what they will hold: by the files that they are built from or, if those
    are not here or are tars, by the published counts of the data set that the folder is named after. None where neither is known."""
    folder, source = Path(data.shards), data.source
    if (folder / "index.json").exists():
        return index_of(folder)
    # how many images are in somebody's tars is known when they are read
    if source == "digits" or (source and not source.startswith("wds:") and is_here(source)):
        return _listed(folder, source)
    printed = paper_counts.expected(folder)
    read = data.train_split if data.folds else f"{data.train_split}+{data.test_split}"
    known = printed is not None and set(named(read, printed.splits)) <= set(printed.splits)
    return printed if known else None


@functools.cache
def _listed(folder: Path, source: str) -> Index:
    try:
        opened = open_source(source)
    except ConfigError as error:
        raise ConfigError(str(error), "data.source") from None
    labels = {split: np.array([sample.label for sample in samples]) for split, samples in opened.splits.items()}
    group = group_numbers(sample for _, sample in opened.samples()) if opened.grouped else None
    return unwritten(folder, f"{opened.name} (as listed)", opened.classes, labels, group)


@functools.cache
def folders_of(folder: str) -> list[str]:
    """A folder of shards, and those of the tars that it links to: what a container must see."""
    links = [path for path in Path(folder).glob("*.tar") if path.is_symlink()]
    return [folder, *sorted({str(place.parent) for link in links for place in (link.readlink(), link.resolve())})]


def fingerprint(run: Run) -> str | None:
    """The content hash of a Run's shards; None where they are still to be built.

    Raises:
        ConfigError: the Run asks for other content, for a split that is not there, or for more images than there are;
            or its batch is larger than all of them.
    """
    folder = run.data.shards
    index = expected_index(run.data)
    if index is None:
        return None
    if index.sha256 and run.data.sha256 not in (None, index.sha256):
        raise ConfigError(f"the Run asks for {run.data.sha256} but {folder} holds {index.sha256}", "data.sha256")
    for field in ("train_split", "test_split") if classifies(run) and run.data.folds is None else ("train_split",):
        for split in named(getattr(run.data, field), index.splits):
            if split not in index.splits:
                untested = field == "test_split" and "test" not in index.splits
                advice = "; build with ?test=0.2&seed=0, or cross-validate: data.folds=5" if untested else ""
                raise ConfigError(f"{folder}: {unknown(split, index.splits)}{advice}", f"data.{field}")
    if classifies(run) and len(index.classes) == 1:
        reason = f"{folder} has one class, {index.classes[0]!r}: there is nothing to classify; each class needs its own folder"
        raise ConfigError(reason, "data.shards")
    images = num_images(run)
    if run.optim.batch_size > images * run.data.repeats:
        half = 1 << max(0, (images // 2).bit_length() - 1)  # or a little less: a power of two
        thins = ["images", *(["labels"] if needs_labels(run) else [])]
        thinned = [f"data.{name}" for name in thins if getattr(run.data, name) is not None]
        left = f"that {' and '.join(thinned)} {'leave' if thinned[1:] else 'leaves'} to train on" if thinned else "to train on"
        reason = f"{run.optim.batch_size} is more than the {counted(images, 'image')} {left}; set it lower, such as {half}"
        raise ConfigError(reason, "optim.batch_size")
    _check_evals(run, index)
    return index.sha256 or None


def _check_evals(run: Run, index: Index) -> None:
    """The evaluators have images to look at, and to learn from."""
    evals, key = evals_of(run), f"{_drawn(run)}{run.evals}"
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
    """What a Run's shards hold, in words: a folder's name may differ from its content."""
    folder, index = run.data.shards, expected_index(run.data)
    how = f"to be made from {run.data.source}" if run.data.source else f"not there yet (`vitssl shards build SOURCE {folder}`)"
    if index is None:
        return f"{folder}: {how}; its contents, and so the cost, are known only then"
    images = {split: sum(shard["images"] for shard in index.shards if shard["split"] == split) for split in index.splits}
    listed = ", ".join(f"{count:,} {split}" for split, count in images.items())
    planned = "" if index.sha256 else f"{how}, which also gives the runs their final names; expected: "
    groups = "" if index.group is None else f" in {counted(len(np.unique(index.group)), 'group')}"
    return f"{folder}: {planned}{index.name}, {counted(len(index.classes), 'class', 'classes')}, {listed} images{groups}"


def held_out(runs: Iterable[Run]) -> list[str]:
    """A line for each folder of shards of which a share is held out: how many images that is, from the fewest to the most of a Run."""
    by_folder: dict[str, set[int]] = {}
    for run in runs:
        if run.data.val_fraction and expected_index(run.data):
            by_folder.setdefault(run.data.shards, set()).add(image_counts(run)["val_images"])
    counts = {folder: (f"{min(found):,} to " if len(found) > 1 else "", max(found)) for folder, found in by_folder.items()}
    return [
        f"{folder}: {least}{counted(most, 'image')} held out of training (data.val_fraction)" for folder, (least, most) in counts.items()
    ]


def unread(runs: Iterable[Run]) -> list[str]:
    """A line for each folder of shards with splits that no Run reads."""
    by_folder: dict[str, list[Data]] = {}
    for run in runs:
        by_folder.setdefault(run.data.shards, []).append(run.data)
    lines = []
    for folder, of_folder in by_folder.items():
        index = expected_index(of_folder[0])
        there = index.splits if index else []
        asked = [split for data in of_folder for split in (data.train_split, None if data.folds else data.test_split, data.val_split)]
        read = set(named("+".join(filter(None, asked)), there))
        if left := [split for split in there if split not in read]:
            every = "+".join(dict.fromkeys([*of_folder[0].train_split.split("+"), *left]))
            folds = f"; folds of all images are 'data.train_split={every}'" if of_folder[0].folds else ""
            lines.append(f"note: no run reads the images of {listed(left)} in {folder} (data.train_split, data.val_split){folds}")
    return lines


def facts(run: Run) -> dict[str, Any]:
    """Facts about a Run's data for its job.json: a report reads no shards."""
    index = index_of(Path(run.data.shards))
    sizes = index.sizes_N2
    return {
        "name": index.name, "classes": len(index.classes), "sha256": index.sha256, **image_counts(run),
        "smallest_px": sizes.min(0).tolist(), "largest_px": sizes.max(0).tolist(),
        **({} if index.group is None else {"groups": len(np.unique(index.group))}),
        **_near_duplicates(run, index),
    }  # fmt: skip


def _near_duplicates(run: Run, index: Index) -> dict[str, int]:
    """How many images of the test split have a near-duplicate in a split to train on that has labels, and how many others have one in a
    split without; empty where that was not looked for, as between folds."""
    found = findings.read(index.folder)
    if found is None or run.data.folds:
        return {}
    test, train = (named(splits, index.splits) for splits in (run.data.test_split, run.data.train_split))
    labelled = {split for split in train if split in index.splits and (index.label[index.where(split)] != UNLABELLED).any()}
    pairs = [(split, name, other) for split, name, other, *_ in found.near_duplicates if split in test and other in train]
    with_label = {(split, name) for split, name, other in pairs if other in labelled}
    others = {(split, name) for split, name, _ in pairs} - with_label
    return {"near_duplicates": len(with_label), "near_duplicates_unlabelled": len(others)}


_COUNTED: dict[str, dict[str, int]] = {}
_CHECKED: set[str] = set()


def num_images(run: Run) -> int:
    """How many images a Run trains on: after `data.images`, the held-out split, and the labels that it needs."""
    return image_counts(run)["train_images"]


def images_trained(run: Run) -> int:
    """How many images a Run trains on, over all epochs: its last batch is a whole one."""
    return total_steps(run, num_images(run)) * run.optim.batch_size


def images_evaluated(run: Run) -> float:
    """How many images a Run evaluates, over all evaluations."""
    if not classifies(run):
        return 0.0
    counts = image_counts(run)
    steps = total_steps(run, counts["train_images"])
    epochs = min(run.loop.epochs, steps * run.optim.batch_size / counts["train_images"])  # the last batch may begin one more
    times = min(steps, math.ceil(epochs / run.loop.eval_every)) if run.loop.eval_every else 1  # a step may end several epochs
    own = times * (counts["val_images"] + counts["test_images"] * (1 if run.loop.ema_decay is None else 2))
    return own + (counts["val_images"] + counts["test_images"] if counts["val_images"] and times > 1 else 0)  # by best.pt


def images_worked(run: Run) -> float:
    """How many images a Run trains on; an evaluated one counts as the part of that which it costs."""
    return images_trained(run) + EVALUATED * images_evaluated(run)


def _drawn(run: Run) -> str:
    """What its part of the images follows from."""
    drawn = run.data.folds is not None or any(subset is not None and subset.redraw for subset in (run.data.images, run.data.labels))
    return f"{run.data}{needs_labels(run)}{classifies(run)}{run.seed if drawn else None}"


def image_counts(run: Run) -> dict[str, int]:
    """A Run's images to train on, those of them with a label, those held out, and those to test on.

    Raises:
        ConfigError: as `num_images`.
    """
    key = _drawn(run)
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


def parts(source: str) -> tuple[str, str, str]:
    """What comes before, in and after the path of KIND:PATH?OPTIONS, PATH, or torchvision:NAME?root=PATH; all may be empty."""
    kind, colon, rest = source.partition(":")
    if kind == "torchvision":
        before, option, path = source.partition("?root=")
        return before + option, path, ""
    if not colon:
        return ("", "", source) if source == "digits" else ("", source, "")
    path, option, after = rest.partition("?")
    return kind + colon, path, option + after


def anchored(source: str) -> str:
    """The source with its path made absolute: it is relative to the user's folder, and shards are built from the project's."""
    before, path, after = parts(source)
    return f"{before}{Path(path).expanduser().resolve()}{after}" if path else source


def is_here(source: str) -> bool:
    path = parts(source)[1]
    if source.startswith("wds:"):
        return webdatasets.is_here(path)
    return bool(path) and not source.startswith("torchvision:") and Path(path).exists()
