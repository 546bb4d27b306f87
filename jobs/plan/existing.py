"""The run folders that a sweep already has, by the identity that follows from their `run.yaml`, whatever hash their names hold."""

from __future__ import annotations

from pathlib import Path

from vitssl.config import SCHEMA, ConfigError, assign, checkpoints, identity, load
from vitssl.files import hash_file, read_json
from vitssl.run_folder import is_trained
from vitssl.words import note


def run_folders(sweep: Path) -> dict[str, Path]:
    """{identity: folder}; one that cannot be read is left out, with a note on stderr."""
    folders: dict[str, Path] = {}
    finished_first = sorted(sweep.glob("*/run.yaml"), key=lambda path: (not is_trained(path.parent), path))
    for path in finished_first:
        try:
            folders.setdefault(identity_of(path.parent), path.parent)
        except ConfigError as error:
            note(f"{path.parent.name} is not counted as a run of this sweep: {error}")
    return folders


def identity_of(folder: Path) -> str:
    """The identity of the Run in a folder; its parents count by their identities, not their paths."""
    job = read_json(folder / "job.json")
    if job.get("schema") == SCHEMA and "identity" in job:
        return job["identity"]
    run = load(folder)
    for field, value in checkpoints(run).items():
        beside = folder.parent / Path(value).name  # the sweep's folder may have been moved
        assign(run, field, content_of(beside if beside.is_dir() else Path(value)))
    return identity(run)


def content_of(path: Path) -> str:
    """What identifies a checkpoint, whatever its path."""
    if not path.exists():
        return f"not fetched yet: {path.name}"
    if path.is_dir():
        return f"run:{identity_of(path)}"
    return f"file:{hash_file(path)}"
