"""The runs that failed, with the first error of each and what Python says of it; and those with a damaged record."""

from __future__ import annotations

from html import escape
from typing import Any

from vitssl.report.collect import RunFolder, Sweep
from vitssl.report.details import linked
from vitssl.words import printable


def failed(sweep: Sweep) -> list[RunFolder]:
    return [run for run in sweep.runs.values() if run.status in ("failed", "unreadable")]


def html(sweep: Sweep) -> str:
    """An entry for each failed run: its folder, its message, and the trace behind a click."""
    return "".join(_html(sweep, run) for run in failed(sweep))


def _html(sweep: Sweep, run: RunFolder) -> str:
    name = f'<a href="{escape(linked(sweep, run))}">{escape(run.path.name)}</a>'
    trace = _by_attempt(run)[0].get("details", "") if run.failures else ""
    behind = f'<details><summary>trace</summary><pre class="trace">{escape(trace)}</pre></details>' if trace else ""
    return f'<div class="failed"><p>{name}: <span class="bad">{escape(_said(run))}</span></p>{behind}</div>\n'


def _by_attempt(run: RunFolder) -> list[dict[str, Any]]:
    """The first failure of each attempt, of which other ranks may have failed after; what a launcher left has no attempt, and on a full
    disk the last failure alone was kept."""
    found: dict[Any, dict[str, Any]] = {}
    for line, failure in enumerate(run.failures):
        found.setdefault(failure.get("attempt", f"line {line}"), failure)
    return list(found.values())


def _said(run: RunFolder) -> str:
    """The first error, and the last attempt's where that is another; or which record is damaged."""
    if run.status == "unreadable":
        return f"{run.error}. Its results and costs are not in this report"
    failures = [failure["message"] for failure in _by_attempt(run)]
    first, last = printable(failures[0]), printable(failures[-1])
    return first if first == last else f"{first}; the last attempt: {last}"


def lines(sweep: Sweep) -> list[str]:
    return [f"{run.path.name}: {_said(run)}" for run in failed(sweep)]


def unreadable(sweep: Sweep) -> list[str]:
    """What to say of every run with a damaged record."""
    return [_said(run) for run in sweep.runs.values() if run.status == "unreadable"]
