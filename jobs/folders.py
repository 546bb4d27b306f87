"""The files that the launcher writes: `run.yaml` and `job.json` in each run's folder, and `sweep.json` in the sweep's."""

from __future__ import annotations

import dataclasses
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jobs.plan.architecture import architecture
from jobs.plan.graph import Graph, Job
from jobs.plan.launch import Launch
from jobs.plan.shards import equivalent_images, facts, folders_of
from jobs.plan.sweep import Spec
from vitssl.atomic import write_atomically
from vitssl.config import SCHEMA, ConfigError, Run, active, checkpoints, read_yaml, save_fields
from vitssl.config.evals import evals_of
from vitssl.config.sweep import Arm
from vitssl.files import read_json, try_lock, write_json
from vitssl.reader import read_whole
from vitssl.run_folder import CANCELLED, DONE, ERROR, JOB, LAST, RUN
from vitssl.sweep_folder import GRID, SUBMITTING, SWEEP, SWEEP_FILE
from vitssl.version import ROOT, snapshot_of, sources_of

TRAINING = "vitssl.train"  # the module that trains a run


def check_trained(jobs: Sequence[Job]) -> None:
    """Raise a ConfigError if the record of a trained run is damaged, or if the checkpoint that another run starts from is missing."""
    for job in (job for job in jobs if job.is_trained):
        read_json(job.folder / DONE)
    for job in (job for job in jobs if not job.is_trained):
        for parent in (parent for parent in job.parents if parent.is_trained and not (parent.folder / LAST).exists()):
            advice = f"restore it, or remove {parent.folder} to train it again"
            raise ConfigError(f"{parent.folder / 'last.pt'} is missing, but {job.name} starts from it; {advice}")


class Busy(ConfigError):
    """Raised if another process is submitting the sweep."""


@contextmanager
def locked(sweep: Path) -> Iterator[None]:
    """Hold the lock of a sweep's submission. A second submission at the same time would not see the jobs that the first is about to queue.

    Raises:
        Busy: another process holds the lock.
    """
    with try_lock(sweep / SUBMITTING, "--runs") as free:
        if not free:
            raise Busy(f"{sweep} is being submitted by another process; try again when it has finished")
        yield


# --------------------------------------------------------------------------------------------------------- run folders


def keep_sweep_file(spec: Spec, launch: Launch) -> None:
    """Copy the sweep file into the sweep's folder, from where it can be submitted again wherever the folder lies."""
    write_atomically(launch.sweep / SWEEP_FILE, read_whole(spec.file))


def keep_grid(launch: Launch) -> None:
    """Copy the site's file of carbon intensities into the sweep's folder, where containers and reports can read it."""
    if launch.site.intensity_csv is not None:
        copy = launch.sweep / GRID
        if Path(launch.site.intensity_csv) != copy:
            write_atomically(copy, read_whole(launch.site.intensity_csv))
        launch.site.intensity_csv = str(copy)


def status_command(sweep: Path) -> str:
    """Return the shell command that shows a sweep's status, with this process's interpreter."""
    script = ROOT / "jobs" / "status.py"
    shown_path = script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script
    return shlex.join([sys.orig_argv[0], str(shown_path), str(sweep)])


def write_run(job: Job, launch: Launch) -> None:
    """Write `run.yaml` and `job.json` of a run, and remove the records of how an earlier attempt ended.

    A run that has begun continues with the source that it began with, and with a `run.yaml` that this source can read. The files of a
    trained run are kept, since they say how it was trained; only the present place of its images and its evaluation are updated.
    """
    record, source = read_json(job.folder / JOB), _source(job, launch)
    begun = (job.folder / LAST).exists()
    trained = bool(record) and job.is_trained
    fields = dataclasses.asdict(job.run)
    if trained or source != launch.source:
        recorded = read_yaml(job.folder / RUN, variables=False)
        fields = _evaluated_now(recorded, fields) if trained else _as_known(recorded, fields)
    save_fields(fields, job.folder)
    content = launch.about() | dataclasses.asdict(job.resources)
    content |= {
        "identity": job.identity,
        "schema": SCHEMA,
        "name": job.name,
        "arm": job.arm,
        "stage": job.stage,
        "axes": job.axes,
        "architecture": architecture(job.run),
        "data": facts(job.run),
        "executor": launch.executor,
        "module": TRAINING,
        "parents": [str(parent.folder) for parent in job.parents],
        "binds": [*(path for shards in _shards_of(job.run) for path in folders_of(shards)), *checkpoints(job.run).values()],
        "cache_dir": job.run.data.cache_dir,
        "source": str(source),
    }
    if begun and not trained:
        content = _with_sources(content, record, source)
    write_json(job.folder / JOB, record | {"evaluation": content} if trained else content)
    for stale in (ERROR, CANCELLED):
        (job.folder / stale).unlink(missing_ok=True)


def restate(job: Job) -> None:
    """Write the evaluators of this submission into the `run.yaml` of a run that is done, and remove its error.

    An earlier submission with other evaluators may have failed or been stopped. It left its evaluators in `run.yaml`, whose results a
    report would miss, and its error.
    """
    evaluated_later = "evaluation" in read_json(job.folder / JOB)  # otherwise its `run.yaml`, which is slow to read, is unchanged
    if job.reused is not None or not evaluated_later or not job.is_done:
        return
    recorded = read_yaml(job.folder / RUN, variables=False)
    if (updated := _evaluated_now(recorded, dataclasses.asdict(job.run))) != recorded:
        save_fields(updated, job.folder)
    (job.folder / ERROR).unlink(missing_ok=True)


