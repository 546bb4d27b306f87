"""A run folder: what its files are called, and what they say of the run; without torch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from vitssl.config import Run
from vitssl.config.evals import EvalConfig, pending
from vitssl.files import read_json, write_json

LAST, BEST = "last.pt", "best.pt"  # checkpoints: the newest state, and the best one of the held-out split
DONE = "done.json"  # of a trained run; written last, as others wait for it
EVALS = "evals.json"  # the results of its configured evaluators at the end, each with its fields
ERROR = "error.json"  # why the last attempt failed
SLURM_JOB = "slurm.json"  # of the newest try, and a sweep's own
CANCELLED = "cancelled"  # it was, while it was in SLURM's queue


def is_trained(folder: Path) -> bool:
    """Is it trained, so that others can start from it?"""
    return (folder / DONE).exists()


def to_evaluate(folder: Path, run: Run) -> dict[str, EvalConfig]:
    """The configured evaluators of a trained run that it does not have the results of yet."""
    return pending(run, read_json(folder / EVALS))


def is_done(folder: Path, run: Run) -> bool:
    """Is it trained, with the results of all its evaluators?"""
    return is_trained(folder) and not to_evaluate(folder, run)


def fail(folder: Path, message: str) -> None:
    """Leave in a run's folder why it failed, which nobody knows but who ran it."""
    write_json(folder / ERROR, {"message": message, "time": time.time()})


def error_of(folder: Path) -> str | None:
    """The message of the last attempt's failure."""
    return read_json(folder / ERROR).get("message")


def lost_kwh(events: Sequence[dict[str, Any]], emissions: Sequence[dict[str, Any]]) -> float:
    """The energy of work that was lost: what a run trained between its last checkpoint and a kill, and trained again in its next attempt.

    Of each attempt's energy as much as of its logged steps no later attempt went on from.

    Args:
        events: of metrics.jsonl.
        emissions: the energy records of the run, one of each attempt and node.
    """
    shares = _shares([event for event in events if event["event"] == "start"])
    return sum((shares.get(record["attempt"], 0.0) * record["energy_kwh"] for record in emissions), 0.0)


def _shares(starts: list[dict[str, Any]]) -> dict[int, float]:
    """Of the steps of each attempt, how many another one trained again. It may begin below where the one before it began: where that
    one's checkpoint was damaged or deleted."""
    trained: Counter[int] = Counter()
    lost: Counter[int] = Counter()
    kept: list[tuple[int, int, int]] = []  # attempt, and the first and last of its steps that no later one trained again
    for this, following in pairwise(starts):
        attempt, begin, resumed = this["attempt"], this["step"], following["step"]
        end = max(begin, resumed + following["lost_steps"])
        trained[attempt] += end - begin
        for of, first, last in [*kept, (attempt, begin, end)]:
            lost[of] += max(0, last - max(first, resumed))
        kept = [(of, first, min(last, resumed)) for of, first, last in [*kept, (attempt, begin, end)] if first < resumed]
    return {attempt: lost[attempt] / steps for attempt, steps in trained.items() if steps}
