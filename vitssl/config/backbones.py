"""The fields of ``backbone``, the families of networks with their named sizes, and what each family can do for objectives."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Optional

from vitssl.config.base import Problem, inactive_problems, interval_problems, minimum_problems, runtime_field
from vitssl.config.masked_tokens import MaskedTokens


class Size(NamedTuple):
    """A named size. In staged families ``embed_dim`` and ``num_heads`` are those of the first stage, and later stages scale them."""

    embed_dim: int
    depths: tuple[int, ...]  # number of blocks of each stage; plain families have one stage
    num_heads: int = 1
    mlp_ratio: float = 4.0
    patch_size: int = 1  # pixels
    qkv_bias: bool = True


class Family(NamedTuple):
    """A family of networks, implemented by one file of `vitssl/backbones/`.

    It has named sizes, the fields that it reads, its capabilities, and the widths and strides of its stages.
    """

    sizes: dict[str, Size]
    reads: str  # names of fields of BackboneConfig, separated by spaces
    # separated by spaces. cls: has a class token; keep: can process a part of the tokens only; mask: can replace tokens by a mask token
    capabilities: str
    smoke: dict[str, Any]  # fields of the tiny network that `jobs/submit.py --smoke` trains
    widths: tuple[int, ...] = (1,)  # of each stage, in units of embed_dim; a size may have fewer stages
    strides: tuple[int, ...] = (1,)  # pixels per side of a token of each stage, in units of patch_size


# the pico sizes are vitssl's own, for demonstrations and tests
FAMILIES = {
    "vit": Family(
        {
            "vit_pico": Size(96, (4,), 3, patch_size=16),
            "vit_tiny": Size(192, (12,), 3, patch_size=16),
            "vit_small": Size(384, (12,), 6, patch_size=16),
            "vit_base": Size(768, (12,), 12, patch_size=16),
            "vit_large": Size(1024, (24,), 16, patch_size=16),
        },
        reads="patch_size positions interpolate_antialias embed_dim depth num_heads mlp_ratio qkv_bias drop_path init cls_token_std"
        " layer_scale reg_tokens tokenizer attention masked_tokens",
        capabilities="cls keep mask",
        smoke={"patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3},
    ),
    "swin": Family(
        {"swin_pico": Size(24, (1, 1, 2, 1), 1, patch_size=4), "swin_tiny": Size(96, (2, 2, 6, 2), 3, patch_size=4)},
        reads="patch_size embed_dim depths num_heads mlp_ratio qkv_bias drop_path window_size relative_positions interpolate_antialias",
        capabilities="mask",
        smoke={"name": "swin_pico", "patch_size": 2, "embed_dim": 16, "depths": [1, 1, 2, 1], "num_heads": 1, "window_size": 4},
        widths=(1, 2, 4, 8),
        strides=(1, 2, 4, 8),
    ),
    "cvt": Family(
        {"cvt_pico": Size(16, (1, 1, 2), 1), "cvt_13": Size(64, (1, 2, 10), 1)},
        reads="embed_dim depths num_heads mlp_ratio drop_path variant batch_norm",
        capabilities="keep",
        smoke={"name": "cvt_pico", "embed_dim": 16, "depths": None, "num_heads": 1},
        widths=(1, 3, 6),
        strides=(4, 8, 16),
    ),
    "t2t": Family(
        {"t2t_pico": Size(96, (2,), 3, 3.0, qkv_bias=False), "t2t_vit_14": Size(384, (14,), 6, 3.0, qkv_bias=False)},
        reads="embed_dim depth num_heads mlp_ratio qkv_bias drop_path attention_scale masked_tokens",
        capabilities="cls",
        smoke={"name": "t2t_pico", "embed_dim": 48, "depth": 2, "num_heads": 3},
        strides=(16,),
    ),
    "resnet": Family(
        {"resnet_pico": Size(8, (1, 1, 1, 1)), "resnet50": Size(64, (3, 4, 6, 3))},
        reads="embed_dim depths drop_path batch_norm",
        capabilities="",
        smoke={"name": "resnet_pico", "embed_dim": None, "depths": None},
        widths=(4, 8, 16, 32),
        strides=(4, 8, 16, 32),
    ),
    "cifarresnet": Family(
        {"resnet8": Size(16, (1, 1, 1)), "resnet56": Size(16, (9, 9, 9))},
        reads="embed_dim depths shortcut batch_norm",
        capabilities="",
        smoke={"name": "resnet8", "embed_dim": None, "depths": None},
        widths=(1, 2, 4),
        strides=(1, 2, 4),
    ),
    "timm": Family(
        {"timm": Size(1, (1,), patch_size=32)},  # a placeholder: timm's network has its own width
        reads="timm_model patch_size drop_path batch_norm",
        capabilities="",
        smoke={},  # smoke runs train the named network, as arms may differ by its name alone
    ),
}
SIZES = {name: size for family in FAMILIES.values() for name, size in family.sizes.items()}


@dataclass
class BackboneConfig:
    """What a family does not read is refused; null takes the named size's value."""

    # family and named size (sweeps/README.md lists those of transformers); the fields below override parts of the size
    name: Literal[
        "vit_pico", "vit_tiny", "vit_small", "vit_base", "vit_large", "swin_pico", "swin_tiny", "cvt_pico", "cvt_13",
        "t2t_pico", "t2t_vit_14", "resnet_pico", "resnet50", "resnet8", "resnet56", "timm",
    ] = "vit_tiny"  # fmt: skip
    timm_model: Optional[str] = None  # with name: timm, which of timm's networks, such as convnext_tiny
    # pixels per side of a patch (of timm's networks, of an output token); null, here and below: as in the named size
    patch_size: Optional[int] = None
    positions: Literal["learned", "sincos"] = "learned"  # position embeddings: learned, or fixed sines and cosines (MAE)
    interpolate_antialias: bool = False  # antialias when positions are interpolated to another grid (timm: true; DINO, DeiT, MAE: false)
    embed_dim: Optional[int] = None  # width of a token; in staged families that of the first stage, with which the others scale
    depth: Optional[int] = None  # number of blocks, in families without stages
    depths: Optional[list[int]] = None  # number of blocks of each stage, in staged families
    num_heads: Optional[int] = None  # attention heads; in staged families those of the first stage
    mlp_ratio: Optional[float] = None  # hidden width of a block's MLP, as a multiple of the token width
    qkv_bias: Optional[bool] = None  # add biases to queries, keys and values
    drop_path: float = 0.0  # stochastic depth: drop rate of the last block, rising linearly from 0 at the first
    # initial weights of a ViT and of the heads of classify, drloc, sit and masked_tokens, as in timm and DeiT, or as in MAE; those of other
    # heads, and of decoders, belong to their methods
    init: Literal["trunc_normal", "xavier"] = "trunc_normal"
    # standard deviation of the class token's initial values; null: 1e-6 (timm), or 0.02 with init: xavier (MAE); 0.02 also in DINO and
    # DeiT's first release
    cls_token_std: Optional[float] = None
    # LayerScale: initial value of the learned factors on a block's two branches (DeiT III 1e-6, DINOv2 1e-5); null: no LayerScale
    layer_scale: Optional[float] = None
    reg_tokens: int = 0  # number of registers: extra tokens after the class token, with positions (timm's name)
    tokenizer: Literal["patches", "shifted"] = "patches"  # how patches become tokens; shifted: shifted patch tokenization (SL-ViT)
    attention: Literal["plain", "local"] = "plain"  # in every block; local: locality self-attention (SL-ViT)
    masked_tokens: Optional[MaskedTokens] = None  # extra tokens in the last blocks (MT-SiT, MT-DINO)
    window_size: Optional[int] = None  # Swin: tokens per side of an attention window; null: 7
    relative_positions: bool = True  # Swin: use its relative position bias
    variant: Literal["microsoft", "drloc"] = "microsoft"  # CvT: as in its authors' code, or as in Drloc's code
    attention_scale: Literal["head_dim", "embed_dim"] = "head_dim"  # scale attention logits by this^-0.5; T2T's released weights: embed_dim
    # resnet8, resnet56: shortcut where the width grows (He et al.'s option A or B)
    shortcut: Literal["identity", "projection"] = "identity"
    frozen: bool = False  # linear probe: the backbone is not trained and stays in evaluation mode
    # images that its batch norms compute statistics over: those of one forward pass on all GPUs, or on each GPU (most public code), where
    # the result depends on the number of GPUs, as with either on loop.micro_batch_size. In objectives' heads always global
    batch_norm: Literal["global", "per_gpu"] = "global"
    fused_attention: bool = runtime_field(True)  # use torch's fused attention: less memory, same results up to rounding

    @property
    def network(self) -> str:
        """The name that the network is known by: ``timm_model`` for one of timm's, otherwise ``name``."""
        return self.timm_model or self.name

    def inactive_fields(self) -> dict[str, str]:
        """Map each field that the family does not read to a description of the backbones that it belongs to."""
        reads = {*family(self).reads.split(), "name", "frozen", "fused_attention"}
        return {f.name: f"a backbone that has this option ({self.name} does not)" for f in dataclasses.fields(self) if f.name not in reads}

    def problems(self, name: str, sizes_px: Iterable[tuple[str, int]]) -> Iterator[Problem]:
        """Yield what is wrong with the fields.

        Args:
            name: dotted path of this part, such as backbone.
            sizes_px: (field, side in pixels) of all images that the backbone sees.
        """
        yield from inactive_problems(self, name, self.inactive_fields())
        yield from _impossible(self, name)
        if self.name == "timm" and self.timm_model is None:
            yield Problem(f"{name}.timm_model", "name one of timm's networks, such as convnext_tiny")
        yield from minimum_problems(0, self, name, "cls_token_std", "reg_tokens")
        if self.masked_tokens is not None:
            yield from self.masked_tokens.problems(f"{name}.masked_tokens", size_of(self).depths[0])
        if self.layer_scale is not None and not 0 < self.layer_scale < math.inf:
            yield Problem(f"{name}.layer_scale", f"{self.layer_scale} is not positive")
        yield from interval_problems("[0, 1)", self, name, "drop_path", share=True)
        for where, size_px in sizes_px:
            if size_px % stride_px(self):
                field, value, divisor = "name", f"{self.network} has an output token per {stride_px(self)} px, which", ""
                if is_vit(self):
                    field, value = "patch_size", f"{patch_px(self)}"
                    divisor = f"{_divisor(size_px, patch_px(self))} does, and of images "
                suggested_px = max(1, round(size_px / stride_px(self))) * stride_px(self)
                yield Problem(
                    f"{name}.{field}", f"{value} does not divide the {size_px} px of {where}; {divisor}{suggested_px} px would do"
                )


