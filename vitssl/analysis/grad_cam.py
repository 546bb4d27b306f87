"""Grad-CAM (Selvaraju et al. 2017) of trained classifiers, which shows where an image supports its class.

The figures correspond to SSAT's Figure 10 and LUT's Figure 3.

Shapes: N patch tokens of the layer that is analysed, D their width, K classes.
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
from vitssl.analysis.base import DrawnImages, Numbers
from vitssl.analysis.pictures import Maps
from vitssl.backbones.base import ConvNet, Features
from vitssl.backbones.timm import TimmNetwork
from vitssl.config import ConfigError
from vitssl.trained import Trained


class TargetLayer(NamedTuple):
    """The layer of a network at which Grad-CAM is computed."""

    module: nn.Module
    tokens: Callable[[Tensor], Tensor]  # returns the patch tokens (B, N, D) of the module's output


def target_layer(trained: Trained) -> TargetLayer:
    """Return the last layer at which patches still influence the classifier, whichever tokens the classifier reads.

    After the last block of a transformer, the classifier may read only the class token, so that gradients of the patches would be 0.
    For this project's transformers, the layer is therefore the norm before the last block's attention. For convolutional networks and
    timm's networks, whose classifiers read the mean over the output, it is the output.

    Raises:
        ConfigError: the run has no classifier, or its network has no layer ``norm1``, timm's name for the norm before attention.
    """
    trained.check_predicts()
    backbone = trained.model.backbone
    grid, first = backbone.grid(trained.run.data.image_size), backbone.num_prefix_tokens
    if isinstance(backbone, ConvNet):
        return TargetLayer(list(backbone.stages)[-1], lambda map_BDHW: Features.of_map(map_BDHW).tokens_BND)
    if isinstance(backbone, TimmNetwork):
        return TargetLayer(backbone.network, lambda output: backbone.features(output, grid).tokens_BND)
    norms = [part for name, part in backbone.named_modules() if name.endswith(".norm1")]  # of (B, T, D), or (B, H, W, D)
    if not norms:
        raise ConfigError(f"{trained.run.backbone.network} has no norm1 before its last attention, where Grad-CAM looks")
    return TargetLayer(norms[-1], lambda tokens: tokens.flatten(1, -2)[:, first : first + math.prod(grid)])


def measure(trained: Trained, drawn: DrawnImages) -> Numbers:
    """Compute the map of every image for its own class, or for the predicted class if its own is not one of the run's classes."""
    pictures.check(drawn)
    layer, labels = target_layer(trained), iter(drawn.labels(trained.classes))
    images, maps, captions = [], [], []
    for batch in drawn.batches():
        images_BCHW = batch.views["main"]
        images.append(pictures.pixels(trained, images_BCHW))
        for image_1CHW in images_BCHW.split(1):  # one at a time, since a pass holds all its activations for the gradient
            map_N, logits_K = cam(trained, layer, image_1CHW, next(labels))
            maps.append(map_N)
            captions.append(f"{trained.classes[int(logits_K.argmax())]} ({float(logits_K.softmax(-1).max()):.2f})")
    grid = trained.model.backbone.grid(trained.run.data.image_size)
    return pictures.numbers(drawn, np.concatenate(images), grid, [Maps("Grad-CAM", torch.stack(maps), captions)])


def cam(trained: Trained, layer: TargetLayer, image_1CHW: Tensor, label: int) -> tuple[Tensor, Tensor]:
    """Return an image's map (N,) and its logits (K,), on the CPU, computed in full precision.

    The map is relu(sum over d of w_d * a_nd), where a are the tokens at ``layer``, and w_d is the mean over n of the gradient of the
    class's logit with respect to a_nd.

    Args:
        trained: the run.
        layer: the layer to analyse.
        image_1CHW: the image, normalised.
        label: the class; if negative, the predicted class.
    """
    outputs: list[Tensor] = []

    def hold(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        outputs.append(output.detach().requires_grad_())
        return outputs[-1]

    handle = layer.module.register_forward_hook(hold)
    try:
        with torch.enable_grad():
            logits_K = trained.logits(image_1CHW)[0]
    finally:
        handle.remove()
    (output,) = outputs
    (gradient,) = torch.autograd.grad(logits_K[label if label >= 0 else int(logits_K.argmax())], output)
    weights_1D = layer.tokens(gradient).mean(1)
    map_1N = F.relu(torch.einsum("bnd,bd->bn", layer.tokens(output.detach()), weights_1D))
    return map_1N[0].cpu(), logits_K.detach().cpu()
