"""The reference that ``vitssl fields`` prints: all fields with type, default and meaning, and the methods of papers."""

from __future__ import annotations

import fnmatch
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence

from vitssl.config import ConfigError, Run, Site
from vitssl.config.base import did_you_mean, element_types_of, parts_of
from vitssl.config.evals import KINDS
from vitssl.config.fields import Field, fields_of
from vitssl.config.methods import METHODS, Method, method
from vitssl.config.suggestions import suggest_fields, suggest_similar_fields
from vitssl.config.sweep import SweepFile
from vitssl.words import first_few

WIDTH = 79
SHORTEST_MENTION, MOST_MENTIONS = 4, 8  # letters of a word that is looked for in meanings too, and fields that are then named


def sections() -> dict[str, list[Field]]:
    """Return {title: fields}, in the order in which somebody who writes a sweep meets them."""
    return {
        "A sweep file": list(fields_of(SweepFile)),
        "A Run: in a sweep's defaults, stages and axes, or on the command line": list(fields_of(Run)),
        "An evaluator: in evals, by any name (here that of its type)": [
            field for name, kind in KINDS.items() for field in fields_of(kind, f"evals.{name}.")
        ],
        "A site profile, without site.; with it on the command line": list(fields_of(Site, "site.")),
    }


def listing(pattern: str = "") -> str:
    """Return the reference in lines of at most 79 characters; fields that several places share are listed only at the first one.

    Args:
        pattern: a part of dotted field names, a pattern of them with * and ?, or a method; if none of these matches, words of the
            fields' meanings. Empty: everything.

    Raises:
        ConfigError: nothing matches; the message says what was probably meant.
    """
    parts = _of_fields(pattern, lambda field: field.name)
    mentions = _mentions(pattern) if parts else []
    if methods := [m for m in METHODS if not pattern or m is method(pattern) or _matches(m.title, pattern)]:
        parts.append("\n".join([_underlined("Methods of papers, and what to type"), *map(_method, methods)]))
    if not (parts := parts or _of_fields(pattern, lambda field: field.meaning)):
        raise _nothing(pattern)
    return "\n\n".join([*parts, *mentions])


def _mentions(pattern: str) -> list[str]:
    """Return a line on the fields that have ``pattern`` as a word of their values or their meaning, and not in their name."""
    if not pattern.isalpha() or len(pattern) < SHORTEST_MENTION:
        return []
    word = re.compile(rf"\b{pattern}\b", re.IGNORECASE)
    fields = [field for fields in sections().values() for field in fields if not _matches(field.name, pattern)]
    names = dict.fromkeys(field.name for field in fields if word.search(f"{field.kind} {field.meaning}"))
    text = f"{pattern} is also a value, or in the meaning, of {first_few(list(names), MOST_MENTIONS)}"
    return ["\n".join(textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False))] if names else []


def _of_fields(pattern: str, text: Callable[[Field], str]) -> list[str]:
    """Return the sections with the fields whose ``text`` matches ``pattern``; names with a word that begins with it come first."""
    parts = []
    for title, fields in sections().items():
        chosen = [field for field in fields if _matches(text(field), pattern)]
        if chosen := sorted(chosen, key=lambda field: _is_inside_word(field.name, pattern)):
            parts.append("\n".join([_underlined(title), *_entries(chosen)]))
    return parts


def _matches(name: str, pattern: str) -> bool:
    """Whether ``name`` contains ``pattern``, or matches it if that has * or ?; case does not matter."""
    name, pattern = name.lower(), pattern.lower()
    return fnmatch.fnmatchcase(name, pattern) if "*" in pattern or "?" in pattern else pattern in name


def _is_inside_word(name: str, pattern: str) -> bool:
    """Whether ``pattern`` begins no word of ``name``: true for lr in simclr, but not in lr_rule."""
    return not re.search(rf"(?:^|[._]){re.escape(pattern)}", name, re.IGNORECASE)


def _entries(fields: Sequence[Field]) -> Iterator[str]:
    """Yield the entries of fields, each of them once; a part whose fields are listed elsewhere refers to that place."""
    listed: set[tuple[type, str]] = set()
    first_place: dict[type, str] = {}  # the first field that has a part of this type
    for field in fields:
        if (field.owner, field.own_name) in listed:
            continue
        listed.add((field.owner, field.own_name))
        part = (parts_of(field.owner) | element_types_of(field.owner)).get(field.own_name)
        shared = first_place.setdefault(part, field.name) if part else field.name
        yield _entry(field, "" if shared == field.name else f"; its fields are those of {shared}")


def _entry(field: Field, more: str) -> str:
    default = "" if field.default is None else f", default {field.default}"
    head = textwrap.wrap(f"{field.name}: {field.kind}{default}", WIDTH, subsequent_indent="        ", break_long_words=False)
    return "\n".join([*head, *_indented(f"{field.meaning.removesuffix('.')}{more}")])


def _method(m: Method) -> str:
    note = [f"({m.note})"] if m.note else []
    return "\n".join([m.title, *_indented(m.words), *_indented(" ".join([*note, f"whole in sweeps/{m.sweep}.yaml"]))])


def _indented(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def _underlined(title: str) -> str:
    return f"{title}\n{'-' * len(title)}"


def _nothing(pattern: str) -> ConfigError:
    """Return the error for a pattern that matches nothing, with what was probably meant."""
    words = sorted({word for fields in sections().values() for field in fields for word in field.own_name.split("_")})
    near = suggest_fields(pattern) or suggest_similar_fields(pattern, [*words, *(m.title.lower() for m in METHODS)])
    return ConfigError(f"no field matches {pattern!r}{did_you_mean(near) or '; vitssl fields lists all'}")
