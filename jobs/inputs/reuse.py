"""Runs of a sweep that others in the same folder of runs have trained already, taken from there instead of trained again (`--reuse`)."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from jobs.plan.graph import Job, learner, only_evaluated
from jobs.slurm import cluster
from vitssl.config import SCHEMA, ConfigError, assign, checkpoints, load, save
from vitssl.files import held, read_json, write_json
from vitssl.run_folder import CANCELLED, DONE, ERROR, EVALS, LAST, SLURM_JOB
from vitssl.sweep_folder import LOCAL, SWEEP
from vitssl.words import counted, listed

STAGING = ".reuse"  # in the sweep's folder, while runs are copied
BEGUN = "metrics.jsonl"  # is there from when a run has begun to train
OF_ATTEMPTS = {SLURM_JOB, LOCAL, ERROR, CANCELLED, "log", "previous.pt", "damaged.pt", "diverged.pt"}
WRITTEN_ANEW = {"run.yaml", "job.json"}


class Found(NamedTuple):
    """What other sweeps have of the jobs."""

    folders: dict[str, Path]  # by identity, of those that may be taken
    left: int  # how many others have begun or wait here, or start from such a run, and go on here

    def told(self, jobs: Collection[Job], how: str) -> str:
        """Such as "6 of 36 runs done in ssat_backbones"."""
        where = listed(self.folders[job.identity].parent.name for job in jobs if job.identity in self.folders) or "another sweep"
        left = f"; {self.left} more continue here, where they or the runs they start from have begun" if self.left else ""
        return f"{len(self.folders)} of {counted(len(jobs), 'run')} {how} {where}{left}"


def find(jobs: Collection[Job], sweep: Path) -> Found:
    """What may be taken of the jobs, parents before children. What cannot be read is not there."""
    named, there = _by_identity(sweep), {}
    for job in (job for job in jobs if not job.is_trained):
        if folder := next((folder for folder in named.get(job.identity, ()) if _has(folder, job)), None):
            there[job.identity] = folder
    queued, found = _queued([job.folder for job in jobs if job.identity in there]), dict[str, Path]()
    for job in (job for job in jobs if job.identity in there):
        began = (job.folder / BEGUN).exists() or job.folder in queued
        # it started from a run that is taken too, not from an equal one that is trained here
        if not began and all(parent.identity in found or "reused_from" in read_json(parent.folder / "job.json") for parent in job.parents):
            found[job.identity] = there[job.identity]
    return Found(found, len(there) - len(found))


def _by_identity(sweep: Path) -> dict[str, list[Path]]:
    """The run folders of the other sweeps, by the end of their names."""
    named: dict[str, list[Path]] = defaultdict(list)
    for record in sorted(sweep.parent.glob(f"*/{SWEEP}")):
        with suppress(OSError):  # another person's
            for folder in sorted(record.parent.iterdir()) if record.parent != sweep else ():
                named[folder.name.rpartition("-")[2]].append(folder)
    return named


def _has(folder: Path, wanted: Job) -> bool:
    """Is it a run of that identity, whole and done, whose evaluators learned from the same labels?"""
    try:
        job, done, _ = (read_json(folder / name) for name in ("job.json", DONE, EVALS))
        if not done or job.get("schema") != SCHEMA or job.get("identity") != wanted.identity:
            return False
        same_labels = load(folder).data.labels == wanted.run.data.labels or learner(wanted.run) is None
        return same_labels and _is_whole(folder / LAST)
    except (ConfigError, OSError):  # another sweep's damage, or another person's folder, is no reason to refuse this one
        return False


def _is_whole(checkpoint: Path) -> bool:
    """Of what torch writes, a ZIP archive, the end is missing where it was cut short."""
    with checkpoint.open("rb") as stream:
        begins = stream.read(2)
    return bool(begins) and (begins != b"PK" or zipfile.is_zipfile(checkpoint))


def _queued(folders: Collection[Path]) -> Collection[Path]:
    """Of a controller that does not answer all that it was ever told."""
    try:
        return cluster.queued(folders)
    except ConfigError:
        return [folder for folder in folders if (folder / SLURM_JOB).exists()]


def plan(jobs: Collection[Job], found: Found) -> None:
    """What is predicted, counted and shown from here on knows those runs to be trained."""
    for job in jobs:
        if job.identity in found.folders:
            job.reused, job.resources = found.folders[job.identity], only_evaluated(job.resources)


# --------------------------------------------------------------------------------------------------------------- take


def take(jobs: Collection[Job], sweep: Path) -> None:
    """Put the planned runs into this sweep's folder, as if they had been trained there; each is whole there, or not there.

    Checkpoints, which are never changed in place, are hard links where the file system and their owner allow that.

    Raises:
        ConfigError: one has begun here, or has gone there, since it was planned.
    """
    planned, staging = {job.identity: job.reused for job in jobs if job.reused is not None}, sweep / STAGING
    for job in jobs:
        job.reused = None
    found = find(jobs, sweep).folders if planned else {}
    shutil.rmtree(staging, ignore_errors=True)  # of a process that was killed
    try:
        for job in (job for job in jobs if job.identity in planned):
            if job.identity not in found:
                gone = f"{job.name} has begun here, or is not in {planned[job.identity].parent} any more"
                raise ConfigError(f"{gone}; repeat the command")
            with _alone(job):
                _copy(job, found[job.identity], staging / job.name, sweep)
                job.folder.rename(staging / f"{job.name}.before")  # what a submission wrote whose run never began
                (staging / job.name).rename(job.folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def _alone(job: Job) -> Iterator[None]:
    """Hold the run's lock: a training that has only just started would take what is put there for its own."""
    with held(job.folder / ".lock", str(job.folder)) as free:
        if not free:
            raise ConfigError("another process is training this run; wait for it", place=str(job.folder))
        yield


def _copy(job: Job, source: Path, target: Path, sweep: Path) -> None:
    _copy_folder(source, target, OF_ATTEMPTS | WRITTEN_ANEW)
    run = load(source)
    for field, value in checkpoints(job.run).items():
        assign(run, field, value)  # in this sweep, or the same weights by another path
    save(run, target)
    before = {name: value for name, value in read_json(source / "job.json").items() if name != "evaluation"}
    if "source" in before and (snapshot := Path(before["source"])).is_dir():
        own = sweep / "source" / snapshot.name
        if not own.exists():
            own.parent.mkdir(exist_ok=True)
            _copy_folder(snapshot, target.parent / "source")
            (target.parent / "source").rename(own)
        before["source"] = str(own)
    first = {"reused_from": str(source)}  # but where it was trained, if that is a third sweep
    own_facts = {"name": job.name, "arm": job.arm, "stage": job.stage, "axes": job.axes}
    write_json(target / "job.json", first | before | own_facts | {"parents": [str(parent.folder) for parent in job.parents]})


def _copy_folder(source: Path, target: Path, but: Collection[str] = ()) -> None:
    """Without what is hidden, that is temporary; with this person's permissions."""
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.name.startswith(".") or path.name in but:
            continue
        if path.is_dir():
            _copy_folder(path, target / path.name)
        elif path.is_file():
            _place(path.resolve(), target / path.name)


def _place(source: Path, target: Path) -> None:
    if source.suffix == ".pt":
        with suppress(OSError):  # another file system, or another person's file
            os.link(source, target)
            return
    shutil.copyfile(source, target)
