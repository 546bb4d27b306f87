"""Merging YAML-like layers into a dataclass, and loading and saving the Run of a run folder."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from omegaconf import BooleanNode, FloatNode, IntegerNode, StringNode, ValidationError

from vitssl.atomic import replacing
from vitssl.config.base import ConfigError, closest, did_you_mean, hints_of, is_part, options_of
from vitssl.config.checks import check
from vitssl.config.documents import dump
from vitssl.config.methods import method
from vitssl.config.reading import read_value, read_yaml
from vitssl.config.run import Run
from vitssl.config.suggestions import VALUES_ALSO_CALLED, unknown_field_error

UNSET = "???"  # OmegaConf's mark for a value that another layer has to give
MISTYPED = 0.9  # similarity of two names above which one is taken for a misspelling of the other
SCALARS = {int: IntegerNode(), float: FloatNode(), bool: BooleanNode(), str: StringNode()}
EXPECTED = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    list: "a list; write [...]",
    dict: "a mapping of names; write {name: value}",
}


def merge(schema: type, *layers: dict[str, Any] | list[str], where: str = "", field: str = "") -> Any:
    """Merge YAML-like layers over a dataclass and return the filled dataclass.

    Args:
        schema: the dataclass, for example ``Run``.
        layers: mappings, nested or with dotted keys, or lists of ``key=value``; later ones win.
        where: the file and the place in it that the layers come from, for an error.
        field: the path of the dataclass in what the user wrote, for an error.

    Raises:
        ConfigError: an unknown key, a wrong type or a missing value; it names the field.
    """
    filled = fill(schema, *(_from_words(layer) if isinstance(layer, list) else layer for layer in layers), where=where, field=field)
    for name, value in dotted(dataclasses.asdict(filled)).items():
        if value == UNSET:
            raise ConfigError("not set; give it a value", f"{field}.{name}" if field else name, where)
    return filled


def fill(schema: type, *layers: Any, where: str = "", field: str = "") -> Any:
    """Merge mappings as ``merge`` does, but leave values that are ``???``, which something else may set."""
    try:
        for layer in layers:  # each alone first, as a mapping over a wrong number would hide the number
            _filled(schema, nested(layer) if isinstance(layer, dict) else layer, field)
        return _filled(schema, nested(*layers), field)
    except ConfigError as error:
        raise ConfigError(error.reason, error.field, where) from None


def _from_words(words: list[str]) -> dict[str, Any]:
    for word in words:
        if "=" not in word:
            raise ConfigError(f"{word!r} is not field=value")
    pairs = (word.partition("=") for word in words)
    return nested(*({key: read_value(text, key)} for key, _, text in pairs))


def nested(*layers: dict[str, Any]) -> dict[str, Any]:
    """Merge layers into one nested mapping; later layers win.

    Dotted keys are expanded at every depth: ``{"loop.epochs": 50}`` is ``{"loop": {"epochs": 50}}``. A mapping is merged into the one
    below it, so that ``{}`` leaves the lower one as it is. Any other value, including null, replaces what is below it.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        _lay(layer, merged)
    return merged


def _lay(layer: dict[str, Any], merged: dict[str, Any]) -> None:
    for key, value in layer.items():
        name, _, rest = str(key).partition(".")
        if rest:
            value = {rest: value}
        if isinstance(value, dict):
            if not isinstance(merged.get(name), dict):
                merged[name] = {}
            _lay(value, merged[name])
        else:
            merged[name] = value


