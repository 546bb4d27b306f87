"""report.html: one self-contained page that a colleague understands without help: first the findings, then everything behind them."""

from __future__ import annotations

from html import escape
from itertools import groupby

from vitssl.report.findings.sentences import progress
from vitssl.report.pages import blocks, sections
from vitssl.report.pages.css import CSS
from vitssl.report.pages.script import SCRIPT
from vitssl.report.table import Table
from vitssl.report.tables import details

FILES = {
    "table.csv": "numbers (CSV)",
    "seeds.csv": "by seed (CSV)",
    "curves.csv": "learning curves (CSV)",
    "differences.csv": "differences (CSV)",
    "table.tex": "table (LaTeX)",
    "energy.tex": "energy sentence (LaTeX)",
    "report.md": "Markdown",
}
NARROW = ("Data", "Other readings of the same runs")  # sections that may stand side by side


def _link(paper: dict[str, str]) -> str:
    title = escape(paper["title"])
    return f'<a href="{escape(paper["url"])}">{title}</a>' if paper["url"] else title


def html(report: sections.Report) -> str:
    """Return the report as one HTML page."""
    grid = report.grid
    paper = grid.sweep.facts["paper"]
    source = f" Reproduces {escape(paper['table'])} of {_link(paper)}." if paper else ""
    warnings = "".join(
        f'<p class="warning">Warning: {escape(text)}: <a href="#{blocks.anchor(name)}">details</a>.</p>\n'
        for text, name in details.warnings(grid).items()
    )
    links = "\n".join(f'<a href="{name}">{words}</a>' for name, words in FILES.items())
    introduction = f"{escape(sections.compared_text(grid))}{source} {escape(progress(grid.sweep))}"
    shown = sections.contents(report)
    links_below = " ".join(f'<a href="#{blocks.anchor(section.name)}">{escape(section.name)}</a>' for section in shown.more)
    sections_below = "".join(_section(section, "" if section.name in NARROW else "whole") for section in shown.more)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(sections.title(grid))}</title>\n<style>\n{CSS}</style>\n</head>\n<body>\n<header>\n<h1>{escape(grid.sweep.name)}</h1>\n"
        f'<p>{introduction}</p>\n{warnings}<p class="links">{links}</p>\n<nav class="links">Below: {links_below}</nav>\n</header>\n'
        f"<main>\n{_first(shown)}"
        f'<div class="more">\n{sections_below}</div>\n</main>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n'
    )


def _first(shown: sections.Contents) -> str:
    """Return the top of the page: the findings, the main table and the plots of accuracy, side by side if there is room."""
    plots = "".join(
        f'<div class="block"><h2>{escape(section.name)}</h2>\n{"".join(_block(part, section) for part in section.parts)}</div>\n'
        for section in shown.front
    )
    parts = [
        *(_section(section, "found") for section in shown.found),
        f'<div class="main">\n{"".join(map(_section, shown.main))}</div>\n',
        f'<section class="front">\n{plots}</section>\n' if plots else "",
    ]
    return f'<div class="first{"" if plots and shown.narrow else " wide"}">\n{"".join(parts)}</div>\n'


def _section(section: sections.Section, kind: str = "") -> str:
    rows = [(beside, [_block(part, section) for part in parts]) for beside, parts in groupby(section.parts, _beside)]
    return blocks.section(section.name, "".join(blocks.row(*row) if beside else "".join(row) for beside, row in rows), kind)


def _beside(part: sections.Part) -> bool:
    """Whether a part may stand beside others; a place in which several plots take turns has a row of its own."""
    return isinstance(part, Table) or (isinstance(part, sections.Plots) and len(part.by_name) == 1)


def _block(part: sections.Part, section: sections.Section) -> str:
    match part:
        case Table():
            return blocks.table(part, part.title if part.title != section.name else "")
        case sections.Plots():
            return blocks.switch(part)
        case sections.Found(findings):
            return blocks.found(findings)
        case sections.Lines(texts):
            return blocks.lines(texts)
        case sections.Text(text):
            return blocks.copied(text)
        case sections.Pairs():
            return blocks.definitions(part)
        case sections.Strips(pictures, caption):
            return blocks.pictures(pictures, caption)
        case sections.Failed(failures):
            return "".join(map(blocks.failed, failures))
