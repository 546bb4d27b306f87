"""Evaluation during training, at its end and later, and the results that a run folder keeps."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from vitssl import config, dist, evaluators
from vitssl.atomic import replacing
from vitssl.config.evals import EvalConfig, evals_of
from vitssl.config.metrics import EARLY, TOP_K, metric_of
from vitssl.evaluators import Result
from vitssl.files import read_json, write_json
from vitssl.run_folder import BEST, DONE, EVALS, LAST, predictions_of, to_evaluate
from vitssl.trained import load
from vitssl.training.log import Log
from vitssl.training.stopping import StopRequest
from vitssl.training.train_state import TrainState


def in_training(train_state: TrainState, log: Log, due: dict[str, EvalConfig]) -> None:
    """Run the evaluators that are due, remember the best results, and log them; after the last step also write them to the run folder.

    By default, ``due`` holds a classifying Run's accuracy on the test split, on the held-out split, and with averaged weights.
    """
    progress, last = train_state.progress, train_state.progress.step == train_state.total_steps
    complete = last or ("val" in due and train_state.run.data.val_metric not in EARLY)
    best_evals = {name: cfg for name, cfg in due.items() if cfg.weights == "best"}
    results = evaluators.evaluate(train_state.subject, {name: cfg for name, cfg in due.items() if name not in best_evals}, complete)
    _remember_best(train_state, {name: result.metrics for name, result in results.items()})
    if best_evals and not train_state.has_best():
        log.say(f"{train_state.folder / BEST} is missing, so that {' and '.join(best_evals)} cannot be evaluated")
    elif best_evals:  # the evaluation above may have changed which weights are the best
        results |= _evaluate_best(train_state, best_evals, results)
    train_state.subject.forget_features()
    train_state.model.train()
    progress.to_evaluate = False
    progress.last = metrics = {name: result.metrics for name, result in results.items()}
    log.event("eval", progress.step, epoch=train_state.epoch, **metrics)
    if not last:  # the last line of the log reports the final results
        epoch = f"epoch {train_state.epochs_done}/{train_state.run.loop.epochs}"
        log.say(f"{train_state.folder.name}: {epoch}: {headlines(metrics, train_state.run)}")
    elif dist.is_main():
        configured = {name: cfg for name, cfg in evals_of(train_state.run).items() if name in results}
        best_epoch = progress.best_val.get("epoch", train_state.epoch)
        write_results(train_state.folder, configured, results, (train_state.epoch, best_epoch), train_state.index.classes)


def _evaluate_best(train_state: TrainState, best_evals: dict[str, EvalConfig], results: dict[str, Result]) -> dict[str, Result]:
    """Run the evaluators ``best_evals`` on the best weights; if the present weights are the best, take over equal ``results``."""
    reused = {}
    if train_state.is_best:
        by_fields = {tuple(train_state.evals[name].defining().items()): result for name, result in results.items()}
        reusable = {name: by_fields.get(tuple((cfg.defining() | {"weights": "model"}).items())) for name, cfg in best_evals.items()}
        reused = {name: result for name, result in reusable.items() if result is not None}
    remaining = {name: cfg for name, cfg in best_evals.items() if name not in reused}
    return reused | evaluators.evaluate(train_state.subject, remaining, complete=True)


def headlines(metrics: dict[str, dict[str, float]], run: config.Run) -> str:
    """Return the headline metric of each evaluator in words: the one by which held-out images choose weights, or else its first one.

    The figure of the held-out images is the one of the present epoch, even if another epoch is the best.
    """
    shown = {name: values for name, values in metrics.items() if values and name != "selected_val"}
    keys = {name: run.data.val_metric if run.data.val_metric in values else next(iter(values)) for name, values in shown.items()}
    return ", ".join(f"{name} {metric_of(key).name} {metrics[name][key]:.2f} {metric_of(key).unit}".rstrip() for name, key in keys.items())


def _remember_best(train_state: TrainState, metrics: dict[str, dict[str, float]]) -> None:
    progress, at_epoch = train_state.progress, {"epoch": train_state.epoch}
    if "test" in metrics and is_better(metrics["test"], progress.best_test, "top1"):
        progress.best_test = metrics["test"] | at_epoch
    if "val" in metrics and is_better(metrics["val"], progress.best_val, train_state.run.data.val_metric):
        progress.best_val = metrics["val"] | at_epoch


def is_better(new: dict[str, float], best: dict[str, float], metric: str) -> bool:
    """Whether ``metric`` is better in ``new`` than in ``best``; always true if ``best`` has no such number."""
    previous = best.get(metric, math.nan)
    return math.isnan(previous) or (new[metric] < previous if metric_of(metric).lower_is_better else new[metric] > previous)


def write_results(
    folder: Path, evals: dict[str, EvalConfig], results: dict[str, Result], epochs: tuple[float, float], classes: list[str]
) -> None:
    """Write the results of evaluators from which reports are made, besides ``done.json``.

    The results of ``evals`` are added to ``evals.json``. For every evaluator that predicts, ``predictions-NAME.npz`` holds the names of the
    classes and, image by image, the label, the predicted class and its probability. Reports make confusion matrices of it, and compute how
    much of a difference may be due to the choice of test images.

    Args:
        folder: the run folder.
        evals: the configured evaluators, by name.
        results: by the evaluator's name; evaluators that are not in ``evals`` may be among them.
        epochs: the epoch of the last weights, and the epoch of the best ones.
        classes: names of the classes.
    """
    for name, result in results.items():
        if result.arrays:
            with replacing(predictions_of(folder, name)) as temporary, temporary.open("wb") as stream:
                arrays = {"classes": np.array(classes), **result.arrays}
                np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]  # mypy fears one called allow_pickle
    entries = {name: {"config": cfg.defining(), "epoch": epochs[cfg.weights == "best"]} for name, cfg in evals.items()}
    write_json(
        folder / EVALS, read_json(folder / EVALS) | {name: entry | {"metrics": results[name].metrics} for name, entry in entries.items()}
    )


def evaluate_finished(folder: Path, device: str = "auto") -> bool:
    """Run the configured evaluators whose results a finished run still lacks, and save each result as soon as it is there.

    Returns:
        True if no result is missing any more, False if this was asked to stop before.
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
    """Return the metrics of one evaluator on a finished run, without top-5 if there are five classes or fewer: it would always be 100 %.

    Raises:
        ConfigError: this run cannot have such an evaluator, the classes differ, or there is no such split.
    """
    config.raise_first(cfg.problems(f"evals.{cfg.type}", config.load(folder)), str(folder))
    trained = load(folder, checkpoint)
    metrics = trained.evaluate({cfg.type: cfg})[cfg.type].metrics
    return {key: value for key, value in metrics.items() if key != "top5" or not 0 < len(trained.classes) <= TOP_K}
