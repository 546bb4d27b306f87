"""Locality guidance (Li et al. 2022), which lets the features of a transformer follow those of a small convolutional network."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitssl import backbones, config
from vitssl.backbones import layers
from vitssl.backbones.base import Backbone
from vitssl.config.objectives.locality import LocalityConfig
from vitssl.data.loading.batch import Batch
from vitssl.objectives.base import Objective
from vitssl.objectives.step import Step


def map_error(map_BDhw: Tensor, target_BDhw: Tensor) -> Tensor:
    """Return the mean squared difference between two maps, resized to the larger of the two grids."""
    larger = max(map_BDhw.shape[-2:], target_BDhw.shape[-2:])
    resized, target = (F.interpolate(layers.upcast(m), larger, mode="bilinear", align_corners=False) for m in (map_BDhw, target_BDhw))
    return (resized - target).square().mean()


class Locality(Objective):
    """Locality guidance, which trains the patch tokens of chosen blocks to match, after a 1x1 convolution, maps of the teacher's stages.

    The teacher is already trained and stays frozen. It sees the student's view, downscaled. Its weights come from the run that
    ``teacher`` names (``pretrained.load_teachers``) and are part of this run's checkpoints, so that these need no other file.
    """

    cfg: LocalityConfig

    def __init__(self, cfg: LocalityConfig, run: config.Run, backbone: Backbone, num_classes: int):
        super().__init__()
        self.cfg, self.out_indices = cfg, tuple(cfg.student_blocks(run.backbone))
        self.teacher = backbones.build(cfg.teacher_backbone, cfg.teacher_px).requires_grad_(False).eval()
        pairs = zip(self.out_indices, cfg.stages, strict=True)
        self.match = nn.ModuleList(nn.Conv2d(backbone.widths[block], self.teacher.widths[stage], 1) for block, stage in pairs)

    def train(self, mode: bool = True) -> Locality:
        """Set the training mode of all parts but the teacher, which stays in evaluation mode."""
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, step: Step, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        cfg, features = self.cfg, step.encode(self.cfg.view)
        with torch.no_grad():
            shrunk_BCHW = F.interpolate(step.images(cfg.view), (cfg.teacher_px,) * 2, mode="bilinear", align_corners=False)
            guide = self.teacher(self.teacher.embed(shrunk_BCHW), out_indices=tuple(cfg.stages))
        errors = [
            map_error(match(features.map(block)), guide.map(stage))
            for match, block, stage in zip(self.match, self.out_indices, cfg.stages, strict=True)
        ]
        return {"locality": torch.stack(errors).sum()}
