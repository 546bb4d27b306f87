"""`--smoke`: train every arm for five real steps on tiny data and with small widths, to show that a sweep works from end to end."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from jobs.plan.sweep import Spec
from vitssl import config
from vitssl.config import ConfigError, Run, active, merge
from vitssl.config.sweep import Budget, Resources
from vitssl.config.weights import IMPORT, RELEASED

SOURCE = "digits"
# fields that are set over the merged Run, if the part that holds a field is on and reads it
TINY: dict[str, Any] = {
    "data.source": SOURCE,
    "data.sha256": None,
    "data.train_split": "train",
    "data.test_split": "test",
    "data.val_split": None,
    "data.images": {"fraction": None, "per_class": 6},
    "data.labels.fraction": None,
    "data.labels.per_class": 2,
    "data.image_size": 64,
    "data.cache_px": None,
    "data.views.main.size": None,
    "data.views.second.size": None,
    "data.views.local.size": 32,
    "optim.batch_size": 16,
    "loop.max_steps": 5,  # on a GPU the fourth is recorded and the fifth replayed
    "loop.micro_batch_size": None,
    "loop.compile": False,
    "loop.eval_every": 0,
    "loop.log_every": 1,
}


def narrow(spec: Spec) -> Spec:
    """Return the sweep with the first value of each axis, for one process, without a budget and without published numbers."""
    axes = {name: dict([next(iter(values.items()))]) for name, values in spec.axes.items()}
    resources = Resources(nodes=1, gpus_per_node=min(1, spec.resources.gpus_per_node), cpus_per_gpu=1, hours=0.25)
    arms = {name: dataclasses.replace(arm, resources={}, published=None, published_cost=None) for name, arm in spec.arms.items()}
    note = (
        "A smoke run: five steps of tiny networks on digits at each axis's first value, to show that it works; its numbers are meaningless."
    )
    name = f"{spec.name}-smoke"
    return dataclasses.replace(spec, name=name, notes=[note], axes=axes, resources=resources, budget=Budget(), arms=arms)


def summary_text(spec: Spec) -> str:
    """Say in one line what a smoke run trains."""
    chosen = ", ".join(f"{axis}={next(iter(values))}" for axis, values in spec.axes.items())
    return f"smoke: five steps of tiny networks on {SOURCE}{f', at the first value of every axis: {chosen}' if chosen else ''}"


def shrink(run: Run, spec: Spec, runs: Path, where: str, on_cpus: bool) -> Run:
    """Return ``run`` made tiny; it keeps its objectives, augmentation, optimiser and schedule."""
    tiny_fields = {"data.shards": str(runs / ".smoke" / SOURCE)} | {k: v for k, v in TINY.items() if _reads(run, k)}
    tiny_fields |= {"loop.precision": "fp32"} if on_cpus else {}  # CPUs without native bf16 take up to 17 times as long for it
    tiny_fields |= {"data.val_fraction": 0.2} if run.data.val_split else {}  # digits have no such split
    tiny_fields |= _fields({f"objectives.{name}": objective.smoke for name, objective in active(run.objectives).items()}, run)
    networks = {"backbone": run.backbone, **config.teachers(run)}
    tiny_fields |= _fields({path: config.FAMILIES[config.family_name(network)].smoke for path, network in networks.items()}, run)
    weights = config.checkpoints(run)  # weights from outside the sweep only fit the full sizes
    tiny_fields |= {name: None for name, value in weights.items() if value.startswith((RELEASED, IMPORT)) or Path(value).is_absolute()}
    try:
        tiny_run = merge(Run, dataclasses.asdict(run), tiny_fields, where=where)
        chosen = {k: v for k, v in config.dotted(spec.smoke).items() if _reads(tiny_run, k)}
        tiny_run = merge(Run, dataclasses.asdict(tiny_run), chosen, where=where)
        for fields in tiny_run.evals.values():
            if isinstance(fields, dict):  # an evaluator, which has only few images
                neighbours = {"k": min(3, fields["k"])} if isinstance(fields.get("k"), int) else {}
                fields.update(neighbours, shards=None, split="test")
        config.check(tiny_run, where=where)
    except ConfigError as error:
        reason = f"{error.reason} (in the --smoke form of this Run; the sweep's `smoke:` may set other fields)"
        raise ConfigError(reason, error.field, error.place) from None
    return tiny_run


def _fields(parts: dict[str, dict[str, Any]], run: Run) -> dict[str, Any]:
    """Return the fields of several parts of a Run by their dotted names, without fields that the Run does not read."""
    dotted_fields = {f"{path}.{name}": value for path, fields in parts.items() for name, value in fields.items()}
    return {name: value for name, value in dotted_fields.items() if _reads(run, name)}


def _reads(run: Run, key: str) -> bool:
    """Whether the part of a Run that holds the field ``key`` is on and reads it."""
    part: Any = run
    for name in key.split(".")[:-1]:
        part = getattr(part, name)
        if part is None:
            return False
    return not isinstance(part, config.BackboneConfig | config.ObjectiveConfig) or key.rpartition(".")[2] not in part.inactive_fields()
