"""Regularisers for masked tokens (Hu et al. 2022, Eq. 11 to 13).

Shapes: J masked tokens of an image, S images of all ranks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitssl import config
from vitssl.backbones import layers
from vitssl.backbones.base import Backbone
from vitssl.config.objectives.masked_tokens import MaskedTokensConfig
from vitssl.data.loading.batch import Batch
from vitssl.objectives.base import Objective
from vitssl.objectives.losses import Gathered, token_contrast
from vitssl.objectives.step import Step


def sparse_loss(logits_BJJ: Tensor) -> Tensor:
    """Return the cross-entropy of Eq. 11, averaged over the images: each of the J tokens is to be taken for itself."""
    places_BJ = torch.arange(logits_BJJ.shape[1], device=logits_BJJ.device).expand(len(logits_BJJ), -1)
    return F.cross_entropy(layers.upcast(logits_BJJ).flatten(0, 1), places_BJ.flatten())


class MaskedTokens(Objective):
    """The two regularisers of masked tokens.

    Sparse: a linear classifier tells which of the J masked tokens of its image each one is. Contrast: masked tokens of the same image
    attract each other and repel those of other images.
    """

    cfg: MaskedTokensConfig

    def __init__(self, cfg: MaskedTokensConfig, run: config.Run, backbone: Backbone, num_classes: int):
        super().__init__()
        assert run.backbone.masked_tokens is not None, "the config requires masked tokens"
        self.cfg = cfg
        self.out_indices = () if cfg.normed else (len(backbone.widths) - 1,)
        self.classifier = nn.Linear(backbone.embed_dim, run.backbone.masked_tokens.count) if cfg.sparse_weight else None
        layers.init_linear(self, run.backbone.init)

    def forward(self, step: Step, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        B = len(batch.index_B)
        # each copy of a view is treated separately: a token's negatives are tokens of other images in the same copy
        tokens = [copy_BJD for view in self.cfg.views() for copy_BJD in self._tokens(step, view).split(B)]
        terms = {}
        if self.classifier is not None:
            terms["masked_tokens_sparse"] = torch.stack([sparse_loss(self.classifier(copy_BJD)) for copy_BJD in tokens]).mean()
        if self.cfg.contrast_weight:
            terms["masked_tokens_contrast"] = torch.stack([self._contrast(copy_BJD, batch.index_B) for copy_BJD in tokens]).mean()
        return terms

    def weight(self, term: str, progress: Tensor) -> float:
        return self.cfg.weight * (self.cfg.sparse_weight if term == "masked_tokens_sparse" else self.cfg.contrast_weight)

    def _tokens(self, step: Step, view: str) -> Tensor:
        features = step.encode(view)
        return features.extra_BJD if self.cfg.normed else features.intermediates[self.out_indices[0]].extra_BJD

    def _contrast(self, tokens_BJD: Tensor, images_B: Tensor) -> Tensor:
        unit_BJD = F.normalize(layers.upcast(tokens_BJD), dim=-1)
        return token_contrast(unit_BJD, Gathered.gather(unit_BJD, images_B, self.training), self.cfg.temperature)
