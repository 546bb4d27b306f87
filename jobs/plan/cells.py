"""The cells of a sweep: every arm at every combination of axis values, with each stage merged into a Run and checked.

`layers.py` says how the fields of a stage are merged. A stage may start from an earlier stage of its arm (`init_from: pretrain`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.plan import checks, layers
from jobs.plan.overrides import CLI
from jobs.plan.sweep import Spec, resources
from vitssl import config
from vitssl.config import ConfigError, Run, assign, check_fits, checkpoints, merge, unknown_error
from vitssl.config.evals import is_of_classifier
from vitssl.config.sweep import Resources
from vitssl.config.weights import IMPORT, RELEASED
from vitssl.run_folder import folders_named
from vitssl.run_names import refuse_several

MOST_CELLS = 20_000  # in one sweep: nobody would wait for more


@dataclass
class Stage:
    """One stage of one cell.

    Attributes:
        where: the sweep file and the stage's place in it, for errors.
        cli_fields: the dotted fields that the command line sets.
        file_fields: the fields that the file sets, without the command line's.
        pointers: {field: stage} of the fields that name an earlier stage of the arm.
    """

    name: str
    run: Run
    where: str
    cli_fields: list[str] = field(default_factory=list)
    file_fields: dict[str, Any] = field(default_factory=dict)
    pointers: dict[str, str] = field(default_factory=dict)

    def error_location(self) -> AbstractContextManager[None]:
        """Add to a ConfigError raised inside the `with` block where this stage's field was set."""
        return error_location(self.where, self.cli_fields)


@dataclass
class Cell:
    """One arm at one value of every axis."""

    arm: str
    axes: dict[str, Any]
    stages: list[Stage]


@contextmanager
def error_location(where: str, cli_fields: Collection[str]) -> Iterator[None]:
    """Add to a ConfigError where its field was set: on the command line if it is one of ``cli_fields``, otherwise at ``where``."""
    try:
        yield
    except ConfigError as error:
        # an error that has a place already is about another file, and so is its field
        reason, wrong_field = (str(error), "") if error.place else (error.reason, error.field)
        if any(wrong_field == name or wrong_field.startswith((f"{name}.", f"{name}[")) for name in cli_fields):
            raise ConfigError(f"{reason} (in {where})", wrong_field, CLI) from None
        changed = f" (the command line set {', '.join(cli_fields)})" if cli_fields else ""
        raise ConfigError(f"{reason}{changed}", wrong_field, where) from None


def cells(spec: Spec) -> list[Cell]:
    """Return a cell for every runnable arm at every combination of axis values, with each stage merged and checked.

    Raises:
        ConfigError: for the first mistake, naming its place and field.
    """
    count = len(spec.arms) * math.prod(map(len, spec.axes.values()))
    if count > MOST_CELLS:
        reason = f"{count:,} combinations of arms and values, more than {MOST_CELLS:,}; leave out some axes or values"
        raise ConfigError(reason, "axes", spec.file)
    layers.check_axes(spec)
    points = [dict(zip(spec.axes, values, strict=True)) for values in itertools.product(*spec.axes.values())]
    places = [(arm, labels) for arm, labels in itertools.product(spec.arms, points) if spec.arms[arm].stages]
    staged = ((arm, labels, stage) for arm, labels in places for stage in spec.arms[arm].stages)
    checks.refuse_ambiguous_settings(
        spec, ((arm, stage, layers.merge_file_layers(spec, arm, labels, stage)) for arm, labels, stage in staged)
    )
    result = [Cell(arm, labels, [_merged(spec, arm, labels, stage) for stage in spec.arms[arm].stages]) for arm, labels in places]
    checks.take_named_backbones(result)
    _leave_evaluators_to_classifiers(spec, result)
    for cell in result:
        _check(spec, cell)
    _refuse_unread_fields(spec, result)
    checks.check_objectives(spec, result)
    checks.check_chains(result)
    checks.check_metric(spec, result)
    checks.check_select(spec, result)
    return result


def _merged(spec: Spec, arm: str, labels: dict[str, Any], name: str) -> Stage:
    """Merge the fields of a stage into a Run, which is not checked yet."""
    where, file_fields = f"{spec.file}: arms.{arm}.stages.{name}", layers.merge_file_layers(spec, arm, labels, name)
    run_fields, cli_fields = layers.merge_cli_layers(spec, arm, labels, name, file_fields)
    with error_location(where, cli_fields):
        return Stage(name, merge(Run, run_fields), where, cli_fields, file_fields)


