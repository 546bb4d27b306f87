"""Few labels and many images without one: what each arm learned from, as its runs recorded it, and how it ended against its baseline."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vitssl.config.methods import METHODS
from vitssl.report.collect import Cell, RunFolder
from vitssl.report.grid import Grid
from vitssl.report.rows import Row
from vitssl.report.schedule import planned
from vitssl.report.table import signed
from vitssl.report.tables import bracketed
from vitssl.words import counted, listed

MANY = 0.05  # of the labels that a baseline sees, by which an arm sees more or fewer
MOST_NAMED = 6  # arms that a sentence names
CLASSIFY = "classify"


@dataclass(frozen=True)
class Learned:
    """What a model learned from.

    Attributes:
        labelled: images with a label, on which it learned to classify.
        unlabelled: further images of the same set, which it saw without one.
        by: the objectives that these trained, by the stage's name.
        joint: did they so in the same steps as the labels?
    """

    labelled: int
    unlabelled: int
    by: str
    joint: bool


def learned(row: Row, column: Any) -> Learned | None:
    """Of the first seed; None where stages are of several sets or draws of images, or where nothing is classified or recorded."""
    runs = [run for _, run in cells[0].stages] if (cells := row.candidates(column)) else []
    if not runs or not all(run.run and "data" in run.job for run in runs):
        return None
    classifiers = [run for run in runs if CLASSIFY in objectives(run)]
    draws = {json.dumps(run.run["data"]["images"], sort_keys=True) for run in runs if run.run["data"]["images"] is not None}
    if not classifiers or len({run.job["data"]["sha256"] for run in runs}) > 1 or len(draws) > 1:
        return None
    labelled = max(run.job["data"]["labelled_images"] for run in classifiers)
    further = [run for run in runs if run.job["data"]["train_images"] > labelled]
    by = dict.fromkeys(name for run in further for name in objectives(run) if name != CLASSIFY)
    unlabelled = max((run.job["data"]["train_images"] for run in further), default=labelled) - labelled
    return Learned(labelled, unlabelled, listed(map(called, by)), any(run in classifiers for run in further))


def objectives(run: RunFolder) -> list[str]:
    """The names of what a run's training minimises."""
    return [name for name, fields in run.run["objectives"].items() if fields is not None]


def called(objective: str) -> str:
    """An objective as its paper calls it."""
    return next((method.title for method in METHODS if method.title.lower() == objective), objective)


def images(grid: Grid) -> list[str]:
    """How many images with a label and without one each arm learned from, by column where these differ; nothing where all have labels."""
    said = {column: text for column in grid.columns if (text := _images(grid, column))}
    if len(said) == len(grid.columns) and len(set(said.values())) == 1:
        return [next(iter(said.values()))]
    return [f"On {grid.name(column)}, {text}" if grid.name(column) else text for column, text in said.items()]


def _images(grid: Grid, column: Any) -> str:
    by_arm = {grid.label(row): facts for row in grid.rows if (facts := learned(row, column))}
    labelled = {facts.labelled for facts in by_arm.values()}
    if not 1 <= len(by_arm) <= MOST_NAMED or len(labelled) > 1 or not any(facts.unlabelled for facts in by_arm.values()):
        return ""
    groups: dict[int, list[str]] = {}
    for arm, facts in by_arm.items():
        groups.setdefault(facts.unlabelled, []).append(arm)
    number, drawn = counted(labelled.pop(), "labelled image"), " (drawn anew with each seed)" if redrawn(grid) else ""
    (least, arms), *others = sorted(groups.items())
    first = f"{_several(arms)} {'learns' if len(arms) == 1 else 'learn'} from {number}"
    first += f" and from {least:,} without a label{drawn}" if least else f" alone{drawn}"
    also = [f"{_several(arms)} also from {count:,} without a label" for count, arms in others]
    return f"{('; ' if any(',' in arm for arm in by_arm) else ', ').join([first, *also])}."


def redrawn(grid: Grid) -> bool:
    """Does each of several seeds draw labels, or images, of its own, or train on other folds?"""
    cells = grid.sweep.cells
    subsets = [run.run["data"][name] for cell in cells for _, run in cell.stages if run.run for name in ("labels", "images")]
    drawn = bool(grid.folds) or any(subset and subset.get("redraw") for subset in subsets)
    return len({cell.axes.get("seed") for cell in cells}) > 1 and drawn


def _several(arms: list[str]) -> str:
    """Names of arms, which may have commas of their own, apart from those in brackets."""
    *first, last = arms
    divided = any("," in re.sub(r"\(.*?\)", "", arm) for arm in arms)
    return f"{'; '.join(first)}; and {last}" if first and divided else listed(arms)


def why(grid: Grid, column: Any) -> str:
    """How an arm used images without a label, and how it ended against a baseline that has labels alone."""
    told = []
    for row in grid.rows:
        facts, gap = _more_than_baseline(grid, row, column), grid.against_baseline(row, column)
        if facts and gap and gap.seeds > 1:
            chance = "; may be chance" if gap.open else ""
            how = f"{facts.by} {'along with' if facts.joint else 'before'} the labels{_labels(grid, row, column)}{chance}"
            told.append(f"{grid.label(row)} {signed(gap.mean)}{grid.points}{bracketed(gap)} ({how})")
    if not told or len(told) > MOST_NAMED:
        return ""
    begin = f"{place}, with" if (place := grid.place(column)) else "With"
    return f"{begin} images without a label, against {grid.baselines()}: {listed(told)}."


def _labels(grid: Grid, row: Row, column: Any) -> str:
    """How often each sees an image with its label, where that is not as often: what follows is no effect of images without."""
    own, base = (sum(_labels_seen(cells[0])) for cells in (row.candidates(column), grid.baseline(row).candidates(column)))
    if not own or not base or abs(own - base) <= MANY * base:
        return ""
    return f"; {own:,.0f} labelled images seen, by {grid.baseline_name(row)} {base:,.0f}"


def _labels_seen(cell: Cell) -> Iterator[float]:
    """Of its stages that classify, each label as often as it was seen: of images with and without, their share."""
    for _, run in cell.stages:
        if CLASSIFY in objectives(run) and (plan := planned(run)):
            facts = run.job["data"]
            yield plan[1] * facts["labelled_images"] / facts["train_images"]


def _more_than_baseline(grid: Grid, row: Row, column: Any) -> Learned | None:
    """What a row learned from, where its baseline had the same labels and no other images."""
    facts, base = learned(row, column), grid.baseline(row)
    plain = learned(base, column) if base else None
    return facts if facts and plain and facts.unlabelled and plain == Learned(facts.labelled, 0, "", False) else None
