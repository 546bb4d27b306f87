"""Classification with cross-entropy.

Shapes: B images, N tokens, D width, K classes.
"""

from __future__ import annotations

import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn

from vitssl import config
from vitssl.backbones import layers
from vitssl.backbones.base import Backbone, Features
from vitssl.config.objectives.classify import ClassifyConfig
from vitssl.data.batch import UNLABELLED, Batch
from vitssl.objectives.base import Encode, Objective
from vitssl.objectives.heads import pooled


def soft_cross_entropy(logits_BK: Tensor, targets: Tensor, smoothing: float, labelled: float | Tensor) -> Tensor:
    """Sum of the labelled images' cross-entropies over ``labelled``.

    Args:
        logits_BK: scores.
        targets: int64 (B,) with ``UNLABELLED`` for none, or float (B, K) rows whose mass is the labelled share of the image.
        smoothing: label smoothing: this much of each target's mass is spread over all classes.
        labelled: the number to divide by. The loader gives the mean count per slice of the global batch, so that the average
            over ranks is the mean over the global batch even where ranks hold unequally many labels.
    """
    logp_BK = F.log_softmax(layers.upcast(logits_BK), dim=-1)
    if targets.dim() == 1:
        known = targets != UNLABELLED
        picked = logp_BK.gather(1, targets.clamp(min=0)[:, None])[:, 0]
        loss_B = -((1 - smoothing) * picked + smoothing * logp_BK.mean(-1)) * known
    else:
        mass_B = targets.sum(-1)
        loss_B = -((1 - smoothing) * (targets * logp_BK).sum(-1) + smoothing * mass_B * logp_BK.mean(-1))
    return loss_B.sum() / labelled


class Classify(Objective):
    """Linear head on the cls token or on the mean of the (normalised) patch tokens."""

    def __init__(self, cfg: ClassifyConfig, run: config.Run, backbone: Backbone, num_classes: int):
        super().__init__()
        self.cfg = cfg
        self.head = nn.Linear(backbone.embed_dim, num_classes)
        layers.init_linear(self, run.backbone.init)
        if cfg.init_std is not None:
            trunc_normal_(self.head.weight, std=cfg.init_std) if cfg.init_std else nn.init.zeros_(self.head.weight)

    def _logits(self, features: Features) -> Tensor:
        return self.head(pooled(features, self.cfg.pool))

    def forward(self, encode: Encode, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        logits_BK = self._logits(encode(self.cfg.view))
        copies = len(logits_BK) // len(batch.index_B)
        labelled = batch.labelled * copies
        return {"classify": soft_cross_entropy(logits_BK, batch.targets[self.cfg.view], self.cfg.label_smoothing, labelled)}

    def predict(self, encode: Encode, batch: Batch) -> Tensor:
        return self._logits(encode("main"))
