"""The fields of ``objectives``, in one file per objective: its settings, and what it requires of a Run.

The config of the field ``name`` is in ``name.py`` in this folder; its module is the class of the same name without ``Config`` in
`vitssl/objectives/name.py`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Optional

from vitssl.config.objectives.base import ObjectiveConfig
from vitssl.config.objectives.classify import ClassifyConfig
from vitssl.config.objectives.dino import DinoConfig
from vitssl.config.objectives.drloc import DrlocConfig
from vitssl.config.objectives.gmml import GmmlConfig
from vitssl.config.objectives.locality import LocalityConfig
from vitssl.config.objectives.lut import LutConfig
from vitssl.config.objectives.mae import MaeConfig
from vitssl.config.objectives.masked_tokens import MaskedTokensConfig
from vitssl.config.objectives.simclr import SimclrConfig
from vitssl.config.objectives.sit import SitConfig

__all__ = ["ObjectiveConfig", "Objectives", "active"]


@dataclass
class Objectives:
    """One optional field per objective; null is off."""

    classify: Optional[ClassifyConfig] = None
    mae: Optional[MaeConfig] = None
    gmml: Optional[GmmlConfig] = None
    lut: Optional[LutConfig] = None
    simclr: Optional[SimclrConfig] = None
    dino: Optional[DinoConfig] = None
    drloc: Optional[DrlocConfig] = None
    sit: Optional[SitConfig] = None
    locality: Optional[LocalityConfig] = None
    masked_tokens: Optional[MaskedTokensConfig] = None


def active(objectives: Objectives) -> dict[str, ObjectiveConfig]:
    """Return the objectives that are on, by name, in the order of the fields."""
    return {f.name: v for f in dataclasses.fields(objectives) if (v := getattr(objectives, f.name)) is not None}
