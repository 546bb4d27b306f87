"""The identity of a Run: a hash of the fields that define its result, by which finished runs are found again.

The hash covers `SCHEMA` and the fields that differ from their defaults. A new field therefore changes no identity, and retrains nothing,
if its default stands for what was computed before. Run folders of an earlier schema are found by the identity of their ``run.yaml``, which
holds the values of all fields.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection
from typing import Any

from vitssl.config.backbones import family, family_name
from vitssl.config.base import is_part
from vitssl.config.data import view_px
from vitssl.config.objectives import active
from vitssl.config.run import Run, active_views, inactive_fields, reads_labels

SCHEMA = 2  # to be raised when a default changes, as the differences from the defaults then mean something else


def identity(run: Run) -> str:
    """Return a hash (12 hex digits) of the fields that define the result; fields without effect in this Run do not count."""
    content = {"schema": SCHEMA, "run": identifying(run)}
    if (images := run.loop.micro_batch_size) is not None and _depends_on_slices(run, images):
        content["micro_batch_size"] = images
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def identifying(run: Run) -> dict[str, Any]:
    """Return the fields that define the result of a Run and differ from their defaults, nested."""
    left_out = {*inactive_fields(run), *(() if _interpolates(run) else ("backbone.interpolate_antialias",))}
    left_out |= {
        f"objectives.{name}.{field}" for name, objective in active(run.objectives).items() for field in objective.explicit_defaults()
    }
    left_out |= set() if reads_labels(run) else {"data.labels"}
    return _differing(run, Run(), left_out)


def _differing(part: Any, default: Any, left_out: Collection[str] = (), prefix: str = "") -> dict[str, Any]:
    """Return the fields of ``part`` that differ from ``default``, nested; a part that is off by default is kept even if it is empty."""
    differing: dict[str, Any] = {}
    for f in dataclasses.fields(part):
        value, default_value, path = getattr(part, f.name), getattr(default, f.name), f"{prefix}{f.name}"
        if value == default_value or path in left_out or not f.metadata.get("identity", True):
            continue
        if is_part(kind := type(value)):
            nested = _differing(value, kind() if default_value is None else default_value, left_out, f"{path}.")
            if nested or default_value is None:
                differing[f.name] = nested
        elif isinstance(value, list):
            differing[f.name] = [_differing(e, type(e)()) if is_part(type(e)) else e for e in value]
        else:
            differing[f.name] = value
    return differing


def _depends_on_slices(run: Run, images: int) -> bool:
    """Whether a batch norm may be trained, whose statistics are those of one forward pass of ``images`` images on a GPU.

    It is not known here which of timm's networks have batch norms, so the answer for them is True although some have none. The
    statistics depend on the number of GPUs too, which is not part of a Run.
    """
    if run.backbone.batch_norm == "per_gpu":
        return True
    if images >= run.optim.batch_size:  # there is one slice
        return False
    in_backbone = "batch_norm" in family(run.backbone).reads.split() and not run.backbone.frozen
    return in_backbone or any(objective.has_batch_norm() for objective in active(run.objectives).values())


def _interpolates(run: Run) -> bool:
    """Whether learned positions may be resized, for a view of another size or from the weights to start from.

    The grid of those weights is not known here, so the answer may be True although it is the same grid.
    """
    other_sizes = any(view_px(run.data, view) != run.data.image_size for view in active_views(run))
    fixed = family_name(run.backbone) == "vit" and run.backbone.positions == "sincos"
    return other_sizes or (run.init_from is not None and not fixed)
