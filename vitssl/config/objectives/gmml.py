"""The fields of ``objectives.gmml``: group masked model learning (GMML)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Optional

from vitssl.config.backbones import BackboneConfig, family, num_intermediates, stride_px
from vitssl.config.base import Problem, interval_problems, minimum_problems
from vitssl.config.data import view_px
from vitssl.config.objectives.base import ObjectiveConfig

if TYPE_CHECKING:
    from vitssl.config.run import Run


PAPER_BLOCKS = (5, 7, 9, 11)  # the blocks that the paper fuses in its networks of twelve, counted from 0
MOST_BLOCKS = 960  # as many as the exponents of a float64 can order


@dataclass(frozen=True)
class Cells:
    """The division of a square image into cells, and the sides that blocks may have.

    Attributes:
        count: number of cells per side of the image.
        px: pixels per side of a cell.
        max_side_px: the sides of blocks are uniform from ``px`` to less than this, before blocks are cut at the image's edge.
    """

    count: int
    px: int
    max_side_px: int

    @property
    def starts(self) -> int:
        """The number of cells per side in which a block may start: all but the last if blocks can be longer than a cell (GMML's code)."""
        longest = round((self.max_side_px - 1) / self.px)
        return self.count - 1 if longest > 1 and self.count > 1 else self.count

    def enough_blocks(self, area: float) -> int:
        """Return twice the number of blocks that cover a share ``area`` of an image on average; above 0.95, the number for 0.95."""
        starts, sides = range(self.starts), range(self.px, self.max_side_px)
        mean_side = sum(round(min(side / self.px, self.count - start)) for start in starts for side in sides) / len(starts) / len(sides)
        mean_area = (mean_side / self.count) ** 2
        return math.ceil(2 * math.log(1 - min(area, 0.95)) / math.log1p(-mean_area)) + 1 if mean_area < 1 else 1


@dataclass
class Corruption:
    """One kind of corruption."""

    share: float = 1.0  # share of images that get this kind, relative to the other kinds' shares
    # blocks are added until they cover a fraction of the image drawn from this range
    area: list[float] = field(default_factory=lambda: [0.5, 0.75])


@dataclass
class AlienCorruption(Corruption):
    area: list[float] = field(default_factory=lambda: [0.3, 0.3])


@dataclass
class Corruptions:
    """What comes in the place of an image's blocks; each image gets one of the kinds that are on, and null is off."""

    noise: Optional[Corruption] = field(default_factory=Corruption)  # replace blocks by noise, N(0, 1)
    zeros: Optional[Corruption] = None  # set blocks to 0 (after normalisation)
    alien: Optional[AlienCorruption] = field(default_factory=AlienCorruption)  # replace blocks by those of another image of the batch
    copy: Optional[Corruption] = None  # replace each block by one from another place in the same image

    def enabled(self) -> dict[str, Corruption]:
        """Return the kinds of corruption that are on, by name."""
        return {f.name: value for f in dataclasses.fields(self) if (value := getattr(self, f.name)) is not None}


@dataclass
class GmmlConfig(ObjectiveConfig):
    """Reconstruct an image whose blocks are corrupted (Atito et al. 2022).

    The defaults are those of the paper's code. Its text has `align: patch`, `decoder_layers: 2`, `activation: relu` and noise on 70 % of
    the patches or alien patches on 30 %: `corrupt: {noise: {area: [0.7, 0.7]}}`. Without any corruption and with `loss_on: all` it is an
    autoencoder.

    The objective is made for pretraining. Because of the decoder's initialisation (three layers, weights with a standard deviation of
    0.02), its gradient in the blocks is at first 15,000 (ViT-S) to 300,000 (vit_pico) times smaller than a classifier's. Adam makes up for
    that if GMML is the only objective, but not beside a classifier.
    """

    smoke: ClassVar[dict[str, Any]] = {"blocks": None}
    corrupt: Corruptions = field(default_factory=Corruptions)  # the kinds of corruption, of which each image gets one
    align: Literal["pixel", "patch"] = "pixel"  # whether corrupted blocks begin and end at any pixel, or at patches' edges
    max_side: float = 0.3  # largest side of a block, as a fraction of the image's side; at least one pixel or patch
    # blocks whose outputs are fused for the decoder, counted from 0; -1 is the last. null: with twelve blocks [5, 7, 9, 11] (the paper's),
    # with other depths those at the same relative depth, with stages [-1]
    blocks: Optional[list[int]] = None
    fuse: Literal["mean", "sum"] = "mean"  # how the outputs of several blocks are combined
    decoder_layers: int = 3  # linear layers, each with an activation, before the last one, which predicts pixels
    activation: Literal["gelu", "relu"] = "gelu"  # of the decoder's layers
    loss: Literal["l1", "l2"] = "l1"  # absolute or squared error of the pixels
    loss_on: Literal["corrupted", "all"] = "corrupted"  # which pixels the loss counts

    def inactive_fields(self) -> dict[str, str]:
        kinds = self.corrupt.enabled()
        inactive = {} if kinds else dict.fromkeys(("align", "max_side"), "a kind of corruption")
        inactive |= {} if self.decoder_layers else {"activation": "decoder_layers"}
        return inactive | ({} if self.blocks is None or len(self.blocks) > 1 else {"fuse": "several blocks"})

    def explicit_defaults(self) -> set[str]:
        return {"blocks"} if self.blocks == list(PAPER_BLOCKS) else set()

    def fused(self, backbone: BackboneConfig) -> list[int]:
        """Return the blocks whose outputs are fused, counted from 0 and sorted."""
        count = num_intermediates(backbone)
        if self.blocks is not None:
            return sorted(block % count for block in self.blocks)
        if len(family(backbone).widths) > 1:
            return [count - 1]
        return sorted({math.ceil((block + 1) * count / 12) - 1 for block in PAPER_BLOCKS})

    def cells(self, size_px: int, patch_px: int) -> Cells:
        """Return the cells of an image of ``size_px``: patches with ``align: patch``, pixels otherwise."""
        px = patch_px if self.align == "patch" else 1
        return Cells(size_px // px, px, max(int(self.max_side * size_px), px + 1))

    def largest_area(self) -> float:
        """Return the largest share of an image that a kind of corruption may have to cover."""
        return max(kind.area[1] for kind in self.corrupt.enabled().values())

    def problems(self, name: str, run: Run) -> Iterator[Problem]:
        yield from super().problems(name, run)
        yield from interval_problems("(0, 1]", self, name, "max_side", share=True)
        yield from self._corruption_problems(name, run)
        yield from minimum_problems(0, self, name, "decoder_layers")
        yield from self._block_problems(name, run)

    def _corruption_problems(self, name: str, run: Run) -> Iterator[Problem]:
        kinds = self.corrupt.enabled()
        for kind, corruption in kinds.items():
            if len(corruption.area) != 2 or not 0 <= corruption.area[0] <= corruption.area[1] <= 1:
                yield Problem(f"{name}.corrupt.{kind}.area", f"{corruption.area} is not a rising pair of numbers in [0, 1]")
            if not 0 < corruption.share < math.inf:
                yield Problem(f"{name}.corrupt.{kind}.share", f"{corruption.share} is not positive; null is off")
            elif len(kinds) == 1 and corruption.share != 1:
                yield Problem(f"{name}.corrupt.{kind}.share", f"{corruption.share} has an effect only with several kinds; leave it out")
        if not kinds and self.loss_on == "corrupted":
            yield Problem(f"{name}.loss_on", "no kind of corruption is on, so the loss would count no pixels; set one, or loss_on: all")
        smallest = min(run.optim.batch_size, run.loop.micro_batch_size or run.optim.batch_size)
        if "alien" in kinds and smallest < 2:
            field_name = "loop.micro_batch_size" if run.loop.micro_batch_size == 1 else "optim.batch_size"
            yield Problem(field_name, f"1 image has no other to take blocks from; raise it, or set {name}.corrupt.alien=null")
        cells = self.cells(view_px(run.data, self.view), stride_px(run.backbone))
        if "copy" in kinds and cells.count == 1:
            yield Problem(f"{name}.corrupt.copy", "an image of one patch has nothing elsewhere to copy")
        if kinds and (needed := cells.enough_blocks(self.largest_area())) > MOST_BLOCKS:
            reason = f"{self.max_side} makes blocks so small that an image may need {needed} of them, more than {MOST_BLOCKS}; raise it"
            yield Problem(f"{name}.max_side", reason)

    def _block_problems(self, name: str, run: Run) -> Iterator[Problem]:
        count = num_intermediates(run.backbone)
        if self.blocks is None:
            return
        if not self.blocks or any(not -count <= block < count for block in self.blocks):
            advice = f"what {run.backbone.name} has; null takes some that fit"
            yield Problem(f"{name}.blocks", f"{self.blocks} are not all in {-count} to {count - 1}, {advice}")
            return
        chosen = {block % count for block in self.blocks}
        if len(chosen) < len(self.blocks):
            yield Problem(f"{name}.blocks", f"{self.blocks} names a block twice")
        if count - 1 not in chosen:
            yield Problem(
                f"{name}.blocks", f"{self.blocks} lacks the last block, so the blocks after its largest would stay untrained; add -1"
            )
        if len(chosen) > 1 and len(family(run.backbone).widths) > 1:
            yield Problem(f"{name}.blocks", f"{run.backbone.name} has stages of several widths; set [-1], its output")
