"""How the fields of a stage are merged, and checks that every axis value has an effect.

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
from collections.abc import Iterable, Iterator
from typing import Any

from jobs.plan.overrides import CLI, Setting, layer, settings
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


def reset_lower_source(layer: dict[str, Any]) -> dict[str, Any]:
    """Return a ``layer`` so that its shards are never paired with the source of a layer below.

    A layer that sets `data.shards` without `data.source` means shards that exist, so `data.source: null` is added to it.
    """
    data = nested(layer).get("data")
    alone = isinstance(data, dict) and "shards" in data and "source" not in data
    return {**layer, "data.source": None} if alone else layer


# ----------------------------------------------------------------------------------------------------------------- axes


def check_axes(spec: Spec) -> None:
    """Refuse axes whose fields are set elsewhere, as the report would show values that no run was trained with."""
    _refuse_overridden(spec)
    for axis, later in itertools.combinations(spec.axes, 2):
        _refuse_clash(spec, axis, later)
    for arm in spec.arms:
        _refuse_contradiction(spec, arm)
    for axis in spec.axes:
        if axis not in spec.added_axes and is_of_values(spec, axis):  # axes that the command line adds win over everything else
            _refuse_no_effect(spec, axis)


def is_of_values(spec: Spec, axis: str) -> bool:
    """Whether the labels of ``axis`` are the values of the field that it is named after."""
    return all(chosen == list(settings({axis: label})) for label, chosen in spec.axes[axis].items())


def _refuse_overridden(spec: Spec) -> None:
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


def _refuse_clash(spec: Spec, axis: str, later: str) -> None:
    """Refuse a ``later`` axis, which wins, if it sets fields of ``axis`` and so makes some of its values identical."""
    set_later = {place for point in _points(spec, later) for place in point}
    points = _points(spec, axis)
    remaining = [{place: value for place, value in point.items() if place not in set_later} for point in points]
    shared = next((place for point in points for place in point if place in set_later), None)
    if shared and len(points) > 1 and any(point in remaining[:i] for i, point in enumerate(remaining)):
        choice = f"axes.{axis}=[{next(iter(spec.axes[axis]))}]"
        problem = f"axes.{axis} sets {'.'.join(filter(None, shared))} too, which would make its values identical"
        reason = f"{problem}; choose one of them with {choice}, or leave one of the axes out"
        raise ConfigError(reason, f"axes.{later}", spec.place(f"axes.{later}"))


def _points(spec: Spec, axis: str) -> list[dict[tuple[str | None, str], Any]]:
    """Return {(stage, field): value} of what each value of an axis sets."""
    return [{(s.stage, name): value for s in chosen for name, value in s.leaves.items()} for chosen in spec.axes[axis].values()]


def _refuse_contradiction(spec: Spec, arm: str) -> None:
    """Refuse settings of the command line that set the field of an axis of values, or make two values of another axis identical."""
    for_arm = [s for s in spec.overrides.settings if s.arm in (None, arm)]

    def set_by(stage: str | None, field: str) -> list[str]:
        """List the command line's keys that set a field of an axis; setting `data.shards` also resets `data.source`."""
        setters = [s for s in for_arm if s.sets(field) or (field == "data.source" and s.sets("data.shards"))]
        return [s.key for s in setters if s.stage in (None, stage)]

    for axis, values in spec.axes.items():
        fields = _points(spec, axis)
        remaining = [{place: value for place, value in point.items() if not any(set_by(*place))} for point in fields]
        setting_key = next((key for point in fields for place in point for key in set_by(*place)), None)
        if setting_key and is_of_values(spec, axis):
            raise ConfigError(f"axes.{axis} sets it; write axes.{axis}=... instead", setting_key, CLI)
        if setting_key and any(point in remaining[:i] for i, point in enumerate(remaining)):
            names = ", ".join(map(str, values))
            raise ConfigError(f"your value would make {names} of axes.{axis} identical; choose one with axes.{axis}=...", setting_key, CLI)


def _refuse_no_effect(spec: Spec, axis: str) -> None:
    """Refuse an axis of values that the file overrides in every arm that has its field, or the command line in any of them."""
    by_arm = {arm: instead for arm in spec.arms if (instead := list(_override_errors(spec, arm, axis)))}
    ineffective = [error for error, *others in by_arm.values() if error is not None and all(others)]
    for error in ineffective:
        if error.place == CLI or len(ineffective) == len(by_arm):
            raise error


def _override_errors(spec: Spec, arm: str, axis: str) -> Iterator[ConfigError | None]:
    """Yield, for every field that an axis sets in the stages of an arm, an error that says what overrides it, or None if nothing does."""
    labels = {name: next(iter(values)) for name, values in spec.axes.items()}
    for stage in spec.arms[arm].stages:
        typed = [s for s in spec.overrides.settings if s.reaches(arm, stage)]
        own_settings = [Setting(None, None, name, value) for name, value in spec.arms[arm].fields_of(stage).items()]
        for_all, for_stage = axis_layers(spec, arm, labels, stage)[axis]
        for axis_layer, overriding in ((for_all, own_settings), (for_stage, [])):
            for field in dotted(axis_layer):
                if key := next((s.key for s in typed if s.sets(field)), None):
                    yield ConfigError(f"axes.{axis} sets it; write axes.{axis}=... instead", key, CLI)
                elif any(s.sets(field) for s in overriding):
                    reason = f"it changes nothing in {arm}, where arms.{arm}.stages.{stage} sets {field} itself"
                    yield ConfigError(reason, f"axes.{axis}", spec.file)
                else:
                    yield None
