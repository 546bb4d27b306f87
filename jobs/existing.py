"""Which run folders a sweep has already: by the identity of what their `run.yaml` says, whatever hash is in their names."""

from __future__ import annotations

import sys
from pathlib import Path

from vitssl.config import SCHEMA, ConfigError, assign, checkpoints, identity, load
from vitssl.files import hash_file, read_json


def run_folders(sweep: Path) -> dict[str, Path]:
    """{identity: folder}; one that cannot be read is told, and is none of them."""
    found: dict[str, Path] = {}
    for path in sorted(sweep.glob("*/run.yaml")):
        try:
            found.setdefault(identity_of(path.parent), path.parent)
        except ConfigError as error:
            print(f"note: {path.parent.name} is not taken for a run of this sweep: {error}", file=sys.stderr)
    return found


def identity_of(folder: Path) -> str:
    """The identity of the Run in a folder, with its parents' in place of their paths.

    Raises:
        ConfigError: its `run.yaml` cannot be read.
    """
    job = read_json(folder / "job.json")
    if job.get("schema") == SCHEMA:
        return job["identity"]
    run = load(folder)
    for field, value in checkpoints(run).items():
        beside = folder.parent / Path(value).name  # of a sweep's folder that was moved
        assign(run, field, content_of(beside if beside.is_dir() else Path(value)))
    return identity(run)


def content_of(path: Path) -> str:
    """What a checkpoint is, whatever its path."""
    if not path.exists():
        return f"not fetched yet: {path.name}"
    if path.is_dir():
        return f"run:{identity_of(path)}"
    return f"file:{hash_file(path)}"
