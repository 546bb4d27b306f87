"""The report's tables as data: the content of every cell, and whether it was measured here or printed in the paper."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import groupby
from statistics import mean
from typing import Any

from vitssl.report import energy_sources
from vitssl.report.collect import Cell, Sweep
from vitssl.report.grid import Grid, Row, cost_per_model
from vitssl.report.stats import Difference, std

DASH, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
LOWER_IS_BETTER = "↓: lower is better."
MEASURED, PUBLISHED, NOTE, BAD = "measured", "published", "note", "bad"


@dataclass(frozen=True)
class Entry:
    """One cell of a table."""

    text: str = DASH
    kind: str = MEASURED  # PUBLISHED: printed by the paper, set apart everywhere; BAD: failed; NOTE: neither


@dataclass
class Table:
    title: str
    header: list[str]
    rows: list[list[Entry]]
    caption: str = ""
    groups: list[tuple[str, int]] = field(default_factory=list)  # (label, number of columns) above the header
    left: frozenset[int] = frozenset({0})  # columns of text
    best: set[tuple[int, int]] = field(default_factory=set)  # (row, column) of the best values

    def pick(self, columns: list[int]) -> Table:
        """The same table with these columns only."""
        labels = [label for label, span in self.groups for _ in range(span)]
        return Table(
            self.title, [self.header[c] for c in columns], [[row[c] for c in columns] for row in self.rows], self.caption,
            groups=[(label, len(list(run))) for label, run in groupby(labels[c] for c in columns)] if labels else [],
            left=frozenset(i for i, c in enumerate(columns) if c in self.left),
            best={(row, columns.index(c)) for row, c in self.best if c in columns},
        )  # fmt: skip

    def without(self, *names: str) -> Table:
        """Without the columns of these names."""
        return self.pick([c for c, name in enumerate(self.header) if name not in names])

    def trimmed(self) -> Table:
        """Without the empty columns."""
        full = [c for c in range(len(self.header)) if c == 0 or any(row[c].text != DASH for row in self.rows)]
        return self.pick(full)


def number(value: float | None, digits: int = 3) -> str:
    """``digits`` significant digits, whole numbers from 1,000 on; a dash for None."""
    if value is None:
        return DASH
    if abs(value) >= 10**digits:
        return f"{value:,.0f}"
    return f"{value:#.{digits}g}".rstrip(".") if value else "0"


def signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", MINUS)


def billions(macs: float) -> str:
    """GMACs as the papers print them: two decimals, more for tiny models."""
    return f"{macs / 1e9:.2f}" if macs >= 1e8 else number(macs / 1e9)


def millions(count: float) -> str:
    return f"{count / 1e6:.2f}" if count >= 1e5 else number(count / 1e6)


def hours_name(sweep: Sweep) -> str:
    return "GPU-hours" if sweep.on_gpu else "device-hours"


def _joined(values: list[str]) -> str:
    return " or ".join(dict.fromkeys(values)) or DASH


# ------------------------------------------------------------------------------------------------------ the main tables


def accuracy(grid: Grid) -> Table:
    """Arms against columns: the sweep's metric, as measured and as the paper prints it."""
    header = [f"{grid.measured.title}, mean ± std (seeds)", "paper", "difference"]
    rows = [[Entry(grid.label(row)), Entry(row.arm.row or DASH, NOTE), *_accuracies(grid, row)] for row in grid.rows]
    row_name = "paper's row" if grid.sweep.facts.get("paper") else "in words"
    names = [(grid.name(column), 3) for column in grid.columns]
    ranked = {2 + 3 * i: grid.ranking(column) for i, column in enumerate(grid.columns)}  # arms by column, none where they cannot be
    table = Table(
        "Comparison of arms", ["arm", row_name, *header * len(grid.columns)], rows, caption=_accuracy_caption(grid),
        groups=[("", 2), *names] if grid.columns != [None] else [], left=frozenset({0, 1}),
        best={(grid.rows.index(order[0]), c) for c, order in ranked.items() if order},
    )  # fmt: skip
    return table.trimmed()


