"""The fields of ``objectives.mae``: masked image modelling (MAE, SimMIM, ConvMAE)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitssl.config.backbones import size_of
from vitssl.config.base import Problem
from vitssl.config.objectives.reconstruction import ReconstructionConfig

if TYPE_CHECKING:
    from vitssl.config.run import Run


@dataclass
class MaeConfig(ReconstructionConfig):
    """MAE by the defaults of its code; its released weights had normalised targets.

    With ``hide: mask``, ``decoder: pixel_shuffle`` and ``loss: l1`` it is SimMIM, with ``fuse`` ConvMAE.
    """

    fuse: bool = False  # add earlier stages' features to the last one's before the decoder (ConvMAE)

    def problems(self, name: str, run: Run) -> Iterator[Problem]:
        yield from super().problems(name, run)
        if self.fuse and len(size_of(run.backbone).depths) < 2:
            yield Problem(f"{name}.fuse", f"{run.backbone.name} has no earlier stages to fuse")
