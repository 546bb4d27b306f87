"""report.md: the page for viewers that show no HTML."""

from __future__ import annotations

from vitssl.report import details, evaluations, failures, main_table, render, selection, tables
from vitssl.report.energy import statement
from vitssl.report.findings import further, headlines, progress, sentences
from vitssl.report.page import FIRST, FURTHER, Report, compared, notes, title
from vitssl.report.settings import provenance, settings


def markdown(report: Report) -> str:
    """In the page's order; pictures are links to the plots' files."""
    grid, front = report.grid, {next(iter(names.values())) for names in FIRST.values()}
    main = [main_table.table(part, report.columns) for part in grid.parts]
    given = [
        selection.table(grid), selection.points(grid), main_table.differences(grid, report.columns),
        *tables.pairs(grid), tables.columns(grid),
        tables.cost(grid), main_table.size(grid),
        evaluations.table(grid), evaluations.differences(grid), evaluations.per_class(grid), details.data(grid),
        details.costs(grid), details.published_costs(grid),
        tables.readings(grid), details.runs(grid.sweep), settings(grid)[0],
    ]  # fmt: skip
    return "\n\n".join(
        [
            f"# {title(grid)}", f"{compared(grid)} {progress(grid.sweep)}",
            *(f"**Warning:** {alike}: see [Data](#data)." for alike in details.warnings(grid)), _list(sentences(headlines(grid))),
            *(f"## {table.title}\n\n{render.markdown(table)}" for table in main),
            *(_picture(report, name) for name in report.plots if name in front),
            *_part("What failed", _list(failures.lines(grid.sweep))),
            *_part(FURTHER, _list(sentences(further(grid)))),
            *_part("Energy and CO2e, for a paper", statement(grid.sweep)),
            *(f"## {table.title}\n\n{render.markdown(table)}" for table in given if table is not None and table.rows),
            *(_picture(report, name) for name in report.plots if name not in front),
            *_part("Settings that are equal wherever they are on", _list([f"{name}: {text}" for name, text in settings(grid)[1].items()])),
            *_part("Provenance", _list([f"{name}: {text}" for name, text in provenance(grid).items()])),
            *_part("Notes", _list(notes(grid))),
        ]
    ) + "\n"  # fmt: skip


def _list(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _part(name: str, text: str) -> list[str]:
    return [f"## {name}\n\n{text}"] if text else []


def _picture(report: Report, name: str) -> str:
    return f"![{report.plots[name].caption}]({name}.svg)"
