"""The fields of ``objectives.sit``: rotation, contrast and reconstruction with two tokens (SiT, first version)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from vitssl.config.base import Problem, interval_problems, minimum_problems, positive_problems, rising_problems
from vitssl.config.data import view_px
from vitssl.config.objectives.base import ObjectiveConfig, negatives_problems, two_views_problems

if TYPE_CHECKING:
    from vitssl.config.run import Run

BLUR_RADIUS_PX = 7  # radius of the widest blur kernel
MOST_RECTANGLES = 960  # rectangles drawn per image, at most


@dataclass
class SitConfig(ObjectiveConfig):
    """From two rotated and corrupted views of each image: predict the rotation, match the two views, and reconstruct the image.

    Atito et al. 2021, arXiv:2104.03602; the defaults are those of the first version's code. Every view is corrupted in the order of the
    fields. A rectangle begins anywhere, its sides are uniform between the given fractions of the image's side, and it is cut at the image's
    edge.
    """

    makes: ClassVar[tuple[str, ...]] = ("sit",)
    smoke: ClassVar[dict[str, Any]] = {"out_dim": 16}
    # side lengths of the rectangle that turns grey, as fractions of the image's side
    gray: list[float] = field(default_factory=lambda: [0.05, 1.0])
    blur: list[float] = field(default_factory=lambda: [0.05, 1.0])  # side lengths of the rectangle that is blurred
    # side lengths of the rectangles filled with noise or with another image
    sides: list[float] = field(default_factory=lambda: [0.05, 0.25])
    # rectangles are filled with N(0, 1) until their areas add up to a fraction of the image drawn from 0 to this value; 0: off
    noise_area: float = 0.3
    alien_area: float = 0.3  # as noise_area, but filled from another corrupted image of the batch
    out_dim: int = 512  # width of the contrastive projection, a linear layer
    temperature: float = 0.5  # what the contrastive loss divides similarities by
    # negatives: the other images of the global batch, or only of this GPU (as in the code). Copies of an image (data.repeats) are not
    # negatives of each other; here they are all on one GPU, while the code spreads them over GPUs
    negatives: Literal["global", "per_gpu"] = "global"
    # how the three losses L are weighted, with a learned s for each (initially 1; a = 1, 1, 1/2). exponent: exp(-a s) L + s / 2, as in the
    # code since its commit 2ec822e; factor: a exp(-s) L + s / 2, as in its first release; none: their plain sum
    uncertainty: Literal["exponent", "factor", "none"] = "exponent"

    def num_rectangles(self, area: float) -> int:
        """Return how many rectangles are drawn to fill a share ``area`` of the image: four times as many as it takes on average."""
        return math.ceil(4 * area / (sum(self.sides) / 2) ** 2)

    def requires(self) -> set[str]:
        return {"cls", "reg"}

    def inactive_fields(self) -> dict[str, str]:
        return {} if self.noise_area or self.alien_area else {"sides": "noise_area or alien_area"}

    def problems(self, name: str, run: Run) -> Iterator[Problem]:
        yield from super().problems(name, run)
        yield from minimum_problems(1, self, name, "out_dim")
        for key in ("gray", "blur", "sides"):
            yield from rising_problems(f"{name}.{key}", getattr(self, key), 1.0)
        yield from interval_problems("[0, 1]", self, name, "noise_area", "alien_area", share=True)
        for area in (self.noise_area, self.alien_area):
            if 0 <= area <= 1 and len(self.sides) == 2 and sum(self.sides) > 0 and (count := self.num_rectangles(area)) > MOST_RECTANGLES:
                yield Problem(
                    f"{name}.sides", f"rectangles of {self.sides} would have to be {count} to fill {area}; at most {MOST_RECTANGLES}"
                )
        yield from positive_problems(self, name, "temperature")
        yield from two_views_problems(name, run, self.views())
        if (px := view_px(run.data, self.view)) <= BLUR_RADIUS_PX:
            yield Problem(name, f"data.views.{self.view} has {px} px, fewer than a blur's {BLUR_RADIUS_PX + 1}")
        if run.backbone.reg_tokens != 1:
            yield Problem("backbone.reg_tokens", f"{run.backbone.reg_tokens} registers beside the class token; {name} needs 1")
        yield from negatives_problems(name, run)
