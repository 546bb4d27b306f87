"""A backbone that the command line names in place of the file's: all that has to change with it, said at once."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from jobs.overrides import Setting
from jobs.sweep import Spec
from vitssl.config import SIZES as OF_NAMES
from vitssl.config import BackboneConfig, ConfigError, ObjectiveConfig, active, capabilities, dotted, lacks, nested, stride_px
from vitssl.config.backbones import family
from vitssl.config.methods import flow
from vitssl.words import listed

if TYPE_CHECKING:
    from jobs.graph import Cell, Stage

NAME = "backbone.name"
SIZES = ("embed_dim", "depth", "depths", "num_heads", "mlp_ratio", "qkv_bias")  # that make a named network another one
# what a backbone may lack -> how it is said, and the field of an objective that does without it, with its value
WITHOUT = {
    "cls": ("has no class token", "pool", "mean"),
    "keep": ("cannot drop hidden tokens", "hide", "mask"),
    "mask": ("has no mask token", "hide", "drop"),
}
USUAL = BackboneConfig()


class Change:
    """What the Runs of one name, or of an axis of names, need beside it: why, and {dotted field: value}."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self.why: dict[str, None] = {}
        self.fields: dict[str, Any] = {}
        self.keeps_sizes = False

    def add(self, why: str, fields: dict[str, Any], stage: Stage) -> None:
        """But for what the command line sets itself, which the Run's own checks see."""
        fields = {name: value for name, value in fields.items() if name not in stage.cli_fields}
        if fields:
            self.names[stage.run.backbone.name] = self.why[why] = None
            self.fields |= fields


def check(spec: Spec, made: Iterable[Cell]) -> None:
    """A backbone that the command line names is that one, and not the file's sizes of another under a new name.

    Raises:
        ConfigError: a Run's other fields are of the file's backbone; it says what to type for all of its Runs.
    """
    changes: dict[str, tuple[Stage, Change]] = {}
    for cell in made:
        for stage in cell.stages:
            if NAME in stage.cli_fields and stage.run.backbone.name != _of_file(stage).get("name", USUAL.name):
                first, change = changes.setdefault(_whose(spec, cell.arm, stage.name), (stage, Change()))
                with stage.error_location():
                    _collect(stage, change)
    for whose, (first, change) in changes.items():
        if change.fields:
            with first.error_location():
                raise ConfigError(_reason(change, whose), NAME)


def _of_file(stage: Stage) -> dict[str, Any]:
    return stage.of_file.get("backbone") or {}


def _whose(spec: Spec, arm: str, stage: str) -> str:
    """The prefix with which the command line names the backbone; of several the most particular one."""
    named = [s for s in spec.overrides.settings if NAME in s.leaves and s.arm in (None, arm) and s.stage in (None, stage)]
    return max(named, key=lambda s: (s.arm is not None, s.stage is not None), default=Setting(None, None, NAME, None)).whose


def _collect(stage: Stage, change: Change) -> None:
    """What this stage's Run needs; an error where it cannot be trained on such a backbone."""
    backbone, before = stage.run.backbone, _of_file(stage)
    kept = {name: value for name, value in kept_sizes(backbone, before).items() if f"backbone.{name}" not in stage.cli_fields}
    sizes = ", ".join(f"{name}: {flow(value)}" for name, value in kept.items())
    of = before.get("name", USUAL.name)
    change.keeps_sizes |= bool(kept)
    change.add(f"would keep the file's sizes of {of} ({sizes})", {f"backbone.{name}": None for name in kept}, stage)
    foreign = {name: getattr(USUAL, name) for name in backbone.inactive_fields() if name not in kept}
    foreign = {
        name: value for name, value in foreign.items() if value != getattr(backbone, name) and f"backbone.{name}" not in stage.cli_fields
    }
    change.add(f"takes no {', '.join(foreign)}", {f"backbone.{name}": value for name, value in foreign.items()}, stage)
    own = dataclasses.replace(backbone, **dict.fromkeys(kept) | foreign)
    for name, objective in active(stage.run.objectives).items():
        _suit(own, f"objectives.{name}", objective, change, stage)
    side_px, token_px = stage.run.data.image_size, stride_px(own)
    if side_px % token_px and family(own).strides != (1,):  # of a plain one the patch is another
        whole_px = max(1, round(side_px / token_px)) * token_px
        change.add(f"has a token per {token_px} px, which does not divide {side_px}", {"data.image_size": whole_px}, stage)


def kept_sizes(backbone: BackboneConfig, before: dict[str, Any]) -> dict[str, Any]:
    """The file's sizes of another name, but for those that the new one has itself."""
    own = OF_NAMES[backbone.name]._asdict() | {"depths": list(OF_NAMES[backbone.name].depths)}
    own["depth"] = own["depths"][0] if len(own["depths"]) == 1 else None
    names = (*SIZES, "patch_size") if family(backbone).strides != (1,) else SIZES  # a plain one may have any patch, as a note says
    return {name: before[name] for name in names if before.get(name) not in (None, own[name])}


def _suit(backbone: BackboneConfig, path: str, objective: ObjectiveConfig, change: Change, stage: Stage) -> None:
    """What an objective requires and the backbone lacks."""
    lacking = objective.requires() - capabilities(backbone)
    for capability in sorted(lacking):
        why, name, value = WITHOUT.get(capability, ("", "", None))
        other = dataclasses.replace(objective, **{name: value}) if hasattr(objective, name) else objective
        if len(other.requires() - capabilities(backbone)) >= len(lacking):
            raise ConfigError(lacks(backbone, capability, path), path)
        change.add(why, {f"{path}.{name}": value}, stage)


def _reason(change: Change, whose: str) -> str:
    """In one line; the backbone's fields are one word, as they are many."""
    parts = nested(change.fields)
    typed = {"backbone": parts.pop("backbone")} if "backbone" in parts else {}
    words = [f"{whose}{'.' if whose else ''}{name}={flow(value)}" for name, value in (typed | dotted(parts)).items()]
    of_others = ", or set those too" if change.keeps_sizes else ""
    return f"{' or '.join(change.names)} {listed(change.why)}; for its own add {shlex.join(words)}{of_others}"
