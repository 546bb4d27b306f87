"""Backbones, which turn images into features. Each family (`vitssl.config.FAMILIES`) has its own file, independent of the others."""

from __future__ import annotations

import importlib
from collections.abc import Set

from vitssl import config
from vitssl.backbones import layers, masked_tokens, norms
from vitssl.backbones.base import Backbone


def build(cfg: config.BackboneConfig, size_px: int, requires: Set[str] = frozenset()) -> Backbone:
    """Build the backbone that ``cfg`` describes, freshly initialised.

    Args:
        cfg: the fields of the backbone.
        size_px: side of the images of view "main".
        requires: capabilities that the Run's objectives need (``config.ObjectiveConfig.requires``). A parameter that only some objectives
            need, such as the mask token, is created only if one of them is on.
    """
    family = importlib.import_module(f"vitssl.backbones.{config.family_name(cfg)}")
    backbone = family.build(cfg, size_px, requires)
    if cfg.masked_tokens is not None:
        masked_tokens.add(backbone, cfg.masked_tokens)
    layers.set_fused_attention(backbone, cfg.fused_attention)
    norms.set_over_ranks(backbone, cfg.batch_norm == "global")
    return backbone
