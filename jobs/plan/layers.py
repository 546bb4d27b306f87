"""How the fields of a stage are merged, and that every value of an axis is trained where it says so.

Fields are merged in this order; later ones win:

    the sweep's `defaults` < the arm's `defaults` < axis values < the stage < the command line

A stage's own fields are the most specific of the file: `loop.epochs: 50` of a pretraining stays when an axis varies the epochs of
all other stages. Where a key starts with the name of a stage (`finetune.optim.lr`), in an axis or on the command line, it applies
to that stage alone, and wins over the stage's own fields too. On the command line, a prefix `arms.ssat.` makes it apply to that
arm alone, and wins over what applies to all arms. An axis that the command line adds sets its fields as the command line does.
A field of an objective (`objectives.mae.mask_ratio`), in an axis or on the command line, applies where that objective is on.

`data.source` belongs to the `data.shards` beside it: a layer that sets shards without a source drops the source of the layers
below, so that a mistyped folder is never filled with another data set, nor compared to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from jobs.plan.overrides import CLI, Setting, layer, settings
from jobs.plan.sweep import Spec
from vitssl.config import ConfigError, dotted, nested


def of_axes(spec: Spec, arm: str, labels: dict[str, Any], stage: str) -> dict[str, list[dict[str, Any]]]:
    """The layers of the file's axes at these values: for all stages, and for this one."""
    chosen = {axis: spec.axes[axis][label] for axis, label in labels.items() if axis not in spec.added_axes}
    whole = [{s.field: s.value} for of in chosen.values() for s in of if s.stage in (None, stage) and s.field and s.objective is None]
    recipe = spec.arms[arm]
    below = nested(spec.defaults, recipe.defaults, *whole, recipe.stages[stage])
    return {axis: [layer(of, None, whose, below) for whose in (None, stage)] for axis, of in chosen.items()}


def of_file(spec: Spec, arm: str, labels: dict[str, Any], stage: str) -> dict[str, Any]:
    """The file's layers of a stage, merged in the order above."""
    recipe = spec.arms[arm]
    for_all, for_stage = ([both[i] for both in of_axes(spec, arm, labels, stage).values()] for i in (0, 1))
    return nested(*map(with_its_source, [spec.defaults, recipe.defaults, *for_all, recipe.stages[stage], *for_stage]))


