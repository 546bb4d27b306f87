"""report.html: one self-contained page that a colleague reads without asking: first what was found, then everything behind it."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from vitssl.report import details, evaluations, failures, main_table, render, seen, selection, tables
from vitssl.report.blocks import Drawn, anchor, copied, definitions, found, lines, pictures, plain, plot, row, section, switch, titled
from vitssl.report.collect import Sweep
from vitssl.report.css import CSS
from vitssl.report.energy import statement
from vitssl.report.findings import further, headlines, progress
from vitssl.report.grid import SEED, Grid
from vitssl.report.hyperparameters import without_influence
from vitssl.report.script import SCRIPT
from vitssl.report.settings import provenance, settings
from vitssl.words import counted

Named = dict[str, str]  # plots that take turns at one place, by what each is called there
FIRST: dict[str, Named] = {
    "Accuracy against training cost": {"multiply-adds": "accuracy_vs_macs", "energy": "accuracy_vs_energy", "time": "accuracy_vs_hours"},
    "Accuracy over what the sweep varies": {"": "accuracy_by_axis"},
}  # what a report begins with, by its heading
CURVES = {"over images seen": "learning_curves_images", "over epochs": "learning_curves", "over wall time": "learning_curves_time"}
PLACED = {*(name for names in FIRST.values() for name in names.values()), *CURVES.values(), "energy_by_component", "confusion"}
FILES = {
    "table.csv": "numbers (CSV)",
    "seeds.csv": "by seed (CSV)",
    "differences.csv": "differences (CSV)",
    "table.tex": "table (LaTeX)",
    "energy.tex": "energy sentence (LaTeX)",
    "report.md": "Markdown",
}
RECONSTRUCTED = "Eight test images after the last step: the objective's input, its reconstruction, and the original images."
NARROW = ("Data", "Other readings of the same runs")  # sections that may stand side by side
MOST_BESIDE = 9  # columns of a table that leaves room for a plot beside it
FURTHER = "Further findings"


@dataclass(frozen=True)
class Report:
    """All that the page and the Markdown file show.

    Attributes:
        plots: by file name.
        columns: of the main table, by name; None: the usual ones.
    """

    grid: Grid
    plots: dict[str, Drawn]
    columns: list[str] | None = None


def title(grid: Grid) -> str:
    return f"{grid.sweep.name}: accuracy, cost and emissions"


def html(report: Report) -> str:
    """The whole page."""
    grid = report.grid
    paper = grid.sweep.facts["paper"]
    source = f' Reproduces {escape(paper["table"])} of <a href="{escape(paper["url"])}">{escape(paper["title"])}</a>.' if paper else ""
    alike = "".join(f'<p class="warning">Warning: {escape(text)}: <a href="#data">details</a>.</p>\n' for text in details.warnings(grid))
    links = "\n".join(f'<a href="{name}">{words}</a>' for name, words in FILES.items())
    about = f"{escape(compared(grid))}{source} {escape(progress(grid.sweep))}"
    more = {name: body for name, body in _more(report).items() if body}
    contents = " ".join(f'<a href="#{anchor(name)}">{escape(name)}</a>' for name in more)
    sections = "".join(section(name, body, "" if name in NARROW else "whole") for name, body in more.items())
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title(grid))}</title>\n<style>\n{CSS}</style>\n</head>\n<body>\n<header>\n<h1>{escape(grid.sweep.name)}</h1>\n"
        f'<p>{about}</p>\n{alike}<p class="links">{links}</p>\n<nav class="links">Below: {contents}</nav>\n</header>\n'
        f"<main>\n{_first(report)}"
        f'<div class="more">\n{sections}</div>\n</main>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n'
    )


def compared(grid: Grid) -> str:
    """What the sweep compares, in one sentence; an axis of a single value says nothing of that."""
    axes = {axis: values for axis, values in grid.sweep.facts["axes"].items() if len(values) > 1}
    over = "; ".join(f"{'seeds' if axis == SEED else grid.short(axis)} {', '.join(map(str, values))}" for axis, values in axes.items())
    arms = ", ".join(grid.called(arm) for arm in grid.sweep.arms)
    return f"{counted(len(grid.sweep.arms), 'arm')} ({arms})" + (f" over {over}." if over else ".")


def notes(grid: Grid) -> list[str]:
    """The sweep's notes and those of its arms, as far as the command line cannot contradict them, and what that changed."""
    arms, valid = grid.sweep.arms, not _contradicts(grid.sweep)
    return [
        *(grid.sweep.facts["notes"] if valid else []),
        *(f"{grid.called(arm)}: not runnable: {arm.not_runnable}" for arm in arms if arm.not_runnable),
        *(f"{grid.called(arm)}: {arm.note}" for arm in arms if arm.note and valid),
        *filter(None, [_overridden(grid.sweep)]),
    ]