def _leave_evaluators_to_classifiers(spec: Spec, made: Sequence[Cell]) -> None:
    """Take an evaluator of a classifier that is set for several stages from those that do not classify.

    One that is set for all arms must have a stage that classifies in some arm, and one that is set for an arm in that arm.
    """
    measured: dict[str, set[str]] = {arm: set() for arm in spec.arms}
    for cell in made:
        for stage in (stage for stage in cell.stages if config.classifies(stage.run)):
            measured[cell.arm] |= _of_classifiers(stage)
    anywhere = set().union(*measured.values())
    for cell in made:
        for stage in (stage for stage in cell.stages if not config.classifies(stage.run)):
            elsewhere = measured[cell.arm] | (anywhere - layers.evaluators_of_arm(spec, cell.arm))
            for name in (_of_classifiers(stage) & elsewhere) - layers.evaluators_of_stage(spec, cell.arm, cell.axes, stage.name):
                del stage.run.evals[name]


def _of_classifiers(stage: Stage) -> set[str]:
    return {name for name, fields in stage.run.evals.items() if is_of_classifier(name, fields)}


def _refuse_unread_fields(spec: Spec, made: Sequence[Cell]) -> None:
    """Refuse fields that have no effect.

    One that the command line sets for all arms must have an effect in one of them, and one that it sets for an arm in that arm.
    """
    readers: dict[str, set[str]] = {}
    for cell in made:
        for stage in (stage for stage in cell.stages if stage.cli_fields):
            for name in {*stage.cli_fields} - config.inactive_fields(stage.run).keys():
                readers.setdefault(name, set()).add(cell.arm)
    for cell in made:
        own = {name for setting in spec.overrides.settings if setting.arm == cell.arm for name in setting.leaves}
        for stage in cell.stages:
            unread = {name for name in stage.cli_fields if not readers.get(name, set()) & ({cell.arm} if name in own else {*spec.arms})}
            with stage.error_location():
                config.refuse_inactive_fields(stage.run, unread)


def _check(spec: Spec, cell: Cell) -> None:
    """Check the Runs of a cell, and find the stages and weights that they start from."""
    for i, stage in enumerate(cell.stages):
        with stage.error_location():
            config.check(stage.run)
            config.refuse_rising_lr(stage.run)
            job_resources = resources_of(spec, cell.arm)
            world = job_resources.nodes * max(1, job_resources.gpus_per_node)
            if stage.run.optim.batch_size % world:
                divisor = f"resources.nodes x gpus_per_node = {world} processes"
                raise ConfigError(f"{stage.run.optim.batch_size} is global and cannot be split evenly over {divisor}", "optim.batch_size")
            earlier = {other.name: other.run for other in cell.stages[:i]}
            stage.pointers = _pointers(stage.run, list(earlier), [other.name for other in cell.stages[i:]])
            for pointer, parent in stage.pointers.items():
                check_fits(stage.run, pointer, earlier[parent])


def resources_of(spec: Spec, arm: str) -> Resources:
    """Return what an arm's jobs ask for: the sweep's resources, overridden by the arm's, which already include the command line's."""
    return resources(spec.file, f"arms.{arm}.resources", vars(spec.resources), spec.arms[arm].resources)


def _pointers(run: Run, earlier: list[str], later: list[str]) -> dict[str, str]:
    """Return {field: stage} of the fields that name an ``earlier`` stage to start from; paths in other fields are made absolute.

    The other fields may name released weights, imports, files and run folders.

    Raises:
        ConfigError: a field names the stage itself, a ``later`` one, or nothing that is known.
    """
    pointers = {}
    for name, value in checkpoints(run).items():
        if value in earlier:
            pointers[name] = value
        elif value.startswith((RELEASED, IMPORT)):
            continue
        elif value in later and not Path(value).exists():
            raise ConfigError(f"{value} is not an earlier stage of the arm; write it above the stages that start from it", name)
        elif "/" not in value and not Path(value).exists():  # `weights.prepare` checks that paths exist
            shown = unknown_error(value, earlier).reason if earlier else repr(value)
            raise ConfigError(f"{shown}{'; it' if earlier else ''} is not an earlier stage of the arm, nor a file or run folder", name)
        else:
            assign(run, name, str(_run_or_file(Path(value), name).resolve()))
    return pointers


def _run_or_file(path: Path, field: str) -> Path:
    """Return the file or run folder that ``path`` means: itself, or the run of which it has as much of the name as no other.

    Raises:
        ConfigError: ``path`` stands for several runs (`run_names.matches`); the error names ``field``.
    """
    matches = [] if path.exists() else folders_named(path)
    refuse_several(str(path), [run.name for run in matches], field=field)
    return matches[0] if matches else path
