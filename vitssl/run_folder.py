"""A run folder: the names of its files, and what they say about the run. This imports no torch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from vitssl import run_names
from vitssl.config import Run
from vitssl.config.evals import EvalConfig, pending
from vitssl.files import read_json, write_json

JOB = "job.json"  # the launcher's record of a run: where its source is, what it starts from, the facts about its data
RUN = "run.yaml"  # all fields of the Run
EVENTS = "metrics.jsonl"  # a line per event of training, such as the start of an attempt; there once a run has begun to train
COST = "cost.json"  # MACs, parameters and speed of the network, and of its training
ERRORS = "errors.jsonl"  # the failures of all attempts
LAST, BEST = "last.pt", "best.pt"  # checkpoints: the newest state, and the best one on the held-out split
DIVERGED = "diverged.pt"  # weights and optimizer where the loss was not finite, to look into; nothing goes on from them
DONE = "done.json"  # of a trained run; written last, as others wait for it
EVALS = "evals.json"  # the final results of the configured evaluators, each with the evaluator's fields
ERROR = "error.json"  # why the last attempt failed
SLURM_JOB = "slurm.json"  # the SLURM job of a run's newest attempt, or of the sweep itself
CANCELLED = "cancelled"  # marks a run that was cancelled while it was in SLURM's queue


def folders_named(path: Path) -> list[Path]:
    """Return the run folders that ``path``, which does not exist itself, stands for by `run_names.matches`: those beside it."""
    names = sorted(run_yaml.parent.name for run_yaml in path.parent.glob(f"*/{RUN}"))
    return [path.with_name(name) for name in run_names.matches(path.name, names)]


def predictions_of(folder: Path, evaluator: str) -> Path:
    """Return the path of an evaluator's predictions, image by image, in a run folder."""
    return folder / f"predictions-{evaluator}.npz"


def is_trained(folder: Path) -> bool:
    """Whether the run is trained, so that others can start from it."""
    return (folder / DONE).exists()


def to_evaluate(folder: Path, run: Run) -> dict[str, EvalConfig]:
    """Return the configured evaluators of a trained run whose results are still missing."""
    return pending(run, read_json(folder / EVALS))


def is_done(folder: Path, run: Run) -> bool:
    """Whether the run is trained and has the results of all its evaluators."""
    return is_trained(folder) and not to_evaluate(folder, run)


def fail(folder: Path, message: str) -> None:
    """Write into a run's folder why the run failed, which only the process that ran it knows."""
    write_json(folder / ERROR, {"message": message, "time": time.time()})


def error_of(folder: Path) -> str | None:
    """Return the message of the last attempt's failure, or None."""
    return read_json(folder / ERROR).get("message")


def emissions_of(folder: Path) -> list[dict[str, Any]]:
    """Return the energy records of a run, one for each attempt and node."""
    return [read_json(path) for path in sorted(folder.glob("emissions-*.json"))]


def num_attempts(events: Iterable[dict[str, Any]], emissions: Iterable[dict[str, Any]]) -> int:
    """Return the number of attempts at a run that began to train, or that recorded energy.

    Args:
        events: the lines of metrics.jsonl.
        emissions: the energy records of the run, one for each attempt and node.
    """
    starts = (event for event in events if event["event"] == "start")
    return len({record["attempt"] for record in (*starts, *emissions)})


def logged_speeds(events: Iterable[dict[str, Any]]) -> list[float]:
    """Return the images/s over all processes that the lines of metrics.jsonl name, in their order."""
    return [event["images_per_s"] for event in events if event["event"] == "train" and "images_per_s" in event]


def median_speed(speeds: Sequence[float]) -> float:
    """Return the median of `logged_speeds` without the first of several: memory is allocated and caches fill in the first steps."""
    return median(speeds[1:] or speeds)


def lost_kwh(events: Sequence[dict[str, Any]], emissions: Sequence[dict[str, Any]]) -> float:
    """Return the energy (kWh) of the steps that a run trained between its last checkpoint and a kill, and again in its next attempt.

    An attempt's energy is lost in proportion to its logged steps that no later attempt continued from.

    Args:
        events: the lines of metrics.jsonl.
        emissions: the energy records of the run, one for each attempt and node.
    """
    shares = _shares([event for event in events if event["event"] == "start"])
    return sum((shares.get(record["attempt"], 0.0) * record["energy_kwh"] for record in emissions), 0.0)


def _shares(starts: list[dict[str, Any]]) -> dict[int, float]:
    """Return for each attempt the share of its steps that a later attempt trained again.

    An attempt may begin below the first step of the attempt before it, if the checkpoint of that one was damaged or deleted.
    """
    trained: Counter[int] = Counter()
    lost: Counter[int] = Counter()
    kept: list[tuple[int, int, int]] = []  # (attempt, first step, last step) of the steps that no later attempt trained again
    for start, following in pairwise(starts):
        attempt, begin, resumed = start["attempt"], start["step"], following["step"]
        end = max(begin, resumed + following["lost_steps"])
        trained[attempt] += end - begin
        for number, first, last in [*kept, (attempt, begin, end)]:
            lost[number] += max(0, last - max(first, resumed))
        kept = [(number, first, min(last, resumed)) for number, first, last in [*kept, (attempt, begin, end)] if first < resumed]
    return {attempt: lost[attempt] / steps for attempt, steps in trained.items() if steps}
