"""The similarity of an image's patch tokens after every block, and the number of directions in which images differ.

The figures correspond to SSAT's Figures 7 and 8 and to the right half of LUT's Figure 4.

Shapes: S images, N patches, D their width.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vitssl.analysis.base import DrawnImages, Numbers
from vitssl.backbones.base import IsotropicTransformer
from vitssl.config import ConfigError
from vitssl.trained import Trained

AT_ONCE = 2**24  # distances in memory at a time, since the first stage of a convolutional network has many
ROUNDING = 1e-10  # share of the vectors' mean square; less variance than this is float32's rounding error
NAMES = ("distance", "cosine_distance", "variance")


def multi_token_layers(trained: Trained) -> list[int]:
    """Return the indices of the intermediate layers at which an image has several tokens.

    Raises:
        ConfigError: there is no such layer.
    """
    backbone, size_px = trained.model.backbone, trained.run.data.image_size
    if layer_indices := [i for i in range(len(backbone.widths)) if math.prod(backbone.grid(size_px, i)) > 1]:
        return layer_indices
    raise ConfigError(f"{trained.run.backbone.network} makes a single token of an image of {size_px} px", "data.image_size")


def measure(trained: Trained, drawn: DrawnImages) -> Numbers:
    """Measure the tokens of every intermediate layer that has several.

    The results are the means over images of `token_distances`, and the effective rank of the images' mean tokens. The features
    are those of the residual stream, before the final norm, without prefix and masked tokens.

    Raises:
        ConfigError: there are fewer than two images, which have no covariance.
    """
    if len(drawn.positions) < 2:
        raise ConfigError("a covariance needs two images at least", "--images")
    layer_indices, backbone = multi_token_layers(trained), trained.model.backbone
    sums = {i: torch.zeros(len(NAMES), dtype=torch.float64) for i in layer_indices}
    moments = {i: Moments(backbone.widths[i]) for i in layer_indices}
    with torch.no_grad():
        for batch in drawn.batches():
            intermediates = trained.encode(batch.views["main"], tuple(layer_indices)).intermediates
            for i in layer_indices:
                tokens_BND = intermediates[i].tokens_BND.float()
                sums[i] += token_distances(tokens_BND).sum(1).cpu()
                moments[i].add(tokens_BND.mean(1).cpu())
    kind, blocks = "block" if isinstance(backbone, IsotropicTransformer) else "stage", {}
    for i in layer_indices:
        drawn.check_finite(sums[i], f"features of {kind} {i + 1}")
        means, spectrum_D = dict(zip(NAMES, (sums[i] / len(drawn.positions)).tolist(), strict=True)), moments[i].spectrum()
        blocks[str(i + 1)] = means | {"rank": effective_rank(spectrum_D)}
    return Numbers({"place": kind, "blocks": blocks, "spectrum": spectrum_D.tolist()})


def token_distances(tokens_BND: Tensor) -> Tensor:
    """Measure how far apart the tokens of each image are, (3, B).

    The three rows are the mean Euclidean distance between two tokens; the mean cosine distance, 1 - cos, which does not grow with the
    length of the tokens; and the mean over channels of the (unbiased) variance over tokens, which is the feature-map variance of Park and
    Kim (2022). The mean of squared Euclidean distances would be 2 * D times this variance.
    """
    N = tokens_BND.shape[1]
    pairs, tokens_BND = N * (N - 1), tokens_BND.double()
    parts = tokens_BND.split(max(1, AT_ONCE // N**2))
    apart_B = torch.cat([torch.cdist(part, part, compute_mode="use_mm_for_euclid_dist").sum((1, 2)) for part in parts])
    cosines_B = F.normalize(tokens_BND, dim=-1).sum(1).square().sum(-1) - N  # sum over ordered pairs of different tokens
    variance_B = tokens_BND.var(1).mean(-1)
    return torch.stack([apart_B / pairs, 1 - cosines_B / pairs, variance_B])


class Moments:
    """Sums for the mean and covariance of vectors (S, D) that are added in batches."""

    def __init__(self, width: int):
        self.count, self.sum_D = 0, torch.zeros(width, dtype=torch.float64)
        self.outer_DD = torch.zeros(width, width, dtype=torch.float64)

    def add(self, vectors_BD: Tensor) -> None:
        vectors_BD = vectors_BD.double()
        self.count += len(vectors_BD)
        self.sum_D += vectors_BD.sum(0)
        self.outer_DD += vectors_BD.T @ vectors_BD

    def spectrum(self) -> Tensor:
        """Return the eigenvalues of the covariance as shares of their sum, the largest first, (D,).

        At most S - 1 of them are not 0, and all are 0 if the vectors are equal up to the network's rounding.
        """
        mean_D = self.sum_D / self.count
        values_D = torch.linalg.eigvalsh(self.outer_DD / self.count - mean_D.outer(mean_D)).flip(0)
        values_D = values_D * (values_D > ROUNDING * self.outer_DD.trace() / self.count)
        return values_D / values_D.sum().clamp(min=torch.finfo(values_D.dtype).tiny)


def effective_rank(shares_D: Tensor) -> float:
    """Return exp of the spectrum's entropy (Roy and Vetterli 2007): K if K directions share the variance equally, 0 without variance."""
    return torch.special.entr(shares_D).sum().exp().item() if shares_D.any() else 0.0
