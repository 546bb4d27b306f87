"""The graph of a sweep's Runs, in which equal Runs are one node.

A Run's identity is the hash of everything that defines its result, including the identities of the runs that it starts from.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.plan.cells import Cell, Stage, resources_of
from jobs.plan.existing_runs import content_of, run_folders
from jobs.plan.sweep import Spec
from vitssl import config
from vitssl.config import ConfigError, Run, assign, checkpoints, identity, reads_labels
from vitssl.config.evals import FeaturesConfig, evals_of
from vitssl.config.sweep import Resources
from vitssl.run_folder import is_done, is_trained

MOST_NAME = 240  # letters of a run folder's name: most file systems take 255, and `reuse.take` needs some
PLACES = ("data.shards", "data.source")  # where images are: equal Runs may differ in these, as the images are the same


@dataclass
class Job:
    """A node of the graph: one Run, which is trained once, in its folder.

    Attributes:
        reused: the folder of an equal run in another sweep that is taken instead of training this one; None if there is none.
    """

    identity: str
    run: Run
    folder: Path
    arm: str
    stage: str
    axes: dict[str, Any]
    resources: Resources
    parents: list[Job]
    reused: Path | None = None

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def results(self) -> Path:
        """The folder that holds the results of the trained run: another sweep's if they are reused, otherwise its own."""
        return self.reused or self.folder

    @property
    def is_trained(self) -> bool:
        """Whether the run is trained, so that others can start from it."""
        return is_trained(self.results)

    @property
    def is_done(self) -> bool:
        """Whether the run is trained and has the results of all its evaluators."""
        return is_done(self.results, self.run)


@dataclass
class Graph:
    """The jobs of a sweep, parents before children, and the jobs of each cell of its report."""

    jobs: list[Job]
    cells: list[tuple[Cell, list[Job]]]


def link(spec: Spec, planned: list[Cell], folder: Path, fingerprint: Callable[[Run], str | None]) -> Graph:
    """Merge equal Runs into jobs, and give each job its folder.

    Args:
        spec: the sweep.
        planned: its cells.
        folder: the sweep's folder; a run folder with the same identity is kept, whatever the first part of its name.
        fingerprint: returns the content hash of a Run's data, or None if its shards are not built yet.
    """
    jobs: dict[str, Job] = {}
    existing, linked = run_folders(folder), []
    for cell in planned:
        stage_jobs: dict[str, Job] = {}
        for stage in cell.stages:
            job = _job(spec, cell, stage, stage_jobs, folder, existing, fingerprint)
            stage_jobs[stage.name] = jobs.setdefault(job.identity, job)
            with stage.error_location():
                _check_shared_labels(job, stage_jobs[stage.name].run, there=job.identity in existing)
                _share_evaluators(job, stage_jobs[stage.name])
                if stage is cell.stages[-1]:
                    _check_told_apart(job, stage_jobs[stage.name])
        linked.append((cell, list(stage_jobs.values())))
    return Graph(list(jobs.values()), linked)


def _job(spec: Spec, cell: Cell, stage: Stage, done: dict[str, Job], sweep: Path, existing: dict[str, Path], fingerprint: Callable) -> Job:
    """Make the job of a stage from ``done``, the jobs of the cell's earlier stages by name."""
    run = copy.deepcopy(stage.run)
    with stage.error_location():
        run.data.sha256 = fingerprint(run)
    hashed_run = copy.deepcopy(run)
    hashed_run.data.sha256 = run.data.sha256 or f"not built yet: {run.data.shards}"
    for name, value in checkpoints(run).items():
        if name in stage.pointers:
            parent = done[stage.pointers[name]]
            assign(run, name, str(parent.folder))
            assign(hashed_run, name, f"run:{parent.identity}")
        else:
            assign(hashed_run, name, content_of(Path(value)))
    key = identity(hashed_run)
    parents = list({id(done[s]): done[s] for s in stage.pointers.values()}.values())
    axes = _axes_of(spec, cell, stage)
    folder, resources = existing.get(key) or sweep / _name(cell, stage, axes, key), resources_of(spec, cell.arm)
    if key not in existing:
        _check_name(folder.name, spec)
        with stage.error_location():
            config.check_slices(run, resources.nodes * max(1, resources.gpus_per_node))
    if is_trained(folder):
        resources = only_evaluated(resources)
    return Job(key, run, folder, cell.arm, stage.name, axes, resources, parents)


def label_learner(run: Run) -> str | None:
    """Return the first evaluator that learns from labels although the Run's training reads none, or None.

    For such a Run ``data.labels`` is no part of the identity, so that equal Runs may differ in it.
    """
    learners = (name for name, cfg in evals_of(run).items() if isinstance(cfg, FeaturesConfig))
    return None if reads_labels(run) else next(learners, None)


