"""Reports of sweeps: tables, plots and a page, from run folders alone."""

from __future__ import annotations

from pathlib import Path

from vitssl.report import analyses, energy_sources, evaluations, page, plots, render, selection, style, tables
from vitssl.report.collect import collect, total
from vitssl.report.findings import sentences
from vitssl.report.grid import lay_out

__all__ = ["summary", "total", "write"]


def write(sweep_folder: str | Path) -> Path:
    """Write ``<sweep folder>/report/``: report.html, report.md, table.csv, table.tex and every plot as SVG and PNG.

    Works at any time, for a sweep that is half finished or not begun. Gives the path of report.html.

    Raises:
        ConfigError: the folder holds no sweep.json.
    """
    laid_out = lay_out(collect(sweep_folder))
    folder = Path(sweep_folder) / "report"
    folder.mkdir(exist_ok=True)
    drawn = plots.draw(laid_out) | analyses.draw(laid_out)
    for figure in (*folder.glob("*.svg"), *folder.glob("*.png")):
        if figure.stem not in drawn:
            figure.unlink()  # of an earlier report
    made = {name: (caption, style.save(figure, folder / name)) for name, (caption, figure) in drawn.items()}
    (folder / "report.md").write_text(page.markdown(laid_out, made))
    (folder / "table.csv").write_text(render.numbers(laid_out))
    main = (tables.accuracy(laid_out), selection.table(laid_out), tables.cost(laid_out))
    (folder / "table.tex").write_text("\n".join(render.latex(table) for table in main if table))
    (folder / "report.html").write_text(page.html(laid_out, made))
    return folder / "report.html"


def summary(sweep_folder: str | Path, width: int | None = None) -> str:
    """The main tables, the differences and the sentences as text for a terminal of ``width`` columns (None: the current one).

    Raises:
        ConfigError: the folder holds no sweep.json.
    """
    laid_out = lay_out(collect(sweep_folder))
    size = ("M parameters, training", "M parameters, inference", "M activations, inference", "GMACs, inference")
    first = (tables.accuracy(laid_out), selection.table(laid_out), tables.differences(laid_out))
    shown = (*first, tables.cost(laid_out).without(*size), evaluations.table(laid_out))
    costs = [line for line in (energy_sources.tracked(laid_out.sweep), energy_sources.sites(laid_out.sweep)) if line]
    return render.terminal([table for table in shown if table and table.rows], [*sentences(laid_out), *costs], width)
