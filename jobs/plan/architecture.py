"""The architecture of a Run: everything that its work per image depends on, so that Runs of one architecture share measured costs."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from vitssl.config import Run, View, active, active_views, without_checkpoints


def _work_of(view: View) -> list[Any]:
    """List what is computed for a ``view``; the strengths of its augmentations are left out, as they do not change the work."""
    mixed = view.mixup_alpha > 0 or view.cutmix_alpha > 0
    return [view.count, view.size, view.crop, view.auto_augment, len(view.color), view.erasing_prob > 0, mixed]


def architecture(run: Run) -> str:
    """Return a hash of everything that the work per image depends on: Runs of one architecture have the same MACs and the same speed."""
    views = {name: _work_of(view) for name, view in active_views(run).items()}
    bare, loop = without_checkpoints(run), run.loop
    objectives = {name: dataclasses.asdict(objective) | {"weight": None} for name, objective in active(bare.objectives).items()}
    execution = [run.optim.batch_size, loop.micro_batch_size, loop.precision, loop.compile, loop.cuda_graph, loop.threads]
    parts = [run.data.image_size, views, dataclasses.asdict(bare.backbone), objectives, execution]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
