"""Learnable masked tokens (Hu et al. 2022): extra tokens in a transformer's last blocks that are means of selected patch tokens.

Token j of J selects M_j = ceil(j N / J) of the N patch tokens (Eq. 5): those with the highest scores against a learned query (Eq. 8).
SoftSort (Prillo and Eisenschlos 2020) makes the selection differentiable. The paper's Eq. 10 lacks SoftSort's minus sign.

Shapes: J masked tokens.
"""

from __future__ import annotations

import dataclasses
import math

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn

from vitssl.backbones.base import Features, IsotropicTransformer, Part
from vitssl.backbones.layers import no_autocast, upcast
from vitssl.config import MaskedTokens

NEVER = -1e30  # stands for the logarithm of 0: its exponential is 0 and, unlike minus infinity, it has gradients


def subset_sizes(num_masked_tokens: int, num_tokens: int) -> list[int]:
    """Return how many patch tokens each masked token selects, M_j (Eq. 5); the last one selects all."""
    return [math.ceil(j * num_tokens / num_masked_tokens) for j in range(1, num_masked_tokens + 1)]


def _ranks_within(scores_BJN: Tensor) -> Tensor:
    """Return which ranks of the scores, from the highest down, token j selects: the first M_j = ceil(j N / J); bool (J, N)."""
    J, N = scores_BJN.shape[1:]
    j_J1 = torch.arange(1, J + 1, device=scores_BJN.device)[:, None]
    return torch.arange(N, device=scores_BJN.device) < (j_J1 * N + J - 1) // J


def soft_weights(scores_BJN: Tensor, temperature: float) -> Tensor:
    """Return the weight of each patch token in the mean of the first M_j rows of SoftSort's matrix.

    Row i of that matrix is the softmax over k of -|s_(i) - s_k| / temperature, where s_(i) is the i-th largest score. Let u be the
    scores over the temperature, in descending order. Both the normaliser Z_i of a row and the sum of the first M rows split into a part
    before and a part after the diagonal, which are cumulative sums of exp(-u) and exp(u). So no N x N matrix is needed, and computing in
    logarithms avoids overflow.

    Args:
        scores_BJN: the score of each masked token for each patch token.
        temperature: tau of Eq. 10.

    Returns:
        (B, J, N), whose rows sum to 1, in float32 or wider.
    """
    u, order = (
        (scores_BJN / temperature).to(torch.promote_types(scores_BJN.dtype, torch.float32)).sort(dim=-1, descending=True, stable=True)
    )
    Z = (u + (-u).logcumsumexp(-1)).exp() + (_reverse_logcumsumexp(u) - u).exp() - 1  # both parts contain the 1 of the diagonal
    within_JN = _ranks_within(scores_BJN)
    log_rows = torch.where(within_JN, -Z.log(), NEVER)
    before = (u + (log_rows - u).logcumsumexp(-1)).exp()
    after = (_reverse_logcumsumexp(log_rows + u) - u).exp()
    total = before + after - log_rows.exp()
    return torch.zeros_like(total).scatter(-1, order, total / within_JN.sum(-1, keepdim=True))


def _reverse_logcumsumexp(x: Tensor) -> Tensor:
    return x.flip(-1).logcumsumexp(-1).flip(-1)


def hard_weights(scores_BJN: Tensor) -> Tensor:
    """Return 1 / M_j for the M_j patch tokens with the highest scores and 0 for the others, (B, J, N) in float32, without gradient."""
    within_JN = _ranks_within(scores_BJN)
    weights_BJN = (within_JN / within_JN.sum(-1, keepdim=True)).expand_as(scores_BJN)
    return torch.zeros_like(weights_BJN).scatter(-1, scores_BJN.argsort(dim=-1, descending=True, stable=True), weights_BJN)


def _pool(weights_BJN: Tensor, tokens_BND: Tensor) -> Tensor:
    """Return weighted means of the tokens, in their type."""
    return (weights_BJN @ tokens_BND).to(tokens_BND.dtype)


