"""The numbers of classes and images of the papers' data sets as printed, to compare shards with.

A folder of shards is compared if its name is one of `PRINTED`, whatever its case and punctuation: `shards/cifar10`. If several
publications print different numbers for a set, each is listed. What the papers leave out is taken from the set's own paper or page.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

import numpy as np

from vitssl.data import UNLABELLED
from vitssl.data.index import Index, planned_index

DRLOC, GMML, MASKED_TOKENS = "Drloc's Table 1", "GMML's Table 5", "the text of the masked tokens paper"
OWN = "the set's own paper or page"


def _counts(train: int | None = None, test: int | None = None, classes: int | None = None, **others: int) -> dict[str, int]:
    counts = {"train": train, "test": test, "classes": classes, **others}
    return {what: number for what, number in counts.items() if number is not None}


# set -> who prints it -> number of images of a split, or of classes
PRINTED: dict[str, dict[str, dict[str, int]]] = {
    "cifar10": {DRLOC: _counts(50_000, 10_000, 10)},
    "cifar100": {DRLOC: _counts(50_000, 10_000, 100)},
    "svhn": {DRLOC: _counts(73_257, 26_032, 10)},
    "flowers102": {DRLOC: _counts(2_040, 6_149, 102), GMML: _counts(2_040, 6_149, 102)},
    "stl10": {MASKED_TOKENS: _counts(5_000, unlabeled=100_000), OWN: _counts(None, 8_000, 10)},
    "mnist": {GMML: _counts(60_000, 10_000, 10)},
    "pets": {GMML: _counts(3_680, 3_669, 37)},
    "aircraft": {GMML: _counts(6_667, 3_333, 100)},
    "cars": {GMML: _counts(8_144, 8_041, 196)},
    "cub": {GMML: _counts(5_994, 5_794, 200)},
    "nabirds": {OWN: _counts(23_929, 24_633, 555)},
    "dogs": {OWN: _counts(12_000, 8_580, 120)},
    "inat2018": {OWN: _counts(437_513, 24_426, 8_142)},
    "inat2019": {OWN: _counts(265_213, 3_030, 1_010)},
    "inat2021_mini": {OWN: _counts(500_000, 100_000, 10_000)},
    # Drloc prints 100,000 test images, the number of those without public labels; accuracies are of the 50,000 for validation
    "imagenet": {DRLOC: _counts(1_281_167, None, 1_000), GMML: _counts(None, 50_000, 1_000)},
    "imagenet100": {DRLOC: _counts(126_689, 5_000, 100)},
    "domainnet_clipart": {DRLOC: _counts(33_525, 14_604, 345)},
    "domainnet_infograph": {DRLOC: _counts(36_023, 15_582, 345)},
    "domainnet_painting": {DRLOC: _counts(50_416, 21_850, 345)},
    "domainnet_quickdraw": {DRLOC: _counts(120_750, 51_750, 345)},
    "domainnet_real": {DRLOC: _counts(120_906, 52_041, 345)},
    "domainnet_sketch": {DRLOC: _counts(48_212, 20_916, 345)},
    "chaoyang": {OWN: _counts(4_021, 2_139, 4)},
    "pathmnist": {OWN: _counts(89_996, 7_180, 9, val=10_004)},
    "covid_ct": {MASKED_TOKENS: _counts(425), OWN: _counts(None, 203, 2, val=118)},
    "soybean_local": {MASKED_TOKENS: _counts(600), OWN: _counts(None, 600, 200)},
    "cotton80": {MASKED_TOKENS: _counts(240), OWN: _counts(None, 240, 80)},
}


def comparison(index: Index) -> str | None:
    """Say in one line whether shards have the printed numbers or what differs; None if the folder is not named after such a set."""
    printed = _printed(index.folder)
    if printed is None:
        return None
    images = np.bincount(index.split, minlength=len(index.splits)).tolist()
    actual = dict(zip(index.splits, images, strict=True)) | {"classes": len(index.classes)}
    differences = [
        f"{what}: {actual.get(what, 0):,} here, {number:,} in {by}"
        for by, counts in printed.items()
        for what, number in counts.items()
        if actual.get(what, 0) != number
    ]
    sources = " and ".join(printed)
    return f"warning: not as printed; {'; '.join(differences)}" if differences else f"as printed in {sources}"


@functools.cache  # a label for each of millions of images, asked for several times for every run of a sweep
def expected(folder: str | Path) -> Index | None:
    """Return the index that shards not built yet will have by the printed numbers, with classes of equal size; None for other folders."""
    printed = _printed(folder)
    if printed is None:
        return None
    images = {what: number for counts in printed.values() for what, number in counts.items()}
    num_classes = images.pop("classes")
    labels = {split: np.arange(number) % num_classes for split, number in images.items()}
    if "unlabeled" in labels:
        labels["unlabeled"][:] = UNLABELLED
    return planned_index(folder, f"{os.path.basename(folder)} (as printed)", [str(k) for k in range(num_classes)], labels)


def _printed(folder: str | Path) -> dict[str, dict[str, int]] | None:
    """Return what is printed of the set that a folder is named after, or None."""
    named = {_bare(name): printed for name, printed in PRINTED.items()}
    return named.get(_bare(os.path.basename(os.path.abspath(folder))))  # a symbolic link goes by its name, not its target's


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
