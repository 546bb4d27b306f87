"""The images that a Run trains on, those of them that keep their label, and those that are held out.

They are chosen in this order. One of `data.folds` is taken out of `data.train_split` as the test set. `data.images` thins out what is left.
`data.val_fraction` of the rest is held out, or instead the separate split `data.val_split` is. `data.labels` hides labels of what then
remains. Each draw ranks all images by one seeded permutation, or leaves them in the index's order, and takes the first ones of every
class. So with one seed a smaller subset lies within a larger one. If images belong together (`Index.group`), a fold and what is held out
are whole groups, and no image of these groups is trained on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitssl.config import ConfigError, Data, Run, Subset, classifies, needs_labels
from vitssl.config.evals import EvalConfig, FeaturesConfig
from vitssl.config.metrics import TOP_K
from vitssl.data import UNLABELLED
from vitssl.data.index import Index
from vitssl.data.loading import groups
from vitssl.words import counted, few, first_few


@dataclass
class SplitPositions:
    """Rising positions in the index of the images of each part, and the labels that training may see."""

    train: np.ndarray
    labels: np.ndarray  # int64, of every image of the index; -1 if it has none or if it is hidden from training
    val: np.ndarray
    test: np.ndarray

    def uses(self) -> np.ndarray:
        """Return what each image of the index (N,) is used for: train, val, test, or nothing ("")."""
        uses = np.full(len(self.labels), "", dtype="<U5")
        for name in ("train", "val", "test"):
            uses[getattr(self, name)] = name
        return uses


def split_of(index: Index, run: Run) -> SplitPositions:
    """Return the images that a Run trains on and those that it is evaluated with. Raises as `train_and_heldout` does."""
    return train_and_heldout(index, run.data, needs_labels(run), classifies(run), run.seed)


def evaluation_images(index: Index, parts: SplitPositions | None, split: str, classes: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions (n,) of the labelled images of an evaluator's split, and the labels (N,) of all images of the index; int64.

    Args:
        index: the index of the Run's shards, or of others that the evaluator names.
        parts: the Run's split of its own shards, if ``index`` is theirs: train, val and test then mean its parts. None for other shards.
        split: train, val or test, or the name of a split of the shards.
        classes: the names of the Run's classes.

    Raises:
        ConfigError: there is no such split, the Run holds no images out, or other shards have classes that the Run does not know.
    """
    own = {} if parts is None else {"train": parts.train, "val": parts.val, "test": parts.test}
    untouched = split not in ("train", "test") and split in index.splits and not (own and np.isin(index.where(split), own["train"]).any())
    if parts is not None and split in own and not (untouched and not len(own[split])):
        positions, labels = own[split], parts.labels if split == "train" else index.label
        if not len(positions):
            raise ConfigError("there are no such images; data.val_split or data.val_fraction holds out some (val)", "split")
    elif unknown := [name for name in index.classes if name not in classes]:
        raise ConfigError(f"{index.folder}: it has classes such as {unknown[0]}, and this run was trained on {few(classes)}")
    else:  # by the names of classes, since other shards may lack some
        positions, labels = index.where(split), np.array([*map(classes.index, index.classes), UNLABELLED])[index.label]
    return positions[labels[positions] != UNLABELLED], labels


def check_evaluator(cfg: EvalConfig, index: Index, parts: SplitPositions, others: Index | None = None) -> None:
    """Refuse an evaluator that would fail after the first epoch; ``others`` is the index of the shards that it names, if any.

    Raises:
        ConfigError: as in `evaluation_images`; or no image has a label to compare with or, for an evaluator of features, to learn from;
            or no image is held out to choose the best weights by.
    """
    if cfg.weights == "best" and not len(parts.val):
        raise ConfigError("there are no held-out images to choose the best weights by", "weights")
    if others is None and not index.classes:
        raise ConfigError("no image that the Run trains on has a label; name shards whose images have one", "shards")
    shards: tuple[Index, SplitPositions | None] = (index, parts) if others is None else (others, None)
    positions, _ = evaluation_images(*shards, cfg.split, index.classes or shards[0].classes)
    if not len(positions):
        raise ConfigError(f"no image of {cfg.split} has a label to compare with", "split")
    if isinstance(cfg, FeaturesConfig):
        if others is not None and not index.classes:
            teaching, (labelled, _) = others, evaluation_images(others, None, "train", others.classes)
        else:
            teaching, labelled = index, parts.train[parts.labels[parts.train] != UNLABELLED]
        same_shards = others is None or others.sha256 == teaching.sha256
        cfg.check_images(len(labelled), same_shards and bool(np.isin(positions, labelled).any()))


