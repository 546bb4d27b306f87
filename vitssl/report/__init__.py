"""Reports of sweeps: tables, plots and a page, made from run folders alone.

results/    what the runs did: seeds gathered in a grid, means, intervals and costs, on which every other part builds
tables/     the results as tables: their content, not their looks
figures/    the results as plots
findings/   the results as sentences: which arm is best, which one to take, what would decide an open comparison
pages/      the sections of a report, and the whole report as HTML, Markdown, LaTeX, CSV and a model card
table       the data structure of a table; `units`: the units in which its figures are shown
"""

from __future__ import annotations

import re
from pathlib import Path

from vitssl.atomic import write_text_atomically
from vitssl.config import ConfigError
from vitssl.report.figures import analyses, plots, style
from vitssl.report.findings.sentences import further, headlines, progress, sentences
from vitssl.report.pages import html, latex, markdown, render, spreadsheet
from vitssl.report.pages.sections import Drawn, Report
from vitssl.report.results import energy, failures
from vitssl.report.results.collect import collect
from vitssl.report.results.grid import Grid, lay_out
from vitssl.report.tables import details, evaluations, main_table, selection, spending
from vitssl.words import note

__all__ = ["read", "summary", "write"]

PAGE = "report.html"


def read(sweep_folder: str | Path, out: Path | None = None) -> Grid:
    """Read the results of a sweep folder, from which any number of reports and summaries can be made.

    Args:
        sweep_folder: the sweep's folder, which may be read-only if ``out`` is given.
        out: the folder of its report, new or of an earlier report; None: ``report`` in the sweep's folder.

    Raises:
        ConfigError: the folder holds no sweep.json, or it is damaged; or ``out`` holds files and no report.
    """
    if out is not None and out.is_dir() and any(out.iterdir()) and not (out / PAGE).exists():
        raise ConfigError(f"{out} holds files and no {PAGE}; name a new folder, or that of a report", "--out")
    return lay_out(collect(sweep_folder, out))


def write(sweep: str | Path | Grid, columns: list[str] | None = None) -> Path:
    """Write the report of a sweep to ``<sweep folder>/report/``, or where `read` was told to, and return the path of its report.html.

    The files are report.html, report.md, table.csv, seeds.csv, curves.csv, differences.csv, table.tex, energy.tex, and every plot as SVG,
    PNG and PDF. This works at any time, also if the sweep is half finished or has not begun. A damaged record of a run, or analysis, is
    listed in the report and named on stderr; everything else is still made. Each file replaces that of an earlier report once it is
    complete.

    Args:
        sweep: the sweep's folder, or what `read` returned for it.
        columns: names of the main table's columns; None: the usual ones.

    Raises:
        ConfigError: the folder holds no sweep.json, it is damaged, ``report`` is a file, or there is no such column.
    """
    if columns:
        main_table.check(columns)
    laid_out = sweep if isinstance(sweep, Grid) else read(sweep)
    for line in failures.unreadable(laid_out.sweep):
        note(line)
    for name in main_table.empty(laid_out, columns or []):
        note(f"--columns: {name} is left out, since no row has a figure for it" + main_table.MEANT.get(name, ""))
    folder = laid_out.sweep.report
    if folder.is_file():
        raise ConfigError(f"{folder} is a file where the report's folder is to be; move it away, and repeat the command")
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [plots.draw(laid_out), analyses.draw(laid_out)]
    for figure in (path for kind in style.KINDS for path in folder.glob(f"*.{kind}")):
        if _is_ours(figure.stem) and not any(figure.stem in figures for figures in drawn):
            figure.unlink()  # left by an earlier report
    shown, analysed = (_saved(figures, folder) for figures in drawn)
    report = Report(laid_out, shown, analysed, columns)
    texts = {
        "report.md": markdown.markdown(report),
        "table.csv": spreadsheet.numbers(laid_out),
        "differences.csv": spreadsheet.pairs(laid_out),
        "seeds.csv": spreadsheet.by_seed(laid_out),
        "curves.csv": spreadsheet.curves(laid_out),
        "table.tex": latex.paper(laid_out, columns),
        "energy.tex": latex.tex(energy.statement(laid_out.sweep)) + "\n",
        PAGE: html.html(report),
    }
    for name, text in texts.items():
        write_text_atomically(folder / name, text)
    return folder / PAGE


def _is_ours(name: str) -> bool:
    """Whether ``name`` is the name of one of the report's figures; users may keep other files in its folder."""
    return name in plots.MAKERS or re.sub(r"-\d+$", "", name) in analyses.DRAWN


def _saved(figures: dict[str, style.Plot], folder: Path) -> dict[str, Drawn]:
    return {name: Drawn(caption, style.save(figure, folder / name)) for name, (caption, figure) in figures.items()}


def summary(sweep: str | Path | Grid, width: int | None = None, columns: list[str] | None = None) -> str:
    """Return the main tables, the differences and the findings as text for a terminal of ``width`` columns (None: its present width).

    Raises:
        ConfigError: the folder holds no sweep.json, it is damaged, or there is no such column.
    """
    laid_out = sweep if isinstance(sweep, Grid) else read(sweep)
    costs_apart = spending.cost(laid_out) if laid_out.axis or columns else None
    narrow = columns or (main_table.narrow(laid_out) if laid_out.axis else None)
    main, chosen = [main_table.table(part, narrow) for part in laid_out.parts], selection.table(laid_out)
    evaluated = evaluations.table(laid_out) if any(run.evals for run in laid_out.sweep.runs.values()) else None
    tables = (*main, chosen, main_table.differences(laid_out, narrow), costs_apart, evaluated)
    extra_subjects = ("Best epoch", "The paper", "In all")
    findings = headlines(laid_out) | {subject: lines for subject, lines in further(laid_out).items() if subject in extra_subjects}
    lines = [progress(laid_out.sweep), *filter(None, [energy.sites(laid_out.sweep)]), "", *sentences(findings)]
    lines += [f"Warning: {text}." for text in details.warnings(laid_out)]
    return render.terminal([table for table in tables if table and table.rows], lines, width)
