"""Dense relative localisation (Liu et al. 2021), which predicts how far apart on the grid two output embeddings of an image are.

Defaults follow the paper's text. Where the authors' code differs (raw offsets, their mean, a 3x3 pooling, a weight that rises and
falls), the other value of the field follows the code.

Shapes: N tokens of the grid after pooling (k x k in the paper, any number of rows and columns here), m pairs of an image, K classes of an
axis. A 2 stands for the two tokens of a pair or, as the last axis, for row and column.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitssl import config
from vitssl.backbones import layers
from vitssl.backbones.base import Backbone, Features
from vitssl.config.objectives.drloc import DrlocConfig
from vitssl.data.loading.batch import Batch
from vitssl.objectives.base import Objective
from vitssl.objectives.step import Step


def pool(tokens_BND: Tensor, grid: tuple[int, int], pooling: str) -> Tensor:
    """Return the tokens of the pooled grid, (B, N, D).

    Args:
        tokens_BND: tokens row by row.
        grid: their rows and columns.
        pooling: ``none``; ``2x2`` averages (paper, section 3); ``3x3`` averages with stride 2, whose padding of one does not count (code).
    """
    if pooling == "none":
        return tokens_BND
    map_BDHW = tokens_BND.transpose(1, 2).unflatten(2, grid)
    if pooling == "2x2":
        pooled_BDHW = F.avg_pool2d(map_BDHW, 2)
    else:
        pooled_BDHW = F.avg_pool2d(map_BDHW, 3, stride=2, padding=1, count_include_pad=False)
    return pooled_BDHW.flatten(2).transpose(1, 2)


def draw_pairs(batch_size: int, grid: tuple[int, int], pairs: int, device: torch.device) -> Tensor:
    """Draw the rows and columns of both tokens of every pair uniformly, int64 (B, m, 2, 2); a token may be paired with itself."""
    # numbers uniform below a common multiple of the sides have uniform remainders
    drawn_Bm22 = torch.randint(math.lcm(*grid), (batch_size, pairs, 2, 2), device=device)
    return torch.stack([drawn_Bm22[..., axis] % side for axis, side in enumerate(grid)], dim=-1)


def gather_pairs(tokens_BND: Tensor, places_Bm22: Tensor, columns: int) -> Tensor:
    """Return the concatenated embeddings of the two tokens of every pair, (B, m, 2D)."""
    B, N, D = tokens_BND.shape
    first_B11 = N * torch.arange(B, device=places_Bm22.device)[:, None, None]
    index_Bm2 = first_B11 + places_Bm22[..., 0] * columns + places_Bm22[..., 1]
    # a look-up in a table of B * N rows is many times faster than `gather` on a CPU, and its gradient does not depend on the order of sums
    return F.embedding(index_Bm2, tokens_BND.reshape(B * N, D)).flatten(2)


def offsets(places_Bm22: Tensor, signed: bool) -> Tensor:
    """Return the rows and columns from the second token of a pair to the first, with or without sign (Eq. 1), int64 (B, m, 2).

    The authors' code adds k - 1 to signed offsets. In a regression, the last bias can do the same.
    """
    offsets_Bm2 = places_Bm22[:, :, 0] - places_Bm22[:, :, 1]
    return offsets_Bm2 if signed else offsets_Bm2.abs()


def normalized(offsets_Bm2: Tensor, grid: tuple[int, int]) -> Tensor:
    """Divide row offsets by the number of rows and column offsets by the number of columns, as Eq. 1 does by k, so that all are below 1."""
    return torch.stack([offsets_Bm2[..., axis] / side for axis, side in enumerate(grid)], dim=-1)


def regression_loss(prediction_Bm2: Tensor, targets_Bm2: Tensor, reduction: str) -> Tensor:
    """Return the absolute error: its sum (Eq. 2) or mean (the authors' code) over the axes, and its mean over pairs and images.

    Eq. 2 sums over the images of a batch. With a mean, as in the authors' code, the weight does not depend on the batch size.
    """
    error_Bm2 = (layers.upcast(prediction_Bm2) - targets_Bm2).abs()
    return error_Bm2.sum(-1).mean() if reduction == "sum" else error_Bm2.mean()


def class_loss(logits_Bm2K: Tensor, classes_Bm2: Tensor) -> Tensor:
    """Return the cross-entropy of the offsets as classes, summed over the axes (variant ``ce`` of the authors' code)."""
    return 2 * F.cross_entropy(layers.upcast(logits_Bm2K).flatten(0, 2), classes_Bm2.flatten())


def cycle_back_loss(logits_Bm2K: Tensor, classes_Bm2: Tensor, eps: float = 1e-8) -> Tensor:
    """Return the loss of cycle-back regression, summed over the axes (variant ``cbr`` of the authors' code).

    The softmax is a distribution over offsets. A squared error, divided by the variance, pulls its mean to the target. A small term in
    the logarithm of the variance rewards certainty.
    """
    share_Bm2K = layers.upcast(logits_Bm2K).softmax(-1)
    values_K = torch.arange(share_Bm2K.shape[-1], device=share_Bm2K.device, dtype=share_Bm2K.dtype)
    mean_Bm2 = (share_Bm2K * values_K).sum(-1)
    variance_Bm2 = (share_Bm2K * (values_K - mean_Bm2[..., None]).square()).sum(-1)
    log_variance_Bm2 = (variance_Bm2 + eps).log()
    error_Bm2 = (mean_Bm2 - classes_Bm2).square()
    return 2 * (torch.exp(-log_variance_Bm2) * error_Bm2 + 0.001 * log_variance_Bm2).mean()


class Head(nn.Module):
    """The localisation MLP (Figure 1b), with two hidden layers and two outputs.

    With classes, its last layer has the hidden width and is followed by a separate linear layer for each axis, as in the authors' code.
    """

    def __init__(self, dim: int, hidden_dim: int, num_classes: int | None):
        super().__init__()
        out_dim = 2 if num_classes is None else hidden_dim
        self.mlp = nn.Sequential(
            nn.Linear(2 * dim, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, out_dim)
        )
        self.axes = nn.ModuleList(nn.Linear(hidden_dim, num_classes) for _ in range(2)) if num_classes is not None else None

    def forward(self, pairs: Tensor) -> Tensor:
        """Predict offsets (B, m, 2), or with classes logits (B, m, 2, K), from embeddings of pairs (B, m, 2D)."""
        out = self.mlp(pairs)
        return out if self.axes is None else torch.stack([axis(out) for axis in self.axes], dim=2)


class Drloc(Objective):
    """An objective in which a small MLP predicts how many rows and columns lie between random pairs of tokens.

    It reads the same pass as `classify` on the same view, and only its patch tokens, since other tokens have no position on the grid.
    """

    cfg: DrlocConfig

    def __init__(self, cfg: DrlocConfig, run: config.Run, backbone: Backbone, num_classes: int):
        super().__init__()
        self.cfg, self.horizon_epochs = cfg, run.loop.horizon
        last = len(backbone.widths) - 1
        self.terms = {f"drloc_stage{i}": i for i in range(last + 1)} if cfg.multi_scale else {"drloc": last}  # name -> intermediate layer
        self.out_indices = tuple(self.terms.values()) if cfg.features == "raw" else ()
        size_px = config.view_px(run.data, cfg.view)
        sides = [max(backbone.grid(size_px, index)) for index in self.terms.values()]
        classes = [None if cfg.loss == "l1" else cfg.num_classes or cfg.num_offsets(side) for side in sides]
        widths = [backbone.widths[index] for index in self.terms.values()]
        self.heads = nn.ModuleList(Head(width, cfg.hidden_dim, K) for width, K in zip(widths, classes, strict=True))
        # the authors' code uses this initialisation with Swin and T2T, and torch's default with CvT, ViT and ResNet
        layers.init_linear(self, run.backbone.init)

    def forward(self, step: Step, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        features = step.encode(self.cfg.view)
        inputs = {name: features if self.cfg.features == "normed" else features.intermediates[index] for name, index in self.terms.items()}
        return {name: self._loss(head, inputs[name]) for name, head in zip(self.terms, self.heads, strict=True)}

    def _loss(self, head: nn.Module, features: Features) -> Tensor:
        cfg, (rows, columns) = self.cfg, features.grid
        tokens_BND, grid = pool(features.tokens_BND, (rows, columns), cfg.pooling), (cfg.pooled(rows), cfg.pooled(columns))
        places_Bm22 = draw_pairs(len(tokens_BND), grid, cfg.pairs, tokens_BND.device)
        prediction = head(gather_pairs(tokens_BND, places_Bm22, grid[1]))
        offsets_Bm2 = offsets(places_Bm22, cfg.signed)
        if cfg.loss == "l1":
            return regression_loss(prediction, normalized(offsets_Bm2, grid) if cfg.target == "normalized" else offsets_Bm2, cfg.reduction)
        classes_Bm2 = offsets_Bm2 + (max(grid) - 1 if cfg.signed else 0)
        return class_loss(prediction, classes_Bm2) if cfg.loss == "ce" else cycle_back_loss(prediction, classes_Bm2)

    def weight(self, term: str, progress: Tensor) -> float | Tensor:
        """Return a weight that rises linearly from 0 to ``cfg.weight`` over ``warmup_epochs``, then falls linearly to 0 at ``end_epoch``.

        In the authors' code the weight is constant within an epoch. Here it has the same value at the start of each epoch, but changes
        with every step, like the learning rate.
        """
        cfg, epoch = self.cfg, progress * self.horizon_epochs
        factor: float | Tensor = 1.0
        if cfg.warmup_epochs:
            factor = (epoch / cfg.warmup_epochs).clamp(max=1)
        if cfg.end_epoch is not None:
            factor = factor * ((cfg.end_epoch - epoch) / (cfg.end_epoch - cfg.warmup_epochs)).clamp(0, 1)
        return cfg.weight * factor
