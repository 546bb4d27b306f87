"""The tables behind the main ones: cost by stage, the paper's costs, every run."""

from __future__ import annotations

import os
from urllib.parse import quote

from vitssl.report import energy
from vitssl.report.collect import Arm, Cell, RunFolder, Sweep, add
from vitssl.report.grid import Grid
from vitssl.report.rows import cost_per_model, finished
from vitssl.report.settings import stages
from vitssl.report.table import BAD, DASH, MEASURED, NOTE, PUBLISHED, Entry, Table, figure, number
from vitssl.report.tables import currency, which
from vitssl.report.units import fit, quantity

MANY = 0.01  # of the images to test on, from which on a report warns of near-duplicates before all else


def data(grid: Grid) -> Table | None:
    """The data set of every column: image counts after subsetting, sizes and hash; several lines where arms or stages differ."""
    rows = [row for column in grid.columns for row in _data_of(grid, grid.name(column))]
    if not rows:
        return None
    header = ["set", grid.axis_name, "used by", "classes", "training images", "labelled", "held out", "test images"]
    header += ["px, stored", "px, trained", "sha256"]
    caption = (
        "Training images: what is left after data.images, data.val_fraction and, where a stage needs labels, data.labels. "
        "Pixels are height x width as stored, and the side of the square that the model sees. sha256: its first 12 digits."
    )
    caption = " ".join([caption, *(f"{alike}; `vitssl shards info` lists them." for alike in _near_duplicates(grid))])
    table, (images, labels) = Table("Data", header, rows, caption, left=frozenset({0, 1, 2, len(header) - 1})), (4, 5)
    return table.trimmed().without(*(["labelled"] if all(row[images] == row[labels] for row in rows) else []))


def warnings(grid: Grid) -> list[str]:
    """What a report begins with: of which sets so many images to test on are trained on that figures may mislead."""
    return [text for text, share in _near_duplicates(grid).items() if share >= MANY]


def _near_duplicates(grid: Grid) -> dict[str, float]:
    """For each set of which images to test on look like images that are trained on: what is to be said, and which share of them do."""
    kinds = {"near_duplicates": "used with labels", "near_duplicates_unlabelled": "used without labels"}
    facts = [run.job["data"] for by_column in stages(grid).values() for run in by_column.values() if "data" in run.job]
    found = {(f["name"], f["test_images"], kind, count) for f in facts for kind in kinds if (count := f.get(kind))}
    are = {True: "looks like a near-duplicate", False: "look like near-duplicates"}
    return {
        f"{count:,} of the {test:,} test images of {name} {are[count == 1]} of training images {kinds[kind]}": count / test
        for name, test, kind, count in sorted(found)
    }


def _data_of(grid: Grid, column: str) -> list[list[Entry]]:
    users: dict[tuple[str, ...], list[str]] = {}
    for title, by_column in stages(grid).items():
        if column in by_column and "data" in by_column[column].job:
            users.setdefault(_data_facts(by_column[column]), []).append(title)
    alone = len(users) == 1
    return [
        [Entry(name), Entry(column if grid.axis else DASH), Entry(DASH if alone else ", ".join(titles), NOTE), *map(Entry, rest)]
        for (name, *rest), titles in users.items()
    ]


def _data_facts(run: RunFolder) -> tuple[str, ...]:
    facts = run.job["data"]
    low, high = (" x ".join(map(str, facts[name])) for name in ("smallest_px", "largest_px"))
    train, labelled, val = facts["train_images"], facts["labelled_images"], facts["val_images"]
    return (
        facts["name"], str(facts["classes"]), f"{train:,}", f"{labelled:,}", f"{val:,}" if val else DASH,
        f"{facts['test_images']:,}", low if low == high else f"{low} to {high}", str(run.run["data"]["image_size"]), facts["sha256"][:12],
    )  # fmt: skip


def costs(grid: Grid) -> Table:
    """What one model cost by column and stage."""
    rows = [[*which(grid, row, column), *entries] for row, column, done in grid.models() for entries in _stage_costs(done)]
    parts = ["kWh GPU", "kWh CPU", "kWh RAM", "kWh", "kg CO2e tracked", "kg CO2e estimate", currency(grid.sweep)]
    header = ["arm", grid.axis_name, "stage", "multiply-adds by objective", grid.sweep.hours_name, *parts]
    caption = (
        "Cost of one model, mean over its finished seeds; a chain's stages one by one, then together. Multiply-adds are those of one "
        "image's forward passes in training; an objective that shares another's pass counts only what it adds. Work that "
        "two passes share, such as patch embedding, counts in both, but only once in the network's total."
    )
    return fit(Table("Cost in detail", header, rows, caption, left=frozenset(range(4))).trimmed())