def _overridden(sweep: Sweep) -> str:
    """What the command line changed; empty where nothing was changed."""
    if not (fields := sweep.facts["overrides"]):
        return ""
    noted = sweep.facts["notes"] or any(arm.note for arm in sweep.arms)
    left_out = (
        f"; the notes of {sweep.facts['file']} are left out, since they apply to its own settings" if noted and _contradicts(sweep) else ""
    )
    return f"Set on the command line: {', '.join(fields)}{left_out}."


def _contradicts(sweep: Sweep) -> bool:
    """Did the command line set a field that results follow from? What the sweep file's notes say of its settings may then be wrong."""
    return not all(map(without_influence, sweep.facts["overrides"]))


def _first(report: Report) -> str:
    """What was found, the main table, and accuracy against what is exact of its cost: side by side where there is room."""
    grid = report.grid
    made = [main_table.table(part, report.columns) for part in grid.parts]
    shown = {words: switch(f"front-{i}", names, report.plots) for i, (words, names) in enumerate(FIRST.items())}
    plots = "".join(f'<div class="block"><h2>{words}</h2>\n{body}</div>\n' for words, body in shown.items() if body)
    beside = plots and len(grid.columns) == 1 and len(made[0].header) <= MOST_BESIDE
    parts = [
        section("What was found", found(headlines(grid)), "found"),
        f'<div class="main">\n{"".join(section(table.title, plain(table)) for table in made)}</div>\n',
        f'<section class="front">\n{plots}</section>\n' if plots else "",
    ]
    return f'<div class="first{"" if beside else " wide"}">\n{"".join(parts)}</div>\n'


def _more(report: Report) -> dict[str, str]:
    """Everything behind it, by the headings of its sections."""
    grid, plots = report.grid, report.plots
    return {
        "What failed": failures.html(grid.sweep),
        "Chosen and compared" if grid.sweep.facts["select"] else "Compared": row(
            *titled(selection.table(grid), selection.points(grid), main_table.differences(grid, report.columns)),
            *titled(*tables.pairs(grid), tables.columns(grid)),
        ),
        FURTHER: found(further(grid)),
        "Cost": row(plain(tables.cost(grid)), plain(main_table.size(grid)), plot("energy_by_component", plots)),
        "Energy and CO2e, for a paper": copied(statement(grid.sweep)),
        "Learning curves": switch("learning", CURVES, plots),
        "Evaluations": row(
            plain(evaluations.table(grid)), *titled(evaluations.differences(grid), evaluations.per_class(grid)), plot("confusion", plots)
        ),
        "What training saw": pictures(seen.pictures(grid, "views"), "The first images of the first batch, as the network sees them."),
        "Reconstructions": pictures(seen.pictures(grid, "reconstructions", seen.ROWS), RECONSTRUCTED),
        "Analyses": row(*(plot(name, plots) for name in plots if name not in PLACED)),
        "Data": plain(details.data(grid)),
        "Other readings of the same runs": plain(tables.readings(grid)),
        "Cost in detail": row(plain(details.costs(grid)), *titled(details.published_costs(grid))),
        "Runs": plain(details.runs(grid.sweep)),
        "Settings": _settings(grid),
        "Provenance": definitions(provenance(grid)),
        "Notes": lines(notes(grid)),
    }


def _settings(grid: Grid) -> str:
    differing, shared = settings(grid)
    if differing is None:
        return ""
    common = f"<details><summary>Settings that are equal wherever they are on ({len(shared)})</summary>\n{definitions(shared)}</details>\n"
    return render.html(differing) + common
