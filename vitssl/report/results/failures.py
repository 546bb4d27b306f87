"""The runs that failed, with the first error and traceback of each, and those with a damaged record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vitssl.report.results.collect import RunFolder, Sweep
from vitssl.words import printable


@dataclass(frozen=True)
class Failure:
    """Why a run failed, or what of it cannot be read.

    Attributes:
        run: the name of its folder.
        link: the relative URL from the report's folder to the run's.
        message: the run's first error, and the last attempt's error if that is another; or which record or analysis is damaged.
        trace: the traceback of the first error; empty if there is none.
    """

    run: str
    link: str
    message: str
    trace: str

    def __str__(self) -> str:
        return f"{self.run}: {self.message}"


def failures(sweep: Sweep) -> list[Failure]:
    """Return the failure of every run that failed or has a damaged record, in the sweep's order; then the analyses that are damaged."""
    failed = [_failure(sweep, run) for run in sweep.runs.values() if run.state in ("failed", "unreadable")]
    return failed + [Failure(run.path.name, sweep.link(run), reason, "") for run in sweep.runs.values() for reason in _undrawn(run)]


def unreadable(sweep: Sweep) -> list[str]:
    """Return a message for every run with a damaged record, and for every analysis that is damaged."""
    runs = sweep.runs.values()
    return [_damaged(run) for run in runs if run.state == "unreadable"] + [reason for run in runs for reason in _undrawn(run)]


def _failure(sweep: Sweep, run: RunFolder) -> Failure:
    trace = _by_attempt(run)[0].get("details", "") if run.failures else ""
    return Failure(run.path.name, sweep.link(run), _damaged(run) if run.state == "unreadable" else _errors(run), trace)


def _damaged(run: RunFolder) -> str:
    return f"{run.error}. Its results are not in this report"


def _undrawn(run: RunFolder) -> list[str]:
    return [f"{reason}. It is in no figure until `vitssl analyze` is repeated" for reason in run.damaged]


def _errors(run: RunFolder) -> str:
    messages = [failure["message"] for failure in _by_attempt(run)]
    first, last = printable(messages[0]), printable(messages[-1])
    return first if first == last else f"{first}; the last attempt: {last}"


def _by_attempt(run: RunFolder) -> list[dict[str, Any]]:
    """Return the first failure of each attempt; other ranks may have failed after it.

    A failure that a launcher recorded has no attempt. On a full disk only the last failure was kept.
    """
    by_attempt: dict[Any, dict[str, Any]] = {}
    for line, failure in enumerate(run.failures):
        by_attempt.setdefault(failure.get("attempt", f"line {line}"), failure)
    return list(by_attempt.values())