def train_and_heldout(index: Index, data: Data, need_labels: bool, is_evaluated: bool = True, run_seed: int = 0) -> SplitPositions:
    """Split the images of an index as ``data`` says.

    Args:
        need_labels: leave out training images without a label (for a Run whose objectives all need one).
        is_evaluated: the test split must exist and have labels (for a Run that classifies).
        run_seed: the Run's, which draws with `redraw` follow and which says which fold is the test set.

    Raises:
        ConfigError: a split does not exist, a class has fewer images than are asked for, or nothing is left to train on or, for a Run
            that classifies, no label.
    """
    images = _where(index, data.train_split, "data.train_split")
    fold = None if data.folds is None else _fold(index, images, data.folds, run_seed)
    if fold is not None:
        images = images[~groups.group_mask(index, fold)[images]]
    if data.images is not None:
        images = take(index, images, data.images, "data.images", run_seed)
    val = _validation(index, images, data, is_evaluated)
    if is_evaluated and len(val):
        _check_metric(index, val, data.val_metric)
    train = images[~groups.group_mask(index, val)[images]] if data.val_fraction else images
    labels = index.label.copy()
    if data.labels is not None:
        labelled = train[labels[train] >= 0]
        # without labelled images there is nothing to hide
        visible = take(index, labelled, data.labels, "data.labels", run_seed) if len(labelled) else labelled
        labels[labelled[~groups.position_mask(index, visible)[labelled]]] = UNLABELLED
    if need_labels:
        train = train[labels[train] >= 0]
    if not len(train):
        raise ConfigError(f"no {'labelled ' * need_labels}images of {data.train_split} are left to train on", "data.train_split")
    test = _test(index, data, images, is_evaluated) if fold is None else fold
    # splits that are given may share groups
    kept_apart = groups.position_mask(index, val) if fold is None else groups.group_mask(index, val)
    if data.val_split is not None and kept_apart[np.concatenate([images, test])].any():
        raise ConfigError(f"{data.val_split} shares images with those that are trained or tested on", "data.val_split")
    if is_evaluated and not (labels[train] >= 0).any():
        raise ConfigError(f"no image of {data.train_split} has a label to learn to classify from", "data.train_split")
    return SplitPositions(train, labels, val, test)


def take(index: Index, positions: np.ndarray, subset: Subset, field: str, run_seed: int = 0) -> np.ndarray:
    """Return the part of ``positions`` that a `Subset` names, rising.

    A share of every class is rounded to the nearest image, at least one; unlabelled images count as one more class in this.
    With a number per class, all unlabelled images are kept.

    Raises:
        ConfigError: classes have fewer images than ``per_class``, or there are none; the message names them and ``field``.
    """
    seed = subset.seed + run_seed if subset.redraw and subset.seed is not None else subset.seed
    order = _shuffled(len(index), seed, field, positions)
    labels = index.label[order]
    if subset.per_class is not None and not index.classes:
        raise ConfigError("no image has a label, so none are of a class; take a fraction", f"{field}.per_class")
    if subset.per_class is not None:
        _check_per_class(index, labels, subset.per_class, f"{field}.per_class")
        counts = np.full(len(index.classes) + 1, subset.per_class)
        counts[UNLABELLED] = len(order)
        return np.sort(_first(order, labels, counts))
    assert subset.fraction is not None
    if not subset.balanced:
        return np.sort(order[: _shares(subset.fraction, np.array(len(order)))])
    return np.sort(_first(order, labels, _shares(subset.fraction, _per_class(index, labels))))


def _where(index: Index, splits: str, field: str) -> np.ndarray:
    try:
        return index.where(splits)
    except ConfigError as error:
        raise ConfigError(str(error), field) from None


def _held_out(index: Index, splits: str, field: str, is_evaluated: bool) -> np.ndarray:
    """Return the positions of ``splits``, all of which must have a label if the Run is evaluated on them."""
    positions = _where(index, splits, field)
    if is_evaluated and (unlabelled := int((index.label[positions] == UNLABELLED).sum())):
        raise ConfigError(f"{unlabelled} of the {len(positions)} images of {splits} have no label", field)
    return positions


