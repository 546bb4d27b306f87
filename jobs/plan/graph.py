"""The graph of a sweep's Runs: equal ones are one node of it.

Their identity is the hash of everything that defines their result, including their parents' identity.
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
from jobs.plan.existing import content_of, run_folders
from jobs.plan.sweep import Spec
from vitssl import config
from vitssl.config import ConfigError, Run, assign, checkpoints, identity, reads_labels
from vitssl.config.evals import FeaturesConfig, evals_of
from vitssl.config.sweep import Resources
from vitssl.run_folder import is_done, is_trained

PLACES = ("data.shards", "data.source")  # of the same images


@dataclass
class Job:
    """A node of the graph: one Run, trained once, in its folder.

    Attributes:
        reused: the folder of an equal run of another sweep, which is to be taken from there.
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
        """The folder with what it left when it was trained."""
        return self.reused or self.folder

    @property
    def is_trained(self) -> bool:
        """Can others start from it?"""
        return is_trained(self.results)

    @property
    def is_done(self) -> bool:
        """Is it trained, with the results of all its evaluators?"""
        return is_done(self.results, self.run)


@dataclass
class Graph:
    """The jobs, parents before children, and the jobs of each cell of the report."""

    jobs: list[Job]
    cells: list[tuple[Cell, list[Job]]]


def link(spec: Spec, planned: list[Cell], folder: Path, fingerprint: Callable[[Run], str | None]) -> Graph:
    """Merge equal Runs and give each its folder: that of the same identity in the sweep's ``folder``, whatever the first part of its name.

    ``fingerprint`` gives the content hash of a Run's data, or None where it is not built yet.
    """
    jobs: dict[str, Job] = {}
    existing, result = run_folders(folder), []
    for cell in planned:
        done: dict[str, Job] = {}
        for stage in cell.stages:
            job = _job(spec, cell, stage, done, folder, existing, fingerprint)
            done[stage.name] = jobs.setdefault(job.identity, job)
            with stage.error_location():
                _check_shared_labels(job, done[stage.name].run, there=job.identity in existing)
                _share_evaluators(job, done[stage.name])
                if stage is cell.stages[-1]:
                    _check_told_apart(job, done[stage.name])
        result.append((cell, list(done.values())))
    return Graph(list(jobs.values()), result)


def _job(spec: Spec, cell: Cell, stage: Stage, done: dict[str, Job], sweep: Path, existing: dict[str, Path], fingerprint: Callable) -> Job:
    run = copy.deepcopy(stage.run)
    with stage.error_location():
        run.data.sha256 = fingerprint(run)
    hashed = copy.deepcopy(run)
    hashed.data.sha256 = run.data.sha256 or f"not built yet: {run.data.shards}"
    for name, value in checkpoints(run).items():
        if name in stage.pointers:
            parent = done[stage.pointers[name]]
            assign(run, name, str(parent.folder))
            assign(hashed, name, f"run:{parent.identity}")
        else:
            assign(hashed, name, content_of(Path(value)))
    key = identity(hashed)
    parents = list({id(done[s]): done[s] for s in stage.pointers.values()}.values())
    axes = _axes_of(spec, cell, stage)
    folder, resources = existing.get(key) or sweep / _name(cell, stage, axes, key), resources_of(spec, cell.arm)
    if key not in existing:
        with stage.error_location():
            config.check_slices(run, resources.nodes * max(1, resources.gpus_per_node))
    if is_trained(folder):
        resources = only_evaluated(resources)
    return Job(key, run, folder, cell.arm, stage.name, axes, resources, parents)


def learner(run: Run) -> str | None:
    """The first evaluator that learns from the labels of a run whose training reads none: equal runs may have others in ``data.labels``."""
    learners = (name for name, cfg in evals_of(run).items() if isinstance(cfg, FeaturesConfig))
    return None if reads_labels(run) else next(learners, None)


def _check_shared_labels(job: Job, first: Run, there: bool) -> None:
    """Raises a ConfigError where the first equal run of the sweep, or the one whose folder is ``there``, has other labels to learn from."""
    if (name := learner(job.run)) is None:
        return
    if any(job.run.data.labels != equal.data.labels for equal in (first, *([config.load(job.folder)] if there else []))):
        reason = "it learns from labels, while this pretraining ignores them and is shared by arms with different data.labels"
        raise ConfigError(f"{reason}; set it in a later stage, or give each arm its own sweep (name=)", f"evals.{name}")


def _share_evaluators(job: Job, first: Job) -> None:
    """Let the run of equal Runs have the evaluators of all of them; raises a ConfigError where one name stands for two."""
    there = evals_of(first.run)
    for name, cfg in evals_of(job.run).items():
        if name in there and there[name].defining() != cfg.defining():
            reason = f"evaluators do not affect results, so run {first.name} is shared, which has another {name!r}"
            raise ConfigError(f"{reason}; give one of them another name", f"evals.{name}")
        if name not in there:
            first.run.evals[name] = job.run.evals[name]


def _check_told_apart(job: Job, first: Job) -> None:
    """Raises a ConfigError where a result of the sweep is to differ from another by what does not change results."""
    for part in ("loop", "data", "backbone"):
        ours, theirs = getattr(job.run, part), getattr(first.run, part)
        for name in (each.name for each in dataclasses.fields(ours) if not each.metadata.get("identity", True)):
            if f"{part}.{name}" not in PLACES and getattr(ours, name) != getattr(theirs, name):
                reason = f"this setting does not affect results, so both would share run {first.name}"
                raise ConfigError(f"{reason}; give each its own sweep (name=)", f"{part}.{name}")


def only_evaluated(resources: Resources) -> Resources:
    """What evaluating a trained run asks for, which is all that is left to do of it."""
    return dataclasses.replace(resources, nodes=1, gpus_per_node=min(1, resources.gpus_per_node))


def _axes_of(spec: Spec, cell: Cell, stage: Stage) -> dict[str, Any]:
    """The axes and their values, but for those that set other fields only: a pretraining is not its first target's.

    Those are fields of other stages, and on the command line of objectives that are not on.
    """
    chain: list[Stage] = []  # the stage, and those that it starts from
    for each in reversed(cell.stages):
        if each is stage or any(each.name in later.pointers.values() for later in chain):
            chain.append(each)

    def matters(axis: str) -> bool:
        sets = [setting for chosen in spec.axes[axis].values() for setting in chosen]
        return not sets or any(setting.applies_to(each.name, each.run) for setting in sets for each in chain)

    return {axis: value for axis, value in cell.axes.items() if matters(axis)}


def _name(cell: Cell, stage: Stage, axes: dict[str, Any], key: str) -> str:
    """The name of a run's folder."""
    stages = [stage.name] if len(cell.stages) > 1 else []
    parts = [cell.arm, *stages, *(short(axis, value) for axis, value in axes.items()), key]
    return "-".join(re.sub(r"[^A-Za-z0-9._]+", "_", part) for part in parts)


def short(axis: str, value: Any) -> str:
    """A value of an axis, as in the names of runs."""
    if isinstance(value, str):
        return value
    return f"s{value}" if axis == "seed" else f"{axis.rsplit('.', 1)[-1]}{value}"
