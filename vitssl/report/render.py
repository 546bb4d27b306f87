"""A table as HTML, Markdown, LaTeX, for the terminal; and the sweep's numbers, unrounded, as CSV."""

from __future__ import annotations

import csv
from html import escape
from io import StringIO
from statistics import mean

import rich.table
from rich.console import Console
from rich.text import Text

from vitssl.report import selection
from vitssl.report.grid import Grid, Row, cost_per_model, finished
from vitssl.report.stats import std
from vitssl.report.tables import BAD, DASH, MINUS, NOTE, PUBLISHED, Entry, Table, hours_name

TEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", MINUS: r"$-$", DASH: "--",
    "†": r"\dag{}", "↓": r"$\downarrow$", "“": "``", "”": "''", **{c: f"\\{c}" for c in "&%_#${}"},
}  # fmt: skip
STYLES = {PUBLISHED: "italic blue", NOTE: "dim", BAD: "bold red"}


def html(table: Table) -> str:
    """A <figure> that scrolls inside the page when that is narrow."""
    groups = "".join(f'<th colspan="{span}" class="group">{escape(label)}</th>' for label, span in table.groups)
    head = "".join(f'<th class="{_side(table, i)}" scope="col">{escape(name)}</th>' for i, name in enumerate(table.header))
    body = "".join(f"<tr>{''.join(_html_cell(table, r, c, e) for c, e in enumerate(row))}</tr>\n" for r, row in enumerate(table.rows))
    over = f'<tr class="groups">{groups}</tr>' if groups else ""
    return (
        f'<figure><div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}"><table>\n'
        f"<thead>{over}<tr>{head}</tr></thead>\n<tbody>{body}</tbody>\n</table></div>\n<figcaption>{escape(table.caption)}</figcaption></figure>\n"
    )


def _side(table: Table, column: int) -> str:
    return "left" if column in table.left else "num"


def _html_cell(table: Table, row: int, column: int, entry: Entry) -> str:
    classes = f"{_side(table, column)} {entry.kind}" + (" best" if (row, column) in table.best else "")
    tag = 'th scope="row"' if column == 0 else "td"
    return f'<{tag} class="{classes}">{escape(entry.text)}</{tag.split()[0]}>'


def markdown(table: Table) -> str:
    names = _flat_header(table)
    rules = [":--" if i in table.left else "--:" for i in range(len(names))]
    lines = [names, rules, *([_marked(e, (r, c) in table.best) for c, e in enumerate(row)] for r, row in enumerate(table.rows))]
    text = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return f"{text}\n\n{table.caption}\n"


def _flat_header(table: Table) -> list[str]:
    """Column names with their group's, for formats with one line of header."""
    labels = [label for label, span in table.groups for _ in range(span)] or [""] * len(table.header)
    repeated = {name for name in table.header if table.header.count(name) > 1}
    return [f"{label}: {name}" if name in repeated and label else name for label, name in zip(labels, table.header, strict=True)]


def _marked(entry: Entry, best: bool) -> str:
    mark = {PUBLISHED: "*", BAD: "**"}.get(entry.kind, "**" if best else "") if entry.text != DASH else ""
    return f"{mark}{entry.text}{mark}"


