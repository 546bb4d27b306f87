"""YAML-like layers over a dataclass, and the Run of a run folder."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from vitssl.config.backbones import BackboneConfig
from vitssl.config.base import ConfigError, as_it_was, types_of
from vitssl.config.identity import backbones_of
from vitssl.config.objectives import active
from vitssl.config.run import Run, check


def merge(schema: type, *layers: Any, where: str = "") -> Any:
    """Merge YAML-like layers over a dataclass and return the filled dataclass.

    Args:
        schema: the dataclass, for example ``Run``.
        layers: dicts (whose keys may be dotted paths), OmegaConf nodes or lists of ``key=value``; later ones win.
        where: the file or the arm that the layers come from, for the error's first words.

    Raises:
        ConfigError: an unknown key, a wrong type or a missing value; one line that names the field.
    """
    prefix = f"{where}: " if where else ""
    base = _schema(schema)
    required: set[str] = set()  # `???` in a layer asks a later one for the value; OmegaConf would keep the default in silence
    try:
        for layer in layers:
            content = undotted(OmegaConf.from_dotlist(layer) if isinstance(layer, list) else layer)
            node = OmegaConf.create(_spelled_out(schema, content, prefix))
            asked = OmegaConf.missing_keys(node)
            required = {key for key in required if OmegaConf.select(node, key) is None} | asked
            base = OmegaConf.merge(base, node)
        if required:
            raise ConfigError(f"{prefix}{min(required)} is not set")
        return OmegaConf.to_object(base)
    except MissingMandatoryValue as error:
        raise ConfigError(f"{prefix}{error.full_key} is not set") from None
    except OmegaConfBaseException as error:
        raise ConfigError(prefix + _one_line(error)) from None


@functools.cache
def _schema(schema: type) -> Any:
    # half of the time that merging takes, and merging leaves it as it is
    return OmegaConf.structured(schema)


def undotted(layer: Any) -> Any:
    """``{"loop.epochs": 50}`` as ``{"loop": {"epochs": 50}}``, at every depth; what is written twice is merged in order."""
    if OmegaConf.is_config(layer):
        layer = OmegaConf.to_container(layer)
    if not isinstance(layer, dict):
        return layer
    merged: dict[str, Any] = {}
    for key, value in layer.items():
        nested = undotted(value)
        for part in reversed(str(key).split(".")):
            nested = {part: nested}
        _update(merged, nested)
    return merged


def dotted(value: Any, prefix: str = "") -> dict[str, Any]:
    """The inverse of ``undotted``: a nested mapping as {dotted field: value}."""
    if not isinstance(value, dict) or (prefix and not value):
        return {prefix: value}
    found: dict[str, Any] = {}
    for name, part in value.items():
        found |= dotted(part, f"{prefix}.{name}" if prefix else str(name))
    return found


def _update(into: dict[str, Any], new: dict[str, Any]) -> None:
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _update(into[key], value)
        else:
            into[key] = value


def _spelled_out(kind: type, layer: Any, prefix: str, path: str = "") -> Any:
    """A layer whose parts and lists are such, with bare names in lists of parts as those parts.

    What OmegaConf would refuse without a word of the place, or in words of its own classes, is refused here.
    """
    if not isinstance(layer, dict):
        return layer
    types, moved, result = types_of(kind), getattr(kind, "NOW_WRITTEN", {}), {}
    for name, value in layer.items():
        field = f"{path}{name}"
        if name in moved:
            raise ConfigError(f"{prefix}{field}: there is no such field any more; write {path}{moved[name]}")
        said = name in types and value not in (None, "???")
        result[name] = _of_type(types[name], value, prefix, field) if said else value
    return result


def _of_type(types: tuple[Any, ...], value: Any, prefix: str, field: str) -> Any:
    """The value of one field, spelled out."""
    kind, origin = types[0], get_origin(types[0])
    if dataclasses.is_dataclass(kind):
        _refuse_scalar(types, value, prefix, field)
        return _spelled_out(kind, value, prefix, f"{field}.")
    if origin is list and not isinstance(value, list):
        raise ConfigError(f"{prefix}{field}: {value!r} is not a list; write [...]")
    if origin is dict and isinstance(value, list):
        raise ConfigError(f"{prefix}{field}: {value!r} is not a mapping of names; write {{name: value}}")
    if origin is list and dataclasses.is_dataclass(part := get_args(kind)[0]):
        return [_element(part, item, prefix, f"{field}[{i}]") for i, item in enumerate(value)]
    return value


def _refuse_scalar(types: tuple[Any, ...], value: Any, prefix: str, field: str) -> None:
    """`objectives.mae: true` and `data.images: 7` are natural mistakes."""
    if not isinstance(value, dict):
        some = " or ".join(f"{field}.{f.name}" for f in dataclasses.fields(types[0])[:2])
        words = "write {} for its defaults, null for off" if type(None) in types else "write {} for its defaults"
        raise ConfigError(f"{prefix}{field}: {value!r} is not a set of fields; {words}, or set some, such as {some}")


def _element(part: type, item: Any, prefix: str, field: str) -> dict[str, Any]:
    """An element of a list of parts. OmegaConf's own errors would not say where it stands."""
    if not isinstance(item, str | dict):
        names = ", ".join(f.name for f in dataclasses.fields(part))
        raise ConfigError(f"{prefix}{field}: {item!r} is not one of {names}; write such a name, or {{name: {{field: value}}}}")
    item = _spelled_out(part, {item: {}} if isinstance(item, str) else undotted(item), prefix, f"{field}.")
    try:
        OmegaConf.merge(_schema(part), item)
    except OmegaConfBaseException as error:
        raise ConfigError(prefix + _one_line(error, f"{field}.")) from None
    return item


def _one_line(error: OmegaConfBaseException, path: str = "") -> str:
    text = re.sub(r"\s+(reference_type|object_type|full_key)[=:].*", "", " ".join(str(error).split()))
    key = str(getattr(error, "full_key", None) or "")
    return f"{path}{key}: {text}" if key and not text.startswith(key) else f"{path}{text}"


def read_yaml(path: str | Path) -> Any:
    """The content of a YAML file.

    Raises:
        ConfigError: there is no such file, or it is not YAML.
    """
    try:
        return OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except (yaml.YAMLError, OmegaConfBaseException, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from None


def load(folder: str | Path) -> Run:
    """The Run of a run folder (its ``run.yaml``), checked; one of an older version as it was trained."""
    path = Path(folder) / "run.yaml"
    if not path.is_file():
        raise ConfigError(f"{path} does not exist: this is not a run folder")
    content = read_yaml(path)
    run = merge(Run, as_it_was(Run, content) if isinstance(content, dict) else content, where=str(path))
    for _, backbone in backbones_of(run):
        for name in backbone.unread_later():
            setattr(backbone, name, getattr(BackboneConfig, name))  # what a family does not read is at its default
    for objective in active(run.objectives).values():
        for f in dataclasses.fields(objective):
            if "before" in f.metadata and f.name in objective.unread():
                setattr(objective, f.name, f.default)
    check(run, where=str(path))
    return run


def save(run: Run, folder: str | Path) -> None:
    """Write ``run.yaml`` with every default stored explicitly."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    OmegaConf.save(OmegaConf.structured(run), Path(folder) / "run.yaml")
