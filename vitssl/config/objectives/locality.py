"""The fields of ``objectives.locality``: locality guidance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Optional

from vitssl.config.backbones import BackboneConfig, num_intermediates
from vitssl.config.base import Problem, checkpoint, less_than
from vitssl.config.objectives.base import ObjectiveConfig

if TYPE_CHECKING:
    from vitssl.config.run import Run


@dataclass
class LocalityConfig(ObjectiveConfig):
    """Features follow those of a small convolutional teacher (Li et al. 2022, locality guidance)."""

    smoke: ClassVar[dict[str, Any]] = {"blocks": [0, 0, 1], "stages": [0, 1, 2]}
    teacher: Optional[str] = checkpoint()  # its weights: an earlier stage of the arm, a run folder, a checkpoint file
    teacher_backbone: BackboneConfig = field(default_factory=lambda: BackboneConfig(name="resnet56"))  # the backbone of the teacher's run
    teacher_px: int = 32  # pixels per side to which the view is downscaled for the teacher
    blocks: list[int] = field(default_factory=lambda: [0, 6, 11])  # of the student, from 0, whose features follow the teacher's
    stages: list[int] = field(default_factory=lambda: [0, 1, 2])  # of the teacher, one for each block

    def reads_output(self) -> bool:
        return False

    def problems(self, name: str, run: Run) -> Iterator[Problem]:
        yield from super().problems(name, run)
        if self.teacher is None:
            yield Problem(f"{name}.teacher", "name the trained teacher: an earlier stage of the arm, a run folder")
        yield from less_than(1, self, name, "teacher_px")
        yield from self.teacher_backbone.problems(f"{name}.teacher_backbone", [(f"{name}.teacher_px", self.teacher_px)])
        if len(self.blocks) != len(self.stages) or not self.blocks:
            yield Problem(f"{name}.stages", f"{self.stages} are not as many as blocks={self.blocks}")
        for key, backbone in (("blocks", run.backbone), ("stages", self.teacher_backbone)):
            indices, count = getattr(self, key), num_intermediates(backbone)
            if any(not 0 <= index < count for index in indices):
                near = [round(index / max(indices) * (count - 1)) if max(indices) > 0 else 0 for index in indices]
                reason = f"{indices} are not all in 0 to {count - 1}, what {backbone.name} has; set others, such as {near}"
                yield Problem(f"{name}.{key}", reason)
