"""What the parts of a Run share."""

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
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from vitssl.config.methods import flow
from vitssl.words import has_control, one_line


class ConfigError(ValueError):
    """A mistake that the user can fix: its text is one line, ``PLACE: FIELD: REASON``.

    Args:
        reason: what is wrong, and what to do.
        field: the dotted path of the field at fault; empty where it is none.
        place: the file and the place in it, or the command line; empty where it is not known yet.
    """

    def __init__(self, reason: str, field: str = "", place: str = "") -> None:
        super().__init__(reason, field, place)
        self.reason, self.field, self.place = reason, field, place

    def __str__(self) -> str:
        text = ": ".join(part for part in (self.place, self.field, self.reason) if part)
        return one_line(text) if has_control(text) else text  # names from elsewhere; those of files that are not UTF-8 stay as they are


class Problem(NamedTuple):
    """What a check finds: the dotted path of a field, and what is wrong with its value."""

    field: str
    reason: str


def raise_first(problems: Iterable[Problem], place: str = "") -> None:
    """Refuse what a check found.

    Raises:
        ConfigError: the first problem, if there is one.
    """
    for problem in problems:
        raise ConfigError(problem.reason, problem.field, place)


def unknown(value: Any, known: Iterable[Any], field: str = "", place: str = "", also: Sequence[str] = ()) -> ConfigError:
    """The error for a name that is not there, with what was meant: ``also`` where that is known, else the nearest one that is there."""
    names = [str(k) for k in known]
    before, colon, after = str(value).partition(":")  # as in {lr:1e-3}, which YAML takes for one key
    if colon and before in names:
        return ConfigError(f"{value!r} is not known; write a space behind the colon: {before}: {after}", field, place)
    near = list(also) or closest(str(value), names)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there is {', '.join(names) or 'nothing'}"
    return ConfigError(f"{value!r} is not known ({hint})", field, place)


def closest(value: str, names: Sequence[str]) -> list[str]:
    """The name that is a value but for its case, looks most like it, or begins with it; empty where none does."""
    if same := [name for name in names if name.lower() == value.lower()]:
        return same[:1]
    return difflib.get_close_matches(value, names, n=1) or [name for name in names if len(value) > 1 and name.startswith(value)][:1]


def did_you_mean(names: Sequence[str]) -> str:
    """For the end of a sentence: the first of the names that were probably meant; empty where there is none."""
    return f" (did you mean {names[0]}?)" if names else ""


def runtime_field(default: Any) -> Any:
    """A field that is not to change the result (paths, workers, logging): it stays out of the Run's identity."""
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata={"identity": False})
    return field(default=default, metadata={"identity": False})


def checkpoint() -> Any:
    """A field that names trained weights: a run folder, a checkpoint file, or (in a sweep) an earlier stage of the arm."""
    return field(default=None, metadata={"checkpoint": True})


def checkpoints(part: Any, prefix: str = "") -> dict[str, str]:
    """{dotted path: value} of the fields of a Run (or of a part of one) that name trained weights and are set."""
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
    """{field: type hint} of a dataclass."""
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}


def options_of(hint: Any) -> tuple[Any, ...]:
    """The types that a type hint allows: two for an optional one."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def parts_of(kind: type) -> dict[str, type]:
    """{field: dataclass} of the fields whose value is a dataclass, optional ones too."""
    return {name: option for name, hint in hints_of(kind).items() for option in options_of(hint) if dataclasses.is_dataclass(option)}


def element_types_of(kind: type) -> dict[str, type]:
    """{field: dataclass} of the fields that hold a list of parts."""
    lists = {name: option for name, hint in hints_of(kind).items() for option in options_of(hint) if get_origin(option) is list}
    return {name: inner for name, hint in lists.items() if dataclasses.is_dataclass(inner := get_args(hint)[0])}


def teachers(part: Any) -> dict[str, Any]:
    """{dotted path: description} of the networks of a Run's trained teachers: a checkpoint field's name and ``_backbone``."""
    described = {}
    for path in checkpoints(part):
        *parents, last = path.split(".")
        owner = attrgetter(".".join(parents))(part) if parents else part
        if hasattr(owner, f"{last}_backbone"):
            described[f"{path}_backbone"] = getattr(owner, f"{last}_backbone")
    return described


def assign(part: Any, path: str, value: Any) -> None:
    """Set the field at a dotted path."""
    *parents, last = path.split(".")
    for name in parents:
        part = getattr(part, name)
    setattr(part, last, value)


def unstarted(part: Any) -> Any:
    """A copy of a Run without the names of trained weights, which are paths."""
    bare = copy.deepcopy(part)
    for path in checkpoints(part):
        assign(bare, path, None)
    return bare


def less_than(low: float, part: Any, prefix: str, *names: str) -> Iterator[Problem]:
    """The problems of those fields of ``part`` that are set and less than ``low``, infinite or not a number."""
    dotted = f"{prefix}." if prefix else ""
    for name in names:
        value = getattr(part, name)
        if value is not None and value < low:
            yield Problem(f"{dotted}{name}", f"{value} is less than {low}")
        elif value is not None and not math.isfinite(value):
            yield Problem(f"{dotted}{name}", f"{value} is not a finite number")


def not_positive(part: Any, prefix: str, *names: str) -> Iterator[Problem]:
    """The problems of those fields of ``part`` that are not above 0 (not a number is not), or infinite."""
    for name in names:
        value = getattr(part, name)
        if not 0 < value < math.inf:
            yield Problem(f"{prefix}.{name}", f"{value} is not positive")


def if_percent(name: str, value: float) -> str:
    """What to type for a share of one that was given in percent; the end of an error's sentence."""
    return f"; {value:g} % is {name}={value / 100:g}" if 2 <= value < 100 and "[" not in name else ""


def outside(interval: str, part: Any, prefix: str, *names: str, share: bool = False) -> Iterator[Problem]:
    """The problems of those fields of ``part`` that are set and not in an interval, such as ``[0, 1)``; of shares of one, which may have
    been given in percent, with what to type then."""
    low, high = map(float, interval[1:-1].split(","))
    for name in names:
        value, field = getattr(part, name), f"{prefix}.{name}"
        if value is None:
            continue
        above = low <= value if interval[0] == "[" else low < value
        below = value <= high if interval[-1] == "]" else value < high
        if not (above and below):
            yield Problem(field, f"{value:.12g} is not in {interval}{if_percent(field, value) if share else ''}")


def not_rising(name: str, pair: list[float], high: float) -> Iterator[Problem]:
    """The problem of a field that is not a range in (0, high]."""
    if len(pair) != 2 or not 0 < pair[0] <= pair[1] <= high:
        yield Problem(name, f"{pair} is not a rising pair of numbers in (0, {high:g}]")


def inactive_problems(part: Any, prefix: str, owners: dict[str, str]) -> Iterator[Problem]:
    """The problems of those fields of ``part`` that nothing reads, given its other fields, and that are set to other than their default.

    ``owners`` names them, each with the value of another field that it belongs to.
    """
    dotted, defaults = f"{prefix}." if prefix else "", type(part)()
    changed = [name for name in owners if getattr(part, name) != getattr(defaults, name)]
    unset = shlex.join(f"{dotted}{name}={flow(getattr(defaults, name))}" for name in changed)
    for name in changed:
        value = getattr(part, name)
        shown = "this" if dataclasses.is_dataclass(value) else value
        yield Problem(f"{dotted}{name}", f"{shown} has an effect only with {owners[name]}; leave it out, or unset it: {unset}")
