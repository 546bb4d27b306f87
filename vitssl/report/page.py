"""report.html: one self-contained page that a colleague reads without asking: first what was found, then everything behind it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from html import escape

from vitssl.report import costs, details, energy_sources, evaluations, failures, main_table, render, seen, selection, tables
from vitssl.report.blocks import Drawn, anchor, copied, definitions, lines, pictures, plain, plot, row, section, switch, titled
from vitssl.report.css import CSS
from vitssl.report.findings import further, headlines, leads, progress
from vitssl.report.grid import SEED, Grid
from vitssl.report.script import SCRIPT
from vitssl.report.settings import provenance, settings
from vitssl.report.statement import statement
from vitssl.report.table import Entry, Table
from vitssl.words import counted

Named = dict[str, str]  # plots that take turns at one place, by what each is called there
FIRST: dict[str, Named] = {
    "Accuracy against training cost": {"multiply-adds": "accuracy_vs_macs", "energy": "accuracy_vs_energy", "time": "accuracy_vs_hours"},
    "Accuracy over what the sweep varies": {"": "accuracy_by_axis"},
}  # what a report begins with, by its heading
BESIDE: dict[str, Named] = {"Energy of one model": {"": "energy_by_component"}}  # below one of these, where what is beside it is tall
CURVES = {"over images seen": "learning_curves_images", "over epochs": "learning_curves", "over wall time": "learning_curves_time"}
ELSEWHERE = {*(name for names in (FIRST | BESIDE).values() for name in names.values()), *CURVES.values(), "confusion"}  # no analyses
FILES = {
    "table.csv": "numbers (CSV)",
    "seeds.csv": "by seed (CSV)",
    "differences.csv": "differences (CSV)",
    "table.tex": "table (LaTeX)",
    "energy.tex": "energy sentence (LaTeX)",
    "report.md": "Markdown",
}
RECONSTRUCTED = "Eight test images after the last step: what an objective sees of them, what it gives back, and the images."
NARROW = ("Data", "Other readings of the same runs")  # sections that may stand side by side
MOST_COSTS = 13  # columns of a table of costs that fits a page
MOST_BESIDE, MOST_HALF = 9, 5  # columns of a table that leaves room for a plot beside it, and for one of two panels
BESIDE_TABLE = ""  # a layout: table and plots side by side, and below the table what else was found
FURTHER = "Further findings"
TALL = 8  # sentences and arms that are


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
    paper = grid.sweep.facts.get("paper")
    source = f' Stands for {escape(paper["table"])} of <a href="{escape(paper["url"])}">{escape(paper["title"])}</a>.' if paper else ""
    alike = "".join(f'<p class="warning">Warning: {escape(text)}: <a href="#data">details</a>.</p>\n' for text in details.warnings(grid))
    links = "\n".join(f'<a href="{name}">{words}</a>' for name, words in FILES.items())
    about = f"{escape(compared(grid))}{source} {escape(progress(grid.sweep))}"
    more = {name: body for name, body in _more(report).items() if body}
    sections = "".join(section(name, body, "" if name in NARROW else "whole") for name, body in more.items())
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title(grid))}</title>\n<style>\n{CSS}</style>\n</head>\n<body>\n<header>\n<h1>{escape(grid.sweep.name)}</h1>\n"
        f'<p>{about}</p>\n{alike}<p class="links">{links}</p>\n{_contents(more)}</header>\n<main>\n{_first(report)}'
        f'<div class="more">\n{sections}</div>\n</main>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n'
    )


def compared(grid: Grid) -> str:
    """What the sweep compares, in one sentence; an axis of a single value says nothing of that."""
    axes = {axis: values for axis, values in (grid.sweep.facts.get("axes") or {}).items() if len(values) > 1}
    over = "; ".join(f"{'seeds' if axis == SEED else grid.short(axis)} {', '.join(map(str, values))}" for axis, values in axes.items())
    arms = ", ".join(grid.called(arm) for arm in grid.sweep.arms)
    return f"{counted(len(grid.sweep.arms), 'arm')} ({arms})" + (f" over {over}." if over else ".")


def notes(grid: Grid) -> list[str]:
    """The sweep's notes and those of its arms, as far as the command line cannot contradict them, and what that changed."""
    arms, valid = grid.sweep.arms, not energy_sources.contradicts(grid.sweep)
    return [
        *(grid.sweep.facts.get("notes", []) if valid else []),
        *(f"{grid.called(arm)}: not runnable: {arm.not_runnable}" for arm in arms if arm.not_runnable),
        *(f"{grid.called(arm)}: {arm.note}" for arm in arms if arm.note and valid),
        *filter(None, [energy_sources.overridden(grid.sweep)]),
    ]


def _first(report: Report) -> str:
    """What was found, the main table, and accuracy against what is exact of its cost, side by side where there is room."""
    made = [main_table.table(part, report.columns) for part in report.grid.parts()]
    layout, there = _layout(report)
    main = [
        *(section(table.title, plain(table)) for table in made),
        section(FURTHER, lines(further(report.grid)) if layout == BESIDE_TABLE else ""),
    ]
    shown = {words: switch(f"front-{i}", names, report.plots) for i, (words, names) in enumerate(there.items())}
    plots = "".join(f'<div class="block"><h2>{words}</h2>\n{body}</div>\n' for words, body in shown.items())
    parts = [
        section("What was found", lines(headlines(report.grid), leads(report.grid)), "found"),
        f'<div class="main">\n{"".join(main)}</div>\n',
        f'<section class="front">\n{plots}</section>\n' if plots else "",
    ]
    return f'<div class="first {layout}">\n{"".join(parts)}</div>\n'


