"""What the report's numbers are based on: meters and models of energy, sites and their prices, changes on the command line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from vitssl.intensity import BY_HOUR
from vitssl.report.collect import RunFolder, Sweep, add
from vitssl.report.hyperparameters import without_influence
from vitssl.words import counted

UNEVEN = 1.3  # times the power of an equal run, which is the model's doing
CPU_POWER = {"rapl": "measured by RAPL", "tdp": "modelled from its TDP and load (no meter)"}


def overridden(sweep: Sweep) -> str:
    """What the command line changed, and what that leaves out or leaves as it was; empty where nothing was changed."""
    fields = sweep.facts.get("overrides") or []
    if not fields:
        return ""
    changed = f"{', '.join(fields)} {'were' if len(fields) > 1 else 'was'} set on the command line"
    noted = sweep.facts.get("notes") or any(arm.note for arm in sweep.arms)
    left_out = f"the notes of {sweep.facts['file']}, which are of its own settings, are left out" if noted and contradicts(sweep) else ""
    published = any(arm.published is not None or arm.published_cost for arm in sweep.arms)
    printed = "the paper's numbers are the sweep file's" if published else ""
    return f"{'; '.join(filter(None, [changed, left_out, printed]))}."


def contradicts(sweep: Sweep) -> bool:
    """Did the command line set a field that results follow from? What the sweep file's notes say of its settings may then be wrong."""
    return not all(map(without_influence, sweep.facts.get("overrides") or []))


def other_data(sweep: Sweep) -> list[str]:
    """The fields set on the command line that change which images are seen."""
    return [key for key in sweep.facts.get("overrides") or [] if re.search(r"(^|\.)data(\.(shards|source|images|labels|\w+_split)|$)", key)]


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
    listed = "; ".join(f"{site}: {counted(n, 'run')}" for site, n in counts.items())
    mixed = " Money is left out, since the currencies differ." if sweep.currency is None else ""
    return f"The runs come from {len(counts)} sites, each with its carbon intensity and price: {listed}.{mixed}"


def intensities(records: Iterable[dict[str, Any]]) -> dict[str, str]:
    """{country: kg CO2e/kWh}: of an intensity by the hour from the least of the records' means to the greatest."""
    found: dict[str, set[float]] = {}
    for record in records:
        found.setdefault(record["country"], set()).add(record["intensity_kg_per_kwh"])
    shown = {country: list(dict.fromkeys(f"{value:.3g}" for value in sorted(values))) for country, values in found.items()}
    if len(means := shown.get(BY_HOUR, [])) > 1:
        shown[BY_HOUR] = [f"{means[0]} to {means[-1]}"]
    return {country: " and ".join(kg) for country, kg in shown.items()}


def site_of(run: RunFolder) -> str:
    """The site of a run that has begun, with the carbon intensity of the grid that its energy came from, and its price."""
    kg = " and ".join(intensities(run.emissions).values())
    price = run.site.price_per_gpu_hour
    return f"{run.site.name} ({kg} kg CO2e/kWh{f', {price:g} {run.site.currency} per GPU-hour' if price else ''})"
