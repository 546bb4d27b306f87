"""The command line's `key=value`: what each is about, and whether anything of it will run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from vitssl.config import ConfigError, Run, read_value, unknown

RUN_FIELDS = {f.name for f in dataclasses.fields(Run)}


@dataclass
class Overrides:
    """What the command line says, by what it is about."""

    arms: list[str] | None = None
    axes: dict[str, list[Any]] = field(default_factory=dict)
    resources: dict[str, Any] = field(default_factory=dict)
    site: dict[str, Any] = field(default_factory=dict)
    sweep: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)  # of all Runs, or of a stage's
    of_arm: dict[str, dict[str, Any]] = field(default_factory=dict)  # as `run`, for one arm alone
    arm_resources: dict[str, dict[str, Any]] = field(default_factory=dict)

    def of_the_sweep(self) -> list[str]:
        """The keys that are not of Runs, as they were written."""
        of_arms = (f"arms.{arm}.resources.{name}" for arm, own in self.arm_resources.items() for name in own)
        return [*self.sweep, *(f"axes.{axis}" for axis in self.axes), *(f"resources.{name}" for name in self.resources), *of_arms]


def parse(arguments: list[str]) -> Overrides:
    """Sort the command line's `key=value`.

    Raises:
        ConfigError: an argument that names no field, or whose value is not YAML.
    """
    result = Overrides()
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals or not key:
            raise ConfigError(f"command line: {argument!r} is not key=value")
        _file_under(result, key, read_value(text, key, "command line"))
    return result


def _file_under(result: Overrides, key: str, value: Any) -> None:
    head, _, rest = key.partition(".")
    if key == "arms":
        result.arms = _as_list(value)
    elif head == "arms":
        arm, _, name = rest.partition(".")
        if not name:
            raise ConfigError(f"command line: {key}: name a field of the arm, for example arms.{arm or 'ARM'}.optim.lr=1e-3")
        if name == "resources" and isinstance(value, dict):
            result.arm_resources.setdefault(arm, {}).update(value)
            return
        if name.startswith("resources."):
            result.arm_resources.setdefault(arm, {})[name.removeprefix("resources.")] = value
            return
        # the file writes arms.ARM.stages.STAGE
        result.of_arm.setdefault(arm, {})[name.removeprefix("stages.")] = value
    elif head == "axes" and rest:
        result.axes[rest] = _as_list(value)
    elif head in ("resources", "site") and rest:
        getattr(result, head)[rest] = value
    elif key in ("name", "columns", "baseline", "metric"):
        result.sweep[key] = value
    else:
        result.run[key] = value


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def check(asked: Overrides, stages: dict[str, list[str]], chosen: Iterable[str]) -> None:
    """Every field that the command line sets is of a Run that is made.

    Args:
        asked: the command line.
        stages: of every arm of the file.
        chosen: the arms that run.

    Raises:
        ConfigError: naming the key, and what was probably meant.
    """
    running = {stage for arm in chosen for stage in stages[arm]}
    for key in asked.run:
        head, _, rest = key.partition(".")
        if head in RUN_FIELDS | running:
            continue
        if head in stages:
            raise ConfigError(f"command line: {key}: {head} is an arm; write arms.{head}.{rest or 'FIELD'}=... for this arm alone")
        if any(head in names for names in stages.values()):
            raise ConfigError(f"command line: {key}: {head} is a stage of none of the arms that run ({', '.join(chosen)})")
        raise unknown(head, [*sorted(RUN_FIELDS), *running], f"command line: {key}")
    for arm in asked.of_arm | asked.arm_resources:
        _check_arm(arm, asked.of_arm.get(arm, {}), stages, chosen)


def check_axes(keys: Iterable[str], axes: dict[str, dict[Any, dict[str, Any]]]) -> None:
    """No two values of an axis become one, and none has a name that is not its value, by what the command line sets.

    Args:
        keys: the fields of all stages of an arm that it sets.
        axes: name -> {label: {field: value}}, fields dotted.

    Raises:
        ConfigError: naming the field, and the axis that sets it too.
    """
    keys = set(keys)
    for axis, values in axes.items():
        left = [{name: value for name, value in fields.items() if not _sets(keys, name)} for fields in values.values()]
        taken = sorted({key for fields in values.values() for name in fields for key in keys if _sets({key}, name)})
        if not taken:
            continue
        if all(fields == {axis: label} for label, fields in values.items()):
            raise ConfigError(f"command line: {taken[0]}: axes.{axis} sets it; write axes.{axis}=... instead")
        if any(fields in left[:i] for i, fields in enumerate(left)):
            names = ", ".join(map(str, values))
            raise ConfigError(
                f"command line: {taken[0]}: axes.{axis} sets it, and {names} would be the same; choose one with axes.{axis}=..."
            )


def _sets(keys: set[str], name: str) -> bool:
    return any(name == key or name.startswith(f"{key}.") for key in keys)


def where_on(fields: dict[str, Any], below: dict[str, Any]) -> dict[str, Any]:
    """Those fields of a stage that apply to it: a field of an objective does where that objective is on, and switches none on.

    Args:
        fields: what the command line says of the stage, by dotted key; `objectives.mae: {}` is what switches one on.
        below: what the sweep file says of it, nested.
    """
    on = {name for name, value in (below.get("objectives") or {}).items() if value is not None}
    on |= {key.partition(".")[2] for key, value in fields.items() if value is not None and is_objective(key)}
    return {key: value for key, value in fields.items() if not is_objective(key, field=True) or key.split(".")[1] in on}


def is_objective(key: str, field: bool = False) -> bool:
    """Is the key that of an objective (`objectives.mae`), or of a field of one (`objectives.mae.weight`)?"""
    return key.startswith("objectives.") and (key.count(".") > 1) == field


def _check_arm(arm: str, fields: dict[str, Any], stages: dict[str, list[str]], chosen: Iterable[str]) -> None:
    if arm not in stages:
        raise unknown(arm, stages, "command line: arms")
    if arm not in chosen:
        raise ConfigError(f"command line: arms.{arm}: this arm does not run; choose it with arms=[{arm}], or drop the field")
    for key in fields:
        head = key.partition(".")[0]
        if head not in RUN_FIELDS and head not in stages[arm]:
            raise unknown(head, [*sorted(RUN_FIELDS), *stages[arm]], f"command line: arms.{arm}")
