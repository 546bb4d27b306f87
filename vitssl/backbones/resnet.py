"""ResNets of bottleneck blocks (He et al. 2016), on timm's modules and with timm's and torchvision's parameter names."""

from __future__ import annotations

import re
from collections.abc import Set

from timm.layers import DropPath
from timm.models.resnet import Bottleneck, downsample_conv
from torch import Tensor, nn

from vitssl import config
from vitssl.backbones import layers, norms
from vitssl.backbones.base import ConvNet


def build(cfg: config.BackboneConfig, size_px: int, requires: Set[str] = frozenset()) -> ResNet:
    return ResNet(cfg)


class ResNet(ConvNet):
    """A bottleneck ResNet of one to four stages, with batch norms over the global batch."""

    def __init__(self, cfg: config.BackboneConfig):
        super().__init__()
        size = config.size_of(cfg)
        self.depths, self.num_layers = size.depths, sum(size.depths)
        self.strides = config.stage_strides_px(cfg)
        inner = [size.embed_dim * 2**i for i in range(len(size.depths))]
        self.widths = tuple(Bottleneck.expansion * dim for dim in inner)
        self.embed_dim = self.widths[-1]
        self.conv1 = nn.Conv2d(3, size.embed_dim, 7, stride=2, padding=3, bias=False)
        self.bn1, self.act1 = norms.BatchNorm2d(size.embed_dim), nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        rates = iter(layers.drop_path_rates(cfg.drop_path, self.num_layers))
        for i, (in_dim, dim, depth) in enumerate(zip((size.embed_dim, *self.widths), inner, size.depths, strict=False)):
            self.add_module(f"layer{i + 1}", _stage(in_dim, dim, 1 if i == 0 else 2, [next(rates) for _ in range(depth)]))
        self.stages = [self.get_submodule(f"layer{i + 1}") for i in range(len(size.depths))]  # a list registers nothing a second time
        self._init_convolutions()
        for part in self.modules():
            if isinstance(part, Bottleneck):
                part.zero_init_last()  # as in timm, so that every block starts as the identity (Goyal et al. 2017)

    def stem(self, images_BCHW: Tensor) -> Tensor:
        """Return the map after the stem, (B, embed_dim, H / 4, W / 4)."""
        return self.maxpool(self.act1(self.bn1(self.conv1(images_BCHW))))

    def layer_id(self, name: str) -> int:
        """Return 0 for the stem; blocks count from 1 through all stages."""
        block = re.match(r"layer(\d+)\.(\d+)\.", name)
        return sum(self.depths[: int(block[1]) - 1]) + int(block[2]) + 1 if block else 0


def _stage(in_dim: int, dim: int, stride: int, drop_paths: list[float]) -> nn.Sequential:
    """Make a stage of blocks of inner width ``dim``. The first block has the stride, and a projection as its shortcut."""
    out_dim, blocks = Bottleneck.expansion * dim, []
    for i, rate in enumerate(drop_paths):
        downsample = None if i else downsample_conv(in_dim, out_dim, 1, stride, norm_layer=norms.BatchNorm2d)
        drop_path = DropPath(rate) if rate else None
        blocks.append(
            Bottleneck(out_dim if i else in_dim, dim, 1 if i else stride, downsample, norm_layer=norms.BatchNorm2d, drop_path=drop_path)
        )
    return nn.Sequential(*blocks)
