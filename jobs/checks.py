"""What is checked once all Runs of a sweep are made: fields that none of them has, and what the report is to compare them by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jobs.overrides import CLI
from jobs.sweep import Spec
from vitssl.config import ConfigError, active, classifies
from vitssl.config.evals import evals_of, metric_parts, own_evals

if TYPE_CHECKING:
    from jobs.graph import Cell


def check_objectives(spec: Spec, made: Sequence[Cell]) -> None:
    """A field of an objective that no Run uses is an error: setting one does not switch the objective on."""
    stages = [(cell.arm, stage) for cell in made for stage in cell.stages]
    on = {(arm, stage.name, name) for arm, stage in stages for name in active(stage.run.objectives)}
    on |= {(None, stage, name) for _, stage, name in on}
    on |= {(arm, None, name) for arm, _, name in on}
    asked = [(setting, setting.key) for setting in spec.overrides.settings]
    asked += [(s, f"axes.{axis}") for axis in spec.added_axes for chosen in spec.axes[axis].values() for s in chosen]
    for setting, key in asked:
        name = setting.objective
        if name and (setting.arm, setting.stage, name) not in on:
            reason = f"objectives.{name} is on in none of these Runs; objectives.{name}={{}} switches it on"
            raise ConfigError(reason, key, CLI)


def check_metric(spec: Spec, made: Sequence[Cell]) -> None:
    """The last stage of every arm has the evaluator that the sweep's metric names."""
    try:
        evaluator, metric = metric_parts(spec.metric)
    except ConfigError as error:
        raise ConfigError(error.reason, "metric", spec.place("metric")) from None
    for cell in made:
        run = cell.stages[-1].run
        known = own_evals(run, heldout=bool(run.data.val_split or run.data.val_fraction)) | evals_of(run)
        if evaluator == "test" and evaluator not in known:
            continue  # a pretraining alone has no accuracy
        if evaluator not in known:
            has = "its Run has no loop.ema_decay" if evaluator == "test_ema" else f"it has {', '.join(known) or 'none'}"
            raise ConfigError(f"{spec.metric}: {cell.arm} has no evaluator {evaluator}; {has}", "metric", spec.place("metric"))
        if metric not in known[evaluator].metrics:
            has = ", ".join(known[evaluator].metrics)
            raise ConfigError(f"{spec.metric}: an evaluator of type {known[evaluator].type} gives {has}", "metric", spec.place("metric"))


def check_select(spec: Spec, made: Sequence[Cell]) -> None:
    """Where the sweep selects over axes, the metric is of test images, and the last stage of every arm has held-out ones to select by."""
    if not spec.select:
        return
    evaluator, metric = metric_parts(spec.metric)
    if evaluator != "test":
        reason = f"it is chosen by val/{metric}, of held-out images, which is not measured as {spec.metric} is; set metric: {metric}"
        raise ConfigError(reason, "select", spec.place("select"))
    chooses = f"select chooses {' and '.join(spec.select)} by"
    for stage in (cell.stages[-1] for cell in made):
        with stage.error_location():
            if not classifies(stage.run):
                raise ConfigError(f"{chooses} {spec.metric}, and this Run predicts no classes; add classify", "objectives")
            if not (stage.run.data.val_split or stage.run.data.val_fraction):
                reason = f"{chooses} held-out images, and this Run has none; set data.val_fraction or data.val_split"
                raise ConfigError(reason, "data.val_fraction")
