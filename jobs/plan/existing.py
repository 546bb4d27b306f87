"""The run folders that a sweep already has, by the identity that follows from their `run.yaml`, whatever hash their names hold."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitssl.config import SCHEMA, ConfigError, Run, assign, checkpoints, dotted, identifying, identity, load
from vitssl.config.methods import flow
from vitssl.files import hash_file, read_json
from vitssl.run_folder import is_trained
from vitssl.version import ROOT, differing, snapshot_of
from vitssl.words import counted, few, note

if TYPE_CHECKING:
    from jobs.plan.graph import Job


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


# ---------------------------------------------------------------------------------------------------------- superseded


def superseded(jobs: Sequence[Job], sweep: Path) -> str | None:
    """What to say where runs of an earlier submission are trained, and others of their arms, stages and axes are now to be."""
    places = {_place(job.arm, job.stage, job.axes): job for job in jobs}
    kept = {job.folder for job in jobs}
    left, changed = 0, dict[tuple[str, str], list[str]]()
    for folder in sorted(path.parent for path in sweep.glob("*/job.json") if path.parent not in kept and is_trained(path.parent)):
        with suppress(ConfigError):  # damaged, and not needed
            record = read_json(folder / "job.json")
            job = places.get(_place(record.get("arm"), record.get("stage"), record.get("axes")))
            if job is not None and not job.is_trained:
                if (job.arm, job.stage) not in changed:  # a run.yaml takes long to read
                    changed[job.arm, job.stage] = _changed(load(folder), job.run)
                left += 1
    fields = list(dict.fromkeys(line for lines in changed.values() for line in lines))
    if not left:
        return None
    what = f"{counted(left, 'trained run')} of {sweep.name} {'differs' if left == 1 else 'differ'} from these"
    return f"{what}{f' in {few(fields)}' if fields else ''}: kept, but not in the report"


def trained_otherwise(jobs: Sequence[Job], sweep: Path) -> str | None:
    """What to say where runs of this sweep are trained, and by other code than there is now: their identities are of fields alone."""
    runs: dict[Path, list[str]] = {}
    for job in (job for job in jobs if job.is_trained):
        with suppress(ConfigError):  # damaged
            if (source := snapshot_of(job.results, read_json(job.results / "job.json"))) is not None:
                runs.setdefault(source, []).append(job.folder.name)
    changed = {source: files for source in runs if (files := differing([source, ROOT]))}
    if not changed:
        return None
    files = few(sorted({file for files in changed.values() for file in files}))
    names = few([name for source in changed for name in runs[source]])
    return f"{sweep.name}: other code trained {names} ({files} changed since): kept; delete those folders to train them anew"


def _place(arm: str | None, stage: str | None, axes: dict | None) -> str:
    return json.dumps([arm, stage, axes], sort_keys=True)


def _changed(before: Run, now: Run) -> list[str]:
    """The fields that tell two Runs apart, but for what they start from, each with its values."""
    first, second = (dotted(identifying(run)) for run in (before, now))
    names = {name for name in first.keys() | second.keys() if first.get(name) != second.get(name)} - checkpoints(now).keys()
    if before.data.sha256 is None or now.data.sha256 is None:  # not built yet
        names.discard("data.sha256")
    parts = {name for name in names if any(other.startswith(f"{name}.") for other in names)}
    values = [dotted(dataclasses.asdict(run)) for run in (before, now)]
    shown = {name: [_shown(of, name) for of in values] for name in sorted(names - parts)}
    return ["the images" if name == "data.sha256" else f"{name} ({old}, now {new})" for name, (old, new) in shown.items()]


def _shown(values: dict[str, Any], name: str) -> str:
    """A field's value; of a part, whether it is there."""
    return "on" if any(other.startswith(f"{name}.") for other in values) else flow(values.get(name))
