"""Tables as LaTeX that fits the columns of a two-column paper: booktabs, short captions, small type rather than a \\resizebox."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from vitssl.report import costs, main_table, selection, tables
from vitssl.report.glyphs import tex
from vitssl.report.grid import Grid
from vitssl.report.stats import Difference
from vitssl.report.table import DASH, MINUS, PUBLISHED, Entry, Table
from vitssl.words import counted

# widths in Computer Modern at 10 pt: of most letters and digits, of narrow and of wide ones; how much wider bold ones are
LETTER_PT, NARROW_PT, WIDE_PT, BOLD = 5.3, 3.4, 8.2, 1.15
NARROW, WIDE = frozenset("iljtfr.,:;'|!()[] "), frozenset("mwMWABCDEFGHKNOPQRSTUVXYZ&%@±+=" + MINUS + DASH)


@dataclass(frozen=True)
class Fit:
    """A size of type, the space beside each column, and the width that it is for: of one column of an article, or of both."""

    environment: str
    size: str
    scale: float
    space_pt: float
    width_pt: float


SEEDS = re.compile(r"^([\d.]+(?: ± [\d.]+)?) \(([^)]*)\)$")  # an accuracy, and of how many seeds it is
BESIDE = ("baseline", "training_macs")  # of several columns of the sweep, which have tables of their own
COLUMN_PT, PAGE_PT = 229.0, 469.0  # of LaTeX's own article, whose columns are the narrowest of the usual classes
FITS = (
    Fit("table", r"\small", 0.9, 4.0, COLUMN_PT),
    Fit("table", r"\footnotesize", 0.8, 2.5, COLUMN_PT),
    Fit("table*", r"\small", 0.9, 4.0, PAGE_PT),
    Fit("table*", r"\footnotesize", 0.8, 2.5, PAGE_PT),
)


def paper(grid: Grid, names: list[str] | None = None) -> str:
    """table.tex: the main table with the columns of these names, one for each cost that arms are equal in, and what held-out images
    chose where they did.

    Raises:
        ConfigError: a column that does not exist.
    """
    label = re.sub(r"[\W_]+", "-", grid.sweep.name)
    parts = [latex(*for_paper(part, names), f"{label}-{i}" if i else label) for i, part in enumerate(grid.parts())]
    if len(grid.columns) > 1 and names is None:
        parts += _beside_several_columns(grid, label)
    if (chosen := selection.table(grid)) is not None:
        parts.append(latex(chosen, "Settings chosen on held-out images, and the best on the test images themselves.", f"{label}-chosen"))
    return "\n".join(["% needs \\usepackage{booktabs}", *parts])


def _beside_several_columns(grid: Grid, label: str) -> list[str]:
    """What a table of several columns of the sweep has no room for: differences from the baseline, and what the arms cost."""
    gaps, cost = tables.differences(grid), tables.cost(grid)
    caption = compared(grid)
    spent = [c for c, name in enumerate(cost.header) if c < 2 or "of training" in name or name.startswith("against ")]
    if not costs.doubted(grid):
        spent += [
            c for c, name in enumerate(cost.header) if grid.sweep.hours_name.split("-")[0] in name or re.search("Wh$|CO2e tracked$", name)
        ]
    made = cost.pick(sorted(set(spent)))
    return [
        *([latex(gaps.without("interval"), caption, f"{label}-differences")] if gaps else []),
        *([latex(made, "Cost of training one model, all its stages.", f"{label}-cost")] if made.rows else []),
    ]


def for_paper(grid: Grid, names: list[str] | None = None) -> tuple[Table, str]:
    """The table without what a short caption can say: the number of seeds, where all arms have as many. And that caption.

    What was measured and does not compare the arms is there only if it is asked for by name.
    """
    doubted = main_table.MEASURED if costs.doubted(grid) else set()
    left_out = {"difference", *doubted, *(BESIDE if len(grid.columns) > 1 else ())}
    names = names or [name for name in main_table.usual(grid) if name not in left_out]
    made = main_table.table(grid, names)
    counts = {match[2] for row in made.rows for entry in row if (match := SEEDS.match(entry.text))}
    seeds = "mean ± std over the seeds (their number)"
    if len(counts) == 1 and (count := counts.pop()).isdecimal():
        seeds = f"mean ± std over {counted(int(count), 'seed')}" if count != "1" else "one seed"
        made.rows = [[replace(entry, text=SEEDS.sub(r"\1", entry.text)) for entry in row] for row in made.rows]
    printed = "; italics: printed in the paper" if any(entry.kind == PUBLISHED for row in made.rows for entry in row) else ""
    at = f" at {grid.part}" if grid.part else ""
    bold = f"; bold: {main_table.bold(grid, made.best)}" if made.best else ""
    gaps = [gap for row in grid.rows for column in grid.columns if (gap := grid.against_baseline(row, column))]
    against = ""
    if "baseline" in names and (found := [gap for gap in gaps if gap.low is not None]):
        against = f"; in brackets {_intervals(found)} of the difference from {grid.baselines()}"
    spent = "; costs of training one model" if main_table.SPENT & set(names) else ""
    spent += "; measured hours and energy do not compare the arms" if doubted & set(names) else ""
    return made, f"{main_table.title(grid)}{main_table.tested(grid)}{at}: {seeds}{against}{bold}{printed}{spent}."


def compared(grid: Grid) -> str:
    """The caption of a paper's table of differences from the baseline."""
    gaps = [gap for row in grid.rows for column in grid.columns if (gap := grid.against_baseline(row, column)) and gap.low is not None]
    given = f", with {_intervals(gaps)}" if gaps else ""
    return f"{main_table.title(grid)}{main_table.tested(grid)}: difference from {grid.baselines()}{given}."