def _divisor(size_px: int, patch_px: int) -> int:
    """Return the divisor of ``size_px`` that is nearest to ``patch_px``, a patch size that does not divide it."""
    return min((side for side in range(1, size_px + 1) if size_px % side == 0), key=lambda side: abs(side - patch_px))


def _impossible(backbone: BackboneConfig, path: str) -> Iterator[Problem]:
    """Yield what is wrong with sizes that no network can have; a value below 1 ends the checks, as later ones divide by it."""
    size, staged = size_of(backbone), len(family(backbone).widths)
    values = {"patch_size": size.patch_size, "embed_dim": size.embed_dim, "num_heads": size.num_heads}
    values |= {"window_size": backbone.window_size or 7}
    values |= {"depths" if staged > 1 else "depth": min(size.depths, default=0)}
    for name, value in values.items():
        if value < 1:
            yield Problem(f"{path}.{name}", f"{value} is less than 1")
            return
    if len(size.depths) > staged:
        yield Problem(f"{path}.depths", f"{backbone.name} has {staged} stages at most, not {len(size.depths)}")
    if size.embed_dim % size.num_heads:
        step = math.lcm(size.num_heads, 4)  # fixed positions need multiples of 4
        suggested_dim = max(1, round(size.embed_dim / step)) * step
        yield Problem(
            f"{path}.num_heads", f"{size.num_heads} does not divide embed_dim={size.embed_dim}; embed_dim={suggested_dim} would do"
        )
    if backbone.tokenizer == "shifted" and size.patch_size < 2:
        yield Problem(f"{path}.patch_size", f"{size.patch_size} px cannot be shifted by half (tokenizer: shifted)")
    if backbone.positions == "sincos" and size.embed_dim % 4:
        yield Problem(f"{path}.positions", f"sincos needs an embed_dim that is a multiple of 4, not {size.embed_dim}")
    if size.mlp_ratio <= 0:
        yield Problem(f"{path}.mlp_ratio", f"{size.mlp_ratio} is not positive")


