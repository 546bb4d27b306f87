"""Which axes of a sweep set hyper-parameters: the best of their values is a choice, and the test images must not make it."""

from __future__ import annotations

import re
from typing import Any

from vitssl.config import Run, checkpoint_fields, dotted
from vitssl.report.collect import Cell, Sweep

HYPERPARAMETER = re.compile(r"(^|\.)(optim\.|objectives\.\w+\.)")  # an objective that is on or off is a method, not a setting


def sets_hyperparameters(sweep: Sweep, axis: str) -> bool:
    """Does an axis set fields of the optimiser and of objectives alone? Told from two runs that differ in nothing else, or by its name."""
    fields = _fields_set(sweep, axis) or {axis}
    return all(HYPERPARAMETER.search(name) for name in fields)


def _fields_set(sweep: Sweep, axis: str) -> set[str]:
    """The fields in which an arm's first cell differs from another one that has the same values of all other axes."""
    first: dict[str, Cell] = {}
    for cell in sweep.cells:
        reference = first.setdefault(cell.arm, cell)
        if {name for name, value in cell.axes.items() if value != reference.axes.get(name)} == {axis}:
            pairs = zip(reference.stages, cell.stages, strict=False)
            if differing := {name for (_, a), (_, b) in pairs for name in _differing(a.run, b.run)}:
                return differing
    return set()


def _differing(a: dict[str, Any], b: dict[str, Any]) -> set[str]:
    ours, theirs = dotted(a), dotted(b)
    same = {name for name in ours.keys() & theirs.keys() if ours[name] == theirs[name]}
    return (ours.keys() | theirs.keys()) - same - checkpoint_fields(Run)
