"""The building blocks of the report page as HTML: sections, rows, lists, plots and pictures."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from vitssl.report.figures.style import KINDS, with_ids
from vitssl.report.pages import render
from vitssl.report.pages.sections import Drawn, Pairs, Plots
from vitssl.report.results.failures import Failure
from vitssl.report.results.training_pictures import COUNT, Picture
from vitssl.report.table import Table

PANELS_PX, LEAST = 560, 0.75  # wider plots have several panels, and do not shrink below this share of their width
UNITS = re.compile(r"(?<=[\dx]) (?=[%±])|(?<=±) (?=\d)")
SHOWN_PX = 56  # the least width of an image in a strip


def anchor(name: str) -> str:
    """Return the id of the section called ``name``, for links to it."""
    return re.sub(r"\W+", "-", name.lower()).strip("-")


def section(name: str, body: str, kind: str = "") -> str:
    """Return a section with a heading, whose id is the ``anchor`` of its name."""
    return f'<section class="{kind}" id="{anchor(name)}">\n<h2>{escape(name)}</h2>\n{body}</section>\n'


def row(*blocks: str) -> str:
    """Return blocks that stand side by side, as far as they fit."""
    return f'<div class="row">\n{"".join(blocks)}</div>\n'


def table(made: Table, title: str = "") -> str:
    """Return a table, below ``title`` unless that is empty."""
    figure = render.html(made)
    return f'<div class="block">\n<h3>{escape(title)}</h3>\n{figure}</div>\n' if title else figure


def lines(texts: list[str]) -> str:
    """Return a list of texts, in which what stands between backticks becomes code."""
    return _list(map(render.coded, texts))


def found(findings: dict[str, list[str]]) -> str:
    """Return a list of sentences below their subjects; a number stays on one line with its unit and its spread."""
    items = {subject: [UNITS.sub(render.NO_BREAK, render.coded(text)) for text in texts] for subject, texts in findings.items()}
    return _list(f'<b class="lead">{escape(subject)}</b> {"<br>".join(texts)}' for subject, texts in items.items())


def _list(items: Iterable[str]) -> str:
    return f'<ul class="lines">{"".join(f"<li>{item}</li>" for item in items)}</ul>\n'


def definitions(pairs: Pairs) -> str:
    """Return pairs as a definition list, folded away behind ``pairs.summary`` unless that is empty."""
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>\n" for name, text in pairs.texts.items())
    listed = f'<div class="pairs"><dl>\n{items}</dl></div>\n'
    return f"<details><summary>{escape(pairs.summary)}</summary>\n{listed}</details>\n" if pairs.summary else listed


def copied(text: str) -> str:
    """Return a text that is selected as a whole."""
    return f"<pre>{escape(text)}</pre>\n"


def plot(name: str, drawn: Drawn) -> str:
    """Return a plot with its caption and links to its files; a plot of several panels does not shrink below what can be read."""
    caption, svg = drawn.caption, with_ids(drawn.svg, f"{name}-")
    width_px = float(re.findall(r'width="([\d.]+)pt"', svg)[0]) / 0.75
    if several := width_px > PANELS_PX:
        svg = svg.replace("<svg ", f'<svg style="min-width: {LEAST * width_px:.0f}px" ', 1)
    files = " ".join(f'<a href="{name}.{kind}">{kind.upper()}</a>' for kind in KINDS)
    return (
        f'<figure class="plot{" panels" if several else ""}"><div class="scroll" role="img" aria-label="{escape(caption)}">{svg}</div>'
        f'<figcaption>{escape(caption)} <span class="files">{files}</span></figcaption></figure>\n'
    )


def switch(plots: Plots) -> str:
    """Return several plots of which the first is shown, and the others at a click; it needs no script."""
    body = "".join(plot(name, drawn) for name, drawn in plots.by_name.values())
    if len(plots.by_name) == 1:
        return body
    group = f"turns-{next(name for name, _ in plots.by_name.values())}"  # unique, since each plot is on the page once
    inputs = "".join(
        f'<input type="radio" name="{group}" id="{group}-{i}"{"" if i else " checked"}><label for="{group}-{i}">{words}</label>\n'
        for i, words in enumerate(plots.by_name)
    )
    return f'<div class="switch">\n{inputs}{body}</div>\n'


def failed(failure: Failure) -> str:
    """Return the folder of a failed run, its message, and its traceback behind a click."""
    name = f'<a href="{escape(failure.link)}">{escape(failure.run)}</a>'
    behind = f'<details><summary>trace</summary><pre class="trace">{escape(failure.trace)}</pre></details>' if failure.trace else ""
    return f'<div class="failed"><p>{name}: <span class="bad">{escape(failure.message)}</span></p>{behind}</div>\n'


def pictures(strips: list[Picture], words: str) -> str:
    """Return strips of images, small ones enlarged without smoothing, above the caption ``words`` for all."""
    return row(*map(_picture, strips)) + f'<p class="caption">{escape(words)}</p>\n'


def _picture(picture: Picture) -> str:
    width, height = picture.size_px()
    zoom = -(-SHOWN_PX * COUNT // width)
    names = f'<div class="names">{"".join(f"<span>{escape(name)}</span>" for name in picture.rows)}</div>' if picture.rows else ""
    image = f'<img src="{picture.uri()}" width="{zoom * width}" height="{zoom * height}" alt="{escape(picture.caption)}">'
    strip = f'<div class="strip">{names}{image}</div>'
    return f'<figure class="seen"><div class="scroll">{strip}</div><figcaption>{escape(picture.caption)}</figcaption></figure>\n'
