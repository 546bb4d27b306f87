"""The cells of a sweep: every arm at every value of its axes, each stage a Run that is merged and checked.

How the fields of a stage are merged stands in `layers.py`. A stage may start from an earlier stage of its arm (`init_from: pretrain`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.plan import checks, layers
from jobs.plan.overrides import CLI
from jobs.plan.sweep import Spec, resources
from vitssl import config
from vitssl.config import ConfigError, Run, assign, check_fits, checkpoints, merge, unknown
from vitssl.config.sweep import Resources
from vitssl.config.weights import IMPORT, RELEASED
from vitssl.files import runs_that_begin

MOST_CELLS = 20_000  # of a sweep: more than anybody waits for


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
