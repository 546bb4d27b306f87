"""Measurements of the attention of trained transformers.

They show how far away heads attend (left half of LUT's Figure 4), to which tokens (SSAT's Figure 6), and how much the class token attends
to each masked token (Figure 4 of the masked tokens paper).

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

from vitssl.analysis.base import DrawnImages, Numbers
from vitssl.analysis.selections import selection_of
from vitssl.backbones.base import IsotropicTransformer
from vitssl.backbones.layers import set_fused_attention
from vitssl.config import ConfigError
from vitssl.trained import Trained


@contextmanager
def recorded(
    backbone: IsotropicTransformer, blocks: Iterable[int], part: Callable[[Tensor], Any] = lambda map_BhTT: map_BhTT
) -> Iterator[dict[int, Any]]:
    """Return a context that gives a dict into which every pass puts the attention maps of some blocks, by block number.

    A map is the matrix (B, h, T, T), with rows that sum to 1, by which a block multiplies its values. Fused attention never computes it, so
    fused attention is off in all blocks inside the context.

    Args:
        backbone: the transformer.
        blocks: numbers of the blocks to record.
        part: returns what to keep of a map, since whole maps are large.
    """
    maps: dict[int, Any] = {}
    fused = [(module, module.fused_attn) for module in backbone.modules() if hasattr(module, "fused_attn")]
    handles = []
    for i in blocks:
        # in evaluation mode the identity, applied to the map after the softmax
        attn_drop = backbone.blocks[i].get_submodule("attn.attn_drop")
        handles.append(attn_drop.register_forward_hook(lambda _, inputs, __, i=i: maps.__setitem__(i, part(inputs[0]))))
    set_fused_attention(backbone, False)
    try:
        yield maps
    finally:
        for module, was_fused in fused:
            module.fused_attn = was_fused
        for handle in handles:
            handle.remove()


def transformer_of(trained: Trained) -> IsotropicTransformer:
    """Return the run's backbone, if its attention can be recorded.

    Raises:
        ConfigError: the backbone is not an isotropic transformer, or it has a single patch.
    """
    backbone, network = trained.model.backbone, trained.run.backbone.network
    if not isinstance(backbone, IsotropicTransformer):
        raise ConfigError(f"{network}: attention is looked at in ViTs and T2T-ViTs alone; `vitssl analyze RUN tokens` takes any network")
    if math.prod(backbone.grid(trained.run.data.image_size)) == 1:
        raise ConfigError(f"{network} makes a single patch of an image of {trained.run.data.image_size} px", "data.image_size")
    return backbone


def measure(trained: Trained, drawn: DrawnImages) -> Numbers:
    """Measure the attention of every block: the means over images of the values that `summarize_map` returns.

    They are ``distance`` and ``entropy`` of each head, and the attention ``received`` by each token.
    """
    backbone = transformer_of(trained)
    distances_NN = patch_distances(backbone.grid(trained.run.data.image_size)).to(trained.device)
    sums: dict[int, list[Tensor]] = {}
    part = partial(summarize_map, prefix=backbone.num_prefix_tokens, distances_NN=distances_NN)
    with recorded(backbone, range(backbone.num_layers), part) as maps, torch.no_grad():
        for batch in drawn.batches():
            trained.encode(batch.views["main"])
            for i, batch_values in maps.items():
                previous = sums.get(i, [0.0] * len(batch_values))
                sums[i] = [total + values.sum(0).double().cpu() for total, values in zip(previous, batch_values, strict=True)]
    for i, totals in sums.items():
        drawn.check_finite(torch.cat(totals), f"attention weights of block {i + 1}")
    names, count = ("distance", "entropy", "received"), len(drawn.positions)
    blocks = {str(i + 1): dict(zip(names, ((total / count).tolist() for total in sums[i]), strict=True)) for i in sorted(sums)}
    return Numbers({"distance_if_equal": distances_NN.mean().item(), "blocks": blocks})


def patch_distances(grid: tuple[int, ...]) -> Tensor:
    """Return the distances between the centres of all pairs of patches, (N, N), on an image with sides of length 1."""
    sides = (torch.arange(side) / side for side in grid)
    centres_N2 = torch.cartesian_prod(*sides).view(math.prod(grid), -1)
    return torch.cdist(centres_N2, centres_N2, compute_mode="donot_use_mm_for_euclid_dist")


def summarize_map(map_BhTT: Tensor, prefix: int, distances_NN: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Summarise a block's attention map for each image.

    Args:
        map_BhTT: attention, with rows that sum to 1.
        prefix: number of tokens before the patches.
        distances_NN: the distances between patches.

    Returns:
        Three tensors. (B, h): the distance from a patch to the patches it attends to, weighted by its attention to them, averaged over
        patches. (B, h): the entropy of these weights as a share of its maximum, so that 1 means equal weights. (B, T): the attention that a
        token receives from all tokens (the sum of its column), averaged over heads; 1 on average over tokens.
    """
    N, map_BhTT = len(distances_NN), map_BhTT.float()
    patches_BhNN = normalize_rows(map_BhTT[:, :, prefix : prefix + N, prefix : prefix + N])
    distance_Bh = (patches_BhNN * distances_NN).sum(-1).mean(-1)
    entropy_Bh = torch.special.entr(patches_BhNN).sum(-1).mean(-1) / math.log(N)
    return distance_Bh, entropy_Bh, map_BhTT.sum(2).mean(1)


