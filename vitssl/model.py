"""The Model: one backbone and the weighted sum of the active objectives; the one module that DDP wraps.

Shapes: B images, N tokens, K classes.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from vitssl import backbones, config
from vitssl.backbones import norms
from vitssl.backbones.base import Backbone, Embedded, Features
from vitssl.config import Run
from vitssl.data.batch import Batch
from vitssl.data.masks import Selection
from vitssl.objectives.base import Objective


class StepEncode:
    """The backbone passes of one step, memoised by view and selection name (``objectives.base.Encode``).

    Batch norms keep running statistics of whole views, with which a classifier is evaluated: passes over masked images, and over those
    that an objective made, leave them alone. Where no objective makes another pass (MAE alone), they are kept of those.
    """

    def __init__(self, model: Model, batch: Batch):
        self._model = model
        self._views, self._given = dict(batch.views), frozenset(batch.views)
        self._embedded: dict[str, Embedded] = {}
        self._passes: dict[tuple[str, str | None, str | None], Features] = {}
        self._selections: dict[str, Selection] = {}

    def __call__(self, view: str, keep: str | None = None, mask: str | None = None) -> Features:
        if (view, keep, mask) not in self._passes:
            backbone = self._model.backbone
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self._model.frozen):
                if view not in self._embedded:
                    with self._statistics(whole=view in self._given):
                        self._embedded[view] = backbone.embed(self._views[view])
                keep_BM = None if keep is None else self._draw(keep, view).keep_BM
                mask_BN = None if mask is None else self._draw(mask, view).mask_BN
                with self._statistics(whole=view in self._given and keep is None and mask is None):
                    self._passes[view, keep, mask] = backbone(self._embedded[view], keep_BM, mask_BN, self._model.ends)
        return self._passes[view, keep, mask]

    def _statistics(self, whole: bool) -> AbstractContextManager[None]:
        return nullcontext() if whole or not self._model.whole_pass else norms.frozen_statistics(self._model.backbone)

    def norm(self, tokens: Tensor) -> Tensor:
        return self._model.backbone.norm(tokens)

    def _draw(self, name: str, view: str) -> Selection:
        if name not in self._selections:
            images = self._views[view]
            objective: Objective = self._model.objectives[name]
            self._selections[name] = objective.select(len(images), self._model.backbone.grid(images.shape[-1]), images)
        return self._selections[name]

    def selection(self, name: str) -> Selection:
        assert name in self._selections, f"selection {name!r} is asked for before any pass used it"
        return self._selections[name]

    def images(self, view: str) -> Tensor:
        return self._views[view]

    def add(self, view: str, images: Tensor) -> None:
        assert view not in self._views, f"view {view!r} exists already"
        self._views[view] = images


class Model(nn.Module):
    """``forward`` gives the total loss and its terms; ``predict`` the logits."""

    def __init__(self, backbone: Backbone, objectives: dict[str, Objective], frozen: bool = False):
        super().__init__()
        self.backbone = backbone
        self.objectives = nn.ModuleDict(objectives)
        self.ends = tuple(sorted({end for objective in objectives.values() for end in objective.ends}))
        self.whole_pass = any(objective.whole_pass for objective in objectives.values())
        self.frozen = frozen
        backbone.requires_grad_(not frozen)

    def train(self, mode: bool = True) -> Model:
        """Training mode; a frozen backbone stays in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def forward(self, batch: Batch, progress: Tensor) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """(total, raw terms, weighted terms); the last two are detached."""
        encode = StepEncode(self, batch)
        terms: dict[str, Tensor] = {}
        weighted: dict[str, Tensor] = {}
        for objective in self.objectives.values():
            own = objective(encode, batch, progress)
            terms |= own
            weighted |= {name: objective.weight(name, progress) * term for name, term in own.items()}
        total = torch.stack(list(weighted.values())).sum()
        detached = ({k: v.detach() for k, v in d.items()} for d in (terms, weighted))
        return (total, *detached)

    def predict(self, batch: Batch) -> Tensor | None:
        """Logits (B, K) of view "main", or None where no objective classifies."""
        encode = StepEncode(self, batch)
        logits = (objective.predict(encode, batch) for objective in self.objectives.values())
        return next((found for found in logits if found is not None), None)


def build(run: Run, num_classes: int) -> Model:
    """The Run's model, on the CPU, initialised from ``run.seed`` whatever was drawn before.

    The objective of field ``name``, whose config is ``NameConfig``, is the class ``Name`` in ``vitssl.objectives.name``.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        active = config.active(run.objectives)
        requires = {what for cfg in active.values() for what in cfg.requires()}
        backbone = backbones.build(run.backbone, run.data.image_size, requires)
        objectives = {}
        for name, cfg in active.items():
            kind = getattr(importlib.import_module(f"vitssl.objectives.{name}"), type(cfg).__name__.removesuffix("Config"))
            objectives[name] = kind(cfg, run, backbone, num_classes)
    return Model(backbone, objectives, frozen=run.backbone.frozen)
