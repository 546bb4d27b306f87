"""The metrics that evaluators give, and the words for them: ``top1``, ``knn/top1``, ``selected/balanced_accuracy``."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vitssl.config.base import ConfigError, closest, did_you_mean


@dataclass(frozen=True)
class Metric:
    """A number that evaluators give: its name in reports, its unit, and which of two values is the better one."""

    name: str
    unit: str = "%"
    lower_is_better: bool = False

    @property
    def title(self) -> str:
        """The name and the unit, and an arrow if lower is better."""
        return " ".join(filter(None, (self.name, self.unit, "↓" if self.lower_is_better else "")))


TOP_K = 5  # top-5 looks for the right class among this many
BINS = 15  # bins of confidence, over which the calibration error is averaged
METRICS = {
    "top1": Metric("top-1"),
    "top5": Metric("top-5"),
    "balanced_accuracy": Metric("balanced accuracy"),
    "macro_f1": Metric("macro F1"),
    "auc": Metric("AUC"),
    "ece": Metric("ECE", lower_is_better=True),
    "loss": Metric("NLL", unit="", lower_is_better=True),
}
EARLY = ("top1", "top5", "loss")  # metrics of a classifier that are computed during training too; the others need all predictions at once
METRICS_ALSO_CALLED = {"accuracy": "top1", "acc": "top1", "acc1": "top1", "acc5": "top5", "f1": "macro_f1", "auroc": "auc", "nll": "loss"}


def metric_of(key: str) -> Metric:
    """Return how to show the metric ``key``; one that only another version knows has its key as name, and no unit."""
    return METRICS.get(key, Metric(key, unit=""))


def metric_parts(metric: str) -> tuple[str, str]:
    """Split a metric such as ``knn/top1`` into evaluator and metric.

    ``top1`` stands for test/top1, and ``top1_ema`` for test_ema/top1. ``selected/top1`` is measured at the epoch that held-out images
    choose.

    Raises:
        ConfigError: there is no such metric.
    """
    evaluator, slash, name = metric.rpartition("/")
    if not evaluator:
        evaluator, name = ("test_ema", name.removesuffix("_ema")) if name.endswith("_ema") else ("test", name)
    if name not in METRICS:
        suggestions = [METRICS_ALSO_CALLED[name.lower()]] if name.lower() in METRICS_ALSO_CALLED else closest(name, list(METRICS))
        others = "nor top1_ema, nor an evaluator's, such as selected/top1 or knn/top1"
        suffix = "_ema" if evaluator == "test_ema" and not slash else ""
        meant = did_you_mean([f"{evaluator}/{key}" if slash else f"{key}{suffix}" for key in suggestions])
        raise ConfigError(f"{metric!r} is none of {', '.join(METRICS)}, {others}{meant}")
    return evaluator, name


def measured_by(metric: str) -> Metric:
    """Return what a metric such as ``knn/top1`` measures; its name begins with the evaluator's, unless that is the test split's own."""
    evaluator, key = metric_parts(metric)
    return METRICS[key] if evaluator == "test" else replace(METRICS[key], name=f"{evaluator} {METRICS[key].name}")
