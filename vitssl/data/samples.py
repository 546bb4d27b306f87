"""What a source lists: its images by split, each with its class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

UNLABELLED = -1  # as in `vitssl.data.batch`, which needs torch; writing and listing shards does not
Options = dict[str, list[str]]  # what follows the "?" of a source, by key


class Sample(NamedTuple):
    """One image of a source."""

    name: str  # for messages: a path relative to the source, or a number
    label: int  # position of the class in `Source.classes`, or -1
    image: str | np.ndarray  # path of an image file, or pixels (H, W) or (H, W, 3)


@dataclass
class Source:
    """The samples of a data set, by split; the splits hold their samples in an order that is part of the data set."""

    name: str
    classes: list[str]
    splits: dict[str, Sequence[Sample]]

    def samples(self) -> Iterator[tuple[str, Sample]]:
        for split, samples in self.splits.items():
            yield from ((split, sample) for sample in samples)
