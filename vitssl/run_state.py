"""The state of a run, as the records in its folder tell it. This imports no torch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from vitssl.config import ConfigError
from vitssl.files import read_events
from vitssl.run_folder import CANCELLED, EVENTS, emissions_of, error_of, is_trained

SILENT_S = 300.0  # a running attempt records its energy every 10 s; without a record for this long it counts as stopped
State = Literal[
    "done",  # it is trained; some of its evaluators may be left
    "failed",  # its last attempt ended with an error
    "cancelled",  # `jobs/cancel.py` took it out of SLURM's queue
    "running",  # it wrote a record in the last `SILENT_S`
    "stopped",  # it has begun, and can be continued: it was asked to stop, or it was killed
    "not begun",  # no attempt at it has left a record
    "unreadable",  # a record is damaged
]


def read_state(folder: Path) -> State:
    """Return the state of the run in ``folder``; it is "unreadable" if a record that tells it is damaged."""
    try:
        return recorded_state(folder, read_events(folder / EVENTS), emissions_of(folder))
    except ConfigError:
        return "unreadable"


def recorded_state(folder: Path, events: Sequence[dict[str, Any]], emissions: Sequence[dict[str, Any]]) -> State:
    """Return the state of the run in ``folder``, of which two kinds of records have been read.

    Args:
        folder: the run's folder.
        events: the lines of its metrics.jsonl.
        emissions: its energy records, one for each attempt and node.

    Raises:
        ConfigError: its error.json is damaged.
    """
    if is_trained(folder):
        return "done"
    if error_of(folder) is not None:
        return "failed"
    if (folder / CANCELLED).exists():
        return "cancelled"
    if not events and not emissions:
        return "not begun"
    newest_s = max([event["time"] for event in events] + [record["end"] for record in emissions])
    # a new attempt records its energy before it writes its first event
    goes_on = not has_saved(events) or any(record["attempt"] > events[-1]["attempt"] for record in emissions)
    return "running" if goes_on and time.time() - newest_s < SILENT_S else "stopped"


def has_saved(events: Sequence[dict[str, Any]]) -> bool:
    """Whether the last attempt at a run stopped because it was asked to, after it had saved.

    Args:
        events: the lines of the run's metrics.jsonl.
    """
    return bool(events) and events[-1]["event"] == "end" and events[-1].get("reason", "stopped") == "stopped"
