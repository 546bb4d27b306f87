"""What a source lists: its images by split, each with its class."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from vitssl.config import ConfigError

Options = dict[str, list[str]]  # what follows the "?" of a source, by key


def refuse_twice(source: str, options: Options, may: Collection[str] = ()) -> None:
    """Raises a ConfigError where an option has several values, and is not one of those that may."""
    if twice := next((key for key, values in options.items() if key not in may and len(values) > 1), None):
        raise ConfigError(f"{source}: {twice} is there twice, as {' and as '.join(options[twice])}; leave out one")


class Sample(NamedTuple):
    """One image of a source."""

    name: str  # for messages: a path relative to the source, or a number
    label: int  # position of the class in `Source.classes`, or -1
    image: str | np.ndarray  # path of an image file or of the tar that holds it, or pixels (H, W) or (H, W, 3)
    group: str = ""  # what it is not to be parted from, a patient's other images for example; "": nothing


@dataclass
class Source:
    """The samples of a data set, by split; the splits hold their samples in an order that is part of the data set."""

    name: str
    classes: list[str]
    splits: dict[str, Sequence[Sample]]
    grouped: bool = dataclasses.field(default=False, kw_only=True)  # samples say which group they are of

    def samples(self) -> Iterator[tuple[str, Sample]]:
        for split, samples in self.splits.items():
            yield from ((split, sample) for sample in samples)

    @property
    def head(self) -> list[Any]:
        """What makes another data set of the same samples."""
        return self.classes


def group_numbers(samples: Iterable[Sample]) -> np.ndarray:
    """Of each sample the number of its group, int64, in the order of their names; one without a group is the only one of its number."""
    names = [sample.group for sample in samples]
    numbers = {name: number for number, name in enumerate(sorted({*names} - {""}))}
    alone = itertools.count(len(numbers))
    return np.array([numbers[name] if name else next(alone) for name in names], dtype=np.int64)


@dataclass(frozen=True)
class InOrder(Sequence[Sample]):
    """Samples in another order, of which none is made before it is asked for."""

    samples: Sequence[Sample]
    order: np.ndarray

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, place: Any) -> Any:
        return self.samples[int(self.order[place])]


@dataclass
class Tars(Source):
    """A WebDataset that stays where it is: each "sample" is one of its tars, which a build reads and links to as a shard.

    `classes` are empty where the labels in the tars say which there are.
    """

    endings: tuple[str, ...]  # of the members that are images, without the dot
    member: str  # the ending of the members that hold a label
    field: tuple[str, ...]  # where it is in their JSON; empty where the label is all of their text

    @property
    def head(self) -> list[Any]:
        return [self.classes, self.endings, self.member, self.field]
