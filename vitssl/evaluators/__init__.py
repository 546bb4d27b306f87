"""Evaluators, which compute named metrics of some weights on a split and never change the weights.

There is one file for each type (`vitssl.config.evals.KINDS`).
"""

from __future__ import annotations

import importlib

from vitssl.config import ConfigError
from vitssl.config.evals import EvalConfig
from vitssl.evaluators.base import Evaluator, Result, Subject, evaluator_error

__all__ = ["Evaluator", "Result", "Subject", "build", "evaluate"]


def build(cfg: EvalConfig) -> Evaluator:
    """Build the evaluator of ``cfg``: its class has the name of the config's class without ``Config``, in the file of its type."""
    evaluator_class = getattr(importlib.import_module(f"vitssl.evaluators.{cfg.type}"), type(cfg).__name__.removesuffix("Config"))
    return evaluator_class(cfg)


def _check_metrics(cfg: EvalConfig, metrics: dict[str, float]) -> None:
    """Refuse metrics that the config does not list, since reports would not know their unit and direction, and a missing ``count``."""
    if unlisted := metrics.keys() - {*cfg.metrics, "count"}:
        raise ValueError(f"evaluator {cfg.type}: it gives {min(unlisted)}, which is not in `metrics` of {type(cfg).__name__}")
    if "count" not in metrics:
        raise ValueError(f"evaluator {cfg.type}: it does not give the number of images, count")


def evaluate(subject: Subject, evals: dict[str, EvalConfig], complete: bool) -> dict[str, Result]:
    """Run evaluators on all ranks together, and return their results by name, which are the same on every rank.

    Args:
        subject: the network and its data.
        evals: evaluator configs by name.
        complete: also compute the metrics that need all predictions at once.
    """
    results = {}
    for weights in dict.fromkeys(cfg.weights for cfg in evals.values()):
        group = {name: cfg for name, cfg in evals.items() if cfg.weights == weights}
        name = next(iter(group))
        try:
            with subject.weights(weights):
                for name, cfg in group.items():
                    results[name] = build(cfg).run(subject, complete)
                    _check_metrics(cfg, results[name].metrics)
        except ConfigError as error:
            raise evaluator_error(error, name) from None
    return {name: results[name] for name in evals}
