"""The fields that objectives share that hide tokens from the network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitssl.config.backbones import stride_px
from vitssl.config.base import Problem, outside
from vitssl.config.data import view_px
from vitssl.config.objectives.base import ObjectiveConfig
from vitssl.words import counted

if TYPE_CHECKING:
    from vitssl.config.run import Run


@dataclass
class HidingConfig(ObjectiveConfig):
    """How many tokens are hidden."""

    mask_ratio: float = 0.75  # fraction of the tokens that are hidden

    def num_tokens(self, run: Run) -> int:
        """N of the view."""
        return (view_px(run.data, self.view) // stride_px(run.backbone)) ** 2

    def num_kept(self, run: Run) -> int:
        """M, the tokens of the view that are not hidden."""
        return int(self.num_tokens(run) * (1 - self.mask_ratio))

    def problems(self, name: str, run: Run) -> Iterator[Problem]:
        yield from super().problems(name, run)
        yield from outside("(0, 1)", self, name, "mask_ratio", share=True)
        if self.num_kept(run) < 1:
            reason = f"{self.mask_ratio} keeps none of {counted(self.num_tokens(run), 'token')}; lower it or use smaller patches"
            yield Problem(f"{name}.mask_ratio", reason)
