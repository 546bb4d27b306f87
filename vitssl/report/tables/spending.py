"""What the models of an arm cost: in all, by stage, and beside the costs that the paper prints."""

from __future__ import annotations

from statistics import mean
from typing import Any

from vitssl.report.results import costs, energy
from vitssl.report.results.collect import Arm, Cell
from vitssl.report.results.grid import Grid
from vitssl.report.results.rows import Row, cost_of, cost_per_model, costs_of, finished, mean_cost
from vitssl.report.results.stats import std
from vitssl.report.table import DASH, PUBLISHED, Entry, Table, figure, number
from vitssl.report.tables.entries import currency, model_entries, training
from vitssl.report.units import fit, quantity
from vitssl.words import listed


def cost(grid: Grid, measured: bool = True) -> Table:
    """Return what one model of every arm cost, for every column; without ``measured`` its multiply-adds alone, which are exact."""
    rows = [
        [
            *model_entries(grid, row, column),
            *_training(grid, row, column, done),
            *(_spending(done, grid.sweep.busy_key) if measured else ()),
        ]
        for row, column, done in grid.models()
    ]
    header = ["arm", grid.axis_name, "PMACs of training", f"against {grid.baselines()}"]
    if measured:
        header += [grid.sweep.hours_name, grid.sweep.busy_name, "kWh", "kg CO2e tracked", "kg CO2e estimate", currency(grid.sweep)]
    return fit(Table("Cost", header, rows, _cost_caption(grid), left=frozenset({0, 1})).trimmed())


def _training(grid: Grid, row: Row, column: Any, done: list[Cell]) -> list[Entry]:
    """Return the multiply-adds of training, and their ratio to the baseline's."""
    relative = costs.macs_ratio(grid, row, column)
    return [training(done), Entry(str(relative)) if relative else Entry()]


def _spending(done: list[Cell], busy_key: str) -> list[Entry]:
    """Return hours in all and busy hours (``busy_key``), kWh, CO2e tracked and estimated, and money, each with its spread over seeds.

    A dash stands for what was not recorded, or does not exist for a CPU or for a site without a price.
    """
    costs = costs_of(done)
    names = ("device_hours", busy_key, "energy_kwh", "co2e_kg", "estimate_kg", "money")
    return [_mean([cost[name] for cost in costs]) for name in names]


def _mean(values: list[float]) -> Entry:
    return figure(mean(values), spread=std(values)) if values and all(values) else Entry()


def _cost_caption(grid: Grid) -> str:
    sweep = grid.sweep
    sentences = [
        "Cost of one model: sum over its stages, including all attempts; mean ± standard deviation over seeds. Training counts the "
        f"multiply-adds of all steps, forward and backward.{costs.caveats(grid, why=True)}"
    ]
    if select := sweep.facts["select"]:
        sentences.append(f"This is the chosen setting; the search over {listed(select)} took all runs below.")
    if sweep.on_gpu:
        sites = {(run.site.gpu_power_w, run.site.estimate_kg_per_kwh) for run in sweep.runs.values()}
        factors = " or ".join(f"board power ({power_w:g} W) x {intensity:g}" for power_w, intensity in sorted(sites))
        sentences.append(f"Estimate: GPU-hours x {factors} kg/kWh, as the SSAT paper's Table 3.")
    return " ".join(filter(None, [*sentences, energy.tracked(sweep), energy.sites(sweep)]))


def by_stage(grid: Grid) -> Table:
    """Return what one model cost, by column and stage."""
    rows = [[*model_entries(grid, row, column), *entries] for row, column, done in grid.models() for entries in _stage_costs(done)]
    parts = ["kWh GPU", "kWh CPU", "kWh RAM", "kWh", "kg CO2e tracked", "kg CO2e estimate", currency(grid.sweep)]
    header = ["arm", grid.axis_name, "stage", "multiply-adds by objective", grid.sweep.hours_name, *parts]
    caption = (
        "Cost of one model, mean over its finished seeds; a chain's stages one by one, then together. Multiply-adds are those of one "
        "image's forward passes in training; an objective that shares another's pass counts only what it adds. Work that "
        f"two passes share, such as patch embedding, counts in both, but only once in the network's total.{costs.caveats(grid)}"
    )
    return fit(Table("Cost in detail", header, rows, caption, left=frozenset(range(4))).trimmed())


def _stage_costs(done: list[Cell]) -> list[list[Entry]]:
    """Return a line for each stage, and another for the whole of a chain."""
    rows = []
    for i, (name, run) in enumerate(done[0].stages):
        passes = " + ".join(f"{quantity(macs / 1e9, 'GMACs')} ({kind})" for kind, macs in run.cost["macs_passes"].items())
        of_seeds = [cell.stages[i][1] for cell in done if cost_of(cell)]  # of the same seeds as the whole
        rows.append([Entry(name), Entry(passes), *_parts(mean_cost([run.spent for run in of_seeds]))])
    if len(rows) > 1:
        rows.append([Entry("all"), Entry(), *_parts(cost_per_model(done))])
    return rows


def _parts(cost: dict[str, float]) -> list[Entry]:
    names = ("device_hours", "gpu_kwh", "cpu_kwh", "ram_kwh", "energy_kwh", "co2e_kg", "estimate_kg", "money")
    return [figure(cost.get(name) or None) for name in names]


def published(grid: Grid) -> Table | None:
    """Return the costs that the paper prints, beside what the same arm took here; None if it prints none."""
    arms = [arm for arm in grid.sweep.arms if arm.published_cost]
    if not arms:
        return None
    header = ["arm", grid.sweep.facts["columns"] or ""]
    header += ["GMACs, paper", "GMACs, here", "GPU-hours, paper", "GPU-hours, here"]
    header += ["kg CO2e, paper", "kg CO2e, estimate here", "kg CO2e, tracked here"]
    rows = [_beside_the_paper(grid.arm_name(arm), arm, _tied_to(grid, arm)) for arm in arms]
    caption = (
        "Italics: the paper's numbers, on its own hardware; beside them what one model of the same arm took here on the same data, if one "
        "has finished. GMACs are counted as in the paper, with patch embedding in every pass."
    )
    return Table("The paper's costs", header, rows, caption, left=frozenset({0, 1})).trimmed()


def _tied_to(grid: Grid, arm: Arm) -> list[Cell]:
    """Return the finished models that a published cost belongs to: those of the column that it names, if no further axis splits the arm."""
    column_name = (arm.published_cost or {}).get("column")
    rows = [row for row in grid.rows if row.arm is arm and not row.values]
    return [cell for row in rows for column, cells in row.columns.items() if str(column) == column_name for cell in finished(cells)]


def _beside_the_paper(arm_name: str, arm: Arm, cells: list[Cell]) -> list[Entry]:
    printed, cost = arm.published_cost or {}, cost_per_model(cells)
    gmacs, gpu_hours, kg = (Entry(str(printed.get(name, DASH)), PUBLISHED) for name in ("gmacs", "gpu_hours", "kg_co2e"))
    hours, estimate, tracked = (Entry(number(cost.get(name) or None)) for name in ("gpu_hours", "estimate_kg", "co2e_kg"))
    # the paper counts every objective's pass in full
    passes = " + ".join(number(sum(run.cost["macs_passes"].values()) / 1e9) for _, run in cells[0].stages) if cells else DASH
    text_entries = [Entry(arm_name), Entry(printed.get("column", DASH))]
    return [*text_entries, gmacs, Entry(passes), gpu_hours, hours, kg, estimate, tracked]
