"""Heads that objectives put on a backbone's features."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitssl.backbones import layers, norms


def mlp(
    widths: list[int], activation: type[nn.Module], batch_norm: bool, last_batch_norm: bool = False, last_bias: bool = True
) -> nn.Sequential:
    """Build an MLP with linear layers between consecutive ``widths``, initialised with timm's truncated normal.

    All layers but the last are followed by an optional batch norm, which replaces the bias, and the activation.

    Args:
        widths: of the input, the hidden layers and the output.
        activation: class of the activation.
        batch_norm: put a batch norm after every layer but the last.
        last_batch_norm: also put a batch norm after the last layer; then neither has a bias (as in SimCLR's code).
        last_bias: give the last layer a bias; False as in LUT's code.
    """
    parts: list[nn.Module] = []
    for i in range(len(widths) - 2):
        parts += [nn.Linear(widths[i], widths[i + 1], bias=not batch_norm)]
        parts += [norms.BatchNorm1d(widths[i + 1])] if batch_norm else []
        parts += [activation()]
    parts += [nn.Linear(widths[-2], widths[-1], bias=last_bias and not last_batch_norm)]
    if last_batch_norm:
        parts += [norms.BatchNorm1d(widths[-1])]
        parts[-1].register_parameter("bias", None)  # it scales but does not shift
    head = nn.Sequential(*parts)
    layers.init_linear(head, "trunc_normal")
    return head


class Prototypes(nn.Module):
    """A weight-normalised linear layer without bias: cosines with K directions, times their lengths, which are trained or fixed at 1."""

    def __init__(self, dim: int, count: int, fixed_length: bool):
        super().__init__()
        self.weight_v = nn.Parameter(nn.Linear(dim, count, bias=False).weight.detach())
        self.weight_g = nn.Parameter(torch.ones(count, 1), requires_grad=not fixed_length)

    def forward(self, units_BD: Tensor) -> Tensor:
        """Return scores (B, K) in float32, since bfloat16 is too coarse for cosines that are divided by a small temperature later."""
        with layers.no_autocast(units_BD):
            return F.linear(layers.upcast(units_BD), F.normalize(self.weight_v, dim=1) * self.weight_g)
