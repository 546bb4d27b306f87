"""Attention of trained transformers, measured: what the class token gives to each masked token (Figure 4 of the masked tokens paper).

Shapes: h heads, T tokens of the sequence (prefix, patches, masked), P prefix tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from vitssl.analysis.base import Numbers, Sample
from vitssl.analysis.selections import selection_of
from vitssl.backbones.base import IsotropicTransformer
from vitssl.backbones.layers import set_fused_attention
from vitssl.trained import Trained


@contextmanager
def recorded(
    backbone: IsotropicTransformer, blocks: Iterable[int], part: Callable[[Tensor], Tensor] = lambda map_BhTT: map_BhTT
) -> Iterator[dict[int, Tensor]]:
    """Within, every pass leaves here what each of some blocks multiplied its values with: (B, h, T, T), rows of sum 1.

    Fused attention makes no such matrix, so that it is off in all blocks until the end.

    Args:
        part: what is kept of each, as whole ones are large.
    """
    maps: dict[int, Tensor] = {}
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
