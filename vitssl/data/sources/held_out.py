"""Shares of the training images that are held out for testing and validation, drawn from a seed and from names alone.

Images that belong together, such as those of a patient or a scene, are a group and stay together; otherwise each name is a group of its
own. The seed and the groups' names determine the order of the groups, so that images that are added later move few others. Each group goes
to the first split that it brings nearer to its shares of the classes, in sum, without taking it further from its share of all images. Every
class keeps a group for training. A split that would have none of a class gets a group of it at the end.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from vitssl.config import ConfigError
from vitssl.data.sources.samples import Options, Sample
from vitssl.data.sources.splits import SPELLINGS
from vitssl.words import first_few

SHARES = ("test", "val")  # options that hold out a share of the training images
OPTIONS = (*SHARES, "seed")
MOST_DIGITS = 100  # digits of a seed
LEAVE_OUT = "leave the images of such classes out"


@dataclass(frozen=True)
class HoldOut:
    """The shares of a source's images that are to be held out."""

    source: str  # for messages
    shares: dict[str, float]  # by split
    seed: int
    leave_out: str  # how classes are left out of the source, for messages
    unit: str = "images"  # what groups are called in messages

    @property
    def parts(self) -> list[str]:
        """The names of the parts that the training images are divided into."""
        return ["train", *self.shares]


def parse_hold_out(source: str, options: Options, leave_out: str = LEAVE_OUT, unit: str = "images") -> HoldOut:
    """Read the options test=SHARE, val=SHARE and seed=NUMBER.

    Raises:
        ConfigError: a value is not a share or a seed, the shares leave nothing to train on, or there is a seed without a share.
    """
    shares = {split: _share(source, split, options[split][-1]) for split in SHARES if split in options}
    if sum(shares.values()) >= 1:
        raise ConfigError(f"{source}: test and val leave nothing to train on; their sum must be below 1")
    if "seed" in options and not shares:
        raise ConfigError(f"{source}: seed without test or val, which it draws; write test=0.2&seed={options['seed'][-1]}")
    return HoldOut(source, shares, _seed(source, options), leave_out, unit)


