"""The files that a source string names (`vitssl.data.sources`), without opening it."""

from __future__ import annotations

from pathlib import Path

from vitssl.data import webdatasets


def parts(source: str) -> tuple[str, str, str]:
    """What comes before, in and after the path of KIND:PATH?OPTIONS, PATH, or torchvision:NAME?root=PATH; all may be empty."""
    kind, colon, rest = source.partition(":")
    if kind == "torchvision":
        before, option, path = source.partition("?root=")
        return before + option, path, ""
    if not colon:
        return ("", "", source) if source == "digits" else ("", source, "")
    path, option, after = rest.partition("?")
    return kind + colon, path, option + after


def anchored(source: str) -> str:
    """The source with its path made absolute: it is relative to the user's folder, and shards are built from the project's."""
    before, path, after = parts(source)
    return f"{before}{Path(path).expanduser().resolve()}{after}" if path else source


def is_here(source: str) -> bool:
    path = parts(source)[1]
    if source.startswith("wds:"):
        return webdatasets.is_here(path)
    return bool(path) and not source.startswith("torchvision:") and Path(path).exists()


def existing(path: str) -> list[Path]:
    """The path, or the nearest folder above it that exists: what a container must see to read it, or to make it."""
    return [next(p for p in (Path(path), *Path(path).parents) if p.exists())] if path else []
