"""Which tokens a pass sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class TokenMask(NamedTuple):
    """A choice of tokens, the same number for every image."""

    keep_BM: Tensor  # int64 indices of the visible tokens, in no particular order
    mask_BN: Tensor  # bool, True = hidden


def random_mask(
    batch_size: int, num_tokens: int, mask_ratio: float, device: torch.device | None = None, generator: torch.Generator | None = None
) -> TokenMask:
    """Keep ``int(num_tokens * (1 - mask_ratio))`` tokens of each image, uniformly at random (MAE, He et al. 2022, section 3)."""
    (mask,) = disjoint_masks(batch_size, num_tokens, [int(num_tokens * (1 - mask_ratio))], device, generator)
    return mask


def disjoint_masks(
    batch_size: int, num_tokens: int, kept: Sequence[int], device: torch.device | None = None, generator: torch.Generator | None = None
) -> list[TokenMask]:
    """Masks that keep no token in common: of one random permutation of each image's tokens the first ``kept[0]``, the next ``kept[1]``, ...

    LUT's code draws the masks of its two views this way; with two numbers that add up to ``num_tokens``, one hides what the other keeps.
    """
    assert all(count > 0 for count in kept) and sum(kept) <= num_tokens, f"{num_tokens} tokens have no disjoint parts of {list(kept)}"
    noise_BN = torch.rand(batch_size, num_tokens, generator=generator, device=device)
    parts = noise_BN.argsort(dim=1)[:, : sum(kept)].split(list(kept), dim=1)
    # tracing (fvcore) knows no scatter of a bool
    return [TokenMask(keep_BM, torch.ones_like(noise_BN).scatter(1, keep_BM, 0.0).bool()) for keep_BM in parts]
