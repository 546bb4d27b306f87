"""Classification with cross-entropy."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn

from vitssl import config
from vitssl.backbones import layers, norms
from vitssl.backbones.base import Backbone, Features
from vitssl.config.objectives.classify import ClassifyConfig, HeadConfig
from vitssl.data import UNLABELLED
from vitssl.data.loading.batch import Batch
from vitssl.objectives.base import Objective
from vitssl.objectives.step import Step


def soft_cross_entropy(
    logits_BK: Tensor, targets: Tensor, smoothing: float, labelled: float | Tensor, weight_K: Tensor | None = None
) -> Tensor:
    """Return the sum of the labelled images' cross-entropies, divided by ``labelled``.

    Args:
        logits_BK: scores.
        targets: int64 (B,), ``UNLABELLED`` for images without a label; or float (B, K), whose rows sum to the labelled share of the image.
        smoothing: label smoothing: the share of each target's mass that is spread over all classes.
        labelled: the number to divide by. The loader gives the mean count per slice of the global batch, so that the average
            over ranks is the mean over the global batch even if ranks hold different numbers of labels.
        weight_K: the weight of an image of each class. In a mixed image, the weights apply to the label of each part.
    """
    logp_BK = F.log_softmax(layers.upcast(logits_BK), dim=-1)
    if targets.dim() == 1:
        known = targets != UNLABELLED
        picked = logp_BK.gather(1, targets.clamp(min=0)[:, None])[:, 0]
        loss_B = -((1 - smoothing) * picked + smoothing * logp_BK.mean(-1)) * known
        if weight_K is not None:
            loss_B = loss_B * weight_K[targets.clamp(min=0)]
    else:
        targets = targets if weight_K is None else targets * weight_K
        mass_B = targets.sum(-1)
        loss_B = -((1 - smoothing) * (targets * logp_BK).sum(-1) + smoothing * mass_B * logp_BK.mean(-1))
    return loss_B.sum() / labelled


def balanced_weights(class_counts_K: Tensor) -> Tensor:
    """Return weights (K,) inversely proportional to the number of images in each class (King and Zeng 2001).

    Their mean over the images is 1. A class without images, which no target names, gets 0.
    """
    counts_K = class_counts_K.double()
    present = (counts_K > 0).sum()
    return torch.where(counts_K > 0, counts_K.sum() / (present * counts_K.clamp(min=1)), 0.0).float()


class ClassifierHead(nn.Linear):
    """A linear classifier of pooled features, with an optional norm and hidden layer before it.

    Attributes:
        out_indices: the intermediate layers whose features it reads.
    """

    def __init__(self, cfg: HeadConfig, backbone: Backbone, num_classes: int):
        dim = backbone.embed_dim * cfg.blocks * len(cfg.pool.split("+"))
        super().__init__(cfg.hidden_dim or dim, num_classes)
        self.cfg, num_layers = cfg, len(backbone.widths)
        self.out_indices = tuple(range(num_layers - cfg.blocks, num_layers)) if cfg.blocks > 1 or cfg.norm == "fc" else ()
        self.before = nn.Sequential()
        if cfg.norm == "batch":
            self.before.add_module("norm", norms.BatchNorm1d(dim, eps=1e-6, affine=False))
        if cfg.hidden_dim is not None:
            self.before.add_module("hidden", nn.Linear(dim, cfg.hidden_dim))
            self.before.add_module("activation", nn.GELU() if cfg.activation == "gelu" else nn.Tanh())

    def forward(self, features: Features, step: Step) -> Tensor:  # type: ignore[override]
        """Return the logits (B, K)."""
        blocks = [features.intermediates[i] for i in self.out_indices]
        if self.cfg.norm == "fc":
            pooled_BD = step.norm(blocks[0].pooled(self.cfg.pool))
        elif blocks:
            pooled_BD = torch.cat([block.apply_norm(step.norm).pooled(self.cfg.pool) for block in blocks], dim=1)
        else:
            pooled_BD = features.pooled(self.cfg.pool)
        return super().forward(self.before(pooled_BD))


class Classify(Objective):
    """Classification by one or several heads on the cls token or on the mean of the (normalised) patch tokens."""

    cfg: ClassifyConfig
    weight_K: Tensor | None

    def __init__(self, cfg: ClassifyConfig, run: config.Run, backbone: Backbone, num_classes: int):
        super().__init__()
        self.cfg = cfg
        self.head = ClassifierHead(cfg, backbone, num_classes)
        self.extra_heads = nn.ModuleList(ClassifierHead(extra, backbone, num_classes) for extra in cfg.extra_heads)
        self.out_indices = tuple({index for head in self._heads() for index in head.out_indices})
        self.register_buffer("weight_K", None, persistent=False)
        layers.init_linear(self, run.backbone.init)
        if cfg.init_std is not None:
            for head in self._heads():
                trunc_normal_(head.weight, std=cfg.init_std) if cfg.init_std else nn.init.zeros_(head.weight)

    def _heads(self) -> list[ClassifierHead]:
        return [self.head, *self.extra_heads]

    def start(self, backbone: Backbone, class_counts_K: Tensor) -> None:
        if self.cfg.class_weight == "balanced":
            self.weight_K = balanced_weights(class_counts_K)

    def forward(self, step: Step, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        features = step.encode(self.cfg.view)
        logits = [head(features, step) for head in self._heads()]
        copies = len(logits[0]) // len(batch.index_B)
        targets, labelled = batch.targets[self.cfg.view], batch.labelled * copies
        losses = [soft_cross_entropy(logits_BK, targets, self.cfg.label_smoothing, labelled, self.weight_K) for logits_BK in logits]
        return {"classify": sum(losses[1:], start=losses[0])}

    def predict(self, step: Step, batch: Batch) -> Tensor:
        features = step.encode("main")
        logits = [head(features, step) for head in self._heads()]
        return logits[0] if len(logits) == 1 else torch.stack(logits).mean(0)
