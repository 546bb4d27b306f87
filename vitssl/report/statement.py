"""What a paper says of the energy that its trainings used: amount, hardware, method and grid, in sentences to be copied."""

from __future__ import annotations

from vitssl.report import outside
from vitssl.report.collect import Sweep, add
from vitssl.report.energy_sources import CPU_POWER, intensities, memory, shares, uneven
from vitssl.report.tables import hours_name
from vitssl.report.units import quantity
from vitssl.words import counted, listed


def statement(sweep: Sweep) -> str:
    """The sentences; empty where nothing was recorded."""
    runs = [run for run in sweep.runs.values() if run.emissions]
    if not runs:
        return ""
    spent = add(run.spent for run in runs)
    used = f"used {quantity(spent['energy_kwh'], 'kWh')} of electricity and caused {quantity(spent['co2e_kg'], 'kg')} of CO2e"
    unfinished = sum(run.status != "done" for run in runs)
    trainings = counted(len(runs), "training run") + (f", {unfinished} of them not finished," if unfinished else "")
    hours = quantity(spent["device_hours"], "hours", hours_name(sweep))
    on = listed(event["device"] for run in runs for event in run.of("start"))
    return (
        f"Training the models of this work is estimated to have {used}: {trainings} of {hours} in all"
        f"{f' on {on}' if on else ''}{shares(sweep, 'each on')}.{unrecorded(sweep)}{outside.of_sweep(sweep)}"
        f" {_method(sweep)} {_grid(sweep)}"
    )


def unrecorded(sweep: Sweep) -> str:
    """That the energy of trained runs is not in the sums, where their records are missing or cannot be read."""
    done = [run for run in sweep.runs.values() if run.status == "done" and "imported" not in run.job]
    missing = sum(run.status == "unreadable" for run in sweep.runs.values()) + sum(not run.emissions for run in done)
    if not missing:
        return ""
    return f" Not counted: {counted(missing, 'further run')} whose record of energy is missing or cannot be read."


def _method(sweep: Sweep) -> str:
    """What was measured and what modelled, and what the figure leaves out."""
    records = [record for run in sweep.runs.values() for record in run.emissions]
    gpu = ["GPU power was measured with NVML"] if any(record["gpus"] for record in records) else []
    cpu = f"CPU power was {listed(CPU_POWER[record['cpu_power_source']] for record in records)}{uneven(sweep)}"
    version = listed(record["codecarbon"] for record in records)
    parts = listed([*gpu, cpu, f"memory power was {memory(sweep)}"])
    shared = "; CPU and memory energy are each job's share of its node's" if any(record["node_share"] < 1 for record in records) else ""
    return (
        f"Energy was tracked with codecarbon {version}: {parts}{shared}. "
        "Cooling and other overheads of the data centre (PUE 1) and the making of the hardware are not included."
    )


def _grid(sweep: Sweep) -> str:
    records = [record for run in sweep.runs.values() for record in run.emissions]
    grids = listed(f"{kg} kg CO2e/kWh ({country})" for country, kg in intensities(records).items())
    return f"The carbon intensity of the grid was taken as {grids}."
