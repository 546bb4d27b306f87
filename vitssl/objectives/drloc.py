"""Dense relative localisation (Liu et al. 2021): how far apart on the grid are two output embeddings of an image?

The defaults are the paper's text; where the authors' code differs (raw offsets, their mean, a 3x3 pooling, a weight that rises
and falls) the other value of the field is the code's.

Shapes: N tokens of the grid after pooling (the paper's k x k, here of any number of rows and columns), m pairs of an image, K classes of an
axis. A 2 is the two tokens of a pair or, last, the two axes: row, column.
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


def pool(tokens_BND: Tensor, grid: tuple[int, int], how: str) -> Tensor:
    """The tokens of the pooled grid, (B, N, D).

    Args:
        tokens_BND: row by row.
        grid: their rows and columns.
        how: ``none``; ``2x2`` averages (paper, section 3); ``3x3`` of stride 2, padded by one that does not count (the code).
    """
    if how == "none":
        return tokens_BND
    map_BDHW = tokens_BND.transpose(1, 2).unflatten(2, grid)
    if how == "2x2":
        pooled_BDHW = F.avg_pool2d(map_BDHW, 2)
    else:
        pooled_BDHW = F.avg_pool2d(map_BDHW, 3, stride=2, padding=1, count_include_pad=False)
    return pooled_BDHW.flatten(2).transpose(1, 2)


def draw_pairs(batch_size: int, grid: tuple[int, int], pairs: int, device: torch.device) -> Tensor:
    """(B, m, 2, 2) int64: row and column of both tokens of every pair, all uniform; a token may be paired with itself."""
    # of what is uniform below a common multiple, the remainders are uniform too
    drawn_Bm22 = torch.randint(math.lcm(*grid), (batch_size, pairs, 2, 2), device=device)
    return torch.stack([drawn_Bm22[..., axis] % side for axis, side in enumerate(grid)], dim=-1)


def gather_pairs(tokens_BND: Tensor, places_Bm22: Tensor, columns: int) -> Tensor:
    """(B, m, 2D): the embeddings of both tokens of every pair, one after the other."""
    B, N, D = tokens_BND.shape
    first_B11 = N * torch.arange(B, device=places_Bm22.device)[:, None, None]
    index_Bm2 = first_B11 + places_Bm22[..., 0] * columns + places_Bm22[..., 1]
    # as a table of B * N rows: many times the speed of `gather` on a CPU, and a gradient that does not depend on the order of sums
    return F.embedding(index_Bm2, tokens_BND.reshape(B * N, D)).flatten(2)


def offsets(places_Bm22: Tensor, signed: bool) -> Tensor:
    """(B, m, 2) int64: rows and columns from the second token of a pair to the first, with their sign or without (Eq. 1).

    The code adds k - 1 to signed ones; in a regression the last bias does that.
    """
    offsets_Bm2 = places_Bm22[:, :, 0] - places_Bm22[:, :, 1]
    return offsets_Bm2 if signed else offsets_Bm2.abs()


def normalized(offsets_Bm2: Tensor, grid: tuple[int, int]) -> Tensor:
    """Eq. 1's division by k: rows by the number of rows, columns by that of columns, so that both are at most 1."""
    return torch.stack([offsets_Bm2[..., axis] / side for axis, side in enumerate(grid)], dim=-1)


def regression_loss(prediction_Bm2: Tensor, targets_Bm2: Tensor, reduction: str) -> Tensor:
    """Eq. 2: the absolute error's sum (or the code's mean) over the axes; the mean over pairs and images.

    Eq. 2 adds up the images of a batch. As a mean over them, which the code takes too, the weight does not depend on the batch size.
    """
    error_Bm2 = (layers.upcast(prediction_Bm2) - targets_Bm2).abs()
    return error_Bm2.sum(-1).mean() if reduction == "sum" else error_Bm2.mean()


def class_loss(logits_Bm2K: Tensor, classes_Bm2: Tensor) -> Tensor:
    """Cross-entropy of the offsets as classes, added up over the axes (the code's variant ``ce``)."""
    return 2 * F.cross_entropy(layers.upcast(logits_Bm2K).flatten(0, 2), classes_Bm2.flatten())


