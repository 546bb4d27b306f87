"""What analyses share: which images they look at, and what they give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from vitssl.config import NO_SHARDS, ConfigError
from vitssl.data import UNLABELLED
from vitssl.data.index import load_index
from vitssl.data.loading.batch import Batch
from vitssl.data.loading.loader import EvalLoader
from vitssl.trained import Trained

AT_ONCE = 64  # images of a pass: their attention maps are held, (heads, T, T) for each block


@dataclass
class Numbers:
    """What an analysis found.

    Attributes:
        facts: small numbers, for JSON.
        arrays: what a figure needs besides.
    """

    facts: dict[str, Any]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass
class Sample:
    """A seeded draw of images.

    Attributes:
        trained: the run, whose evaluation says how images are seen.
        count: of images; fewer where the split has fewer.
        split: of the shards, or several joined by ``+``; None: what the run is tested on.
        shards: None: the run's.
    """

    trained: Trained
    count: int = 1000
    split: str | None = None
    shards: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        data = self.trained.run.data
        if self.shards is None and data.shards == NO_SHARDS:
            raise ConfigError("the run was imported without images; name some", "--shards")
        self.index, parts = self.trained.data() if self.shards is None else (load_index(self.shards), None)
        own_fold = parts is not None and data.folds is not None and self.split is None
        self.split = self.split or ("the run's fold" if own_fold else data.test_split)
        positions = parts.test if own_fold else self.index.where(self.split)
        if not len(positions):
            raise ConfigError(f"{self.index.folder}: split {self.split} has no images", "--split")
        self.positions = np.random.default_rng(self.seed).permutation(positions)[: self.count]

    def check_finite(self, values: Tensor, what: str) -> None:
        """Refuse what a network that diverged gives."""
        if not values.isfinite().all():
            raise ConfigError(f"the {what} are not finite", place=str(self.trained.folder))

    def labels(self, classes: list[str]) -> list[int]:
        """The classes of its images as positions in ``classes``, by their names; UNLABELLED for none, or one that is not there."""
        number = {name: k for k, name in enumerate(classes)}
        of_label = [*(number.get(name, UNLABELLED) for name in self.index.classes), UNLABELLED]  # -1 is the last
        return [of_label[label] for label in self.index.label[self.positions]]

    def facts(self) -> dict[str, Any]:
        """Where the images and the weights are from."""
        images = {"images": len(self.positions), "shards": self.index.name, "split": self.split, "seed": self.seed}
        return images | {"checkpoint": self.trained.checkpoint, "weights": self.trained.weights, "step": self.trained.step}

    def batches(self) -> Iterator[Batch]:
        """As the run's evaluation sees them."""
        loader = EvalLoader(
            self.index, self.positions, self.index.label, self.trained.run.data, batch_size=AT_ONCE, device=self.trained.device
        )
        for raw in loader:
            yield self.trained.view(raw)
