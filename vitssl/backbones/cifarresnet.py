"""The residual networks for small images of He et al. 2016 (section 4.2), whose first stage works at the image's full size."""

from __future__ import annotations

import re
from collections.abc import Set
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from vitssl import config
from vitssl.backbones import norms
from vitssl.backbones.base import ConvNet


def build(cfg: config.BackboneConfig, size_px: int, requires: Set[str] = frozenset()) -> CifarResNet:
    return CifarResNet(cfg)


def conv3x3(in_dim: int, dim: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_dim, dim, 3, stride=stride, padding=1, bias=False)


class Block(nn.Module):
    """A residual block of two convolutions.

    Between stages, where the width grows, the shortcut either has no parameters (the paper's option A: every second pixel, new channels
    zero), or is a 1x1 convolution with a batch norm (option B).
    """

    def __init__(self, in_dim: int, dim: int, stride: int, shortcut: str):
        super().__init__()
        self.stride, self.new_channels = stride, dim - in_dim
        self.shortcut = None
        if shortcut == "projection" and dim > in_dim:
            self.shortcut = nn.Sequential(nn.Conv2d(in_dim, dim, 1, stride, bias=False), norms.BatchNorm2d(dim))
        self.conv1, self.bn1 = conv3x3(in_dim, dim, stride), norms.BatchNorm2d(dim)
        self.conv2, self.bn2 = conv3x3(dim, dim), norms.BatchNorm2d(dim)

    def forward(self, map_BDhw: Tensor) -> Tensor:
        residual = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(map_BDhw)))))
        if self.shortcut is not None:
            return F.relu(residual + self.shortcut(map_BDhw))
        return F.relu(residual + F.pad(map_BDhw[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels)))


class CifarResNet(ConvNet):
    """A ResNet of one convolution and up to three stages of blocks; the first block of the second and third stages halves the grid."""

    def __init__(self, cfg: config.BackboneConfig):
        super().__init__()
        size = config.size_of(cfg)
        self.strides = config.stage_strides_px(cfg)
        factors = config.FAMILIES["cifarresnet"].widths[: len(size.depths)]
        self.widths = tuple(size.embed_dim * factor for factor in factors)
        self.depths, self.num_layers, self.embed_dim = size.depths, sum(size.depths), self.widths[-1]
        self.conv1, self.bn1 = conv3x3(3, size.embed_dim), norms.BatchNorm2d(size.embed_dim)
        widths, strides = (size.embed_dim, *self.widths), (1, *self.strides)
        self.stages = nn.ModuleList()
        for (in_dim, dim), (stride_in, stride_out), depth in zip(pairwise(widths), pairwise(strides), size.depths, strict=True):
            first_block = Block(in_dim, dim, stride_out // stride_in, cfg.shortcut)
            self.stages.append(nn.Sequential(first_block, *(Block(dim, dim, 1, cfg.shortcut) for _ in range(depth - 1))))
        self._init_convolutions()

    def stem(self, images_BCHW: Tensor) -> Tensor:
        return F.relu(self.bn1(self.conv1(images_BCHW)))

    def layer_id(self, name: str) -> int:
        """Return 0 for the first convolution; blocks count from 1 through all stages."""
        block = re.match(r"stages\.(\d+)\.(\d+)\.", name)
        return sum(self.depths[: int(block[1])]) + int(block[2]) + 1 if block else 0