def _check_shared_labels(job: Job, first: Run, there: bool) -> None:
    """Refuse an evaluator that would learn from other labels than in an equal Run, with which it shares a run folder.

    Args:
        job: the Run to check.
        first: the first equal Run of the sweep.
        there: whether the run's folder exists, whose labels are compared too.

    Raises:
        ConfigError: the labels differ.
    """
    if (name := label_learner(job.run)) is None:
        return
    if any(job.run.data.labels != other.data.labels for other in (first, *([config.load(job.folder)] if there else []))):
        reason = "it learns from labels, while this pretraining ignores them and is shared by arms with different data.labels"
        raise ConfigError(f"{reason}; set it in a later stage, or give each arm its own sweep (name=)", f"evals.{name}")


def _share_evaluators(job: Job, first: Job) -> None:
    """Add the evaluators of ``job`` to the ``first`` of the equal Runs, which is the one that is trained.

    Raises:
        ConfigError: the two Runs have different evaluators of the same name.
    """
    shared = evals_of(first.run)
    for name, cfg in evals_of(job.run).items():
        if name in shared and shared[name].defining() != cfg.defining():
            reason = f"evaluators do not affect results, so run {first.name} is shared, which has another {name!r}"
            raise ConfigError(f"{reason}; give one of them another name", f"evals.{name}")
        if name not in shared:
            first.run.evals[name] = job.run.evals[name]


def _check_told_apart(job: Job, first: Job) -> None:
    """Refuse results of a sweep that differ only in settings that do not change results, as they would share one run.

    Raises:
        ConfigError: naming the setting.
    """
    for part in ("loop", "data", "backbone"):
        ours, theirs = getattr(job.run, part), getattr(first.run, part)
        for name in (field.name for field in dataclasses.fields(ours) if not field.metadata.get("identity", True)):
            if f"{part}.{name}" not in PLACES and getattr(ours, name) != getattr(theirs, name):
                reason = f"this setting does not affect results, so both would share run {first.name}"
                raise ConfigError(f"{reason}; give each its own sweep (name=)", f"{part}.{name}")


def only_evaluated(resources: Resources) -> Resources:
    """Return the resources for a trained run, which only has to be evaluated: one node, and at most one GPU."""
    return dataclasses.replace(resources, nodes=1, gpus_per_node=min(1, resources.gpus_per_node))


def _axes_of(spec: Spec, cell: Cell, stage: Stage) -> dict[str, Any]:
    """Return the axes that a run depends on, with their values: several fine-tunings may share one pretraining.

    An axis is left out if it only sets fields of stages that this run does not start from, or of objectives that are off.
    """
    chain: list[Stage] = []  # the stage, and the stages that it starts from
    for other in reversed(cell.stages):
        if other is stage or any(other.name in later.pointers.values() for later in chain):
            chain.append(other)

    def matters(axis: str) -> bool:
        """Whether an axis sets a field that the run or one that it starts from reads, or sets nothing at all."""
        settings = [setting for chosen in spec.axes[axis].values() for setting in chosen]
        return not settings or any(setting.applies_to(other.name, other.run) for setting in settings for other in chain)

    return {axis: value for axis, value in cell.axes.items() if matters(axis)}


def _name(cell: Cell, stage: Stage, axes: dict[str, Any], key: str) -> str:
    """Return the name of a run's folder: arm, stage if there are several, axis values and identity, joined by dashes."""
    stages = [stage.name] if len(cell.stages) > 1 else []
    parts = [cell.arm, *stages, *(short(axis, value) for axis, value in axes.items()), key]
    return "-".join(re.sub(r"[^A-Za-z0-9._]+", "_", part) for part in parts)


def _check_name(name: str, spec: Spec) -> None:
    """Refuse a name that is too long for a folder, as the values of an axis may make it."""
    if len(name) > MOST_NAME:
        reason = f"a run's folder would have a name of {len(name)} letters, more than {MOST_NAME}: {name[:60]}..."
        raise ConfigError(f"{reason}; give values short names, as in axes.NAME={{LABEL: {{FIELD: VALUE}}}}", "axes", spec.file)


def short(axis: str, value: Any) -> str:
    """Return an axis value as in the names of runs, for example s0 for seed 0, and lr0.1 for optim.lr 0.1."""
    if isinstance(value, str) and value != "null":
        return value
    return f"s{value}" if axis == "seed" else f"{axis.rsplit('.', 1)[-1]}{value}"
