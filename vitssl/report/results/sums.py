"""What runs cost in all: the sums over attempts, nodes and stages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vitssl.config import Site

SUMMED = (  # the costs that are summed over attempts, nodes and stages
    "device_hours",
    "gpu_hours",
    "gpu_busy_hours",
    "cpu_hours",
    "gpu_kwh",
    "cpu_kwh",
    "ram_kwh",
    "energy_kwh",
    "co2e_kg",
    "estimate_kg",
    "money",
)


def spent(emissions: Iterable[dict[str, Any]], site: Site) -> dict[str, float]:
    """Return what a run cost: the costs of SUMMED over the records of its attempts and nodes.

    ``device_hours`` counts a node without GPUs as one device. ``estimate_kg`` is computed as in the SSAT paper's Table 3 (Lacoste et al.):
    GPU-hours x board power x intensity. This estimate and ``money`` are about GPUs, so they are 0 without one.
    """
    sums = add([])
    for record in emissions:
        hours = record["duration_s"] / 3600
        sums["device_hours"] += hours * max(1, record["gpus"])
        sums["gpu_hours"] += hours * record["gpus"]
        sums["gpu_busy_hours"] += record["gpu_busy_s"] / 3600
        sums["cpu_hours"] += record["cpu_time_s"] / 3600
        for name in ("gpu_kwh", "cpu_kwh", "ram_kwh", "energy_kwh", "co2e_kg"):
            sums[name] += record[name]
    sums["estimate_kg"] = site.estimate_kg(sums["gpu_hours"])
    sums["money"] = sums["gpu_hours"] * site.price_per_gpu_hour
    return sums


def add(parts: Iterable[dict[str, float]]) -> dict[str, float]:
    """Return the sum of every cost of SUMMED; zeros if ``parts`` is empty."""
    parts = list(parts)
    return {name: sum((part[name] for part in parts), 0.0) for name in SUMMED}
