"""Work that was lost: what a run trained between its last checkpoint and a kill, and trained again in its next attempt."""

from __future__ import annotations

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
    """By attempt."""
    shares = {}
    for this, following in pairwise(starts):
        kept, lost = following["step"] - this["step"], following["lost_steps"]
        shares[this["attempt"]] = lost / (kept + lost) if lost else 0.0
    return shares
