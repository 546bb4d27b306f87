"""The fields of ``objectives.sit``: rotation, contrast and reconstruction with two tokens (SiT, first version)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from vitssl.config.base import Problem, less_than
from vitssl.config.data import view_px
from vitssl.config.objectives.base import ObjectiveConfig

if TYPE_CHECKING:
    from vitssl.config.run import Run

BLUR_RADIUS_PX = 7  # of the widest kernel


@dataclass
class SitConfig(ObjectiveConfig):
    """Two rotated and corrupted views of each image: by how much each is turned, which two belong together, and what they were.

    Atito et al. 2021, arXiv:2104.03602; the defaults are its first version's code.
    """

    makes: ClassVar[tuple[str, ...]] = ("sit",)
    smoke: ClassVar[dict[str, Any]] = {"out_dim": 16}
    # The corruptions, in this order, of every view. A rectangle begins anywhere, has sides that are uniform between the shares of the
    # image's, and is cut at the image's edge.
    gray: list[float] = field(default_factory=lambda: [0.05, 1.0])  # sides of a rectangle that becomes the mean of its channels
    blur: list[float] = field(default_factory=lambda: [0.05, 1.0])  # sides of a rectangle that is blurred
    sides: list[float] = field(default_factory=lambda: [0.05, 0.25])  # of the rectangles of noise and of another image
    noise_area: float = 0.3  # rectangles become N(0, 1) until their areas sum up to a share drawn from 0 to this; 0: off
    alien_area: float = 0.3  # the same with another corrupted image of the batch
    out_dim: int = 512  # of the contrastive projection, a linear layer
    temperature: float = 0.5
    negatives: Literal["global", "per_gpu"] = "global"  # other images of the global batch, or as the code of this GPU's alone
    # How the three are weighted, with a learned s for each (start 1, a = 1, 1, 1/2): exp(-a s) L + s / 2, as the code does since its commit
    # 2ec822e; factor: a exp(-s) L + s / 2, its first release; none: their plain sum
    uncertainty: Literal["exponent", "factor", "none"] = "exponent"

    def requires(self) -> set[str]:
        return {"cls", "reg"}

    def inactive_fields(self) -> dict[str, str]:
        return {} if self.noise_area or self.alien_area else {"sides": "noise_area or alien_area"}

    def problems(self, name: str, run: Run) -> Iterator[Problem]:
        yield from super().problems(name, run)
        yield from less_than(1, self, name, "out_dim")
        for key in ("gray", "blur", "sides"):
            sides = getattr(self, key)
            if len(sides) != 2 or not 0 < sides[0] <= sides[1] <= 1:
                yield Problem(f"{name}.{key}", f"{sides} is not a rising pair of numbers in (0, 1]")
        for key in ("noise_area", "alien_area"):
            if not 0 <= getattr(self, key) <= 1:
                yield Problem(f"{name}.{key}", f"{getattr(self, key)} is not in [0, 1]")
        if self.temperature <= 0:
            yield Problem(f"{name}.temperature", f"{self.temperature} is not positive")
        if (count := getattr(run.data.views, self.view).count) != 2:
            yield Problem(name, f"data.views.{self.view}.count is {count}; two views are compared, so that it must be 2")
        if (px := view_px(run.data, self.view)) <= BLUR_RADIUS_PX:
            yield Problem(name, f"data.views.{self.view} has {px} px, fewer than a blur's {BLUR_RADIUS_PX + 1}")
        if run.backbone.reg_tokens != 1:
            yield Problem("backbone.reg_tokens", f"{run.backbone.reg_tokens} beside the class token; {name} wants 1")
        if run.optim.batch_size < 2:
            yield Problem(name, "a batch of one image has no negatives; set optim.batch_size")
        if run.loop.micro_batch_size is not None and run.loop.micro_batch_size < run.optim.batch_size:
            yield Problem(name, "loop.micro_batch_size may split the batch, whose images are the negatives; leave it out")
