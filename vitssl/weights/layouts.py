"""Layouts of the papers' released files: which networks a file holds, and which of our tensors each of its tensors is.

A layout lists, for each network of a file, pairs of name prefixes: in the file, and here. The first prefix that fits is exchanged. ``None``
drops a tensor that has no counterpart here, which is only what training needs (the heads of SiT's pretext tasks) or what is fixed (masks,
sine positions).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitssl.config import ConfigError
from vitssl.weights.shapes import Tensors

Names = tuple[tuple[str, str | None], ...]  # (prefix in the file, prefix here)

HEAD = "objectives.classify.head."
SECOND_HEAD = "objectives.classify.extra_heads.0."
# bare networks under timm's names, which DeiT, DINO, MAE and GMML share
VIT: Names = (("", "backbone."),)
LINEAR: Names = (("head.", HEAD), *VIT)
# MAE's linear probe has a batch norm before its head; its fine-tuning moves the norm behind the mean of the patches
MAE: Names = (
    ("decoder_", "objectives.mae.decoder."),
    ("mask_token", "objectives.mae.decoder.mask_token"),
    ("fc_norm.", "backbone.norm."),
    ("head.0.", f"{HEAD}before.norm."),
    ("head.1.", HEAD),
    *LINEAR,
)
TIMM: Names = (("fc_norm.", "backbone.norm."), ("head.fc.", HEAD), ("fc.", HEAD), *LINEAR)
DEIT: Names = (("dist_token", "backbone.reg_token"), ("head_dist.", SECOND_HEAD), *LINEAR)
LUT: Names = (
    ("decoder_", "objectives.lut.decoder."),
    ("mask_token", "objectives.lut.decoder.mask_token"),
    ("head.", "objectives.lut.projector."),
    ("predictor.", "objectives.lut.predictor."),
    *VIT,
)
LUT_TEACHER: Names = (
    ("decoder_", None),
    ("mask_token", None),
    ("predictor.", None),
    ("head.", "objectives.lut.teacher.projector."),
    ("", "objectives.lut.teacher.backbone."),
)
RELEASED_VIT: Names = (("mask_token", None), *LINEAR)  # DINOv2's file holds a mask token that only its training reads
DINO: Names = (("backbone.", "backbone."), ("head.", "objectives.dino.head."))
DINO_TEACHER: Names = (("backbone.", "objectives.dino.teacher.backbone."), ("head.", "objectives.dino.teacher.head."))
GMML: Names = (
    ("backbone.", "backbone."),
    ("head_recons.mlp.", "objectives.gmml.decoder."),
    ("head_recons.convTrans.", "objectives.gmml.decoder.6."),
)
SIT_BACKBONE: Names = (("rot_token", "backbone.cls_token"), ("contrastive_token", "backbone.reg_token"), *VIT)
SIT: Names = (  # after fine-tuning, with a head on each token
    ("rot_head.", HEAD),
    ("pre_logits_rot.fc.", f"{HEAD}before.hidden."),
    ("contrastive_head.", SECOND_HEAD),
    ("pre_logits_contrastive.fc.", f"{SECOND_HEAD}before.hidden."),
    *SIT_BACKBONE,
)
SIT_TASKS = ("rot_head.", "contrastive_head.", "convTrans.", "rot_w", "contrastive_w", "recons_w")
DRLOC: Names = (  # one head, or a list of heads for Swin
    *((f"drloc.{place}layers.", f"objectives.drloc.heads.{place or '0.'}mlp.") for place in ("0.", "1.", "2.", "3.", "")),
    *((f"drloc.{place}unshared.", f"objectives.drloc.heads.{place or '0.'}axes.") for place in ("0.", "1.", "2.", "3.", "")),
    ("fc.", HEAD),
    *LINEAR,
)
# Drloc's code has torchvision's ResNet as a sequence of its parts, and another implementation of CvT, whose 1x1 convolutions are linear
# layers here
RESNET_PARTS = {"0": "conv1", "1": "bn1", "4": "layer1", "5": "layer2", "6": "layer3", "7": "layer4"}
CVT_NAMES = (
    (r"layers\.(\d)\.0\.", r"stage\1.patch_embed.proj."),
    (r"layers\.(\d)\.1\.", r"stage\1.patch_embed.norm."),
    (r"layers\.(\d)\.2\.layers\.(\d+)\.0\.norm\.", r"stage\1.blocks.\2.norm1."),
    (r"layers\.(\d)\.2\.layers\.(\d+)\.1\.norm\.", r"stage\1.blocks.\2.norm2."),
    (r"layers\.(\d)\.2\.layers\.(\d+)\.0\.fn\.to_(q|kv)\.net\.0\.", r"stage\1.blocks.\2.attn.conv_proj_\3.conv."),
    (r"layers\.(\d)\.2\.layers\.(\d+)\.0\.fn\.to_(q|kv)\.net\.1\.", r"stage\1.blocks.\2.attn.conv_proj_\3.bn."),
    (r"layers\.(\d)\.2\.layers\.(\d+)\.0\.fn\.to_(q|kv)\.net\.2\.", r"stage\1.blocks.\2.attn.proj_\3."),
    (r"layers\.(\d)\.2\.layers\.(\d+)\.0\.fn\.to_out\.0\.", r"stage\1.blocks.\2.attn.proj."),
    (r"layers\.(\d)\.2\.layers\.(\d+)\.1\.fn\.net\.0\.", r"stage\1.blocks.\2.mlp.fc1."),
    (r"layers\.(\d)\.2\.layers\.(\d+)\.1\.fn\.net\.3\.", r"stage\1.blocks.\2.mlp.fc2."),
)


class Layout(NamedTuple):
    """How one code base writes its weights.

    Attributes:
        parts: {key in the file: names} of its networks; a file has all of these keys, or is a bare network.
        bare: the names of a bare network.
        objectives: turns the tensors under our names, and the rest of the file's content, into fields of ``objectives``.
        prepare: renames or drops tensors before the prefixes are exchanged.
    """

    parts: dict[str, Names]
    bare: Names
    objectives: Callable[[Tensors, dict[str, Any]], dict[str, Any]]
    prepare: Callable[[dict[str, Tensor]], dict[str, Tensor]] = lambda tensors: tensors


def _argument(content: dict[str, Any], name: str, usual: Any) -> Any:
    """Return an argument of the command line that the file holds (an ``argparse.Namespace``), or ``usual`` if it has none."""
    return getattr(content.get("args"), name, usual)


def _classify(tensors: Tensors, content: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a classifier if the file has its head, otherwise none."""
    if f"{HEAD}weight" not in tensors:
        return {}
    head: dict[str, Any] = {"pool": "cls" if "backbone.cls_token" in tensors else "mean"}
    if tensors.origin.get("backbone.norm.weight") == "fc_norm.weight":
        head = {"pool": "mean", "norm": "fc"}
    elif any(name.startswith(f"{HEAD}before.norm.") for name in tensors):
        head["norm"] = "batch"
    if f"{HEAD}before.hidden.weight" in tensors:
        head |= {"hidden_dim": tensors.shape(f"{HEAD}before.hidden.weight", 2)[0], "activation": "tanh"}
    extra = [head | {"pool": "reg"}] if f"{SECOND_HEAD}weight" in tensors else []
    return {"objectives.classify": head | {"extra_heads": extra}}


