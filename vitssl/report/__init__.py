"""Reports of sweeps: tables, plots and a page, from run folders alone.

results/    what the runs did, and what follows for all who show it: seeds gathered in a grid, means, intervals, costs, and their words
tables/     these as tables, without a word of how one looks
figures/    as plots
findings/   as sentences: which arm is best, what to take, what would decide
pages/      the sections of a report, and all of it as HTML, Markdown, LaTeX, CSV and a model card
table       what a table is; `units`: in which units its figures are shown
"""

from __future__ import annotations

import re
from pathlib import Path

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


def read(sweep_folder: str | Path) -> Grid:
    """What a sweep's runs did, from which any number of reports and summaries can be made.

    Raises:
        ConfigError: the folder holds no sweep.json, or it is damaged.
    """
    return lay_out(collect(sweep_folder))


def write(sweep: str | Path | Grid, columns: list[str] | None = None) -> Path:
    """Write ``<sweep folder>/report/`` of a sweep's folder, or of what was `read` of it: report.html, report.md, table.csv,
    differences.csv, seeds.csv, table.tex, energy.tex, and every plot as SVG, PNG and PDF.

    Works at any time, for a sweep that is half finished or not begun. A run with a damaged record is listed, and said on stderr; the rest
    is made. Gives the path of report.html.

    Args:
        columns: of the main table, by name; None: the usual ones.

    Raises:
        ConfigError: the folder holds no sweep.json, it is damaged, or there is no such column.
    """
    if columns:
        main_table.check(columns)
    laid_out = sweep if isinstance(sweep, Grid) else read(sweep)
    for line in failures.unreadable(laid_out.sweep):
        note(line)
    folder = laid_out.sweep.folder / "report"
    if folder.is_file():
        raise ConfigError(f"{folder} is a file where the report's folder is to be; move it away, and repeat the command")
    folder.mkdir(exist_ok=True)
    drawn = [plots.draw(laid_out), analyses.draw(laid_out)]
    for figure in (path for kind in style.KINDS for path in folder.glob(f"*.{kind}")):
        if _is_ours(figure.stem) and not any(figure.stem in figures for figures in drawn):
            figure.unlink()  # of an earlier report
    report = Report(laid_out, *(_saved(figures, folder) for figures in drawn), columns)
    (folder / "report.md").write_text(markdown.markdown(report))
    (folder / "table.csv").write_text(spreadsheet.numbers(laid_out))
    (folder / "differences.csv").write_text(spreadsheet.pairs(laid_out))
    (folder / "seeds.csv").write_text(spreadsheet.by_seed(laid_out))
    (folder / "table.tex").write_text(latex.paper(laid_out, columns))
    (folder / "energy.tex").write_text(latex.tex(energy.statement(laid_out.sweep)) + "\n")
    (folder / "report.html").write_text(html.html(report))
    return folder / "report.html"


def _is_ours(name: str) -> bool:
    """Is it what a figure of reports is called? Somebody may keep their own beside them."""
    return name in plots.MAKERS or re.sub(r"-\d+$", "", name) in analyses.DRAWN


def _saved(figures: dict[str, style.Plot], folder: Path) -> dict[str, Drawn]:
    return {name: Drawn(caption, style.save(figure, folder / name)) for name, (caption, figure) in figures.items()}


def summary(sweep: str | Path | Grid, width: int | None = None, columns: list[str] | None = None) -> str:
    """The main tables, the differences and what was found as text for a terminal of ``width`` columns (None: the current one).

    Raises:
        ConfigError: the folder holds no sweep.json, or there is no such column.
    """
    laid_out = sweep if isinstance(sweep, Grid) else read(sweep)
    costs_apart = spending.cost(laid_out) if laid_out.axis or columns else None
    narrow = columns or (main_table.narrow(laid_out) if laid_out.axis else None)
    main, chosen = [main_table.table(part, narrow) for part in laid_out.parts], selection.table(laid_out)
    evaluated = evaluations.table(laid_out) if any(run.evals for run in laid_out.sweep.runs.values()) else None
    shown = (*main, chosen, main_table.differences(laid_out, narrow), costs_apart, evaluated)
    too = ("Best epoch", "The paper", "In all")
    told = headlines(laid_out) | {subject: lines for subject, lines in further(laid_out).items() if subject in too}
    lines = [progress(laid_out.sweep), *filter(None, [energy.sites(laid_out.sweep)]), "", *sentences(told)]
    lines += [f"Warning: {text}." for text in details.warnings(laid_out)]
    return render.terminal([table for table in shown if table and table.rows], lines, width)
