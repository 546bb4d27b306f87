"""YAML-like layers over a dataclass, and the Run of a run folder."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from vitssl.config.backbones import BackboneConfig
from vitssl.config.base import ConfigError, as_it_was
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
            node = OmegaConf.from_dotlist(layer) if isinstance(layer, list) else OmegaConf.create(undotted(layer))
            _refuse_scalars(node, prefix)
            _refuse_containers(base, node, prefix)
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


def _refuse_scalars(node: Any, prefix: str) -> None:
    """`objectives.mae: true` is a natural mistake and OmegaConf's message for it names no field."""
    objectives = OmegaConf.select(node, "objectives", default=None)
    if not OmegaConf.is_dict(objectives):
        return
    for name, value in objectives.items():
        if value is not None and not OmegaConf.is_dict(value):
            raise ConfigError(f"{prefix}objectives.{name}: {value!r} is not a set of fields; write {{}} for its defaults, null for off")


def _refuse_containers(base: Any, node: Any, prefix: str, path: str = "") -> None:
    """A list is no mapping, nor a number a list: OmegaConf raises a TypeError of its own, or speaks of its classes."""
    for name in node if OmegaConf.is_dict(node) else ():
        field, value = f"{path}{name}", OmegaConf.select(node, str(name))
        there = OmegaConf.select(base, str(name)) if name in base else None
        if OmegaConf.is_list(there) and value is not None and not OmegaConf.is_list(value):
            raise ConfigError(f"{prefix}{field}: {value!r} is not a list; write [...]")
        if OmegaConf.is_dict(there) and OmegaConf.is_list(value):
            raise ConfigError(f"{prefix}{field}: {value!r} is not a mapping of names; write {{name: value}}")
        if OmegaConf.is_dict(there):
            _refuse_containers(there, value, prefix, f"{field}.")


def _one_line(error: OmegaConfBaseException) -> str:
    text = re.sub(r"\s+(reference_type|object_type|full_key)[=:].*", "", " ".join(str(error).split()))
    text = re.sub(r"Invalid value assigned: \w+ is not a ListConfig.*", "not a list; write [...]", text)
    key = str(getattr(error, "full_key", None) or "")
    return f"{key}: {text}" if key and not text.startswith(key) else text


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
