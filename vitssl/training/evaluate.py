"""What evaluators find during training, at its end and later, and what of it a run folder keeps."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from vitssl import config, dist, evaluators
from vitssl.atomic import replacing
from vitssl.config.evals import EARLY, FIRST, EvalConfig, evals_of, metric_of
from vitssl.evaluators import Result
from vitssl.files import read_json, write_json
from vitssl.run_folder import BEST, DONE, EVALS, LAST, to_evaluate
from vitssl.trained import load
from vitssl.training.log import Log
from vitssl.training.stopping import StopRequest
from vitssl.training.train_state import TrainState


def in_training(train_state: TrainState, log: Log, due: dict[str, EvalConfig]) -> None:
    """Run evaluators; by default a classifying Run's accuracy on the test split, on the held-out split and with averaged weights."""
    progress, last = train_state.progress, train_state.progress.step == train_state.total_steps
    complete = last or ("val" in due and train_state.run.data.val_metric not in EARLY)
    of_best = {name: cfg for name, cfg in due.items() if cfg.weights == "best"}
    results = evaluators.evaluate(train_state.subject, {name: cfg for name, cfg in due.items() if name not in of_best}, complete)
    _remember_best(train_state, {name: result.metrics for name, result in results.items()})
    if of_best and not train_state.has_best():
        log.say(f"{train_state.folder / BEST} is missing, so that {' and '.join(of_best)} cannot be evaluated")
    elif of_best:  # which weights these are is known now
        results |= _of_best(train_state, of_best, results)
    train_state.subject.forget_features()
    train_state.model.train()
    progress.to_evaluate = False
    progress.last = metrics = {name: result.metrics for name, result in results.items()}
    log.event("eval", progress.step, epoch=train_state.epoch, **metrics)
    if not last:  # the run's own last line says it
        epoch = f"epoch {train_state.epochs_done}/{train_state.run.loop.epochs}"
        log.say(f"{train_state.folder.name}: {epoch}: {headlines(metrics, train_state.run)}")
    elif dist.is_main():
        configured = {name: cfg for name, cfg in evals_of(train_state.run).items() if name in results}
        best_epoch = progress.best_val.get("epoch", train_state.epoch)
        write_results(train_state.folder, configured, results, (train_state.epoch, best_epoch), train_state.index.classes)


def _of_best(train_state: TrainState, of_best: dict[str, EvalConfig], results: dict[str, Result]) -> dict[str, Result]:
    """What these evaluators find; where the present weights are the best, what is known of these is not found again."""
    known = {}
    if train_state.is_best:
        found = {tuple(train_state.evals[name].defining().items()): result for name, result in results.items()}
        same = {name: found.get(tuple((cfg.defining() | {"weights": "model"}).items())) for name, cfg in of_best.items()}
        known = {name: result for name, result in same.items() if result is not None}
    left = {name: cfg for name, cfg in of_best.items() if name not in known}
    return known | evaluators.evaluate(train_state.subject, left, complete=True)


def headlines(metrics: dict[str, dict[str, float]], run: config.Run) -> str:
    """The metric that stands for each evaluator: its first, and of the held-out images the one that chooses; these at the present epoch."""
    shown = {name: values for name, values in metrics.items() if values and name != "selected_val"}
    keys = {name: run.data.val_metric if name == "val" else next(iter(values)) for name, values in shown.items()}
    return ", ".join(f"{name} {metric_of(key).name} {metrics[name][key]:.2f} {metric_of(key).unit}".rstrip() for name, key in keys.items())


def _remember_best(train_state: TrainState, metrics: dict[str, dict[str, float]]) -> None:
    progress, here = train_state.progress, {"epoch": train_state.epoch}
    if "test" in metrics and is_better(metrics["test"], progress.best_test, "top1"):
        progress.best_test = metrics["test"] | here
    if "val" in metrics and is_better(metrics["val"], progress.best_val, train_state.run.data.val_metric):
        progress.best_val = metrics["val"] | here


def is_better(new: dict[str, float], best: dict[str, float], metric: str) -> bool:
    """Is a result better than the best one before? Any is, where that is not a number."""
    before = best.get(metric, math.nan)
    return math.isnan(before) or (new[metric] < before if metric_of(metric).lower_is_better else new[metric] > before)


def write_results(
    folder: Path, evals: dict[str, EvalConfig], results: dict[str, Result], epochs: tuple[float, float], classes: list[str]
) -> None:
    """Write what reports read of evaluations, besides ``done.json``.

    The configured evaluators' results are added to ``evals.json``. ``predictions-NAME.npz``, of each that predicts, holds labels, predicted
    classes and their probability, image by image, and the names of the classes: confusion matrices are made of it, and what test images
    leave open of differences. ``epochs`` are that of the last weights and that of the best ones.
    """
    for name, result in results.items():
        if result.arrays:
            with replacing(folder / f"predictions-{name}.npz") as temporary, temporary.open("wb") as stream:
                np.savez_compressed(stream, classes=np.array(classes), **result.arrays)
    of = {name: {"config": cfg.defining(), "epoch": epochs[cfg.weights == "best"]} for name, cfg in evals.items()}
    write_json(folder / EVALS, read_json(folder / EVALS) | {name: entry | {"metrics": results[name].metrics} for name, entry in of.items()})


def evaluate_finished(folder: Path, device: str = "auto") -> bool:
    """Run the configured evaluators that a finished run does not have the results of yet, and keep each result as it comes.

    Returns:
        False where it was asked to stop before it had them all.
    """
    trained, done = load(folder, device=device), read_json(folder / DONE)
    epochs = (done["epochs"], (done.get("selected") or {}).get("epoch", done["epochs"]))
    subject = trained.subject()
    with StopRequest() as stopping:
        for name, cfg in to_evaluate(folder, trained.run).items():
            if stopping:
                return False
            write_results(folder, {name: cfg}, evaluators.evaluate(subject, {name: cfg}, complete=True), epochs, trained.classes)
    return True


def evaluate_folder(folder: Path, cfg: EvalConfig, checkpoint: str = LAST) -> dict[str, float]:
    """The metrics that an evaluator finds in a finished run; of five classes or fewer no top-5, which would always be 100 %.

    Raises:
        ConfigError: an evaluator that this run cannot have, other classes, or no such split.
    """
    config.raise_first(cfg.problems(f"evals.{cfg.type}", config.load(folder)), str(folder))
    trained = load(folder, checkpoint)
    metrics = trained.evaluate({cfg.type: cfg})[cfg.type].metrics
    return {key: value for key, value in metrics.items() if key != "top5" or len(trained.classes) > FIRST}
