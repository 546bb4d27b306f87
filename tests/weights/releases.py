"""Small files laid out as each release's are, and what their networks make of images, computed without this project's backbones."""

from __future__ import annotations

import argparse
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import timm
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torchvision.models import ResNet
from torchvision.models.resnet import Bottleneck

from vitssl.backbones.layers import sincos_positions

SIZE_PX, PATCH_PX, DIM, DEPTH, GRID, CLASSES = 32, 8, 64, 3, 4, 7


class Release(NamedTuple):
    """A file's content, and from images the tokens (B, N, D) after the final norm and, where it classifies, the logits."""

    content: dict[str, Any]
    tokens: Callable[[Tensor], Tensor]
    logits: Callable[[Tensor], Tensor] | None = None


def vit(**fields: Any) -> VisionTransformer:
    """timm's, with all of its parameters drawn, and one head of attention."""
    sizes = {"img_size": SIZE_PX, "patch_size": PATCH_PX, "embed_dim": DIM, "depth": DEPTH, "num_heads": 1, "num_classes": 0}
    network = timm.create_model("vit_tiny_patch16_224", **sizes | fields).eval()
    return drawn(network)


def drawn(network: nn.Module) -> Any:
    """Without anything that is equal to what an untrained network has."""
    for name, value in network.state_dict().items():
        if value.is_floating_point():
            noise = torch.randn_like(value) / max(1, value[0].numel()) ** 0.5 if value.dim() > 1 else 0.3 * torch.randn_like(value)
            value.copy_(noise.abs() + 0.5 if name.endswith("running_var") else noise + ("norm" in name and name.endswith("weight")))
    return network.eval()


def fixed_positions(network: VisionTransformer) -> VisionTransformer:
    positions = torch.cat([torch.zeros(1, DIM), sincos_positions((GRID, GRID), DIM)])
    network.pos_embed.data.copy_(positions[None])
    return network


def decoder(dim: int = 32, depth: int = 2) -> dict[str, Tensor]:
    """MAE's, under its names."""
    blocks = timm.create_model("vit_tiny_patch16_224", img_size=SIZE_PX, patch_size=PATCH_PX, embed_dim=dim, depth=depth, num_heads=2)
    tensors = {f"decoder_{name}": value for name, value in drawn(blocks.blocks).state_dict(prefix="blocks.").items()}
    positions = torch.cat([torch.zeros(1, dim), sincos_positions((GRID, GRID), dim)])[None]
    linear = {"embed": nn.Linear(DIM, dim), "norm": nn.LayerNorm(dim), "pred": nn.Linear(dim, 3 * PATCH_PX**2)}
    for part, layer in linear.items():
        tensors |= {f"decoder_{part}.{name}": value for name, value in layer.state_dict().items()}
    return tensors | {"mask_token": torch.randn(1, 1, dim), "decoder_pos_embed": positions}


def tokens_of(network: VisionTransformer) -> Callable[[Tensor], Tensor]:
    return lambda images: network.forward_features(images)[:, network.num_prefix_tokens :]


def _prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": value for name, value in tensors.items()}


def _trained(**more: Any) -> dict[str, Any]:
    return {"optimizer": {"state": {}, "param_groups": []}, "epoch": 399, "args": argparse.Namespace(lr=1e-3, mask_ratio=0.75), **more}


def mae() -> Release:
    network = fixed_positions(vit())
    return Release({"model": {**network.state_dict(), **decoder()}, "scaler": {"scale": 1.0}} | _trained(), tokens_of(network))


def mae_encoder() -> Release:
    network = fixed_positions(vit())
    return Release({"model": network.state_dict()}, tokens_of(network))


def mae_finetuned() -> Release:
    network = vit(num_classes=CLASSES, global_pool="avg")
    assert "fc_norm.weight" in network.state_dict()
    network_tokens = lambda images: network.fc_norm(network.forward_features(images)[:, 1:])  # noqa: E731
    return Release({"model": network.state_dict()} | _trained(), network_tokens, network)


