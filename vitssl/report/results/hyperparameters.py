"""Which choices of a sweep are of hyper-parameters: the best of them would be selected, and the test images must not select it.

A report compares data, labels, networks, the weights that training starts from, and methods: which objectives are on, and whether the
backbone learns. A hyper-parameter is whatever else shapes a training: the optimiser, the loop, views with their augmentations, an
objective's own fields, and of the network what only training knows of, such as stochastic depth.

Two models differ in a setting where all that they differ in are hyper-parameters, one field or many. An axis is one of hyper-parameters
where any two of its values differ so: {optim.lr, data.views.main.mixup_alpha} is one, and of weights of an objective that a further
value switches off, the choice between the weights is one too. A backbone's name with its learning rate is a network.

Arms are told apart in the same way, but for two things. How long they train is what they cost, which a report compares: epochs, warm-up
and steps count on neither side. And a word or a switch among the fields of an objective or of masked tokens (how patches are hidden, a
loss, a teacher) makes another method, as SimMIM is not MAE; numbers (a mask ratio, a weight) are hyper-parameters.

Fields without influence on the result (workers, threads, caches) count on neither side, nor do other draws of the same data: seeds, and
which images are held out.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

from vitssl.config import Run, checkpoint_fields, dotted
from vitssl.config.fields import fields_of
from vitssl.report.results.collect import Cell, Sweep

HYPERPARAMETER = re.compile(
    r"(^|\.)((optim|loop|data\.views|backbone\.masked_tokens|objectives\.\w+)\.|"  # an objective that is on or off is a method
    r"(data\.(repeats|normalize|mean|std|eval_crop|cache_px)|backbone\.(drop_path|init|cls_token_std|batch_norm)"
    r"|init_(weights|objectives|except))$)"
)
OTHER_DRAW = re.compile(r"(^|\.)data\.(val_(seed|fraction|split)|(labels|images)\.seed)$")
HOW_LONG = re.compile(r"(^|\.)loop\.(epochs|warmup_epochs|schedule_epochs|max_steps)$")
OF_METHOD = re.compile(r"(^|\.)(objectives\.\w+|backbone\.masked_tokens)(?=\.)")  # the part of a name that is the method's


def sets_hyperparameters(sweep: Sweep, axis: str) -> bool:
    """Do any two values of an axis differ in hyper-parameters alone? Told from models that differ in nothing else, or by its name."""
    pairs = [pair for cells in _alike(sweep, axis) for pair in combinations(cells, 2)]
    differing = [fields for fields in (fields_between(a, b) for a, b in pairs) if fields]
    return any(map(is_setting, differing or [{axis}]))


def is_setting(fields: set[str]) -> bool:
    """Are these fields, in which two models differ, hyper-parameters alone?"""
    return bool(fields) and all(HYPERPARAMETER.search(name) for name in fields)


def fields_between(a: Cell, b: Cell) -> set[str]:
    """The fields in which the stages of two models differ, but for seeds; `stages` where one has more of them."""
    return {name for name, _ in _differing(a, b)}


def fields_between_arms(a: Cell, b: Cell) -> set[str]:
    """The same of models of two arms, without how long they train; for a word or a switch of a method stands the method."""
    differing = [(name, values) for name, values in _differing(a, b) if not HOW_LONG.search(name)]
    return {_method(name) if any(map(_is_word, values)) else name for name, values in differing}


def _is_word(value: Any) -> bool:
    """A word or a switch; of a part that is off too."""
    return value is None or isinstance(value, str | bool)


def _method(name: str) -> str:
    """The objective that a field belongs to, or the masked tokens; the field's name where it belongs to neither."""
    return match[0] if (match := OF_METHOD.search(name)) else name


def _differing(a: Cell, b: Cell) -> list[tuple[str, tuple[Any, Any]]]:
    """The fields in which the stages of two models differ, with both values."""
    if len(a.stages) != len(b.stages):
        return [("stages", (len(a.stages), len(b.stages)))]
    pairs = [(_defining(a, i), _defining(b, i)) for i in range(len(a.stages))]
    # a part that is off is a field of its own, and none of that name where it is on
    both = [(name, (ours.get(name, ...), theirs.get(name, ...))) for ours, theirs in pairs for name in ours.keys() | theirs.keys()]
    return [(name, values) for name, values in both if values[0] != values[1]]


def _alike(sweep: Sweep, axis: str) -> list[list[Cell]]:
    """Of every arm the cells that have its first cell's values of all other axes."""
    groups: dict[str, tuple[dict[str, Any], list[Cell]]] = {}
    for cell in sweep.cells:
        others = {name: value for name, value in cell.axes.items() if name != axis}
        first, cells = groups.setdefault(cell.arm, (others, []))
        if others == first:
            cells.append(cell)
    return [cells for _, cells in groups.values()]


def _defining(cell: Cell, stage: int) -> dict[str, Any]:
    """The fields of a stage that its result follows from; the weights of an earlier stage of its own are that stage's."""
    own = {name for name, _ in cell.stages} | {run.path.name for _, run in cell.stages}
    weights = _weights()
    of_run = dotted(cell.stages[stage][1].run)
    fields = {name: value for name, value in of_run.items() if not (without_influence(name) or OTHER_DRAW.search(name))}
    return {name: value for name, value in fields.items() if not (name in weights and value is not None and Path(value).name in own)}


@cache
def without_influence(name: str) -> bool:
    """Does a field, of a stage or an arm too, change no result? Of the seed it is spread, which a report shows."""
    return (f".{name}".endswith(".seed") and "data." not in name) or any(f".{field}." in f".{name}." for field in _runtime())


@cache
def _weights() -> frozenset[str]:
    return frozenset(checkpoint_fields(Run))


@cache
def _runtime() -> frozenset[str]:
    fields = fields_of(Run)
    without = {f.name for f in fields if not f.owner.__dataclass_fields__[f.own_name].metadata.get("identity", True)}
    return frozenset(without - {"data.shards", "data.source"})  # which stand for the data
