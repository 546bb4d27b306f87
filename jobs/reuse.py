"""Runs of a sweep that others in the same folder of runs have trained already, taken from there instead of trained again (`--reuse`)."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from jobs import cluster
from jobs.graph import Job, only_evaluated
from vitssl.config import SCHEMA, ConfigError, assign, checkpoints, load, save
from vitssl.files import read_json, write_json
from vitssl.words import counted, listed

BEGUN = ("metrics.jsonl", "done.json")  # either is there from when a run has begun
LAST = ("job.json", "done.json")  # what says that a run is done is written when all else is there
STAYS = (*LAST, "run.yaml", "error.json", "cancelled", "local.json", ".lock", cluster.JOB_FILE)  # of the attempts there, or written anew


def find(jobs: Sequence[Job], sweep: Path) -> dict[str, Path]:
    """{identity: folder in another sweep} of the jobs that have not begun in this one; the folders' names end in their identity."""
    missing = {job.identity for job in jobs if not any((job.folder / name).exists() for name in BEGUN)}
    named: dict[str, list[Path]] = defaultdict(list)
    for other in sorted(record.parent for record in sweep.parent.glob("*/sweep.json") if record.parent != sweep):
        for folder in other.iterdir():
            named[folder.name.rpartition("-")[2]].append(folder)
    found = {identity: next(filter(lambda folder: _has(folder, identity), named[identity]), None) for identity in missing & named.keys()}
    return {identity: folder for identity, folder in found.items() if folder is not None}


def _has(folder: Path, identity: str) -> bool:
    """Is it a run of that identity, whole and done?"""
    if not all((folder / name).exists() for name in ("done.json", "last.pt", "run.yaml")):
        return False
    try:
        job = read_json(folder / "job.json")
    except ConfigError:  # a damaged record of another sweep is no reason to refuse this one
        return False
    return job.get("schema") == SCHEMA and job.get("identity") == identity


def told(jobs: Collection[Job], found: dict[str, Path], how: str) -> str:
    """Such as "6 of 36 runs are done in ssat_backbones"."""
    where = listed(dict.fromkeys(found[job.identity].parent.name for job in jobs if job.identity in found))
    return f"{len(found)} of {counted(len(jobs), 'run')} {how} {where}"


def plan(jobs: Collection[Job], found: dict[str, Path]) -> None:
    """Look at the runs where they are, for a dry run, which writes nothing."""
    for job in jobs:
        if job.identity in found:
            job.folder = found[job.identity]
            job.resources = only_evaluated(job.resources)


def take(jobs: Collection[Job], found: dict[str, Path]) -> None:
    """Put the runs into this sweep's folder, from where they are as if they had been trained there.

    Checkpoints, which are never changed in place, are hard links where the file system allows that.
    """
    for job in jobs:
        if job.identity in found:
            _copy(found[job.identity], job)
            job.resources = only_evaluated(job.resources)


def _copy(source: Path, job: Job) -> None:
    job.folder.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_dir():
            shutil.copytree(path, job.folder / path.name, dirs_exist_ok=True)
        elif path.name not in STAYS:
            _place(path, job.folder / path.name)
    run = load(source)
    for field, value in checkpoints(job.run).items():
        assign(run, field, value)  # in this sweep, or the same weights by another path
    save(run, job.folder)
    before = {name: value for name, value in read_json(source / "job.json").items() if name != "evaluation"}
    first = {"reused_from": str(source)}  # but where it was trained, if this sweep has it from a third
    own = {"name": job.name, "arm": job.arm, "stage": job.stage, "axes": job.axes}
    write_json(job.folder / "job.json", first | before | own | {"parents": [str(parent.folder) for parent in job.parents]})
    _place(source / "done.json", job.folder / "done.json")


def _place(source: Path, target: Path) -> None:
    """A file under its new name, whole or not at all."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        if source.suffix == ".pt":
            with suppress(OSError):  # another file system, or another person's file
                os.link(source, temporary)
        if not temporary.exists():
            shutil.copy2(source, temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
