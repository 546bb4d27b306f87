"""The fields of ``objectives.classify``: classification."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Optional

from vitssl.config.base import Problem, less_than
from vitssl.config.objectives.base import ObjectiveConfig, Pool, of_pool

if TYPE_CHECKING:
    from vitssl.config.run import Run


@dataclass
class ClassifyConfig(ObjectiveConfig):
    classifies: ClassVar[bool] = True
    needs_labels: ClassVar[bool] = True
    pool: Pool = "cls"
    label_smoothing: float = 0.0
    init_std: Optional[float] = None  # of the head's weights at the start: 0 (timm 0.4), 2e-5 (MAE), 0.01 (probes); None: as backbone.init

    def requires(self) -> set[str]:
        return of_pool(self.pool)

    def problems(self, name: str, run: Run) -> Iterator[Problem]:
        yield from super().problems(name, run)
        if not 0 <= self.label_smoothing < 1:
            yield Problem(f"{name}.label_smoothing", f"{self.label_smoothing} is not in [0, 1)")
        yield from less_than(0, self, name, "init_std")
