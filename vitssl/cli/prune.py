"""Finding, listing and removing files in a folder of runs that nothing needs any more.

A run's last checkpoint, its best checkpoint and its records stay. Files of a run that may still be trained or evaluated are
never touched, nor is a checkpoint that another run's `run.yaml` names.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from vitssl import config, sweep_folder
from vitssl.config import ConfigError
from vitssl.files import read_file, read_json, try_lock
from vitssl.run_folder import CANCELLED, DIVERGED, DONE, ERROR, JOB, RUN, SLURM_JOB, is_trained, to_evaluate
from vitssl.sweep_folder import SUBMITTING, SWEEP, is_sweep
from vitssl.version import sources_of
from vitssl.words import counted, note

KEPT_EPOCH = re.compile(r"epoch-\d+\.pt")
TEMPORARY = re.compile(r"\..+\.\d+\.tmp")
SOURCE, PARTIAL_SOURCE = re.compile(r"[0-9a-f]{12}"), re.compile(r"\.[0-9a-f]{12}\.\d+")
SUPERSEDED = {"previous.pt": "checkpoint before the last", "damaged.pt": "checkpoint that could not be read"}
HALF_WRITTEN = "half written, by a process that was killed"


@dataclass(frozen=True)
class Leftover:
    """A file, or a snapshot of the source, that nothing needs."""

    path: Path
    why: str
    owner: Path  # the folder of its run or of its sweep

    @cached_property
    def bytes(self) -> int:
        """The bytes that the removal frees; a file that has another hard link frees none."""
        files = self.path.rglob("*") if _is_folder(self.path) else [self.path]
        return sum(status.st_size for path in files if not _is_folder(path) and (status := path.lstat()).st_nlink == 1)

    def remove(self) -> None:
        shutil.rmtree(self.path) if _is_folder(self.path) else self.path.unlink()


def _is_folder(path: Path) -> bool:
    """Whether the path is a folder itself and not a link to one, since what a link leads to belongs to somebody else."""
    return path.is_dir() and not path.is_symlink()


def find_leftovers(runs: Path) -> list[Leftover]:
    """Return everything that can be removed from the sweeps in the folder ``runs``, or from that sweep if it is one.

    Raises:
        ConfigError: there is no such folder, it has no sweeps, or a record that has to be read is damaged.
    """
    sweeps = [runs] if is_sweep(runs) else sorted(path.parent for path in runs.glob(f"*/{SWEEP}"))
    if not runs.is_dir():
        raise ConfigError("there is no such folder; name the folder of the runs, or of one sweep in it", place=str(runs))
    if not sweeps and (runs / RUN).exists():
        raise ConfigError(f"this is a run; name its sweep, {runs.parent}", place=str(runs))
    if not sweeps:
        raise ConfigError("there are no sweeps in it; name the folder of the runs, or of one sweep in it", place=str(runs))
    named = _run_files(runs if sweeps != [runs] else runs.absolute().parent)
    leftovers = [leftover for sweep in sweeps for path in sorted(sweep.glob(f"*/{RUN}")) for leftover in _run_leftovers(path.parent, named)]
    return leftovers + [leftover for sweep in sweeps for leftover in _sweep_leftovers(sweep)]


def _run_files(runs: Path) -> str:
    """Return the text of every `run.yaml` in a folder of runs, in which checkpoints may be named."""
    return "\n".join(read_file(path).decode(errors="replace") for path in (*runs.glob(f"*/{RUN}"), *runs.glob(f"*/*/{RUN}")))


def _run_leftovers(folder: Path, named: str) -> list[Leftover]:
    """Return the leftovers of a run that do not occur in ``named``, the text of every `run.yaml`."""
    done = is_finished(folder)
    return [leftover for leftover in _unneeded(folder, done) if f"{folder.name}/{leftover.path.name}" not in named]


def _unneeded(folder: Path, done: bool) -> Iterator[Leftover]:
    """Yield the files of a run that it does not need itself.

    These are checkpoints of epochs and superseded checkpoints if the run is done, and what a crash or a divergence left if it is done or
    failed.
    """
    failed = _failed(folder)
    for path in sorted(folder.iterdir()) if done or failed else ():
        if done and KEPT_EPOCH.fullmatch(path.name):
            yield Leftover(path, "checkpoint of an epoch (loop.keep_every) of a run that is done", folder)
        elif done and path.name in SUPERSEDED:
            yield Leftover(path, SUPERSEDED[path.name], folder)
        elif path.name == DIVERGED:
            yield Leftover(path, "state of a training that diverged", folder)
        elif TEMPORARY.fullmatch(path.name):
            yield Leftover(path, HALF_WRITTEN, folder)


def is_finished(folder: Path) -> bool:
    """Whether a run is trained and has the results of all its evaluators; a run with a damaged record counts as not finished."""
    try:
        return bool(read_json(folder / DONE)) and not to_evaluate(folder, config.load(folder))
    except ConfigError as error:
        note(f"{folder.name} is left alone: {error}")
        return False


def _failed(folder: Path) -> bool:
    """Whether the last attempt of a run failed for good; submitting the run again removes the record of that."""
    return (folder / ERROR).exists() and not is_trained(folder)


def _sweep_leftovers(sweep: Path) -> Iterator[Leftover]:
    """Yield a sweep's source snapshots that no run names, and what a crash left; nothing while the sweep may be queued or running."""
    if _may_go_on(sweep):
        return
    records = [read_json(path) for path in sweep.glob(f"*/{JOB}")]
    used = {
        Path(source["source"]).name for record in records for job in (record, record.get("evaluation", {})) for source in sources_of(job)
    }
    for path in sorted((sweep / "source").glob("*")):
        if PARTIAL_SOURCE.fullmatch(path.name):
            yield Leftover(path, HALF_WRITTEN, sweep)
        elif SOURCE.fullmatch(path.name) and path.name not in used:
            yield Leftover(path, "source that no run was trained with", sweep)
    for path in sorted(sweep.iterdir()):
        if TEMPORARY.fullmatch(path.name):
            yield Leftover(path, HALF_WRITTEN, sweep)