def merged(spec: Spec, arm: str, labels: dict[str, Any], stage: str, file_fields: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The command line's layers of a stage over the file's, and the fields that it sets."""
    cli, axes, whole = spec.overrides, of_axes(spec, arm, labels, stage), file_fields
    cli_layers = [part for axis in axes if axis in cli.axes for part in axes[axis]]
    set_by_cli = [*(setting for axis in spec.added_axes for setting in spec.axes[axis][labels[axis]]), *cli.settings]
    for whose in itertools.product((None, arm), (None, stage)):
        cli_layers.append(layer(set_by_cli, *whose, below=whole))
        whole = nested(whole, with_its_source(cli_layers[-1]))
    return whole, [*dotted(nested(*cli_layers)), *(f"resources.{name}" for of in (None, arm) for name in cli.resources.get(of, {}))]


def with_its_source(layer: dict[str, Any]) -> dict[str, Any]:
    """A layer that sets `data.shards` and no `data.source` means existing shards: the source from the layers below is dropped."""
    data = nested(layer).get("data")
    alone = isinstance(data, dict) and "shards" in data and "source" not in data
    return {**layer, "data.source": None} if alone else layer


# ----------------------------------------------------------------------------------------------------------------- axes


def check_axes(spec: Spec) -> None:
    """Refuse axes whose fields something else sets: values would be shown that nothing was trained with."""
    _refuse_overridden(spec)
    for axis, later in itertools.combinations(spec.axes, 2):
        _refuse_clash(spec, axis, later)
    for arm in spec.arms:
        _refuse_contradiction(spec, arm)
    for axis in spec.axes:
        if axis not in spec.added_axes and is_of_values(spec, axis):  # added ones win over all else
            _refuse_no_effect(spec, axis)


def is_of_values(spec: Spec, axis: str) -> bool:
    """Are its labels the values of the field that it is named after?"""
    return all(chosen == list(settings({axis: label})) for label, chosen in spec.axes[axis].items())


def _refuse_overridden(spec: Spec) -> None:
    """What the command line sets of an arm or a stage reaches one: narrower settings may set its fields wherever it would.

    That they take the place of one for all Runs is what these are for.
    """
    places = [(arm, stage) for arm, recipe in spec.arms.items() for stage in recipe.stages]
    for s in (s for s in spec.overrides.settings if any(s.narrowness)):
        narrower = [t for t in spec.overrides.settings if t.narrowness > s.narrowness]
        reached = [(place, name) for place in places if s.reaches(*place) for name in s.leaves]
        by = [next((t for t in narrower if t.reaches(*place) and name in t.leaves), None) for place, name in reached]
        if by and all(by):
            raise ConfigError(f"{by[0].key} sets it wherever this would; leave it out, or name an arm's stage", s.key, CLI)


def _refuse_clash(spec: Spec, axis: str, later: str) -> None:
    """An axis keeps its values apart where a later one, which wins, sets fields of it."""
    taken = {place for point in _points(spec, later) for place in point}
    points = _points(spec, axis)
    left = [{place: value for place, value in point.items() if place not in taken} for point in points]
    shared = next((place for point in points for place in point if place in taken), None)
    if shared and len(points) > 1 and any(point in left[:i] for i, point in enumerate(left)):
        one = f"axes.{axis}=[{next(iter(spec.axes[axis]))}]"
        same = f"axes.{axis} sets {'.'.join(filter(None, shared))} too, which would make its values identical"
        reason = f"{same}; choose one of them with {one}, or leave one of the axes out"
        raise ConfigError(reason, f"axes.{later}", spec.place(f"axes.{later}"))


def _points(spec: Spec, axis: str) -> list[dict[tuple[str | None, str], Any]]:
    """Of every value of an axis what it sets, by stage and field."""
    return [{(s.stage, name): value for s in chosen for name, value in s.leaves.items()} for chosen in spec.axes[axis].values()]


def _refuse_contradiction(spec: Spec, arm: str) -> None:
    """The command line does not make two values of an axis equal, nor contradict the name of one."""
    mine = [s for s in spec.overrides.settings if s.arm in (None, arm)]

    def set_by(stage: str | None, field: str) -> list[str]:
        """The command line's keys that set a field of an axis; shards drop the source."""
        sets = [s for s in mine if s.sets(field) or (field == "data.source" and s.sets("data.shards"))]
        return [s.key for s in sets if s.stage in (None, stage)]

    for axis, values in spec.axes.items():
        fields = _points(spec, axis)
        left = [{place: value for place, value in point.items() if not any(set_by(*place))} for point in fields]
        taken = next((key for point in fields for place in point for key in set_by(*place)), None)
        if taken and is_of_values(spec, axis):
            raise ConfigError(f"axes.{axis} sets it; write axes.{axis}=... instead", taken, CLI)
        if taken and any(point in left[:i] for i, point in enumerate(left)):
            names = ", ".join(map(str, values))
            raise ConfigError(f"your value would make {names} of axes.{axis} identical; choose one with axes.{axis}=...", taken, CLI)


def _refuse_no_effect(spec: Spec, axis: str) -> None:
    """An axis of values keeps its field in one of the arms where it sets it; where the command line sets it instead, in each of them."""
    found = {arm: instead for arm in spec.arms if (instead := list(_instead(spec, arm, axis)))}
    without = [instead[0] for instead in found.values() if all(instead)]
    for error in without:
        if error.place == CLI or len(without) == len(found):
            raise error


def _instead(spec: Spec, arm: str, axis: str) -> Iterator[ConfigError | None]:
    """For every field that an axis sets in a stage of an arm, what sets it instead; None where nothing does."""
    labels = {name: next(iter(values)) for name, values in spec.axes.items()}
    for stage, own in spec.arms[arm].stages.items():
        typed = [s for s in spec.overrides.settings if s.reaches(arm, stage)]
        of_file = [Setting(None, None, name, value) for name, value in own.items()]
        for_all, for_stage = of_axes(spec, arm, labels, stage)[axis]
        for set_there, file in ((for_all, of_file), (for_stage, [])):
            for field in dotted(set_there):
                if key := next((s.key for s in typed if s.sets(field)), None):
                    yield ConfigError(f"axes.{axis} sets it; write axes.{axis}=... instead", key, CLI)
                elif any(s.sets(field) for s in file):
                    reason = f"it changes nothing in {arm}, where arms.{arm}.stages.{stage} sets {field} itself"
                    yield ConfigError(reason, f"axes.{axis}", spec.file)
                else:
                    yield None
