"""Evaluators: weights and a split to named metrics. They never change the weights. One file per type (`vitssl.config.evals.KINDS`)."""

from __future__ import annotations

import importlib

from vitssl.config import ConfigError
from vitssl.config.evals import EvalConfig
from vitssl.evaluators.base import Evaluator, Result, Subject, named

__all__ = ["Evaluator", "Result", "Subject", "build", "evaluate"]


def build(cfg: EvalConfig) -> Evaluator:
    """The evaluator of a config: the class named as it, without ``Config``, in the file of its type."""
    kind = getattr(importlib.import_module(f"vitssl.evaluators.{cfg.type}"), type(cfg).__name__.removesuffix("Config"))
    return kind(cfg)


def _check_metrics(cfg: EvalConfig, metrics: dict[str, float]) -> None:
    """Of others a report would not know the unit and the direction."""
    if odd := metrics.keys() - {*cfg.metrics, "count"}:
        raise ValueError(f"evaluator {cfg.type}: it gives {min(odd)}, which is not in `metrics` of {type(cfg).__name__}")
    if "count" not in metrics:
        raise ValueError(f"evaluator {cfg.type}: it does not give the number of images, count")


def evaluate(subject: Subject, evals: dict[str, EvalConfig], complete: bool) -> dict[str, Result]:
    """Run evaluators, by name; all ranks together, and each gets the results of all.

    Args:
        subject: the network and its data.
        evals: by name.
        complete: also the metrics that need all predictions at once.
    """
    results = {}
    for weights in dict.fromkeys(cfg.weights for cfg in evals.values()):
        those = {name: cfg for name, cfg in evals.items() if cfg.weights == weights}
        name = next(iter(those))
        try:
            with subject.weights(weights):
                for name, cfg in those.items():
                    results[name] = build(cfg).run(subject, complete)
                    _check_metrics(cfg, results[name].metrics)
        except ConfigError as error:
            raise named(error, name) from None
    return {name: results[name] for name in evals}
