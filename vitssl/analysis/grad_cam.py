"""Grad-CAM (Selvaraju et al. 2017) of trained classifiers: where an image speaks for its class (SSAT's Figure 10, LUT's Figure 3).

Shapes: N patch tokens of the place that is looked at, D their width, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitssl.analysis import pictures
from vitssl.analysis.base import Numbers, Sample
from vitssl.analysis.pictures import Maps
from vitssl.backbones.base import ConvNet, Features
from vitssl.backbones.timm import TimmNetwork
from vitssl.config import ConfigError
from vitssl.data.loading.batch import Batch
from vitssl.trained import Trained


class Place(NamedTuple):
    """Where a network is looked at."""

    module: nn.Module
    tokens: Callable[[Tensor], Tensor]  # the patch tokens (B, N, D) of what the module gives


def place_of(trained: Trained) -> Place:
    """The last place from which patches act on the classifier, whatever that reads.

    Behind the last block of a transformer it may read the class token alone, so that gradients of the patches would be 0: our own
    transformers are looked at before this block's attention, after the norm. Of convolutional networks, and of timm's, the mean over the
    output is read; they are looked at there.

    Raises:
        ConfigError: the run has no classifier, or its network's blocks no ``norm1``, as those of timm's transformers are called.
    """
    trained.check_predicts()
    backbone = trained.model.backbone
    grid, first = backbone.grid(trained.run.data.image_size), backbone.num_prefix_tokens
    if isinstance(backbone, ConvNet):
        return Place(list(backbone.stages)[-1], lambda map_BDHW: Features.of_map(map_BDHW).tokens_BND)
    if isinstance(backbone, TimmNetwork):
        return Place(backbone.network, lambda output: backbone.features(output, grid).tokens_BND)
    norms = [part for name, part in backbone.named_modules() if name.endswith(".norm1")]  # of (B, T, D), or (B, H, W, D)
    if not norms:
        raise ConfigError(f"{trained.run.backbone.network} has no norm1 before its last attention, where Grad-CAM looks")
    return Place(norms[-1], lambda tokens: tokens.flatten(1, -2)[:, first : first + math.prod(grid)])


def measure(trained: Trained, sample: Sample) -> Numbers:
    """Of every image the map of its own class, or where that is not one of the run's classes, of the predicted one."""
    pictures.check(sample)
    place, labels = place_of(trained), iter(sample.labels(trained.classes))
    images, maps, said = [], [], []
    for batch in sample.batches():
        images_BCHW = batch.views["main"]
        images.append(pictures.pixels(trained, images_BCHW))
        for image_1CHW in images_BCHW.split(1):  # since all that a pass computes is held for its gradient
            map_N, logits_K = cam(trained, place, image_1CHW, next(labels))
            maps.append(map_N)
            said.append(f"{trained.classes[int(logits_K.argmax())]} ({float(logits_K.softmax(-1).max()):.2f})")
    grid = trained.model.backbone.grid(trained.run.data.image_size)
    return pictures.numbers(sample, np.concatenate(images), grid, [Maps("Grad-CAM", torch.stack(maps), said)])


def cam(trained: Trained, place: Place, image_1CHW: Tensor, label: int) -> tuple[Tensor, Tensor]:
    """An image's map (N,) and its logits (K,), on the CPU, in full precision.

    The map is relu(sum over d of w_d * a_nd), with a the tokens at the place, and w_d the mean over n of the gradient of the class's
    logit with respect to a_nd.

    Args:
        label: the class; below 0: the one that is predicted.
    """
    seen: list[Tensor] = []

    def hold(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        seen.append(output.detach().requires_grad_())
        return seen[-1]

    handle = place.module.register_forward_hook(hold)
    try:
        with torch.enable_grad():
            logits_K = trained.model.predict(Batch.of_images(image_1CHW))[0]
    finally:
        handle.remove()
    (output,) = seen
    (gradient,) = torch.autograd.grad(logits_K[label if label >= 0 else int(logits_K.argmax())], output)
    weights_1D = place.tokens(gradient).mean(1)
    map_1N = F.relu(torch.einsum("bnd,bd->bn", place.tokens(output.detach()), weights_1D))
    return map_1N[0].cpu(), logits_K.detach().cpu()
