"""The images that analyses look at, and the numbers that they return."""

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

AT_ONCE = 64  # images per pass, since their attention maps are held, (heads, T, T) for each block


@dataclass
class Numbers:
    """The results of an analysis.

    Attributes:
        facts: a few numbers and texts, for JSON.
        arrays: further arrays that a figure needs.
    """

    facts: dict[str, Any]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass
class DrawnImages:
    """Images drawn at random from a split.

    Attributes:
        trained: the run, whose evaluation view the images get.
        count: number of images; if the split has fewer, all of it.
        split: of the shards, or several joined by ``+``; None for the split that the run is tested on.
        shards: to draw from; None for the run's.
        seed: of the draw.
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
        fold = parts.test if parts is not None and data.folds is not None and self.split is None else None
        self.split = self.split or (data.test_split if fold is None else "the run's fold")
        positions = self.index.where(self.split) if fold is None else fold
        if not len(positions):
            raise ConfigError(f"{self.index.folder}: split {self.split} has no images", "--split")
        self.positions = np.random.default_rng(self.seed).permutation(positions)[: self.count]

    def check_finite(self, values: Tensor, what: str) -> None:
        """Refuse values that are not finite, such as those of a network that diverged.

        Raises:
            ConfigError: some of them are not finite.
        """
        if not values.isfinite().all():
            raise ConfigError(f"the {what} are not finite", place=str(self.trained.folder))

    def labels(self, classes: list[str]) -> list[int]:
        """Return the classes of the images as indices into ``classes``, matched by name; UNLABELLED if there is none or no match."""
        position = {name: k for k, name in enumerate(classes)}
        mapped = [*(position.get(name, UNLABELLED) for name in self.index.classes), UNLABELLED]  # the label -1 reads the last entry
        return [mapped[label] for label in self.index.label[self.positions]]

    def facts(self) -> dict[str, Any]:
        """Return where the images and the weights come from."""
        images = {"images": len(self.positions), "shards": self.index.name, "split": self.split, "seed": self.seed}
        return images | {"checkpoint": self.trained.checkpoint, "weights": self.trained.weights, "step": self.trained.step}

    def batches(self) -> Iterator[Batch]:
        """Yield the images as the run's evaluation sees them."""
        loader = EvalLoader(
            self.index, self.positions, self.index.label, self.trained.run.data, batch_size=AT_ONCE, device=self.trained.device
        )
        for raw in loader:
            yield self.trained.view(raw)
