"""The fields of ``objectives.drloc``: dense relative localisation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Optional

from vitssl.config.backbones import size_of, stage_strides_px, stride_px
from vitssl.config.base import Problem, minimum_problems
from vitssl.config.data import view_px
from vitssl.config.objectives.base import ObjectiveConfig

if TYPE_CHECKING:
    from vitssl.config.run import Run


@dataclass
class DrlocConfig(ObjectiveConfig):
    """Dense relative localisation (Liu et al. 2021); the defaults are the paper's text for Swin, whose grid is not pooled."""

    smoke: ClassVar[dict[str, Any]] = {"pairs": 8, "hidden_dim": 32}
    pairs: int = 64  # pairs of tokens per image, whose offset is predicted
    hidden_dim: int = 512  # hidden width of the MLP that predicts offsets
    loss: Literal["l1", "ce", "cbr"] = "l1"  # how offsets are learned: L1 regression, classification, cycle-back regression
    # with loss l1: offsets divided by the numbers of rows and columns (paper), or in tokens (code)
    target: Literal["normalized", "raw"] = "normalized"
    signed: bool = False  # predict signed offsets
    reduction: Literal["sum", "mean"] = "sum"  # of the l1 error over the two coordinates: sum as in Eq. 2, mean as in the code
    # of the token grid first: none (Swin), 2x2 (paper, for CvT and T2T), or 3x3 with stride 2 and padding (code, for both)
    pooling: Literal["none", "2x2", "3x3"] = "none"
    features: Literal["raw", "normed"] = "raw"  # the last block's output before or after the final norm
    multi_scale: bool = False  # a head after the last block of every stage; the code reads them after patch merging
    num_classes: Optional[int] = None  # classes per axis, for ce and cbr; null: as many as the grid needs
    warmup_epochs: float = 0.0  # epochs in which the weight rises linearly from 0
    end_epoch: Optional[float] = None  # after the warm-up the weight falls linearly and reaches 0 at this epoch; null: it stays constant

    def reads_output(self) -> bool:
        return self.features == "normed"

    def inactive_fields(self) -> dict[str, str]:
        if self.loss == "l1":
            return {"num_classes": "loss: ce or cbr"}
        return dict.fromkeys(("target", "reduction"), "loss: l1")

    def problems(self, name: str, run: Run) -> Iterator[Problem]:
        yield from super().problems(name, run)
        yield from minimum_problems(1, self, name, "pairs", "hidden_dim", "num_classes")
        yield from minimum_problems(0, self, name, "warmup_epochs")
        if self.end_epoch is not None and self.end_epoch <= self.warmup_epochs:
            yield Problem(f"{name}.end_epoch", f"{self.end_epoch:g} is not after warmup_epochs={self.warmup_epochs:g}")
        if self.multi_scale and len(size_of(run.backbone).depths) < 2:
            yield Problem(f"{name}.multi_scale", f"{run.backbone.name} has one stage only")
        if self.multi_scale and self.features == "normed":
            yield Problem(f"{name}.features", "the final norm does not fit earlier stages; with multi_scale set raw")
        strides = stage_strides_px(run.backbone) if self.multi_scale else [stride_px(run.backbone)]
        for stride in strides:
            side = view_px(run.data, self.view) // stride
            if self.pooling == "2x2" and side % 2:
                yield Problem(f"{name}.pooling", f"2x2 does not divide the {side} x {side} tokens")
            if self.pooled(side) < 2:
                yield Problem(name, f"a grid of one token has no pairs; {view_px(run.data, self.view)} px are {side} x {side} tokens")
            if self.num_classes is not None and self.num_classes < self.num_offsets(side):
                yield Problem(f"{name}.num_classes", f"{self.num_classes} is less than the {self.num_offsets(side)} offsets of the grid")

    def pooled(self, side: int) -> int:
        """Return the side of the token grid after pooling, in tokens; ``side`` is the one before."""
        return {"none": side, "2x2": side // 2, "3x3": (side + 1) // 2}[self.pooling]

    def num_offsets(self, side: int) -> int:
        """Return the number of different offsets along an axis of the pooled grid; ``side`` is that of the grid before pooling."""
        return 2 * self.pooled(side) - 1 if self.signed else self.pooled(side)
