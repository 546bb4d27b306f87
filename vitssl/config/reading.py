"""Reading YAML files and command line values, whoever wrote them, as plain values.

Their size is bounded, and a text is one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from omegaconf.errors import OmegaConfBaseException

from vitssl.config.base import ConfigError
from vitssl.config.documents import MERGED, MOST_CHARACTERS, TOO_DEEP, compose, mappings, values
from vitssl.reader import read_whole
from vitssl.words import is_control

MOST_BITS = 1_000  # of a whole number
PUBLISHED = ("published", "published_cost")  # fields of an arm that map the labels of an axis to numbers
MOST_LETTERS = 1_000  # of a field's dotted name


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
        node = compose(text, variables)
        bare, double = _bare_name(text, node), _set_twice(node)
        content = values(node)
        content = {} if content is None else content
        _check_values(content, ())
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
        field = (getattr(error, "full_key", None) or "").removeprefix("[0]").removeprefix(".")
        raise ConfigError(str(error).split("\n")[0], field, str(path)) from None
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
    if error.problem_mark:
        line = lines[min(error.problem_mark.line, len(lines) - 1)]
        if "\t" in line.removesuffix(line.lstrip()):
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
        node = compose(text)
        bare, double = _bare_name(text, node), _set_twice(node, field.startswith("axes."))
        value = values(node)
        _check_values(value, tuple(field.split(".")))
    except ConfigError as error:
        raise ConfigError(error.reason, error.field or field, where) from None
    except (yaml.YAMLError, ValueError, RecursionError):
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


def _check_values(value: Any, path: tuple[str, ...]) -> None:
    """Refuse control characters, whole numbers with thousands of digits, and types that no field has.

    A line break in a name or an option would begin a new line of a batch script. Python reads such numbers, but fails to print them or to
    convert them to floats. YAML's tags make the types, such as ``!!set`` and ``!!binary``.
    """
    if isinstance(value, dict):
        for key, part in value.items():
            _check_line(key, path) if isinstance(key, str) else _check_number(key, path)
            _check_values(part, (*path, str(key)))
    elif isinstance(value, list):
        for part in value:
            _check_values(part, path)
    elif isinstance(value, str):
        _check_line(value, path, but_for="\n\t" if _has_several_lines(path) else "")
    elif value is not None:
        _check_number(value, path)


def _check_number(value: Any, path: tuple[str, ...]) -> None:
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise ConfigError(f"a whole number of {value.bit_length():,} bits, more than {MOST_BITS:,}", ".".join(path))
    if not isinstance(value, int | float):
        raise ConfigError(f"{str(value)[:80]!r} is neither text nor a number; quote it where a text is meant", ".".join(path))


def _has_several_lines(path: tuple[str, ...]) -> bool:
    """Whether the field at ``path`` may have several lines: the shell lines of a site, and the notes of a sweep and its arms."""
    return path in (("setup",), ("site", "setup"), ("notes",)) or (
        len(path) == 3 and path[0] == "arms" and path[2] in ("note", "not_runnable")
    )


def _check_line(text: str, path: tuple[str, ...], but_for: str = "") -> None:
    if not text.isprintable() and any(is_control(letter) and letter not in but_for for letter in text):
        raise ConfigError(f"{text[:80]!r} has a line break or another control character; write it in one line without", ".".join(path))


# -------------------------------------------------------------------------------------------------- names without a value


def _bare_name(text: str, document: yaml.Node | None) -> yaml.ScalarNode | None:
    """Return the first name in braces without a colon and a value, as in ``{knn}``, which YAML reads as ``{knn: null}``, or None.

    Args:
        text: the YAML document.
        document: its nodes.
    """
    for node in mappings(document):
        for key, value in node.value if node.flow_style else ():
            is_empty = isinstance(value, yaml.ScalarNode) and value.start_mark.index == value.end_mark.index
            with_colon = ":" in text[key.end_mark.index : value.start_mark.index]
            if is_empty and not with_colon and isinstance(key, yaml.ScalarNode) and re.fullmatch(r"[\w.-]+", key.value):  # not lr:1e-3
                return key
    return None


def _set_twice(document: yaml.Node | None, labelled: bool = False) -> tuple[str, int, int] | None:
    """Return a field that is set twice, such as by ``optim.lr`` and by ``optim: {lr: ...}``, with both lines; None if there is none.

    Fields that ``<<`` merges in may be set again.

    Args:
        document: the nodes of the YAML document.
        labelled: whether the document is the values of an axis, by label.
    """
    lines: dict[str, int] = {}
    for field, line in _of_labels(document, "") if labelled else _settings(document, None):
        if len(field) > MOST_LETTERS:
            raise ConfigError(f"the name {field[:80]}... has more than {MOST_LETTERS:,} letters")
        if field in lines:
            return field, lines[field], line
        lines[field] = line
    for field, line in lines.items():  # a value for a whole part beside one for a field of it
        parent = next((parent for i, letter in enumerate(field) if letter == "." and (parent := field[:i]) in lines), None)
        if parent is not None:
            first, second = sorted([lines[parent], line])
            return parent, first, second
    return _key_twice(document)


def _key_twice(document: yaml.Node | None) -> tuple[str, int, int] | None:
    """Return a name or a label that a mapping has twice, with both lines; None if there is none."""
    for node in mappings(document):
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            line, identity = key.start_mark.line + 1, (key.tag, str(key.value))
            if identity in lines and key.tag != MERGED:
                return key.value, lines[identity], line
            lines[identity] = line
    return None


def _settings(node: yaml.Node | None, prefix: str | None) -> Iterator[tuple[str, int]]:
    """Yield the fields that a document sets, with their lines. Labels are left out, as they are no fields and may hold dots."""
    if isinstance(node, yaml.SequenceNode):
        for i, part in enumerate(node.value):
            if isinstance(part, yaml.CollectionNode):
                yield from _settings(part, f"{prefix or ''}[{i}]")
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        field = str(key.value) if prefix is None else f"{prefix}.{key.value}"
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
