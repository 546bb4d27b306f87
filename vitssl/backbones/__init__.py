"""Backbones: images to features. One file per family (`vitssl.config.FAMILIES`), none of which knows another."""

from __future__ import annotations

import importlib
from collections.abc import Set

from vitssl import config
from vitssl.backbones import layers, norms
from vitssl.backbones.base import Backbone


def build(cfg: config.Backbone, size_px: int, needs: Set[str] = frozenset()) -> Backbone:
    """The backbone of a config, freshly initialised.

    Args:
        cfg: its fields.
        size_px: side of the images of view "main".
        needs: what the Run's objectives need of it (``config.Objective.needs``); parameters exist only where they are used.
    """
    family = importlib.import_module(f"vitssl.backbones.{config.module(cfg)}")
    backbone = family.build(cfg, size_px, needs)
    layers.set_fused_attention(backbone, cfg.fused_attention)
    norms.set_over_ranks(backbone, cfg.batch_norm == "global")
    return backbone
