"""What energy and emissions rest on: meters and models, sites and grids; what a paper says of them, and what waiting for a grid saved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from vitssl import intensity
from vitssl.config import ConfigError
from vitssl.files import GRID
from vitssl.report import outside
from vitssl.report.collect import RunFolder, Sweep, add
from vitssl.report.units import quantity
from vitssl.words import counted, duration, listed

UNEVEN = 1.3  # times the power of an equal run, which is the model's doing
CPU_POWER = {"rapl": "measured by RAPL", "tdp": "modelled from its TDP and load (no meter)"}


def tracked(sweep: Sweep) -> str:
    """Which part of the energy was measured and which modelled, as the emission files record; empty where there are none."""
    records = [record for run in sweep.runs.values() for record in run.emissions]
    if not records:
        return ""
    gpu = ["GPU measured by NVML"] if any(record["gpus"] for record in records) else []
    counts = Counter(CPU_POWER[record["cpu_power_source"]] for record in records)
    cpu = ", or ".join(f"{how}, in {n} of {len(records)} records" if len(counts) > 1 else how for how, n in counts.items())
    return f"Energy and CO2e tracked by codecarbon: {'; '.join([*gpu, f'CPU {cpu}{uneven(sweep)}', f'memory {memory(sweep)}'])}."


def uneven(sweep: Sweep) -> str:
    """That what is modelled of the CPU's power differs between runs of one kind, which a sample of the load at an odd moment makes so."""
    power_w: dict[tuple[Any, ...], list[float]] = {}
    for cell in sweep.cells:
        for stage, run in cell.stages:
            spent = [record for record in run.emissions if record["cpu_power_source"] != "rapl"]
            if duration_s := sum(record["duration_s"] for record in spent):
                kwh = sum(record["cpu_kwh"] for record in spent)
                point = {axis: value for axis, value in cell.axes.items() if axis != "seed"}
                power_w.setdefault((cell.arm, stage, *point.items()), []).append(3.6e6 * kwh / duration_s)
    worst = max((max(each) / min(each) for each in power_w.values() if min(each)), default=1.0)
    return f" (up to {worst:.1f} times apart in equal runs)" if worst > UNEVEN else ""


def metered(sweep: Sweep) -> bool:
    """Was energy measured, of GPUs or CPUs? What is modelled of a CPU's and a memory's is little else than the time."""
    return any(record["gpus"] or record["cpu_power_source"] == "rapl" for run in sweep.runs.values() for record in run.emissions)


def shares(sweep: Sweep, begin: str = "on") -> str:
    """How much of its node's CPUs a job had, where jobs on CPUs shared one; empty where each had all of it."""
    found = sorted(
        {record["node_share"] for run in sweep.runs.values() for record in run.emissions if record["node_share"] < 1 and not record["gpus"]}
    )
    return f", {begin} {' or '.join(f'{100 * share:.0f} %' for share in found)} of them" if found else ""


def memory(sweep: Sweep) -> str:
    """How a memory's energy is known, and which part of all it is."""
    spent = add(run.spent for run in sweep.runs.values())
    share = f" ({100 * spent['ram_kwh'] / spent['energy_kwh']:.0f} % of all)" if spent["energy_kwh"] else ""
    return f"modelled from its size{share}"


def sites(sweep: Sweep) -> str:
    """Where the runs were trained, if at several sites or prices; empty for one."""
    counts = Counter(site_of(run) for run in sweep.runs.values() if run.emissions)
    if len(counts) < 2:
        return ""
    places = "; ".join(f"{site}: {counted(n, 'run')}" for site, n in counts.items())
    mixed = " Money is left out, since the currencies differ." if sweep.currency is None else ""
    return f"The runs come from {len(counts)} sites, each with its carbon intensity and price: {places}.{mixed}"


def intensities(records: Iterable[dict[str, Any]]) -> dict[str, str]:
    """{country: kg CO2e/kWh}: of an intensity by the hour from the least of the records' means to the greatest."""
    found: dict[str, set[float]] = {}
    for record in records:
        found.setdefault(record["country"], set()).add(record["intensity_kg_per_kwh"])
    shown = {country: list(dict.fromkeys(f"{value:.3g}" for value in sorted(values))) for country, values in found.items()}
    if len(means := shown.get(intensity.BY_HOUR, [])) > 1:
        shown[intensity.BY_HOUR] = [f"{means[0]} to {means[-1]}"]
    return {country: " and ".join(kg) for country, kg in shown.items()}


def site_of(run: RunFolder) -> str:
    """The site of a run that has begun, with the carbon intensity of the grid that its energy came from, and its price."""
    kg = " and ".join(intensities(run.emissions).values())
    price = run.site.price_per_gpu_hour
    return f"{run.site.name} ({kg} kg CO2e/kWh{f', {price:g} {run.site.currency} per GPU-hour' if price else ''})"


# ---------------------------------------------------------------------------------------------------------- for a paper


def statement(sweep: Sweep) -> str:
    """The sentences; empty where nothing was recorded."""
    runs = [run for run in sweep.runs.values() if run.emissions]
    if not runs:
        return ""
    spent = add(run.spent for run in runs)
    used = f"used {quantity(spent['energy_kwh'], 'kWh')} of electricity and caused {quantity(spent['co2e_kg'], 'kg')} of CO2e"
    unfinished = sum(run.status != "done" for run in runs)
    trainings = counted(len(runs), "training run") + (f", {unfinished} of them not finished," if unfinished else "")
    hours = quantity(spent["device_hours"], "hours", sweep.hours_name)
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


# -------------------------------------------------------------------------------------------------------- greener hours


def waited(sweep: Sweep) -> str:
    """Both amounts; empty where no run was made to wait, or nothing says what had been earlier."""
    waited = [run for run in sweep.runs.values() if _waited_s(run) > 0 and run.emissions]
    told = [run for run in waited if all("kwh_by_quarter_hour" in record for record in run.emissions)]
    try:
        grid = intensity.read(sweep.folder / GRID) if told else None
    except ConfigError as error:
        return f"What it saved that {counted(len(told), 'run')} waited for a greener grid is not known: {error}."
    if grid is None:
        return ""
    then, at_once = (sum(_co2e_kg(run, grid, share) for run in told) for share in (0.0, 1.0))
    share = f", {abs(1 - then / at_once):.0%} {'less' if then <= at_once else 'more'}" if at_once else ""
    longest = duration(max(map(_waited_s, told)))
    return (
        f"{counted(len(told), 'run')} waited up to {longest} for a greener grid and caused {quantity(then, 'kg')} of CO2e instead of "
        f"{quantity(at_once, 'kg')} had they begun at once{share}."
    )


def _waited_s(run: RunFolder) -> float:
    start = run.job.get("start") or {}
    return start.get("begin", 0.0) - start.get("asked", 0.0)


def _co2e_kg(run: RunFolder, grid: intensity.Intensity, share: float) -> float:
    """Had the run begun earlier by this share of the time that it waited."""
    return sum(intensity.co2e_kg(record["kwh_by_quarter_hour"], grid, share * _waited_s(run)) for record in run.emissions)
