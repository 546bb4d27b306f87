"""Tables as HTML, as Markdown and as text for a terminal."""

from __future__ import annotations

import re
from dataclasses import replace
from html import escape
from io import StringIO

import rich.table
from rich.text import Text

from vitssl.report.table import BAD, DASH, MINUS, NOTE, PUBLISHED, Entry, Table
from vitssl.terminal import console
from vitssl.words import counted

NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?")
INTERVAL = re.compile(r"^(\S+ )(\[.*\])$")
UNIT, NO_BREAK = re.compile(r"(?<=^[kMGT]) "), "\N{NO-BREAK SPACE}"  # the space between a prefix and the word that it counts
FIELD = re.compile(r"(?<=[a-z0-9])[._](?=[a-z])")  # the separators in a field's name, after which a line may break
GAP = 2  # spaces between columns in a terminal
MOST_UNBROKEN = 32  # a terminal shows names of arms in one line if none has more letters
STYLES = {PUBLISHED: "italic blue", NOTE: "dim", BAD: "bold red"}


def coded(text: str) -> str:
    """Return a text as HTML; what stands between backticks becomes code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def html(table: Table) -> str:
    """Return a table as a <figure> that scrolls inside a narrow page; a script may sort its rows by the data-value of the cells."""
    groups = "".join(f'<th colspan="{span}" class="group">{escape(label)}</th>' for label, span in table.groups)
    names = [FIELD.sub(r"\g<0><wbr>", UNIT.sub(NO_BREAK, escape(name))) for name in table.header]
    head = "".join(f'<th class="{_side(table, i)}" scope="col">{name}</th>' for i, name in enumerate(names))
    body = "".join(f"<tr>{''.join(_html_cell(table, c, e) for c, e in enumerate(row))}</tr>\n" for row in table.rows)
    group_row = f'<tr class="groups">{groups}</tr>' if groups else ""
    return (
        f'<figure><div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}"><table>\n'
        f"<thead>{group_row}<tr>{head}</tr></thead>\n<tbody>{body}</tbody>\n</table></div>\n<figcaption>{coded(table.caption)}</figcaption></figure>\n"
    )


def _side(table: Table, column: int) -> str:
    return "left" if column in table.left else "num"


def _html_cell(table: Table, column: int, entry: Entry) -> str:
    classes = f"{_side(table, column)} {entry.kind}" + (" best" if entry.best else "")
    tag = 'th scope="row"' if column == 0 else "td"
    value = None if column in table.left else sorted_by(entry)
    data = "" if value is None else f' data-value="{value:.12g}"'
    text = INTERVAL.sub(r'\1<span class="interval">\2</span>', escape(entry.text))  # on a phone, an interval has a line of its own
    text = FIELD.sub(r"\g<0><wbr>", text) if column == 0 else text
    text = f'<a href="{escape(entry.link)}">{text}</a>' if entry.link else text
    return f'<{tag} class="{classes}"{data}>{text}</{tag.split()[0]}>'


def sorted_by(entry: Entry) -> float | None:
    """Return the number that a cell is sorted by: the computed value, or else the number that its text begins with; None without one."""
    if entry.parts:
        return sum(entry.parts)
    match = NUMBER.match(entry.text.replace(MINUS, "-").replace(",", ""))
    return float(match[0]) if match else None


def markdown(table: Table) -> str:
    """Return a table as Markdown, with its caption below."""
    names = _flat_header(table)
    rules = [":--" if i in table.left else "--:" for i in range(len(names))]
    lines = [names, rules, *(list(map(_marked, row)) for row in table.rows)]
    text = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return f"{text}\n\n{table.caption}\n"


def _flat_header(table: Table) -> list[str]:
    """Return the column names for formats with a single header line: a name that occurs in several groups comes after its group's."""
    labels = [label for label, span in table.groups for _ in range(span)] or [""] * len(table.header)
    repeated = {name for name in table.header if table.header.count(name) > 1}
    return [f"{label}: {name}" if name in repeated and label else name for label, name in zip(labels, table.header, strict=True)]


def _marked(entry: Entry) -> str:
    """Return the text of a cell with Markdown emphasis: italic if published, bold if failed or the best."""
    mark = {PUBLISHED: "*", BAD: "**"}.get(entry.kind, "**" if entry.best else "") if entry.text != DASH else ""
    return f"{mark}{entry.text}{mark}"


def terminal(tables: list[Table], lines: list[str], width: int | None = None) -> str:
    """Return tables and lines for a terminal of ``width`` columns (None: the current one); wider tables lose their last columns."""
    out = StringIO()
    screen = console(width=width)
    page = console(file=out, width=screen.width, force_terminal=screen.is_terminal)
    for table in tables:
        page.print(_rich(narrowed(table, screen.width), screen.width))
    for line in lines:
        page.print(line)
    return out.getvalue()


def narrowed(table: Table, width: int) -> Table:
    """Return the first columns of a table, as many as fit without a break inside a number; its title says how many are left out."""
    # before columns are left out, since a name may be repeated only in one of those
    table = replace(table, header=_flat_header(table), groups=[])
    widths = [least for least, _ in _widths(table)]
    count = next((n for n in range(len(widths), 2, -1) if sum(widths[:n]) + GAP * n <= width), min(2, len(widths)))
    missing = len(widths) - count
    left_out = f" ({counted(missing, 'more column')} in report.html)" if missing else ""
    return replace(table.pick(range(count)), title=table.title + left_out)


def _widths(table: Table) -> list[tuple[int, int]]:
    """Return two widths for every column: the least one without a break inside numbers and words, and the one without any break."""
    widths = []
    for i, name in enumerate(table.header):
        texts = [row[i].text for row in table.rows]
        broken = i in table.left and (i > 0 or max(map(len, texts), default=0) > MOST_UNBROKEN)
        pieces = [piece for text in texts for piece in (text.split() if broken else [text])]
        widths.append((max(map(len, [*pieces, *name.split()]), default=1), max(map(len, [*texts, name]))))
    return widths


def _rich(table: Table, width: int) -> rich.table.Table:
    """Make the columns as narrow as possible; spare width goes to the columns that break lines, from the first one."""
    shown = rich.table.Table(title=table.title, title_justify="left", box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    widths = _widths(table)
    spare = max(0, width - sum(least for least, _ in widths) - GAP * len(widths))
    for i, (name, (least, whole)) in enumerate(zip(table.header, widths, strict=True)):
        extra = min(spare, whole - least)
        spare -= extra
        shown.add_column(name, justify="left" if i in table.left else "right", width=least + extra)
    for row in table.rows:
        shown.add_row(*(Text(e.text, style="bold" if e.best else STYLES.get(e.kind, "")) for e in row))
    return shown