def mae_probed() -> Release:
    network = vit(num_classes=CLASSES)
    norm = drawn(nn.BatchNorm1d(DIM, affine=False, eps=1e-6))
    body = {name: value for name, value in network.state_dict().items() if not name.startswith("head.")}
    head = _prefixed("head.0.", norm.state_dict()) | _prefixed("head.1.", network.head.state_dict())
    logits = lambda images: network.head(norm(network.forward_features(images)[:, 0]))  # noqa: E731
    return Release({"model": body | head} | _trained(), tokens_of(network), logits)


def ssat() -> Release:
    network = fixed_positions(vit(num_classes=CLASSES))
    return Release({"model": {**network.state_dict(), **decoder()}} | _trained(), tokens_of(network), network)


def deit() -> Release:
    network = vit(num_classes=CLASSES)
    return Release({"model": network.state_dict()}, tokens_of(network), network)


def deit_distilled() -> Release:
    sizes = {"img_size": SIZE_PX, "patch_size": PATCH_PX, "embed_dim": DIM, "depth": DEPTH, "num_heads": 1, "num_classes": CLASSES}
    network = drawn(timm.create_model("deit_tiny_distilled_patch16_224", **sizes))
    return Release({"model": network.state_dict()}, tokens_of(network), network)


def bare() -> Release:
    network = vit(num_classes=CLASSES)
    return Release(network.state_dict(), tokens_of(network), network)


def timm_registers() -> Release:
    network = vit(num_classes=CLASSES, reg_tokens=1)
    return Release(network.state_dict(), tokens_of(network), network)


def swin() -> Release:
    network = drawn(timm.create_model("swin_tiny_patch4_window7_224", img_size=SIZE_PX, window_size=2, embed_dim=16, depths=(1, 2, 1),
                                      num_heads=(1, 2, 4), num_classes=CLASSES))  # fmt: skip
    return Release(network.state_dict(), lambda images: network.forward_features(images).flatten(1, 2), network)


def dino() -> Release:
    """The teacher's network beside the student's; both have the head of weight-normed prototypes."""
    head = {f"mlp.{i}.{name}": value for i, (a, b) in {0: (DIM, 24), 2: (24, 24), 4: (24, 8)}.items()
            for name, value in nn.Linear(a, b).state_dict().items()}  # fmt: skip
    head |= {"last_layer.weight_g": torch.ones(12, 1), "last_layer.weight_v": torch.randn(12, 8)}
    student, teacher = vit(), vit()
    tensors = _prefixed("module.backbone.", student.state_dict()) | _prefixed("module.head.", head)
    theirs = _prefixed("backbone.", teacher.state_dict()) | _prefixed("head.", {name: value + 1 for name, value in head.items()})
    content = {"student": tensors, "teacher": theirs, "dino_loss": {"center": torch.randn(1, 12)}, "fp16_scaler": None}
    return Release(content | _trained(), tokens_of(student))


def gmml() -> Release:
    network = vit()
    head = {f"mlp.{i}.{name}": value for i in (0, 2, 4) for name, value in nn.Linear(DIM, DIM).state_dict().items()}
    head |= _prefixed("convTrans.", nn.ConvTranspose2d(DIM, 3, PATCH_PX, PATCH_PX).state_dict())
    tensors = _prefixed("module.backbone.", network.state_dict()) | _prefixed("module.head_recons.", head)
    return Release({"SiT_model": tensors} | _trained(), tokens_of(network))


def _sit(network: VisionTransformer) -> dict[str, Tensor]:
    names = {"cls_token": "rot_token", "reg_token": "contrastive_token"}
    return {names.get(name, name): value for name, value in network.state_dict().items() if not name.startswith("head.")}


def sit() -> Release:
    network = vit(reg_tokens=1)
    tasks = _prefixed("rot_head.", nn.Linear(DIM, 4).state_dict()) | _prefixed("contrastive_head.", nn.Linear(DIM, 512).state_dict())
    tasks |= _prefixed("convTrans.", nn.ConvTranspose2d(DIM, 3, PATCH_PX, PATCH_PX).state_dict())
    tasks |= {name: torch.ones(1) for name in ("rot_w", "contrastive_w", "recons_w")}
    return Release({"model": _sit(network) | tasks, "model_ema": None, "scaler": {}} | _trained(), tokens_of(network))