def cost(grid: Grid) -> Table:
    """Size of every arm's models and what one of them cost, separately for every column."""
    rows = []
    for row, column, done in grid.models():
        images_per_s = mean(c.last.cost["inference_images_per_s"] for c in done)
        rows.append([*which(grid, row, column), *_size(done), *_spending(done), Entry(number(images_per_s))])
    named = ["arm", grid.axis or ""]
    size = ["M parameters, training", "M parameters, inference", "M activations, inference", "GMACs, training forward", "GMACs, inference"]
    spent = [hours_name(grid.sweep), "kWh", "kg CO2e tracked", "kg CO2e estimate", currency(grid.sweep)]
    return Table(
        "Size and cost", [*named, *size, *spent, "images/s, inference"], rows, caption=_cost_caption(grid),
        groups=[("", len(named) + len(size)), ("one model", len(spent)), ("", 1)], left=frozenset({0, 1}),
    ).trimmed()  # fmt: skip


def which(grid: Grid, row: Row, column: Any) -> list[Entry]:
    """The text columns of a table of models: the arm, and its column where there are several."""
    return [Entry(grid.label(row)), Entry(str(column) if grid.axis else DASH)]


def currency(sweep: Sweep) -> str:
    return sweep.currency or "money"


def _size(done: list[Cell]) -> list[Entry]:
    return [
        Entry(_joined([_chain(c, "params_train", millions) for c in done])),
        Entry(_joined([millions(c.last.cost["params_inference"]) for c in done])),
        Entry(_joined([millions(c.last.cost["activations_inference"]) for c in done])),
        Entry(_joined([_chain(c, "macs_train_forward", billions) for c in done])),
        Entry(_joined([billions(c.last.cost["macs_inference"]) for c in done])),
    ]


def _chain(cell: Cell, key: str, form: Any) -> str:
    """One figure per stage, as the papers print a chain: 0.43 + 1.26."""
    return " + ".join(form(run.cost[key]) for _, run in cell.stages)


def _accuracies(grid: Grid, row: Row) -> list[Entry]:
    entries = []
    for column in grid.columns:
        scores, paper = list(grid.scores(row, column).values()), grid.published(row, column)
        dagger, cells = "†" if row.arm.quoted else "", row.columns.get(column, [])
        seeds = f"{len(scores)}" if len(scores) == len(cells) else f"{len(scores)} of {len(cells)}"
        entries.append(Entry(f"{plus_minus(scores)} ({seeds})") if scores else _status_entry(row, row.candidates(column)))
        entries.append(Entry(f"{paper:.2f}{dagger}", PUBLISHED) if paper is not None else Entry())
        entries.append(Entry(signed(mean(scores) - paper)) if scores and paper is not None else Entry())
    return entries


def chosen_over(sweep: Sweep) -> str:
    """The axes that the sweep selects over, in words."""
    return " and ".join(sweep.facts["select"])


def plus_minus(values: list[float]) -> str:
    spread = std(values)
    return f"{mean(values):.2f}" + (f" ± {spread:.2f}" if spread is not None else "")


def _status_entry(row: Row, cells: list[Cell]) -> Entry:
    if row.arm.not_runnable:
        return Entry("not runnable", NOTE)
    counts = Counter(cell.status for cell in cells)
    text = ", ".join(f"{status} ({n})" for status, n in counts.items())
    if set(counts) == {"done"}:
        return Entry("no accuracy", NOTE)  # a pretraining alone
    return Entry(text or DASH, BAD if "failed" in counts else NOTE)


def _spending(done: list[Cell]) -> list[Entry]:
    """Hours, kWh, CO2e tracked and estimated, money; what a CPU or a site without a price does not have stays a dash."""
    cost = cost_per_model(done)
    if cost is None or not cost["device_hours"]:
        return [Entry()] * 5
    estimate, money = cost["estimate_kg"] or None, cost["money"] or None
    return [Entry(number(v)) for v in (cost["device_hours"], cost["energy_kwh"], cost["co2e_kg"], estimate, money)]


