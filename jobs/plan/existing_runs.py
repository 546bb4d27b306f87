"""The run folders that a sweep already has, found by the identity of each folder's `run.yaml`, whatever hash its name holds."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitssl.config import SCHEMA, ConfigError, Run, Site, assign, checkpoints, dotted, fill, identifying, identity, load
from vitssl.config.methods import flow
from vitssl.costs.emissions import grid_name, is_restated, names_grid
from vitssl.files import hash_file, read_json
from vitssl.run_folder import JOB, LAST, RUN, is_trained
from vitssl.version import ROOT, differing, snapshot_of, sources_of
from vitssl.words import counted, few, listed, note

if TYPE_CHECKING:
    from jobs.plan.graph import Job

START = "what they start from"
FEW_FILES = 4  # the most that a note names


def run_folders(sweep: Path) -> dict[str, Path]:
    """Return {identity: run folder} of the folder of a ``sweep``; of equal runs, a trained one is taken.

    A folder that cannot be read is left out, with a note on stderr.
    """
    folders: dict[str, Path] = {}
    finished_first = sorted(sweep.glob(f"*/{RUN}"), key=lambda path: (not is_trained(path.parent), path))
    for path in finished_first:
        try:
            folders.setdefault(identity_of(path.parent), path.parent)
        except ConfigError as error:
            note(f"{path.parent.name} is not counted as a run of this sweep: {error}")
    return folders


def identity_of(folder: Path) -> str:
    """Return the identity of the Run in ``folder``; runs that it starts from count by their identities, not by their paths."""
    job = read_json(folder / JOB)
    if job.get("schema") == SCHEMA and "identity" in job:
        return job["identity"]
    run = load(folder)
    for field, value in checkpoints(run).items():
        sibling = folder.parent / Path(value).name  # the sweep's folder may have been moved
        assign(run, field, content_of(sibling if sibling.is_dir() else Path(value)))
    return identity(run)


def content_of(path: Path) -> str:
    """Return what identifies the content of a checkpoint, whatever its path: a run folder's identity, or the hash of a file."""
    if not path.exists():
        return f"not fetched yet: {path.name}"
    if path.is_dir():
        return f"run:{identity_of(path)}"
    return f"file:{hash_once(path)}"


def hash_once(path: Path) -> str:
    """Return the sha256 of a file, which is read once however many runs start from it: weights may have gigabytes."""
    return _hash(path, path.stat().st_mtime_ns)


@functools.cache
def _hash(path: Path, written_ns: int) -> str:
    return hash_file(path)


def remarks(jobs: Sequence[Job], sweep: Path, use_current_source: bool) -> list[str]:
    """Return the notes on what a ``sweep`` has trained and begun before, in the place of ``jobs`` or by other code."""
    found = (superseded(jobs, sweep), trained_otherwise(jobs, sweep))
    return [*filter(None, found), *goes_on_otherwise(jobs, sweep, use_current_source)]


# ---------------------------------------------------------------------------------------------------------- superseded


def superseded(jobs: Sequence[Job], sweep: Path) -> str | None:
    """Return a warning if jobs are to be trained in the place of runs that an earlier submission trained or began, or None.

    Such a run has the arm, stage and axis values of the job, but other fields. It is kept, but the report does not show it.
    """
    places = {_place(job.arm, job.stage, job.axes): job for job in jobs}
    current = {job.folder for job in jobs}
    counts, changed = {"trained run": 0, "unfinished run": 0}, dict[tuple[str, str], list[str]]()
    for folder in sorted(path.parent for path in sweep.glob(f"*/{JOB}") if path.parent not in current and _has_weights(path.parent)):
        with suppress(ConfigError):  # a damaged record is not needed
            record = read_json(folder / JOB)
            job = places.get(_place(record.get("arm"), record.get("stage"), record.get("axes")))
            if job is not None and not job.is_trained:
                if (job.arm, job.stage) not in changed:  # reading a run.yaml takes long, so one per arm and stage has to do
                    changed[job.arm, job.stage] = _changed(load(folder), job.run)
                counts["trained run" if is_trained(folder) else "unfinished run"] += 1
    if not any(counts.values()):
        return None
    fields = list(dict.fromkeys(line for lines in changed.values() for line in lines))
    fields = [line for line in fields if line != START] or fields  # which is another since its own fields are, of a chain
    found = listed([counted(count, kind) for kind, count in counts.items() if count])
    summary = f"{found} of {sweep.name} {'differs' if sum(counts.values()) == 1 else 'differ'} from these"
    return f"{summary}{f' in {few(fields)}' if fields else ''}: kept, but not in the report"


def _has_weights(folder: Path) -> bool:
    return is_trained(folder) or (folder / LAST).exists()


def trained_otherwise(jobs: Sequence[Job], sweep: Path) -> str | None:
    """Return a note if trained runs of this sweep were trained by other code than today's, or None.

    Identities depend on fields alone, so that changed code does not train a run again.
    """
    runs, changed = _of_other_code((job for job in jobs if job.is_trained), earlier=True)
    if not runs:
        return None
    return f"{sweep.name}: other code trained {runs} ({changed}): kept, and named by the report; to train one anew, delete its folder"


