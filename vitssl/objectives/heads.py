"""What objectives put on a backbone's features."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitssl.backbones import layers, norms
from vitssl.backbones.base import Backbone, Features
from vitssl.config.objectives.classify import HeadConfig
from vitssl.objectives.step import Step


def pooled(features: Features, pool: str) -> Tensor:
    """The class token, the mean of the registers, or that of the patch tokens, (B, D); joined by ``+`` they are concatenated."""
    parts = {
        "cls": lambda: features.prefix_BPD[:, 0],
        "reg": lambda: features.prefix_BPD[:, 1:].mean(1),
        "mean": lambda: features.tokens_BND.mean(1),
    }
    return torch.cat([parts[part]() for part in pool.split("+")], dim=1)


def pooled_blocks(features: Features, norm: Callable[[Tensor], Tensor], pool: str, blocks: tuple[int, ...]) -> Tensor:
    """The pooled tokens of several intermediate places, each after the final norm, concatenated; of the output where none is named."""
    if not blocks:
        return pooled(features, pool)
    parts = []
    for tokens in (features.intermediates[i] for i in blocks):
        normed = norm(tokens.sequence())
        parts.append(pooled(Features.split(normed, tokens.prefix_BPD.shape[1], tokens.extra_BJD.shape[1], tokens.grid), pool))
    return torch.cat(parts, dim=1)


class ClassifierHead(nn.Linear):
    """Pooled features to logits by a linear layer, and what the config puts before it.

    Attributes:
        out_indices: the intermediate places that it reads.
    """

    def __init__(self, cfg: HeadConfig, backbone: Backbone, num_classes: int):
        dim = backbone.embed_dim * cfg.blocks * len(cfg.pool.split("+"))
        super().__init__(cfg.hidden_dim or dim, num_classes)
        self.cfg, last = cfg, len(backbone.widths)
        self.out_indices = tuple(range(last - cfg.blocks, last)) if cfg.blocks > 1 or cfg.norm == "fc" else ()
        self.before = nn.Sequential()
        if cfg.norm == "batch":
            self.before.add_module("norm", norms.BatchNorm1d(dim, eps=1e-6, affine=False))
        if cfg.hidden_dim is not None:
            self.before.add_module("hidden", nn.Linear(dim, cfg.hidden_dim))
            self.before.add_module("activation", nn.GELU() if cfg.activation == "gelu" else nn.Tanh())

    def forward(self, features: Features, step: Step) -> Tensor:  # type: ignore[override]
        """(B, K)"""
        if self.cfg.norm == "fc":
            pooled_BD = step.norm(pooled(features.intermediates[self.out_indices[0]], self.cfg.pool))
        else:
            pooled_BD = pooled_blocks(features, step.norm, self.cfg.pool, self.out_indices)
        return super().forward(self.before(pooled_BD))


def mlp(widths: list[int], activation: type[nn.Module], batch_norm: bool, last_batch_norm: bool = False) -> nn.Sequential:
    """Linear layers from width to width; after all but the last, a batch norm if asked for (in place of the bias) and the activation.

    With ``last_batch_norm`` there is one after the last too, and neither has a bias (SimCLR's code).
    """
    parts: list[nn.Module] = []
    for i in range(len(widths) - 2):
        parts += [nn.Linear(widths[i], widths[i + 1], bias=not batch_norm)]
        parts += [norms.BatchNorm1d(widths[i + 1])] if batch_norm else []
        parts += [activation()]
    parts += [nn.Linear(widths[-2], widths[-1], bias=not last_batch_norm)]
    if last_batch_norm:
        parts += [norms.BatchNorm1d(widths[-1])]
        parts[-1].register_parameter("bias", None)  # it scales and does not shift
    head = nn.Sequential(*parts)
    layers.init_linear(head, "trunc_normal")
    return head


class Prototypes(nn.Module):
    """Weight-normalised scores without bias: the cosines with K directions, times their lengths where these are trained."""

    def __init__(self, dim: int, count: int, fixed_length: bool):
        super().__init__()
        self.weight_v = nn.Parameter(nn.Linear(dim, count, bias=False).weight.detach())
        self.weight_g = nn.Parameter(torch.ones(count, 1), requires_grad=not fixed_length)

    def forward(self, units_BD: Tensor) -> Tensor:
        """(B, K), in float32: bfloat16's steps are too coarse for cosines that will be divided by a small temperature."""
        with torch.autocast(units_BD.device.type, enabled=False):
            return F.linear(layers.upcast(units_BD), F.normalize(self.weight_v, dim=1) * self.weight_g)