def _fold(index: Index, images: np.ndarray, folds: int, run_seed: int) -> np.ndarray:
    """Return the part of the labelled ``images`` that a seed tests on; folds are as equal in size, of every class and in all, as can be."""
    labelled = images[index.label[images] != UNLABELLED]
    _check_per_class(index, index.label[labelled], folds, "data.folds")
    order = _shuffled(len(index), run_seed // folds, "data.folds", labelled)
    if index.group is not None:
        return np.sort(order[groups.folds(index, order, folds) == run_seed % folds])
    by_label = order[np.argsort(index.label[order], kind="stable")]
    return np.sort(by_label[run_seed % folds :: folds])


def _validation(index: Index, images: np.ndarray, data: Data, is_evaluated: bool) -> np.ndarray:
    """Return the images of ``data.val_split``, or a stratified share of ``images`` that leaves at least one of each class in training."""
    if data.val_split is not None:
        return _held_out(index, data.val_split, "data.val_split", is_evaluated)
    if not data.val_fraction:
        return np.empty(0, dtype=np.int64)
    labelled = images[index.label[images] >= 0]
    if not len(labelled):
        raise ConfigError("no image of this stage has a label, so none can be held out; set it for stages that have", "data.val_fraction")
    if index.group is not None:
        return groups.held_out(index, labelled, data.val_fraction, data.val_seed)
    order = _shuffled(len(index), data.val_seed, "data.val_fraction", labelled)
    labels = index.label[order]
    per_class = _per_class(index, labels)
    counts = np.minimum((per_class - 1).clip(0), _shares(data.val_fraction, per_class))
    if not counts.any():
        classes = np.count_nonzero(per_class)
        raise ConfigError(f"{len(order)} labelled images in {classes} classes leave none to hold out", "data.val_fraction")
    return np.sort(_first(order, labels, counts))


def _check_metric(index: Index, val: np.ndarray, metric: str) -> None:
    """Refuse a metric by which no epoch can be chosen."""
    if metric == "top5" and len(index.classes) <= TOP_K:
        raise ConfigError(f"of {counted(len(index.classes), 'class', 'classes')}, top-5 is always 100 %; choose another", "data.val_metric")
    lacking = [name for k, name in enumerate(index.classes) if not (index.label[val] == k).any()]
    if metric == "auc" and lacking:
        raise ConfigError(f"auc needs held-out images of every class, and there are none of {few(lacking)}", "data.val_metric")


def _test(index: Index, data: Data, images: np.ndarray, is_evaluated: bool) -> np.ndarray:
    """Return the images of ``data.test_split``, none of which may be among ``images``."""
    if not is_evaluated and data.test_split not in index.splits:
        return np.empty(0, dtype=np.int64)
    test = _held_out(index, data.test_split, "data.test_split", is_evaluated)
    if groups.position_mask(index, images)[test].any():
        raise ConfigError(f"{data.test_split} shares images with data.train_split={data.train_split}", "data.test_split")
    return test


def _shuffled(total: int, seed: int | None, field: str, positions: np.ndarray) -> np.ndarray:
    """Return ``positions`` in the order of a permutation of all ``total`` images that depends on ``seed`` and ``field`` alone.

    Without a seed they are returned as they are.
    """
    if seed is None:
        return positions
    rank = np.random.default_rng([seed, *field.encode()]).permutation(total)
    return positions[np.argsort(rank[positions])]


def _shares(fraction: float, counts: np.ndarray) -> np.ndarray:
    """Return a fraction of each count, rounded, at least one."""
    return np.maximum(1, (fraction * counts + 0.5).astype(np.int64))


def _per_class(index: Index, labels: np.ndarray) -> np.ndarray:
    """Return how many images have each label; the last entry, which label -1 finds, counts those without one."""
    return np.roll(np.bincount(labels + 1, minlength=len(index.classes) + 1), -1)


def _first(order: np.ndarray, labels: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the first ``counts[k]`` images of each label ``k``, label by label."""
    by_label = np.argsort(labels, kind="stable")
    sorted_labels = labels[by_label]
    rank = np.arange(len(labels)) - np.searchsorted(sorted_labels, sorted_labels)  # among the images of its label
    return order[by_label[rank < counts[sorted_labels]]]


def _check_per_class(index: Index, labels: np.ndarray, per_class: int, field: str) -> None:
    counts = np.bincount(labels[labels >= 0], minlength=len(index.classes))
    if short := [f"{name} ({count})" for name, count in zip(index.classes, counts, strict=True) if count < per_class]:
        raise ConfigError(f"{per_class} is more than these classes have: {first_few(short, 5)}", field)
