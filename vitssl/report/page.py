"""report.html: one self-contained page that a colleague reads without asking."""

from __future__ import annotations

from html import escape

from vitssl.report import details, energy_sources, evaluations, render, selection, tables
from vitssl.report.css import CSS
from vitssl.report.findings import sentences
from vitssl.report.grid import Grid
from vitssl.report.settings import provenance, settings
from vitssl.report.style import with_ids

Picture = tuple[str, str]  # its caption, and the <svg> element


def title(grid: Grid) -> str:
    return f"{grid.sweep.name}: accuracy, cost and emissions"


def html(grid: Grid, plots: dict[str, Picture]) -> str:
    """The whole page."""
    paper = grid.sweep.facts.get("paper")
    source = f' Stands for {escape(paper["table"])} of <a href="{escape(paper["url"])}">{escape(paper["title"])}</a>.' if paper else ""
    sections = [
        _section("Results", _tables(tables.accuracy(grid), selection.table(grid), tables.differences(grid), tables.cost(grid))),
        _section("Reading", _list(sentences(grid)), "numbers"),
        _section("Evaluations", _tables(evaluations.table(grid), evaluations.per_class(grid))),
        _section("Data", _tables(details.data(grid), titled=False)),
        _section("Plots", "".join(_plot(name, *plot) for name, plot in plots.items()), "plots"),
        _section("Cost in detail", _tables(details.costs(grid), details.published_costs(grid), titled=False)),
        _section("Other readings of the same runs", _tables(tables.readings(grid), titled=False)),
        _section("Runs", _tables(details.runs(grid.sweep), titled=False)),
        _section("Settings", _settings(grid)),
        _section("Provenance", _definitions(provenance(grid))),
        _section("Notes", _list(notes(grid))),
    ]
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title(grid))}</title>\n<style>\n{CSS}</style>\n</head>\n<body>\n<header>\n<h1>{escape(grid.sweep.name)}</h1>\n"
        f"<p>{escape(compared(grid))}{source}</p>\n</header>\n<main>\n{''.join(sections)}</main>\n</body>\n</html>\n"
    )


def compared(grid: Grid) -> str:
    """What the sweep compares, in one sentence."""
    axes = {k: v for k, v in (grid.sweep.facts.get("axes") or {}).items() if v}
    over = "; ".join(f"{axis} {', '.join(map(str, values))}" for axis, values in axes.items())
    arms = ", ".join(arm.name for arm in grid.sweep.arms)
    count = len(grid.sweep.arms)
    return f"{count} arm{'s' if count != 1 else ''} ({arms})" + (f" over {over}." if over else ".")


def notes(grid: Grid) -> list[str]:
    """The sweep's notes, those of its arms, and what the command line changed."""
    arms = grid.sweep.arms
    return [
        *grid.sweep.facts.get("notes", []),
        *(f"{arm.name}: not runnable: {arm.not_runnable}" for arm in arms if arm.not_runnable),
        *(f"{arm.name}: {arm.note}" for arm in arms if arm.note),
        *filter(None, [energy_sources.overridden(grid.sweep)]),
    ]


def _section(name: str, body: str, kind: str = "") -> str:
    return f'<section class="{kind}">\n<h2>{escape(name)}</h2>\n{body}</section>\n' if body else ""


def _tables(*parts: tables.Table | None, titled: bool = True) -> str:
    given = [t for t in parts if t is not None]
    return "".join(
        (f"<h3>{escape(t.title)}</h3>\n" if titled or i else "") + render.html(t)
        for i, t in enumerate(given)
        if t.rows and len(t.header) > 1
    )


def _list(lines: list[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>\n" if lines else ""


def _definitions(pairs: dict[str, str]) -> str:
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>\n" for name, text in pairs.items())
    return f"<dl>\n{items}</dl>\n" if pairs else ""


def _settings(grid: Grid) -> str:
    differing, shared = settings(grid)
    if differing is None:
        return ""
    common = f"<details><summary>Settings that all share ({len(shared)})</summary>\n{_definitions(shared)}</details>\n"
    return render.html(differing) + common


def _plot(name: str, caption: str, svg: str) -> str:
    picture = f'<div class="scroll">{with_ids(svg, f"{name}-")}</div>'
    return f'<figure class="plot" role="img" aria-label="{escape(caption)}">{picture}<figcaption>{escape(caption)}</figcaption></figure>\n'


def markdown(grid: Grid, plots: dict[str, Picture]) -> str:
    """report.md: the same page for viewers that show no HTML."""
    given = [
        tables.accuracy(grid), selection.table(grid), tables.differences(grid), tables.cost(grid), details.data(grid),
        details.costs(grid), details.published_costs(grid),
        evaluations.table(grid), evaluations.per_class(grid), tables.readings(grid), details.runs(grid.sweep), settings(grid)[0],
    ]  # fmt: skip
    parts = [f"# {title(grid)}", compared(grid), "\n".join(f"- {line}" for line in sentences(grid))]
    parts += [f"## {t.title}\n\n{render.markdown(t)}" for t in given if t is not None and t.rows]
    parts += [f"![{caption}]({name}.svg)" for name, (caption, _) in plots.items()]
    parts += ["## Provenance\n\n" + "\n".join(f"- {name}: {text}" for name, text in provenance(grid).items())]
    parts += ["## Notes\n\n" + "\n".join(f"- {note}" for note in notes(grid))] if notes(grid) else []
    return "\n\n".join(parts) + "\n"
