"""From a sweep to the graph of its Runs.

Fields are merged in this order, later ones win:

    the sweep's `defaults` < the arm's `defaults` < axis values < the stage < the command line

A stage's own fields are the most specific of the file: `loop.epochs: 50` of a pretraining stays when an axis varies the epochs of
everything else. Where a key starts with the name of a stage (`finetune.optim.lr`), in an axis or on the command line, it is for
that stage alone, and wins over the stage's own fields too. On the command line, `arms.ssat.` before any of these makes it for that
arm alone, and that wins over what is for all arms.

`data.source` belongs to the `data.shards` beside it: a layer that sets shards without a source drops the source of the layers
below, so that a mistyped folder is never filled with, nor compared to, another data set.

A stage may start from an earlier stage of its arm (`init_from: pretrain`). Equal Runs are one node of the graph: their identity
is the hash of what defines their result, their parent's identity included.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.overrides import check_axes, where_on
from jobs.sweep import Resources, Spec, check_resources
from vitssl import config
from vitssl.config import ConfigError, Run, active, assign, check_fits, checkpoints, dotted, fill, identity, merge, nested, unknown
from vitssl.files import hash_file


@dataclass
class Stage:
    """One stage of one cell, merged and checked; `pointers` holds the stages that its fields name."""

    name: str
    run: Run
    where: str
    pointers: dict[str, str]
    cli_fields: list[str] = field(default_factory=list)  # those that the command line sets

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
    """A node of the graph: one Run to be done, once, in its folder."""

    identity: str
    run: Run
    folder: Path
    arm: str
    stage: str
    axes: dict[str, Any]
    resources: Resources
    parents: list[Job]

    @property
    def name(self) -> str:
        return self.folder.name


@dataclass
class Graph:
    """The jobs, parents before children, and the jobs that each cell of the report stands on."""

    jobs: list[Job]
    cells: list[tuple[Cell, list[Job]]]


@contextmanager
def error_location(where: str, cli_fields: Collection[str]) -> Iterator[None]:
    """Give a mistake the place where its field was set: ``where``, or the command line.

    Args:
        where: the file and the place in it.
        cli_fields: the fields that the command line sets.
    """
    try:
        yield
    except ConfigError as error:
        # what has a place already is of another file, and so is its field
        reason, wrong = (str(error), "") if error.place else (error.reason, error.field)
        if any(wrong == name or wrong.startswith(f"{name}.") for name in cli_fields):
            raise ConfigError(f"{reason} (in {where})", wrong, "command line") from None
        changed = f" (the command line set {', '.join(cli_fields)})" if cli_fields else ""
        raise ConfigError(f"{reason}{changed}", wrong, where) from None


def cells(spec: Spec) -> list[Cell]:
    """Every runnable arm at every combination of axis values, each stage merged and checked.

    Raises:
        ConfigError: the first mistake, naming the file and the field.
    """
    stages = set(spec.stages)
    _check_layers(spec, stages)
    for arm in spec.arms:
        _check_axes(spec, arm, stages)
    result = []
    for arm, values in itertools.product(spec.arms, itertools.product(*spec.axes.values())):
        labels = dict(zip(spec.axes, values, strict=True))
        if spec.arms[arm].stages:
            result.append(Cell(arm, labels, _merge_stages(spec, arm, labels, stages)))
    if not result:
        raise ConfigError(f"{spec.file}: arms: none of {', '.join(spec.arms) or 'them'} can run")
    _check_objectives(spec, result, stages)
    _check_metric(spec, result)
    return result


def _check_axes(spec: Spec, arm: str, stages: set[str]) -> None:
    said = _with_its_source(_for_stage(spec.overrides | spec.arm_overrides.get(arm, {}), None, stages))
    axes = {axis: {label: dotted(nested(fields)) for label, fields in values.items()} for axis, values in spec.axes.items()}
    check_axes(said, axes)


def _check_objectives(spec: Spec, made: list[Cell], stages: set[str]) -> None:
    """A field of an objective that no Run has is a mistake: such fields switch none on."""
    on = {name for cell in made for stage in cell.stages for name in active(stage.run.objectives)}
    for overrides in (spec.overrides, *spec.arm_overrides.values()):
        for key in overrides:
            head, _, rest = key.partition(".")
            name = (rest if head in stages else key).split(".")
            if name[0] == "objectives" and len(name) > 2 and name[1] not in on:
                raise ConfigError(
                    f"command line: {key}: objectives.{name[1]} is on in none of these Runs; objectives.{name[1]}={{}} switches it on"
                )


def _check_metric(spec: Spec, made: list[Cell]) -> None:
    for cell in made:
        if spec.metric.endswith("_ema") and cell.stages[-1].run.loop.ema_decay is None:
            raise ConfigError(f"{spec.place('metric')}: metric: {spec.metric} is of averaged weights, and {cell.arm} has no loop.ema_decay")


def _check_layers(spec: Spec, stages: set[str]) -> None:
    """Each layer alone, so that the error names the place in the file and not the first cell that it touches."""
    layers = {f"{spec.file}: defaults": spec.defaults, f"{spec.file}: smoke": spec.smoke, "command line": spec.overrides}
    layers |= {f"command line: arms.{arm}": fields for arm, fields in spec.arm_overrides.items()}
    for axis, values in spec.axes.items():
        place = spec.place(f"axes.{axis}")
        layers |= {f"{place}: axes.{axis}.{label}": fields for label, fields in values.items()}
    for name, arm in spec.arms.items():
        layers[f"{spec.file}: arms.{name}.defaults"] = arm.defaults
        layers |= {f"{spec.file}: arms.{name}.stages.{stage}": fields for stage, fields in arm.stages.items()}
    for where, layer in layers.items():
        for stage in (None, *stages):
            if part := _for_stage(layer, stage, stages):
                place = where if stage is None else f"{where}: {stage}"
                fill(Run, nested(part), place)


def _for_stage(layer: dict[str, Any], stage: str | None, stages: set[str]) -> dict[str, Any]:
    """The fields of a layer that are for one stage alone; None: those for all stages."""
    picked: dict[str, Any] = {}
    for key, value in layer.items():
        head, _, rest = str(key).partition(".")
        if head not in stages:
            picked |= {key: value} if stage is None else {}
        elif head == stage:
            picked |= {rest: value} if rest else value
    return picked


def _merge_stages(spec: Spec, arm: str, labels: dict[str, Any], stages: set[str]) -> list[Stage]:
    axes = [spec.axes[axis][label] for axis, label in labels.items()]
    asked_axes = [fields for axis, fields in zip(labels, axes, strict=True) if f"axes.{axis}" in spec.said]
    own, resources, merged = spec.arms[arm], resources_of(spec, arm), []
    for name, fields in own.stages.items():
        where = f"{spec.file}: arms.{arm}.stages.{name}"
        layers = [spec.defaults, own.defaults, *(_for_stage(a, None, stages) for a in axes), fields]
        layers += [_for_stage(a, name, stages) for a in axes]
        of_file = len(layers)
        for overrides in (spec.overrides, spec.arm_overrides.get(arm, {})):
            for fields_said in (_for_stage(overrides, None, stages), _for_stage(overrides, name, stages)):
                layers.append(where_on(fields_said, nested(*layers)))
        run = merge(Run, *map(_with_its_source, layers), where=where)
        cli_fields = [*dotted(nested(*asked_axes, *layers[of_file:])), *(key for key in spec.said if key.startswith("resources."))]
        with error_location(where, cli_fields):
            config.check(run)
            config.refuse_unread(run, cli_fields)
            _check_world(run, resources)
            pointers = _pointers(run, [s.name for s in merged])
            for pointer, stage in pointers.items():
                check_fits(run, pointer, next(s.run for s in merged if s.name == stage))
        merged.append(Stage(name, run, where, pointers, cli_fields))
    return merged


def _with_its_source(layer: dict[str, Any]) -> dict[str, Any]:
    """A layer that sets `data.shards` and no `data.source` means shards that are there: it drops the source from below."""
    data = nested(layer).get("data")
    alone = isinstance(data, dict) and "shards" in data and "source" not in data
    return {**layer, "data.source": None} if alone else layer


def resources_of(spec: Spec, arm: str) -> Resources:
    """The sweep's resources under the arm's own, which already hold the command line's."""
    where = f"{spec.file}: arms.{arm}.resources"
    resources = merge(Resources, dataclasses.asdict(spec.resources), spec.arms[arm].resources, where=where)
    check_resources(resources, where)
    return resources


