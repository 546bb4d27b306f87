"""`--smoke`: every arm for two real steps on tiny data and small widths, to show that a sweep works from end to end."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from jobs.sweep import Resources, Spec
from vitssl.config import ConfigError, Run, check, merge

SOURCE = "digits"
# over the merged Run, where the part that holds the field is on
TINY: dict[str, Any] = {
    "data.source": SOURCE,
    "data.sha256": None,
    "data.train_split": "train",
    "data.test_split": "test",
    "data.images": {"per_class": 6},
    "data.labels.fraction": None,
    "data.labels.per_class": 2,
    "data.image_size": 16,
    "data.cache_px": None,
    "data.views.main.size": None,
    "data.views.second.size": None,
    "data.views.local.size": 8,
    "backbone.patch_size": 4,
    "backbone.embed_dim": 48,
    "backbone.depth": 2,
    "backbone.num_heads": 3,
    "objectives.mae.decoder_dim": 32,
    "objectives.mae.decoder_depth": 1,
    "objectives.mae.decoder_heads": 2,
    "optim.batch_size": 16,
    "loop.max_steps": 2,
    "loop.micro_batch_size": None,
    "loop.compile": False,
    "loop.eval_every": 0,
    "loop.log_every": 1,
}


def narrow(spec: Spec) -> Spec:
    """The sweep with the first value of each axis, on one process, and nothing to compare it with."""
    axes = {name: dict([next(iter(values.items()))]) for name, values in spec.axes.items()}
    resources = Resources(nodes=1, gpus_per_node=min(1, spec.resources.gpus_per_node), cpus_per_gpu=1, hours=0.25)
    arms = {name: dataclasses.replace(arm, resources={}, published=None, published_cost=None) for name, arm in spec.arms.items()}
    return dataclasses.replace(spec, name=f"{spec.name}-smoke", axes=axes, resources=resources, arms=arms)


def shrink(run: Run, spec: Spec, runs: Path, where: str) -> Run:
    """A Run made tiny; it keeps its objectives, augmentation, optimiser and schedule.

    Raises:
        ConfigError: the tiny Run is impossible; the sweep's `smoke` may set fields of its own.
    """
    tiny = {"data.shards": str(runs / ".smoke" / SOURCE)} | {k: v for k, v in TINY.items() if _has(run, k)}
    try:
        small = merge(Run, dataclasses.asdict(run), tiny, {k: v for k, v in spec.smoke.items() if _has(run, k)}, where=where)
        check(small, where=where)
    except ConfigError as error:
        raise ConfigError(f"{error} (in the --smoke form of this Run; the sweep's `smoke:` may set other fields)") from None
    return small


def _has(run: Run, key: str) -> bool:
    part: Any = run
    for name in key.split(".")[:-1]:
        part = getattr(part, name)
        if part is None:
            return False
    return True
