"""The sizes of a network, read from the shapes of its tensors: one function per family returns fields of ``backbone`` and ``data``.

Patches are assumed to be square, and attention heads to be 64 wide if no shape tells their number.
"""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import Tensor

from vitssl.backbones.layers import is_square, sincos_positions
from vitssl.config import FAMILIES, SIZES, ConfigError
from vitssl.config.bounds import BLOCKS
from vitssl.words import counted

USUAL_SIZE_PX = 224  # of the images, if no shape tells it
LAYER_SCALE = 1e-5  # initial value in networks that have it; the weights replace it
MOST_NAME_CHARS = 80  # letters of a tensor's name, at most, in a message about this name
HEADS_OF_WIDTH = {1280: 16}  # {width: heads}: ViT-H; the heads of all other released sizes are 64 wide


class Tensors(dict[str, Tensor]):
    """Tensors under this project's names.

    Attributes:
        origin: {name here: name in the file}.
        names: the pairs of prefixes that were exchanged, (in the file, here), from which the name of a missing tensor in the file follows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.origin: dict[str, str] = {}
        self.names: list[tuple[str, str]] = []

    def keep(self, prefix: str) -> None:
        """Drop all tensors whose names do not begin with ``prefix``."""
        for name in [name for name in self if not name.startswith(prefix)]:
            del self[name]

    def name_in_file(self, name: str) -> str:
        """Return the name of a tensor in the file; for a missing tensor, the name that it would have beside the others."""
        if name in self.origin:
            return self.origin[name]
        possible = [pair for pair in self.names if name.startswith(pair[1])]
        used = [pair for pair in possible if pair[1] == name or any(other.startswith(pair[0]) for other in self.origin.values())]
        file_prefix, our_prefix = (used or possible or [("", "")])[0]
        return file_prefix + name.removeprefix(our_prefix)

    def shape(self, name: str, dims: int) -> torch.Size:
        """Return the shape of a tensor, from which sizes are read.

        Raises:
            ConfigError: the tensor is missing or empty, or does not have ``dims`` dimensions.
        """
        if name not in self:
            raise ConfigError(f"{self.name_in_file(name)} is missing, so it is not a network of this layout")
        shape = self[name].shape
        if len(shape) != dims or not all(shape):
            raise ConfigError(f"{self.name_in_file(name)} has shape {tuple(shape)}, and {dims} dimensions are expected, none of them empty")
        return shape

    def count(self, pattern: str, most: int = BLOCKS) -> int:
        """Return one more than the largest number that the group of ``pattern`` matches in a name; 0 if it matches none.

        Raises:
            ConfigError: the result exceeds ``most``: a name may hold any number, and callers iterate up to it.
        """
        numbers = ((name, match[1].lstrip("0") or "0") for name in self if (match := re.match(pattern, name)))
        name, largest = max(numbers, key=lambda pair: (len(pair[1]), pair[1]), default=("", "-1"))
        if len(largest) > len(str(most)) or int(largest) >= most:
            raise ConfigError(
                f"{self.name_in_file(name)[:MOST_NAME_CHARS]} is one of more than {most:,}, and no network of this layout has as many"
            )
        return 1 + int(largest)


def fields(tensors: Tensors) -> dict[str, Any]:
    """Return the fields of ``backbone`` and ``data``, with dotted names, that the shapes tell.

    Raises:
        ConfigError: a tensor that tells a size is missing or has an impossible shape.
    """
    return next(read for marker, read in MARKERS.items() if any(re.fullmatch(marker, name) for name in tensors))(tensors)


def _vit(tensors: Tensors) -> dict[str, Any]:
    dim, _, patch_px, _ = tensors.shape("backbone.patch_embed.proj.weight", 4)
    registers = tensors.shape("backbone.reg_token", 3)[1] if "backbone.reg_token" in tensors else 0
    positions_1TD = tensors.shape("backbone.pos_embed", 3)
    # in DeiT III and in DINOv2 with registers, only patches have positions
    num_prefix = 0 if is_square(positions_1TD[1]) and not is_square(positions_1TD[1] - 1 - registers) else 1 + registers
    num_patches = positions_1TD[1] - num_prefix
    side = math.isqrt(max(num_patches, 0))
    if side < 1 or side**2 != num_patches or positions_1TD[2] != dim:
        reason = f"positions of {counted(1 + registers, 'special token')} and a square grid of width {dim} are expected"
        raise ConfigError(f"{tensors.name_in_file('backbone.pos_embed')} has shape {tuple(positions_1TD)}; {reason}")
    patches_ND = tensors["backbone.pos_embed"][0, num_prefix:].float()
    is_sincos = dim % 4 == 0 and torch.allclose(patches_ND, sincos_positions((side, side), dim), atol=1e-4)
    return {
        **_size_fields("vit", _transformer(tensors) | {"embed_dim": dim, "patch_size": patch_px}),
        "backbone.reg_tokens": registers,
        "backbone.layer_scale": LAYER_SCALE if "backbone.blocks.0.ls1.gamma" in tensors else None,
        "backbone.positions": "sincos" if is_sincos else "learned",
        "data.image_size": side * patch_px,
    }


def _transformer(tensors: Tensors) -> dict[str, Any]:
    hidden, dim = tensors.shape("backbone.blocks.0.mlp.fc1.weight", 2)
    return {
        "depth": tensors.count(r"backbone\.blocks\.(\d+)\."),
        "num_heads": HEADS_OF_WIDTH.get(dim, dim // 64 if dim % 64 == 0 else None),
        "mlp_ratio": hidden / dim,
        "qkv_bias": "backbone.blocks.0.attn.qkv.bias" in tensors,
    }


def _swin(tensors: Tensors) -> dict[str, Any]:
    dim, _, patch_px, _ = tensors.shape("backbone.patch_embed.proj.weight", 4)
    stages = tensors.count(r"backbone\.layers\.(\d+)\.", _most_stages("swin"))
    length, heads = tensors.shape("backbone.layers.0.blocks.0.attn.relative_position_bias_table", 2)
    window = (math.isqrt(length) + 1) // 2
    hidden, _ = tensors.shape("backbone.layers.0.blocks.0.mlp.fc1.weight", 2)
    # only the authors' files have the masks of shifted windows, one for each window
    masks = ((re.match(r"backbone\.layers\.(\d+)\..*attn_mask$", name), mask) for name, mask in tensors.items())
    patches = (2 ** int(match[1]) * math.isqrt(len(mask)) * window for match, mask in masks if match)
    sizes: dict[str, Any] = {"embed_dim": dim, "patch_size": patch_px, "num_heads": heads, "mlp_ratio": hidden / dim}
    sizes["depths"] = [tensors.count(rf"backbone\.layers\.{i}\.blocks\.(\d+)\.") for i in range(stages)]
    sizes["qkv_bias"] = "backbone.layers.0.blocks.0.attn.qkv.bias" in tensors
    side = next(patches, None)
    return _size_fields("swin", sizes) | {
        "backbone.window_size": window,
        "data.image_size": USUAL_SIZE_PX if side is None else side * patch_px,
    }


def _resnet(tensors: Tensors) -> dict[str, Any]:
    dim = tensors.shape("backbone.conv1.weight", 4)[0]
    stages = tensors.count(r"backbone\.layer(\d+)\.", 1 + _most_stages("resnet")) - 1
    depths = [tensors.count(rf"backbone\.layer{i + 1}\.(\d+)\.") for i in range(stages)]
    return _size_fields("resnet", {"embed_dim": dim, "depths": depths}) | {"data.image_size": USUAL_SIZE_PX}


def _t2t(tensors: Tensors) -> dict[str, Any]:
    dim = tensors.shape("backbone.cls_token", 3)[2]
    return _size_fields("t2t", _transformer(tensors) | {"embed_dim": dim}) | {"data.image_size": USUAL_SIZE_PX}


def _cvt(tensors: Tensors) -> dict[str, Any]:
    dim = tensors.shape("backbone.stage0.patch_embed.proj.weight", 4)[0]
    stages = tensors.count(r"backbone\.stage(\d+)\.", _most_stages("cvt"))
    depths = [tensors.count(rf"backbone\.stage{i}\.blocks\.(\d+)\.") for i in range(stages)]
    hidden, _ = tensors.shape("backbone.stage0.blocks.0.mlp.fc1.weight", 2)
    heads = dim // 64 if dim % 64 == 0 else None
    sizes = {"embed_dim": dim, "depths": depths, "num_heads": heads, "mlp_ratio": hidden / dim}
    return _size_fields("cvt", sizes) | {"backbone.variant": "drloc", "data.image_size": USUAL_SIZE_PX}


# name pattern of a tensor that only one family has -> function that reads the family's sizes
MARKERS = {
    r"backbone\.tokens_to_token\..*": _t2t,
    r"backbone\.layers\.0\..*relative_position_bias_table": _swin,
    r"backbone\.layer1\..*": _resnet,
    r"backbone\.stage0\..*": _cvt,
    r".*": _vit,
}


def _most_stages(family: str) -> int:
    return len(FAMILIES[family].widths)


def _size_fields(family: str, sizes: dict[str, Any]) -> dict[str, Any]:
    """Return the named size that needs the fewest fields beside it, and these fields."""
    candidates = {name: _differing_fields(name, sizes) for name in FAMILIES[family].sizes}
    name = min(candidates, key=lambda candidate: len(candidates[candidate]))
    return {"backbone.name": name, **{f"backbone.{field}": value for field, value in candidates[name].items()}}


def _differing_fields(name: str, sizes: dict[str, Any]) -> dict[str, Any]:
    """Return the fields in which ``sizes`` differs from the named size."""
    usual = SIZES[name]._asdict() | {"depths": list(SIZES[name].depths), "depth": SIZES[name].depths[0]}
    return {field: value for field, value in sizes.items() if value != usual[field]}