def _check_world(run: Run, resources: Resources) -> None:
    world = resources.nodes * max(1, resources.gpus_per_node)
    if run.optim.batch_size % world:
        reason = f"{run.optim.batch_size} is global and cannot be split evenly over resources.nodes x gpus_per_node = {world} processes"
        raise ConfigError(reason, "optim.batch_size")


def _pointers(run: Run, earlier: list[str]) -> dict[str, str]:
    """{field: stage} of the fields that name an earlier stage; others name released weights or paths, which become absolute."""
    pointers = {}
    for name, value in checkpoints(run).items():
        if value in earlier:
            pointers[name] = value
        elif value.startswith("timm:"):
            continue
        elif "/" not in value and not Path(value).exists():  # whether a path is there, `weights.prepare` sees
            raise ConfigError(f"{unknown(value, earlier)}; it is no earlier stage of the arm and no file or run folder", name)
        else:
            assign(run, name, str(Path(value).resolve()))
    return pointers


# --------------------------------------------------------------------------------------------------------------- link


def link(spec: Spec, planned: list[Cell], folder: Path, fingerprint: Callable[[Run], str | None]) -> Graph:
    """Merge equal Runs and give each its folder.

    Args:
        spec: the sweep.
        planned: its cells.
        folder: the sweep's folder; a run folder that exists there for an identity is found again, whatever its first part says.
        fingerprint: the content hash of a Run's data, or None where it is not built yet.
    """
    jobs: dict[str, Job] = {}
    result = []
    for cell in planned:
        done: dict[str, Job] = {}
        for stage in cell.stages:
            job = _job(spec, cell, stage, done, folder, fingerprint)
            done[stage.name] = jobs.setdefault(job.identity, job)
        result.append((cell, list(done.values())))
    return Graph(list(jobs.values()), result)


