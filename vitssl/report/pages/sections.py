"""The sections of a report, in their order; the page and report.md lay them out, each in its own way."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vitssl.report.findings.sentences import further, headlines
from vitssl.report.results.collect import Sweep
from vitssl.report.results.energy import statement
from vitssl.report.results.failures import Failure, failures
from vitssl.report.results.grid import SEED, Grid
from vitssl.report.results.hyperparameters import without_influence
from vitssl.report.results.training_pictures import ROWS, Picture, pictures
from vitssl.report.table import Table
from vitssl.report.tables import details, differences, evaluations, main_table, selection, spending
from vitssl.report.tables.settings import provenance, settings
from vitssl.words import counted, listed

FRONT: dict[str, dict[str, str]] = {
    "Accuracy against training cost": {"multiply-adds": "accuracy_vs_macs", "energy": "accuracy_vs_energy", "time": "accuracy_vs_hours"},
    "Accuracy over what the sweep varies": {"": "accuracy_by_axis"},
}  # the plots at the top of a report, by heading
CURVES = {"over images seen": "learning_curves_images", "over epochs": "learning_curves", "over wall time": "learning_curves_time"}
ENERGY, CONFUSION = "energy_by_component", "confusion"
MOST_BESIDE = 9  # columns of a main table that leaves room for a plot beside it, at most
VIEWS = "The first images of the first batch, as the network sees them."
RECONSTRUCTED = "Eight test images after the last step: the objective's input, its reconstruction, and the original images."


@dataclass(frozen=True)
class Drawn:
    """A plot as a page shows it: its caption and its <svg> element."""

    caption: str
    svg: str


@dataclass(frozen=True)
class Report:
    """The material of a report.

    Attributes:
        plots: the plots of the sweep, by file name.
        analyses: the figures of what `vitssl analyze` found, by file name.
        columns: the names of the main table's columns; None: the usual ones.
    """

    grid: Grid
    plots: dict[str, Drawn]
    analyses: dict[str, Drawn]
    columns: list[str] | None = None


@dataclass(frozen=True)
class Plots:
    """Plots that take turns in one place: {name there: (file name, plot)}."""

    by_name: dict[str, tuple[str, Drawn]]


@dataclass(frozen=True)
class Found:
    """Sentences about the results, by their subject."""

    findings: dict[str, list[str]]


@dataclass(frozen=True)
class Lines:
    texts: list[str]


@dataclass(frozen=True)
class Text:
    """A text that is copied as a whole."""

    text: str


@dataclass(frozen=True)
class Pairs:
    """Names with their texts.

    Attributes:
        summary: the words behind which the pairs are folded away; empty: they are always shown.
    """

    texts: dict[str, str]
    summary: str = ""


@dataclass(frozen=True)
class Strips:
    """Pictures with one caption for all."""

    pictures: list[Picture]
    caption: str


@dataclass(frozen=True)
class Failed:
    failures: list[Failure]


Part = Table | Plots | Found | Lines | Text | Pairs | Strips | Failed


@dataclass(frozen=True)
class Section:
    """Parts under a heading.

    Tables and plots stand side by side if there is room. A table whose title is the section's name is shown without the title.
    """

    name: str
    parts: list[Part]


@dataclass(frozen=True)
class Contents:
    """The sections of a report that are not empty.

    Attributes:
        found: what was found.
        main: the main table, or several.
        front: the plots of accuracy.
        more: everything behind these.
        narrow: whether the main table leaves room for plots beside it.
    """

    found: list[Section]
    main: list[Section]
    front: list[Section]
    more: list[Section]
    narrow: bool


def contents(report: Report) -> Contents:
    """Return all that a report shows, without sections that would be empty."""
    grid = report.grid
    tables = [main_table.table(part, report.columns) for part in grid.parts]
    return Contents(
        found=_full([Section("What was found", _part(Found, headlines(grid)))]),
        main=[Section(table.title, [table]) for table in tables],
        front=_full([Section(words, _plots(report, names)) for words, names in FRONT.items()]),
        more=_full(_more(report)),
        narrow=len(grid.columns) == 1 and len(tables[0].header) <= MOST_BESIDE,
    )


def _more(report: Report) -> list[Section]:
    """Return the sections below the main table and the first plots; some may be empty."""
    grid = report.grid
    differing, shared = settings(grid)
    equal = f"Settings that are equal wherever they are on ({len(shared)})"
    chosen = _tables(selection.table(grid), selection.points(grid), main_table.differences(grid, report.columns))
    evaluated = _tables(evaluations.table(grid), evaluations.differences(grid), evaluations.per_class(grid))
    return [
        Section("What failed", _part(Failed, failures(grid.sweep))),
        Section(
            "Chosen and compared" if grid.sweep.facts["select"] else "Compared",
            chosen + _tables(*differences.pairs(grid), differences.columns(grid)),
        ),
        Section("Further findings", _part(Found, further(grid))),
        Section("Cost", _tables(spending.cost(grid), main_table.size_table(grid)) + _plots(report, {"": ENERGY})),
        Section("Energy and CO2e, for a paper", _part(Text, statement(grid.sweep))),
        Section("Learning curves", _plots(report, CURVES)),
        Section("Evaluations", evaluated + _plots(report, {"": CONFUSION})),
        Section("What training saw", _part(Strips, pictures(grid, "views"), VIEWS)),
        Section("Reconstructions", _part(Strips, pictures(grid, "reconstructions", ROWS), RECONSTRUCTED)),
        Section("Analyses", [Plots({"": (name, drawn)}) for name, drawn in report.analyses.items()]),
        Section("Data", _tables(details.data(grid))),
        Section("Other readings of the same runs", _tables(evaluations.readings(grid))),
        Section("Cost in detail", _tables(spending.by_stage(grid), spending.published(grid))),
        Section("Runs", _tables(details.runs(grid.sweep))),
        Section("Settings", _tables(differing) + _part(Pairs, shared, equal)),
        Section("Provenance", _part(Pairs, provenance(grid))),
        Section("Notes", _part(Lines, notes(grid))),
    ]


def _part(kind: Callable[..., Part], content: Any, *more: str) -> list[Part]:
    """Return a list with the part that ``kind`` makes of ``content``, or an empty list if there is no content."""
    return [kind(content, *more)] if content else []


def _tables(*tables: Table | None) -> list[Part]:
    """Return the tables that have rows and more than one column."""
    return [table for table in tables if table is not None and table.rows and len(table.header) > 1]


def _plots(report: Report, names: dict[str, str]) -> list[Part]:
    """Return the plots of ``names`` ({words: file name}) that were drawn, as one part in which they take turns."""
    return _part(Plots, {words: (name, report.plots[name]) for words, name in names.items() if name in report.plots})


def _full(sections: list[Section]) -> list[Section]:
    """Return the sections that have parts."""
    return [section for section in sections if section.parts]


# ----------------------------------------------------------------------------------------------------- what a sweep says of itself


def title(grid: Grid) -> str:
    return f"{grid.sweep.name}: accuracy, cost and emissions"


def compared_text(grid: Grid) -> str:
    """Return what the sweep compares, and what of that the command line said; axes with a single value are left out."""
    axes = {axis: values for axis, values in grid.sweep.facts["axes"].items() if len(values) > 1}
    over = "; ".join(f"{'seeds' if axis == SEED else grid.short(axis)} {', '.join(map(str, values))}" for axis, values in axes.items())
    arms = ", ".join(grid.arm_name(arm) for arm in grid.sweep.arms)
    typed = listed(_typed(grid.sweep.facts["command"]))
    compared = f"{counted(len(grid.sweep.arms), 'arm')} ({arms})" + (f" over {over}." if over else ".")
    return f"{compared} Given on the command line: {typed}." if typed else compared


def _typed(command: str) -> list[str]:
    """Return the keys that a command sets, without those that neither choose runs nor change them."""
    keys = dict.fromkeys(re.findall(r"""\s["']?([A-Za-z_][\w.-]*)=""", command))
    return [key for key in keys if key.split(".")[0] not in ("name", "site", "resources", "budget")]


