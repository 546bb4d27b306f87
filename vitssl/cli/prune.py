"""What a folder of runs holds that nothing needs any more: found, shown with its size, and removed.

The weights of a run's last checkpoint, the best one and its records stay. What belongs to a run that may still be trained or evaluated is
never touched, nor a checkpoint whose name stands in another run's `run.yaml`.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path

from vitssl import config, sweep_folder
from vitssl.config import ConfigError
from vitssl.files import held, no_room, read_file, read_json
from vitssl.run_folder import CANCELLED, DONE, ERROR, LAST, SLURM_JOB, is_trained, to_evaluate
from vitssl.sweep_folder import SUBMITTING, SWEEP, is_sweep
from vitssl.words import counted, note

KEPT_EPOCH = re.compile(r"epoch-\d+\.pt")
TEMPORARY = re.compile(r"\..+\.\d+\.tmp")
SOURCE, PARTIAL_SOURCE = re.compile(r"[0-9a-f]{12}"), re.compile(r"\.[0-9a-f]{12}\.\d+")
SUPERSEDED = {"previous.pt": "checkpoint before the last", "damaged.pt": "checkpoint that could not be read"}
OPTIMIZER = "the optimizer's state in it, of a run that is done; its weights stay"
HALF_WRITTEN = "half written, by a process that was killed"


@dataclass(frozen=True)
class Leftover:
    """A file, or a snapshot of the source, that nothing needs."""

    path: Path
    why: str
    owner: Path  # the folder of its run, or of its sweep

    @cached_property
    def bytes(self) -> int:
        """That its removal frees: none of a file that has another name, too."""
        files = self.path.rglob("*") if _is_folder(self.path) else [self.path]
        return sum(found.st_size for path in files if not _is_folder(path) and (found := path.lstat()).st_nlink == 1)

    def remove(self) -> None:
        shutil.rmtree(self.path) if _is_folder(self.path) else self.path.unlink()


class OptimizerState(Leftover):
    """That in a run's checkpoint, of which the rest stays."""

    @cached_property
    def bytes(self) -> int:
        from vitssl.checkpoints import run_checkpoint

        return run_checkpoint.optimizer_bytes(self.path)

    def remove(self) -> None:
        from vitssl.checkpoints import run_checkpoint

        run_checkpoint.drop_optimizer(self.path)

    def can_go(self, others: list[Leftover]) -> bool:
        """Is there one, in a file of this user's that is no link and has no name besides those of the ``others``? Written anew it would
        else be twice on the disk, or somebody else's."""
        if self.path.is_symlink():
            return False
        found = self.path.lstat()
        same = [other for other in others if not _is_folder(other.path) and other.path.lstat().st_ino == found.st_ino]
        return found.st_uid == os.getuid() and found.st_nlink == 1 + len(same) and self.bytes > 0


def _is_folder(path: Path) -> bool:
    """Is it one itself? What a link leads to is somebody else's."""
    return path.is_dir() and not path.is_symlink()


def find(runs: Path) -> list[Leftover]:
    """What can go of all sweeps in a folder, or of the one that it is.

    Raises:
        ConfigError: there are no runs in it, or a record of one, on which it depends, is damaged.
    """
    sweeps = [runs] if is_sweep(runs) else sorted(path.parent for path in runs.glob(f"*/{SWEEP}"))
    if not runs.is_dir():
        raise ConfigError("there is no such folder; name the folder of the runs, or of one sweep in it", place=str(runs))
    if not sweeps and (runs / "run.yaml").exists():
        raise ConfigError(f"this is a run; name its sweep, {runs.parent}", place=str(runs))
    if not sweeps:
        raise ConfigError("there are no sweeps in it; name the folder of the runs, or of one sweep in it", place=str(runs))
    if find_spec("torch") is None:
        note("optimizer states are not looked for, since torch is not installed here")
    named = _run_files(runs if sweeps != [runs] else runs.absolute().parent)
    found = [left for sweep in sweeps for path in sorted(sweep.glob("*/run.yaml")) for left in _of_run(path.parent, named)]
    return found + [left for sweep in sweeps for left in _of_sweep(sweep)]


def _run_files(runs: Path) -> str:
    """What is written in every `run.yaml` of a folder of runs, in which a checkpoint may be named."""
    return "\n".join(read_file(path).decode(errors="replace") for path in (*runs.glob("*/run.yaml"), *runs.glob("*/*/run.yaml")))


def _of_run(folder: Path, named: str) -> list[Leftover]:
    """What of a run is not ``named`` in that of another."""
    done = is_finished(folder)
    found = [left for left in _unneeded(folder, done) if f"{folder.name}/{left.path.name}" not in named]
    last = OptimizerState(folder / LAST, OPTIMIZER, folder)
    if done and last.path.is_file() and f"{folder.name}/last.pt" not in named and find_spec("torch") is not None and last.can_go(found):
        found.append(last)
    return found


