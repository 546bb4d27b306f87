"""That every value of an axis is trained where it says so: no other layer takes its place."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from jobs import layers
from jobs.overrides import CLI, Setting, settings
from jobs.sweep import Spec
from vitssl.config import ConfigError, dotted, nested


def check(spec: Spec) -> None:
    """Check the axes of a sweep.

    Raises:
        ConfigError: what sets an axis's fields instead; values would be shown that nothing was trained with.
    """
    _refuse_overridden(spec)
    for axis, later in combinations(spec.axes, 2):
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
    stages = [(arm, stage) for arm, recipe in spec.arms.items() for stage in recipe.stages]
    for s in (s for s in spec.overrides.settings if any(_narrowness(s))):
        places = [(arm, stage) for arm, stage in stages if s.arm in (None, arm) and s.stage in (None, stage)]
        narrower = [t for t in spec.overrides.settings if _narrowness(t) > _narrowness(s)]
        by = [
            next((t for t in narrower if t.arm in (None, arm) and t.stage in (None, stage) and name in t.leaves), None)
            for arm, stage in places
            for name in s.leaves
        ]
        if by and all(by):
            where = " or ".join(f"arms.{arm}.{stage}.{s.field}" for arm, stage in places)
            raise ConfigError(f"{by[0].key} sets it wherever this would; leave it out, or write {where}", s.key, CLI)


def _refuse_clash(spec: Spec, axis: str, later: str) -> None:
    """An axis keeps its values apart where a later one, which wins, sets fields of it."""
    taken = {place for point in _points(spec, later) for place in point}
    points = _points(spec, axis)
    left = [{place: value for place, value in point.items() if place not in taken} for point in points]
    shared = next((place for point in points for place in point if place in taken), None)
    if shared and len(points) > 1 and any(point in left[:i] for i, point in enumerate(left)):
        one = f"axes.{axis}=[{next(iter(spec.axes[axis]))}]"
        same = f"axes.{axis} sets {'.'.join(filter(None, shared))} too, and its values would be the same"
        reason = f"{same}; choose one of them with {one}, or leave one of the axes out"
        raise ConfigError(reason, f"axes.{later}", spec.place(f"axes.{later}"))


def _points(spec: Spec, axis: str) -> list[dict[tuple[str | None, str], Any]]:
    """Of every value of an axis what it sets, by stage and field."""
    return [{(s.stage, name): value for s in chosen for name, value in s.leaves.items()} for chosen in spec.axes[axis].values()]


def _narrowness(setting: Setting) -> tuple[bool, bool]:
    """As `layers.merged` orders them: an arm's settings win over a stage's."""
    return setting.arm is not None, setting.stage is not None


def _refuse_contradiction(spec: Spec, arm: str) -> None:
    """The command line does not make two values of an axis equal, nor contradict the name of one."""
    leaves = [(s, *leaf) for s in spec.overrides.settings if s.arm in (None, arm) for leaf in layers.with_its_source(s.leaves).items()]

    def set_by(stage: str | None, field: str) -> Iterator[str]:
        """The command line's keys that set a field of an axis."""
        for s, name, value in leaves:
            if s.stage in (None, stage) and (field == name or (value != {} and field.startswith(f"{name}."))):
                yield s.key

    for axis, values in spec.axes.items():
        fields = _points(spec, axis)
        left = [{place: value for place, value in point.items() if not any(set_by(*place))} for point in fields]
        taken = next((key for point in fields for place in point for key in set_by(*place)), None)
        if taken and is_of_values(spec, axis):
            raise ConfigError(f"axes.{axis} sets it; write axes.{axis}=... instead", taken, CLI)
        if taken and any(point in left[:i] for i, point in enumerate(left)):
            names = ", ".join(map(str, values))
            raise ConfigError(f"axes.{axis} sets it, and {names} would be the same; choose one with axes.{axis}=...", taken, CLI)


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
        of_stage = [s for s in spec.overrides.settings if s.arm in (None, arm) and s.stage in (None, stage)]
        typed = {name: s.key for s in of_stage for name, value in s.leaves.items() if value != {}}
        for_all, for_stage = layers.of_axes(spec, arm, labels, stage)[axis]
        for set_there, file in ((for_all, [name for name, value in dotted(nested(own)).items() if value != {}]), (for_stage, [])):
            for field in dotted(set_there):
                if key := next((key for name, key in typed.items() if _within(field, name)), None):
                    yield ConfigError(f"axes.{axis} sets it; write axes.{axis}=... instead", key, CLI)
                elif any(_within(field, name) for name in file):
                    reason = f"it changes nothing in {arm}, where arms.{arm}.stages.{stage} sets {field} itself"
                    yield ConfigError(reason, f"axes.{axis}", spec.file)
                else:
                    yield None


def _within(field: str, name: str) -> bool:
    return field == name or field.startswith(f"{name}.")
