"""Batch normalisation over the global batch of all ranks, on any device (torch's SyncBatchNorm refuses the CPU).

A backbone may also use the statistics of each rank (``set_over_ranks``), as most public code does.

Shapes: R ranks.

On a CPU, torch 2.14 computes a wrong gradient, off by as much as its own size, for maps of width 1 whose strides are not clearly those of
channels first or channels last. The forward pass is right. The smallest example:

    tokens = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    normed = F.batch_norm(tokens.transpose(1, 2)[..., None], None, None, training=True)  # strides (12, 1, 4, 1)
    normed.backward(torch.randn(2, 4, 3, 1, dtype=torch.float64))  # compare with F.batch_norm of (6, 4): 100 % off

torch takes the map to be channels last (a side of 1 may have any stride) and its gradient to be channels first, but reads both in the
same order. Therefore tokens are normalised as a matrix, and `BatchNorm2d` refuses such maps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import BatchNormAct2d as TimmBatchNormAct2d
from torch import Tensor, nn

from vitssl import dist
from vitssl.backbones.layers import no_autocast, upcast
from vitssl.config import ConfigError


class _GlobalBatchNorm(nn.modules.batchnorm._BatchNorm):
    """torch's batch norm with the mean and variance over the values of all ranks; a single process uses torch's kernel.

    In training, ranks may hold different numbers of values. Statistics are float32 for any type of input. `set_over_ranks` sets
    ``over_ranks``, and `frozen_statistics` sets ``update_statistics``.

    Raises:
        ConfigError: there is a single value per channel in training.
    """

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        # as class attributes they would cause a recompilation when they are first set on the instance
        self.update_statistics, self.over_ranks = True, True

    def forward(self, values: Tensor) -> Tensor:
        if not self.training:
            return super().forward(values)
        self._check_input_dim(values)
        single_rank = dist.world_size() == 1
        if (single_rank or not self.over_ranks) and values.numel() == values.shape[1]:
            raise ConfigError(
                "a batch norm gets one value per channel, which has no variance; give each GPU more images, with loop.micro_batch_size too",
                "optim.batch_size",
            )
        if single_rank and self.update_statistics:
            return super().forward(values)
        if single_rank or not self.over_ranks:
            return self._per_rank(values)
        return self._global(values)

    def _per_rank(self, values: Tensor) -> Tensor:
        """Normalise by this rank's statistics. Running statistics use the mean over ranks, so that they are equal on all of them."""
        if self.update_statistics and self.track_running_stats:
            with torch.no_grad():
                var_C, mean_C = torch.var_mean(upcast(values), _all_but_channels(values))
                self._update(*dist.gather(torch.stack([mean_C, var_C])[None]).mean(0))
        return F.batch_norm(values, None, None, self.weight, self.bias, training=True, eps=self.eps)

    def _global(self, values: Tensor) -> Tensor:
        with no_autocast(values):
            mean_C, var_C, count = _moments(upcast(values))
            if self.update_statistics and self.track_running_stats:
                self._update(mean_C.detach(), var_C.detach() * count / (count - 1))
            scale_C = (var_C + self.eps).rsqrt()
            if self.weight is not None:
                scale_C = scale_C * self.weight
            centred = upcast(values) - _channels(mean_C, values)
            normed = centred * _channels(scale_C, values)
            return (normed if self.bias is None else normed + _channels(self.bias, values)).to(values.dtype)

    def _update(self, mean_C: Tensor, unbiased_var_C: Tensor) -> None:
        """Move the running statistics towards the given ones, as torch does."""
        assert self.momentum is not None, "an equal average over all steps is not supported"
        assert self.num_batches_tracked is not None and self.running_mean is not None and self.running_var is not None
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean_C, self.momentum)
            self.running_var.lerp_(unbiased_var_C, self.momentum)


class BatchNorm1d(_GlobalBatchNorm, nn.BatchNorm1d):
    """Batch norm of values (B, C) or (B, C, length)."""


class BatchNorm2d(_GlobalBatchNorm, nn.BatchNorm2d):
    """Batch norm of maps (B, C, height, width)."""

    def forward(self, values: Tensor) -> Tensor:
        assert values.shape[3] > 1 or values.shape[2] == 1, "a map of width 1 may get a wrong gradient: normalise a matrix"
        return super().forward(values)


class BatchNormAct2d(BatchNorm2d):
    """timm's batch norm that is followed by the dropout ``drop`` and the activation ``act``."""

    drop: nn.Module
    act: nn.Module

    def forward(self, values: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(values)))


# torch's or timm's class -> the class that replaces it
OURS = {TimmBatchNormAct2d: BatchNormAct2d, nn.BatchNorm2d: BatchNorm2d, nn.BatchNorm1d: BatchNorm1d}


def replace_batch_norms(module: nn.Module) -> None:
    """Replace torch's and timm's batch norms inside ``module`` by those of this file, keeping weights and names."""
    for part in list(module.modules()):
        for name, child in part.named_children():
            if isinstance(child, nn.modules.batchnorm._BatchNorm) and (norm_class := OURS.get(type(child))) is not None:
                setattr(part, name, _like(child, norm_class))


def _like(norm: nn.modules.batchnorm._BatchNorm, ours: type[_GlobalBatchNorm]) -> _GlobalBatchNorm:
    new = ours(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
    for name, value in [*norm.named_parameters(recurse=False), *norm.named_buffers(recurse=False), *norm.named_children()]:
        setattr(new, name, value)
    return new


def set_over_ranks(module: nn.Module, over_ranks: bool) -> None:
    """Let the norms inside ``module`` take their statistics over all ranks, or each rank its own, as nearly all public code does."""
    for part in module.modules():
        if isinstance(part, _GlobalBatchNorm):
            part.over_ranks = over_ranks


@contextmanager
def frozen_statistics(module: nn.Module) -> Iterator[None]:
    """Return a context in which the norms inside ``module`` leave their running statistics unchanged in training.

    They still normalise by the statistics of the batch. Meant for passes over masked or altered images, whose statistics differ from those
    of the images to predict.
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
    """Return the mean and biased variance of each channel over all ranks, with gradient, and the number of values in them.

    Ranks exchange means and variances instead of sums, so that no precision is lost if the mean is far from zero (Chan et al. 1983).
    """
    var_C, mean_C = torch.var_mean(values, _all_but_channels(values), correction=0)
    count = mean_C.new_full((1,), values.numel() // values.shape[1])
    moments = torch.cat([mean_C, var_C, count])
    mean_RC, var_RC, count_R = dist.gather(moments[None]).split([len(mean_C), len(var_C), 1], dim=1)
    share_R = count_R / count_R.sum()
    mean_C = (share_R * mean_RC).sum(0)
    return mean_C, (share_R * (var_RC + (mean_RC - mean_C).square())).sum(0), count_R.sum()


def _all_but_channels(values: Tensor) -> list[int]:
    return [d for d in range(values.dim()) if d != 1]


def _channels(vector_C: Tensor, values: Tensor) -> Tensor:
    """Reshape a vector (C,) so that it broadcasts over ``values`` (B, C, ...)."""
    return vector_C.view(1, -1, *[1] * (values.dim() - 2))
