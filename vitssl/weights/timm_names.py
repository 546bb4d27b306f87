"""The names that timm has for a run's network and for its tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitssl import config
from vitssl.backbones import timm as timm_networks
from vitssl.config import ConfigError, Run
from vitssl.config.objectives.classify import ClassifyConfig
from vitssl.model import Model
from vitssl.objectives.classify import Classify

VIT = {"vit_tiny": "vit_tiny_patch16_224", "vit_small": "vit_small_patch16_224", "vit_base": "vit_base_patch16_224"}
VIT |= {"vit_large": "vit_large_patch16_224", "vit_pico": "vit_tiny_patch16_224"}
HEAD = {"vit": "head", "swin": "head.fc", "resnet": "fc"}  # timm's name of the classifier
INSTEAD = "export --to onnx, which has all of the network, or the backbone alone (--backbone)"


class Architecture(NamedTuple):
    """A call of ``timm.create_model(name, **args)``, whose arguments are plain values."""

    name: str
    args: dict[str, Any]

    def call(self) -> str:
        """Return the call as Python code."""
        return f"timm.create_model({', '.join([repr(self.name), *(f'{name}={value!r}' for name, value in self.args.items())])})"


def architecture(run: Run, num_classes: int) -> Architecture:
    """Return the timm model that is the Run's network.

    Args:
        run: the Run.
        num_classes: outputs of the classifier; 0: the backbone alone.

    Raises:
        ConfigError: timm has no such network.
    """
    if (result := same_in_timm(run, num_classes)) is None:
        if config.family_name(run.backbone) == "timm":
            raise ConfigError(f"timm's {run.backbone.timm_model} has another classifier; {INSTEAD}")
        raise ConfigError(f"timm has no network like this {run.backbone.name}; export --to safetensors (with our names) or onnx")
    return result


def same_in_timm(run: Run, num_classes: int) -> Architecture | None:
    """Return the timm model that is the Run's network (see ``architecture``), or None if timm has no such network.

    Raises:
        ConfigError: timm has no classifier like the Run's.
    """
    family, size, backbone = config.family_name(run.backbone), config.size_of(run.backbone), run.backbone
    pool = {"cls": "token", "mean": "avg"}[_head(run).pool] if num_classes else {"vit": "token"}.get(family, "avg")
    args: dict[str, Any] = {"num_classes": num_classes, "global_pool": pool}
    transformer = {"embed_dim": size.embed_dim, "mlp_ratio": size.mlp_ratio, "qkv_bias": size.qkv_bias, "patch_size": size.patch_size}
    if family == "vit" and (backbone.tokenizer, backbone.attention, backbone.masked_tokens) == ("patches", "plain", None):
        args |= {"img_size": run.data.image_size, "depth": size.depths[0], "num_heads": size.num_heads, **transformer}
        args |= {"reg_tokens": backbone.reg_tokens, "init_values": backbone.layer_scale}
        args |= {"fc_norm": bool(num_classes) and _head(run).norm == "fc"}
        return Architecture(VIT[backbone.name], args)
    if family == "swin" and backbone.relative_positions:
        heads = [size.num_heads * 2**i for i in range(len(size.depths))]
        args |= {"img_size": run.data.image_size, "depths": list(size.depths), "num_heads": heads, **transformer}
        return Architecture("swin_tiny_patch4_window7_224", args | {"window_size": backbone.window_size or 7})
    if family == "resnet" and size.embed_dim == 64 and len(size.depths) == 4:
        return Architecture("resnet50", args | {"layers": list(size.depths)})
    if family == "timm" and not num_classes:  # timm's networks differ in what comes before the classifier
        return Architecture(backbone.timm_model or "", timm_networks.arguments(backbone, run.data.image_size))
    return None


def _head(run: Run) -> ClassifyConfig:
    """Return the classifier's config.

    Raises:
        ConfigError: timm has no classifier like it.
    """
    head = run.objectives.classify
    assert head is not None, "the run classifies"
    unsupported = {"extra_heads": bool(head.extra_heads), "hidden_dim": head.hidden_dim is not None, "blocks": head.blocks > 1}
    unsupported["pool"] = head.pool not in ("cls", "mean")
    if field := next((name for name, is_set in unsupported.items() if is_set), None):
        raise ConfigError(f"timm's networks have no classifier with {getattr(head, field)!r}; {INSTEAD}", f"objectives.classify.{field}")
    return head


def named_tensors(network: Model, run: Run, classifier: bool) -> dict[str, Tensor]:
    """Return the network's tensors under timm's names, or under the names of its family here if timm lacks the network.

    The family's names here are the authors' for CvT and T2T-ViT.

    Args:
        network: the Model.
        run: its Run.
        classifier: include the classifier; a batch norm before it (as in MAE's linear probe) becomes part of it.

    Raises:
        ConfigError: the classifier is more than a linear layer.
    """
    tensors = {name.removeprefix("network."): value for name, value in network.backbone.state_dict().items() if name != "mask_token"}
    if classifier:
        cfg, classify = _head(run), network.objectives["classify"]
        assert isinstance(classify, Classify)
        weight_KD: Tensor = classify.head.weight
        bias_K: Tensor = classify.head.bias
        if cfg.norm == "batch":
            norm = classify.head.before.get_submodule("norm")
            assert isinstance(norm, nn.BatchNorm1d)
            scale_D = (norm.get_buffer("running_var") + norm.eps).rsqrt()
            bias_K = bias_K - (weight_KD * scale_D) @ norm.get_buffer("running_mean")
            weight_KD = weight_KD * scale_D
        if cfg.norm == "fc":
            tensors = {name.replace("norm.", "fc_norm.") if name.startswith("norm.") else name: value for name, value in tensors.items()}
        place = HEAD.get(config.family_name(run.backbone), "head")
        tensors |= {f"{place}.weight": weight_KD, f"{place}.bias": bias_K}
    return {name: torch.clone(value.detach(), memory_format=torch.contiguous_format) for name, value in tensors.items()}
