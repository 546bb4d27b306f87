"""The fields of ``objectives.simclr``: contrastive learning (SimCLR)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vitssl.config.base import Problem, minimum_problems, positive_problems
from vitssl.config.objectives.base import ObjectiveConfig, Pool, negatives_problems, pool_requirements, two_views_problems

if TYPE_CHECKING:
    from vitssl.config.run import Run


@dataclass
class SimclrConfig(ObjectiveConfig):
    """NT-Xent between two views of every image (Chen et al. 2020).

    The paper's head has one hidden layer, as wide as its ResNet-50's output. Google's code has three layers (`layers: 3`), `hidden_dim` is
    the backbone's width, and `last_batch_norm` is true. The defaults here are vitssl's own: the paper's head with a batch norm after the
    hidden layer.
    """

    needs_colours: ClassVar[bool] = True
    smoke: ClassVar[dict[str, Any]] = {"hidden_dim": 32, "out_dim": 16}
    second: str = "second"  # the other view; may be `view` itself if that has count 2
    pool: Pool = "cls"  # what the head reads: the class token, or the mean of the patch tokens
    hidden_dim: int = 2048  # width of the head's hidden layers
    out_dim: int = 128  # width of the head's output
    layers: int = 2  # linear layers of the head
    batch_norm: bool = True  # batch norm after each hidden layer, over one view at a time (Google's code: over both together)
    last_batch_norm: bool = False  # batch norm after the last layer too; neither then has a bias
    temperature: float = 0.1  # what the cosine similarities are divided by

    def requires(self) -> set[str]:
        return pool_requirements(self.pool)

    def views(self) -> list[str]:
        return list(dict.fromkeys([self.view, self.second]))

    def has_batch_norm(self) -> bool:
        return self.batch_norm or self.last_batch_norm

    def problems(self, name: str, run: Run) -> Iterator[Problem]:
        yield from super().problems(name, run)
        yield from minimum_problems(1, self, name, "hidden_dim", "out_dim", "layers")
        yield from positive_problems(self, name, "temperature")
        yield from negatives_problems(name, run)
        yield from two_views_problems(name, run, self.views())
