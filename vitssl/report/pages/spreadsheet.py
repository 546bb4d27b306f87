"""The numbers of a sweep as CSV: files with a line per row of the main table, model, evaluation, and pair that may be compared."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from io import StringIO
from itertools import combinations
from statistics import mean

from vitssl.config.evals import OWN_EVALS
from vitssl.report.results.collect import Cell, RunFolder
from vitssl.report.results.costs import images_per_s, macs
from vitssl.report.results.grid import SEED, Grid
from vitssl.report.results.rows import Row, cost_of, cost_per_model, costs_of, finished
from vitssl.report.results.schedule import training_macs
from vitssl.report.results.stats import MIN_SEEDS, holm, std
from vitssl.report.tables import selection
from vitssl.report.tables.evaluations import informative_metrics
from vitssl.words import as_cell


def numbers(grid: Grid) -> str:
    """Return table.csv, with a line for each row and column of the main table."""
    return _csv([_line(grid, row, column) for row in grid.rows for column in grid.columns])


def by_seed(grid: Grid) -> str:
    """Return seeds.csv, with a line for each trained model: its seed, every metric of its last stage, and the cost of all its stages."""
    places = [(row, column) for row in grid.rows for column in grid.columns]
    return _csv([_model(grid, row, column, cell) for row, column in places for cell in row.finished(column)])


def curves(grid: Grid) -> str:
    """Return curves.csv, with a line for each evaluation during training, of every stage of every model in the main table.

    Its losses are those that were logged last before the evaluation, each before its weight is applied.
    """
    lines = []
    for row in grid.rows:
        for column, cells in row.columns.items():
            for cell in cells:
                model = {**_named(grid, row, column), "seed": cell.axes.get(SEED)}
                lines += [{**model, "stage": stage, "run": run.path.name, **point} for stage, run in cell.stages for point in _points(run)]
    return _csv(lines)


def _points(run: RunFolder) -> Iterator[dict[str, object]]:
    losses: dict[str, float] = {}
    for event in run.events:
        if event["event"] == "train":
            losses = {f"loss_{name}": value for name, value in event["terms"].items()}
        elif event["event"] == "eval":
            metrics = {f"{name}_{key}": value for name, of in event.items() if isinstance(of, dict) for key, value in of.items()}
            yield {"epoch": event["epoch"], "step": event["step"], **metrics, **losses}


def pairs(grid: Grid) -> str:
    """Return differences.csv, with a line for each pair that may be compared: the first minus the second.

    A pair is two rows in one column of the sweep, at the same cost if the sweep has an axis of equal costs, or one row in two columns of
    the same data set. P-values are corrected for multiple comparisons within each column and cost, as in the report's sentences, and
    together for all pairs between columns.
    """
    rows_by_cost: dict[object, list[Row]] = {}
    for row in grid.rows:
        cost = None if grid.cost_axis is None else row.values.get(grid.cost_axis)
        rows_by_cost.setdefault(cost, []).append(row)
    families = [
        [(one, other, column, column) for one, other in combinations(rows, 2)] for rows in rows_by_cost.values() for column in grid.columns
    ]
    columns = combinations(grid.columns, 2) if grid.of_one_set else []
    families.append([(row, row, later, earlier) for earlier, later in columns for row in grid.rows])
    return _csv([line for family in families for line in _family(grid, family)])


def _family(grid: Grid, places: list[tuple[Row, Row, object, object]]) -> Iterator[dict[str, object]]:
    """Yield the lines of pairs whose p-values are corrected together (Holm)."""
    gaps = [grid.gap(one, other, column, than) for one, other, column, than in places]
    known = [gap.p for gap in gaps if gap and gap.p is not None]
    corrected = iter(holm(known))
    for (one, other, column, than), gap in zip(places, gaps, strict=True):
        p = gap.p if gap else None
        yield {
            **_named(grid, one, column), **{f"than_{name}": value for name, value in _named(grid, other, than).items()},
            "difference": gap and round(gap.mean, 12), "ci95_low": gap and gap.low, "ci95_high": gap and gap.high,
            "p": p, "p_holm": None if p is None else next(corrected), "comparisons": len(known),
            "may_be_chance": gap.open if gap and gap.seeds >= MIN_SEEDS else None, "seeds": gap and gap.seeds,
            "interval": gap.how if gap else "no seed has a figure for both",
        }  # fmt: skip


def _csv(lines: list[dict[str, object]]) -> str:
    """Return the lines as CSV for a spreadsheet, with unrounded numbers."""
    out = StringIO()
    writer = csv.DictWriter(out, fieldnames=list(dict.fromkeys(key for line in lines for key in line)) or ["arm"], lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow({name: as_cell(value) if isinstance(value, str) else value for name, value in line.items()})
    return out.getvalue()


def _named(grid: Grid, row: Row, column: object) -> dict[str, object]:
    """Return the arm of a row, the row's axis values, and the column of the sweep if there is one."""
    return {"arm": row.arm.name, **row.values, **({grid.sweep.facts["columns"]: column} if grid.sweep.facts["columns"] else {})}