def notes(grid: Grid) -> list[str]:
    """Return the notes of the sweep and its arms, and a note on fields that were set on the command line.

    Notes that such a field may contradict are left out.
    """
    arms, valid = grid.sweep.arms, not _contradicts(grid.sweep)
    return [
        *(grid.sweep.facts["notes"] if valid else []),
        *(f"{grid.arm_name(arm)}: not runnable: {arm.not_runnable}" for arm in arms if arm.not_runnable),
        *(f"{grid.arm_name(arm)}: {arm.note}" for arm in arms if arm.note and valid),
        *filter(None, [_overridden(grid.sweep)]),
    ]


def _overridden(sweep: Sweep) -> str:
    """Return a note on the fields that the command line set; empty if it set none."""
    if not (fields := sweep.facts["overrides"]):
        return ""
    noted = sweep.facts["notes"] or any(arm.note for arm in sweep.arms)
    left_out = (
        f"; the notes of {sweep.facts['file']} are left out, since they apply to its own settings" if noted and _contradicts(sweep) else ""
    )
    return f"Set on the command line: {', '.join(fields)}{left_out}."


def _contradicts(sweep: Sweep) -> bool:
    """Whether the command line set a field that results depend on, so that the sweep file's notes on its settings may be wrong."""
    return not all(map(without_influence, sweep.facts["overrides"]))
