"""The values of an axis and what each sets, as a sweep file or the command line says them."""

from __future__ import annotations

from typing import Any

from jobs.overrides import CLI, settings
from vitssl.config import ConfigError, unknown
from vitssl.config.base import closest
from vitssl.config.merging import UNSET


def mapping(value: Any, path: str, file: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{value!r} is not a mapping of names; write {{name: value}}", path, file)
    return value


def read(name: str, values: Any, file: str) -> dict[Any, dict[str, Any]]:
    """{label: fields}: a list gives values of the field that the axis is named after, a mapping names sets of fields."""
    path = f"axes.{name}"
    if isinstance(values, dict) and values:
        return {key: mapping({} if fields is None else fields, f"{path}.{key}", file) for key, fields in values.items()}
    if not isinstance(values, list) or not values:
        raise ConfigError(f"expected a list of values or a mapping of names to fields, not {values!r}, such as [0, 1]", path, file)
    by_label = {_label(value): {name: value} for value in values}
    if len(by_label) < len(values):
        raise ConfigError(f"{values} names a value twice", path, file)
    return by_label


def added(asked: dict[str, Any], of_file: dict[str, dict], stages: list[str]) -> dict[str, dict[Any, dict[str, Any]]]:
    """The command line's axes that the file does not have."""
    axes = {}
    for name, values in asked.items():
        if name not in of_file:
            if isinstance(values, list):
                _check_field(name, of_file, stages)
            axes[name] = read(name, values, CLI)
        elif isinstance(values, dict):
            choice = ", ".join(map(str, of_file[name]))
            raise ConfigError(f"the file has an axis of this name; choose of {choice}, or give yours another name", f"axes.{name}", CLI)
    return axes


def _check_field(axis: str, of_file: dict[str, dict], stages: list[str]) -> None:
    """A list of values is of the field that the axis is named after."""
    try:
        for setting in settings({axis: UNSET}):
            setting.check(stages, "")
    except ConfigError as error:
        near = closest(axis, list(of_file))
        reason = unknown(axis, of_file, also=near).reason if near else error.reason
        raise ConfigError(reason, f"axes.{axis}", CLI) from None


def _label(value: Any) -> Any:
    return value if isinstance(value, (int, float, str, bool)) else str(value)