def goes_on_otherwise(jobs: Sequence[Job], sweep: Path, use_current_source: bool) -> list[str]:
    """Return notes if unfinished runs of this sweep were begun with other code than today's, which say with which they go on."""
    begun = [job for job in jobs if not job.is_trained and (job.folder / LAST).exists()]
    lost = [job.folder.name for job in begun if _has_lost_its_source(job)]
    of_lost = f"{sweep.name}: the code that began {few(lost)} is not in {sweep / 'source'} any more: going on with today's"
    runs, changed = _of_other_code(begun, earlier=False)
    end = "going on with today's, as the report will say" if use_current_source else "going on with it; --use-current-source takes today's"
    return [*([of_lost] if lost else []), *([f"{sweep.name}: other code began {runs} ({changed}): {end}"] if runs else [])]


def kept_grids(jobs: Sequence[Job], sweep: Path, site: Site, typed: bool) -> str | None:
    """Return a note if finished runs keep another grid than the one that this submission names, or None.

    Args:
        jobs: the jobs of the sweep.
        sweep: its folder.
        site: where it is submitted.
        typed: whether the command line names the grid. If a profile does, the runs of other sites are left out.
    """
    if not typed and not names_grid(site):
        return None
    kept = [_grid(at) for at in map(_trained_at, jobs) if at and not is_restated(at, site) and (typed or at.name == site.name)]
    if not (kept := [grid for grid in kept if grid != _grid(site)]):
        return None
    keep, them = ("keeps", "it") if len(kept) == 1 else ("keep", "them")
    what_is_kept = f"{counted(len(kept), 'finished run')} {keep} the grid recorded with {them}, {listed(sorted(kept))}"
    return f"{sweep.name}: {what_is_kept}; {_grid(site)} counts for what is still to be trained"


def _trained_at(job: Job) -> Site | None:
    """Return the site where a finished run was trained; None for others, and if that is not recorded."""
    with suppress(ConfigError):  # a damaged record is reported elsewhere
        recorded = read_json(job.results / JOB).get("site") if job.is_trained else None
        return fill(Site, recorded) if recorded else None
    return None


def _grid(site: Site) -> str:
    """Return the grid of a site in words: its country, its own figure, or its file of figures."""
    if site.intensity_csv is not None:
        return f"that of {site.intensity_csv}"
    figure = f" ({site.intensity_kg_per_kwh:g} kg CO2e/kWh)" if site.intensity_kg_per_kwh is not None else ""
    return f"{grid_name(site)}{figure}"


def _has_lost_its_source(job: Job) -> bool:
    with suppress(ConfigError):  # a damaged record is reported elsewhere
        record = read_json(job.folder / JOB)
        return "source" in record and snapshot_of(job.folder, record) is None
    return False


def _of_other_code(jobs: Iterable[Job], earlier: bool) -> tuple[str, str]:
    """Return the names of the runs of other code than today's, and what has changed since; both empty if there are none.

    Args:
        jobs: the jobs of the runs.
        earlier: whether code counts that a run was trained with before its present one.
    """
    runs: dict[Path, list[str]] = {}
    commits: dict[Path, str | None] = {}
    for job in jobs:
        with suppress(ConfigError):  # a damaged record is skipped
            for source in sources_of(read_json(job.results / JOB))[0 if earlier else -1 :]:
                if (snapshot := snapshot_of(job.results, source)) is not None:
                    runs.setdefault(snapshot, []).append(job.folder.name)
                    commits[snapshot] = source.get("commit")
    changed = {snapshot: files for snapshot in runs if (files := differing([snapshot, ROOT]))}
    files = sorted({file for files in changed.values() for file in files})
    of = listed(sorted({f"commit {sha[:8]}" for snapshot in changed if (sha := commits[snapshot])}))
    what = few(files) if len(files) <= FEW_FILES else f"{len(files)} files"
    names = list(dict.fromkeys(name for snapshot in changed for name in runs[snapshot]))
    return few(names) if names else "", f"{f'{of}; ' if of else ''}{what} changed since"


def _place(arm: str | None, stage: str | None, axes: dict | None) -> str:
    """Return a key for an arm, a stage and the values of the axes, to find a run of the same place in the sweep."""
    return json.dumps([arm, stage, axes], sort_keys=True)


def _changed(before: Run, now: Run) -> list[str]:
    """List the fields in which two Runs differ, each with both values, and `START` for the fields that name what they start from."""
    first, second = (dotted(identifying(run)) for run in (before, now))
    names = {name for name in first.keys() | second.keys() if first.get(name) != second.get(name)}
    start = [START] if names & checkpoints(now).keys() else []
    names -= checkpoints(now).keys()
    if before.data.sha256 is None or now.data.sha256 is None:  # the hash of shards that are not built yet is not known
        names.discard("data.sha256")
    groups = {name for name in names if any(other.startswith(f"{name}.") for other in names)}
    values = [dotted(dataclasses.asdict(run)) for run in (before, now)]
    shown = {name: [_shown(fields, name) for fields in values] for name in sorted(names - groups)}
    return ["the images" if name == "data.sha256" else f"{name} ({old}, now {new})" for name, (old, new) in shown.items()] + start


def _shown(values: dict[str, Any], name: str) -> str:
    """Return a field's value as text, or "on" for a group of fields that is set."""
    value = values.get(name)
    if isinstance(value, float):
        value = float(f"{value:.6g}")  # a scaled schedule has 0.19999999999999998 epochs
    return "on" if any(other.startswith(f"{name}.") for other in values) else flow(value)