def family_name(backbone: BackboneConfig) -> str:
    """Return the name of the backbone's family, which is also the name of its file in `vitssl/backbones/`."""
    return next(name for name, entry in FAMILIES.items() if backbone.name in entry.sizes)


def family(backbone: BackboneConfig) -> Family:
    return FAMILIES[family_name(backbone)]


def is_vit(backbone: BackboneConfig) -> bool:
    """Whether it is a ViT, whose patch size the user can choose; that of one of timm's networks is fixed, for example."""
    return family_name(backbone) == "vit"


def size_of(backbone: BackboneConfig) -> Size:
    """Return the named size with the overrides of ``backbone`` applied."""
    size = SIZES[backbone.name]
    depths = backbone.depths if backbone.depth is None else [backbone.depth]
    overrides = {name: getattr(backbone, name) for name in ("embed_dim", "num_heads", "mlp_ratio", "patch_size", "qkv_bias")}
    overrides["depths"] = depths if depths is None else tuple(depths)
    return size._replace(**{name: value for name, value in overrides.items() if value is not None})


def patch_px(backbone: BackboneConfig) -> int:
    """Return the side of an input patch, in pixels."""
    return size_of(backbone).patch_size


def stage_strides_px(backbone: BackboneConfig) -> tuple[int, ...]:
    """Return the side of a token of each stage, in pixels; the tokens of the last stage are the output."""
    strides = family(backbone).strides[: len(size_of(backbone).depths)]
    return tuple(max(1, patch_px(backbone)) * stride for stride in strides)


def stride_px(backbone: BackboneConfig) -> int:
    """Return the side of an output token, in pixels."""
    return stage_strides_px(backbone)[-1]


def capabilities(backbone: BackboneConfig) -> set[str]:
    """Return what ``backbone`` can do for an objective: a subset of cls, reg (registers), keep, mask and masked_tokens."""
    extra = {"cls"} if family_name(backbone) == "cvt" and backbone.variant == "microsoft" else set()
    extra |= {"reg"} if backbone.reg_tokens else set()
    extra |= {"masked_tokens"} if backbone.masked_tokens is not None else set()
    lost = {"keep", "mask"} if backbone.tokenizer == "shifted" else set()  # every token sees pixels of its neighbours, even hidden ones
    return (set(family(backbone).capabilities.split()) | extra) - lost


def num_intermediates(backbone: BackboneConfig) -> int:
    """Return how many places of a backbone give features (``out_indices``): its blocks, or its stages if its family is staged."""
    depths = size_of(backbone).depths
    return depths[0] if len(family(backbone).widths) == 1 else len(depths)
