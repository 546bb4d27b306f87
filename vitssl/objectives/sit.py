"""SiT, the self-supervised vision transformer (Atito et al. 2021, first version)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitssl import config
from vitssl.backbones import layers
from vitssl.backbones.base import Backbone
from vitssl.config.objectives.sit import SitConfig
from vitssl.data.loading.batch import Batch
from vitssl.objectives.base import Objective
from vitssl.objectives.decoders import PixelDecoder
from vitssl.objectives.inpainting import corrupt
from vitssl.objectives.losses import Gathered, nt_xent
from vitssl.objectives.step import Step

VIEW = "sit"  # name of the view that this objective makes
# factor a in each term's uncertainty weight, as in the code
UNCERTAINTY_FACTORS = {"sit_rotation": 1.0, "sit_contrast": 1.0, "sit_reconstruction": 0.5}


def rotated(images_RCHW: Tensor, quarters_R: Tensor) -> Tensor:
    """Rotate each square image counterclockwise by its number of quarter turns, as ``torch.rot90`` does."""
    quarters = quarters_R[:, None, None, None]
    images_RCHW = torch.where(quarters % 2 == 1, images_RCHW.transpose(2, 3), images_RCHW)
    images_RCHW = torch.where((quarters == 1) | (quarters == 2), images_RCHW.flip(2), images_RCHW)
    return torch.where(quarters >= 2, images_RCHW.flip(3), images_RCHW)


class Sit(Objective):
    """SiT, which solves three tasks on rotated and corrupted views.

    The class token predicts the rotation, the second token finds the other view of its image, and the patch tokens restore the rotated
    image.

    Attributes:
        log_weights: the parameter s of each term if uncertainty is learned, otherwise None.
    """

    cfg: SitConfig
    reconstructs, has_full_pass = True, False

    def __init__(self, cfg: SitConfig, run: config.Run, backbone: Backbone, num_classes: int):
        super().__init__()
        self.cfg = cfg
        self.rotation = nn.Linear(backbone.embed_dim, 4)
        self.projection = nn.Linear(backbone.embed_dim, cfg.out_dim)
        layers.init_linear(self, run.backbone.init)
        self.decoder = PixelDecoder(backbone.embed_dim, backbone.stride, 0, "gelu")
        self.log_weights = (
            None if cfg.uncertainty == "none" else nn.ParameterDict({name: nn.Parameter(torch.ones(())) for name in UNCERTAINTY_FACTORS})
        )

    def forward(self, step: Step, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        images_RCHW = step.images(self.cfg.view)
        with torch.no_grad():
            quarters_R = torch.randint(4, (len(images_RCHW),), device=images_RCHW.device)
            rotated_RCHW = rotated(images_RCHW, quarters_R)
            step.add(VIEW, corrupt(rotated_RCHW, len(batch.index_B), self.cfg))
        features = step.encode(VIEW)
        terms = {
            "sit_rotation": F.cross_entropy(layers.upcast(self.rotation(features.pooled("cls"))), quarters_R),
            "sit_contrast": self._contrast(features.pooled("reg"), batch.index_B.repeat(2)),
            "sit_reconstruction": F.l1_loss(layers.upcast(self.decoder(features)), rotated_RCHW),
        }
        if self.log_weights is not None:
            terms["sit_uncertainty"] = torch.stack(list(self.log_weights.values())).sum() / 2
        return terms

    def reconstruct(self, step: Step, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return corrupted images and their reconstructions, without rotation."""
        corrupted_RCHW = corrupt(step.images(self.cfg.view), len(batch.index_B), self.cfg)
        step.add(VIEW, corrupted_RCHW)
        return corrupted_RCHW, layers.upcast(self.decoder(step.encode(VIEW)))

    def weight(self, term: str, progress: Tensor) -> float | Tensor:
        """Return ``cfg.weight``, times a learned uncertainty weight for the terms of the three tasks if uncertainty is on.

        That weight is exp(-a s), or a exp(-s) as in the first release.
        """
        if self.log_weights is None or term not in UNCERTAINTY_FACTORS:
            return self.cfg.weight
        a, s = UNCERTAINTY_FACTORS[term], self.log_weights[term]
        return self.cfg.weight * (torch.exp(-a * s) if self.cfg.uncertainty == "exponent" else a * torch.exp(-s))

    def _contrast(self, tokens_RD: Tensor, images_R: Tensor) -> Tensor:
        unit_RD = F.normalize(layers.upcast(self.projection(tokens_RD)), dim=1)
        all_ranks = self.training and self.cfg.negatives == "global"
        return nt_xent(unit_RD, Gathered.gather(unit_RD, images_R, all_ranks), self.cfg.temperature)
