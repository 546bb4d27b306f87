"""How alike the patch tokens of an image are after every block, and how many directions images differ in (Figures 7 and 8 of SSAT, the
right half of LUT's Figure 4).

Shapes: L places whose features can be requested, S images, N patches, D their width.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vitssl.analysis.base import Numbers, Sample
from vitssl.backbones.base import IsotropicTransformer
from vitssl.config import ConfigError
from vitssl.trained import Trained

AT_ONCE = 2**24  # distances that are held: those of a convolutional network's first stage are many
ROUNDING = 1e-10  # of the vectors' mean square: variance below it is that of float32
NAMES = ("distance", "cosine_distance", "variance")


def places_of(trained: Trained) -> list[int]:
    """The places at which an image has several tokens.

    Raises:
        ConfigError: there is none.
    """
    backbone, size_px = trained.model.backbone, trained.run.data.image_size
    if places := [i for i in range(len(backbone.widths)) if math.prod(backbone.grid(size_px, i)) > 1]:
        return places
    raise ConfigError(f"{trained.run.backbone.network} makes a single token of an image of {size_px} px", "data.image_size")


def measure(trained: Trained, sample: Sample) -> Numbers:
    """Means over the images of what `of_tokens` says, and the effective rank of the means of their tokens.

    The features are those of the residual stream, before the final norm; prefix and masked tokens do not count.

    Raises:
        ConfigError: fewer than two images, which span nothing.
    """
    if len(sample.positions) < 2:
        raise ConfigError("a covariance needs two images at least", "--images")
    places, backbone = places_of(trained), trained.model.backbone
    sums = {i: torch.zeros(len(NAMES), dtype=torch.float64) for i in places}
    moments = {i: Moments(backbone.widths[i]) for i in places}
    with torch.no_grad():
        for batch in sample.batches():
            found = trained.encode(batch.views["main"], tuple(places)).intermediates
            for i in places:
                tokens_BND = found[i].tokens_BND.float()
                sums[i] += of_tokens(tokens_BND).sum(1).cpu()
                moments[i].add(tokens_BND.mean(1).cpu())
    place, blocks = "block" if isinstance(backbone, IsotropicTransformer) else "stage", {}
    for i in places:
        sample.check_finite(sums[i], f"features of {place} {i + 1}")
        means, spectrum_D = dict(zip(NAMES, (sums[i] / len(sample.positions)).tolist(), strict=True)), moments[i].spectrum()
        blocks[str(i + 1)] = means | {"rank": effective_rank(spectrum_D)}
    return Numbers({"place": place, "blocks": blocks, "spectrum": spectrum_D.tolist()})


def of_tokens(tokens_BND: Tensor) -> Tensor:
    """Of each image, (3, B): the mean Euclidean distance between two of its tokens; the same of the cosine distance, 1 - cos, which does
    not grow with the tokens' length; and the mean over channels of the (unbiased) variance over tokens, Park and Kim's (2022)
    feature-map variance.

    With squares in the mean the first would be 2 * D times the last.
    """
    N = tokens_BND.shape[1]
    pairs, tokens_BND = N * (N - 1), tokens_BND.double()
    parts = tokens_BND.split(max(1, AT_ONCE // N**2))
    apart_B = torch.cat([torch.cdist(part, part, compute_mode="use_mm_for_euclid_dist").sum((1, 2)) for part in parts])
    cosines_B = F.normalize(tokens_BND, dim=-1).sum(1).square().sum(-1) - N  # over ordered pairs of two, without itself
    variance_B = tokens_BND.var(1).mean(-1)
    return torch.stack([apart_B / pairs, 1 - cosines_B / pairs, variance_B])


class Moments:
    """Mean and covariance of vectors (S, D) that come in parts."""

    def __init__(self, width: int):
        self.count, self.sum_D = 0, torch.zeros(width, dtype=torch.float64)
        self.outer_DD = torch.zeros(width, width, dtype=torch.float64)

    def add(self, vectors_BD: Tensor) -> None:
        vectors_BD = vectors_BD.double()
        self.count += len(vectors_BD)
        self.sum_D += vectors_BD.sum(0)
        self.outer_DD += vectors_BD.T @ vectors_BD

    def spectrum(self) -> Tensor:
        """The covariance's eigenvalues as shares of their sum, the largest first; (D,), at most S - 1 of them not 0, and none where the
        vectors are equal up to the network's rounding."""
        mean_D = self.sum_D / self.count
        values_D = torch.linalg.eigvalsh(self.outer_DD / self.count - mean_D.outer(mean_D)).flip(0)
        values_D = values_D * (values_D > ROUNDING * self.outer_DD.trace() / self.count)
        return values_D / values_D.sum().clamp(min=torch.finfo(values_D.dtype).tiny)


def effective_rank(shares_D: Tensor) -> float:
    """exp of the entropy of the spectrum (Roy and Vetterli 2007): K where K directions share the variance equally; 0 without variance."""
    return torch.special.entr(shares_D).sum().exp().item() if shares_D.any() else 0.0
