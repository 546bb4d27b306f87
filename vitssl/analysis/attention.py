"""Attention of trained transformers, measured: how far its heads look (the left half of LUT's Figure 4) and at which tokens (SSAT's Figure
6), and what the class token gives to each masked token (Figure 4 of the masked tokens paper).

Shapes: h heads, T tokens of the sequence (prefix, patches, masked), P prefix tokens, N patches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vitssl.analysis.base import Numbers, Sample
from vitssl.analysis.selections import selection_of
from vitssl.backbones.base import IsotropicTransformer
from vitssl.backbones.layers import set_fused_attention
from vitssl.config import ConfigError
from vitssl.trained import Trained


@contextmanager
def recorded(
    backbone: IsotropicTransformer, blocks: Iterable[int], part: Callable[[Tensor], Any] = lambda map_BhTT: map_BhTT
) -> Iterator[dict[int, Any]]:
    """Within, every pass leaves here what each of some blocks multiplied its values with: (B, h, T, T), rows of sum 1.

    Fused attention makes no such matrix, so that it is off in all blocks until the end.

    Args:
        part: what is kept of each, as whole ones are large.
    """
    maps: dict[int, Any] = {}
    fused = [(module, module.fused_attn) for module in backbone.modules() if hasattr(module, "fused_attn")]
    handles = []
    for i in blocks:
        attn_drop = backbone.blocks[i].attn.attn_drop  # in evaluation the identity, of the matrix after its softmax
        handles.append(attn_drop.register_forward_hook(lambda _, inputs, __, i=i: maps.__setitem__(i, part(inputs[0]))))
    set_fused_attention(backbone, False)
    try:
        yield maps
    finally:
        for module, was in fused:
            module.fused_attn = was
        for handle in handles:
            handle.remove()


def transformer_of(trained: Trained) -> IsotropicTransformer:
    """A network whose attention can be recorded.

    Raises:
        ConfigError: another one, or with a single patch.
    """
    backbone, network = trained.model.backbone, trained.run.backbone.network
    if not isinstance(backbone, IsotropicTransformer):
        raise ConfigError(f"{network}: attention is looked at in ViTs and T2T-ViTs alone; `vitssl analyze RUN tokens` takes any network")
    if math.prod(backbone.grid(trained.run.data.image_size)) == 1:
        raise ConfigError(f"{network} makes a single patch of an image of {trained.run.data.image_size} px", "data.image_size")
    return backbone


def measure(trained: Trained, sample: Sample) -> Numbers:
    """Of every block the means over images of what `of_map` says: ``distance`` and ``entropy`` of each head, ``received`` by each token."""
    backbone = transformer_of(trained)
    apart_NN = apart(backbone.grid(trained.run.data.image_size)).to(trained.device)
    sums: dict[int, list[Tensor]] = {}
    part = partial(of_map, prefix=backbone.num_prefix_tokens, apart_NN=apart_NN)
    with recorded(backbone, range(backbone.num_layers), part) as maps, torch.no_grad():
        for batch in sample.batches():
            trained.encode(batch.views["main"])
            for i, of_batch in maps.items():
                before = sums.get(i, [0.0] * len(of_batch))
                sums[i] = [total + values.sum(0).double().cpu() for total, values in zip(before, of_batch, strict=True)]
    for i, totals in sums.items():
        sample.check_finite(torch.cat(totals), f"attention weights of block {i + 1}")
    names, count = ("distance", "entropy", "received"), len(sample.positions)
    blocks = {str(i + 1): dict(zip(names, ((total / count).tolist() for total in sums[i]), strict=True)) for i in sorted(sums)}
    return Numbers({"distance_if_equal": apart_NN.mean().item(), "blocks": blocks})


def apart(grid: tuple[int, ...]) -> Tensor:
    """How far the centres of every two patches lie from each other, (N, N), on an image with sides of length 1."""
    sides = (torch.arange(side) / side for side in grid)
    centres_N2 = torch.cartesian_prod(*sides).view(math.prod(grid), -1)
    return torch.cdist(centres_N2, centres_N2, compute_mode="donot_use_mm_for_euclid_dist")


def of_map(map_BhTT: Tensor, prefix: int, apart_NN: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What a block's attention says of each image.

    Args:
        map_BhTT: rows of sum 1.
        prefix: how many tokens come before the patches.
        apart_NN: the distances between patches.

    Returns:
        (B, h) the mean over patches of how far away what they look at lies, with their attention to other patches as weights; (B, h) the
        entropy of these weights as a share of the largest, 1 where all patches count alike; (B, T) the attention that a token gets from
        all, its column's sum, as a mean over heads: 1 on average.
    """
    N, map_BhTT = len(apart_NN), map_BhTT.float()
    patches_BhNN = shares(map_BhTT[:, :, prefix : prefix + N, prefix : prefix + N])
    distance_Bh = (patches_BhNN * apart_NN).sum(-1).mean(-1)
    entropy_Bh = torch.special.entr(patches_BhNN).sum(-1).mean(-1) / math.log(N)
    return distance_Bh, entropy_Bh, map_BhTT.sum(2).mean(1)


def shares(rows: Tensor) -> Tensor:
    """Attention to some of the tokens (..., N), float32, as shares of its sum; 0 where they get none."""
    return rows / rows.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)


def to_masked_tokens(trained: Trained, sample: Sample) -> Numbers:
    """Means over heads and images of the attention that each prefix token gives to each masked token, in every block that has these.

    ``mean`` is of the attention as it is, over all tokens; ``std`` its standard deviation over images; ``share`` the mean of what is left
    when a row is divided by its sum over the masked tokens.
    """
    backbone, J = trained.model.backbone, selection_of(trained).cfg.count
    blocks = range(backbone.num_layers - selection_of(trained).cfg.blocks, backbone.num_layers)
    P, tokens = backbone.num_prefix_tokens, 0
    sums = {i: torch.zeros(3, P, J, dtype=torch.float64) for i in blocks}
    with recorded(backbone, blocks, lambda map_BhTT: map_BhTT[:, :, :P, -J:].double()) as maps, torch.no_grad():
        for batch in sample.batches():
            tokens = P + trained.encode(batch.views["main"]).tokens_BND.shape[1] + J
            for i, rows_BhPJ in maps.items():
                sums[i] += _sums(rows_BhPJ).cpu()
    count = len(sample.positions)
    names = ["cls", *(f"reg{n}" for n in range(1, P))]
    measured = {str(i + 1): {name: _moments(sums[i][:, p] / count, count) for p, name in enumerate(names)} for i in blocks}
    return Numbers({"masked_tokens": J, "tokens": tokens, "blocks": measured})


def _sums(rows_BhPJ: Tensor) -> Tensor:
    """Over images: of the mean over heads, of its square, and of the mean share; (3, P, J)."""
    mean_BPJ = rows_BhPJ.mean(1)
    share_BPJ = (rows_BhPJ / rows_BhPJ.sum(-1, keepdim=True)).mean(1)
    return torch.stack([mean_BPJ.sum(0), mean_BPJ.square().sum(0), share_BPJ.sum(0)])


def _moments(means_3J: Tensor, count: int) -> dict[str, list[float]]:
    mean_J, square_J, share_J = means_3J
    variance_J = (square_J - mean_J**2).clamp(min=0) * count / max(count - 1, 1)
    return {"mean": mean_J.tolist(), "std": variance_J.sqrt().tolist(), "share": share_J.tolist()}
