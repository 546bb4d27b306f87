"""From a sweep to the graph of its Runs.

How the fields of a stage are merged stands in `layers.py`.

A stage may start from an earlier stage of its arm (`init_from: pretrain`). Equal Runs are one node of the graph: their identity
is the hash of everything that defines their result, including their parent's identity.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs import checks, layers
from jobs.existing import content_of, run_folders
from jobs.overrides import CLI
from jobs.sweep import Spec, resources
from vitssl import config
from vitssl.config import ConfigError, Run, assign, check_fits, checkpoints, identity, merge, reads_labels, unknown
from vitssl.config.evals import FeaturesConfig, evals_of
from vitssl.config.sweep import Resources
from vitssl.config.weights import IMPORT, RELEASED
from vitssl.files import runs_that_begin
from vitssl.run_folder import is_done, is_trained

MOST_CELLS = 20_000  # of a sweep: more than anybody waits for
PLACES = ("data.shards", "data.source")  # of the same images


@dataclass
class Stage:
    """One stage of one cell.

    Attributes:
        where: its file and place there.
        cli_fields: those that the command line sets.
        of_file: its fields as the file has them.
        pointers: {field: stage} of those that name an earlier stage of the arm.
    """

    name: str
    run: Run
    where: str
    cli_fields: list[str] = field(default_factory=list)
    of_file: dict[str, Any] = field(default_factory=dict)
    pointers: dict[str, str] = field(default_factory=dict)

    def error_location(self) -> AbstractContextManager[None]:
        return error_location(self.where, self.cli_fields)


@dataclass
class Cell:
    """One arm at one value of every axis."""

    arm: str
    axes: dict[str, Any]
    stages: list[Stage]


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
        """So that others can start from it?"""
        return is_trained(self.results)

    @property
    def is_done(self) -> bool:
        """Trained, with the results of all its evaluators?"""
        return is_done(self.results, self.run)


@dataclass
class Graph:
    """The jobs, parents before children, and the jobs of each cell of the report."""

    jobs: list[Job]
    cells: list[tuple[Cell, list[Job]]]


@contextmanager
def error_location(where: str, cli_fields: Collection[str]) -> Iterator[None]:
    """Add to an error where its field was set: ``where``, a file and the place in it, or the command line."""
    try:
        yield
    except ConfigError as error:
        # an error that has a place already is about another file, and so is its field
        reason, wrong = (str(error), "") if error.place else (error.reason, error.field)
        if any(wrong == name or wrong.startswith((f"{name}.", f"{name}[")) for name in cli_fields):
            raise ConfigError(f"{reason} (in {where})", wrong, CLI) from None
        changed = f" (the command line set {', '.join(cli_fields)})" if cli_fields else ""
        raise ConfigError(f"{reason}{changed}", wrong, where) from None


def cells(spec: Spec) -> list[Cell]:
    """Every runnable arm at every combination of axis values, each stage merged and checked.

    Raises:
        ConfigError: the first mistake, naming the place and the field.
    """
    count = len(spec.arms) * math.prod(map(len, spec.axes.values()))
    if count > MOST_CELLS:
        reason = f"{count:,} combinations of arms and values, more than {MOST_CELLS:,}; leave out some axes or values"
        raise ConfigError(reason, "axes", spec.file)
    layers.check_axes(spec)
    points = [dict(zip(spec.axes, values, strict=True)) for values in itertools.product(*spec.axes.values())]
    places = [(arm, labels) for arm, labels in itertools.product(spec.arms, points) if spec.arms[arm].stages]
    staged = ((arm, labels, stage) for arm, labels in places for stage in spec.arms[arm].stages)
    checks.check_whose(spec, ((arm, stage, layers.of_file(spec, arm, labels, stage)) for arm, labels, stage in staged))
    result = [Cell(arm, labels, [_merged(spec, arm, labels, stage) for stage in spec.arms[arm].stages]) for arm, labels in places]
    checks.take_named_backbones(result)
    for cell in result:
        _check(spec, cell)
    checks.check_objectives(spec, result)
    checks.check_chains(result)
    checks.check_metric(spec, result)
    checks.check_select(spec, result)
    return result


def _merged(spec: Spec, arm: str, labels: dict[str, Any], name: str) -> Stage:
    """A stage, its Run not checked yet."""
    where, of_file = f"{spec.file}: arms.{arm}.stages.{name}", layers.of_file(spec, arm, labels, name)
    of_run, cli_fields = layers.merged(spec, arm, labels, name, of_file)
    with error_location(where, cli_fields):
        return Stage(name, merge(Run, of_run), where, cli_fields, of_file)


def _check(spec: Spec, cell: Cell) -> None:
    """Check the Runs of a cell, and find what they start from."""
    for i, stage in enumerate(cell.stages):
        with stage.error_location():
            config.check(stage.run)
            config.refuse_inactive_fields(stage.run, stage.cli_fields)
            config.refuse_rising_lr(stage.run)
            asked = resources_of(spec, cell.arm)
            world = asked.nodes * max(1, asked.gpus_per_node)
            if stage.run.optim.batch_size % world:
                over = f"resources.nodes x gpus_per_node = {world} processes"
                raise ConfigError(f"{stage.run.optim.batch_size} is global and cannot be split evenly over {over}", "optim.batch_size")
            earlier = {each.name: each.run for each in cell.stages[:i]}
            stage.pointers = _pointers(stage.run, list(earlier), [each.name for each in cell.stages[i:]])
            for pointer, parent in stage.pointers.items():
                check_fits(stage.run, pointer, earlier[parent])


def resources_of(spec: Spec, arm: str) -> Resources:
    """The sweep's resources, overridden by the arm's, which already hold the command line's."""
    return resources(spec.file, f"arms.{arm}.resources", vars(spec.resources), spec.arms[arm].resources)


def _pointers(run: Run, earlier: list[str], later: list[str]) -> dict[str, str]:
    """{field: stage} of the fields that name an earlier stage, and not itself or a ``later`` one; others name released weights or paths,
    which become absolute."""
    pointers = {}
    for name, value in checkpoints(run).items():
        if value in earlier:
            pointers[name] = value
        elif value.startswith((RELEASED, IMPORT)):
            continue
        elif value in later and not Path(value).exists():
            raise ConfigError(f"{value} is not an earlier stage of the arm; write it above the stages that start from it", name)
        elif "/" not in value and not Path(value).exists():  # `weights.prepare` checks that paths exist
            named = unknown(value, earlier).reason if earlier else repr(value)
            raise ConfigError(f"{named}{'; it' if earlier else ''} is not an earlier stage of the arm, nor a file or run folder", name)
        else:
            assign(run, name, str(_run_or_file(Path(value), name).resolve()))
    return pointers


def _run_or_file(path: Path, field: str) -> Path:
    """What a path names: the beginning of a run folder's name does for it, where no other begins so."""
    begun = [] if path.exists() else runs_that_begin(path)
    if len(begun) > 1:
        raise ConfigError(f"{path} begins the names of {len(begun)} runs; name one, such as {begun[0]}", field)
    return begun[0] if begun else path


# --------------------------------------------------------------------------------------------------------------- link


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
