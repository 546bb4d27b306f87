"""Reading YAML files and command line values, whoever wrote them, as plain values.

Their size is bounded, and a text is one line.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vitssl.config.base import ConfigError
from vitssl.reader import read_whole
from vitssl.words import is_control

MOST_CHARACTERS = 1_000_000
MOST_VALUES = 100_000  # each alias counts as the values that it stands for
MOST_NESTED = 100
TOO_DEEP = "values are nested too deep"
MOST_BITS = 1_000  # of a whole number
MOST_VARIABLES = 1_000  # ${oc.env:NAME}
PUBLISHED = ("published", "published_cost")  # fields of an arm that map the labels of an axis to numbers
MERGED = "tag:yaml.org,2002:merge"  # <<
BASE_60 = re.compile(r"[-+]?\d[\d_]*(:[0-5]?\d)+(\.[\d_]*)?")  # numbers to the base of 60 in YAML 1.1: 1:30 is 90


def read_yaml(path: str | Path, *, variables: bool = True) -> dict[str, Any]:
    """Return the content of a YAML file, which must be a mapping.

    Args:
        path: the path of the file.
        variables: whether it may hold ${oc.env:NAME}. A run's record may not: it may be somebody else's, and vitssl writes none there.

    Raises:
        ConfigError: there is no such file, or it is not YAML, too large, or not a mapping.
    """
    try:
        text = read_whole(path, 4 * MOST_CHARACTERS).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
        _check_text(text, variables)
        content = OmegaConf.to_container(OmegaConf.load(io.StringIO(text)), resolve=True)
        _check_values(content, ())
        bare, double = _bare_name(text), _set_twice(text)
    except FileNotFoundError:
        raise ConfigError("there is no such file", place=str(path)) from None
    except ConfigError as error:
        raise ConfigError(error.reason, error.field, str(path)) from None
    except yaml.MarkedYAMLError as error:
        line = f": line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"not YAML: {_problem(error, text)}", place=f"{path}{line}") from None
    except UnicodeDecodeError:
        raise ConfigError("it is not UTF-8 text; save it as UTF-8", place=str(path)) from None
    except RecursionError:
        raise ConfigError(TOO_DEEP, place=str(path)) from None
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror})", place=str(path)) from None
    except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:  # a number of 5,000 digits raises ValueError
        raise ConfigError(str(error).split("\n")[0], getattr(error, "full_key", None) or "", str(path)) from None
    if not isinstance(content, dict):
        raise ConfigError(f"{str(content)[:80]} is not a mapping of names; write name: value", place=str(path))
    if bare is not None:
        raise ConfigError(_without_value(bare.value), place=f"{path}: line {bare.start_mark.line + 1}")
    if double is not None:
        field, first, second = double
        where = "it is there twice" if first == second else f"line {first} sets it too"
        raise ConfigError(f"{where}; leave out one", field, f"{path}: line {second}")
    return content


def _problem(error: yaml.MarkedYAMLError, text: str) -> str:
    lines = text.split("\n")
    if error.problem_mark and "\t" in re.match(r"\s*", lines[min(error.problem_mark.line, len(lines) - 1)])[0]:
        return "a line is indented with a tab; write spaces"
    if error.problem == "mapping values are not allowed in this context":
        return "a line before it lacks its `:`, or a value that holds `: ` its quotes"
    return str(error.problem)


def read_value(text: str, field: str, where: str = "") -> Any:
    """Return the value of ``field=text``.

    Raises:
        ConfigError: the text is not YAML, is too large, or has a name in braces without a value.
    """
    try:
        _check_text(text)
        value = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]), resolve=True)["value"]  # type: ignore[index,call-overload]
        _check_values(value, tuple(field.split(".")))
        bare, double = (_bare_name(text), _set_twice(text, field.startswith("axes."))) if isinstance(value, dict | list) else (None, None)
    except ConfigError as error:
        raise ConfigError(error.reason, error.field or field, where) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, yaml.MarkedYAMLError) and (repeated := re.fullmatch(r"found duplicate key (.+)", str(error.problem))):
            raise ConfigError(f"{repeated[1]} is set twice; leave out one", field, where) from None
        hint = ""
        if re.fullmatch(r"[\[{][^\]}]*", text):  # the shell split it at a space, or its end was not typed
            hint = f"; its {']' if text[0] == '[' else '}'} is missing" if " " in text or "," in text.rstrip(",") else ""
            hint += f"; quote it all, as in '{field}=" + ("[0, 1]', or write it without spaces" if text[0] == "[" else "{...}'")
        raise ConfigError(f"{text[:80]!r} is not a YAML value{hint}", field, where) from None
    except OmegaConfBaseException:
        raise ConfigError(
            f"{text[:80]!r} refers to something that does not exist; write variables as ${{oc.env:HOME}}", field, where
        ) from None
    if bare is not None:
        raise ConfigError(_without_value(bare.value), field, where)
    if double is not None:
        raise ConfigError(f"{double[0]} is set twice; leave out one", field, where)
    return value


# ------------------------------------------------------------------------------------------------------------- bounds


def _check_text(text: str, variables: bool = True) -> None:
    """Refuse text that would grow beyond all bounds when it is read, and variables that are not allowed."""
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(f"{len(text):,} characters, more than {MOST_CHARACTERS:,}")
    depth = used = 0
    for event in _events(text):  # the loaders recurse, those in C until the stack overflows
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_NESTED:
            raise ConfigError(TOO_DEEP)
        if isinstance(event, yaml.ScalarEvent) and event.implicit[0] and BASE_60.fullmatch(event.value):
            reason = f"{event.value[:80]} would be a number to the base of 60"
            raise ConfigError(f"{reason}; write a decimal one, or quote it where a text is meant")
        if isinstance(event, yaml.ScalarEvent) and "${" in event.value:  # in the value, as the text may write it as "\x24{"
            _check_variables(event.value, variables)
            used += event.value.count("${")
    if used > MOST_VARIABLES:
        raise ConfigError(f"more than {MOST_VARIABLES:,} variables")
    if re.search(r"(^|[\s\[{,])\*\w", text) and _num_values(yaml.compose(text, yaml.CSafeLoader), {}) > MOST_VALUES:
        raise ConfigError(f"more than {MOST_VALUES:,} values, aliases counted as what they stand for")


def _events(text: str) -> Iterator[yaml.Event]:
    try:
        yield from yaml.parse(text, yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        if "nesting depth" in str(error.problem):  # newer parsers look ahead and have their own limit
            raise ConfigError(TOO_DEEP) from None
        raise


def _check_variables(value: str, allowed: bool) -> None:
    if not allowed:
        raise ConfigError(f"{value[:80]!r} is looked up nowhere, as the folder may be another's; write the value itself")
    if re.search(r"\$\{(?!oc\.env:)", value):  # references to fields could multiply values, and would not follow the command line
        raise ConfigError("only ${oc.env:NAME} is supported; to use a value twice write &name and *name")


def _num_values(node: yaml.Node | None, known: dict[int, int]) -> int:
    """Count the values of a document with its aliases written out; each node is visited once."""
    if id(node) not in known:
        known[id(node)] = MOST_VALUES  # for a node that contains itself
        parts = [] if not isinstance(node, yaml.CollectionNode) else node.value
        known[id(node)] = 1 + sum(_num_values(part, known) for pair in parts for part in (pair if isinstance(pair, tuple) else (pair,)))
    return known[id(node)]


def _check_values(value: Any, path: tuple[str, ...]) -> None:
    """Refuse control characters and whole numbers with thousands of digits.

    A line break in a name or an option would begin a new line of a batch script. Python reads such numbers, but fails to print them or to
    convert them to floats.
    """
    if isinstance(value, dict):
        for key, part in value.items():
            _check_values(key, path) if isinstance(key, int) else _check_line(str(key), path)
            _check_values(part, (*path, str(key)))
    elif isinstance(value, list):
        for part in value:
            _check_values(part, path)
    elif isinstance(value, str):
        _check_line(value, path, but_for="\n\t" if _has_several_lines(path) else "")
    elif isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise ConfigError(f"a whole number of {value.bit_length():,} bits, more than {MOST_BITS:,}", ".".join(path))


def _has_several_lines(path: tuple[str, ...]) -> bool:
    """Whether the field at ``path`` may have several lines: the shell lines of a site, and the notes of a sweep and its arms."""
    return path in (("setup",), ("site", "setup"), ("notes",)) or (
        len(path) == 3 and path[0] == "arms" and path[2] in ("note", "not_runnable")
    )


def _check_line(text: str, path: tuple[str, ...], but_for: str = "") -> None:
    if any(is_control(letter) and letter not in but_for for letter in text):
        raise ConfigError(f"{text[:80]!r} has a line break or another control character; write it in one line without", ".".join(path))


# -------------------------------------------------------------------------------------------------- names without a value


def _bare_name(text: str) -> yaml.ScalarNode | None:
    """Return the first name in braces without a colon and a value, as in ``{knn}``, which YAML reads as ``{knn: null}``, or None."""
    nodes = [yaml.compose(text, yaml.CSafeLoader)] if re.search(r"[{,]\s*[\w.-]+\s*[,}]", text) else []
    seen = set()
    while nodes:
        node = nodes.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            nodes += reversed(node.value)
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                empty = isinstance(value, yaml.ScalarNode) and value.start_mark.index == value.end_mark.index
                if node.flow_style and empty and isinstance(key, yaml.ScalarNode):
                    return key
            nodes += [value for _, value in reversed(node.value)]
    return None


def _set_twice(text: str, labelled: bool = False) -> tuple[str, int, int] | None:
    """Return a field that is set twice, such as by ``optim.lr`` and by ``optim: {lr: ...}``, with both lines; None if there is none.

    Fields that ``<<`` merges in may be set again.

    Args:
        text: the YAML document.
        labelled: whether the document is the values of an axis, by label.
    """
    node = yaml.compose(text, yaml.CSafeLoader) if re.search(r"\w\.[\w-]+[\"']?\s*:", text) else None
    lines: dict[str, int] = {}
    for field, line in _of_labels(node, "") if labelled else _settings(node, ""):
        if field in lines:
            return field, lines[field], line
        lines[field] = line
    for field, line in lines.items():  # a value for a whole part beside one for a field of it
        parent = next((parent for i, letter in enumerate(field) if letter == "." and (parent := field[:i]) in lines), None)
        if parent is not None:
            return parent, *sorted([lines[parent], line])
    return None


def _settings(node: yaml.Node | None, prefix: str) -> Iterator[tuple[str, int]]:
    """Yield the fields that a document sets, with their lines. Labels are left out, as they are no fields and may hold dots."""
    if isinstance(node, yaml.SequenceNode):
        for i, part in enumerate(node.value):
            if isinstance(part, yaml.CollectionNode):
                yield from _settings(part, f"{prefix}[{i}]")
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        field = f"{prefix}.{key.value}" if prefix else str(key.value)
        if key.tag == MERGED or key.value in PUBLISHED:
            continue
        if field == "axes" and isinstance(value, yaml.MappingNode):
            for axis, values in value.value:
                yield from _of_labels(values, f"axes[{axis.value}]")
            continue
        yield from _settings(value, field)
        if not isinstance(value, yaml.MappingNode):
            yield field, key.start_mark.line + 1


def _of_labels(node: yaml.Node | None, prefix: str) -> Iterator[tuple[str, int]]:
    """Yield the fields that each value of an axis sets, with their lines."""
    if isinstance(node, yaml.SequenceNode):
        yield from _settings(node, prefix)
    for label, fields in node.value if isinstance(node, yaml.MappingNode) else ():
        yield from _settings(fields, f"{prefix}[{label.value}]")


def _without_value(name: str) -> str:
    if re.fullmatch(r"\d+", name):
        return f"{name} has no value; write a decimal number with a point, such as 0.{name}, and a list with brackets"
    return f"{name} has no value; write {{{name}: {{}}}} for its defaults, or {{{name}: null}} for off"