def _may_go_on(sweep: Path) -> bool:
    """Whether a job of the sweep, or of its report, can be queued or running, judged from its folders without asking SLURM."""
    submitted = [path.parent for path in sweep.glob(f"*/{SLURM_JOB}")]
    if not all(is_finished(folder) or _failed(folder) or (folder / CANCELLED).exists() for folder in submitted):
        return True
    if (sweep / SLURM_JOB).exists() and not (sweep / CANCELLED).exists() and not sweep_folder.is_reported(sweep):
        return True
    return sweep_folder.launcher_pid(sweep) is not None or bool(sweep_folder.remote_launcher(sweep))


def remove(leftovers: list[Leftover]) -> tuple[int, int]:
    """Remove leftovers, and return how many were removed and their bytes.

    Those that stay, because their run or sweep was taken up again or because they cannot be removed, are named on stderr.
    """
    run_files = cache(_run_files)
    freed: list[int] = []
    for owner in dict.fromkeys(leftover.owner for leftover in leftovers):
        freed += _remove_of(owner, [leftover for leftover in leftovers if leftover.owner == owner], run_files)
    return len(freed), sum(freed)


def _remove_of(owner: Path, leftovers: list[Leftover], run_files: Callable[[Path], str]) -> Iterator[int]:
    """Remove leftovers of one run or sweep, and yield the bytes of each that was removed."""
    of_sweep = is_sweep(owner)
    with _lock(owner) as locked:
        current = (
            (_sweep_leftovers(owner) if of_sweep else _run_leftovers(owner, run_files(owner.absolute().parent.parent))) if locked else ()
        )
        current_paths = {leftover.path for leftover in current}
        for leftover in leftovers:
            if leftover.path not in current_paths:
                note(f"{leftover.path} stays: its {'sweep' if of_sweep else 'run'} goes on, or another run names it")
                continue
            freed = leftover.bytes
            try:
                leftover.remove()
            except OSError as error:
                note(f"{leftover.path} stays: it cannot be removed ({error.strerror})")
                continue
            yield freed


def _lock(owner: Path) -> AbstractContextManager[bool]:
    """Hold the lock that training a run or submitting a sweep takes; the context gives False if another process holds it."""
    return try_lock(owner / (SUBMITTING if is_sweep(owner) else ".lock"), str(owner))


def listing(leftovers: list[Leftover]) -> str:
    """Return a line for each leftover with its size, and a line with the total."""
    sizes = {leftover: leftover.bytes for leftover in leftovers}
    lines = [f"{in_units(size):>9}  {os.path.relpath(leftover.path)}  ({leftover.why})" for leftover, size in sizes.items()]
    return "\n".join([*lines, f"{in_units(sum(sizes.values())):>9}  in {counted(len(sizes), 'place')}"])


def in_units(size: float) -> str:
    """Format a number of bytes for people: 12 B, 3.4 MB."""
    units = iter(("B", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while size >= 1000 and unit != "TB":
        size, unit = size / 1000, next(units)
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
