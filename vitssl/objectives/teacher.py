"""The teacher of self-distillation: a moving average of the student."""

from __future__ import annotations

import copy

import torch
from torch import nn


class Teacher(nn.ModuleDict):
    """Copies of the student's modules, by name; always in evaluation mode, and never trained.

    They belong to the objective's state, so that a resumed run goes on with them.
    """

    def __init__(self, **students: nn.Module):
        super().__init__({name: copy.deepcopy(student) for name, student in students.items()})
        self.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Teacher:
        """Stays in evaluation mode, with no drop-path."""
        return super().train(False)

    @torch.no_grad()
    def follow(self, momentum: float, **students: nn.Module) -> None:
        """Parameters become momentum x own + (1 - momentum) x the student's; buffers (a batch norm's averages) are copied.

        The objective's ``after_step`` calls it, once per optimiser step, and ``start`` with a momentum of 0.
        """
        assert students.keys() == self.keys(), f"the teacher of {list(self)} cannot follow {list(students)}"
        for name, student in students.items():
            torch._foreach_lerp_(list(self[name].parameters()), list(student.parameters()), 1 - momentum)
            for own, theirs in zip(self[name].buffers(), student.buffers(), strict=True):
                own.copy_(theirs)
