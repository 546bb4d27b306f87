"""Learning with unmasked tokens (LUT, Kim et al. 2024): masked reconstruction, and a context loss for the visible tokens.

Shapes: S views of the student, R = S * B rows, view by view.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitssl import config
from vitssl.backbones import layers
from vitssl.backbones.base import Backbone, Features
from vitssl.config.objectives.lut import LutConfig
from vitssl.data.loading.batch import Batch
from vitssl.objectives.decoders import make_decoder
from vitssl.objectives.heads import mlp
from vitssl.objectives.losses import Gathered, info_nce
from vitssl.objectives.masking import TokenMask, disjoint_masks, encode_visible, random_mask, reconstruction_error, reconstruction_images
from vitssl.objectives.step import Step
from vitssl.objectives.teacher import Distilled, Teacher, rising_momentum

STUDENT = "lut"  # name of the view that this objective makes of all the student's views


def make_head(cfg: LutConfig, in_dim: int, out_dim: int) -> nn.Sequential:
    """Make a projector or the predictor: an MLP of two layers without biases."""
    head = mlp([in_dim, cfg.hidden_dim, out_dim], nn.ReLU, cfg.batch_norm, last_bias=False)
    layers.init_linear(head, "xavier")
    return head


class Lut(Distilled):
    """LUT: MAE and a second loss that draws the student's visible tokens towards the teacher's features of all tokens of another view.

    The student's passes have the same number of tokens and run as one batch, and so do the teacher's. Batch norms see one view at a time.
    """

    cfg: LutConfig
    has_full_pass = False

    def __init__(self, cfg: LutConfig, run: config.Run, backbone: Backbone, num_classes: int):
        super().__init__()
        self.cfg, self.patch_px, dim = cfg, backbone.stride, backbone.embed_dim
        self.decoder = make_decoder(cfg, run, backbone) if cfg.reconstruction_weight else None
        self.reconstructs = self.decoder is not None
        self.projector, self.predictor = make_head(cfg, dim, dim), make_head(cfg, dim, dim)
        masked_dim = dim if cfg.decoder == "pixel_shuffle" else cfg.decoder_dim
        self.masked_projector = make_head(cfg, masked_dim, dim) if cfg.guided == "both" else None
        self.teacher = Teacher(average_buffers=True, backbone=backbone, projector=self.projector)

    def forward(self, step: Step, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        views = [step.images(view) for view in self.cfg.views()]
        students = views if self.cfg.symmetric else views[:1]
        S, B, N = len(students), len(views[0]), math.prod(step.grid(self.cfg.view))
        num_kept = int(N * (1 - self.cfg.mask_ratio))
        masks = disjoint_masks(B, N, [num_kept] * S, views[0].device)
        mask = TokenMask(*map(torch.cat, zip(*masks, strict=True)))
        step.add(STUDENT, torch.cat(students))
        features = encode_visible(step, STUDENT, mask, self.cfg)
        terms, hidden = {}, None
        if self.decoder is not None:
            decoded = slice(0, S * B if self.cfg.guided == "both" else B)
            tokens_RND = self.decoder.tokens(features.select_images(decoded), TokenMask(*(part[decoded] for part in mask)))
            terms["lut_mae"] = reconstruction_error(self.decoder.pixels(tokens_RND[:B]), views[0], masks[0], self.patch_px, self.cfg)
            hidden = tokens_RND if self.cfg.guided == "both" else None
        teacher = self._teacher_features(list(reversed(views))[:S])
        terms["lut_context"] = self._context(features, hidden, mask, teacher, batch.index_B, S)
        return terms

    def reconstruct(self, step: Step, batch: Batch) -> tuple[Tensor, Tensor]:
        assert self.decoder is not None
        view, images_BCHW = self.cfg.view, step.images(self.cfg.view)
        mask = random_mask(len(images_BCHW), math.prod(step.grid(view)), self.cfg.mask_ratio, images_BCHW.device)
        prediction_BNE = self.decoder(encode_visible(step, view, mask, self.cfg), mask)
        return reconstruction_images(prediction_BNE, images_BCHW, mask, self.patch_px, self.cfg)

    def weight(self, term: str, progress: Tensor) -> float:
        return self.cfg.weight * (self.cfg.reconstruction_weight if term == "lut_mae" else self.cfg.context_weight)

    def momentum(self, progress: float) -> float:
        return rising_momentum(self.cfg.teacher_momentum, progress)

    @torch.no_grad()
    def _teacher_features(self, views: list[Tensor]) -> Features:
        """Return the teacher's features of ``views``, with tokens dropped if ``target_mask_ratio`` is set."""
        backbone, images = self.teacher.backbone, torch.cat(views)
        embedded = backbone.embed(images)
        if not self.cfg.target_mask_ratio:
            return backbone(embedded)
        return backbone(embedded, random_mask(len(images), math.prod(embedded.grid), self.cfg.target_mask_ratio, images.device).keep_BM)

    def _context(
        self, features: Features, hidden_RND: Tensor | None, mask: TokenMask, teacher: Features, images_B: Tensor, S: int
    ) -> Tensor:
        """Return the mean distance of the student's predictions from the teacher's projections.

        The mean is over the kinds of vectors to compare: pooled features, visible tokens and hidden tokens, as far as they are on.
        """
        visible_RMD = features.tokens_BND if self.cfg.hide == "drop" else layers.gather_tokens(features.tokens_BND, mask.keep_BM)
        compared = []
        if self.cfg.level != "token":
            pooled_RD = visible_RMD.mean(1) if self.cfg.pool == "mean" else features.pooled("cls")
            compared.append((self.projector, pooled_RD, teacher.pooled(self.cfg.pool)))
        if self.cfg.level != "pooled":
            compared.append(
                (self.projector, visible_RMD.flatten(0, 1), layers.gather_tokens(teacher.tokens_BND, mask.keep_BM).flatten(0, 1))
            )
        if hidden_RND is not None and self.masked_projector is not None:
            masked_RD = (hidden_RND * mask.mask_BN[..., None]).sum(1) / mask.mask_BN.sum(1, keepdim=True)
            compared.append((self.masked_projector, masked_RD, teacher.pooled("mean")))
        return torch.stack(
            [self._projected_distance(projector, student, target, images_B, S) for projector, student, target in compared]
        ).mean()

    def _projected_distance(self, projector: nn.Module, ours: Tensor, theirs: Tensor, images_B: Tensor, S: int) -> Tensor:
        with torch.no_grad():
            targets = self.teacher["projector"](theirs).chunk(S)
        # one view at a time, so that batch norms see a single view
        predictions = [self.predictor(projector(view)) for view in ours.chunk(S)]
        return torch.stack([self._vector_distance(*pair, images_B) for pair in zip(predictions, targets, strict=True)]).mean()

    def _vector_distance(self, ours: Tensor, theirs: Tensor, images_B: Tensor) -> Tensor:
        """Return the distance between the vectors of one view, of the kind that ``cfg.distance`` names.

        It is 2 - 2 cos, InfoNCE among the images of all ranks, or smooth L1. Smooth L1 is taken of unnormalised vectors; between unit
        vectors, whose differences are small, it would be a multiple of 2 - 2 cos.
        """
        ours, theirs = layers.upcast(ours), layers.upcast(theirs)
        if self.cfg.distance == "smooth_l1":
            return F.smooth_l1_loss(ours, theirs)
        if self.cfg.distance == "cosine":
            return (2 - 2 * F.cosine_similarity(ours, theirs)).mean()
        keys = Gathered.gather(F.normalize(theirs, dim=1), images_B, self.training)
        return info_nce(F.normalize(ours, dim=1), keys, self.cfg.temperature)