def _job(spec: Spec, cell: Cell, stage: Stage, done: dict[str, Job], folder: Path, fingerprint: Callable) -> Job:
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
            assign(hashed, name, _content(Path(value)))
    key = identity(hashed)
    parents = list({id(done[s]): done[s] for s in stage.pointers.values()}.values())
    return Job(key, run, _folder(folder, cell, stage, key), cell.arm, stage.name, cell.axes, resources_of(spec, cell.arm), parents)


def _content(path: Path) -> str:
    """What a checkpoint from outside the sweep is, whatever its path."""
    if not path.exists():
        return f"not fetched yet: {path.name}"
    if path.is_dir():
        return f"run:{identity(config.load(path))}"
    return f"file:{hash_file(path)}"


def _folder(sweep: Path, cell: Cell, stage: Stage, key: str) -> Path:
    for known in sorted(sweep.glob(f"*-{key}")):
        return known
    stages = [stage.name] if len(cell.stages) > 1 else []
    parts = [cell.arm, *stages, *(_short(axis, value) for axis, value in cell.axes.items()), key]
    return sweep / "-".join(re.sub(r"[^A-Za-z0-9._]+", "_", part) for part in parts)


def _short(axis: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"s{value}" if axis == "seed" else f"{axis.rsplit('.', 1)[-1]}{value}"
