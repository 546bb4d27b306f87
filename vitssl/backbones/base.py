"""What an objective may expect of any backbone.

To add one: a family in `vitssl/config/backbones.py` (and the names of its sizes in `Backbone.name` there), and a file here named as
the family, whose ``build(cfg, size_px, requires)`` gives the backbone. The Model, the loop and the launcher need no change.

Shapes: B images, C channels, H W pixels, N tokens of the output grid, M kept tokens, P prefix tokens, D width.
"""

from __future__ import annotations

import re
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

    ``tokens`` and ``prefix`` went through the final norm; the entries of ``stages`` did not (``Encode.norm`` does it).
    """

    prefix_BPD: Tensor
    tokens_BND: Tensor  # N, or M where the pass kept M tokens
    grid: tuple[int, int]  # of the N tokens: rows, columns
    stages: dict[int, tuple[Tensor, tuple[int, int]]] = field(default_factory=dict)  # end -> (all tokens there, grid of the patch tokens)


class Backbone(nn.Module):
    """Images to named features, in two steps so that several passes share one patch embedding.

    An *end* is a place whose features can be asked for: after every block of a plain backbone, after every stage of one that
    shrinks its grid; the last one's are what the final norm gets.

    Attributes:
        embed_dim: width D of the output.
        num_prefix_tokens: P, of the output and of the ends that carry them (those of the output's width).
        strides: pixels per side of a patch token at each end.
        widths: D at each end.
        num_layers: depth for layer decay: ids run from 0 (embedding) to ``num_layers + 1`` (the final norm, and heads).
        norm: the final norm, of tokens (..., D).
    """

    embed_dim: int
    num_prefix_tokens: int
    strides: tuple[int, ...]
    widths: tuple[int, ...]
    num_layers: int
    norm: nn.Module

    @property
    def stride(self) -> int:
        """Pixels per side of an output token."""
        return self.strides[-1]

    def grid(self, size_px: int, end: int = -1) -> tuple[int, int]:
        """Rows and columns of the output grid (or of an end's) for a square image."""
        return size_px // self.strides[end], size_px // self.strides[end]

    def embed(self, images_BCHW: Tensor) -> Embedded:
        """The first step, which passes over the same normalised (B, 3, H, W) images share."""
        raise NotImplementedError

    def forward(
        self, embedded: Embedded, keep_BM: Tensor | None = None, mask_BN: Tensor | None = None, ends: tuple[int, ...] = ()
    ) -> Features:
        """Run the blocks and the final norm.

        Args:
            embedded: what ``embed`` gave.
            keep_BM: int64 indices of the output grid's tokens to keep; the others are dropped. Only where config says "keep".
            mask_BN: bool, True = hidden: what of the output grid is replaced by a learned token. Only where config says "mask".
            ends: the ends whose features are wanted in ``Features.stages``.
        """
        raise NotImplementedError

    def layer_id(self, name: str) -> int:
        """Depth of a parameter, by its name within the backbone, for layer-wise learning-rate decay."""
        raise NotImplementedError

    def adapt(self, state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """Fit other weights to this backbone: positions to its image size, names of foreign checkpoints to ours."""
        return state


class Plain(Backbone):
    """A class token and equal blocks, whose every block is an end.

    Attributes:
        blocks: of the transformer, called with tokens (B, 1 + N, D).
    """

    num_prefix_tokens = 1
    blocks: nn.Module

    def _transform(self, tokens: Tensor, grid: tuple[int, int], ends: tuple[int, ...]) -> Features:
        """Blocks and final norm, of the class token and patch tokens behind it."""
        stages = {}
        for i, block in enumerate(self.blocks):
            tokens = block(tokens)
            if i in ends:
                stages[i] = (tokens, grid)
        tokens = self.norm(tokens)
        return Features(tokens[:, :1], tokens[:, 1:], grid, stages)

    def layer_id(self, name: str) -> int:
        """0 for all that makes tokens; block i is i + 1; the final norm counts with the heads, as in MAE's code."""
        block = re.match(r"blocks\.(\d+)\.", name)
        if block:
            return int(block[1]) + 1
        return self.num_layers + 1 if name.startswith("norm.") else 0
