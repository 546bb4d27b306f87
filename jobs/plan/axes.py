"""Axes: the values that the file and the command line give, and a check that Runs really differ between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jobs.plan.overrides import CLI, Setting, settings
from vitssl.config import ConfigError, Run, unknown_error
from vitssl.config.base import closest
from vitssl.config.merging import UNSET

if TYPE_CHECKING:
    from jobs.plan.cells import Cell
    from jobs.plan.sweep import Spec


def mapping(value: Any, path: str, file: str) -> dict[str, Any]:
    """Return ``value`` if it is a mapping, and raise a ConfigError otherwise."""
    if not isinstance(value, dict):
        raise ConfigError(f"{value!r} is not a mapping of names; write {{name: value}}", path, file)
    return value


def axis_values(name: str, values: Any, file: str) -> dict[Any, dict[str, Any]]:
    """Return an axis as {label: fields}.

    A list holds values of the field that the axis is named after; a mapping names sets of fields.
    """
    path = f"axes.{name}"
    if isinstance(values, dict) and values:
        return {key: mapping({} if fields is None else fields, f"{path}.{key}", file) for key, fields in values.items()}
    if not isinstance(values, list) or not values:
        raise ConfigError(f"expected a list of values or a mapping of names to fields, not {values!r}, such as [0, 1]", path, file)
    by_label = {axis_label(value): {name: value} for value in values}
    if len(by_label) < len(values):
        raise ConfigError(f"{values} names a value twice", path, file)
    return by_label


def added_axes(asked: dict[str, Any], file_axes: dict[str, dict], stages: list[str]) -> dict[str, dict[Any, dict[str, Any]]]:
    """Return the axes of the command line that the file does not have, as {name: {label: fields}}."""
    axes = {}
    for name, values in asked.items():
        if name not in file_axes:
            if isinstance(values, list):
                _check_field(name, file_axes, stages)
            axes[name] = axis_values(name, values, CLI)
        elif isinstance(values, dict):
            choice = ", ".join(map(str, file_axes[name]))
            raise ConfigError(f"the file has an axis of this name; choose from {choice}, or rename yours", f"axes.{name}", CLI)
    return axes


def _check_field(axis: str, file_axes: dict[str, dict], stages: list[str]) -> None:
    """Check that an axis that is given as a list is named after a field of Runs."""
    try:
        for setting in settings({axis: UNSET}):
            setting.check(stages, "")
    except ConfigError as error:
        similar = closest(axis, list(file_axes))
        reason = unknown_error(axis, file_axes, also=similar).reason if similar else error.reason
        raise ConfigError(reason, f"axes.{axis}", CLI) from None


def axis_label(value: Any) -> Any:
    """Return the label of a value of an axis: the value itself if it is a number, a text or a boolean, otherwise its text, as in YAML."""
    return value if isinstance(value, (int, float, str, bool)) else "null" if value is None else str(value)


# --------------------------------------------------------------------------------------------------------------- check


def check_axes(spec: Spec, made: Sequence[Cell]) -> None:
    """Refuse axes whose fields are set elsewhere, as the report would show values that no Run was trained with.

    Nothing on the command line may override an axis in any arm. The file may, but not in all arms that have the axis's fields.
    """
    by_arm: dict[str, list[Cell]] = {}
    for cell in made:
        by_arm.setdefault(cell.arm, []).append(cell)
    for axis in spec.axes:
        if is_of_values(spec, axis):
            _refuse_set_beside(spec, axis)
        if spec.equal.get(axis):
            continue  # Runs of equal cost get their epochs later
        alike = [_alike(of_arm, axis) for of_arm in by_arm.values()]
        errors = [_override(spec, of_arm[0], axis, pair) for of_arm, pair in zip(by_arm.values(), alike, strict=True) if pair]
        for error in filter(None, errors):
            if error.place == CLI or all(alike):
                raise error


def is_of_values(spec: Spec, axis: str) -> bool:
    """Whether the labels of ``axis`` are the values of the field that it is named after."""
    return all(chosen == list(settings({axis: label})) for label, chosen in spec.axes[axis].items())


def _refuse_set_beside(spec: Spec, axis: str) -> None:
    """Refuse a setting of the command line that sets the field of an axis of values, too."""
    varied = next(iter(spec.axes[axis].values()))[0]
    for setting in spec.overrides.settings:
        if setting.sets(varied.field) and setting.stage in (None, varied.stage):
            raise ConfigError(f"axes.{axis} sets it; write axes.{axis}=... instead", setting.key, CLI)


def _alike(of_arm: Sequence[Cell], axis: str) -> tuple[Any, Any] | None:
    """Return two values of an axis at which all Runs of an arm are equal; None if there are none."""
    runs: dict[Any, list[list[Run]]] = {}
    for cell in of_arm:
        runs.setdefault(cell.axes[axis], []).append([stage.run for stage in cell.stages])
    before: dict[str, list[Any]] = {}  # values by the text of their first Runs, which saves most comparisons
    for value, its_runs in runs.items():
        similar = before.setdefault(repr(its_runs[0]), [])
        for other in similar:
            if runs[other] == its_runs:
                return other, value
        similar.append(value)
    return None


def _override(spec: Spec, cell: Cell, axis: str, alike: tuple[Any, Any]) -> ConfigError | None:
    """Return an error on what makes two values of an axis ``alike`` in the arm of ``cell``; None if it reads nothing that they set."""
    own = [setting for value in alike for setting in spec.axes[axis][value]]
    read = [(stage.name, name) for stage in cell.stages for s in own if s.applies_to(stage.name, stage.run) for name in s.leaves]
    if not read:
        return None
    values = " and ".join(map(str, alike))

    def shared(setting: Setting) -> str | None:
        """Return a field of the axis that ``setting`` sets, too."""
        return next((name for stage, name in read if setting.reaches(cell.arm, stage) and setting.sets(name)), None)

    for typed in filter(shared, spec.overrides.settings):
        reason = f"your value would make {values} of axes.{axis} identical; choose one with axes.{axis}=..."
        return ConfigError(f"axes.{axis} sets it; write axes.{axis}=... instead" if is_of_values(spec, axis) else reason, typed.key, CLI)
    for other in (name for name in spec.axes if name != axis):
        if field := next(filter(None, map(shared, next(iter(spec.axes[other].values())))), None):
            reason = f"axes.{axis} sets {field} too, which would make its values {values} identical"
            advice = f"choose one of them with axes.{axis}=[{alike[0]}], or leave one of the axes out"
            return ConfigError(f"{reason}; {advice}", f"axes.{other}", spec.place(f"axes.{other}"))
    stage, field = read[0]
    return ConfigError(f"{values} are identical in {cell.arm}, whose stage {stage} sets {field} itself", f"axes.{axis}", spec.file)
