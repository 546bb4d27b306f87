"""report.md: the report for viewers that show no HTML."""

from __future__ import annotations

from vitssl.report.findings.sentences import progress, sentences
from vitssl.report.pages import render, sections
from vitssl.report.pages.blocks import anchor
from vitssl.report.table import Table
from vitssl.report.tables import details


def markdown(report: sections.Report) -> str:
    """Return the report in the page's order; plots are links to their files, and strips of pictures are left to the page."""
    grid, shown = report.grid, sections.contents(report)
    warnings = [f"**Warning:** {text}: see [{name}](#{anchor(name)})." for text, name in details.warnings(grid).items()]
    all_sections = [*shown.found, *shown.main, *shown.front, *shown.more]
    head = [f"# {sections.title(grid)}", f"{sections.compared_text(grid)} {progress(grid.sweep)}", *warnings]
    return "\n\n".join([*head, *filter(None, map(_section, all_sections))]) + "\n"


def _section(section: sections.Section) -> str:
    parts = [text for part in section.parts if (text := _part(part, section.name))]
    return "\n\n".join([f"## {section.name}", *parts]) if parts else ""


def _part(part: sections.Part, under: str) -> str:
    match part:
        case Table():
            return _titled(part.title if part.title != under else "", render.markdown(part))
        case sections.Plots(by_name):
            return "\n\n".join(f"![{drawn.caption}]({name}.svg)" for name, drawn in by_name.values())
        case sections.Found(findings):
            return _list(sentences(findings))
        case sections.Lines(texts):
            return _list(texts)
        case sections.Text(text):
            return text
        case sections.Pairs(texts, summary):
            return _titled(summary, _list([f"{name}: {text}" for name, text in texts.items()]))
        case sections.Failed(failures):
            return _list(list(map(str, failures)))
        case sections.Strips():
            return ""


def _titled(title: str, text: str) -> str:
    return f"### {title}\n\n{text}" if title else text


def _list(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
