"""The runs in a sweep's folder: by submission, by arm, as named on a command line, and by what they start from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jobs.slurm import cluster
from vitssl import sweep_folder
from vitssl.config import ConfigError
from vitssl.config.base import closest, did_you_mean
from vitssl.files import read_json
from vitssl.run_folder import CANCELLED, ERROR, JOB, SLURM_JOB
from vitssl.run_names import matches, refuse_several
from vitssl.sweep_folder import SWEEP

SHORT = 200  # characters of a command that a sentence can end with


def runs_of(sweep: Path) -> tuple[dict[Path, str], dict[Path, str]]:
    """Return {run folder: stage} of the last submission, and the same for runs of earlier submissions only, which may still be queued."""
    facts = sweep_folder.read(sweep)
    current = {sweep / stage["folder"]: stage["stage"] for cell in facts["cells"] for stage in cell["stages"]}
    earlier = [path.parent for path in sorted(sweep.glob(f"*/{JOB}")) if path.parent not in current]
    return current, {folder: _job_record(folder).get("stage", "") for folder in earlier}


def _job_record(folder: Path) -> dict[str, Any]:
    """Return the content of a run's `job.json`, or an empty dict if it is damaged.

    One damaged record must not hide the other runs. Code that depends on it reads it itself, and reports the damage.
    """
    try:
        return read_json(folder / JOB)
    except ConfigError:
        return {}


def arms_of(sweep: Path) -> dict[str, set[Path]]:
    """Return {arm: run folders}. A run that two arms share is listed under both."""
    arms: dict[str, set[Path]] = {}
    for cell in sweep_folder.read(sweep)["cells"]:
        arms.setdefault(cell["arm"], set()).update(sweep / stage["folder"] for stage in cell["stages"])
    for folder in runs_of(sweep)[1]:
        arms.setdefault(_job_record(folder).get("arm", ""), set()).add(folder)
    return arms


def run_named(sweep: Path, word: str) -> Path:
    """Return the folder of the run that ``word`` names.

    ``word`` is the run's path, or as much of its name as stands for no other, also from within it (`run_names.matches`).

    Raises:
        ConfigError: ``word`` stands for no run, or for more than one.
    """
    current, earlier = runs_of(sweep)
    names, wanted = [folder.name for folder in (*current, *earlier)], Path(word).name
    found = matches(wanted, names, anywhere=True)
    refuse_several(word, found, place=str(sweep))
    if found:
        return sweep / found[0]
    suggestion = did_you_mean(closest(wanted, [*arms_of(sweep), *names]))
    raise ConfigError(f"no run has {word!r} in its name{suggestion}", place=str(sweep))


def runs_named(sweep: Path, words: Iterable[str]) -> set[Path]:
    """Return the folders of the runs that ``words`` name: an arm stands for all its runs, any other word for one run (`run_named`)."""
    arms = arms_of(sweep)
    return {folder for word in words for folder in (arms.get(word) or [run_named(sweep, word)])}


def shared_runs(sweep: Path, words: Iterable[str]) -> dict[Path, str]:
    """Return {run folder: other arm} of runs of the arms in ``words`` that an arm not in ``words`` needs too, but for runs in ``words``."""
    arms = arms_of(sweep)
    named_arms = {word for word in words if word in arms}
    by_name = runs_named(sweep, (word for word in words if word not in arms))
    runs = {folder for arm in named_arms for folder in arms[arm]} - by_name
    return {folder: arm for arm, folders in sorted(arms.items()) if arm not in named_arms for folder in runs & folders}


def repeat_command(sweep: Path) -> str:
    """Return the advice to repeat the command that submitted a sweep, which ends with the command if it is short."""
    command = read_json(sweep / SWEEP).get("command", "")
    return "repeat the command that submitted the sweep" + (f": {command}" if command.isprintable() and 0 < len(command) <= SHORT else "")


def yet_to_queue(sweep: Path, folders: Iterable[Path]) -> set[Path]:
    """Return the runs in ``folders`` that a job of the sweep (`launcher.Rest`) has yet to queue.

    Only a sweep that is larger than SLURM's queue has such runs.
    """
    if not cluster.unqueued_count(sweep):
        return set()
    records = (SLURM_JOB, CANCELLED, ERROR)
    return {folder for folder in folders if folder.is_dir() and not any((folder / name).exists() for name in records)}


def parents_of(folder: Path) -> list[Path]:
    """Return the folders of the runs that a run starts from or learns from."""
    return [folder.parent / Path(parent).name for parent in _job_record(folder).get("parents", ())]


def lineage_of(folder: Path) -> set[Path]:
    """Return the folder of a run and those of all its ancestors: the runs that it starts from, directly or indirectly.

    Each run is looked at once, so a damaged record by which a run starts from itself ends the search.
    """
    lineage, new = set[Path](), {folder}
    while new:
        lineage |= new
        new = {parent for child in new for parent in parents_of(child)} - lineage
    return lineage


def waiting_for(folders: Iterable[Path], among: Iterable[Path]) -> set[Path]:
    """Return the runs in ``among`` that start from one of ``folders``, directly or indirectly."""
    parents = {folder: parents_of(folder) for folder in among}
    roots, descendants = set(folders), set[Path]()
    while new := {folder for folder, origins in parents.items() if any(p in roots | descendants for p in origins)} - roots - descendants:
        descendants |= new
    return descendants