def _intervals(gaps: list[Difference]) -> str:
    """In the words of a paper."""
    over = "seeds and test images" if any(gap.images for gap in gaps) else "seeds"
    return f"95 % intervals (paired over {over}, each comparison alone)"


def latex(table: Table, caption: str, label: str) -> str:
    """A table environment to be referred to as tab:``label``, or several where even both columns of a page are too narrow for all of it."""
    fit = next((fit for fit in FITS if _width_pt(table, fit) <= fit.width_pt), None)
    if fit is not None or len(table.header) <= 2:
        return _environment(table, rf"\caption{{{tex(caption)}}}\label{{tab:{label}}}", fit or FITS[-1])
    most = max(count for count in range(2, len(table.header)) if count == 2 or _width_pt(_first(table, count), FITS[-1]) <= PAGE_PT)
    rest = table.pick([0, *range(most, len(table.header))])
    continued = caption if "continued" in caption else f"{caption} (continued)"
    return latex(_first(table, most), caption, label) + "\n" + latex(rest, continued, f"{label}-continued")


def _first(table: Table, count: int) -> Table:
    return table.pick(list(range(count)))


def _width_pt(table: Table, fit: Fit) -> float:
    """Of all columns, with the space between them; a group's name may be wider than its columns."""
    widths = [_column_pt(table, c) for c in range(len(table.header))]
    start, total = 0, 0.0
    for label, span in table.groups or [("", len(widths))]:
        inner = sum(widths[start : start + span]) * fit.scale + 2 * fit.space_pt * (span - 1)
        total += max(inner, _text_pt(label) * fit.scale) + 2 * fit.space_pt
        start += span
    return total


def _column_pt(table: Table, column: int) -> float:
    cells = [_text_pt(row[column].text) * (BOLD if (r, column) in table.best else 1) for r, row in enumerate(table.rows)]
    return max([*map(_text_pt, _lines(table.header[column])), *cells])


def _text_pt(text: str) -> float:
    return sum(NARROW_PT if c in NARROW else WIDE_PT if c in WIDE else LETTER_PT for c in text)


def _environment(table: Table, caption: str, fit: Fit) -> str:
    """A booktabs tabular in its environment, below the commands of its caption."""
    sides = "".join("l" if i in table.left else "r" for i in range(len(table.header)))
    groups, rules, at = [], [], 1
    for label, span in table.groups:
        groups.append(rf"\multicolumn{{{span}}}{{c}}{{{tex(label)}}}")
        rules += [rf"\cmidrule(lr){{{at}-{at + span - 1}}}"] if label else []
        at += span
    over = [" & ".join(groups) + r" \\", "".join(rules)] if any(label for label, _ in table.groups) else []
    body = [" & ".join(_cell(e, (r, c) in table.best) for c, e in enumerate(row)) + r" \\" for r, row in enumerate(table.rows)]
    lines = [
        rf"\begin{{{fit.environment}}}", r"\centering", rf"{fit.size}\setlength{{\tabcolsep}}{{{fit.space_pt}pt}}",
        r"\setlength{\belowcaptionskip}{4pt}",
        caption, rf"\begin{{tabular}}{{@{{}}{sides}@{{}}}}", r"\toprule", *over, *_header(table), r"\midrule", *body,
        r"\bottomrule", r"\end{tabular}", rf"\end{{{fit.environment}}}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _header(table: Table) -> list[str]:
    """Names of columns, in as many lines as the longest takes, the last ones at the bottom."""
    names = [_lines(name) for name in table.header]
    depth = max(map(len, names))
    padded = [[""] * (depth - len(name)) + name for name in names]
    return [" & ".join(tex(name[line]) for name in padded) + r" \\" for line in range(depth)]


def _lines(name: str) -> list[str]:
    """A column's name in lines of about a dozen letters."""
    lines = [""]
    for word in name.split():
        if lines[-1] and len(lines[-1]) + len(word) >= 12:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _cell(entry: Entry, best: bool) -> str:
    text = tex(entry.text)
    if entry.kind == PUBLISHED:
        return rf"\textit{{{text}}}"
    return rf"\textbf{{{text}}}" if best else text
