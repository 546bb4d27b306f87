"""How often training sees images, from the runs themselves: what they plan, what they did, and whether arms are equal in it."""

from __future__ import annotations

from typing import Any

from vitssl.report.collect import Cell, RunFolder
from vitssl.report.grid import Grid
from vitssl.report.rows import Row
from vitssl.words import listed

Plan = tuple[tuple[float, float], ...]  # of each stage: epochs, and images seen in all
MOST_SPELLED = 4  # groups of arms that a sentence tells apart
SHARES = {0.25: "a quarter", 1 / 3: "a third", 0.5: "half", 2 / 3: "two thirds", 0.75: "three quarters"}


def images_seen(run: RunFolder) -> float:
    """Images that a finished run trained on, each as often as it was seen."""
    return run.done["step"] * run.run["optim"]["batch_size"]


def training_macs(cell: Cell) -> float | None:
    """The multiply-adds of all training steps of a finished model, of all its stages, forward and backward: an exact count. None where
    they are not known of a stage, since an earlier version counted no backward passes."""
    if not all("macs_train_step" in run.cost for _, run in cell.stages):
        return None
    return sum(run.cost["macs_train_step"] * images_seen(run) for _, run in cell.stages)


def plan(row: Row, column: Any) -> Plan | None:
    """What a model's stages are to see; None where a run's folder does not say (imported weights see nothing)."""
    cells = row.candidates(column)
    stages = [planned(run) for _, run in cells[0].stages if "imported" not in run.job] if cells else []
    return tuple(stage for stage in stages if stage) if stages and all(stages) else None


def planned(run: RunFolder) -> tuple[float, float] | None:
    """Epochs, and images seen in all; None where its folder does not say."""
    if not run.run or "data" not in run.job:
        return None
    loop, images = run.run["loop"], run.job["data"]["train_images"]
    seen = loop["epochs"] * images
    if loop["max_steps"] is not None:
        seen = min(seen, loop["max_steps"] * run.run["optim"]["batch_size"])
    return seen / images, seen


def epochs(stages: Plan) -> str:
    """Of a chain 20 + 20."""
    return " + ".join(f"{count:.3g}" if count < 100 else f"{count:,.0f}" for count, _ in stages)


def _in_words(stages: Plan) -> str:
    """1 epoch; of a chain 20 + 20 epochs."""
    shown = epochs(stages)
    return f"{shown} epoch{'' if shown == '1' else 's'}"


def sentence(grid: Grid) -> str:
    """Whether arms see equally many images, and what part of it pretraining takes; empty for a single arm, or where it is not known."""
    points = list(dict.fromkeys(tuple(row.values.items()) for row in grid.rows))
    points = [point for point in points if not any(set(point) < set(other) for other in points)]  # of arms that an axis does not change
    places = {_place(grid, column, point): _compared(grid, column, dict(point)) for column in grid.columns for point in points}
    places = {place: text for place, text in places.items() if text}
    said = dict.fromkeys(places.values())
    if len(said) <= 1:
        return "".join(f"{text}." for text in said)
    if len(places) <= MOST_SPELLED:
        return " ".join(f"{place}: {_after(place, text)}." for place, text in places.items())
    if all(text.startswith("Equal") for text in said):
        return "Equal epochs: all arms see equally many images in training."
    return "Arms differ in how many images they see in training."


def _after(place: str, text: str) -> str:
    """A place may be called equal epochs itself."""
    text = text.removeprefix("Equal epochs: ") if "equal epochs" in place else text
    return text[0].lower() + text[1:]


def _place(grid: Grid, column: Any, point: tuple[tuple[str, Any], ...]) -> str:
    parts = [f"On {grid.name(column)}" if grid.name(column) else "", *(f"at {grid.valued(axis, value)}" for axis, value in point)]
    place = ", ".join(filter(None, parts))
    return place[:1].upper() + place[1:]


def _compared(grid: Grid, column: Any, point: dict[str, Any]) -> str:
    """The arms of one column at one point of the row axes."""
    rows = [row for row in grid.rows if row.values.items() <= point.items()]
    plans = {grid.called(row.arm): stages for row in rows if (stages := plan(row, column))}
    if len(plans) < 2:
        return ""
    totals = [sum(seen for _, seen in stages) for stages in plans.values()]
    if max(totals) > 1.005 * min(totals):
        return _differing(plans)
    first = min(plans.values(), key=len)
    text = f"Equal epochs: every arm sees {totals[0]:,.0f} images in training" + (f", {_in_words(first)}" if len(first) == 1 else "")
    before = {arm: _before(row, column, plans[arm]) for row in rows if (arm := grid.called(row.arm)) in plans}
    chains = _grouped({arm: spent for arm, spent in before.items() if spent})
    return "; ".join([text, *(f"{listed(arms)} {'spends' if len(arms) == 1 else 'spend'} {spent}" for spent, arms in chains)])


def _differing(plans: dict[str, Plan]) -> str:
    groups = _grouped({label: f"{sum(seen for _, seen in stages):,.0f} ({_in_words(stages)})" for label, stages in plans.items()})
    if len(groups) > MOST_SPELLED:
        return "Arms differ in how many images they see in training"
    seen = ", ".join(f"{text} for {listed(labels)}" for text, labels in groups)
    return f"Images seen in training differ: {seen}"


def _before(row: Row, column: Any, stages: Plan) -> str:
    """The share of the images that all stages but the last see; empty where there is one stage."""
    if len(stages) == 1:
        return ""
    share = sum(seen for _, seen in stages[:-1]) / sum(seen for _, seen in stages)
    words = next((words for known, words in SHARES.items() if abs(share - known) < 0.005), f"{100 * share:.0f} %")
    names = [name for name, run in row.candidates(column)[0].stages if "imported" not in run.job][:-1]
    return f"{words} of them on {listed('pretraining' if name.startswith('pretrain') else name for name in names)}"


def _grouped(texts: dict[str, str]) -> list[tuple[str, list[str]]]:
    """The labels by their text."""
    groups: dict[str, list[str]] = {}
    for label, text in texts.items():
        groups.setdefault(text, []).append(label)
    return list(groups.items())
