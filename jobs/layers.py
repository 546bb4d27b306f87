"""How the fields of a stage are merged.

Fields are merged in this order; later ones win:

    the sweep's `defaults` < the arm's `defaults` < axis values < the stage < the command line

A stage's own fields are the most specific of the file: `loop.epochs: 50` of a pretraining stays when an axis varies the epochs of
all other stages. Where a key starts with the name of a stage (`finetune.optim.lr`), in an axis or on the command line, it applies
to that stage alone, and wins over the stage's own fields too. On the command line, a prefix `arms.ssat.` makes it apply to that
arm alone, and wins over what applies to all arms. An axis that the command line adds sets its fields as the command line does.
A field of an objective (`objectives.mae.mask_ratio`), in an axis or on the command line, applies where that objective is on.

`data.source` belongs to the `data.shards` beside it: a layer that sets shards without a source drops the source of the layers
below, so that a mistyped folder is never filled with another data set, nor compared to it.
"""

from __future__ import annotations

import itertools
from typing import Any

from jobs.overrides import layer
from jobs.sweep import Spec
from vitssl.config import dotted, nested


def of_axes(spec: Spec, arm: str, labels: dict[str, Any], stage: str) -> dict[str, list[dict[str, Any]]]:
    """The layers of the file's axes at these values: for all stages, and for this one."""
    chosen = {axis: spec.axes[axis][label] for axis, label in labels.items() if axis not in spec.added_axes}
    whole = [{s.field: s.value} for of in chosen.values() for s in of if s.stage in (None, stage) and s.field and s.objective is None]
    recipe = spec.arms[arm]
    below = nested(spec.defaults, recipe.defaults, *whole, recipe.stages[stage])
    return {axis: [layer(of, None, whose, below) for whose in (None, stage)] for axis, of in chosen.items()}


def of_file(spec: Spec, arm: str, labels: dict[str, Any], stage: str) -> dict[str, Any]:
    """The file's layers of a stage, merged in the order above."""
    recipe = spec.arms[arm]
    for_all, for_stage = ([both[i] for both in of_axes(spec, arm, labels, stage).values()] for i in (0, 1))
    return nested(*map(with_its_source, [spec.defaults, recipe.defaults, *for_all, recipe.stages[stage], *for_stage]))


def merged(spec: Spec, arm: str, labels: dict[str, Any], stage: str, file_fields: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The command line's layers of a stage over the file's, and the fields that it sets."""
    cli, axes, whole = spec.overrides, of_axes(spec, arm, labels, stage), file_fields
    cli_layers = [part for axis in axes if axis in cli.axes for part in axes[axis]]
    set_by_cli = [*(setting for axis in spec.added_axes for setting in spec.axes[axis][labels[axis]]), *cli.settings]
    for whose in itertools.product((None, arm), (None, stage)):
        cli_layers.append(layer(set_by_cli, *whose, below=whole))
        whole = nested(whole, with_its_source(cli_layers[-1]))
    return whole, [*dotted(nested(*cli_layers)), *(f"resources.{name}" for of in (None, arm) for name in cli.resources.get(of, {}))]


def with_its_source(layer: dict[str, Any]) -> dict[str, Any]:
    """A layer that sets `data.shards` and no `data.source` means existing shards: the source from the layers below is dropped."""
    data = nested(layer).get("data")
    alone = isinstance(data, dict) and "shards" in data and "source" not in data
    return {**layer, "data.source": None} if alone else layer
