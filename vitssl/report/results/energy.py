"""Where the figures of energy and emissions come from: meters and models, sites and grids.

Also the statement on energy for a paper, and what waiting for a greener grid saved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from vitssl.config import ConfigError
from vitssl.costs import intensity
from vitssl.costs.emissions import names_grid
from vitssl.report.results import external_sources
from vitssl.report.results.collect import RunFolder, Sweep
from vitssl.report.results.sums import add
from vitssl.report.units import quantity
from vitssl.sweep_folder import GRID
from vitssl.words import counted, duration, listed

CPU_POWER = {"rapl": "measured by RAPL", "tdp": "modelled from its TDP and load (no meter)"}
MAY_BE_DONE = ("done", "unreadable")  # the states of runs that are not known to be unfinished


def tracked(sweep: Sweep) -> str:
    """Return a sentence on which part of the energy was measured and which was modelled; empty without energy records."""
    records = [record for run in sweep.runs.values() for record in run.emissions]
    if not records:
        return ""
    spent = add(run.spent for run in sweep.runs.values())
    ram = f" ({100 * spent['ram_kwh'] / spent['energy_kwh']:.0f} % of all)" if spent["energy_kwh"] else ""
    parts = ["GPU power was measured with NVML"] if any(record["gpus"] for record in records) else []
    parts += [f"CPU power was {listed(CPU_POWER[record['cpu_power_source']] for record in records)}"]
    parts += [f"memory power was modelled from its size{ram}"]
    shares = sorted({record["node_share"] for record in records})
    texts = listed(f"{100 * share:.0f} %" for share in shares)
    shared = f"; CPU and memory energy are each job's share of its node's ({texts})" if shares[0] < 1 else ""
    return f"Energy was tracked with codecarbon {listed(record['codecarbon'] for record in records)}: {listed(parts)}{shared}."


def metered(sweep: Sweep) -> bool:
    """Whether the energy of GPUs or CPUs was measured; what is modelled for CPU and memory says little more than the time."""
    return any(record["gpus"] or record["cpu_power_source"] == "rapl" for run in sweep.runs.values() for record in run.emissions)


def sites(sweep: Sweep) -> str:
    """Return a sentence on where the runs were trained, if at several sites or prices; empty for one."""
    counts = Counter(site_of(run) for run in sweep.runs.values() if run.emissions)
    if len(counts) < 2:
        return ""
    places = "; ".join(f"{site}: {counted(n, 'run')}" for site, n in counts.items())
    mixed = " Money is left out, since the currencies differ." if sweep.currency is None else ""
    return f"The runs come from {len(counts)} sites, each with its carbon intensity and price: {places}.{mixed}"


def intensities(records: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Return the carbon intensity by country, in kg CO2e/kWh, as text.

    For an intensity by the hour, it is the range of the means of the records.
    """
    by_country: dict[str, set[float]] = {}
    for record in records:
        by_country.setdefault(record["country"], set()).add(record["intensity_kg_per_kwh"])
    texts = {country: list(dict.fromkeys(f"{value:.3g}" for value in sorted(values))) for country, values in by_country.items()}
    if len(means := texts.get(intensity.BY_HOUR, [])) > 1:
        texts[intensity.BY_HOUR] = [f"{means[0]} to {means[-1]}"]
    return {country: " and ".join(kg) for country, kg in texts.items()}


def site_of(run: RunFolder) -> str:
    """Return the site of a run that has begun, with the carbon intensity of its grid, and its price."""
    grids = intensities(run.emissions)
    kg = "carbon intensity by the hour" if intensity.BY_HOUR in grids else f"{' and '.join(grids.values())} kg CO2e/kWh"
    price = run.site.price_per_gpu_hour
    return f"{run.site.name} ({kg}{f', {price:g} {run.site.currency} per GPU-hour' if price else ''})"


# ---------------------------------------------------------------------------------------------------------- for a paper


def statement(sweep: Sweep) -> str:
    """Return the sentences on energy and emissions for a paper; empty if no energy was recorded."""
    runs = [run for run in sweep.runs.values() if run.emissions]
    if not runs:
        return ""
    spent = add(run.spent for run in runs)
    used = f"used {quantity(spent['energy_kwh'], 'kWh')} of electricity and caused {quantity(spent['co2e_kg'], 'kg')} of CO2e"
    unfinished = sum(run.state not in MAY_BE_DONE for run in runs)
    trainings = counted(len(runs), "training run") + (f", {unfinished} of them not finished," if unfinished else "")
    hours = quantity(spent["device_hours"], "hours", sweep.hours_name)
    devices = listed(event["device"] for run in runs for event in run.events_of("start"))
    grids = intensities(record for run in runs for record in run.emissions)
    return (
        f"Training and evaluating the models of this work is estimated to have {used}: {trainings} of {hours} in all"
        f"{f' on {devices}' if devices else ''}.{unrecorded(sweep)}{_others(sweep)}{external_sources.not_counted(sweep)} {tracked(sweep)} "
        "Cooling and other overheads of the data centre (PUE 1) and the making of the hardware are not included. The carbon intensity of "
        "the grid was taken as "
        f"{listed(f'{kg} kg CO2e/kWh ({country})' for country, kg in grids.items())}{_by_default(runs)}."
    )


def _others(sweep: Sweep) -> str:
    return f" Not counted: {others}." if (others := external_sources.others(sweep)) else ""


def _by_default(runs: list[RunFolder]) -> str:
    return "" if any(names_grid(run.site) for run in runs) else ", a default, as no country was named"


def unrecorded(sweep: Sweep) -> str:
    """Return a sentence that the sums lack the energy of trained runs whose records are missing or unreadable; empty if there are none."""
    missing = sum(run.state in MAY_BE_DONE and not run.recorded for run in sweep.runs.values())
    if not missing:
        return ""
    return f" Not counted: {counted(missing, 'further run')} whose energy record is missing or unreadable."


# -------------------------------------------------------------------------------------------------------- greener hours


def waited(sweep: Sweep) -> str:
    """Return a sentence on the CO2e of the runs that waited for a greener grid, and on what it would have been without waiting.

    Empty if no run waited.
    """
    runs = [run for run in sweep.runs.values() if _waited_s(run) > 0 and run.emissions]
    if not runs:
        return ""
    try:
        grid = intensity.read(sweep.folder / GRID)
    except ConfigError as error:
        return f"How much CO2e {counted(len(runs), 'run')} saved by waiting for a greener grid is unknown: {error}."
    delayed, at_once = (sum(_co2e_kg(run, grid, share) for run in runs) for share in (0.0, 1.0))
    change = f", {abs(1 - delayed / at_once):.0%} {'less' if delayed <= at_once else 'more'}" if at_once else ""
    longest = duration(max(map(_waited_s, runs)))
    return (
        f"{counted(len(runs), 'run')} waited up to {longest} for a greener grid and caused {quantity(delayed, 'kg')} of CO2e instead of "
        f"{quantity(at_once, 'kg')} had they begun at once{change}."
    )


def _waited_s(run: RunFolder) -> float:
    """Return how many seconds after its submission a run was to begin."""
    start = run.job.get("start") or {}
    return start.get("begin", 0.0) - start.get("asked", 0.0)


def _co2e_kg(run: RunFolder, grid: intensity.Intensity, share: float) -> float:
    """Return the CO2e of a run, had it begun earlier by ``share`` of the time that it waited."""
    return sum(intensity.co2e_kg(record["kwh_by_quarter_hour"], grid, share * _waited_s(run)) for record in run.emissions)
