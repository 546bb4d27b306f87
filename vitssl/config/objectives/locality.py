"""The fields of ``objectives.locality``: locality guidance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Optional

from vitssl.config.backbones import BackboneConfig, num_intermediates
from vitssl.config.base import Problem, checkpoint, minimum_problems
from vitssl.config.objectives.base import ObjectiveConfig

if TYPE_CHECKING:
    from vitssl.config.run import Run

PAPER_BLOCKS = (0, 6, 11)  # the student's blocks in the paper


@dataclass
class LocalityConfig(ObjectiveConfig):
    """Features follow those of a small convolutional teacher (Li et al. 2022, locality guidance)."""

    smoke: ClassVar[dict[str, Any]] = {"blocks": [0, 0, 1], "stages": [0, 1, 2]}
    teacher: Optional[str] = checkpoint()  # the teacher's weights: an earlier stage of the arm, a run folder, or a checkpoint file
    teacher_backbone: BackboneConfig = field(default_factory=lambda: BackboneConfig(name="resnet56"))  # the backbone of the teacher's run
    teacher_px: int = 32  # the view is downscaled to this many pixels per side for the teacher
    blocks: Optional[list[int]] = None  # the student's blocks, counted from 0, whose features follow the teacher's; null: the paper's
    stages: list[int] = field(default_factory=lambda: [0, 1, 2])  # the teacher's stages, one for each block

    def student_blocks(self, backbone: BackboneConfig) -> list[int]:
        """Return the student's block for each of the teacher's ``stages``.

        By default they are the paper's (the first, the middle and the last of twelve) if these fit, otherwise evenly spread ones.
        """
        if self.blocks is not None:
            return self.blocks
        count = num_intermediates(backbone)
        return list(PAPER_BLOCKS) if count > PAPER_BLOCKS[-1] and len(self.stages) == len(PAPER_BLOCKS) else spread(len(self.stages), count)

    def explicit_defaults(self) -> set[str]:
        return {"blocks"} if self.blocks == list(PAPER_BLOCKS) else set()

    def reads_output(self) -> bool:
        return False

    def problems(self, name: str, run: Run) -> Iterator[Problem]:
        yield from super().problems(name, run)
        if self.teacher is None:
            yield Problem(f"{name}.teacher", "name the trained teacher: an earlier stage of the arm, a run folder")
        yield from minimum_problems(1, self, name, "teacher_px")
        yield from self.teacher_backbone.problems(f"{name}.teacher_backbone", [(f"{name}.teacher_px", self.teacher_px)])
        blocks = self.student_blocks(run.backbone)
        if len(blocks) != len(self.stages) or not self.stages:
            yield Problem(f"{name}.stages", f"{self.stages} does not match the number of blocks={blocks}")
        for key, indices, backbone in (("blocks", blocks, run.backbone), ("stages", self.stages, self.teacher_backbone)):
            count = num_intermediates(backbone)
            if any(not 0 <= index < count for index in indices):
                advice = f"what {backbone.name} has; set others, such as {spread(len(indices), count)}"
                yield Problem(f"{name}.{key}", f"{indices} are not all in 0 to {count - 1}, {advice}")


def spread(number: int, count: int) -> list[int]:
    """Return ``number`` of the indices 0 to ``count`` - 1, evenly spread and with both ends."""
    return [round(i * (count - 1) / max(1, number - 1)) for i in range(number)]
