"""YAML documents: from text to a tree of nodes, from it to plain values, and back to text; what a text may cost is bounded.

OmegaConf reads the same values (``tests/test_reading.py`` compares the two), but wraps each of them in an object of its own, which took
six times as long for a run.yaml, and a report reads one for every run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml
from omegaconf import OmegaConf

from vitssl.config.base import ConfigError

MOST_CHARACTERS = 1_000_000
MOST_VALUES = 10_000  # names too; each alias counts as the values that it stands for
MOST_NESTED = 100
TOO_DEEP = "values are nested too deep"
MOST_VARIABLES = 1_000  # ${oc.env:NAME}
BASE_60 = re.compile(r"[-+]?\d[\d_]*(:[0-5]?\d)+(\.[\d_]*)?")  # numbers to the base of 60 in YAML 1.1: 1:30 is 90
WITH_EXPONENT = re.compile(  # YAML 1.1 takes 1e-3 for text
    r"[-+]?\d+(_\d+)*(\.[\d_]*)?[eE][-+]?\d+$|\.\d+(_\d+)*[eE][-+]\d+$"
)
MAPPING, SEQUENCE = yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, yaml.resolver.BaseResolver.DEFAULT_SEQUENCE_TAG
MERGED = "tag:yaml.org,2002:merge"  # <<
EQUALS_SIGN = "tag:yaml.org,2002:value"  # a text like any other here


class _Loader(yaml.CSafeLoader):
    """YAML 1.1, but for numbers with an exponent, and for dates, which stay text."""


class _Dumper(yaml.CSafeDumper):
    """Puts those texts into quotes that the loader would take for numbers."""


for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver("tag:yaml.org,2002:float", WITH_EXPONENT, list("-+.0123456789"))
_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for letter, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def compose(text: str, variables: bool = True) -> yaml.Node | None:
    """Return the nodes of a document; None if it is empty.

    Args:
        text: the document.
        variables: whether it may hold ${oc.env:NAME}.

    Raises:
        ConfigError: it is too large, nested too deep, or would grow beyond all bounds, or holds variables that are not allowed.
        yaml.YAMLError: it is not YAML.
    """
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(f"{len(text):,} characters, more than {MOST_CHARACTERS:,}")
    depth = used = count = 0
    for event in _events(text):  # the loaders recurse, those in C until the stack overflows
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        count += isinstance(event, yaml.NodeEvent)
        if depth > MOST_NESTED:
            raise ConfigError(TOO_DEEP)
        if count > MOST_VALUES:
            raise ConfigError(f"more than {MOST_VALUES:,} values")
        if isinstance(event, yaml.ScalarEvent):
            _check_base(event)
            if "${" in event.value:  # in the value, as the text may write it as "\x24{"
                _check_variables(event.value, variables)
                used += event.value.count("${")
    if used > MOST_VARIABLES:
        raise ConfigError(f"more than {MOST_VARIABLES:,} variables")
    node = yaml.compose(text, _Loader)
    if _num_values(node, {}) > MOST_VALUES:
        raise ConfigError(f"more than {MOST_VALUES:,} values, aliases counted as what they stand for")
    return node


def values(node: yaml.Node | None) -> Any:
    """Return the plain values of a document's nodes, with variables replaced by what they stand for; what aliases stand for is copied.

    Raises:
        yaml.YAMLError: a value is not what its tag says.
        omegaconf.errors.OmegaConfBaseException: a variable stands for nothing.
    """
    if node is None:
        return None
    loader = _Loader("")
    try:
        content = _value(node, loader)
    finally:
        loader.dispose()
    return OmegaConf.to_container(OmegaConf.create([content]), resolve=True)[0] if _has_variables(content) else content  # type: ignore[index]


def _value(node: yaml.Node, loader: _Loader) -> Any:
    if isinstance(node, yaml.SequenceNode) and node.tag == SEQUENCE:
        return [_value(part, loader) for part in node.value]
    if isinstance(node, yaml.MappingNode) and node.tag == MAPPING:
        return _mapping(node, loader)
    if not isinstance(node, yaml.ScalarNode):
        raise _error(node, f"no field is of the type {node.tag.replace('tag:yaml.org,2002:', '!!')}")
    if node.tag == EQUALS_SIGN:
        return node.value
    try:
        return loader.construct_object(node)
    except (KeyError, IndexError, AttributeError):  # of PyYAML, for a tag such as !!bool before another word
        raise _error(node, f"{node.value[:80]!r} is not what its tag says") from None


def _mapping(node: yaml.MappingNode, loader: _Loader) -> dict[Any, Any]:
    """Return a mapping: first what ``<<`` merges in (where several mappings set a name, the earlier one wins), then what it sets itself."""
    own: dict[Any, Any] = {}
    merged: dict[Any, Any] = {}
    for key, value in node.value:
        if key.tag == MERGED:
            for part in reversed(value.value if isinstance(value, yaml.SequenceNode) else [value]):
                if not isinstance(part, yaml.MappingNode):
                    raise _error(part, "<< merges mappings, and this is none")
                merged |= _value(part, loader)
        elif isinstance(key, yaml.ScalarNode):
            own[_value(key, loader)] = _value(value, loader)
        else:
            raise _error(key, "a name is a text or a number, and this is neither")
    return {key: value for key, value in merged.items() if key not in own} | own


def _error(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def dump(content: dict[str, Any]) -> str:
    """Return a mapping of plain values as a document that is read as the same values."""
    return yaml.dump(content, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False)


def mappings(node: yaml.Node | None) -> Iterator[yaml.MappingNode]:
    """Yield each mapping of a document once, in the order in which they are written."""
    nodes, seen = [node] if node else [], set()
    while nodes:
        node = nodes.pop()
        if id(node) in seen or not isinstance(node, yaml.CollectionNode):
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            yield node
        nodes += reversed([part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value)


def _events(text: str) -> Iterator[yaml.Event]:
    try:
        yield from yaml.parse(text, _Loader)
    except yaml.MarkedYAMLError as error:
        if "nesting depth" in str(error.problem):  # newer parsers look ahead and have their own limit
            raise ConfigError(TOO_DEEP) from None
        raise


def _check_base(scalar: yaml.ScalarEvent) -> None:
    if scalar.implicit[0] and BASE_60.fullmatch(scalar.value):
        reason = f"{scalar.value[:80]} would be a number to the base of 60"
        raise ConfigError(f"{reason}; write a decimal one, or quote it where a text is meant")


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


def _has_variables(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_variables, value.values()))
    return any(map(_has_variables, value)) if isinstance(value, list) else isinstance(value, str) and "${" in value
