"""The runs of a sweep's folder, and those of them that a command line names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jobs.slurm import cluster
from vitssl import sweep_folder
from vitssl.config import ConfigError
from vitssl.config.base import closest, did_you_mean
from vitssl.files import read_json
from vitssl.run_folder import CANCELLED, ERROR, SLURM_JOB
from vitssl.words import few


def runs_of(sweep: Path) -> tuple[dict[Path, str], dict[Path, str]]:
    """{run folder: stage} of a sweep's last submission, and of earlier submissions' further runs, which may still be queued."""
    facts = sweep_folder.read(sweep)
    asked_for = {sweep / stage["folder"]: stage["stage"] for cell in facts["cells"] for stage in cell["stages"]}
    before = [path.parent for path in sorted(sweep.glob("*/job.json")) if path.parent not in asked_for]
    return asked_for, {folder: _told(folder).get("stage", "") for folder in before}


def _told(folder: Path) -> dict[str, Any]:
    """The `job.json` of a run; empty where it is damaged, which must not hide the others: what depends on it reads it itself."""
    try:
        return read_json(folder / "job.json")
    except ConfigError:
        return {}


def arms_of(sweep: Path) -> dict[str, set[Path]]:
    """{arm: run folders}; a run that two arms share is of both."""
    arms: dict[str, set[Path]] = {}
    for cell in sweep_folder.read(sweep)["cells"]:
        arms.setdefault(cell["arm"], set()).update(sweep / stage["folder"] for stage in cell["stages"])
    for folder in runs_of(sweep)[1]:
        arms.setdefault(_told(folder).get("arm", ""), set()).add(folder)
    return arms


def run_named(sweep: Path, word: str) -> Path:
    """The folder of the run that a word names: by its path, its name, with its hash or without, or a part of its name that no other has."""
    asked_for, before = runs_of(sweep)
    names, wanted = [folder.name for folder in (*asked_for, *before)], Path(word).name
    whole = [name for name in names if wanted in (name, name.rpartition("-")[0])]
    found = whole or [name for name in names if wanted and wanted in name]
    if len(found) == 1:
        return sweep / found[0]
    if found:
        raise ConfigError(f"{len(found)} runs have {word!r} in their names: {few(found)}; write more of it", place=str(sweep))
    meant = did_you_mean(closest(wanted, [*arms_of(sweep), *names]))
    raise ConfigError(f"no run has {word!r} in its name{meant}", place=str(sweep))


def named(sweep: Path, words: Iterable[str]) -> set[Path]:
    """The folders of the runs that words name: all of an arm, or one as `run_named` has it."""
    arms = arms_of(sweep)
    return {folder for word in words for folder in (arms.get(word) or [run_named(sweep, word)])}


def shared(sweep: Path, words: Iterable[str]) -> dict[Path, str]:
    """{run: an arm that is not named, and needs it too} of the arms among these words, but for runs that are named themselves."""
    arms = arms_of(sweep)
    named_arms = {word for word in words if word in arms}
    by_name = named(sweep, (word for word in words if word not in arms))
    runs = {folder for arm in named_arms for folder in arms[arm]} - by_name
    return {folder: arm for arm, folders in sorted(arms.items()) if arm not in named_arms for folder in runs & folders}


def yet_to_queue(sweep: Path, folders: Iterable[Path]) -> set[Path]:
    """Of these runs of a sweep that is larger than SLURM's queue, those that `launcher.Rest` is still to queue."""
    if not cluster.left(sweep):
        return set()
    told = (SLURM_JOB, CANCELLED, ERROR)
    return {folder for folder in folders if folder.is_dir() and not any((folder / name).exists() for name in told)}


def parents_of(folder: Path) -> list[Path]:
    """The folders of the runs that a run starts from, or learns from."""
    return [folder.parent / Path(parent).name for parent in _told(folder).get("parents", ())]


def line_of(folder: Path) -> set[Path]:
    """A run, and what it starts from, directly or by way of others."""
    return {folder}.union(*map(line_of, parents_of(folder)))


def waiting_for(folders: Iterable[Path], among: Iterable[Path]) -> set[Path]:
    """What starts from these runs, directly or by way of others."""
    parents = {folder: parents_of(folder) for folder in among}
    before, found = set(folders), set[Path]()
    while new := {folder for folder, those in parents.items() if any(p in before | found for p in those)} - before - found:
        found |= new
    return found
