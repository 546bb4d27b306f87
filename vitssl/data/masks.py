"""Which tokens a pass sees.

Shapes: B images, N tokens of the output grid, M kept tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vitssl.config import ConfigError


class Selection(NamedTuple):
    """A named choice of tokens, the same number for every image."""

    name: str
    keep_BM: Tensor  # int64 indices of the visible tokens, in no particular order
    mask_BN: Tensor  # bool, True = hidden


def random_keep(
    batch_size: int,
    num_tokens: int,
    mask_ratio: float,
    generator: torch.Generator | None = None,
    device: torch.device | None = None,
    name: str = "random",
) -> Selection:
    """Keep ``int(num_tokens * (1 - mask_ratio))`` tokens of each image, uniformly at random (MAE, He et al. 2022, section 3).

    Raises:
        ConfigError: nothing would be kept.
    """
    kept = int(num_tokens * (1 - mask_ratio))
    if kept < 1:
        raise ConfigError(f"mask_ratio={mask_ratio} keeps none of {num_tokens} tokens; lower it or use smaller patches")
    noise_BN = torch.rand(batch_size, num_tokens, generator=generator, device=device)
    keep_BM = noise_BN.argsort(dim=1)[:, :kept]
    mask_BN = torch.ones_like(noise_BN).scatter(1, keep_BM, 0.0).bool()  # tracing (fvcore) knows no scatter of a bool
    return Selection(name, keep_BM, mask_BN)


def complement(selection: Selection) -> Selection:
    """The tokens that ``selection`` hides, in rising order."""
    name, keep_BM, mask_BN = selection
    hidden = mask_BN.shape[1] - keep_BM.shape[1]
    order_BN = mask_BN.to(torch.uint8).argsort(dim=1, descending=True, stable=True)
    return Selection(f"{name}/complement", order_BN[:, :hidden], ~mask_BN)
