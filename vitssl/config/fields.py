"""Every field that users may write: its dotted name, type, default and meaning, read from the dataclasses and their source.

The meaning of a field is the comment right above it, followed by the comment beside it. Without a comment, it is the comment in the
base class that declares the field too, or else the first paragraph of the docstring of the dataclass that the field holds.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import io
import json
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from vitssl.config.base import element_types_of, hints_of, is_part, options_of, parts_of

DIRECTIVES = ("fmt:", "noqa", "type:")  # comments for tools
WORDS = {int: "whole number", float: "number", bool: "true | false", str: "text", type(None): "null", Any: "any value"}
PLURALS = {int: "whole numbers", float: "numbers", str: "texts"}


@dataclass(frozen=True)
class Field:
    """A field, at one of the places where it may be written."""

    name: str  # dotted
    owner: type  # the dataclass that has it

    @property
    def own_name(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def declared(self) -> dataclasses.Field[Any]:
        """What the dataclass declares."""
        return next(f for f in dataclasses.fields(self.owner) if f.name == self.own_name)

    @property
    def kind(self) -> str:
        """The type in words."""
        return " | ".join(dict.fromkeys(_in_words(option) for option in options_of(hints_of(self.owner)[self.own_name])))

    @property
    def default(self) -> str | None:
        """The default as YAML writes it; None if the field must be set, or is a set of fields with defaults of their own."""
        f = self.declared
        value = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        if dataclasses.is_dataclass(value) or value == "???":
            return None
        return value if isinstance(value, str) and value else json.dumps(value)

    @property
    def meaning(self) -> str:
        """What the field means, in a sentence or more; empty if the source says nothing."""
        for kind in self.owner.__mro__:
            if dataclasses.is_dataclass(kind) and (text := _comments(kind).get(self.own_name)):
                return text
        part = parts_of(self.owner).get(self.own_name)
        return _summary(part) if part else ""


def fields_of(kind: type, prefix: str = "") -> Iterator[Field]:
    """Yield the fields of a dataclass, each followed by the fields that it holds.

    The fields of a list's elements are called ``name[].field``, and those of a mapping's values ``name.NAME.field``.
    """
    hints, parts, elements = hints_of(kind), parts_of(kind), element_types_of(kind)
    for name in hints:
        path = f"{prefix}{name}"
        yield Field(path, kind)
        if name in parts:
            yield from fields_of(parts[name], f"{path}.")
        elif name in elements:
            yield from fields_of(elements[name], f"{path}[].")
        elif (value := _of_mapping(hints[name])) is not None:
            yield from fields_of(value, f"{path}.{name.removesuffix('s').upper()}.")


@functools.cache
def checkpoint_fields(kind: type) -> frozenset[str]:
    """Return the dotted paths of all fields of a Run that may name trained weights."""
    return frozenset(f.name for f in fields_of(kind) if f.declared.metadata.get("checkpoint"))


def _of_mapping(hint: Any) -> type[Any] | None:
    """Return the dataclass of the values of a mapping; None if ``hint`` is not a mapping to dataclasses."""
    values = get_args(hint)[1:] if get_origin(hint) is dict else ()
    return next((value for value in values if is_part(value)), None)


def _in_words(hint: Any) -> str:
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind is Literal:
        return " | ".join(inner)
    if kind is list:
        return f"list of {PLURALS.get(inner[0]) or (_in_words(inner[0]) if get_origin(inner[0]) is Literal else 'sets of fields')}"
    if kind is dict:
        return "mapping of names"
    return "set of fields" if is_part(kind) else WORDS[kind]


# -------------------------------------------------------------------------------------------------------------- source


def _summary(kind: type) -> str:
    """Return the first paragraph of a class's docstring, without the backticks around code."""
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    return " ".join((ast.get_docstring(tree) or "").split("\n\n")[0].split()).replace("``", "")


@functools.cache
def _comments(kind: type) -> dict[str, str]:
    """Return {field: comment} of the fields that a dataclass itself declares; empty comments for fields without one."""
    source = inspect.getsource(kind)
    lines = source.splitlines()
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    comments = {line: text for line, text in comments.items() if not text.startswith(DIRECTIVES)}
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    meanings: dict[str, str] = {}
    for statement in tree.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            assert statement.end_lineno is not None
            first = statement.lineno
            while first - 1 in comments and lines[first - 2].lstrip().startswith("#"):
                first -= 1
            texts = (comments[line] for line in range(first, statement.end_lineno + 1) if line in comments)
            meanings[statement.target.id] = " ".join(texts)
    return meanings