def sit_finetuned() -> Release:
    network = vit(reg_tokens=1)
    first, second = nn.Linear(DIM, CLASSES), nn.Linear(DIM, CLASSES)
    heads = _prefixed("rot_head.", first.state_dict()) | _prefixed("contrastive_head.", second.state_dict())

    def logits(images: Tensor) -> Tensor:
        sequence = network.forward_features(images)
        return (first(sequence[:, 0]) + second(sequence[:, 1])) / 2

    return Release({"model": _sit(network) | heads} | _trained(), tokens_of(network), logits)


def lut() -> Release:
    """The online network and, with DDP's and the average's prefixes, its moving average."""

    def tensors() -> tuple[VisionTransformer, dict[str, Tensor]]:
        network, found = fixed_positions(vit()), {}
        for part in ("head", "predictor"):
            mlp = nn.Sequential(nn.Linear(DIM, 40, bias=False), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, DIM, bias=False))
            found |= _prefixed(f"{part}.", drawn(mlp).state_dict())
        return network, {**network.state_dict(), **decoder(), **found}

    (network, ours), (_, average) = tensors(), tensors()
    return Release({"model": ours, "model_ema": _prefixed("ema.", average)} | _trained(), tokens_of(network))


def _drloc(prefix: str, dim: int, **more: Tensor) -> dict[str, Tensor]:
    mlp = {f"layers.{i}.{name}": value for i, (a, b) in {0: (2 * dim, 512), 2: (512, 512), 4: (512, 2)}.items()
           for name, value in nn.Linear(a, b).state_dict().items()}  # fmt: skip
    return _prefixed(prefix, mlp)


def drloc_swin() -> Release:
    """The names of Swin's authors: a merging belongs to the stage before it, masks and indices are stored."""
    release = swin()
    tensors = {}
    for name, value in release.content.items():
        parts = name.split(".")
        if parts[0] == "layers" and parts[2] == "downsample":
            parts[1] = str(int(parts[1]) - 1)
        tensors[".".join(parts).replace("head.fc.", "head.")] = value
    tensors |= {"layers.0.blocks.0.attn.relative_position_index": torch.zeros(4, 4, dtype=torch.int64)}
    tensors |= {"layers.1.blocks.1.attn_mask": torch.zeros(4, 4, 4)} | _drloc("drloc.0.", 64)
    configuration = OrderedDict(MODEL=OrderedDict(NAME="swin_tiny"))
    return Release({"model": tensors, "max_accuracy": 88.3, "epoch": 100, "config": configuration}, release.tokens, release.logits)


def drloc_resnet() -> Release:
    """torchvision's parts in a row: a stem of four, then the stages."""
    network = drawn(ResNet(Bottleneck, [1, 1, 1, 1], num_classes=CLASSES))
    places = {"conv1": "0", "bn1": "1", "layer1": "4", "layer2": "5", "layer3": "6", "layer4": "7"}
    tensors = {}
    for name, value in network.state_dict().items():
        part, _, rest = name.partition(".")
        tensors[f"model.{places[part]}.{rest}" if part in places else name] = value
    body = nn.Sequential(*list(network.children())[:-2])
    return Release({"model": tensors | _drloc("drloc.0.", 2048)}, lambda images: body(images).flatten(2).transpose(1, 2), network)