def cycle_back_loss(logits_Bm2K: Tensor, classes_Bm2: Tensor, eps: float = 1e-8) -> Tensor:
    """Cycle-back regression (the code's variant ``cbr``), added up over the axes.

    The softmax is a distribution over offsets. Its mean is pulled to the target, by a squared error over its variance; a small
    term in the logarithm of the variance rewards being certain.
    """
    share_Bm2K = layers.upcast(logits_Bm2K).softmax(-1)
    values_K = torch.arange(share_Bm2K.shape[-1], device=share_Bm2K.device, dtype=share_Bm2K.dtype)
    mean_Bm2 = (share_Bm2K * values_K).sum(-1)
    variance_Bm2 = (share_Bm2K * (values_K - mean_Bm2[..., None]).square()).sum(-1)
    log_variance_Bm2 = (variance_Bm2 + eps).log()
    error_Bm2 = (mean_Bm2 - classes_Bm2).square()
    return 2 * (torch.exp(-log_variance_Bm2) * error_Bm2 + 0.001 * log_variance_Bm2).mean()


class Head(nn.Module):
    """The localisation MLP (Figure 1b): two hidden layers, two outputs.

    With classes, as in the code, its last layer has the hidden width, and a separate linear layer follows for each axis.
    """

    def __init__(self, dim: int, hidden_dim: int, num_classes: int | None):
        super().__init__()
        out_dim = 2 if num_classes is None else hidden_dim
        self.mlp = nn.Sequential(
            nn.Linear(2 * dim, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, out_dim)
        )
        self.axes = nn.ModuleList(nn.Linear(hidden_dim, num_classes) for _ in range(2)) if num_classes is not None else None

    def forward(self, pairs: Tensor) -> Tensor:
        """(B, m, 2D) to offsets (B, m, 2), or to logits (B, m, 2, K)."""
        out = self.mlp(pairs)
        return out if self.axes is None else torch.stack([axis(out) for axis in self.axes], dim=2)


class Drloc(Objective):
    """A small MLP tells, from the embeddings of random pairs of tokens, how many rows and columns lie between them.

    It reads the pass that `classify` makes of the same view, and its patch tokens alone: others have no place on the grid.
    """

    def __init__(self, cfg: DrlocConfig, run: config.Run, backbone: Backbone, num_classes: int):
        super().__init__()
        self.cfg, self.horizon_epochs = cfg, run.loop.horizon
        last = len(backbone.widths) - 1
        self.terms = {f"drloc_stage{i}": i for i in range(last + 1)} if cfg.multi_scale else {"drloc": last}  # name -> intermediate place
        self.out_indices = tuple(self.terms.values()) if cfg.features == "raw" else ()
        size_px = config.view_px(run.data, cfg.view)
        sides = [max(backbone.grid(size_px, index)) for index in self.terms.values()]
        classes = [None if cfg.loss == "l1" else cfg.num_classes or cfg.num_offsets(side) for side in sides]
        widths = [backbone.widths[index] for index in self.terms.values()]
        self.heads = nn.ModuleList(Head(width, cfg.hidden_dim, K) for width, K in zip(widths, classes, strict=True))
        # the code has this initialisation in Swin and T2T, torch's default in CvT, ViT and ResNet
        layers.init_linear(self, run.backbone.init)

    def forward(self, step: Step, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        features = step.encode(self.cfg.view)
        read = {name: features if self.cfg.features == "normed" else features.intermediates[index] for name, index in self.terms.items()}
        return {name: self._loss(head, read[name]) for name, head in zip(self.terms, self.heads, strict=True)}

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
        """Linear from 0 to ``cfg.weight`` over ``warmup_epochs``, from there to 0 at ``end_epoch``.

        The code's weight is constant within an epoch; this one has the same value where an epoch begins and changes with every
        step, as the learning rate does.
        """
        cfg, epoch = self.cfg, progress * self.horizon_epochs
        factor: float | Tensor = 1.0
        if cfg.warmup_epochs:
            factor = (epoch / cfg.warmup_epochs).clamp(max=1)
        if cfg.end_epoch is not None:
            factor = factor * ((cfg.end_epoch - epoch) / (cfg.end_epoch - cfg.warmup_epochs)).clamp(0, 1)
        return cfg.weight * factor
