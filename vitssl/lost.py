"""Work that was lost: what a run trained between its last checkpoint and a kill, and trained again in its next attempt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any


def lost_kwh(events: Sequence[dict[str, Any]], emissions: Sequence[dict[str, Any]]) -> float:
    """The energy of it: of each attempt's as much as of its logged steps no later attempt went on from.

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
