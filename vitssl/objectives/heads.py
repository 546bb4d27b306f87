"""What objectives put on a backbone's features."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitssl.backbones import layers, norms


def mlp(
    widths: list[int], activation: type[nn.Module], batch_norm: bool, last_batch_norm: bool = False, last_bias: bool = True
) -> nn.Sequential:
    """Linear layers from width to width; after all but the last, a batch norm if asked for (in place of the bias) and the activation.

    With ``last_batch_norm`` there is one after the last too, and neither has a bias (SimCLR's code); without ``last_bias`` the last layer
    has none (LUT's).
    """
    parts: list[nn.Module] = []
    for i in range(len(widths) - 2):
        parts += [nn.Linear(widths[i], widths[i + 1], bias=not batch_norm)]
        parts += [norms.BatchNorm1d(widths[i + 1])] if batch_norm else []
        parts += [activation()]
    parts += [nn.Linear(widths[-2], widths[-1], bias=last_bias and not last_batch_norm)]
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
        with layers.no_autocast(units_BD):
            return F.linear(layers.upcast(units_BD), F.normalize(self.weight_v, dim=1) * self.weight_g)
