"""The identity of a Run: a hash of the fields that define its result, by which finished runs are found again.

Fields that came later (``base.later``) leave it alone where they are as before or have no effect; what earlier versions computed
otherwise from the same fields has another one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection, Iterator
from typing import Any

from vitssl.config.backbones import BackboneConfig, module
from vitssl.config.color import without_steps
from vitssl.config.data import View, view_px
from vitssl.config.objectives import active
from vitssl.config.run import Run, active_views


def identity(run: Run) -> str:
    """Hash (12 hex digits) of the fields that define the result."""
    content = _defining(run, set(_without_effect(run)))
    if corrected := [name for name, met in _corrections(run).items() if met]:
        content["corrected"] = corrected
    if run.backbone.batch_norm == "per_gpu" and run.loop.micro_batch_size is not None:
        content["loop"]["micro_batch_size"] = run.loop.micro_batch_size  # the images of a batch norm
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def _corrections(run: Run) -> dict[str, bool]:
    """What earlier versions computed otherwise from the same fields, and whether this Run meets it: theirs are not taken for it."""
    dino = run.objectives.dino
    return {
        "layer decay leaves the final norm alone": run.optim.layer_decay != 1,
        "DINO's batch norm sees all crops": dino is not None and dino.batch_norm,
        "magnitudes of AutoAugment for CIFAR": any(view.auto_augment == "cifar10" for view in active_views(run).values()),
    }


def _defining(value: Any, without_effect: Collection[str], prefix: str = "") -> Any:
    if not dataclasses.is_dataclass(value):
        return [_defining(v, ()) for v in value] if isinstance(value, list) else value
    result = {}
    for f in dataclasses.fields(value):
        own, path = getattr(value, f.name), f"{prefix}{f.name}"
        # None is as good as not there: so an objective that is new and off leaves finished runs theirs
        if own is None or not f.metadata.get("identity", True):
            continue
        if "before" in f.metadata and (own == f.metadata["before"] or path in without_effect):
            continue
        result[f.name] = _defining(own, without_effect, f"{path}.")
    return _before_steps(value, result) if isinstance(value, View) else result


def _before_steps(view: View, content: dict[str, Any]) -> dict[str, Any]:
    """What was hashed of a view before its colours were steps, where the fields of then can say them: such Runs are found again."""
    fields = without_steps(view.color)
    return {name: value for name, value in content.items() if name != "color"} | fields if fields else content


def _without_effect(run: Run) -> Iterator[str]:
    """The dotted names of fields that came later (``base.later``) and do nothing in this Run."""
    for name, view in run.data.views.enabled().items():
        yield from (f"data.views.{name}.{field}" for field in view.unread())
    for name, objective in active(run.objectives).items():
        yield from (f"objectives.{name}.{field}" for field in objective.unread())
    for path, backbone in backbones_of(run):
        yield from (f"{path}.{field}" for field in backbone.unread_later())
    if not _interpolates(run):
        yield "backbone.interpolate_antialias"


def backbones_of(part: Any, prefix: str = "") -> Iterator[tuple[str, BackboneConfig]]:
    """The dotted paths of all networks that a Run describes, its own and its teachers'."""
    for f in dataclasses.fields(part):
        value = getattr(part, f.name)
        if isinstance(value, BackboneConfig):
            yield f"{prefix}{f.name}", value
        elif dataclasses.is_dataclass(value):
            yield from backbones_of(value, f"{prefix}{f.name}.")


def _interpolates(run: Run) -> bool:
    """May learned positions of another grid be met: those for a view of another size, or those of the weights to start from?

    The grid of those weights is not known here, so that yes may be said where they are of the same one.
    """
    other_sizes = any(view_px(run.data, view) != run.data.image_size for view in active_views(run))
    fixed = module(run.backbone) == "vit" and run.backbone.positions == "sincos"
    return other_sizes or (run.init_from is not None and not fixed)
