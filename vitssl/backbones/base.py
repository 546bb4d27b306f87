"""What an objective may expect of any backbone.

To add one: a family in `vitssl/config/backbones.py` (and the names of its sizes in ``BackboneConfig.name`` there), and a file here named
as the family, whose ``build(cfg, size_px, requires)`` gives the backbone. The Model, the loop and the launcher need no change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Embedded(NamedTuple):
    """Images after everything that does not depend on which tokens are kept."""

    tokens: Tensor
    grid: tuple[int, ...]  # of the backbone's output: rows, columns


@dataclass
class Features:
    """The tokens at the end of a pass through a backbone, or at one of its intermediate places.

    Those at the end went through the final norm, the intermediate ones did not (`Step.norm` does it). Each image's sequence is
    prefix tokens, patch tokens, extra tokens.
    """

    prefix_BPD: Tensor  # class token and registers
    tokens_BND: Tensor  # patch tokens, row by row; M where the pass kept M of the N
    extra_BJD: Tensor  # learned tokens that the network appends after the patches
    grid: tuple[int, ...]  # of the N tokens: rows, columns
    intermediates: dict[int, Features] = field(default_factory=dict)  # by ``out_indices``
    selection_BJN: Tensor | None = None  # the weights with which the extra tokens were pooled from the patch tokens

    @classmethod
    def split(cls, sequence_BTD: Tensor, num_prefix_tokens: int, num_extra_tokens: int, grid: tuple[int, ...], **more: Any) -> Features:
        """The parts of a sequence; ``more`` gives the fields after these."""
        T = sequence_BTD.shape[1]
        parts = sequence_BTD.tensor_split([num_prefix_tokens, T - num_extra_tokens], dim=1)
        return cls(*parts, grid, **more)

    @classmethod
    def of_map(cls, map_BDHW: Tensor, **more: Any) -> Features:
        """A map's places as patch tokens, and no other tokens."""
        return cls.split(map_BDHW.flatten(2).transpose(1, 2), 0, 0, (int(map_BDHW.shape[2]), int(map_BDHW.shape[3])), **more)

    def sequence(self) -> Tensor:
        """All tokens, (B, T, D)."""
        parts = [part for part in (self.prefix_BPD, self.tokens_BND, self.extra_BJD) if part.shape[1]]
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    def pooled(self, pool: str) -> Tensor:
        """One vector for each image, (B, D); parts that ``+`` joins are concatenated.

        Args:
            pool: ``cls``, the class token; ``reg``, the mean of the registers; ``mean``, that of the patch tokens.

        Raises:
            ValueError: there is no class token; an objective whose config `requires` one is refused before.
        """
        if "cls" in pool.split("+") and not self.prefix_BPD.shape[1]:
            raise ValueError("this backbone has no class token (cls); an objective that needs one says so by `requires` of its config")
        parts = {
            "cls": lambda: self.prefix_BPD[:, 0],
            "reg": lambda: self.prefix_BPD[:, 1:].mean(1),
            "mean": lambda: self.tokens_BND.mean(1),
        }
        pooled = [parts[part]() for part in pool.split("+")]
        return pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=1)

    def of_images(self, rows: slice) -> Features:
        """The features of some of the images, without their intermediates."""
        selection_BJN = None if self.selection_BJN is None else self.selection_BJN[rows]
        return Features(self.prefix_BPD[rows], self.tokens_BND[rows], self.extra_BJD[rows], self.grid, selection_BJN=selection_BJN)

    def normed(self, norm: Callable[[Tensor], Tensor]) -> Features:
        """The same tokens after a norm."""
        return self.holding(norm(self.sequence()))

    def holding(self, sequence_BTD: Tensor, **more: Any) -> Features:
        """Features of these parts with other values, without these intermediates."""
        parts = (self.prefix_BPD.shape[1], self.extra_BJD.shape[1])
        return Features.split(sequence_BTD, *parts, self.grid, selection_BJN=self.selection_BJN, **more)

    def map(self, index: int | None = None) -> Tensor:
        """The patch tokens on their grid, (B, D, H, W), or with a further axis where the grid has one.

        Args:
            index: of an intermediate; None: of these features.
        """
        if index is not None:
            return self.intermediates[index].map()
        return self.tokens_BND.transpose(1, 2).unflatten(2, self.grid)


