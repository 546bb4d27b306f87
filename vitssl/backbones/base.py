"""What an objective may expect of any backbone.

Shapes: B images, C channels, H W pixels, N tokens of the output grid, M kept tokens, P prefix tokens, D width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor, nn


class Embedded(NamedTuple):
    """Images after everything that does not depend on which tokens are kept."""

    tokens: Tensor
    grid: tuple[int, int]  # of the backbone's output: rows, columns


@dataclass
class Features:
    """One pass through a backbone.

    ``tokens`` and ``prefix`` went through the final norm; the entries of ``stages`` did not (``Backbone.norm`` does it).
    """

    prefix_BPD: Tensor
    tokens_BND: Tensor  # N, or M where the pass kept M tokens
    grid: tuple[int, int]  # of the N tokens: rows, columns
    stages: dict[int, tuple[Tensor, tuple[int, int]]] = field(default_factory=dict)  # block -> (all tokens after it, grid)


class Backbone(nn.Module):
    """Images to named features, in two steps so that several passes share one patch embedding.

    Attributes:
        embed_dim: width D of the output.
        num_prefix_tokens: P.
        patch_size: pixels per side of an output token.
        num_layers: depth for layer decay: ids run from 0 (embedding) to ``num_layers + 1`` (heads, not part of a backbone).
    """

    embed_dim: int
    num_prefix_tokens: int
    patch_size: int
    num_layers: int
    norm: nn.Module

    def grid(self, size_px: int) -> tuple[int, int]:
        """Rows and columns of the output grid for a square image."""
        return size_px // self.patch_size, size_px // self.patch_size

    def embed(self, images_BCHW: Tensor) -> Embedded:
        """The first step, which passes over the same normalised (B, 3, H, W) images share."""
        raise NotImplementedError

    def forward(self, embedded: Embedded, keep_BM: Tensor | None = None, blocks: tuple[int, ...] = ()) -> Features:
        """Run the blocks and the final norm.

        Args:
            embedded: what ``embed`` gave.
            keep_BM: int64 indices of the output grid's tokens to keep; the others are dropped before the first block.
            blocks: the blocks (from 0) whose output is wanted in ``Features.stages``.
        """
        raise NotImplementedError

    def layer_id(self, name: str) -> int:
        """Depth of a parameter, by its name within the backbone, for layer-wise learning-rate decay."""
        raise NotImplementedError

    def adapt(self, state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """Fit another run's tensors to this backbone's image size (positions), where that is a matter of interpolation."""
        return state
