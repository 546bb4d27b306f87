"""Folds and held-out images for images that belong together, such as those of a patient: no group is on both sides.

Shapes: n images, N of the whole index, G groups, K classes.
"""

from __future__ import annotations

import numpy as np

from vitssl.config import ConfigError
from vitssl.data.index import Index
from vitssl.data.sources.held_out import HoldOut, divided
from vitssl.data.sources.samples import Sample
from vitssl.words import first_few

FIELD = "data.val_fraction"


def position_mask(index: Index, positions: np.ndarray) -> np.ndarray:
    """Return whether each image of the index is among those at ``positions``: bool (N,)."""
    mask = np.zeros(len(index), bool)
    mask[positions] = True
    return mask


def group_mask(index: Index, positions: np.ndarray) -> np.ndarray:
    """Return a mask, bool (N,), of the images at ``positions`` and of all other images, labelled or not, of their groups."""
    return position_mask(index, positions) if index.group is None else np.isin(index.group, index.group[positions])


def folds(index: Index, order_n: np.ndarray, count: int) -> np.ndarray:
    """Return the fold of each of the labelled images at ``order_n``.

    The largest groups come first. Each goes to the fold that has the least of the group's classes, as shares of each class, and among
    equal folds to the smallest. Groups of about the same size (the same power of two) come in the order of ``order_n``, so that another
    draw makes other folds.

    Raises:
        ConfigError: a class is not in every fold.
    """
    assert index.group is not None
    _, first_G, group_n = np.unique(index.group[order_n], return_index=True, return_inverse=True)
    images_GK = np.zeros((len(first_G), len(index.classes)))
    np.add.at(images_GK, (group_n, index.label[order_n]), 1)
    _refuse_few(index, (images_GK > 0).sum(0), images_GK.sum(0), count)
    share_K = 1 / images_GK.sum(0).clip(min=1)
    in_folds_FK, fold_G = np.zeros((count, len(index.classes))), np.zeros(len(first_G), np.int64)
    for g in np.lexsort((first_G, -np.frexp(images_GK.sum(1))[1])):
        fullness_F = ((2 * in_folds_FK + images_GK[g]) * images_GK[g] * share_K**2).sum(1)  # growth of a sum of squares
        fold_G[g] = np.lexsort((in_folds_FK.sum(1), fullness_F.round(12)))[0]
        in_folds_FK[fold_G[g]] += images_GK[g]
    if (lacking := (in_folds_FK == 0) & (images_GK.sum(0) > 0)).any():
        fold, k = np.argwhere(lacking)[0]
        advice = f"take fewer folds, or seeds from {count} on, which draw others"
        raise ConfigError(f"by groups, fold {fold} would have no image of class {index.classes[k]}; {advice}", "data.folds")
    return fold_G[group_n]


def _refuse_few(index: Index, groups_K: np.ndarray, images_K: np.ndarray, count: int) -> None:
    """Raise a ConfigError if a class is in fewer than ``count`` groups."""
    few = [f"{index.classes[k]} ({groups_K[k]})" for k in np.flatnonzero((groups_K < count) & (images_K > 0))]
    if few:
        raise ConfigError(f"{count} is more than the groups that these classes are in: {first_few(few, 5)}", "data.folds")


def held_out(index: Index, labelled_n: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Return about a share of every class of the labelled images, in whole groups and rising, as `vitssl shards build` does for ``val=``.

    Raises:
        ConfigError: a class is in too few groups.
    """
    assert index.group is not None
    present, label_n = np.unique(index.label[labelled_n], return_inverse=True)  # `data.images` may leave none of a class
    samples = [Sample(str(position), int(label), "") for position, label in zip(labelled_n, label_n, strict=True)]
    hold_out = HoldOut(FIELD, {"val": fraction}, seed, "name a split of your own, data.val_split", unit="groups")
    try:
        chosen = divided(hold_out, [index.classes[k] for k in present], samples, [str(number) for number in index.group[labelled_n]])["val"]
    except ConfigError as error:
        raise ConfigError(error.reason.removeprefix(f"{FIELD}: "), FIELD) from None
    return np.sort(np.array([int(sample.name) for sample in chosen], dtype=np.int64))