def _model(grid: Grid, row: Row, column: object, cell: Cell) -> dict[str, object]:
    run, cost = cell.last, cost_of(cell)
    metrics = {name: informative_metrics(run, name, run.metrics(name)) for name in (*OWN_EVALS, *run.evals)}
    return {
        **_named(grid, row, column), "seed": cell.axes.get(SEED), "run": run.path.name,
        **{f"{name}_{key}": value for name, scores in metrics.items() for key, value in scores.items() if isinstance(value, int | float)},
        **_by_stage(cell, "epochs", lambda each: each.done.get("epochs")), **_by_stage(cell, "steps", lambda each: each.done["step"]),
        "training_macs": training_macs(cell),
        _hours(grid): cost.get("device_hours"), "kwh": cost.get("energy_kwh"), "kg_co2e_tracked": cost.get("co2e_kg"),
    }  # fmt: skip


def _hours(grid: Grid) -> str:
    return grid.sweep.hours_name.replace("-", "_").lower()


def _line(grid: Grid, row: Row, column: object) -> dict[str, object]:
    cells = row.columns[column]
    done = finished(cells)
    scores, paper = list(grid.scores(row, column).values()), grid.published(row, column)
    difference = grid.against_baseline(row, column)
    cost, metric = cost_per_model(cells), "_".join(part for part in grid.metric if part != "test")
    return {
        **_named(grid, row, column), "paper_row": row.arm.row, "quoted": row.arm.quoted,
        "state": ", ".join(dict.fromkeys(c.state for c in row.candidates(column))) or row.arm.not_runnable or "",
        "seeds": len(scores), f"{metric}_mean": mean(scores) if scores else None, f"{metric}_std": std(scores),
        f"paper_{metric}": paper, "minus_paper": mean(scores) - paper if scores and paper is not None else None,
        "minus_baseline": difference and difference.mean, "ci95_low": difference and difference.low,
        "ci95_high": difference and difference.high,
        "interval": difference and difference.how,
        **selection.numbers(grid, row, column),
        **(_size(done[0]) if done else {}),
        "training_macs": macs(done),
        _hours(grid): cost.get("device_hours"), f"{_hours(grid)}_std": _spread(done, "device_hours"), "gpu_kwh": cost.get("gpu_kwh"),
        "cpu_kwh": cost.get("cpu_kwh"), "ram_kwh": cost.get("ram_kwh"), "kwh": cost.get("energy_kwh"),
        "kwh_std": _spread(done, "energy_kwh"),
        "kg_co2e_tracked": cost.get("co2e_kg"), "kg_co2e_estimate": cost.get("estimate_kg") or None, "money": cost.get("money") or None,
        "inference_images_per_s": images_per_s(grid, done[0])[0] if done else None,
    }  # fmt: skip


def _by_stage(cell: Cell, name: str, value: Callable[[RunFolder], object]) -> dict[str, object]:
    """Return the value of each stage: under ``name`` that of the last stage, under ``name``_<stage> those of earlier ones."""
    *earlier, (_, last) = cell.stages
    return {name: value(last), **{f"{name}_{stage}": value(run) for stage, run in earlier}}


def _size(cell: Cell) -> dict[str, object]:
    cost = cell.last.cost
    return {
        **_by_stage(cell, "params_train", lambda run: run.cost["params_train"]), "params_inference": cost["params_inference"],
        "activations_inference": cost["activations_inference"],
        **_by_stage(cell, "macs_train_forward", lambda run: run.cost["macs_train_forward"]), "macs_inference": cost["macs_inference"],
    }  # fmt: skip


def _spread(done: list[Cell], cost: str) -> float | None:
    return std([spent[cost] for spent in costs_of(done)])