def _share(source: str, split: str, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        raise ConfigError(f"{source}: {split}={text} is not a share of the images; expected a number between 0 and 1, such as 0.2")
    return share


def _seed(source: str, options: Options) -> int:
    text = options.get("seed", ["0"])[-1]
    if not text.isdecimal() or len(text) > MOST_DIGITS:
        raise ConfigError(f"{source}: seed={text[:80]} is not a whole number from 0 of at most {MOST_DIGITS} digits")
    return int(text)


def refuse_existing_splits(hold_out: HoldOut, options: Options, splits: Collection[str]) -> None:
    """Raise a ConfigError if a share is asked for of a split that the source has already."""
    for split in hold_out.shares:
        if existing := next((name for name in splits if name in SPELLINGS[split]), None):
            raise ConfigError(f"{hold_out.source}: {existing} is the {split} split already; leave out {split}={options[split][-1]}")


def divided(
    hold_out: HoldOut, classes: list[str], samples: list[Sample], groups: Sequence[str], elsewhere: Collection[str] = ()
) -> dict[str, list[Sample]]:
    """Divide the training images into those that stay and those of each split that is held out, in the order of ``samples``.

    Args:
        hold_out: the shares.
        classes: the classes of the samples.
        samples: the training images.
        groups: the group of each sample.
        elsewhere: groups with images in other splits. They stay in training, and so do groups with an image without a label.

    Raises:
        ConfigError: a class cannot be in every part, or no image has a label.
    """
    if not hold_out.shares:
        return {"train": samples}
    unlabelled = {group for sample, group in zip(samples, groups, strict=True) if sample.label < 0}
    if samples and not any(sample.label >= 0 for sample in samples):
        raise ConfigError(
            f"{hold_out.source}: no image has a label, and only labelled ones are held out; leave out {' and '.join(hold_out.shares)}"
        )
    split_of = _Draw(hold_out, classes, samples, groups, {*elsewhere, *unlabelled}).drawn()
    parts: dict[str, list[Sample]] = {part: [] for part in hold_out.parts}
    for sample, group in zip(samples, groups, strict=True):
        parts[split_of.get(group, "train")].append(sample)
    return parts


class _Draw:
    """The draw that decides which groups go to which held-out split. All others, including those ``staying``, are for training."""

    def __init__(self, hold_out: HoldOut, classes: list[str], samples: list[Sample], groups: Sequence[str], staying: set[str]):
        self.hold_out, self.classes = hold_out, classes
        self.images = Counter(sample.label for sample in samples)  # number of images of each class
        self.members: dict[str, list[int]] = {}  # the label of each image, by group
        self.trained: set[int] = set()  # classes with images that stay in training in any case
        for sample, group in zip(samples, groups, strict=True):
            if group not in staying:
                self.members.setdefault(group, []).append(sample.label)
            else:
                self.trained.add(sample.label)
        self.free = Counter(label for labels in self.members.values() for label in set(labels))  # groups left of each class
        self.taken: dict[str, Counter[int]] = {split: Counter() for split in hold_out.shares}  # number of images of each class
        self.lacking = {split: sum(self._wanted(label, split) for label in range(len(classes))) for split in hold_out.shares}
        self.split_of: dict[str, str] = {}

    def drawn(self) -> dict[str, str]:
        """Return the split of each group that is held out."""
        self._refuse_small_classes()
        ranked = sorted(self.members, key=lambda group: hashlib.sha256(os.fsencode(f"{self.hold_out.seed}\0{group}")).digest())
        for group in ranked:
            if split := next((split for split in self.taken if self._fits(group, split)), None):
                self._take(group, split)
        for split in self.taken:
            for label in range(len(self.classes)):
                if not self.taken[split][label]:
                    self._take_for(label, split, ranked)
        return self.split_of

    def _wanted(self, label: int, split: str) -> int:
        """Return the number of images of a class that a split should have."""
        return max(1, int(self.hold_out.shares[split] * self.images[label] + 0.5))

    def _fits(self, group: str, split: str) -> bool:
        """Whether a group can be spared, and brings a split nearer to its shares of the classes and no further from its image count."""
        return len(self.members[group]) <= 2 * self.lacking[split] and self._gain(group, split) > 0 and self._spared(group, split)

    def _gain(self, group: str, split: str) -> float:
        """Return by how much a group brings a split nearer to its shares of the classes, in sum."""
        taken, gain = self.taken[split], 0.0
        for label, count in sorted(Counter(self.members[group]).items()):
            wanted = self._wanted(label, split)
            gain += (abs(taken[label] - wanted) - abs(taken[label] + count - wanted)) / self.images[label]
        return gain

    def _spared(self, group: str, split: str) -> bool:
        """Whether each class of a group would keep a group for training, and one for every other split that has none of it yet."""
        for label in set(self.members[group]):
            lacking = sum(other != split and not taken[label] for other, taken in self.taken.items())
            if self.free[label] - 1 < lacking + (label not in self.trained):
                return False
        return True

    def _take(self, group: str, split: str) -> None:
        self.split_of[group] = split
        self.taken[split].update(self.members[group])
        self.lacking[split] -= len(self.members[group])
        self.free.subtract(set(self.members[group]))

    def _take_for(self, label: int, split: str, ranked: list[str]) -> None:
        """Hold out a group for a class that a split would lack: if groups are large, none may bring the split nearer to its share."""
        able = (group for group in ranked if group not in self.split_of and label in self.members[group] and self._spared(group, split))
        group = max(able, key=lambda group: self._gain(group, split), default=None)
        if group is None:
            reason = (
                f"class {self.classes[label]}: none of its {self.hold_out.unit} can go to {split} and leave every class some for training"
            )
            raise ConfigError(f"{self.hold_out.source}: {reason}; try another seed, add some, or {self.hold_out.leave_out}")
        self._take(group, split)

    def _refuse_small_classes(self) -> None:
        """Raise a ConfigError if a class has fewer groups than there are parts."""
        parts, unit = self.hold_out.parts, self.hold_out.unit
        numbers = [self.free[label] for label in range(len(self.classes))]
        short = [label for label, number in enumerate(numbers) if number + (label in self.trained) < len(parts)]
        if short:
            small = first_few([f"{self.classes[label]} ({numbers[label]})" for label in short])
            note = " (without those that are in other splits too, or have an image without a label)" * bool(self.trained & {*short})
            least = f"{'an image' if unit == 'images' else 'one'} each for {' and '.join(parts)}"
            raise ConfigError(
                f"{self.hold_out.source}: too few {unit} in {small}{note}, for {least}; add some, or {self.hold_out.leave_out}"
            )
