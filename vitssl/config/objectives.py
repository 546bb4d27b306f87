"""The fields of ``objectives``: one dataclass each, with what it asks of a Run.

An objective's class is named as its field, in `vitssl/objectives/<field>.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Optional

from vitssl.config.base import less_than
from vitssl.config.data import view_px

if TYPE_CHECKING:
    from vitssl.config.run import Run


@dataclass
class Objective:
    """What every objective has."""

    needs: ClassVar[frozenset[str]] = frozenset()  # what a backbone must offer
    needs_labels: ClassVar[bool] = False  # where no other objective is active, unlabelled images are left out
    weight: float = 1.0
    view: str = "main"

    def views(self) -> list[str]:
        """The names of the views that it reads."""
        return [self.view]

    def problems(self, name: str, run: Run) -> Iterator[str]:
        """``name`` is the path of the field, such as objectives.mae."""
        yield from less_than(0, self, name, "weight")


@dataclass
class Classify(Objective):
    needs_labels: ClassVar[bool] = True
    pool: Literal["cls", "mean"] = "cls"
    label_smoothing: float = 0.0

    def problems(self, name: str, run: Run) -> Iterator[str]:
        yield from super().problems(name, run)
        if not 0 <= self.label_smoothing < 1:
            yield f"{name}.label_smoothing: {self.label_smoothing} is not in [0, 1)"


@dataclass
class Mae(Objective):
    needs: ClassVar[frozenset[str]] = frozenset({"keep"})
    mask_ratio: float = 0.75
    decoder_dim: int = 512
    decoder_depth: int = 8
    decoder_heads: int = 16
    normalize_targets: bool = False  # per-patch normalised pixels

    def problems(self, name: str, run: Run) -> Iterator[str]:
        yield from super().problems(name, run)
        if not 0 < self.mask_ratio < 1:
            yield f"{name}.mask_ratio: {self.mask_ratio} is not between 0 and 1"
        patch_size = max(1, run.backbone.patch_size)  # the backbone's own check refuses 0, later
        tokens = (view_px(run.data, self.view) // patch_size) ** 2
        if int(tokens * (1 - self.mask_ratio)) < 1:
            yield f"{name}.mask_ratio: {self.mask_ratio} keeps none of the {tokens} tokens; lower it or use smaller patches"
        yield from less_than(1, self, name, "decoder_dim", "decoder_depth", "decoder_heads")
        if self.decoder_dim % self.decoder_heads or self.decoder_dim % 4:
            yield f"{name}.decoder_dim: {self.decoder_dim} must be a multiple of decoder_heads={self.decoder_heads} and of 4"


@dataclass
class Objectives:
    """One optional field per objective; null is off."""

    classify: Optional[Classify] = None
    mae: Optional[Mae] = None


def active(objectives: Objectives) -> dict[str, Any]:
    """The objectives that are on, by name, in the order of the fields."""
    return {f.name: v for f in dataclasses.fields(objectives) if (v := getattr(objectives, f.name)) is not None}
