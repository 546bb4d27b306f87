"""Which differences between models are of hyper-parameters alone: to take the best of those is to select, which test images must not do.

A report compares data, labels, networks, the weights that training starts from, and methods: which objectives are on, and whether the
backbone learns. Whatever else shapes a training is a hyper-parameter: the optimiser, the loop, views with their augmentations, an
objective's own fields, and the fields of the network that only training uses, such as stochastic depth.

Terms:
    setting: two models differ in a setting if all fields in which they differ are hyper-parameters, be it one field or many.
    axis of hyper-parameters: an axis that has two values which differ in a setting.

Examples:
    {optim.lr} and {optim.lr, data.views.main.mixup_alpha} are settings.
    {backbone.name, optim.lr} is no setting: it is another network, with its learning rate.
    An axis of two weights of an objective and a third value that switches the objective off is an axis of hyper-parameters, since the two
    weights differ in a setting.

The models of two arms are compared in the same way, with two exceptions. How long they train is what they cost, which a report compares, so
epochs, warm-up and steps are ignored. And if a field of an objective or of masked tokens takes words or switches (how patches are hidden, a
loss, a teacher), its values are different methods, as SimMIM is not MAE; numbers (a mask ratio, a weight) are hyper-parameters.

Two kinds of fields are always ignored: those without influence on the result (workers, threads, caches), and those that draw the same data
differently, which are seeds and the choice of the held-out images.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

from vitssl.config import Run, checkpoint_fields
from vitssl.config.fields import fields_of
from vitssl.report.results.collect import Cell, Sweep

HYPERPARAMETER = re.compile(
    r"(^|\.)((optim|loop|data\.views|backbone\.masked_tokens|objectives\.\w+)\.|"  # hence the dot: an objective, on or off, is a method
    r"(data\.(repeats|normalize|mean|std|eval_crop|cache_px)|backbone\.(drop_path|init|cls_token_std|batch_norm)"
    r"|init_(weights|objectives|except))$)"
)
OTHER_DRAW = re.compile(r"(^|\.)data\.(val_(seed|fraction|split)|(labels|images)\.seed)$")
HOW_LONG = re.compile(r"(^|\.)loop\.(epochs|warmup_epochs|schedule_epochs|max_steps)$")
OF_METHOD = re.compile(r"(^|\.)(objectives\.\w+|backbone\.masked_tokens)(?=\.)")  # the part of a field's name that names the method


def sets_hyperparameters(sweep: Sweep, axis: str) -> bool:
    """Whether at least two values of an axis differ in hyper-parameters alone.

    That is told from models that differ in nothing but the axis; if the axis changes none of them, by its name.
    """
    pairs = [pair for cells in _alike(sweep, axis) for pair in combinations(cells, 2)]
    differing = [fields for fields in (fields_between(a, b) for a, b in pairs) if fields]
    return any(map(is_setting, differing or [{axis}]))


def is_setting(fields: set[str]) -> bool:
    """Whether the fields in which two models differ are hyper-parameters alone; False if there are no fields."""
    return bool(fields) and all(HYPERPARAMETER.search(name) for name in fields)


def fields_between(a: Cell, b: Cell) -> set[str]:
    """Return the fields in which the stages of two models differ, ignoring seeds; ``stages`` if one model has more of them."""
    return {name for name, _ in _differing(a, b)}


def fields_between_arms(a: Cell, b: Cell) -> set[str]:
    """Return the fields in which models of two arms differ, ignoring how long they train.

    A field of a method that takes words or switches is replaced by the method, such as objectives.mae.
    """
    differing = [(name, values) for name, values in _differing(a, b) if not HOW_LONG.search(name)]
    return {_method(name) if any(map(_is_word, values)) else name for name, values in differing}


def _is_word(value: Any) -> bool:
    """Whether ``value`` is a word, a switch, or None, which stands for a part that is off."""
    return value is None or isinstance(value, str | bool)


def _method(name: str) -> str:
    """Return the objective or the masked tokens that a field belongs to; the field's own name if it belongs to neither."""
    return match[0] if (match := OF_METHOD.search(name)) else name


def _differing(a: Cell, b: Cell) -> list[tuple[str, tuple[Any, Any]]]:
    """Return the fields in which the stages of two models differ, with both values."""
    if len(a.stages) != len(b.stages):
        return [("stages", (len(a.stages), len(b.stages)))]
    pairs = [(_defining(a, i), _defining(b, i)) for i in range(len(a.stages))]
    # a part that is off is one field; if it is on, its own fields replace that one, which is then missing (...)
    named_values = [(name, (ours.get(name, ...), theirs.get(name, ...))) for ours, theirs in pairs for name in ours.keys() | theirs.keys()]
    return [(name, values) for name, values in named_values if values[0] != values[1]]


def _alike(sweep: Sweep, axis: str) -> list[list[Cell]]:
    """Return, for every arm, the cells that agree with its first cell in all axes but ``axis``."""
    groups: dict[str, tuple[dict[str, Any], list[Cell]]] = {}
    for cell in sweep.cells:
        others = {name: value for name, value in cell.axes.items() if name != axis}
        first, cells = groups.setdefault(cell.arm, (others, []))
        if others == first:
            cells.append(cell)
    return [cells for _, cells in groups.values()]


def _defining(cell: Cell, stage: int) -> dict[str, Any]:
    """Return the fields that determine the result of a stage.

    Weights that come from an earlier stage of the same model are left out, since that stage is compared itself.
    """
    own_stages = {name for name, _ in cell.stages} | {run.path.name for _, run in cell.stages}
    weights = checkpoint_fields(Run)
    run_fields = cell.stages[stage][1].run_fields
    fields = {name: value for name, value in run_fields.items() if not _is_ignored(name)}
    return {name: value for name, value in fields.items() if not (name in weights and value is not None and Path(value).name in own_stages)}


@cache
def _is_ignored(name: str) -> bool:
    """Whether a field is one without influence on the result, or one that draws the same data differently."""
    return without_influence(name) or OTHER_DRAW.search(name) is not None


@cache
def without_influence(name: str) -> bool:
    """Whether a field, also of a stage or an arm, changes no result; a seed changes the spread alone, which a report shows."""
    return (f".{name}".endswith(".seed") and "data." not in name) or any(f".{field}." in f".{name}." for field in _runtime())


@cache
def _runtime() -> frozenset[str]:
    fields = fields_of(Run)
    no_identity = {f.name for f in fields if not f.declared.metadata.get("identity", True)}
    return frozenset(no_identity - {"data.shards", "data.source"})  # these two say which data it is