def drloc_cvt(dims: tuple[int, ...] = (64, 192, 384)) -> Release:
    """One block a stage, of 1x1 convolutions and norms over channels; keys and values of stride 2 share their convolutions."""
    tensors: dict[str, Tensor] = {}

    def conv(name: str, out: int, of: int, kernel: int, bias: bool = True) -> None:
        tensors[f"{name}.weight"] = torch.randn(out, of, kernel, kernel) / (of * kernel**2) ** 0.5
        if bias:
            tensors[f"{name}.bias"] = 0.1 * torch.randn(out)

    for i, dim in enumerate(dims):
        stage, block = f"layers.{i}", f"layers.{i}.2.layers.0"
        conv(f"{stage}.0", dim, dims[i - 1] if i else 3, 3 if i else 7)
        for norm in (f"{stage}.1", f"{block}.0.norm", f"{block}.1.norm"):
            tensors |= {f"{norm}.g": 1 + 0.1 * torch.randn(1, dim, 1, 1), f"{norm}.b": 0.1 * torch.randn(1, dim, 1, 1)}
        for part, factor in (("q", 1), ("kv", 2)):
            net = f"{block}.0.fn.to_{part}.net"
            conv(f"{net}.0", dim, 1, 3, bias=False)
            tensors |= _prefixed(f"{net}.1.", drawn(nn.BatchNorm2d(dim)).state_dict())
            conv(f"{net}.2", factor * dim, dim, 1, bias=False)
        conv(f"{block}.0.fn.to_out.0", dim, dim, 1)
        conv(f"{block}.1.fn.net.0", 4 * dim, dim, 1)
        conv(f"{block}.1.fn.net.3", dim, 4 * dim, 1)
    head = {"head.weight": torch.randn(CLASSES, dims[-1]) / 20, "head.bias": torch.randn(CLASSES)}

    def last_map(images: Tensor) -> Tensor:
        x = images
        for i in range(len(dims)):
            x = _cvt_stage(tensors, i, x)
        return x

    def logits(images: Tensor) -> Tensor:
        return F.linear(last_map(images).mean((2, 3)), head["head.weight"], head["head.bias"])

    content = {"model": tensors | head | _drloc("drloc.0.", dims[-1])}
    return Release(content, lambda images: last_map(images).flatten(2).transpose(1, 2), logits)


def _cvt_stage(tensors: dict[str, Tensor], i: int, x: Tensor) -> Tensor:
    stage, block = f"layers.{i}", f"layers.{i}.2.layers.0"

    def conv(name: str, value: Tensor, **how: Any) -> Tensor:
        return F.conv2d(value, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"), **how)

    def norm(name: str, value: Tensor) -> Tensor:
        mean, std = value.mean(1, keepdim=True), value.var(1, unbiased=False, keepdim=True).sqrt()
        return (value - mean) / (std + 1e-5) * tensors[f"{name}.g"] + tensors[f"{name}.b"]

    def projected(part: str, value: Tensor, stride: int) -> Tensor:
        net = f"{block}.0.fn.to_{part}.net"
        value = conv(f"{net}.0", value, stride=stride, padding=1, groups=value.shape[1])
        statistics = (tensors[f"{net}.1.{name}"] for name in ("running_mean", "running_var", "weight", "bias"))
        return conv(f"{net}.2", F.batch_norm(value, *statistics)).flatten(2).unflatten(1, (-1, 64))

    x = norm(f"{stage}.1", conv(f"{stage}.0", x, stride=2 if i else 4, padding=1 if i else 3))
    y = norm(f"{block}.0.norm", x)
    q, (k, v) = projected("q", y, 1), projected("kv", y, 2).chunk(2, dim=1)
    out = v @ (q.transpose(2, 3) @ k / 8).softmax(-1).transpose(2, 3)
    x = x + conv(f"{block}.0.fn.to_out.0", out.flatten(1, 2).unflatten(2, x.shape[2:]))
    return x + conv(f"{block}.1.fn.net.3", F.gelu(conv(f"{block}.1.fn.net.0", norm(f"{block}.1.norm", x))))


RELEASES: dict[str, tuple[str, Callable[[], Release]]] = {
    "mae": ("mae", mae),
    "mae_encoder": ("mae", mae_encoder),
    "mae_finetuned": ("mae", mae_finetuned),
    "mae_probed": ("mae", mae_probed),
    "ssat": ("ssat", ssat),
    "deit": ("deit", deit),
    "deit_distilled": ("deit", deit_distilled),
    "dino": ("dino", dino),
    "dino_bare": ("dino", bare),
    "gmml": ("gmml", gmml),
    "sit": ("sit", sit),
    "sit_finetuned": ("sit", sit_finetuned),
    "lut": ("lut", lut),
    "timm": ("timm", bare),
    "timm_registers": ("timm", timm_registers),
    "timm_swin": ("timm", swin),
    "drloc_swin": ("drloc", drloc_swin),
    "drloc_resnet": ("drloc", drloc_resnet),
    "drloc_cvt": ("drloc", drloc_cvt),
}