class Backbone(nn.Module):
    """Images to features, in two steps so that several passes share one patch embedding.

    An intermediate place is one whose features can be requested by its index (timm's ``out_indices``): after every block of an isotropic
    transformer, after every stage of a backbone that shrinks its grid; the last one's features are what the final norm gets.

    On one GPU a pass is recorded as a CUDA graph: it changes nothing but tensors, in place, and copies nothing to or from the host.

    Attributes:
        embed_dim: width D of the output.
        num_prefix_tokens: P, of the output and of the intermediate places that carry them (those of the output's width).
        strides: pixels per side of a patch token at each intermediate place.
        widths: D at each of them.
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

    def grid(self, size_px: int | tuple[int, ...], index: int = -1) -> tuple[int, ...]:
        """Rows and columns of the output's grid, or of an intermediate place's; a backbone for videos has a third axis.

        Args:
            size_px: height and width of the images, or the side of square ones.
            index: of the intermediate place.
        """
        sides_px = (size_px, size_px) if isinstance(size_px, int) else size_px
        return tuple(side // self.strides[index] for side in sides_px)

    def grid_of(self, images_BCHW: Tensor) -> tuple[int, ...]:
        """The output's grid for these images."""
        return self.grid(tuple(int(side) for side in images_BCHW.shape[2:]))

    def embed(self, images_BCHW: Tensor) -> Embedded:
        """The first step, which passes over the same normalised (B, 3, H, W) images share."""
        raise NotImplementedError

    def forward(
        self, embedded: Embedded, keep_BM: Tensor | None = None, mask_BN: Tensor | None = None, out_indices: tuple[int, ...] = ()
    ) -> Features:
        """Run the blocks and the final norm.

        Args:
            embedded: what ``embed`` gave.
            keep_BM: int64 indices of the output grid's tokens to keep; the others are dropped. Only where config says "keep".
            mask_BN: bool, True = hidden: what of the output grid is replaced by a learned token. Only where config says "mask".
            out_indices: the intermediate places whose features are wanted in ``Features.intermediates``.
        """
        raise NotImplementedError

    def layer_id(self, name: str) -> int:
        """Depth of a parameter, by its name within the backbone, for layer-wise learning-rate decay."""
        raise NotImplementedError

    def convert_state_dict(self, state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """Fit other weights to this backbone: positions to its image size, names of foreign checkpoints to ours."""
        return state


class ConvNet(Backbone):
    """A stem and stages of convolutions, for images of any size; a token is a place of the last map. An intermediate place is a stage.

    There is no final norm, and no class token.

    Attributes:
        depths: blocks of each stage.
        stages: called with a map one after the other.
    """

    num_prefix_tokens = 0
    depths: tuple[int, ...]
    stages: Iterable[nn.Module]

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Identity()

    def stem(self, images_BCHW: Tensor) -> Tensor:
        """The map that the first stage gets."""
        raise NotImplementedError

    def embed(self, images_BCHW: Tensor) -> Embedded:
        return Embedded(self.stem(images_BCHW), self.grid_of(images_BCHW))

    def forward(
        self, embedded: Embedded, keep_BM: Tensor | None = None, mask_BN: Tensor | None = None, out_indices: tuple[int, ...] = ()
    ) -> Features:
        assert keep_BM is None and mask_BN is None, "config lets no objective hide tokens of a convolutional network"
        map_BDHW, intermediates = embedded.tokens, {}
        for i, stage in enumerate(self.stages):
            map_BDHW = stage(map_BDHW)
            if i in out_indices:
                intermediates[i] = Features.of_map(map_BDHW)
        return Features.of_map(map_BDHW, intermediates=intermediates)

    def _init_convolutions(self) -> None:
        """As timm: He et al.'s normal."""
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")


class Part(nn.Module):
    """What an `IsotropicTransformer` has before one of its blocks."""

    def forward(self, tokens: Features) -> Features:
        """The tokens that the block gets: it may append extra ones, which the blocks after it see and ``Features.extra_BJD`` holds."""
        raise NotImplementedError

    def convert_state_dict(self, state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """Fit other weights to this part; its names in ``state`` begin with ``prefix``."""
        return state


class IsotropicTransformer(Backbone):
    """Prefix tokens, patch tokens and blocks of one width; every block is an intermediate place.

    Attributes:
        blocks: of the transformer, called with tokens (B, T, D).
        inserted: parts that change the tokens on their way, by the number of the block that they come before.
    """

    num_prefix_tokens = 1
    blocks: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self.inserted = nn.ModuleDict()

    def insert(self, part: Part, before: int) -> None:
        """Let ``part`` change the tokens before block ``before`` (from 0)."""
        assert 0 <= before < self.num_layers and str(before) not in self.inserted, f"no place for a part before block {before}"
        self.inserted[str(before)] = part

    def _transform(self, tokens: Features, out_indices: tuple[int, ...]) -> Features:
        """Blocks and final norm."""
        intermediates, sequence = {}, tokens.sequence()
        for i, block in enumerate(self.blocks):
            if str(i) in self.inserted:
                tokens = self.inserted[str(i)](tokens.holding(sequence))
                sequence = tokens.sequence()
            sequence = block(sequence)
            if i in out_indices:
                intermediates[i] = tokens.holding(sequence)
        return tokens.holding(self.norm(sequence), intermediates=intermediates)

    def convert_state_dict(self, state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
        for place, part in self.inserted.items():
            state = part.convert_state_dict(state, f"{prefix}inserted.{place}.")
        return state

    def layer_id(self, name: str) -> int:
        """0 for all that makes tokens; block i is i + 1, and so is what is inserted before it; the final norm counts with the heads, as
        in MAE's code."""
        block = re.match(r"(?:blocks|inserted)\.(\d+)\.", name)
        if block:
            return int(block[1]) + 1
        return self.num_layers + 1 if name.startswith("norm.") else 0
