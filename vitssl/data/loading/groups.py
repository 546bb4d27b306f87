"""Folds and held-out images where images belong together, as those of a patient do: no group is on both sides.

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


def with_others(index: Index, positions: np.ndarray) -> np.ndarray:
    """Of every image of the index, whether it is one of these or, labelled or not, of a group that one of these is of: bool (N,)."""
    among = np.zeros(len(index), bool)
    among[positions] = True
    return among if index.group is None else np.isin(index.group, index.group[positions])


def folds(index: Index, order_n: np.ndarray, count: int) -> np.ndarray:
    """The fold of each of some labelled images.

    Groups go, the largest first, to the fold that has least of their classes, as shares of these, and of equal ones to the smallest. Those
    of about a size (the same power of two) come in the order of ``order_n``, so that another draw makes other folds.

    Raises:
        ConfigError: a class that is not in every fold.
    """
    assert index.group is not None
    _, first_G, group_n = np.unique(index.group[order_n], return_index=True, return_inverse=True)
    images_GK = np.zeros((len(first_G), len(index.classes)))
    np.add.at(images_GK, (group_n, index.label[order_n]), 1)
    _refuse_few(index, (images_GK > 0).sum(0), images_GK.sum(0), count)
    share_K = 1 / images_GK.sum(0).clip(min=1)
    in_folds_FK, fold_G = np.zeros((count, len(index.classes))), np.zeros(len(first_G), np.int64)
    for g in np.lexsort((first_G, -np.frexp(images_GK.sum(1))[1])):
        fullness_F = ((2 * in_folds_FK + images_GK[g]) * images_GK[g] * share_K**2).sum(1)  # by what a sum of squares grows
        fold_G[g] = np.lexsort((in_folds_FK.sum(1), fullness_F.round(12)))[0]
        in_folds_FK[fold_G[g]] += images_GK[g]
    if (lacking := (in_folds_FK == 0) & (images_GK.sum(0) > 0)).any():
        fold, k = np.argwhere(lacking)[0]
        advice = f"take fewer folds, or seeds from {count} on, which draw others"
        raise ConfigError(f"by groups, fold {fold} would have no image of class {index.classes[k]}; {advice}", "data.folds")
    return fold_G[group_n]


def _refuse_few(index: Index, groups_K: np.ndarray, images_K: np.ndarray, count: int) -> None:
    few = [f"{index.classes[k]} ({groups_K[k]})" for k in np.flatnonzero((groups_K < count) & (images_K > 0))]
    if few:
        raise ConfigError(f"{count} is more than the groups that these classes are in: {first_few(few, 5)}", "data.folds")


def held_out(index: Index, labelled_n: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """About a share of every class of these labelled images, in whole groups, rising, by the rule of `vitssl shards build` with ``val=``.

    Raises:
        ConfigError: a class that is in too few groups.
    """
    assert index.group is not None
    there, label_n = np.unique(index.label[labelled_n], return_inverse=True)  # of `data.images` a class may have none
    samples = [Sample(str(position), int(label), "") for position, label in zip(labelled_n, label_n, strict=True)]
    asked = HoldOut(FIELD, {"val": fraction}, seed, "name a split of your own, data.val_split", unit="groups")
    try:
        found = divided(asked, [index.classes[k] for k in there], samples, [str(number) for number in index.group[labelled_n]])["val"]
    except ConfigError as error:
        raise ConfigError(error.reason.removeprefix(f"{FIELD}: "), FIELD) from None
    return np.sort(np.array([int(sample.name) for sample in found], dtype=np.int64))
