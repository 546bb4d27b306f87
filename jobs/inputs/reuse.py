"""`--reuse`: runs that another sweep in the same folder of runs has trained already are taken from there instead of trained again."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from jobs.plan.graph import Job, label_learner, only_evaluated
from jobs.slurm import cluster
from vitssl.config import SCHEMA, ConfigError, assign, checkpoints, load, save
from vitssl.files import read_json, try_lock, write_json
from vitssl.run_folder import CANCELLED, DIVERGED, DONE, ERROR, EVALS, EVENTS, JOB, LAST, RUN, SLURM_JOB
from vitssl.sweep_folder import LOCAL, SWEEP
from vitssl.version import snapshot_of
from vitssl.words import counted, listed

STAGING = ".reuse"  # a folder in the sweep's folder, there while runs are copied
# not copied: records of the other sweep's attempts, and the files that `_copy` writes itself
ATTEMPT_FILES = {SLURM_JOB, LOCAL, ERROR, CANCELLED, "log", "previous.pt", "damaged.pt", DIVERGED}
WRITTEN_ANEW = {RUN, JOB}


class Found(NamedTuple):
    """The runs of a sweep that other sweeps have trained already."""

    folders: dict[str, Path]  # {identity: run folder} of the runs that may be taken
    num_continued: int  # how many more are trained there but continue here, because they or runs they start from have begun here

    def summary_text(self, jobs: Collection[Job], how: str) -> str:
        """Say how many ``jobs`` were found, for example "6 of 36 runs done in ssat_backbones".

        Args:
            jobs: all jobs of the sweep.
            how: the words between the counts and the other sweep's name, such as "done in".
        """
        sweeps = listed(self.folders[job.identity].parent.name for job in jobs if job.identity in self.folders) or "another sweep"
        continued = (
            f"; {self.num_continued} more continue here, where they or the runs they start from have begun" if self.num_continued else ""
        )
        return f"{len(self.folders)} of {counted(len(jobs), 'run')} {how} {sweeps}{continued}"


def find(jobs: Collection[Job], sweep: Path) -> Found:
    """Find the runs that may be taken from other sweeps; a folder that cannot be read counts as absent.

    Args:
        jobs: the jobs of this sweep, parents before children.
        sweep: the folder of this sweep.
    """
    by_identity, trained = _by_identity(sweep), {}
    for job in (job for job in jobs if not job.is_trained):
        if folder := next((folder for folder in by_identity.get(job.identity, ()) if _has(folder, job)), None):
            trained[job.identity] = folder
    queued, found = _queued([job.folder for job in jobs if job.identity in trained]), dict[str, Path]()
    for job in (job for job in jobs if job.identity in trained):
        began = (job.folder / EVENTS).exists() or job.folder in queued
        # its parents must be taken as well, now or earlier: it did not start from equal runs that are trained here
        if not began and all(parent.identity in found or "reused_from" in read_json(parent.folder / JOB) for parent in job.parents):
            found[job.identity] = trained[job.identity]
    return Found(found, len(trained) - len(found))


def _by_identity(sweep: Path) -> dict[str, list[Path]]:
    """Collect the run folders of the other sweeps as {identity, which ends a folder's name: folders}."""
    by_identity: dict[str, list[Path]] = defaultdict(list)
    for record in sorted(sweep.parent.glob(f"*/{SWEEP}")):
        with suppress(OSError):  # another user's folder, which may not be readable
            for folder in sorted(record.parent.iterdir()) if record.parent != sweep else ():
                by_identity[folder.name.rpartition("-")[2]].append(folder)
    return by_identity


def _has(folder: Path, wanted: Job) -> bool:
    """Whether ``folder`` holds the ``wanted`` run, done and undamaged, with evaluators that learned from the same labels."""
    try:
        job, done, _ = (read_json(folder / name) for name in (JOB, DONE, EVALS))
        if not done or job.get("schema") != SCHEMA or job.get("identity") != wanted.identity:
            return False
        same_labels = load(folder).data.labels == wanted.run.data.labels or label_learner(wanted.run) is None
        return same_labels and _is_whole(folder / LAST)
    except (ConfigError, OSError):  # damage in another sweep, or another user's folder, must not stop this sweep
        return False


def _is_whole(checkpoint: Path) -> bool:
    """Whether a ``checkpoint`` is complete: torch writes a ZIP archive, whose end is missing if the file was cut short."""
    with checkpoint.open("rb") as stream:
        first_bytes = stream.read(2)
    return bool(first_bytes) and (first_bytes != b"PK" or zipfile.is_zipfile(checkpoint))


def _queued(folders: Collection[Path]) -> Collection[Path]:
    """Return the run ``folders`` in SLURM's queue; if SLURM does not answer, all that were ever submitted to it."""
    try:
        return cluster.queued(folders)
    except ConfigError:
        return [folder for folder in folders if (folder / SLURM_JOB).exists()]


def plan(jobs: Collection[Job], found: Found) -> None:
    """Mark the jobs that were found elsewhere as reused, so that predictions, counts and tables treat them as trained."""
    for job in jobs:
        if job.identity in found.folders:
            job.reused, job.resources = found.folders[job.identity], only_evaluated(job.resources)


# --------------------------------------------------------------------------------------------------------------- take


def take(jobs: Collection[Job], sweep: Path) -> None:
    """Copy the runs that `plan` marked into the ``sweep`` folder, as if they had been trained there; each completely or not at all.

    Checkpoints become hard links if the file system and their owner allow it, as checkpoints are never changed in place.

    Raises:
        ConfigError: a run has begun here, or has disappeared there, since it was planned.
    """
    planned, staging = {job.identity: job.reused for job in jobs if job.reused is not None}, sweep / STAGING
    for job in jobs:
        job.reused = None
    found = find(jobs, sweep).folders if planned else {}
    shutil.rmtree(staging, ignore_errors=True)  # left by a process that was killed
    try:
        for job in (job for job in jobs if job.identity in planned):
            if job.identity not in found:
                reason = f"{job.name} has begun here, or is not in {planned[job.identity].parent} any more"
                raise ConfigError(f"{reason}; repeat the command")
            with _run_lock(job):
                _copy(job, found[job.identity], staging / job.name, sweep)
                job.folder.rename(staging / f"{job.name}.before")  # files of an earlier submission whose run never began
                (staging / job.name).rename(job.folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def _run_lock(job: Job) -> Iterator[None]:
    """Hold the run's lock, as a training that has just started would take the copied files for its own."""
    with try_lock(job.folder / ".lock", str(job.folder)) as free:
        if not free:
            raise ConfigError("another process is training this run; wait for it", place=str(job.folder))
        yield


def _copy(job: Job, source: Path, target: Path, sweep: Path) -> None:
    """Copy a run folder to ``target`` with the names and paths of this sweep, and the snapshot of its source to the ``sweep`` folder."""
    _copy_folder(source, target, ATTEMPT_FILES | WRITTEN_ANEW)
    run = load(source)
    for field, value in checkpoints(job.run).items():
        assign(run, field, value)  # a parent in this sweep, or the same weights at another path
    save(run, target)
    record = {name: value for name, value in read_json(source / JOB).items() if name != "evaluation"}
    for trained_with in (record, *record.get("earlier_sources", [])):
        if (snapshot := snapshot_of(source, trained_with)) is None:
            continue
        own_snapshot = sweep / "source" / snapshot.name
        if not own_snapshot.exists():
            own_snapshot.parent.mkdir(exist_ok=True)
            _copy_folder(snapshot, target.parent / "source")
            (target.parent / "source").rename(own_snapshot)
        trained_with["source"] = str(own_snapshot)
    origin = {"reused_from": str(source)}  # the record's own value wins: a third sweep, where the run was trained
    own_facts = {"name": job.name, "arm": job.arm, "stage": job.stage, "axes": job.axes}
    write_json(target / JOB, origin | record | own_facts | {"parents": [str(parent.folder) for parent in job.parents]})


def _copy_folder(source: Path, target: Path, excluded: Collection[str] = ()) -> None:
    """Copy a folder with this user's permissions, without hidden files, which are temporary, and without the names in ``excluded``."""
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.name.startswith(".") or path.name in excluded:
            continue
        if path.is_dir():
            _copy_folder(path, target / path.name)
        elif path.is_file():
            _place(path.resolve(), target / path.name)


def _place(source: Path, target: Path) -> None:
    """Put a file at ``target``: a hard link for a checkpoint if possible, otherwise a copy."""
    if source.suffix == ".pt":
        with suppress(OSError):  # another file system, or another person's file
            os.link(source, target)
            return
    shutil.copyfile(source, target)
