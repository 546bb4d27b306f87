"""The runs that failed, with the first error of each and what Python says of it; and those with a damaged record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vitssl.report.results.collect import RunFolder, Sweep
from vitssl.words import printable


@dataclass(frozen=True)
class Failure:
    """Why a run failed.

    Attributes:
        link: to its folder, from the report's.
        said: its first error, and the last attempt's where that is another; or which record is damaged.
        trace: of the first error; empty where there is none.
    """

    run: str
    link: str
    said: str
    trace: str

    def __str__(self) -> str:
        return f"{self.run}: {self.said}"


def failures(sweep: Sweep) -> list[Failure]:
    """Of every run that failed or has a damaged record, in the sweep's order."""
    return [_failure(sweep, run) for run in sweep.runs.values() if run.status in ("failed", "unreadable")]


def unreadable(sweep: Sweep) -> list[str]:
    """What to say of every run with a damaged record."""
    return [_damaged(run) for run in sweep.runs.values() if run.status == "unreadable"]


def _failure(sweep: Sweep, run: RunFolder) -> Failure:
    trace = _by_attempt(run)[0].get("details", "") if run.failures else ""
    return Failure(run.path.name, sweep.link(run), _damaged(run) if run.status == "unreadable" else _errors(run), trace)


def _damaged(run: RunFolder) -> str:
    return f"{run.error}. Its results and costs are not in this report"


def _errors(run: RunFolder) -> str:
    messages = [failure["message"] for failure in _by_attempt(run)]
    first, last = printable(messages[0]), printable(messages[-1])
    return first if first == last else f"{first}; the last attempt: {last}"


def _by_attempt(run: RunFolder) -> list[dict[str, Any]]:
    """The first failure of each attempt, of which other ranks may have failed after; what a launcher left has no attempt, and on a full
    disk the last failure alone was kept."""
    found: dict[Any, dict[str, Any]] = {}
    for line, failure in enumerate(run.failures):
        found.setdefault(failure.get("attempt", f"line {line}"), failure)
    return list(found.values())
