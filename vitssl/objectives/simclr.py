"""Contrastive learning as in SimCLR (Chen et al. 2020).

Shapes: R = 2B rows of this rank, S rows of all ranks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitssl import config
from vitssl.backbones import layers
from vitssl.backbones.base import Backbone
from vitssl.config.objectives.simclr import SimclrConfig
from vitssl.data.loading.batch import Batch
from vitssl.objectives.base import Objective
from vitssl.objectives.heads import mlp
from vitssl.objectives.losses import Gathered, nt_xent
from vitssl.objectives.step import Step


class Simclr(Objective):
    """SimCLR, in which two views of an image attract each other and repel all other images of the global batch.

    The projection head has batch norms after the hidden layers, and with ``last_batch_norm`` also after the last layer.
    """

    cfg: SimclrConfig

    def __init__(self, cfg: SimclrConfig, run: config.Run, backbone: Backbone, num_classes: int):
        super().__init__()
        self.cfg = cfg
        self.head = mlp(
            [backbone.embed_dim, *[cfg.hidden_dim] * (cfg.layers - 1), cfg.out_dim], nn.ReLU, cfg.batch_norm, cfg.last_batch_norm
        )

    def forward(self, step: Step, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        features_RD = torch.cat([step.encode(view).pooled(self.cfg.pool) for view in self.cfg.views()])
        # one view at a time, since a batch norm over both would leak information from one view to the other
        projected_RD = torch.cat([self.head(view_BD) for view_BD in features_RD.chunk(2)])
        unit_RD = F.normalize(layers.upcast(projected_RD), dim=1)
        return {"simclr": nt_xent(unit_RD, Gathered.gather(unit_RD, batch.index_B.repeat(2), self.training), self.cfg.temperature)}
