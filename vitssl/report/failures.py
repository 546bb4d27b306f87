"""The runs that failed: the first error of each, with what Python says of it."""

from __future__ import annotations

from html import escape
from typing import Any

from vitssl.files import read_events, read_json
from vitssl.report.collect import RunFolder, Sweep
from vitssl.report.details import linked


def failed(sweep: Sweep) -> list[RunFolder]:
    return [run for run in sweep.runs.values() if run.status == "failed"]


def html(sweep: Sweep) -> str:
    """An entry for each failed run: its folder, its message, and the trace behind a click."""
    return "".join(_html(sweep, run) for run in failed(sweep))


def _html(sweep: Sweep, run: RunFolder) -> str:
    name = f'<a href="{escape(linked(sweep, run))}">{escape(run.path.name)}</a>'
    trace = _first(run).get("details", "")
    behind = f'<details><summary>trace</summary><pre class="trace">{escape(trace)}</pre></details>' if trace else ""
    return f'<div class="failed"><p>{name}: <span class="bad">{escape(_said(run))}</span></p>{behind}</div>\n'


def _first(run: RunFolder) -> dict[str, Any]:
    """The run's first failure; runs of older versions kept the last one alone."""
    last = read_json(run.path / "error.json")
    return next(iter(read_events(run.path / "errors.jsonl")), last)


def _said(run: RunFolder) -> str:
    """The first error, and the last attempt's where that is another."""
    first = _first(run)["message"]
    return first if first == run.error else f"{first}; the last attempt: {run.error}"


def lines(sweep: Sweep) -> list[str]:
    return [f"{run.path.name}: {_said(run)}" for run in failed(sweep)]
