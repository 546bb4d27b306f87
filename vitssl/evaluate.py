"""What evaluators find in trained runs, and what of it a run folder keeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vitssl import evaluators
from vitssl.atomic import replacing
from vitssl.config import ConfigError
from vitssl.config.evals import FIRST, EvalConfig
from vitssl.files import read_json, write_json
from vitssl.run_folder import DONE, EVALS, LAST, to_evaluate
from vitssl.stopping import StopRequest
from vitssl.trained import load


def write_results(
    folder: Path, evals: dict[str, EvalConfig], results: dict[str, evaluators.Result], epoch: float, classes: list[str]
) -> None:
    """Write what reports read of evaluations, besides ``done.json``.

    The configured evaluators' results are added to ``evals.json``. ``predictions-NAME.npz``, of each that predicts, holds labels, predicted
    classes and their probability, image by image, and the names of the classes: confusion matrices are made of it, and what test images
    leave open of differences.
    """
    for name, result in results.items():
        if result.arrays:
            with replacing(folder / f"predictions-{name}.npz") as temporary, temporary.open("wb") as stream:
                np.savez_compressed(stream, classes=np.array(classes), **result.arrays)
    new = {name: {"config": cfg.defining(), "epoch": epoch, "metrics": results[name].metrics} for name, cfg in evals.items()}
    write_json(folder / EVALS, read_json(folder / EVALS) | new)


def evaluate_finished(folder: Path, device: str = "auto") -> bool:
    """Run the configured evaluators that a finished run does not have the results of yet, and keep each result as it comes.

    Returns:
        False where it was asked to stop before it had them all.
    """
    trained, epochs = load(folder, device=device), read_json(folder / DONE)["epochs"]
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
    trained = load(folder, checkpoint)
    for problem in cfg.problems("evaluate", trained.run):
        raise ConfigError(problem.reason, problem.field, str(trained.folder))
    metrics = trained.evaluate({cfg.type: cfg})[cfg.type].metrics
    return {key: value for key, value in metrics.items() if key != "top5" or len(trained.classes) > FIRST}
