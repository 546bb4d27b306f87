"""How the fields of a stage are merged.

Fields are merged in this order; later ones win:

    the sweep's `defaults` < the arm's `defaults` < axis values < the stage < the command line

A stage's own fields are the most specific of the file: `loop.epochs: 50` of a pretraining stays when an axis varies the epochs of
all other stages. A key that starts with the name of a stage (`finetune.optim.lr`), in an axis or on the command line, applies to
that stage alone, and wins over the stage's own fields too. A key of the command line that starts with `arms.ssat.` applies to that
arm alone, and wins over keys for all arms. An axis that the command line adds sets its fields as the command line does. A field of
an objective (`objectives.mae.mask_ratio`), in an axis or on the command line, applies to stages in which that objective is on.
An evaluator of a classifier that is set for several stages applies to those that classify.

`data.source` belongs to the `data.shards` beside it: a layer that sets shards without a source drops the source of the layers
below, so that a mistyped folder is never filled with another data set, or compared with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from jobs.plan.overrides import CLI, layer
from jobs.plan.sweep import Spec
from vitssl.config import ConfigError, dotted, nested


def axis_layers(spec: Spec, arm: str, labels: dict[str, Any], stage: str) -> dict[str, list[dict[str, Any]]]:
    """Return {axis: [layer for all stages, layer for this stage]} of the file's axes, at the values that ``labels`` gives."""
    chosen = {axis: spec.axes[axis][label] for axis, label in labels.items() if axis not in spec.added_axes}
    unconditional = [
        {s.field: s.value}
        for axis_settings in chosen.values()
        for s in axis_settings
        if s.stage in (None, stage) and s.field and s.objective is None
    ]
    recipe = spec.arms[arm]
    below = nested(spec.defaults, recipe.defaults, *unconditional, recipe.fields_of(stage))
    return {axis: [layer(axis_settings, None, scope, below) for scope in (None, stage)] for axis, axis_settings in chosen.items()}


def merge_file_layers(spec: Spec, arm: str, labels: dict[str, Any], stage: str) -> dict[str, Any]:
    """Merge the file's layers of a stage, in the order that the module's docstring gives."""
    recipe = spec.arms[arm]
    for_all, for_stage = ([both[i] for both in axis_layers(spec, arm, labels, stage).values()] for i in (0, 1))
    return nested(*map(reset_lower_source, [spec.defaults, recipe.defaults, *for_all, recipe.fields_of(stage), *for_stage]))


def merge_cli_layers(
    spec: Spec, arm: str, labels: dict[str, Any], stage: str, file_fields: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Merge the command line's layers of a stage over ``file_fields``; return the fields, and the names of those that it sets."""
    cli, axes, fields = spec.overrides, axis_layers(spec, arm, labels, stage), file_fields
    cli_layers = [part for axis in axes if axis in cli.axes for part in axes[axis]]
    set_by_cli = [*(setting for axis in spec.added_axes for setting in spec.axes[axis][labels[axis]]), *cli.settings]
    for scope in itertools.product((None, arm), (None, stage)):
        cli_layers.append(layer(set_by_cli, *scope, below=fields))
        fields = nested(fields, reset_lower_source(cli_layers[-1]))
    return fields, [*dotted(nested(*cli_layers)), *(f"resources.{name}" for owner in (None, arm) for name in cli.resources.get(owner, {}))]


def evaluators_of_stage(spec: Spec, arm: str, labels: dict[str, Any], stage: str) -> set[str]:
    """Return the names of the evaluators of which a field is set for this stage, and not for others too."""
    of_axes = (setting for axis, label in labels.items() for setting in spec.axes[axis][label])
    meant = [s for s in (*of_axes, *spec.overrides.settings) if s.stage == stage and s.reaches(arm, stage)]
    return _evaluators([*dotted(nested(spec.arms[arm].fields_of(stage))), *(name for setting in meant for name in setting.leaves)])


def evaluators_of_arm(spec: Spec, arm: str) -> set[str]:
    """Return the names of the evaluators of which a field is set for all stages of this arm, and not for other arms too."""
    meant = [setting for setting in spec.overrides.settings if (setting.arm, setting.stage) == (arm, None)]
    return _evaluators([*dotted(nested(spec.arms[arm].defaults)), *(name for setting in meant for name in setting.leaves)])


def _evaluators(fields: Iterable[str]) -> set[str]:
    return {field.split(".")[1] for field in fields if field.startswith("evals.")}


def refuse_overridden(spec: Spec) -> None:
    """Refuse a setting of the command line for an arm or a stage that narrower settings override in every Run that it reaches.

    For example, ``finetune.optim.lr=0.1`` beside ``arms.sslft.finetune.optim.lr=0.2`` is refused if no other arm has a stage finetune. A
    setting for all Runs is not refused, as narrower settings are meant to override it.
    """
    places = [(arm, stage) for arm, recipe in spec.arms.items() for stage in recipe.stages]
    for s in (s for s in spec.overrides.settings if any(s.narrowness)):
        narrower = [t for t in spec.overrides.settings if t.narrowness > s.narrowness]
        reached = [(place, name) for place in places if s.reaches(*place) for name in s.leaves]
        overriding = [next((t for t in narrower if t.reaches(*place) and name in t.leaves), None) for place, name in reached]
        if all(overriding) and (first := next(iter(overriding), None)) is not None:
            raise ConfigError(f"{first.key} sets it wherever this would; leave it out, or name an arm's stage", s.key, CLI)


def reset_lower_source(layer: dict[str, Any]) -> dict[str, Any]:
    """Return a ``layer`` so that its shards are never paired with the source of a layer below.

    A layer that sets `data.shards` without `data.source` means shards that exist, so `data.source: null` is added to it.
    """
    data = nested(layer).get("data")
    alone = isinstance(data, dict) and "shards" in data and "source" not in data
    return {**layer, "data.source": None} if alone else layer