def _layout(report: Report) -> tuple[str, dict[str, Named]]:
    """How what comes first is laid out, and the plots there by their headings.

    BESIDE_TABLE: table and plots side by side; even: plots have the larger half; wide: below each other; two: beside what was found alone.
    """
    there, panels = _drawn(FIRST, report), len(report.grid.columns)
    columns = len(main_table.table(report.grid.parts()[0], report.columns).header)
    if not there or panels > 2 or (panels == 2 and len(there) > 1 and columns > MOST_HALF):
        return "wide", there
    beside = {} if costs.doubted(report.grid) else _drawn(BESIDE, report)  # what compares no arms is no first thing to see
    if panels == 2 and columns <= MOST_HALF:
        return "even", there | beside
    if panels == 2 or columns > MOST_BESIDE:
        return "wide two", there
    tall = len(there) == 1 and len(headlines(report.grid)) + len(report.grid.rows) >= TALL
    return BESIDE_TABLE, there | (beside if tall else {})


def _drawn(places: dict[str, Named], report: Report) -> dict[str, Named]:
    """Those of which a plot is there."""
    return {words: names for words, names in places.items() if any(name in report.plots for name in names.values())}


def _contents(sections: Iterable[str]) -> str:
    links = " ".join(f'<a href="#{anchor(name)}">{escape(name)}</a>' for name in sections)
    return f'<nav class="links">Below: {links}</nav>\n'


def _more(report: Report) -> dict[str, str]:
    """Everything behind it, by the headings of its sections."""
    grid, plots = report.grid, report.plots
    layout, first = _layout(report)
    return {
        "What failed": failures.html(grid.sweep),
        "Chosen and compared" if grid.sweep.facts.get("select") else "Compared": row(
            *titled(selection.table(grid), selection.points(grid), main_table.differences(grid, report.columns)),
            *titled(*tables.pairs(grid), tables.columns(grid)),
        ),
        FURTHER: "" if layout == BESIDE_TABLE else lines(further(grid)),
        "Cost": row(*_cost(grid), *(switch("", names, plots) for words, names in BESIDE.items() if words not in first)),
        "Energy and CO2e, for a paper": copied(statement(grid.sweep)),
        "Learning curves": switch("learning", CURVES, plots),
        "Evaluations": row(
            plain(evaluations.table(grid)), *titled(evaluations.differences(grid), *evaluations.per_class(grid)), plot("confusion", plots)
        ),
        "What training saw": pictures(seen.views(grid), "The first images of the first batch, as the network sees them."),
        "Reconstructions": pictures(seen.reconstructions(grid), RECONSTRUCTED),
        "Analyses": row(*(plot(name, plots) for name in plots if name not in ELSEWHERE)),
        "Data": plain(details.data(grid)),
        "Other readings of the same runs": plain(tables.readings(grid)),
        "Cost in detail": row(plain(details.costs(grid)), *titled(details.published_costs(grid))),
        "Runs": plain(details.runs(grid.sweep)),
        "Settings": _settings(grid),
        "Provenance": definitions(provenance(grid)),
        "Notes": lines(notes(grid)),
    }


def _cost(grid: Grid) -> list[str]:
    """The table of costs; where it is too wide for a page, what was spent and sizes apart."""
    made, texts = tables.cost(grid), 2 if grid.axis else 1
    if not made.rows or (not grid.axis and not grid.row_axes and len(made.header) <= MOST_COSTS):
        return [plain(made)]
    labels = [label for label, span in made.groups for _ in range(span)]
    spent, sizes = ([c for c, label in enumerate(labels) if c < texts or bool(label) is of_model] for of_model in (True, False))
    apart = made.pick(sizes)
    apart = _equal_once(apart, grid) if grid.axis else apart
    return [plain(replace(made.pick(spent), groups=[])), plain(replace(apart, caption="", groups=[]))]


def _equal_once(table: Table, grid: Grid) -> Table:
    """The table with one line for what an arm has in several columns of the sweep."""
    rows: dict[tuple[str, ...], list[list[Entry]]] = {}
    for line in table.rows:
        rows.setdefault((line[0].text, *(entry.text for entry in line[2:])), []).append(line)
    where = ["all" if 1 < len(lines) == len(grid.columns) else ", ".join(line[1].text for line in lines) for lines in rows.values()]
    return replace(
        table, rows=[[arm, Entry(text), *rest] for text, ((arm, _, *rest), *_) in zip(where, rows.values(), strict=True)], best=set()
    )


def _settings(grid: Grid) -> str:
    differing, shared = settings(grid)
    if differing is None:
        return ""
    common = f"<details><summary>Settings that do not differ where they are on ({len(shared)})</summary>\n{definitions(shared)}</details>\n"
    return render.html(differing) + common
