"""Batch normalisation over the global batch: all ranks together, on any device (torch's SyncBatchNorm refuses the CPU).

Shapes: R ranks, B images of this rank, C channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitssl import dist


class _GlobalBatchNorm(nn.modules.batchnorm._BatchNorm):
    """torch's batch norm, whose mean and variance are those of all ranks' values; one process takes torch's own kernel.

    What it sees in training may differ in count between ranks. Statistics are float32 whatever the input's type.
    ``update_statistics`` belongs to `frozen_statistics`.
    """

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.update_statistics = True  # not of the class: compiled code would be compiled anew when it first becomes the instance's

    def forward(self, values: Tensor) -> Tensor:
        if not self.training or (dist.world_size() == 1 and self.update_statistics):
            return super().forward(values)
        self._check_input_dim(values)
        if dist.world_size() == 1:
            return F.batch_norm(values, None, None, self.weight, self.bias, training=True, eps=self.eps)
        with torch.autocast(values.device.type, enabled=False):
            mean_C, var_C, count = _moments(values.float())
            if self.update_statistics and self.track_running_stats:
                self._update(mean_C.detach(), var_C.detach(), count)
            scale_C = (var_C + self.eps).rsqrt()
            if self.affine:
                scale_C = scale_C * self.weight
            centred = values.float() - _channels(mean_C, values)
            normed = centred * _channels(scale_C, values)
            return (normed + _channels(self.bias, values) if self.affine else normed).to(values.dtype)

    def _update(self, mean_C: Tensor, var_C: Tensor, count: Tensor) -> None:
        """The running statistics' step, with the unbiased variance, as torch's."""
        assert self.momentum is not None, "an equal average over all steps is not supported"
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean_C, self.momentum)
            self.running_var.lerp_(var_C * count / (count - 1), self.momentum)


class BatchNorm1d(_GlobalBatchNorm, nn.BatchNorm1d):
    """Of (B, C), or (B, C, length)."""


class BatchNorm2d(_GlobalBatchNorm, nn.BatchNorm2d):
    """Of (B, C, height, width)."""


@contextmanager
def frozen_statistics(module: nn.Module) -> Iterator[None]:
    """Within, every norm of this file below ``module`` still normalises by its batch in training, and forgets the batch.

    For passes over masked images, which are not what the running statistics are kept for.
    """
    parts = [part for part in module.modules() if isinstance(part, _GlobalBatchNorm)]
    for part in parts:
        part.update_statistics = False
    try:
        yield
    finally:
        for part in parts:
            part.update_statistics = True


def _moments(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and biased variance of each channel over all ranks, with gradient, and the count of values behind them.

    Each rank's own moments travel, so that no precision is lost where the mean is far from zero (Chan et al. 1983).
    """
    dims = [d for d in range(values.dim()) if d != 1]
    var_C, mean_C = torch.var_mean(values, dims, correction=0)
    count = mean_C.new_full((1,), values.numel() // values.shape[1])
    moments = torch.cat([mean_C, var_C, count])
    mean_RC, var_RC, count_R = dist.gather(moments[None]).split([len(mean_C), len(var_C), 1], dim=1)
    share_R = count_R / count_R.sum()
    mean_C = (share_R * mean_RC).sum(0)
    return mean_C, (share_R * (var_RC + (mean_RC - mean_C).square())).sum(0), count_R.sum()


def _channels(vector_C: Tensor, values: Tensor) -> Tensor:
    """(C,) so that it broadcasts over values (B, C, ...)."""
    return vector_C.view(1, -1, *[1] * (values.dim() - 2))