def dotted(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return a nested mapping as {dotted field: value}; the inverse of ``nested``."""
    if not isinstance(value, dict) or (prefix and not value):
        return {prefix: value}
    fields: dict[str, Any] = {}
    for name, part in value.items():
        fields |= dotted(part, f"{prefix}.{name}" if prefix else str(name))
    return fields


def _filled(schema: type, layer: Any, path: str) -> Any:
    hints, dot = hints_of(schema), f"{path}." if path else ""
    if not isinstance(layer, dict):
        names = [f"{dot}{name}" for name in hints]
        advice = "write {} for its defaults, null for off" if layer is True else f"set one of them, such as {' or '.join(names[:2])}"
        raise ConfigError(f"{_shown(layer)} is not a set of fields; {advice}", path)
    for name in layer:
        if name not in hints:
            raise unknown_field_error(str(name), hints, f"{dot}{name}", schema)
    return schema(**{name: _converted(hints[name], value, f"{dot}{name}") for name, value in layer.items()})


def _converted(hint: Any, value: Any, path: str) -> Any:
    """Return the value of a field, converted to its type. Text may stand for a number, and a number for text, as in OmegaConf."""
    options = options_of(hint)
    if hint is Any or value == UNSET or (value is None and type(None) in options):
        return value
    kind, inner = get_origin(options[0]) or options[0], get_args(options[0])
    if is_part(kind):
        return _filled(kind, value, path)
    if kind is list and isinstance(value, list):
        return [_converted(inner[0], _part(inner[0], part), f"{path}[{i}]") for i, part in enumerate(value)]
    if kind is dict and isinstance(value, dict):
        return {name: _converted(inner[1], part, f"{path}.{name}") for name, part in value.items()}
    if kind is Literal and value in inner:
        return value
    if kind in SCALARS and value is not None:
        with contextlib.suppress(ValidationError):
            return SCALARS[kind].validate_and_convert(value)
    if kind is Literal:
        raise ConfigError(f"{_shown(value)} is none of {', '.join(inner)}{_as_axis(value, path) or _meant(value, inner)}", path)
    advice = _as_list(value, path) if kind is list else _as_share(value, path) or _as_axis(value, path)
    raise ConfigError(f"{_shown(value)} is not {EXPECTED[kind]}{advice}", path)


def _as_list(value: Any, path: str) -> str:
    """Return what to write for a list whose brackets were forgotten; empty if ``value`` is no such list."""
    return f": '{path}=[{value}]'" if isinstance(value, str) and "," in value else ""


def _as_share(value: Any, path: str) -> str:
    """Return what to write for a share in percent; empty if ``value`` is not a percentage."""
    number = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", value) if isinstance(value, str) else None
    return f"; write {path}={float(number[1]) / 100:g}" if number else ""


def _as_axis(value: Any, path: str) -> str:
    """Return what to write for several values if a run with each was meant, or for a number with a decimal comma.

    It is empty if ``value`` is neither.
    """
    if isinstance(value, str) and re.fullmatch(r"0,\d+", value):
        return f"; write {path}={value.replace(',', '.')}"
    values = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    fields, (head, *rest) = hints_of(Run), path.split(".")
    is_stage_field = head != "arms" and bool(rest) and rest[0] in fields
    if len(values) < 2 or not (head in fields or is_stage_field):
        return ""
    if len(set(map(str, values))) == 1:  # such as the sides of an image
        return f"; write {path}={values[0]}"
    return f"; write 'axes.{path}=[{','.join(map(str, values))}]' for a run with each"


def _meant(value: Any, options: tuple[str, ...]) -> str:
    """Return the end of an error message that suggests which of ``options`` was meant by ``value``; empty if none is likely."""
    if not isinstance(value, str):
        return ""
    plain = value.lower().replace("-", "_")
    if plain in options:
        return did_you_mean([plain])
    synonym = VALUES_ALSO_CALLED.get(plain)
    if synonym not in options and (paper_method := method(value)) is not None:
        return f"; {paper_method.advice}"
    timm_name = plain.replace("deit", "vit", 1)  # such as vit_tiny_patch16_224; a DeiT without its distillation token is a ViT
    prefixes = [name for name in options if timm_name == name or timm_name.startswith(f"{name}_")]
    similar = [name for name in closest(plain, options) if name[0] == plain[0]]  # convnext_tiny is no misspelling of vit_tiny
    suggestions = [synonym] if synonym in options else prefixes or similar
    mistyped = suggestions and (
        suggestions[0] == synonym or suggestions == prefixes or SequenceMatcher(None, plain, suggestions[0]).ratio() > MISTYPED
    )
    timm = f"; for another network of timm's, write name: timm and timm_model: {value}" if "timm" in options and not mistyped else ""
    return did_you_mean(suggestions) + timm


def _part(hint: Any, value: Any) -> Any:
    """Return an element of a list of parts as a mapping; a bare name is that part with its defaults, as in ``color: [gray]``."""
    return {value: {}} if is_part(hint) and isinstance(value, str) else nested(value) if isinstance(value, dict) else value


def _shown(value: Any) -> str:
    """Return ``value`` for an error message; null, true and false as YAML writes them."""
    return json.dumps(value) if value is None or isinstance(value, bool) else repr(value)


def load(folder: str | Path) -> Run:
    """Return the Run of a run folder (its ``run.yaml``), checked; missing fields have their defaults."""
    path = Path(folder) / "run.yaml"
    if not path.is_file():
        raise ConfigError(f"{path} does not exist: this is not a run folder")
    content = read_yaml(path, variables=False)
    if "init_from" not in content and (path.parent / "job.json").exists():  # every launcher writes init_from, near the end of the file
        raise ConfigError("it is cut short: the fields from init_from on are missing; restore it from a backup", place=str(path))
    run = merge(Run, content, where=str(path))
    check(run, where=str(path), to_train=False)
    return run


def save(run: Run, folder: str | Path) -> None:
    """Write ``run.yaml`` with every default stored explicitly. If writing fails, the former file stays."""
    save_fields(dataclasses.asdict(run), folder)


def save_fields(fields: dict[str, Any], folder: str | Path) -> None:
    """Write ``run.yaml`` as `save` does, from fields that may be those of another version of vitssl."""
    path = Path(folder) / "run.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(dump(fields), encoding="utf-8")
