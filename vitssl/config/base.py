"""Errors, declarations of fields and checks that the parts of a Run share."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import functools
import math
import shlex
import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from operator import attrgetter
from typing import Any, NamedTuple, TypeGuard, Union, get_args, get_origin, get_type_hints

from vitssl.config.methods import flow
from vitssl.words import has_control, one_line


class ConfigError(ValueError):
    """A mistake that the user can fix. Its text is one line, ``PLACE: FIELD: REASON``.

    Args:
        reason: what is wrong, and what to do.
        field: the dotted path of the field at fault; empty if it is not about a field.
        place: the file and the place in it, or the command line; empty if it is not known yet.
    """

    def __init__(self, reason: str, field: str = "", place: str = "") -> None:
        super().__init__(reason, field, place)
        self.reason, self.field, self.place = reason, field, place

    def __str__(self) -> str:
        text = ": ".join(part for part in (self.place, self.field, self.reason) if part)
        # names from elsewhere may hold control characters; file names that are not UTF-8 stay as they are
        return one_line(text) if has_control(text) else text


class Problem(NamedTuple):
    """A finding of a check: the dotted path of a field, and what is wrong with its value."""

    field: str
    reason: str


def raise_first(problems: Iterable[Problem], place: str = "") -> None:
    """Raise an error for the first of ``problems``, if there is one; later checks do not run.

    Raises:
        ConfigError: about the first problem, at ``place``.
    """
    for problem in problems:
        raise ConfigError(problem.reason, problem.field, place)


def unknown_error(value: Any, known: Iterable[Any], field: str = "", place: str = "", also: Sequence[str] = ()) -> ConfigError:
    """Build the error for a name that is not among the ``known`` ones, with a suggestion of what was meant.

    It suggests the names in ``also`` if there are any, otherwise the nearest of the known names.
    """
    names = [str(k) for k in known]
    before, colon, after = str(value).partition(":")  # without a space, as in {lr:1e-3}, YAML reads one key
    if colon and before in names:
        return ConfigError(f"{value!r} is not known; write a space behind the colon: {before}: {after}", field, place)
    suggestions = list(also) or closest(str(value), names)
    hint = f"did you mean {' or '.join(suggestions)}?" if suggestions else f"there is {', '.join(names) or 'nothing'}"
    return ConfigError(f"{value!r} is not known ({hint})", field, place)


def closest(value: str, names: Sequence[str]) -> list[str]:
    """Return at most one of ``names``: the one that equals ``value`` but for case, looks most like it, or begins with it."""
    if matches := [name for name in names if name.lower() == value.lower()]:
        return matches[:1]
    return difflib.get_close_matches(value, names, n=1) or [name for name in names if len(value) > 1 and name.startswith(value)][:1]


def did_you_mean(names: Sequence[str]) -> str:
    """Return the end of an error message that suggests the first of ``names``; empty if there are none."""
    return f" (did you mean {names[0]}?)" if names else ""


def runtime_field(default: Any) -> Any:
    """Declare a field that does not change the result (paths, workers, logging) and stays out of the Run's identity."""
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata={"identity": False})
    return field(default=default, metadata={"identity": False})


def checkpoint() -> Any:
    """Declare a field that names trained weights: a run folder, a checkpoint file, or (in a sweep) an earlier stage of the arm."""
    return field(default=None, metadata={"checkpoint": True})


def checkpoints(part: Any, prefix: str = "") -> dict[str, str]:
    """Return {dotted path: value} of the fields of a Run, or of a part of one, that name trained weights and are set."""
    paths: dict[str, str] = {}
    for f in dataclasses.fields(part):
        value = getattr(part, f.name)
        if dataclasses.is_dataclass(value):
            paths |= checkpoints(value, f"{prefix}{f.name}.")
        elif f.metadata.get("checkpoint") and value is not None:
            paths[prefix + f.name] = value
    return paths


@functools.cache
def hints_of(kind: type) -> dict[str, Any]:
    """Return {field: type hint} of a dataclass."""
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}


