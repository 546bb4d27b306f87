"""`--smoke`: every arm for two real steps on tiny data and small widths, to show that a sweep works from end to end."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from jobs.sweep import Resources, Spec
from vitssl.config import ConfigError, Objective, Run, check, checkpoints, dotted, merge, module, teachers

SOURCE = "digits"
# over the merged Run, where the part that holds the field is on and reads it
TINY: dict[str, Any] = {
    "data.source": SOURCE,
    "data.sha256": None,
    "data.train_split": "train",
    "data.test_split": "test",
    "data.images": {"fraction": None, "per_class": 6},
    "data.labels.fraction": None,
    "data.labels.per_class": 2,
    "data.image_size": 64,
    "data.cache_px": None,
    "data.views.main.size": None,
    "data.views.second.size": None,
    "data.views.local.size": 32,
    "objectives.mae.decoder_dim": 32,
    "objectives.mae.decoder_depth": 1,
    "objectives.mae.decoder_heads": 2,
    "objectives.simclr.hidden_dim": 32,
    "objectives.simclr.out_dim": 16,
    "objectives.dino.hidden_dim": 32,
    "objectives.dino.bottleneck_dim": 16,
    "objectives.dino.out_dim": 64,
    "objectives.drloc.pairs": 8,
    "objectives.drloc.hidden_dim": 32,
    "objectives.locality.blocks": [0, 0, 1],
    "objectives.locality.stages": [0, 1, 2],
    "optim.batch_size": 16,
    "loop.max_steps": 2,
    "loop.micro_batch_size": None,
    "loop.compile": False,
    "loop.eval_every": 0,
    "loop.log_every": 1,
}
# by family; one that is not here stays as large as it is
BACKBONES: dict[str, dict[str, Any]] = {
    "vit": {"patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3},
    "swin": {"name": "swin_pico", "patch_size": 2, "embed_dim": 16, "depths": [1, 1, 2, 1], "num_heads": 1, "window_size": 4},
    "cvt": {"name": "cvt_pico", "embed_dim": 16, "depths": None, "num_heads": 1},
    "t2t": {"name": "t2t_pico", "embed_dim": 48, "depth": 2, "num_heads": 3},
    "resnet": {"name": "resnet_pico", "embed_dim": None, "depths": None},
    "cifarresnet": {"name": "resnet8", "embed_dim": None, "depths": None},
}


def narrow(spec: Spec) -> Spec:
    """The sweep with the first value of each axis, on one process, and nothing to compare it with."""
    axes = {name: dict([next(iter(values.items()))]) for name, values in spec.axes.items()}
    resources = Resources(nodes=1, gpus_per_node=min(1, spec.resources.gpus_per_node), cpus_per_gpu=1, hours=0.25)
    arms = {name: dataclasses.replace(arm, resources={}, published=None, published_cost=None) for name, arm in spec.arms.items()}
    notes = ["A smoke run: two steps of tiny networks on digits, to show that the sweep works; its numbers mean nothing.", *spec.notes]
    return dataclasses.replace(spec, notes=notes, name=f"{spec.name}-smoke", axes=axes, resources=resources, arms=arms)


def shrink(run: Run, spec: Spec, runs: Path, where: str) -> Run:
    """A Run made tiny; it keeps its objectives, augmentation, optimiser and schedule.

    Raises:
        ConfigError: the tiny Run is impossible; the sweep's `smoke` may set fields of its own.
    """
    tiny = {"data.shards": str(runs / ".smoke" / SOURCE)} | {k: v for k, v in TINY.items() if _reads(run, k)}
    networks = {"backbone": run.backbone, **teachers(run)}
    tiny |= {f"{path}.{name}": value for path, network in networks.items() for name, value in BACKBONES.get(module(network), {}).items()}
    # weights from outside of the sweep fit the full sizes only
    tiny |= {name: None for name, value in checkpoints(run).items() if value.startswith("timm:") or Path(value).is_absolute()}
    try:
        small = merge(Run, dataclasses.asdict(run), tiny, where=where)
        own = {k: v for k, v in dotted(spec.smoke).items() if _reads(small, k)}
        small = merge(Run, dataclasses.asdict(small), own, where=where)
        check(small, where=where)
    except ConfigError as error:
        raise ConfigError(f"{error} (in the --smoke form of this Run; the sweep's `smoke:` may set other fields)") from None
    return small


def _reads(run: Run, key: str) -> bool:
    """Is the part that holds the field on, and does it read the field?"""
    part: Any = run
    for name in key.split(".")[:-1]:
        part = getattr(part, name)
        if part is None:
            return False
    return not isinstance(part, Objective) or key.rpartition(".")[2] not in part.unread()
