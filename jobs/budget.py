"""`budget: {gpu_hours, kwh, kg_co2e, money}`: a submission that is predicted to cost more is refused before anything is queued."""

from __future__ import annotations

import math

from jobs.folders import is_trained
from jobs.graph import Graph
from jobs.predict import Prediction
from jobs.sweep import Spec
from vitssl.config import ConfigError, Site

SHOWN = 3  # of the largest parts
UNKNOWN = "the energy of a CPU is not known before a first run of each architecture has measured it"


def check(spec: Spec, graph: Graph, predictions: list[Prediction], site: Site) -> None:
    """Hold the predictions of all runs that are not done yet against the sweep's budget.

    Raises:
        ConfigError: naming the limit, what is predicted and its largest parts; or what cannot be predicted.
    """
    units = {"gpu_hours": "GPU-hours", "kwh": "kWh", "kg_co2e": "kg CO2e", "money": site.currency}
    unpredicted = {job.name for job in graph.jobs if not is_trained(job)} - {prediction.name for prediction in predictions}
    for name, limit in vars(spec.budget).items():
        if limit is None:
            continue
        with_place = f"budget.{name}", spec.place(f"budget.{name}")
        if not 0 <= limit < math.inf:
            raise ConfigError(f"{limit:g} is not an amount", *with_place)
        if unpredicted:
            raise ConfigError(f"{min(unpredicted)} cannot be predicted before its shards are built (vitssl shards build)", *with_place)
        if name in ("gpu_hours", "money") and predictions and not any(prediction.gpu_hours for prediction in predictions):
            raise ConfigError("these runs use no GPU, so it limits nothing; set budget.kwh, or budget.kg_co2e", *with_place)
        if name == "money" and not site.price_per_gpu_hour:
            raise ConfigError(f"the site {site.name} has no price; set site.price_per_gpu_hour", *with_place)
        parts = _parts(graph, predictions, name)
        if parts is None:
            raise ConfigError(f"{UNKNOWN}; leave {with_place[0]} out for one: arms=[...] axes.seed=[0]", *with_place)
        if (total := sum(parts.values())) > limit:
            largest = sorted(parts.items(), key=lambda part: part[1], reverse=True)[:SHOWN]
            shown = ", ".join(f"{arm} {amount:.3g}" for arm, amount in largest)
            raise ConfigError(f"{total:.3g} {units[name]} are predicted, more than {limit:g}; the largest parts: {shown}", *with_place)


def _parts(graph: Graph, predictions: list[Prediction], name: str) -> dict[str, float] | None:
    """The predicted amount by arm; None where one is not known."""
    fields = {"kwh": "energy_kwh", "kg_co2e": "co2e_kg"}
    arms, parts = {job.name: job.arm for job in graph.jobs}, dict.fromkeys((job.arm for job in graph.jobs), 0.0)
    for prediction in predictions:
        amount = getattr(prediction, fields.get(name, name))
        if amount is None:
            return None
        parts[arms[prediction.name]] += amount
    return parts