def options_of(hint: Any) -> tuple[Any, ...]:
    """Return the types that a type hint allows; an optional field has two."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def is_part(hint: Any) -> TypeGuard[type[Any]]:
    """Whether a type hint is a dataclass, whose fields are then written below the field that has this hint."""
    return dataclasses.is_dataclass(hint)


def parts_of(kind: type) -> dict[str, type[Any]]:
    """Return {field: dataclass} of the fields whose value is a dataclass, including optional ones."""
    return {name: option for name, hint in hints_of(kind).items() for option in options_of(hint) if is_part(option)}


def element_types_of(kind: type) -> dict[str, type[Any]]:
    """Return {field: dataclass of the elements} of the fields that hold a list of dataclasses."""
    lists = {name: option for name, hint in hints_of(kind).items() for option in options_of(hint) if get_origin(option) is list}
    return {name: inner for name, hint in lists.items() if is_part(inner := get_args(hint)[0])}


def teachers(part: Any) -> dict[str, Any]:
    """Return {dotted path: config} of the networks of a Run's trained teachers.

    The path is that of the field that names the teacher's weights, followed by ``_backbone``.
    """
    networks = {}
    for path in checkpoints(part):
        *parents, last = path.split(".")
        owner = attrgetter(".".join(parents))(part) if parents else part
        if hasattr(owner, f"{last}_backbone"):
            networks[f"{path}_backbone"] = getattr(owner, f"{last}_backbone")
    return networks


def assign(part: Any, path: str, value: Any) -> None:
    """Set the field of ``part`` at a dotted path."""
    *parents, last = path.split(".")
    for name in parents:
        part = getattr(part, name)
    setattr(part, last, value)


def without_checkpoints(part: Any) -> Any:
    """Return a copy of a Run without the names of trained weights, which are paths."""
    bare = copy.deepcopy(part)
    for path in checkpoints(part):
        assign(bare, path, None)
    return bare


def minimum_problems(low: float, part: Any, prefix: str, *names: str) -> Iterator[Problem]:
    """Yield a problem for each of the fields ``names`` of ``part`` that is set and less than ``low``, infinite or not a number."""
    dotted = f"{prefix}." if prefix else ""
    for name in names:
        value = getattr(part, name)
        if value is not None and value < low:
            yield Problem(f"{dotted}{name}", f"{value} is less than {low}")
        elif value is not None and not math.isfinite(value):
            yield Problem(f"{dotted}{name}", f"{value} is not a finite number")


def positive_problems(part: Any, prefix: str, *names: str) -> Iterator[Problem]:
    """Yield a problem for each of the fields ``names`` of ``part`` that is not a positive, finite number."""
    for name in names:
        value = getattr(part, name)
        if not 0 < value < math.inf:
            yield Problem(f"{prefix}.{name}", f"{value} is not positive")


def if_percent(name: str, value: float) -> str:
    """Return the end of an error message: what to type if ``value`` is a percentage; empty if it cannot be one."""
    return f"; {value:g} % is {name}={value / 100:g}" if 2 <= value < 100 and "[" not in name else ""


def interval_problems(interval: str, part: Any, prefix: str, *names: str, share: bool = False) -> Iterator[Problem]:
    """Yield a problem for each of the fields ``names`` of ``part`` that is set and outside an interval.

    Args:
        interval: such as ``[0, 1)``.
        part: the dataclass that has the fields.
        prefix: its dotted path.
        names: the names of the fields.
        share: whether they are fractions, which may have been given in percent. The problem then says what to type instead.
    """
    low, high = map(float, interval[1:-1].split(","))
    for name in names:
        value, field = getattr(part, name), f"{prefix}.{name}"
        if value is None:
            continue
        above = low <= value if interval[0] == "[" else low < value
        below = value <= high if interval[-1] == "]" else value < high
        if not (above and below):
            yield Problem(field, f"{value:.12g} is not in {interval}{if_percent(field, value) if share else ''}")


def rising_problems(name: str, pair: list[float], high: float) -> Iterator[Problem]:
    """Yield a problem if the field ``name`` is not a rising pair of numbers in (0, ``high``]."""
    if len(pair) != 2 or not 0 < pair[0] <= pair[1] <= high:
        yield Problem(name, f"{pair} is not a rising pair of numbers in (0, {high:g}]")


def inactive_problems(part: Any, prefix: str, owners: dict[str, str]) -> Iterator[Problem]:
    """Yield a problem for each field of ``part`` that nothing reads, given the other fields, and that is not at its default.

    Args:
        part: the dataclass that has the fields.
        prefix: its dotted path.
        owners: {field that nothing reads: the setting of another field that it belongs to}.
    """
    dotted, defaults = f"{prefix}." if prefix else "", type(part)()
    changed = [name for name in owners if getattr(part, name) != getattr(defaults, name)]
    unset = shlex.join(f"{dotted}{name}={flow(getattr(defaults, name))}" for name in changed)
    for name in changed:
        value = getattr(part, name)
        shown = "this" if dataclasses.is_dataclass(value) else value
        yield Problem(f"{dotted}{name}", f"{shown} has an effect only with {owners[name]}; leave it out, or unset it: {unset}")
