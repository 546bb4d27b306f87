"""The gradient of every allowed pair of backbone and objective, against finite differences in float64.

A forward pass that is right proves nothing about the backward pass: a batch norm on a strided view had a gradient that was wrong by
its own size on CPUs (``test_norms.py`` has the minimal case), in runs whose losses fell.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import but_for_a_release
from tests.test_pairs import ALLOWED, COVERING, batch, make  # noqa: F401
from vitssl import model
from vitssl.data.loading.batch import Batch

STEPS = (1e-5, 1e-3, 1e-7)  # where gradients are tiny, rounding spoils small ones; where there are kinks (ReLU, L1), those spoil large ones
GOOD = 1e-8
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def relative_error(loss: Callable[[], Tensor], parameters: list[nn.Parameter]) -> float:
    """How far the gradient is from a central difference along one direction, as a share of that, at the best of three steps.

    Where the first ones are good enough, there are no others.

    The direction is random, half along the gradient, and longer where the gradient is smaller: so each tensor has an equal part in the
    slope, and the gradient of a small one that is wrong shows.
    """
    gradients = torch.autograd.grad(loss(), parameters)
    norms = torch.stack([g.norm() for g in gradients])
    weights = 1 / norms.clamp(min=1e-4 * norms.max())
    noise = [torch.randn_like(g) for g in gradients]
    directions = [w * (g / (norm + 1e-30) + n / n.norm()) for g, n, norm, w in zip(gradients, noise, norms, weights, strict=True)]
    longest = max(d.norm() for d in directions)
    directions = [d / longest for d in directions]
    slope = float(sum((g * d).sum() for g, d in zip(gradients, directions, strict=True)))

    @torch.no_grad()
    def moved(by: float) -> float:
        torch._foreach_add_(parameters, directions, alpha=by)
        value = float(loss())
        torch._foreach_sub_(parameters, directions, alpha=by)
        return value

    errors = []
    for step in STEPS:
        difference = (moved(step) - moved(-step)) / (2 * step)
        errors.append(abs(slope - difference) / abs(difference))
        if errors[-1] < GOOD:
            break
    return min(errors)


def in_float64(images: Batch, layout: torch.memory_format, device: str = "cpu") -> Batch:
    views = {name: view.to(device, torch.float64, memory_format=layout) for name, view in images.views.items()}
    targets = {name: target.to(device) for name, target in images.targets.items()}
    return Batch(views, targets, images.index_B.to(device), images.labelled.to(device, torch.float64))


def whole_gradient_error(run, layout: torch.memory_format, device: str = "cpu") -> float:
    torch.manual_seed(0)
    network = model.build(run, 10)
    for parameter in network.parameters():  # away from where branches start: gains at zero hide what is behind them
        parameter.data += 0.05 * torch.randn_like(parameter)
    network.start(torch.full((10,), 3))
    network.to(device, torch.float64, memory_format=layout).train()
    images, progress = in_float64(batch(), layout, device), torch.tensor(0.5, dtype=torch.float64, device=device)

    def loss() -> Tensor:
        torch.manual_seed(1)  # the same masks, pairs and dropped paths each time
        return network(images, progress)[0]

    return relative_error(loss, [p for p in network.parameters() if p.requires_grad])


# CvT's depthwise convolutions take a CPU a minute in float64
FAST = [pair for pair in COVERING if not pair[0].startswith("cvt")]
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("backbone", "objective"), but_for_a_release(ALLOWED, FAST))
def test_the_whole_gradient_equals_finite_differences(make, backbone, objective, layout, device):  # noqa: F811
    assert whole_gradient_error(make(backbone, objective), LAYOUTS[layout], device) < 1e-5


def test_a_gradient_that_is_wrong_in_one_small_tensor_is_seen():
    """What the measure above can see: one of twenty tensors, a thousandth of the others in size, off by a tenth."""

    class OffByATenth(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return 1.1 * gradient

    tensors = [nn.Parameter(torch.randn(30, dtype=torch.float64)) for _ in range(20)]

    def loss(wrap: Callable[[Tensor], Tensor]) -> Tensor:
        return 1e-3 * wrap(tensors[0]).sin().sum() + torch.stack([t.sin().sum() for t in tensors[1:]]).sum()

    assert relative_error(lambda: loss(torch.clone), tensors) < 1e-8
    assert relative_error(lambda: loss(OffByATenth.apply), tensors) > 1e-3
