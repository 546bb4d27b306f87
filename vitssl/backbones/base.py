"""The interface that objectives expect of every backbone.

To add a backbone, add a family to `vitssl/config/backbones.py` (and the names of its sizes to ``BackboneConfig.name`` there), and a file
in this folder with the name of the family, whose ``build(cfg, size_px, requires)`` returns the backbone. The Model, the loop and the
launcher need no change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Embedded(NamedTuple):
    """Images after all computation that does not depend on which tokens a pass keeps."""

    tokens: Tensor
    grid: tuple[int, ...]  # rows and columns of the backbone's output


@dataclass
class Features:
    """The tokens at the end of a pass through a backbone, or at one of its intermediate layers.

    The final norm has been applied to the tokens at the end, but not to intermediate ones (`Step.norm` applies it). The sequence of each
    image consists of prefix tokens, patch tokens and extra tokens, in this order.
    """

    prefix_BPD: Tensor  # class token and registers
    tokens_BND: Tensor  # patch tokens, row by row; only M if the pass kept M of the N
    extra_BJD: Tensor  # learned tokens that the network appends after the patches
    grid: tuple[int, ...]  # rows and columns of all N tokens
    intermediates: dict[int, Features] = field(default_factory=dict)  # by index, as in ``out_indices``
    selection_BJN: Tensor | None = None  # the weights with which the extra tokens were pooled from the patch tokens

    @classmethod
    def split(cls, sequence_BTD: Tensor, num_prefix_tokens: int, num_extra_tokens: int, grid: tuple[int, ...], **more: Any) -> Features:
        """Split a sequence into prefix, patch and extra tokens; ``more`` sets the remaining fields."""
        T = sequence_BTD.shape[1]
        prefix_BPD, tokens_BND, extra_BJD = sequence_BTD.tensor_split([num_prefix_tokens, T - num_extra_tokens], dim=1)
        return cls(prefix_BPD, tokens_BND, extra_BJD, grid, **more)

    @classmethod
    def of_map(cls, map_BDHW: Tensor, **more: Any) -> Features:
        """Take the positions of a map as patch tokens, without prefix and extra tokens; ``more`` sets the remaining fields."""
        return cls.split(map_BDHW.flatten(2).transpose(1, 2), 0, 0, (int(map_BDHW.shape[2]), int(map_BDHW.shape[3])), **more)

    def sequence(self) -> Tensor:
        """Return all tokens of each image, (B, T, D)."""
        parts = [part for part in (self.prefix_BPD, self.tokens_BND, self.extra_BJD) if part.shape[1]]
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    def pooled(self, pool: str) -> Tensor:
        """Return one vector for each image, (B, D).

        Args:
            pool: ``cls`` (the class token), ``reg`` (the mean of the registers) or ``mean`` (the mean of the patch tokens). Several of them
                joined by ``+`` are concatenated.

        Raises:
            ValueError: there is no class token. If the config of an objective names it in `requires`, the Run is refused earlier.
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

    def select_images(self, rows: slice) -> Features:
        """Return the features of the images in ``rows``, without their intermediates."""
        selection_BJN = None if self.selection_BJN is None else self.selection_BJN[rows]
        return Features(self.prefix_BPD[rows], self.tokens_BND[rows], self.extra_BJD[rows], self.grid, selection_BJN=selection_BJN)

    def apply_norm(self, norm: Callable[[Tensor], Tensor]) -> Features:
        """Return the tokens after ``norm``, without the intermediates."""
        return self.with_sequence(norm(self.sequence()))

    def with_sequence(self, sequence_BTD: Tensor, **more: Any) -> Features:
        """Return features that hold ``sequence_BTD``, split into as many prefix, patch and extra tokens as here.

        Intermediates are left out unless ``more``, which sets the remaining fields, contains them.
        """
        parts = (self.prefix_BPD.shape[1], self.extra_BJD.shape[1])
        return Features.split(sequence_BTD, *parts, self.grid, selection_BJN=self.selection_BJN, **more)

    def map(self, index: int | None = None) -> Tensor:
        """Return the patch tokens on their grid, (B, D, H, W); if the grid has a third axis, so does the map.

        Args:
            index: of the intermediate layer whose tokens to return; None for the tokens of these features.
        """
        if index is not None:
            return self.intermediates[index].map()
        return self.tokens_BND.transpose(1, 2).unflatten(2, self.grid)


