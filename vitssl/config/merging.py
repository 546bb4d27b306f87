"""YAML-like layers over a dataclass, and the Run of a run folder."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from omegaconf import BooleanNode, FloatNode, IntegerNode, OmegaConf, StringNode, ValidationError

from vitssl.atomic import replacing
from vitssl.config.base import ConfigError, closest, did_you_mean, hints_of, options_of
from vitssl.config.checks import check
from vitssl.config.methods import method
from vitssl.config.reading import read_value, read_yaml
from vitssl.config.run import Run
from vitssl.config.suggestions import VALUES_ALSO_CALLED, not_a_field

UNSET = "???"  # OmegaConf's mark for a value that another layer has to give
MISTYPED = 0.9  # as alike as a name is with a slip in it
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
    """As ``merge`` of mappings, and leaves what is ``???``: something else may give it a value."""
    try:
        for layer in layers:  # alone, as a mapping over a number would hide it
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
    """Layers as one nested mapping, later ones over earlier ones; ``{"loop.epochs": 50}`` is ``{"loop": {"epochs": 50}}``, at every depth.

    A mapping is merged into the one below it, so that ``{}`` leaves that as it is; another value, null too, takes the place of both.
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
    """The inverse of ``nested``: a nested mapping as {dotted field: value}."""
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
            raise not_a_field(str(name), hints, f"{dot}{name}", schema)
    return schema(**{name: _converted(hints[name], value, f"{dot}{name}") for name, value in layer.items()})


def _converted(hint: Any, value: Any, path: str) -> Any:
    """The value of a field as its type; words are taken for numbers, and numbers for words, as OmegaConf does."""
    options = options_of(hint)
    if hint is Any or value == UNSET or (value is None and type(None) in options):
        return value
    kind, inner = get_origin(options[0]) or options[0], get_args(options[0])
    if dataclasses.is_dataclass(kind):
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
    """What to write for a list whose brackets were forgotten."""
    return f": '{path}=[{value}]'" if isinstance(value, str) and "," in value else ""


def _as_share(value: Any, path: str) -> str:
    """What to write for a share in percent."""
    number = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", value) if isinstance(value, str) else None
    return f"; write {path}={float(number[1]) / 100:g}" if number else ""


def _as_axis(value: Any, path: str) -> str:
    """What to write for several values, of each of which a run was meant; a number may have the comma of other languages."""
    if isinstance(value, str) and re.fullmatch(r"0,\d+", value):
        return f"; write {path}={value.replace(',', '.')}"
    values = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    fields, (head, *rest) = hints_of(Run), path.split(".")
    of_a_stage = head != "arms" and bool(rest) and rest[0] in fields
    if len(values) < 2 or not (head in fields or of_a_stage):
        return ""
    if len(set(map(str, values))) == 1:  # as sides of an image
        return f"; write {path}={values[0]}"
    return f"; write 'axes.{path}=[{','.join(map(str, values))}]' for a run with each"


def _meant(value: Any, options: tuple[str, ...]) -> str:
    if not isinstance(value, str):
        return ""
    plain = value.lower().replace("-", "_")
    if plain in options:
        return did_you_mean([plain])
    other = VALUES_ALSO_CALLED.get(plain)
    if other not in options and (of_paper := method(value)) is not None:
        return f"; {of_paper.advice}"
    timms = plain.replace("deit", "vit", 1)  # vit_tiny_patch16_224; a DeiT without its token is a ViT
    begun = [name for name in options if timms == name or timms.startswith(f"{name}_")]
    alike = [name for name in closest(plain, options) if name[0] == plain[0]]  # convnext_tiny is no slip for vit_tiny
    near = [other] if other in options else begun or alike
    mistyped = near and (near[0] == other or near == begun or SequenceMatcher(None, plain, near[0]).ratio() > MISTYPED)
    timm = f"; for another network of timm's, write name: timm and timm_model: {value}" if "timm" in options and not mistyped else ""
    return did_you_mean(near) + timm


def _part(hint: Any, value: Any) -> Any:
    """An element of a list of parts: a bare name is that part with its defaults, as in ``color: [gray]``."""
    return {value: {}} if dataclasses.is_dataclass(hint) and isinstance(value, str) else nested(value) if isinstance(value, dict) else value


def _shown(value: Any) -> str:
    """As YAML has it."""
    return json.dumps(value) if value is None or isinstance(value, bool) else repr(value)


def load(folder: str | Path) -> Run:
    """The Run of a run folder (its ``run.yaml``), checked; a field that it lacks has its default."""
    path = Path(folder) / "run.yaml"
    if not path.is_file():
        raise ConfigError(f"{path} does not exist: this is not a run folder")
    content = read_yaml(path, variables=False)
    if "init_from" not in content and (path.parent / "job.json").exists():  # every launcher has written it, at the end
        raise ConfigError("it is cut short: the fields from init_from on are missing; restore it from a backup", place=str(path))
    run = merge(Run, content, where=str(path))
    check(run, where=str(path), to_train=False)
    return run


def save(run: Run, folder: str | Path) -> None:
    """Write ``run.yaml`` with every default stored explicitly: whole, or the former one stays."""
    save_fields(dataclasses.asdict(run), folder)


def save_fields(fields: dict[str, Any], folder: str | Path) -> None:
    """As `save`, of the fields that another version of vitssl knows."""
    path = Path(folder) / "run.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        OmegaConf.save(OmegaConf.create(fields), temporary)  # in a third of the time of OmegaConf.structured
