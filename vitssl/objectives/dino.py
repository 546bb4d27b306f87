"""Self-distillation without labels, as DINO (Caron et al. 2021).

Shapes: V views of the student (copies counted), G views of the teacher.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitssl import config, dist
from vitssl.backbones import layers
from vitssl.backbones.base import Backbone
from vitssl.config.objectives.dino import DinoConfig
from vitssl.data.loading.batch import Batch
from vitssl.objectives.heads import Prototypes, mlp
from vitssl.objectives.losses import self_distillation
from vitssl.objectives.step import Step
from vitssl.objectives.teacher import Distilled, Teacher, rising_momentum


class Head(nn.Module):
    """A projection head: an MLP to a bottleneck, whose direction is compared with prototypes."""

    def __init__(self, cfg: DinoConfig, dim: int):
        super().__init__()
        self.mlp = mlp([dim, *[cfg.hidden_dim] * (cfg.layers - 1), cfg.bottleneck_dim], nn.GELU, cfg.batch_norm)
        self.last_layer = Prototypes(cfg.bottleneck_dim, cfg.out_dim, cfg.norm_last_layer)

    def forward(self, *views_BD: Tensor) -> Tensor:
        """Return the scores (rows of all views, K). Batch norms see all views together, as in DINO's code."""
        bottleneck = self.mlp(torch.cat(views_BD))
        return self.last_layer(F.normalize(layers.upcast(bottleneck), dim=1))


class Dino(Distilled):
    """DINO: the student's prototype scores of a view are trained to match the teacher's scores of the other global views.

    The teacher is the student's moving average.
    """

    cfg: DinoConfig
    center: Tensor
    score_sum: Tensor
    score_count: Tensor

    def __init__(self, cfg: DinoConfig, run: config.Run, backbone: Backbone, num_classes: int):
        super().__init__()
        self.cfg, self.epochs = cfg, run.loop.horizon
        self.head = Head(cfg, backbone.embed_dim)
        batch_statistics = ("head",) if cfg.teacher_batch_norm == "batch" else ()
        self.teacher = Teacher(batch_statistics, backbone=backbone, head=self.head)
        self.register_buffer("center", torch.zeros(cfg.out_dim))
        # sum and number of the teacher's scores since the last step, since the center must not move between the slices of a step
        self.register_buffer("score_sum", torch.zeros(cfg.out_dim))
        self.register_buffer("score_count", torch.zeros(()))

    def forward(self, step: Step, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        B = len(batch.index_B)
        student = self.head(*(step.encode(view).pooled(self.cfg.pool) for view in self.cfg.views()))
        targets = self._targets(step, progress)
        loss = self_distillation(student.unflatten(0, (-1, B)), targets.unflatten(0, (-1, B)), self.cfg.student_temperature)
        return {"dino": loss}

    @torch.no_grad()
    def _targets(self, step: Step, progress: Tensor) -> Tensor:
        """Return the teacher's probabilities (G * B, K) for the global views."""
        backbone, head = self.teacher.backbone, self.teacher["head"]
        images = [step.images(view) for view in (self.cfg.view, self.cfg.second)]
        scores = head(*(backbone(backbone.embed(view)).pooled(self.cfg.pool) for view in images))
        if self.training:
            self.score_sum += scores.sum(0)
            self.score_count += len(scores)
        return ((scores - self.center) / self.teacher_temperature(progress)).softmax(-1)

    def teacher_temperature(self, progress: Tensor) -> Tensor:
        """Return the teacher's temperature, which changes linearly during the warm-up epochs and is constant afterwards."""
        cfg, epochs = self.cfg, self.cfg.warmup_teacher_temperature_epochs
        share = (progress * self.epochs / epochs).clamp(max=1.0) if epochs else torch.ones_like(progress)
        return cfg.warmup_teacher_temperature + (cfg.teacher_temperature - cfg.warmup_teacher_temperature) * share

    def momentum(self, progress: float) -> float:
        return rising_momentum(self.cfg.teacher_momentum, progress)

    def before_step(self, progress: float) -> None:
        if progress * self.epochs + 1e-9 < self.cfg.freeze_last_layer_epochs:
            # None instead of zero, since weight decay and momentum would still apply to a zero gradient
            self.head.last_layer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def after_step(self, backbone: Backbone, progress: float) -> None:
        super().after_step(backbone, progress)
        mean_K = dist.all_sum(self.score_sum) / dist.all_sum(self.score_count)
        self.center.lerp_(mean_K, 1 - self.cfg.center_momentum)
        self.score_sum.zero_()
        self.score_count.zero_()