class Backbone(nn.Module):
    """A network from images to features, in two steps so that several passes can share one patch embedding.

    Features of intermediate layers can be requested by index (timm's ``out_indices``). Every block of an isotropic transformer is an
    intermediate layer, and every stage of a backbone that shrinks its grid. The final norm is applied to the output of the last one.

    On one GPU a pass is recorded as a CUDA graph, so it must change nothing but tensors, in place, and copy nothing to or from the host.

    Attributes:
        embed_dim: width D of the output.
        num_prefix_tokens: number P of prefix tokens in the output, and at the intermediate layers that have any (those of width
            ``embed_dim``).
        strides: pixels per side of a patch token, for each intermediate layer.
        widths: width D, for each intermediate layer.
        num_layers: depth for layer decay: layer ids run from 0 (embedding) to ``num_layers + 1`` (final norm and heads).
        norm: the final norm, for tokens (..., D).
    """

    embed_dim: int
    num_prefix_tokens: int
    strides: tuple[int, ...]
    widths: tuple[int, ...]
    num_layers: int
    norm: nn.Module

    @property
    def stride(self) -> int:
        """The number of pixels per side of an output token."""
        return self.strides[-1]

    def grid(self, size_px: int | tuple[int, ...], index: int = -1) -> tuple[int, ...]:
        """Return the rows and columns of an intermediate layer's grid; a backbone for videos has a third axis.

        Args:
            size_px: height and width of the images, or the side of square images.
            index: of the intermediate layer; by default the last one, whose grid is the output's.
        """
        sides_px = (size_px, size_px) if isinstance(size_px, int) else size_px
        return tuple(side // self.strides[index] for side in sides_px)

    def grid_of(self, images_BCHW: Tensor) -> tuple[int, ...]:
        """Return the grid of the output for ``images_BCHW``."""
        return self.grid(tuple(int(side) for side in images_BCHW.shape[2:]))

    def embed(self, images_BCHW: Tensor) -> Embedded:
        """Run the first step, which all passes over the same normalised images (B, 3, H, W) share."""
        raise NotImplementedError

    def forward(
        self, embedded: Embedded, keep_BM: Tensor | None = None, mask_BN: Tensor | None = None, out_indices: tuple[int, ...] = ()
    ) -> Features:
        """Run the blocks and the final norm.

        Args:
            embedded: the result of ``embed``.
            keep_BM: int64 indices of the tokens of the output grid to keep; the others are dropped. Only for backbones that config gives
                the capability "keep".
            mask_BN: bool, True = hidden: tokens of the output grid to replace by a learned one. Only with the capability "mask".
            out_indices: the intermediate layers whose features to return in ``Features.intermediates``.
        """
        raise NotImplementedError

    def layer_id(self, name: str) -> int:
        """Return the depth of the parameter ``name`` (its name within the backbone), for layer-wise learning-rate decay."""
        raise NotImplementedError

    def convert_state_dict(self, state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """Return ``state`` fitted to this backbone: positions resized to its image size, names of foreign checkpoints replaced by ours.

        Args:
            state: weights by name.
            prefix: the beginning of the names in ``state`` that belong to the backbone.
        """
        return state


class ConvNet(Backbone):
    """A convolutional network of a stem and stages, for images of any size.

    Its tokens are the positions of the last stage's map, and every stage is an intermediate layer. It has no final norm and no class token.

    Attributes:
        depths: number of blocks in each stage.
        stages: modules through which the map passes, one after the other.
    """

    num_prefix_tokens = 0
    depths: tuple[int, ...]
    stages: Iterable[nn.Module]

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Identity()

    def stem(self, images_BCHW: Tensor) -> Tensor:
        """Return the map that the first stage gets."""
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
        """Initialise all convolutions with He et al.'s normal distribution, as timm does."""
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")


class Part(nn.Module):
    """Base class of the modules that can be inserted before a block of an `IsotropicTransformer`."""

    def forward(self, tokens: Features) -> Features:
        """Return the tokens for the block. A part may append extra tokens (``Features.extra_BJD``), which all later blocks see too."""
        raise NotImplementedError

    def convert_state_dict(self, state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """Return ``state`` fitted to this part, whose names in it begin with ``prefix``."""
        return state


class IsotropicTransformer(Backbone):
    """A transformer whose prefix tokens, patch tokens and blocks all have one width; every block is an intermediate layer.

    Attributes:
        blocks: the transformer's blocks, called with tokens (B, T, D).
        inserted: parts that change the tokens between blocks, by the number of the block that they come before.
    """

    num_prefix_tokens = 1
    blocks: nn.ModuleList

    def __init__(self) -> None:
        super().__init__()
        # torch's ModuleDict does not say what kind of modules it holds
        self.inserted: MutableMapping[str, Part] = nn.ModuleDict()  # type: ignore[assignment]

    def insert(self, part: Part, before: int) -> None:
        """Let ``part`` change the tokens before block ``before``, counted from 0."""
        assert 0 <= before < self.num_layers and str(before) not in self.inserted, f"no place for a part before block {before}"
        self.inserted[str(before)] = part

    def _transform(self, tokens: Features, out_indices: tuple[int, ...]) -> Features:
        """Run the blocks and the final norm."""
        intermediates, sequence = {}, tokens.sequence()
        for i, block in enumerate(self.blocks):
            if str(i) in self.inserted:
                tokens = self.inserted[str(i)](tokens.with_sequence(sequence))
                sequence = tokens.sequence()
            sequence = block(sequence)
            if i in out_indices:
                intermediates[i] = tokens.with_sequence(sequence)
        return tokens.with_sequence(self.norm(sequence), intermediates=intermediates)

    def convert_state_dict(self, state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
        for block, part in self.inserted.items():
            state = part.convert_state_dict(state, f"{prefix}inserted.{block}.")
        return state

    def layer_id(self, name: str) -> int:
        """Return 0 for everything that makes tokens, and i + 1 for block i and the part inserted before it.

        The final norm counts with the heads, as in MAE's code.
        """
        block = re.match(r"(?:blocks|inserted)\.(\d+)\.", name)
        if block:
            return int(block[1]) + 1
        return self.num_layers + 1 if name.startswith("norm.") else 0
