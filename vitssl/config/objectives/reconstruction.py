"""The fields that the objectives with a masked reconstruction, MAE and LUT, share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from vitssl.config.backbones import stride_px
from vitssl.config.base import Problem, interval_problems, minimum_problems
from vitssl.config.data import view_px
from vitssl.config.objectives.base import ObjectiveConfig
from vitssl.words import counted

if TYPE_CHECKING:
    from vitssl.config.run import Run


@dataclass
class ReconstructionConfig(ObjectiveConfig):
    """How many tokens are hidden, and how, what predicts their pixels, and the error."""

    smoke: ClassVar[dict[str, Any]] = {"decoder_dim": 32, "decoder_depth": 1, "decoder_heads": 2}
    mask_ratio: float = 0.75  # fraction of the tokens that are hidden
    hide: Literal["drop", "mask"] = "drop"  # drop hidden tokens, or replace them by a learned mask token
    # what predicts pixels: MAE's transformer, or one linear layer (SimMIM)
    decoder: Literal["transformer", "pixel_shuffle"] = "transformer"
    decoder_dim: int = 512  # width of the transformer decoder
    decoder_depth: int = 8  # blocks of the transformer decoder
    decoder_heads: int = 16  # attention heads of the transformer decoder
    loss: Literal["l2", "l1"] = "l2"  # squared (l2) or absolute (l1) error of the hidden pixels
    normalize_targets: bool = False  # normalise the target pixels of each patch by its own mean and variance

    def num_tokens(self, run: Run) -> int:
        """Return N, the number of tokens of the view."""
        return (view_px(run.data, self.view) // stride_px(run.backbone)) ** 2

    def num_kept(self, run: Run) -> int:
        """Return M, the number of tokens of the view that are not hidden."""
        return int(self.num_tokens(run) * (1 - self.mask_ratio))

    def requires(self) -> set[str]:
        return {"keep"} if self.hide == "drop" else {"mask"}

    def inactive_fields(self) -> dict[str, str]:
        decoder = ("decoder_dim", "decoder_depth", "decoder_heads")
        return dict.fromkeys(decoder, "decoder: transformer") if self.decoder == "pixel_shuffle" else {}

    def problems(self, name: str, run: Run) -> Iterator[Problem]:
        yield from super().problems(name, run)
        yield from interval_problems("(0, 1)", self, name, "mask_ratio", share=True)
        if self.num_kept(run) < 1:
            reason = f"{self.mask_ratio} keeps none of {counted(self.num_tokens(run), 'token')}; lower it or use smaller patches"
            yield Problem(f"{name}.mask_ratio", reason)
        yield from self._decoder_problems(name)

    def _decoder_problems(self, name: str) -> Iterator[Problem]:
        if self.decoder == "pixel_shuffle":
            if self.hide == "drop":
                reason = f"pixel_shuffle decodes every token, but hide=drop removes the hidden ones; set {name}.hide=mask"
                yield Problem(f"{name}.decoder", reason)
            return
        yield from minimum_problems(1, self, name, "decoder_dim", "decoder_depth", "decoder_heads")
        if self.decoder_dim % self.decoder_heads or self.decoder_dim % 4:
            yield Problem(f"{name}.decoder_dim", f"{self.decoder_dim} must be a multiple of decoder_heads={self.decoder_heads} and of 4")
