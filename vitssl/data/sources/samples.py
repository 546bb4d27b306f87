"""The contents of a source: its images by split, each with its class."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from vitssl.config import ConfigError

Options = dict[str, list[str]]  # what follows the "?" of a source, by key


def refuse_repeated_options(source: str, options: Options, repeatable: Collection[str] = ()) -> None:
    """Raise a ConfigError if an option has several values and is not among ``repeatable``."""
    if twice := next((key for key, values in options.items() if key not in repeatable and len(values) > 1), None):
        raise ConfigError(f"{source}: {twice} is there twice, as {' and as '.join(options[twice])}; leave out one")


class Sample(NamedTuple):
    """One image of a source."""

    name: str  # for messages: a path relative to the source, or a number
    label: int  # position of the class in `Source.classes`, or -1 if it has none
    image: str | np.ndarray  # path of an image file or of the tar that holds it, or pixels (H, W) or (H, W, 3)
    group: str = ""  # name of the group that it must stay with, for example a patient's images; "" if none


@dataclass
class Source:
    """The samples of a data set by split. The order of the samples in each split is part of the data set."""

    name: str
    classes: list[str]
    splits: Mapping[str, Sequence[Sample]]
    grouped: bool = dataclasses.field(default=False, kw_only=True)  # whether samples name their group

    def samples(self) -> Iterator[tuple[str, Sample]]:
        """Yield each sample with the split that it is in."""
        for split, samples in self.splits.items():
            yield from ((split, sample) for sample in samples)

    @property
    def head(self) -> list[Any]:
        """What distinguishes data sets that have the same samples."""
        return self.classes


def group_numbers(samples: Iterable[Sample]) -> np.ndarray:
    """Return the number of each sample's group, int64, in the order of the groups' names.

    Each sample without a group has a number of its own.
    """
    names = [sample.group for sample in samples]
    numbers = {name: number for number, name in enumerate(sorted({*names} - {""}))}
    alone = itertools.count(len(numbers))
    return np.array([numbers[name] if name else next(alone) for name in names], dtype=np.int64)


@dataclass(frozen=True)
class InOrder(Sequence[Sample]):
    """Samples in another order, each of which is made only when it is asked for."""

    samples: Sequence[Sample]
    order: np.ndarray

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, place: Any) -> Any:
        return self.samples[int(self.order[place])]


@dataclass
class Tars(Source):
    """A WebDataset that stays where it is: each "sample" is one of its tars, which a build reads and links to as a shard.

    `classes` is empty if the labels in the tars say which classes there are.
    """

    endings: tuple[str, ...]  # endings of the members that are images, without the dot
    member: str  # the ending of the members that hold a label
    field: tuple[str, ...]  # the field of their JSON that holds the label; empty if the label is all of their text

    @property
    def head(self) -> list[Any]:
        return [self.classes, self.endings, self.member, self.field]
