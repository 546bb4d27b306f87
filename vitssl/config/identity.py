"""The identity of a Run: a hash of the fields that define its result, by which finished runs are found again.

It hashes what differs from the defaults, so that a new field whose default is what was computed before retrains nothing, and `SCHEMA`.
Run folders of an earlier schema are found by the identity of what their ``run.yaml`` says, which names every field's value.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection
from typing import Any

from vitssl.config.backbones import family, module
from vitssl.config.data import view_px
from vitssl.config.objectives import active
from vitssl.config.run import Run, active_views, inactive_fields, reads_labels

SCHEMA = 2  # to be raised when a default changes, as what differs from the defaults then says something else


def identity(run: Run) -> str:
    """Hash (12 hex digits) of the fields that define the result; those that have no effect in this Run do not."""
    content = {"schema": SCHEMA, "run": identifying(run)}
    if (images := run.loop.micro_batch_size) is not None and _depends_on_slices(run, images):
        content["micro_batch_size"] = images
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def identifying(run: Run) -> dict[str, Any]:
    """The fields that define the result of a Run and are not the defaults, nested."""
    left_out = {*inactive_fields(run), *(() if _interpolates(run) else ("backbone.interpolate_antialias",))}
    left_out |= {f"objectives.{name}.{field}" for name, objective in active(run.objectives).items() for field in objective.written_out()}
    left_out |= set() if reads_labels(run) else {"data.labels"}
    return _differing(run, Run(), left_out)


def _differing(part: Any, default: Any, left_out: Collection[str] = (), prefix: str = "") -> dict[str, Any]:
    """The fields of a part that are not those of ``default``, nested; a part that is off by default is there, even if empty."""
    differing: dict[str, Any] = {}
    for f in dataclasses.fields(part):
        value, usual, path = getattr(part, f.name), getattr(default, f.name), f"{prefix}{f.name}"
        if value == usual or path in left_out or not f.metadata.get("identity", True):
            continue
        if dataclasses.is_dataclass(value):
            nested = _differing(value, type(value)() if usual is None else usual, left_out, f"{path}.")
            if nested or usual is None:
                differing[f.name] = nested
        elif isinstance(value, list):
            differing[f.name] = [_differing(e, type(e)()) if dataclasses.is_dataclass(e) else e for e in value]
        else:
            differing[f.name] = value
    return differing


def _depends_on_slices(run: Run, images: int) -> bool:
    """May a batch norm be trained, whose statistics are those of a forward pass of so many images of a GPU?

    Of timm's networks it is not known here, so the answer is yes although some have none. The number of GPUs, on which it depends too, is
    not part of a Run.
    """
    if run.backbone.batch_norm == "per_gpu":
        return True
    if images >= run.optim.batch_size:  # there is one slice
        return False
    of_backbone = "batch_norm" in family(run.backbone).reads.split() and not run.backbone.frozen
    return of_backbone or any(objective.has_batch_norm() for objective in active(run.objectives).values())


def _interpolates(run: Run) -> bool:
    """May learned positions be resized, for a view of another size or from the weights to start from?

    The grid of those weights is not known here, so the answer may be yes although theirs is the same.
    """
    other_sizes = any(view_px(run.data, view) != run.data.image_size for view in active_views(run))
    fixed = module(run.backbone) == "vit" and run.backbone.positions == "sincos"
    return other_sizes or (run.init_from is not None and not fixed)