def _decoder(tensors: Tensors, path: str) -> dict[str, Any]:
    dim = tensors.shape(f"{path}.decoder.embed.weight", 2)[0]
    return {"decoder_dim": dim, "decoder_depth": tensors.count(rf"{re.escape(path)}\.decoder\.blocks\.(\d+)\.")}


def _mae(tensors: Tensors, content: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a classifier and, if the file has a decoder (released encoders have none), of MAE's reconstruction."""
    fields = _classify(tensors, content)
    if any(name.startswith("objectives.mae.") for name in tensors):
        options = {"mask_ratio": _argument(content, "mask_ratio", 0.75), "normalize_targets": _argument(content, "norm_pix_loss", True)}
        fields["objectives.mae"] = _decoder(tensors, "objectives.mae") | options
    return fields


def _ssat(tensors: Tensors, content: dict[str, Any]) -> dict[str, Any]:
    fields = _mae(tensors, content)
    if len(fields) == 2:
        fields["objectives.mae"] |= {"weight": 0.9, "normalize_targets": _argument(content, "norm_pix_loss", False)}
        fields["objectives.classify"]["weight"] = 0.1
    return fields


def _dino(tensors: Tensors, content: dict[str, Any]) -> dict[str, Any]:
    head = "objectives.dino.head"
    if not any(name.startswith(f"{head}.") for name in tensors):
        return _classify(tensors, content)
    layers = tensors.count(rf"{re.escape(head)}\.mlp\.(\d+)\.") // 2 + 1
    out_dim, bottleneck = tensors.shape(f"{head}.last_layer.weight_v", 2)
    loss, center = content.get("dino_loss"), "objectives.dino.center"
    tensors.origin[center] = "dino_loss: center"
    if isinstance(loss, dict) and isinstance(loss.get("center"), Tensor):
        tensors[center] = loss["center"].flatten()
    sums = {"objectives.dino.score_sum": torch.zeros(out_dim), "objectives.dino.score_count": torch.zeros(())}
    tensors.update(sums)  # of the step in progress; an import is between two steps
    hidden_dim = tensors.shape(f"{head}.mlp.0.weight", 2)[0]
    fields = {"hidden_dim": hidden_dim, "bottleneck_dim": bottleneck, "out_dim": out_dim, "layers": layers}
    others = {"local": None, "norm_last_layer": _argument(content, "norm_last_layer", True)}
    return {"objectives.dino": fields | others, "data.views.second": {}}


def _gmml(tensors: Tensors, content: dict[str, Any]) -> dict[str, Any]:
    if not any(name.startswith("objectives.gmml.") for name in tensors):
        return _classify(tensors, content)
    depth, fused = tensors.count(r"backbone\.blocks\.(\d+)\."), (5, 7, 9, 11)
    return {"objectives.gmml": {"blocks": [block for block in fused if block < depth - 1] + [depth - 1]}}


def _lut(tensors: Tensors, content: dict[str, Any]) -> dict[str, Any]:
    if not any(name.startswith("objectives.lut.") for name in tensors):
        return {}
    hidden = tensors.shape("objectives.lut.projector.0.weight", 2)[0]
    normed = "objectives.lut.projector.1.running_mean" in tensors
    options = {"mask_ratio": _argument(content, "mask_ratio", 0.75), "normalize_targets": _argument(content, "norm_pix_loss", True)}
    fields = {"hidden_dim": hidden, "batch_norm": normed, **_decoder(tensors, "objectives.lut"), **options}
    return {"objectives.lut": fields, "data.views.second": {}}


def _drloc(tensors: Tensors, content: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a classifier and of Drloc, with the code's form of the loss as its training script sets it (``--use_abs``)."""
    fields, head = _classify(tensors, content), "objectives.drloc.heads.0"
    if f"{head}.mlp.0.weight" not in tensors:
        return fields
    options: dict[str, Any] = {"hidden_dim": tensors.shape(f"{head}.mlp.0.weight", 2)[0], "target": "raw", "reduction": "mean"}
    if f"{head}.axes.0.weight" in tensors:
        options = {"hidden_dim": options["hidden_dim"], "loss": "ce", "num_classes": tensors.shape(f"{head}.axes.0.weight", 2)[0]}
    t2t = "backbone.tokens_to_token.project.weight" in tensors
    multi_scale = "objectives.drloc.heads.1.mlp.0.weight" in tensors
    return fields | {"objectives.drloc": options | {"multi_scale": multi_scale, "features": "normed" if t2t else "raw"}}


def _prepare_dino(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Give DINOv2's registers timm's name and, as timm does, add the class token's position to that token; registers have no positions."""
    positions_1TD, cls_11D = (tensors.get(name, torch.zeros(0)) for name in ("pos_embed", "cls_token"))
    if "register_tokens" not in tensors or positions_1TD.dim() != 3 or positions_1TD[:, :1].shape != cls_11D.shape:
        return tensors
    others = {name: value for name, value in tensors.items() if name != "register_tokens"}
    with_position = {"cls_token": cls_11D + positions_1TD[:, :1], "pos_embed": positions_1TD[:, 1:]}
    return others | with_position | {"reg_token": tensors["register_tokens"]}


def _prepare_timm(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    if "dist_token" in tensors:
        raise ConfigError("it has a distillation token, which --as deit reads")
    return tensors


def _prepare_sit(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Drop the heads of SiT's pretext tasks if the file is a pretraining's."""
    if "convTrans.weight" not in tensors:
        return tensors
    return {name: value for name, value in tensors.items() if not name.startswith(SIT_TASKS)}


def _prepare_drloc(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Give the tensors of the code's ResNet and CvT the names of ours, and drop T2T's fixed positions."""
    if "model.0.weight" in tensors:
        parts = ((re.match(r"model\.(\d+)\.", name), name, value) for name, value in tensors.items())
        return {f"{RESNET_PARTS[m[1]]}.{name[m.end() :]}" if m and m[1] in RESNET_PARTS else name: value for m, name, value in parts}
    if "tokens_to_token.project.weight" in tensors:
        return {name: value for name, value in tensors.items() if name != "pos_embed"}
    if "layers.0.2.layers.0.0.fn.to_q.net.0.weight" not in tensors:
        return tensors
    return dict(_cvt_tensor(name, value) for name, value in tensors.items())


def _cvt_tensor(name: str, value: Tensor) -> tuple[str, Tensor]:
    """Return a tensor's name here, and its value in the shape of a linear layer or a layer norm if the file has a layer on maps."""
    renamed = next((re.sub(pattern, new, name) for pattern, new in CVT_NAMES if re.match(pattern, name)), name)
    if re.search(r"\.norm\d?\.[gb]$", renamed):
        return renamed[:-1] + {"g": "weight", "b": "bias"}[renamed[-1]], value.flatten()
    if value.dim() > 1 and re.search(r"\.(proj_q|proj_kv|attn\.proj|fc1|fc2)\.weight$", renamed):
        return renamed, value.flatten(1)
    return renamed, value


LAYOUT_TABLE = {
    "mae": Layout({"model": MAE}, MAE, _mae),
    "dino": Layout({"student": DINO, "teacher": DINO_TEACHER}, RELEASED_VIT, _dino, _prepare_dino),
    "ssat": Layout({"model": MAE}, MAE, _ssat),
    "gmml": Layout({"SiT_model": GMML}, LINEAR, _gmml),
    "sit": Layout({"model": SIT}, SIT, _classify, _prepare_sit),
    "lut": Layout({"model": LUT, "model_ema": LUT_TEACHER}, VIT, _lut),
    "drloc": Layout({"model": DRLOC}, DRLOC, _drloc, _prepare_drloc),
    "deit": Layout({"model": DEIT}, DEIT, _classify),
    "timm": Layout({"model": TIMM}, TIMM, _classify, _prepare_timm),
}