def latex(table: Table) -> str:
    """A booktabs tabular in a table environment."""
    sides = "".join("l" if i in table.left else "r" for i in range(len(table.header)))
    groups, rules, at = [], [], 1
    for label, span in table.groups:
        groups.append(rf"\multicolumn{{{span}}}{{c}}{{{_tex(label)}}}")
        rules += [rf"\cmidrule(lr){{{at}-{at + span - 1}}}"] if label else []
        at += span
    over = [" & ".join(groups) + r" \\", "".join(rules)] if groups else []
    body = [" & ".join(_tex_cell(e, (r, c) in table.best) for c, e in enumerate(row)) + r" \\" for r, row in enumerate(table.rows)]
    lines = [
        r"% needs \usepackage{booktabs}", r"\begin{table}", r"\centering", rf"\caption{{{_tex(table.caption)}}}",
        rf"\begin{{tabular}}{{{sides}}}", r"\toprule", *over, " & ".join(map(_tex, table.header)) + r" \\", r"\midrule", *body,
        r"\bottomrule", r"\end{tabular}", r"\end{table}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _tex_cell(entry: Entry, best: bool) -> str:
    text = _tex(entry.text)
    if entry.kind == PUBLISHED:
        return rf"\textit{{{text}}}"
    return rf"\textbf{{{text}}}" if best else text


def _tex(text: str) -> str:
    return "".join(TEX.get(c, c) for c in text)


def terminal(tables: list[Table], lines: list[str], width: int | None = None) -> str:
    """Tables and lines for a terminal of ``width`` columns (None: the current one)."""
    out = StringIO()
    shown = [_rich(table) for table in tables]
    screen, unbounded = Console(width=width), Console(width=10_000)
    # a narrow terminal wraps whole lines rather than the inside of cells
    needed = max((unbounded.measure(table).minimum for table in shown), default=0)
    console = Console(file=out, width=max(screen.width, needed), highlight=False, force_terminal=screen.is_terminal)
    for table in shown:
        console.print(table)
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
    return out.getvalue()


def _rich(table: Table) -> rich.table.Table:
    shown = rich.table.Table(title=table.title, title_justify="left", box=rich.box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for i, name in enumerate(_flat_header(table)):
        # no wrapping inside entries and words
        pieces = [row[i].text for row in table.rows if i not in table.left or i == 0] + name.split()
        shown.add_column(name, justify="left" if i in table.left else "right", min_width=max(map(len, pieces)))
    for r, row in enumerate(table.rows):
        shown.add_row(*(Text(e.text, style="bold" if (r, c) in table.best else STYLES.get(e.kind, "")) for c, e in enumerate(row)))
    return shown


def numbers(grid: Grid) -> str:
    """One line per row and column of the table, unrounded, for a spreadsheet."""
    lines = [_line(grid, row, column) for row in grid.rows for column in grid.columns]
    out = StringIO()
    writer = csv.DictWriter(out, fieldnames=list(dict.fromkeys(key for line in lines for key in line)) or ["arm"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def _line(grid: Grid, row: Row, column: object) -> dict[str, object]:
    cells = row.columns.get(column, [])
    done = finished(cells)
    scores, paper = list(grid.scores(row, column).values()), grid.published(row, column)
    difference = grid.against_baseline(row, column)
    axis = {grid.sweep.facts["columns"]: column} if grid.sweep.facts.get("columns") else {}
    cost, metric = cost_per_model(cells) or {}, "_".join(part for part in grid.metric if part != "test")
    return {
        "arm": row.arm.name, "paper_row": row.arm.row, "quoted": row.arm.quoted, **row.values, **axis,
        "status": " ".join(dict.fromkeys(c.status for c in row.candidates(column))) or row.arm.not_runnable or "",
        "seeds": len(scores), f"{metric}_mean": mean(scores) if scores else None, f"{metric}_std": std(scores),
        f"paper_{metric}": paper, "minus_paper": mean(scores) - paper if scores and paper is not None else None,
        "minus_baseline": difference and difference.mean, "ci95_low": difference and difference.low,
        "ci95_high": difference and difference.high,
        "interval": difference and difference.how,
        **selection.numbers(grid, row, column),
        "params_train": _total(done, "params_train"), "params_inference": _inference(done, "params_inference"),
        "activations_inference": _inference(done, "activations_inference"),
        "macs_train_forward": _total(done, "macs_train_forward"), "macs_inference": _inference(done, "macs_inference"),
        hours_name(grid.sweep).replace("-", "_").lower(): cost.get("device_hours"), "gpu_kwh": cost.get("gpu_kwh"),
        "cpu_kwh": cost.get("cpu_kwh"), "ram_kwh": cost.get("ram_kwh"), "kwh": cost.get("energy_kwh"),
        "kg_co2e_tracked": cost.get("co2e_kg"), "kg_co2e_estimate": cost.get("estimate_kg") or None, "money": cost.get("money") or None,
        "inference_images_per_s": mean(c.last.cost["inference_images_per_s"] for c in done) if done else None,
    }  # fmt: skip


def _total(done: list, key: str) -> str | None:
    """A chain's stages joined by a plus, as the table shows them."""
    return "+".join(str(run.cost[key]) for _, run in done[0].stages) if done else None


def _inference(done: list, key: str) -> int | None:
    return done[0].last.cost[key] if done else None