def _unneeded(folder: Path, done: bool) -> Iterator[Leftover]:
    """Files of a run: of one that is done the checkpoints of epochs, of one that is done or failed what a crash left."""
    failed = _failed(folder)
    for path in sorted(folder.iterdir()) if done or failed else ():
        if done and KEPT_EPOCH.fullmatch(path.name):
            yield Leftover(path, "checkpoint of an epoch (loop.keep_every) of a run that is done", folder)
        elif done and path.name in SUPERSEDED:
            yield Leftover(path, SUPERSEDED[path.name], folder)
        elif path.name == "diverged.pt":
            yield Leftover(path, "state of a training that diverged", folder)
        elif TEMPORARY.fullmatch(path.name):
            yield Leftover(path, HALF_WRITTEN, folder)


def is_finished(folder: Path) -> bool:
    """Is it trained, with the results of all its evaluators? One with a damaged record counts as not."""
    try:
        return bool(read_json(folder / DONE)) and not to_evaluate(folder, config.load(folder))
    except ConfigError as error:
        note(f"{folder.name} is left alone: {error}")
        return False


def _failed(folder: Path) -> bool:
    """Did its last attempt fail for good? Whoever submits it again removes the record of that."""
    return (folder / ERROR).exists() and not is_trained(folder)


def _of_sweep(sweep: Path) -> Iterator[Leftover]:
    """Snapshots of the source that no run names, and what a crash left; where nothing of the sweep can be queued or running."""
    if _may_go_on(sweep):
        return
    records = [read_json(path) for path in sweep.glob("*/job.json")]
    used = {Path(job["source"]).name for record in records for job in (record, record.get("evaluation", {})) if "source" in job}
    for path in sorted((sweep / "source").glob("*")):
        if PARTIAL_SOURCE.fullmatch(path.name):
            yield Leftover(path, HALF_WRITTEN, sweep)
        elif SOURCE.fullmatch(path.name) and path.name not in used:
            yield Leftover(path, "source that no run was trained with", sweep)
    for path in sorted(sweep.iterdir()):
        if TEMPORARY.fullmatch(path.name):
            yield Leftover(path, HALF_WRITTEN, sweep)


def _may_go_on(sweep: Path) -> bool:
    """Can a job of it be queued or running, or its report? Its folders tell, without asking SLURM."""
    begun = [path.parent for path in sweep.glob(f"*/{SLURM_JOB}")]
    if not all(is_finished(folder) or _failed(folder) or (folder / CANCELLED).exists() for folder in begun):
        return True
    report, job = sweep / "report" / "report.html", sweep / SLURM_JOB
    if job.exists() and not (sweep / CANCELLED).exists() and (not report.exists() or report.stat().st_mtime < job.stat().st_mtime):
        return True
    return sweep_folder.running(sweep) is not None or bool(sweep_folder.elsewhere(sweep))


def remove(leftovers: list[Leftover]) -> tuple[int, int]:
    """Remove them; how many went, and their bytes. Those that stay, as their run or sweep was taken up or they cannot go, are named.

    Optimizer states go last, the smallest first: a checkpoint is written without it before it goes, and the disk may be full.
    """
    states = sorted((left for left in leftovers if isinstance(left, OptimizerState)), key=lambda state: state.bytes)
    files, run_files = [left for left in leftovers if not isinstance(left, OptimizerState)], cache(_run_files)
    freed: list[int] = []
    for some in (files, states):
        for owner in dict.fromkeys(left.owner for left in some):
            freed += _remove_of(owner, [left for left in some if left.owner == owner], run_files)
    return len(freed), sum(freed)


def _remove_of(owner: Path, leftovers: list[Leftover], run_files: Callable[[Path], str]) -> Iterator[int]:
    """The bytes of each that went."""
    of_sweep = is_sweep(owner)
    with _alone(owner) as alone:
        now = (_of_sweep(owner) if of_sweep else _of_run(owner, run_files(owner.absolute().parent.parent))) if alone else ()
        still = {left.path for left in now}
        for left in leftovers:
            if left.path not in still:
                note(f"{left.path} stays: its {'sweep' if of_sweep else 'run'} goes on, or another run names it")
                continue
            freed = left.bytes
            try:
                left.remove()
            except (OSError, ConfigError, RuntimeError) as error:
                known = no_room(error) or error
                if isinstance(known, RuntimeError):
                    raise
                note(f"{left.path} stays: it cannot be removed ({known.strerror if isinstance(known, OSError) else known})")
                continue
            yield freed


def _alone(owner: Path) -> AbstractContextManager[bool]:
    """Hold the lock that training a run, or submitting a sweep, takes; False: another process has it."""
    return held(owner / (SUBMITTING if is_sweep(owner) else ".lock"), str(owner))


def listing(leftovers: list[Leftover]) -> str:
    """What there is, with sizes, and the sum by kind."""
    sizes = {left: left.bytes for left in leftovers}
    lines = [f"{in_units(size):>9}  {os.path.relpath(left.path)}  ({left.why})" for left, size in sizes.items()]
    return "\n".join([*lines, f"{in_units(sum(sizes.values())):>9}  in {counted(len(sizes), 'place')}"])


def in_units(size: float) -> str:
    """Bytes, as people say it: 12 B, 3.4 MB."""
    units = iter(("B", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while size >= 1000 and unit != "TB":
        size, unit = size / 1000, next(units)
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