def normalize_rows(rows: Tensor) -> Tensor:
    """Divide attention to some of the tokens (..., N), in float32, by its sum over them; rows without attention to them stay 0."""
    return rows / rows.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)


def to_masked_tokens(trained: Trained, drawn: DrawnImages) -> Numbers:
    """Measure how much each prefix token attends to each masked token, in every block with masked tokens, averaged over heads and images.

    ``mean`` is the mean of the attention, which sums to 1 over all tokens. ``std`` is its standard deviation over images. ``share`` is the
    mean after dividing each row by its sum over the masked tokens.
    """
    backbone, J = trained.model.backbone, selection_of(trained).cfg.count
    assert isinstance(backbone, IsotropicTransformer)  # as all that have masked tokens
    blocks = range(backbone.num_layers - selection_of(trained).cfg.blocks, backbone.num_layers)
    P, tokens = backbone.num_prefix_tokens, 0
    sums = {i: torch.zeros(3, P, J, dtype=torch.float64) for i in blocks}
    with recorded(backbone, blocks, lambda map_BhTT: map_BhTT[:, :, :P, -J:].double()) as maps, torch.no_grad():
        for batch in drawn.batches():
            tokens = P + trained.encode(batch.views["main"]).tokens_BND.shape[1] + J
            for i, rows_BhPJ in maps.items():
                sums[i] += _sums(rows_BhPJ).cpu()
    count = len(drawn.positions)
    names = ["cls", *(f"reg{n}" for n in range(1, P))]
    measured = {str(i + 1): {name: _moments(sums[i][:, p] / count, count) for p, name in enumerate(names)} for i in blocks}
    return Numbers({"masked_tokens": J, "tokens": tokens, "blocks": measured})


def _sums(rows_BhPJ: Tensor) -> Tensor:
    """Return sums over images of the mean over heads, of its square, and of the mean share, (3, P, J)."""
    mean_BPJ = rows_BhPJ.mean(1)
    share_BPJ = (rows_BhPJ / rows_BhPJ.sum(-1, keepdim=True)).mean(1)
    return torch.stack([mean_BPJ.sum(0), mean_BPJ.square().sum(0), share_BPJ.sum(0)])


def _moments(means_3J: Tensor, count: int) -> dict[str, list[float]]:
    mean_J, square_J, share_J = means_3J
    variance_J = (square_J - mean_J**2).clamp(min=0) * count / max(count - 1, 1)
    return {"mean": mean_J.tolist(), "std": variance_J.sqrt().tolist(), "share": share_J.tolist()}
