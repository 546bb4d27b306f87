"""Bounds far beyond any network, image or machine, which refuse a typing error before it costs memory or hours."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from vitssl.config.backbones import BackboneConfig, size_of, stage_strides_px
from vitssl.config.base import Problem, teachers

BLOCKS, WIDTH, PIXELS, PROCESSES, COPIES = 1000, 100_000, 10_000, 1000, 10_000
MOST = {  # largest values of the fields of a Run, by the last part of their paths
    **dict.fromkeys(("depth", "depths", "blocks", "layers", "decoder_depth", "decoder_layers"), BLOCKS),
    **dict.fromkeys(("embed_dim", "num_heads", "hidden_dim", "bottleneck_dim", "decoder_dim", "decoder_heads", "reg_tokens"), WIDTH),
    **dict.fromkeys(("image_size", "size", "cache_px", "pad_px", "patch_size", "window_size", "teacher_px"), PIXELS),
    **dict.fromkeys(("workers", "threads"), PROCESSES),
    **dict.fromkeys(("count", "repeats", "pairs"), COPIES),
    "out_dim": 10_000_000, "num_classes": 10_000_000, "mlp_ratio": 1000, "batch_size": 10_000_000, "epochs": 1_000_000,
    "schedule_epochs": 1_000_000, "max_steps": 10**9, "seed": 2**63 - 1, "val_seed": 2**63 - 1,
}  # fmt: skip
MOST_PARAMETERS = 10**11  # of a backbone: no machine holds a larger one in one piece
MOST_TOKENS = 1_000_000  # of an image: attention compares all pairs


def problems(run: Any) -> Iterator[Problem]:
    """Yield the fields of a Run that exceed their bounds, and the backbones that are too large although each of their sizes is possible."""
    yield from _beyond(dataclasses.asdict(run), "")
    for path, backbone in {"backbone": run.backbone, **teachers(run)}.items():
        yield from _too_large(backbone, path, run.data.image_size)


def _beyond(value: Any, path: str) -> Iterator[Problem]:
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _beyond(part, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list):
        for part in value:
            yield from _beyond(part, path)
    elif (bound := MOST.get(path.rpartition(".")[2])) is not None and isinstance(value, int | float) and value > bound:
        yield Problem(path, f"{value} is more than {bound:,}, which is far more than anybody uses")


def _too_large(backbone: BackboneConfig, path: str, image_px: int) -> Iterator[Problem]:
    """Yield problems of a backbone with too many parameters or tokens.

    Parameters are estimated with the width of the first stage for all blocks, which is too low for later stages.
    """
    size = size_of(backbone)
    tokens = max(((image_px // stride) ** 2 for stride in stage_strides_px(backbone)), default=0)
    parameters = sum(size.depths) * size.embed_dim**2 * (4 + 2 * size.mlp_ratio)
    if parameters > MOST_PARAMETERS:
        reason = f"with embed_dim={size.embed_dim} a network of {parameters:.0e} parameters, more than {MOST_PARAMETERS:.0e}"
        yield Problem(f"{path}.depth", reason)
    if tokens > MOST_TOKENS:
        yield Problem("data.image_size", f"{image_px} px are {tokens:,} tokens, more than {MOST_TOKENS:,}; set {path}.patch_size higher")
