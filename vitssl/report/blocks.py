"""What the report page is put together from: sections, rows, lists, plots, pictures, as HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from vitssl.report import render
from vitssl.report.seen import COUNT, Picture
from vitssl.report.style import KINDS, with_ids
from vitssl.report.table import Table

PANELS_PX, LEAST = 560, 0.75  # a plot that is wider has several panels, and does not shrink to less than this share of its width
UNITS = re.compile(r"(?<=[\dx]) (?=[%±])|(?<=±) (?=\d)")
SHOWN_PX = 56  # an image of a strip is at least as wide


@dataclass(frozen=True)
class Drawn:
    """A plot as a page shows it: its caption, and the <svg> element."""

    caption: str
    svg: str


def anchor(name: str) -> str:
    """What a link to a section of this name leads to."""
    return re.sub(r"\W+", "-", name.lower()).strip("-")


def section(name: str, body: str, kind: str = "") -> str:
    """Nothing where there is no body; links lead to its name in small letters."""
    return f'<section class="{kind}" id="{anchor(name)}">\n<h2>{escape(name)}</h2>\n{body}</section>\n' if body else ""


def row(*blocks: str) -> str:
    """Blocks side by side, as far as they fit."""
    given = "".join(blocks)
    return f'<div class="row">\n{given}</div>\n' if given else ""


def titled(*tables: Table | None) -> list[str]:
    """Each table that has lines, under its title."""
    given = [table for table in tables if table is not None and table.rows and len(table.header) > 1]
    return [f'<div class="block">\n<h3>{escape(table.title)}</h3>\n{render.html(table)}</div>\n' for table in given]


def plain(table: Table | None) -> str:
    """A table whose section says what it is."""
    return render.html(table) if table is not None and table.rows else ""


def lines(texts: list[str]) -> str:
    return _list(map(render.coded, texts))


def found(findings: dict[str, list[str]]) -> str:
    """Sentences below what they are about; a figure stays on a line with its unit and its spread."""
    items = {subject: [UNITS.sub(render.NO_BREAK, render.coded(text)) for text in texts] for subject, texts in findings.items()}
    return _list(f'<b class="lead">{escape(subject)}</b> {"<br>".join(texts)}' for subject, texts in items.items())


def _list(items: Iterable[str]) -> str:
    body = "".join(f"<li>{item}</li>" for item in items)
    return f'<ul class="lines">{body}</ul>\n' if body else ""


def definitions(pairs: dict[str, str]) -> str:
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>\n" for name, text in pairs.items())
    return f'<div class="pairs"><dl>\n{items}</dl></div>\n' if pairs else ""


def copied(text: str) -> str:
    """A text that is selected as a whole."""
    return f"<pre>{escape(text)}</pre>\n" if text else ""


def plot(name: str, plots: dict[str, Drawn]) -> str:
    """A plot with its caption and its files; nothing where there is none of that name. One of several panels does not shrink below what
    can be read."""
    if name not in plots:
        return ""
    caption, svg = plots[name].caption, with_ids(plots[name].svg, f"{name}-")
    width_px = float(re.findall(r'width="([\d.]+)pt"', svg)[0]) / 0.75
    if several := width_px > PANELS_PX:
        svg = svg.replace("<svg ", f'<svg style="min-width: {LEAST * width_px:.0f}px" ', 1)
    files = " ".join(f'<a href="{name}.{kind}">{kind.upper()}</a>' for kind in KINDS)
    return (
        f'<figure class="plot{" panels" if several else ""}"><div class="scroll" role="img" aria-label="{escape(caption)}">{svg}</div>'
        f'<figcaption>{escape(caption)} <span class="files">{files}</span></figcaption></figure>\n'
    )


def switch(group: str, names: dict[str, str], plots: dict[str, Drawn]) -> str:
    """The first of several plots, and the others at a click, without a script.

    Args:
        group: a name of its own on the page.
        names: of the plots, by what each is called.
    """
    there = {words: name for words, name in names.items() if name in plots}
    inputs = "".join(
        f'<input type="radio" name="{group}" id="{group}-{i}"{"" if i else " checked"}><label for="{group}-{i}">{words}</label>\n'
        for i, words in enumerate(there)
    )
    body = "".join(plot(name, plots) for name in there.values())
    return f'<div class="switch">\n{inputs}{body}</div>\n' if len(there) > 1 else body


def pictures(strips: list[Picture], words: str) -> str:
    """Strips of images, small ones enlarged without smoothing, and what they all are."""
    return row(*map(_picture, strips)) + f'<p class="caption">{escape(words)}</p>\n' if strips else ""


def _picture(picture: Picture) -> str:
    width, height = picture.size_px()
    zoom = -(-SHOWN_PX * COUNT // width)
    names = f'<div class="names">{"".join(f"<span>{escape(name)}</span>" for name in picture.rows)}</div>' if picture.rows else ""
    image = f'<img src="{picture.uri()}" width="{zoom * width}" height="{zoom * height}" alt="{escape(picture.caption)}">'
    strip = f'<div class="strip">{names}{image}</div>'
    return f'<figure class="seen"><div class="scroll">{strip}</div><figcaption>{escape(picture.caption)}</figcaption></figure>\n'