class Selection(Part):
    """The part before the first augmented block: it selects and pools patch tokens and appends the results as masked tokens.

    Attributes:
        query_JD: the masked query embeddings, the only weights that the paper adds; None with random selection.
    """

    def __init__(self, cfg: MaskedTokens, embed_dim: int):
        super().__init__()
        self.cfg = cfg
        self.query_JD = None if cfg.selection == "random" else nn.Parameter(torch.empty(cfg.count, embed_dim))
        self._cached_scores: dict[tuple[int, torch.device], Tensor] = {}
        if self.query_JD is not None:
            trunc_normal_(self.query_JD, std=cfg.query_std)

    def forward(self, tokens: Features) -> Features:
        weights_BJN = self.weights(tokens.tokens_BND).to(tokens.tokens_BND.dtype)
        extra_BJD = torch.cat([tokens.extra_BJD, _pool(weights_BJN, tokens.tokens_BND)], dim=1)
        return dataclasses.replace(tokens, extra_BJD=extra_BJD, selection_BJN=weights_BJN)

    def scores(self, tokens_BND: Tensor) -> Tensor:
        """Return the score of each masked token for each patch token, (B, J, N).

        Scores follow Eq. 8, or are random with ``selection: random``; random scores are always the same in evaluation mode.
        """
        if self.query_JD is None:
            B, J, N = len(tokens_BND), self.cfg.count, tokens_BND.shape[1]
            if self.training:
                return torch.rand(B, J, N, device=tokens_BND.device)
            return self._fixed_scores(J, N, tokens_BND.device).expand(B, -1, -1)
        if self.cfg.scores == "normed":
            tokens_BND = F.layer_norm(tokens_BND, tokens_BND.shape[-1:])
        # a score of 3 is off by up to 0.008 in bfloat16, which is much at a temperature of 0.1
        with no_autocast(tokens_BND):
            return upcast(self.query_JD) @ upcast(tokens_BND).transpose(1, 2)

    def _fixed_scores(self, J: int, N: int, device: torch.device) -> Tensor:
        """Return the random scores of evaluation, (1, J, N), cached because a recorded pass must not copy from the host."""
        if (N, device) not in self._cached_scores:
            self._cached_scores[N, device] = torch.rand(1, J, N, generator=torch.Generator().manual_seed(0)).to(device)
        return self._cached_scores[N, device]

    def weights(self, tokens_BND: Tensor) -> Tensor:
        """Return the weight of each patch token in each masked token, (B, J, N)."""
        scores_BJN = self.scores(tokens_BND)
        if self.cfg.selection == "random":
            return hard_weights(scores_BJN)
        soft_BJN = soft_weights(scores_BJN, self.cfg.temperature)
        return soft_BJN if self.cfg.selection == "soft" else hard_weights(scores_BJN) + soft_BJN - soft_BJN.detach()

    def convert_state_dict(self, state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """Interpolate the queries if ``state`` has another number of masked tokens, as position embeddings are for another grid."""
        name = f"{prefix}query_JD"
        if self.query_JD is None or name not in state or state[name].shape[0] == len(self.query_JD):
            return state
        query_DJ = F.interpolate(state[name].T[None], size=len(self.query_JD), mode="linear", align_corners=False)[0]
        return {**state, name: query_DJ.T.contiguous()}


class Mixing(Part):
    """The part before each later augmented block: it pools the patch tokens there with the weights of the first selection, and mixes the
    result into the masked tokens (Eq. 7)."""

    def __init__(self, mix: float):
        super().__init__()
        self.mix = mix

    def forward(self, tokens: Features) -> Features:
        assert tokens.selection_BJN is not None, "no selection before this block"
        pooled_BJD = _pool(tokens.selection_BJN, tokens.tokens_BND)
        return dataclasses.replace(tokens, extra_BJD=torch.lerp(tokens.extra_BJD, pooled_BJD, self.mix))


def add(backbone: IsotropicTransformer, cfg: MaskedTokens) -> None:
    """Add masked tokens to the last ``cfg.blocks`` blocks of a transformer."""
    first = backbone.num_layers - cfg.blocks
    backbone.insert(Selection(cfg, backbone.embed_dim), before=first)
    if cfg.later_blocks == "mix":
        for block in range(first + 1, backbone.num_layers):
            backbone.insert(Mixing(cfg.mix), before=block)
