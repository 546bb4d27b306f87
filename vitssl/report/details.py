"""The tables behind the main ones: cost by stage, the paper's costs, every run."""

from __future__ import annotations

from vitssl.report.collect import Cell, RunFolder, Sweep, add
from vitssl.report.grid import Grid, cost_per_model
from vitssl.report.tables import BAD, DASH, MEASURED, NOTE, PUBLISHED, Entry, Table, billions, currency, hours_name, number


def costs(grid: Grid) -> Table:
    """What one model cost by column and stage, and what the paper prints."""
    sweep, rows = grid.sweep, []
    parts = ["kWh GPU", "kWh CPU", "kWh RAM", "kWh", "kg CO2e measured", "kg CO2e estimate", currency(sweep)]
    for row in grid.rows:
        for column in grid.columns:
            cells = [c for c in row.columns.get(column, []) if c.status == "done"]
            rows += _cost_rows(grid.label(row), grid.name(column), cells)
    named = ["arm", "column", "stage"] if grid.columns != [None] else ["arm", "stage"]
    header = [*named, "GMACs by pass, as the paper counts", hours_name(sweep), *parts]
    if grid.columns == [None]:
        rows = [[row[0], *row[2:]] for row in rows]
    caption = "Cost of one model, mean over its finished seeds; a chain's stages one by one, then together."
    return Table("Cost in detail", header, rows, caption, left=frozenset(range(len(named) + 1)))


def _cost_rows(label: str, column: str, cells: list[Cell]) -> list[list[Entry]]:
    if not cells:
        return []
    rows, count = [], len(cells)
    for i, (name, run) in enumerate(cells[0].stages):
        passes = " + ".join(f"{billions(macs)} ({kind})" for kind, macs in run.cost.get("macs_passes", {}).items())
        spent = {k: v / count for k, v in add(cell.stages[i][1].spent for cell in cells).items()}
        rows.append([Entry(label), Entry(column), Entry(name), Entry(passes or DASH), *_parts(spent)])
    if len(rows) > 1:
        rows.append([Entry(label), Entry(column), Entry("all"), Entry(), *_parts(cost_per_model(cells) or {})])
    return rows


def _parts(cost: dict[str, float]) -> list[Entry]:
    names = ("device_hours", "gpu_kwh", "cpu_kwh", "ram_kwh", "energy_kwh", "co2e_kg", "estimate_kg", "money")
    return [Entry(number(cost[n] or None)) for n in names]


def published_costs(grid: Grid) -> Table | None:
    """What the paper prints for cost; it may belong to another data set, as the notes say."""
    names = {"gmacs": "GMACs", "gpu_hours": "GPU-hours", "kg_co2e": "kg CO2e"}
    arms = [arm for arm in grid.sweep.arms if arm.published_cost]
    if not arms:
        return None
    printed = [[Entry(str(arm.published_cost.get(n, DASH)), PUBLISHED) for n in names] for arm in arms]
    rows = [[Entry(arm.name), Entry(arm.row or DASH, NOTE), *entries] for arm, entries in zip(arms, printed, strict=True)]
    caption = "As the paper prints them, with its hardware and its data set (see the notes); compare with none of the numbers above."
    return Table("The paper's costs", ["arm", "paper's row", *names.values()], rows, caption, left=frozenset({0, 1}))


def runs(sweep: Sweep) -> Table:
    """Every run folder once, with how it ended and what all its attempts cost."""
    rows = []
    for path, run in sweep.runs.items():
        users = [c for c in sweep.cells if any(r is run for _, r in c.stages)]
        points = [", ".join([c.arm, *(f"{axis} {value}" for axis, value in c.axes.items())]) for c in users]
        test = run.done.get("test") or {}
        accuracy = Entry(f"{test['top1']:.2f}" if test else DASH)
        spent = [Entry(number(run.spent[n] or None)) for n in ("device_hours", "energy_kwh", "co2e_kg")]
        rows.append([Entry(path.name), Entry("; ".join(points), NOTE), _how_it_went(run), Entry(str(run.attempts)), accuracy, *spent])
    header = ["run", "of", "status", "attempts", "top-1 %", hours_name(sweep), "kWh", "kg CO2e"]
    return Table("Runs", header, rows, "Every run folder once, whatever the number of arms that stand on it.", left=frozenset({0, 1, 2}))


def _how_it_went(run: RunFolder) -> Entry:
    if run.status == "failed":
        return Entry(f"failed: {run.error}", BAD)
    detail = f" at {run.progress}" if run.status != "done" and run.progress else ""
    return Entry(run.status + detail, BAD if run.status == "interrupted" else MEASURED)
