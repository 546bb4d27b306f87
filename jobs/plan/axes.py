"""The values of axes, as the file and the command line give them."""

from __future__ import annotations

from typing import Any

from jobs.plan.overrides import CLI, settings
from vitssl.config import ConfigError, unknown_error
from vitssl.config.base import closest
from vitssl.config.merging import UNSET


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
