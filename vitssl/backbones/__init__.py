"""Backbones: images to features. One file per family (`vitssl.config.FAMILIES`), none of which knows another."""

from __future__ import annotations

import importlib
from collections.abc import Set

from vitssl import config
from vitssl.backbones import layers, masked_tokens, norms
from vitssl.backbones.base import Backbone


def build(cfg: config.BackboneConfig, size_px: int, requires: Set[str] = frozenset()) -> Backbone:
    """The backbone of a config, freshly initialised.

    Args:
        cfg: its fields.
        size_px: side of the images of view "main".
        requires: what the Run's objectives require of it (``config.ObjectiveConfig.requires``); parameters exist only where they are used.
    """
    family = importlib.import_module(f"vitssl.backbones.{config.module(cfg)}")
    backbone = family.build(cfg, size_px, requires)
    if cfg.masked_tokens is not None:
        masked_tokens.add(backbone, cfg.masked_tokens)
    layers.set_fused_attention(backbone, cfg.fused_attention)
    norms.set_over_ranks(backbone, cfg.batch_norm == "global")
    return backbone
