"""The teacher of self-distillation, which is a moving average of the student; its momentum schedule; a base class for its objectives."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection

import torch
from torch import Tensor, nn

from vitssl.backbones.base import Backbone
from vitssl.objectives.base import Objective


def rising_momentum(start: float, progress: float) -> float:
    """Return a momentum that rises along half a cosine from ``start`` to 1 as ``progress`` goes from 0 to 1 (BYOL, DINO)."""
    return 1 - (1 - start) * (math.cos(math.pi * progress) + 1) / 2


class Teacher(nn.ModuleDict):
    """Copies of the student's modules by name, which stay in evaluation mode and are never trained.

    They belong to the objective's state, so that a resumed run continues with them.

    Args:
        batch_statistics: the modules whose batch norms use the statistics of their batch while the student trains, as in most public
            code; the others use the running averages.
        average_buffers: update buffers (the averages of batch norms) by the moving average too, instead of copying them.
        students: the student's modules by name.
    """

    backbone: Backbone  # the copy under this name, which every objective's teacher has

    def __init__(self, batch_statistics: Collection[str] = (), average_buffers: bool = False, **students: nn.Module):
        self._batch_statistics, self._average_buffers = frozenset(batch_statistics), average_buffers
        super().__init__({name: copy.deepcopy(student) for name, student in students.items()})
        self.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Teacher:
        """Stay in evaluation mode, without drop-path, except for the batch norms of ``batch_statistics``, which follow ``mode``."""
        super().train(False)
        for part in (part for name in self._batch_statistics for part in self[name].modules()):
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                part.train(mode)
        return self

    @torch.no_grad()
    def ema_update(self, momentum: float, **students: nn.Module) -> None:
        """Set parameters to momentum x teacher's + (1 - momentum) x student's; buffers likewise, or they are copied.

        The objective's ``after_step`` calls this once per optimiser step, and its ``start`` with a momentum of 0.
        """
        assert students.keys() == self.keys(), f"the teacher of {list(self)} cannot follow {list(students)}"
        for name, student in students.items():
            torch._foreach_lerp_(list(self[name].parameters()), list(student.parameters()), 1 - momentum)
            for buffer, student_buffer in zip(self[name].buffers(), student.buffers(), strict=True):
                if self._average_buffers and buffer.is_floating_point():  # counters of batches are integers, and are copied
                    buffer.lerp_(student_buffer, 1 - momentum)
                else:
                    buffer.copy_(student_buffer)


class Distilled(Objective):
    """Base class of objectives whose teacher follows the backbone and those of the objective's own modules that it contains by name."""

    teacher: Teacher

    def momentum(self, progress: float) -> float:
        """Return the teacher's momentum after a step, such as `rising_momentum`."""
        raise NotImplementedError

    def start(self, backbone: Backbone, class_counts_K: Tensor) -> None:
        if not self.is_loaded:  # a loaded objective has its teacher already
            self._follow(0.0, backbone)

    def after_step(self, backbone: Backbone, progress: float) -> None:
        self._follow(self.momentum(progress), backbone)

    def _follow(self, momentum: float, backbone: Backbone) -> None:
        students = {name: backbone if name == "backbone" else getattr(self, name) for name in self.teacher}
        self.teacher.ema_update(momentum, **students)