def _stage_costs(done: list[Cell]) -> list[list[Entry]]:
    """A line for each stage, and for a chain another for the whole."""
    rows, count = [], len(done)
    for i, (name, run) in enumerate(done[0].stages):
        passes = " + ".join(f"{quantity(macs / 1e9, 'GMACs')} ({kind})" for kind, macs in run.cost["macs_passes"].items())
        spent = {k: v / count for k, v in add(cell.stages[i][1].spent for cell in done).items()}
        rows.append([Entry(name), Entry(passes), *_parts(spent)])
    if len(rows) > 1:
        rows.append([Entry("all"), Entry(), *_parts(cost_per_model(done) or {})])
    return rows


def _parts(cost: dict[str, float]) -> list[Entry]:
    names = ("device_hours", "gpu_kwh", "cpu_kwh", "ram_kwh", "energy_kwh", "co2e_kg", "estimate_kg", "money")
    return [figure(cost[name] or None) for name in names]


def published_costs(grid: Grid) -> Table | None:
    """What the paper prints for cost, beside what the same arm took here where the column that it belongs to was run."""
    arms = [arm for arm in grid.sweep.arms if arm.published_cost]
    if not arms:
        return None
    header = ["arm", grid.sweep.facts["columns"] or ""]
    header += ["GMACs, paper", "GMACs, here", "GPU-hours, paper", "GPU-hours, here"]
    header += ["kg CO2e, paper", "kg CO2e, estimate here", "kg CO2e, tracked here"]
    rows = [_beside_the_paper(grid.called(arm), arm, _tied_to(grid, arm)) for arm in arms]
    caption = (
        "Italics: the paper's numbers, on its own hardware; beside them what one model of the same arm took here on the same data, if one "
        "has finished. GMACs are counted as in the paper, with patch embedding in every pass."
    )
    return Table("The paper's costs", header, rows, caption, left=frozenset({0, 1})).trimmed()


def _tied_to(grid: Grid, arm: Arm) -> list[Cell]:
    """The finished models that a published cost belongs to: those of the column that it names, unless a further axis splits the arm."""
    named = (arm.published_cost or {}).get("column")
    rows = [row for row in grid.rows if row.arm is arm and not row.values]
    return [cell for row in rows for column, cells in row.columns.items() if str(column) == named for cell in finished(cells)]


def _beside_the_paper(called: str, arm: Arm, cells: list[Cell]) -> list[Entry]:
    printed, cost = arm.published_cost or {}, cost_per_model(cells) or {}
    gmacs, gpu_hours, kg = (Entry(str(printed.get(name, DASH)), PUBLISHED) for name in ("gmacs", "gpu_hours", "kg_co2e"))
    hours, estimate, tracked = (Entry(number(cost.get(name) or None)) for name in ("gpu_hours", "estimate_kg", "co2e_kg"))
    # the paper counts every objective's pass in full
    passes = " + ".join(number(sum(run.cost["macs_passes"].values()) / 1e9) for _, run in cells[0].stages) if cells else DASH
    named = [Entry(called), Entry(printed.get("column", DASH))]
    return [*named, gmacs, Entry(passes), gpu_hours, hours, kg, estimate, tracked]


def runs(sweep: Sweep) -> Table:
    """Every run folder once, with how it ended and what all its attempts cost, and where if at several sites."""
    header = ["run", "of", "status", "attempts", "top-1 %", sweep.hours_name, sweep.busy_name, "kWh", "kg CO2e", "site"]
    rows, caption = [_run(sweep, run) for run in sweep.runs.values()], "Each run folder once, even if several arms use it."
    table = Table("Runs", header, rows, caption, left=frozenset({0, 1, 2, 9}))
    return fit(table if energy.sites(sweep) else table.without("site")).trimmed()


def _run(sweep: Sweep, run: RunFolder) -> list[Entry]:
    users = [c for c in sweep.cells if any(r is run for _, r in c.stages)]
    points = [", ".join([c.arm, *(f"{axis} {value}" for axis, value in c.axes.items())]) for c in users]
    test = run.done.get("test") or {}
    accuracy = Entry(f"{test['top1']:.2f}" if test else DASH)
    busy = "gpu_busy_hours" if run.spent["gpu_hours"] else "cpu_hours"
    spent = [figure(run.spent[name] or None) for name in ("device_hours", busy, "energy_kwh", "co2e_kg")]
    site = Entry(energy.site_of(run) if run.emissions else DASH, NOTE)
    detail = f" at {run.progress}" if run.status != "done" and run.progress else ""
    detail = f": {run.error}" if run.status in ("failed", "unreadable") else detail
    status = Entry(run.status + detail, BAD if run.status in ("failed", "interrupted", "unreadable") else MEASURED)
    name = Entry(run.path.name, link=linked(sweep, run))
    return [name, Entry("; ".join(points), NOTE), status, Entry(str(run.attempts)), accuracy, *spent, site]


def linked(sweep: Sweep, run: RunFolder) -> str:
    """The way from the report's folder to a run's."""
    return quote(os.path.relpath(run.path, sweep.folder / "report")) + "/"
