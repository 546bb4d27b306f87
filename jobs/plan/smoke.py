"""`--smoke`: every arm for five real steps on tiny data and small widths, to show that a sweep works from end to end."""

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
# set over the merged Run, where the part that holds the field is on and reads it
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
    """The sweep with the first value of each axis, on one process, without a budget and with nothing to compare it with."""
    axes = {name: dict([next(iter(values.items()))]) for name, values in spec.axes.items()}
    resources = Resources(nodes=1, gpus_per_node=min(1, spec.resources.gpus_per_node), cpus_per_gpu=1, hours=0.25)
    arms = {name: dataclasses.replace(arm, resources={}, published=None, published_cost=None) for name, arm in spec.arms.items()}
    note = (
        "A smoke run: five steps of tiny networks on digits at each axis's first value, to show that it works; its numbers are meaningless."
    )
    narrowed = {"axes": axes, "resources": resources, "budget": Budget(), "arms": arms}
    return dataclasses.replace(spec, notes=[note], name=f"{spec.name}-smoke", **narrowed)


def told(spec: Spec) -> str:
    """What a smoke run trains, in a line."""
    chosen = ", ".join(f"{axis}={next(iter(values))}" for axis, values in spec.axes.items())
    return f"smoke: five steps of tiny networks on {SOURCE}{f', at the first value of every axis: {chosen}' if chosen else ''}"


def shrink(run: Run, spec: Spec, runs: Path, where: str) -> Run:
    """A Run made tiny; it keeps its objectives, augmentation, optimiser and schedule."""
    tiny = {"data.shards": str(runs / ".smoke" / SOURCE)} | {k: v for k, v in TINY.items() if _reads(run, k)}
    tiny |= {"data.val_fraction": 0.2} if run.data.val_split else {}  # digits have no such split
    tiny |= _fields({f"objectives.{name}": objective.smoke for name, objective in active(run.objectives).items()}, run)
    networks = {"backbone": run.backbone, **config.teachers(run)}
    tiny |= _fields({path: config.FAMILIES[config.module(network)].smoke for path, network in networks.items()}, run)
    weights = config.checkpoints(run)  # those from outside the sweep fit the full sizes only
    tiny |= {name: None for name, value in weights.items() if value.startswith((RELEASED, IMPORT)) or Path(value).is_absolute()}
    try:
        small = merge(Run, dataclasses.asdict(run), tiny, where=where)
        chosen = {k: v for k, v in config.dotted(spec.smoke).items() if _reads(small, k)}
        small = merge(Run, dataclasses.asdict(small), chosen, where=where)
        for fields in small.evals.values():
            if isinstance(fields, dict):  # an evaluator, of the few images that there are
                few = {"k": min(3, fields["k"])} if isinstance(fields.get("k"), int) else {}
                fields.update(few, shards=None, split="test")
        config.check(small, where=where)
    except ConfigError as error:
        reason = f"{error.reason} (in the --smoke form of this Run; the sweep's `smoke:` may set other fields)"
        raise ConfigError(reason, error.field, error.place) from None
    return small


def _fields(parts: dict[str, dict[str, Any]], run: Run) -> dict[str, Any]:
    """The fields of parts of the Run by dotted name, as far as they are read."""
    dotted_fields = {f"{path}.{name}": value for path, fields in parts.items() for name, value in fields.items()}
    return {name: value for name, value in dotted_fields.items() if _reads(run, name)}


def _reads(run: Run, key: str) -> bool:
    """Is the part that holds the field on, and does it read the field?"""
    part: Any = run
    for name in key.split(".")[:-1]:
        part = getattr(part, name)
        if part is None:
            return False
    return not isinstance(part, config.BackboneConfig | config.ObjectiveConfig) or key.rpartition(".")[2] not in part.inactive_fields()