def _shards_of(run: Run) -> list[str]:
    return [run.data.shards, *(cfg.shards for cfg in evals_of(run).values() if cfg.shards)]


def _evaluated_now(known: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return the fields ``known`` of a trained run's `run.yaml`, with the evaluators and the place of the shards from ``now``."""
    return known | {"evals": now["evals"], "data": known["data"] | {"shards": now["data"]["shards"]}}


def _as_known(known: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return the values in ``now`` of exactly the fields that an older `run.yaml` (``known``) has; fields that ``now`` lacks are kept."""
    return {
        name: _as_known(value, now[name])
        if isinstance(value, dict) and isinstance(now.get(name), dict) and name != "evals"
        else now.get(name, value)
        for name, value in known.items()
    }


def _source(job: Job, launch: Launch) -> Path:
    """Return the source snapshot that a run trains with. A run that has begun keeps its snapshot, unless that is gone or not wanted."""
    begun = (job.folder / LAST).exists() and not job.is_trained
    kept = snapshot_of(job.folder, read_json(job.folder / JOB)) if begun and not launch.use_current_source else None
    return kept or launch.source


def _with_sources(content: dict[str, Any], record: dict[str, Any], source: Path) -> dict[str, Any]:
    """Return the ``content`` of a begun run's job.json with what it was trained with before, according to the ``record`` there."""
    if not (known := sources_of(record)):
        return content
    if Path(known[-1]["source"]).name != source.name:
        return content | {"earlier_sources": known}
    *earlier, present = known
    others = {name: value for name, value in content.items() if name not in ("commit", "dirty")}
    return others | present | {"source": str(source)} | ({"earlier_sources": earlier} if earlier else {})


# --------------------------------------------------------------------------------------------------------- sweep.json


def write_sweep(spec: Spec, graph: Graph, launch: Launch) -> None:
    """Write `sweep.json`, the only file besides the run folders that a report reads."""
    cells = [
        {
            "arm": cell.arm,
            "axes": cell.axes,
            "stages": [{"stage": s.name, "folder": j.name} for s, j in zip(cell.stages, jobs, strict=True)],
        }
        for cell, jobs in graph.cells
    ]
    copied = ("published", "quoted", "not_runnable", "note", "baseline")
    arms = [
        {"name": name, "row": arm.row or name, **{key: getattr(arm, key) for key in copied}, "published_cost": _published_cost(arm, spec)}
        | _relearnt(name, arm, spec, graph)
        for name, arm in spec.arms.items()
    ]
    content = launch.about() | {
        "name": spec.name,
        "file": spec.file,
        "paper": dataclasses.asdict(spec.paper) if spec.paper else None,
        "notes": spec.notes,
        "overrides": _overrides(spec),
        "columns": spec.columns,
        "baseline": spec.baseline if spec.baseline in spec.arms else None,
        "metric": spec.metric,
        "select": spec.select,
        "equal": spec.equal_facts,
        "axes": {name: list(values) for name, values in spec.axes.items()},
        "arms": arms,
        "cells": cells,
        "work": {job.name: {"images": equivalent_images(job.run), "architecture": architecture(job.run)} for job in graph.jobs},
        "resources": dataclasses.asdict(spec.resources),
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    write_json(launch.sweep / SWEEP, content)


def _relearnt(name: str, arm: Arm, spec: Spec, graph: Graph) -> dict[str, Any]:
    """Return the changed facts of an arm whose objectives the command line replaces, an empty dict for other arms.

    Its row is named with the objectives, and no published number is shown beside it, since no paper measured it.
    """
    stages = next((cell.stages for cell, _ in graph.cells if cell.arm == name), [])
    settings = [setting for setting in spec.overrides.settings if setting.arm in (None, name)]
    if not stages or not any(setting.field.split(".")[0] == "objectives" and setting.objective is None for setting in settings):
        return {}
    learns = ", then ".join(" + ".join(active(stage.run.objectives)) for stage in stages)
    return {"row": f"{arm.row or name} ({learns})", "published": None, "quoted": False, "published_cost": None}


def _overrides(spec: Spec) -> list[str]:
    """Return the keys that the command line set and that may change results: fields of Runs, axes and equal costs.

    An axis of the file that the command line only narrows to some of its labels does not count, nor does the seed.
    """
    cli = spec.overrides
    axes = [axis for axis in cli.axes if axis != "seed" and (axis in spec.added_axes or "." in axis)]
    equal = [key for key in ("length", "equalize", "equal_to") if key in cli.sweep]
    return list(dict.fromkeys([*(setting.key for setting in cli.settings), *axes, *equal]))


def _published_cost(arm: Arm, spec: Spec) -> dict[str, Any] | None:
    """Return the published cost of an arm; if it is given by column, that of the sweep's first column that has one, or None."""
    if arm.published_cost is None or any(not isinstance(value, dict) for value in arm.published_cost.values()):
        return arm.published_cost
    for label in spec.axes.get(spec.columns or "", {}):
        if str(label) in arm.published_cost:
            return {**arm.published_cost[str(label)], "column": str(label)}
    return None