def _accuracy_caption(grid: Grid) -> str:
    sweep, paper = grid.sweep, grid.sweep.facts.get("paper")
    first = f"{grid.measured.title} after the last epoch: mean ± standard deviation over the seeds, their number in brackets."
    first += f" {LOWER_IS_BETTER}" if grid.measured.lower_is_better else ""
    first += f" Each is of the {chosen_over(sweep)} that held-out images choose." if sweep.facts.get("select") else ""
    source = f" Numbers in italics are printed in {paper['table']} of “{paper['title']}”, not measured here." if paper else ""
    other = ", ".join(energy_sources.other_data(sweep))
    source += f" Its images are not those of these runs: the command line set {other}." if paper and other else ""
    return first + source + (" † the paper only quotes this row." if any(arm.quoted for arm in sweep.arms) else "")


def _cost_caption(grid: Grid) -> str:
    size = "A chain's stages are joined by +. Activations: the values that matrix products and convolutions put out for one image. "
    spent = "One model: the mean over seeds of the sum over its stages, all attempts included. "
    sweep = grid.sweep
    spent += f"It is the chosen one; the search over {chosen_over(sweep)} took all of the runs below. " if sweep.facts.get("select") else ""
    if not sweep.on_gpu:
        estimate = "No GPU was used: hours are of the one device, and the estimate by board power has no meaning."
    else:
        sites = {(run.site.gpu_power_w, run.site.estimate_kg_per_kwh) for run in sweep.runs.values()}
        factors = " or ".join(f"board power ({power_w:g} W) x {intensity:g}" for power_w, intensity in sorted(sites))
        estimate = f"Estimate: GPU-hours x {factors} kg/kWh, as the SSAT paper's Table 3."
    return " ".join(filter(None, (size + spent + estimate, energy_sources.tracked(sweep), energy_sources.sites(sweep))))


# -------------------------------------------------------------------------------------------------------- further tables


def differences(grid: Grid) -> Table | None:
    """Every arm minus the baseline, with a 95 % confidence interval over the seeds."""
    rows = []
    for row in grid.rows:
        intervals = [grid.against_baseline(row, column) for column in grid.columns]
        if any(intervals):
            against = f" against {row.arm.baseline}" if row.arm.baseline else ""
            how = "; ".join(dict.fromkeys(d.how for d in intervals if d))
            rows.append([Entry(grid.label(row) + against), *(Entry(_interval(d)) for d in intervals), Entry(how, NOTE)])
    if not rows:
        return None
    what = f"Percentage points of {grid.measured.name}" if grid.measured.unit == "%" else grid.measured.name
    direction = f" {LOWER_IS_BETTER}" if grid.measured.lower_is_better else ""
    return Table(
        f"Difference from {grid.baselines()}", ["arm", *(grid.name(c) or grid.measured.title for c in grid.columns), "interval"], rows,
        caption=f"{what}, with the 95 % confidence interval by Student's t in brackets.{direction}",
        left=frozenset({0, len(grid.columns) + 1}),
    )  # fmt: skip


def _interval(difference: Difference | None) -> str:
    if difference is None:
        return DASH
    low, high = difference.low, difference.high
    return signed(difference.mean) + (f" [{signed(low)}, {signed(high)}]" if low is not None else "")


def readings(grid: Grid) -> Table | None:
    """Other accuracies of the same runs: what choosing the epoch on the test set or on held-out images would give."""
    kinds = {"test_ema": "top-1 of averaged weights", "selected": "top-1 at the best validation epoch", "test_best": "best on the TEST set"}
    kinds = {k: name for k, name in kinds.items() if any(grid.scores(r, c, k, "top1") for r in grid.rows for c in grid.columns)}
    if not kinds:
        return None
    rows = []
    for row in (r for r in grid.rows if r.done):
        scores = [list(grid.scores(row, column, kind, "top1").values()) for column in grid.columns for kind in kinds]
        rows.append([Entry(grid.label(row)), *(Entry(plus_minus(s) if s else DASH) for s in scores)])
    groups = [("", 1), *((grid.name(c) or "accuracy", len(kinds)) for c in grid.columns)]
    caption = "“Best on the TEST set” picks the epoch by the test images themselves and flatters every arm; no other number here does that."
    return Table("Other readings of the same runs", ["arm", *list(kinds.values()) * len(grid.columns)], rows, caption, groups)
