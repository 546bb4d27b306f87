"""The Model: one backbone and the weighted sum of the active objectives. It is the one module that DDP wraps."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from vitssl import backbones, config
from vitssl.backbones.base import Backbone
from vitssl.config import Run
from vitssl.data.loading.batch import Batch
from vitssl.objectives.base import Objective
from vitssl.objectives.step import Step


class Model(nn.Module):
    """A backbone with its objectives. ``forward`` gives the total loss and its terms, and ``predict`` the logits."""

    def __init__(self, backbone: Backbone, objectives: dict[str, Objective], frozen: bool = False):
        super().__init__()
        self.backbone = backbone
        # torch's ModuleDict does not say what kind of modules it holds
        self.objectives: Mapping[str, Objective] = nn.ModuleDict(objectives)  # type: ignore[assignment]
        self.out_indices = tuple(sorted({index for objective in objectives.values() for index in objective.out_indices}))
        self.has_full_pass = any(objective.has_full_pass for objective in objectives.values())
        self.frozen = frozen
        backbone.requires_grad_(not frozen)

    def train(self, mode: bool = True) -> Model:
        """Switch to training mode; a frozen backbone stays in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def step(self, batch: Batch) -> Step:
        """Return the `Step` that makes the backbone's passes over a batch."""
        return Step(self.backbone, batch, out_indices=self.out_indices, has_full_pass=self.has_full_pass, frozen=self.frozen)

    def forward(self, batch: Batch, progress: Tensor) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """Return (total loss, raw terms, weighted terms); the terms are detached."""
        step = self.step(batch)
        terms: dict[str, Tensor] = {}
        weighted: dict[str, Tensor] = {}
        for name, objective in self.objectives.items():
            losses = objective(step, batch, progress)
            _check_terms(name, losses, terms)
            terms |= losses
            weighted |= {name: objective.weight(name, progress) * loss for name, loss in losses.items()}
        total = torch.stack(list(weighted.values())).sum()
        return total, {k: v.detach() for k, v in terms.items()}, {k: v.detach() for k, v in weighted.items()}

    def start(self, class_counts_K: Tensor) -> None:
        """Prepare the objectives, before the first step and before DDP wraps the model.

        Args:
            class_counts_K: int64, the number of labelled training images of each class.
        """
        for objective in self.objectives.values():
            objective.start(self.backbone, class_counts_K)

    def before_step(self, progress: float) -> None:
        """Call the objectives when all gradients of a step are computed, before they are clipped and used."""
        for objective in self.objectives.values():
            objective.before_step(progress)

    def after_step(self, progress: float) -> None:
        """Call the objectives after the optimiser's step."""
        for objective in self.objectives.values():
            objective.after_step(self.backbone, progress)

    def predict(self, batch: Batch) -> Tensor | None:
        """Return the logits (B, K) of view "main", or None if no objective classifies."""
        step = Step(self.backbone, batch, out_indices=self.out_indices)  # with gradients even if the backbone is frozen
        predictions = (objective.predict(step, batch) for objective in self.objectives.values())
        return next((logits_BK for logits_BK in predictions if logits_BK is not None), None)


def _check_terms(name: str, losses: dict[str, Tensor], others: Collection[str]) -> None:
    """Check that each loss term counts once and that its name shows the objective.

    A name that is taken would replace another objective's loss, a vector would be summed, and a detached loss would train nothing.
    """
    if not isinstance(losses, dict):
        raise TypeError(f"objective {name}: it gives {type(losses).__name__}; a dict of its terms is wanted, such as {{{name!r}: loss}}")
    for term, loss in losses.items():
        if term in others:
            raise ValueError(f"objective {name}: another objective's term is called {term} too; begin its name with {name}")
        if term != name and not term.startswith(f"{name}_"):
            raise ValueError(f"objective {name}: its term {term} must be called {name}, or {name}_ and more")
        if not isinstance(loss, Tensor):
            raise TypeError(f"objective {name}: its term {term} is of type {type(loss).__name__}; give a tensor, which has a gradient")
        if loss.dim():
            raise ValueError(f"objective {name}: its term {term} has the shape {tuple(loss.shape)}; give its mean, a scalar")
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise ValueError(f"objective {name}: its term {term} has no gradient, so that nothing learns from it (detach, no_grad?)")


def build(run: Run, num_classes: int) -> Model:
    """Build the Run's model on the CPU, initialised from ``run.seed`` alone, independent of earlier random draws.

    The objective of field ``name``, whose config is ``NameConfig``, is the class ``Name`` in ``vitssl.objectives.name``.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        active = config.active(run.objectives)
        requires = {capability for cfg in active.values() for capability in cfg.requires()}
        backbone = backbones.build(run.backbone, run.data.image_size, requires)
        objectives = {}
        for name, cfg in active.items():
            kind = getattr(importlib.import_module(f"vitssl.objectives.{name}"), type(cfg).__name__.removesuffix("Config"))
            objectives[name] = kind(cfg, run, backbone, num_classes)
            objectives[name].is_loaded = name in run.init_objectives
    return Model(backbone, objectives, frozen=run.backbone.frozen)
