"""What the launcher writes to disk: each run's folder, and the sweep's."""

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
from jobs.plan.shards import facts, folders_of, images_worked
from jobs.plan.sweep import Spec
from vitssl.atomic import write_atomically
from vitssl.config import SCHEMA, ConfigError, Run, active, checkpoints, read_yaml, save_fields
from vitssl.config.evals import evals_of
from vitssl.config.sweep import Arm
from vitssl.files import held, read_json, write_json
from vitssl.reader import read_whole
from vitssl.run_folder import CANCELLED, DONE, ERROR, LAST
from vitssl.sweep_folder import GRID, SUBMITTING, SWEEP
from vitssl.version import ROOT

TRAINING = "vitssl.train"  # the module that trains a run


def check_trained(jobs: Sequence[Job]) -> None:
    """Refuse trained runs with a damaged record, or without the checkpoint that another run starts from."""
    for job in (job for job in jobs if job.is_trained):
        read_json(job.folder / DONE)
    for job in (job for job in jobs if not job.is_trained):
        for parent in (parent for parent in job.parents if parent.is_trained and not (parent.folder / LAST).exists()):
            advice = f"restore it, or remove {parent.folder} to train it again"
            raise ConfigError(f"{parent.folder / 'last.pt'} is missing, but {job.name} starts from it; {advice}")


class Busy(ConfigError):
    """Another process submits the sweep now."""


@contextmanager
def locked(sweep: Path) -> Iterator[None]:
    """One submission of a sweep at a time: a second one would not see the jobs that the first is about to queue.

    Raises:
        Busy: another process holds the lock.
    """
    with held(sweep / SUBMITTING, "--runs") as free:
        if not free:
            raise Busy(f"{sweep} is being submitted by another process; try again when it has finished")
        yield


# --------------------------------------------------------------------------------------------------------- run folders


def keep_grid(launch: Launch) -> None:
    """Copy the file of the grid's intensity beside the runs, where their containers and reports see it."""
    if launch.site.intensity_csv is not None:
        own = launch.sweep / GRID
        if Path(launch.site.intensity_csv) != own:
            write_atomically(own, read_whole(launch.site.intensity_csv))
        launch.site.intensity_csv = str(own)


def status_command(sweep: Path) -> str:
    """The command that shows a sweep's status, with the same interpreter."""
    script = ROOT / "jobs" / "status.py"
    near = script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script
    return shlex.join([sys.orig_argv[0], str(near), str(sweep)])


def write_run(job: Job, launch: Launch) -> None:
    """Write `run.yaml` and `job.json`, and take away what says how an earlier try ended.

    A run that has begun continues with the source that it began with, and with a `run.yaml` that this source can read. Those of a trained
    run stay, as they say how it was trained; where its images are now and how it is evaluated is added.
    """
    before, source = read_json(job.folder / "job.json"), _source(job, launch)
    trained = bool(before) and job.is_trained
    fields = dataclasses.asdict(job.run)
    if trained or source != launch.source:
        known = read_yaml(job.folder / "run.yaml", variables=False)
        fields = _evaluated_now(known, fields) if trained else _as_known(known, fields)
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
    write_json(job.folder / "job.json", before | {"evaluation": content} if trained else content)
    for stale in (ERROR, CANCELLED):
        (job.folder / stale).unlink(missing_ok=True)


def restate(job: Job) -> None:
    """Let a run that is done say the evaluators that are asked for now: an attempt at others, that failed or was stopped, may have left
    those in its `run.yaml`, whose results a report would miss, and its error."""
    evaluated_later = "evaluation" in read_json(job.folder / "job.json")  # else nobody has changed its `run.yaml`, which takes long to read
    if job.reused is not None or not evaluated_later or not job.is_done:
        return
    known = read_yaml(job.folder / "run.yaml", variables=False)
    if (now := _evaluated_now(known, dataclasses.asdict(job.run))) != known:
        save_fields(now, job.folder)
    (job.folder / ERROR).unlink(missing_ok=True)


def _shards_of(run: Run) -> list[str]:
    return [run.data.shards, *(cfg.shards for cfg in evals_of(run).values() if cfg.shards)]


def _evaluated_now(known: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The `run.yaml` of a trained run, with today's evaluators, and where its images are today."""
    return known | {"evals": now["evals"], "data": known["data"] | {"shards": now["data"]["shards"]}}


def _as_known(known: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The fields of an older `run.yaml`, and no others, with the values that they have now."""
    return {
        name: _as_known(value, now[name])
        if isinstance(value, dict) and isinstance(now.get(name), dict) and name != "evals"
        else now.get(name, value)
        for name, value in known.items()
    }


def _source(job: Job, launch: Launch) -> Path:
    """The snapshot that the run trains with: for one that has begun, the one that it began with."""
    before = read_json(job.folder / "job.json").get("source")
    begun = before is not None and (job.folder / LAST).exists() and not job.is_trained
    return Path(before) if begun and Path(before).exists() and not launch.use_current_source else launch.source


# --------------------------------------------------------------------------------------------------------- sweep.json


def write_sweep(spec: Spec, graph: Graph, launch: Launch) -> None:
    """Write `sweep.json`, the only thing besides run folders that a report reads."""
    cells = [
        {
            "arm": cell.arm,
            "axes": cell.axes,
            "stages": [{"stage": s.name, "folder": j.name} for s, j in zip(cell.stages, jobs, strict=True)],
        }
        for cell, jobs in graph.cells
    ]
    shown = ("published", "quoted", "not_runnable", "note", "baseline")
    arms = [
        {"name": name, "row": arm.row or name, **{key: getattr(arm, key) for key in shown}, "published_cost": _published_cost(arm, spec)}
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
        "work": {job.name: {"images": images_worked(job.run), "architecture": architecture(job.run)} for job in graph.jobs},
        "resources": dataclasses.asdict(spec.resources),
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    write_json(launch.sweep / SWEEP, content)


def _relearnt(name: str, arm: Arm, spec: Spec, graph: Graph) -> dict[str, Any]:
    """What is said of an arm that the command line makes learn other things: its objectives with its name, and no paper's number."""
    stages = next((cell.stages for cell, _ in graph.cells if cell.arm == name), [])
    settings = [one for one in spec.overrides.settings if one.arm in (None, name)]
    if not stages or not any(one.field.split(".")[0] == "objectives" and one.objective is None for one in settings):
        return {}
    learns = ", then ".join(" + ".join(active(stage.run.objectives)) for stage in stages)
    return {"row": f"{arm.row or name} ({learns})", "published": None, "quoted": False, "published_cost": None}


def _overrides(spec: Spec) -> list[str]:
    """What the command line set that results may follow from: fields of Runs, equal costs, and axes, but for one that it only narrows to
    some of its labels."""
    cli = spec.overrides
    axes = [axis for axis in cli.axes if axis != "seed" and (axis in spec.added_axes or "." in axis)]
    equal = [key for key in ("length", "equalize", "equal_to") if key in cli.sweep]
    return list(dict.fromkeys([*(setting.key for setting in cli.settings), *axes, *equal]))


def _published_cost(arm: Arm, spec: Spec) -> dict[str, Any] | None:
    """A paper's cost is shown only for the column that it was measured on."""
    if arm.published_cost is None or any(not isinstance(value, dict) for value in arm.published_cost.values()):
        return arm.published_cost
    for label in spec.axes.get(spec.columns or "", {}):
        if str(label) in arm.published_cost:
            return {**arm.published_cost[str(label)], "column": str(label)}
    return None
