"""The values of an axis and what each sets, as a sweep file or the command line says them."""

from __future__ import annotations

import shlex
from typing import Any

from jobs.overrides import CLI, OTHERS, RUN_FIELDS, settings
from vitssl.config import ConfigError, unknown
from vitssl.config.base import closest
from vitssl.config.merging import UNSET
from vitssl.config.suggestions import meant


def mapping(value: Any, path: str, file: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{value!r} is not a mapping of names; write {{name: value}}", path, file)
    return value


def read(name: str, values: Any, file: str) -> dict[Any, dict[str, Any]]:
    """{label: fields}: a list gives values of the field that the axis is named after, a mapping names sets of fields."""
    path = f"axes.{name}"
    if isinstance(values, list) and len({_label(value) for value in values}) < len(values):
        raise ConfigError(f"{values} names a value twice", path, file)
    if isinstance(values, list) and values:
        return {_label(value): {name: value} for value in values}
    if isinstance(values, dict) and values:
        if name in RUN_FIELDS and (field := next((key for key, value in values.items() if isinstance(value, list)), None)) is not None:
            raise ConfigError(f"a list names the values of one field; write axes.{name}.{field}=[...] for an axis of them", path, file)
        return {key: mapping({} if fields is None else fields, f"{path}.{key}", file) for key, fields in values.items()}
    if isinstance(values, list | dict):
        raise ConfigError("it has no values; write some, such as [0, 1], or leave it out", path, file)
    parts = values.replace(",", " ").split() if isinstance(values, str) else [values]
    one = f"; write [{', '.join(map(str, parts))}]" if isinstance(values, int | float | str) else ""
    raise ConfigError(f"expected a list of values or a mapping of names to fields, not {values!r}{one}", path, file)


def added(asked: dict[str, Any], of_file: dict[str, dict], stages: list[str]) -> dict[str, dict[Any, dict[str, Any]]]:
    """The command line's axes that the file does not have."""
    axes = {}
    for name, values in asked.items():
        place = f"axes.{name}"
        if name not in of_file:
            if isinstance(values, list):
                _check_field(name, of_file, stages)
            axes[name] = read(name, values, CLI)
        elif isinstance(values, dict):
            choice = ", ".join(map(str, of_file[name]))
            raise ConfigError(f"the file has an axis of this name; choose of {choice}, or give yours another name", place, CLI)
    return axes


def _check_field(axis: str, of_file: dict[str, dict], stages: list[str]) -> None:
    """A list of values is of the field that the axis is named after."""
    check_head(axis, stages, CLI)
    try:
        for setting in settings({axis: UNSET}):
            setting.check(stages, CLI)
    except ConfigError as error:
        if near := closest(axis, list(of_file)):
            raise unknown(axis, of_file, f"axes.{axis}", CLI, also=near) from None
        reason = error.reason
        if meant(axis) == ["equalize"]:
            example = f"axes.{axis}={{equal epochs: {{}}, equal MACs: {{equalize: macs}}}}"
            reason = f"the file has no axis {axis!r}, which {shlex.quote(example)} adds"
        raise ConfigError(reason, f"axes.{axis}", CLI) from None


def check_head(axis: str, stages: list[str], where: str) -> None:
    if (head := axis.partition(".")[0]) in OTHERS and head not in stages:
        reason = f"{head} is not a field of a run, and an axis is of such a field, for example axes.optim.lr=[1e-3,1e-4]"
        raise ConfigError(reason + ("; arms=[...] chooses arms" if head == "arms" else ""), f"axes.{axis}", where)


def _label(value: Any) -> Any:
    return value if isinstance(value, (int, float, str, bool)) else str(value)
