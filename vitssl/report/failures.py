"""The runs that failed: the first error of each, with what Python says of it."""

from __future__ import annotations

from html import escape

from vitssl.files import read_json
from vitssl.report.collect import RunFolder, Sweep
from vitssl.report.details import linked


def failed(sweep: Sweep) -> list[RunFolder]:
    return [run for run in sweep.runs.values() if run.status == "failed"]


def html(sweep: Sweep) -> str:
    """An entry for each failed run: its folder, its message, and the trace behind a click."""
    return "".join(_html(sweep, run) for run in failed(sweep))


def _html(sweep: Sweep, run: RunFolder) -> str:
    name = f'<a href="{escape(linked(sweep, run))}">{escape(run.path.name)}</a>'
    trace = read_json(run.path / "error.json").get("details", "")
    behind = f'<details><summary>trace</summary><pre class="trace">{escape(trace)}</pre></details>' if trace else ""
    return f'<div class="failed"><p>{name}: <span class="bad">{escape(run.error)}</span></p>{behind}</div>\n'


def lines(sweep: Sweep) -> list[str]:
    return [f"{run.path.name}: {run.error}" for run in failed(sweep)]
