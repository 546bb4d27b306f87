"""The fields of ``objectives.dino``: self-distillation (DINO)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Optional

from vitssl.config.base import Problem, interval_problems, minimum_problems, positive_problems
from vitssl.config.objectives.base import ObjectiveConfig, Pool, pool_requirements, repeated_view_problems

if TYPE_CHECKING:
    from vitssl.config.run import Run


@dataclass
class DinoConfig(ObjectiveConfig):
    """Self-distillation with multi-crop (Caron et al. 2021); the defaults are its ViT-S/16's."""

    has_teacher: ClassVar[bool] = True
    needs_colours: ClassVar[bool] = True
    smoke: ClassVar[dict[str, Any]] = {"hidden_dim": 32, "bottleneck_dim": 16, "out_dim": 64}
    second: str = "second"  # the other global view
    local: Optional[str] = "local"  # view of small crops, seen by the student only; null: none
    pool: Pool = "cls"  # what the head reads: the class token, or the mean of the patch tokens
    hidden_dim: int = 2048  # width of the head's hidden layers
    bottleneck_dim: int = 256  # width of the head's output, before the prototypes
    out_dim: int = 65536  # number of prototypes
    layers: int = 3  # linear layers of the head, up to the bottleneck
    batch_norm: bool = False  # batch norms in the head, over all crops together
    teacher_batch_norm: Literal["batch", "running"] = "batch"  # statistics that the teacher's batch norms use (DINO's code: batch)
    norm_last_layer: bool = True  # fix the norms of the prototypes
    freeze_last_layer_epochs: float = 1.0  # epochs at the start in which the prototypes are not trained
    student_temperature: float = 0.1  # what the student's scores are divided by
    teacher_temperature: float = 0.04  # what the teacher's scores are divided by, after the warm-up
    warmup_teacher_temperature: float = 0.04  # what the teacher's scores are divided by at the start of the warm-up
    warmup_teacher_temperature_epochs: float = 0.0  # length of the warm-up of the teacher's temperature, in epochs
    center_momentum: float = 0.9  # momentum of the running mean of the teacher's scores, which is subtracted from them
    teacher_momentum: float = 0.996  # momentum of the teacher's moving average; rises to 1 along a cosine

    def requires(self) -> set[str]:
        return pool_requirements(self.pool)

    def views(self) -> list[str]:
        return [self.view, self.second, *([self.local] if self.local else [])]

    def has_batch_norm(self) -> bool:
        return self.batch_norm

    def inactive_fields(self) -> dict[str, str]:
        return {} if self.batch_norm else {"teacher_batch_norm": "batch_norm: true"}

    def problems(self, name: str, run: Run) -> Iterator[Problem]:
        yield from super().problems(name, run)
        yield from minimum_problems(1, self, name, "hidden_dim", "bottleneck_dim", "out_dim", "layers")
        yield from minimum_problems(0, self, name, "freeze_last_layer_epochs", "warmup_teacher_temperature_epochs")
        yield from positive_problems(self, name, "student_temperature", "teacher_temperature", "warmup_teacher_temperature")
        yield from interval_problems("[0, 1]", self, name, "center_momentum", "teacher_momentum")
        yield from repeated_view_problems(name, self.views())
