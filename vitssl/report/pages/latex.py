"""Tables as LaTeX that fits the columns of a two-column paper: booktabs, short captions, and small type instead of a \\resizebox."""

from __future__ import annotations

import re
from dataclasses import replace

from vitssl.report.results import costs
from vitssl.report.results.best import weights_text
from vitssl.report.results.grid import Grid
from vitssl.report.table import DASH, MINUS, PUBLISHED, Entry, Table
from vitssl.report.tables import differences, main_table, selection, spending
from vitssl.words import counted

# widths of characters in Computer Modern at 10 pt: of most letters and digits, of narrow ones, of wide ones; the factor for bold ones
LETTER_PT, NARROW_PT, WIDE_PT, BOLD = 5.3, 3.4, 8.2, 1.15
NARROW, WIDE = frozenset("iljtfr.,:;'|!()[] "), frozenset("mwMWABCDEFGHKNOPQRSTUVXYZ&%@±+=" + MINUS + DASH)
SCALE, SPACE_PT = 0.8, 2.5  # the size of \footnotesize relative to 10 pt, and the space on each side of a column
WIDTHS_PT = {"table": 229.0, "table*": 469.0}  # of LaTeX's article class, which has the narrowest columns of the usual classes
SEEDS = re.compile(r"^([\d.]+(?: ± [\d.]+)?) \(([^)]*)\)$")  # an accuracy, and its number of seeds in brackets
SEPARATE_TABLE_COLUMNS = ("baseline", "training_macs")  # columns with tables of their own if the sweep has several columns
# the small Greek letters in Unicode's order; LaTeX has no \omicron, and no commands for the capitals that look like Latin ones
GREEK = (
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu", "xi", "", "pi", "rho",
    "varsigma", "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega",
)  # fmt: skip
CAPITALS = ("gamma", "delta", "theta", "lambda", "xi", "pi", "sigma", "upsilon", "phi", "psi", "omega")
MATH = {
    "±": r"\pm", MINUS: "-", "<": "<", ">": ">", "|": "|", "≥": r"\geq", "≤": r"\leq", "≈": r"\approx", "≠": r"\neq",
    "\N{MULTIPLICATION SIGN}": r"\times", "·": r"\cdot", "→": r"\rightarrow", "←": r"\leftarrow", "↑": r"\uparrow", "↓": r"\downarrow",
    "∞": r"\infty", "°": r"^\circ", "µ": r"\mu", "²": "^2", "³": "^3",
    **{chr(0x3B1 + i): f"\\{name}" for i, name in enumerate(GREEK) if name},
    **{chr(0x391 + i): f"\\{name.capitalize()}" for i, name in enumerate(GREEK) if name in CAPITALS},
}  # fmt: skip
TEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", DASH: "--", "—": "---", "…": r"\dots{}",
    "†": r"\dag{}",
    "“": "``", "”": "''", "\N{LEFT SINGLE QUOTATION MARK}": "`", "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    **{c: f"\\{c}" for c in "&%_#${}"},
    **{c: f"${command}$" for c, command in MATH.items()},
}  # fmt: skip
LAST_OF_LATIN = "\u017f"  # LaTeX knows the characters up to this one without further packages


def paper(grid: Grid, names: list[str] | None = None) -> str:
    """Return the content of table.tex.

    It has a main table for each cost that arms are made equal in, and the settings that held-out images chose, if any. If the sweep has
    several columns and ``names`` is None, further tables have the differences from the baseline and the costs.

    Args:
        names: the columns of the main table; None: the usual ones.

    Raises:
        ConfigError: a column that does not exist.
    """
    label = re.sub(r"[\W_]+", "-", grid.sweep.name)
    parts = [latex(*for_paper(part, names), f"{label}-{i}" if i else label) for i, part in enumerate(grid.parts)]
    if len(grid.columns) > 1 and names is None:
        parts += _beside_several_columns(grid, label)
    if (chosen := selection.table(grid)) is not None:
        parts.append(latex(chosen, "Settings chosen on held-out images, and the best on the test images themselves.", f"{label}-chosen"))
    return "\n".join(["% needs \\usepackage{booktabs}", *parts])


def _beside_several_columns(grid: Grid, label: str) -> list[str]:
    """Return the tables for which a main table of several columns has no room: differences from the baseline, and costs of the arms."""
    measured = not costs.any_doubt(grid)
    gaps, cost = differences.differences(grid), spending.cost(grid, measured)
    caption = f"{main_table.title(grid)}{main_table.tested(grid)}{_weights(grid)}: difference from {grid.baselines()}{_intervals(grid)}."
    of_costs = f"Cost of training one model, all its stages.{costs.caveats(grid) if measured else ''}"
    return [
        *([latex(gaps.without("interval"), caption, f"{label}-differences")] if gaps else []),
        *([latex(cost, of_costs, f"{label}-cost")] if cost.rows else []),
    ]


def for_paper(grid: Grid, names: list[str] | None = None) -> tuple[Table, str]:
    """Return the main table for a paper, and its short caption.

    If all entries have equally many seeds, the caption says how many, and the entries do not. Measured costs that cannot be compared
    between arms are left out unless ``names`` has them.
    """
    doubted = main_table.MEASURED_COSTS if costs.any_doubt(grid) else set()
    left_out = {"difference", *doubted, *(SEPARATE_TABLE_COLUMNS if len(grid.columns) > 1 else ())}
    names = names or [name for name in main_table.usual(grid) if name not in left_out]
    made = main_table.table(grid, names)
    counts = {match[2] for row in made.rows for entry in row if (match := SEEDS.match(entry.text))}
    seeds = "mean ± std over the seeds (their number)"
    if len(counts) == 1 and (count := counts.pop()).isdecimal():
        seeds = f"mean ± std over {counted(int(count), 'seed')}"
        made.rows = [[replace(entry, text=SEEDS.sub(r"\1", entry.text)) for entry in row] for row in made.rows]
    printed = any(entry.kind == PUBLISHED for row in made.rows for entry in row)
    notes = [
        f"{seeds}{_intervals(grid) if 'baseline' in names else ''}",
        f"bold: {main_table.BOLD}" if made.best else "",
        "italics: printed in the paper" if printed else "",
        "costs of training one model" if main_table.TRAINING_COSTS & set(names) else "",
        costs.fewer_seeds(grid) if main_table.MEASURED_COSTS & set(names) else "",
        "measured hours and energy are not comparable between arms" if doubted & set(names) else "",
    ]
    at_part = f" at {grid.part}" if grid.part else ""
    return made, f"{main_table.title(grid)}{main_table.tested(grid)}{at_part}{_weights(grid)}: {'; '.join(filter(None, notes))}."


def _weights(grid: Grid) -> str:
    """Return which epoch's weights are compared, unless it is the last one's."""
    return "" if (words := weights_text(grid)) == "after the last epoch" else f" {words}"


def _intervals(grid: Grid) -> str:
    """Return what a caption says of the confidence intervals; empty if there are none."""
    gaps = [gap for row in grid.rows for column in grid.columns if (gap := grid.against_baseline(row, column)) and gap.low is not None]
    over = "seeds and test images" if any(gap.num_images for gap in gaps) else "seeds"
    return f", in brackets 95 % intervals (paired over {over}, not corrected for multiple comparisons)" if gaps else ""


def latex(table: Table, caption: str, label: str) -> str:
    """Return a table environment with the label tab:``label``, or several if the table is too wide even for both columns of a page."""
    fit = next((environment for environment, width_pt in WIDTHS_PT.items() if _width_pt(table) <= width_pt), None)
    if fit is not None or len(table.header) <= 2:
        return _environment(table, rf"\caption{{{tex(caption)}}}\label{{tab:{label}}}", fit or "table*")
    fitting = [count for count in range(3, len(table.header)) if _width_pt(table.pick(range(count))) <= WIDTHS_PT["table*"]]
    most = max(fitting, default=2)
    rest = table.pick([0, *range(most, len(table.header))])
    return latex(table.pick(range(most)), caption, label) + "\n" + latex(rest, "Continued.", f"{label}-continued")


def _width_pt(table: Table) -> float:
    """Return the width of all columns with the space between them; the name of a group may be wider than its columns."""
    widths = []
    for c, name in enumerate(table.header):
        cells = [_text_pt(row[c].text) * (BOLD if row[c].best else 1) for row in table.rows]
        widths.append(max([*map(_text_pt, _lines(name)), *cells]))
    start, total = 0, 0.0
    for label, span in table.groups or [("", len(widths))]:
        inner = sum(widths[start : start + span]) * SCALE + 2 * SPACE_PT * (span - 1)
        total += max(inner, _text_pt(label) * SCALE) + 2 * SPACE_PT
        start += span
    return total


def _text_pt(text: str) -> float:
    return sum(NARROW_PT if c in NARROW else WIDE_PT if c in WIDE else LETTER_PT for c in text)


def _environment(table: Table, caption: str, environment: str) -> str:
    """Return a booktabs tabular in its environment, below the LaTeX commands ``caption``."""
    sides = "".join("l" if i in table.left else "r" for i in range(len(table.header)))
    groups, rules, column = [], [], 1
    for label, span in table.groups:
        groups.append(rf"\multicolumn{{{span}}}{{c}}{{{tex(label)}}}")
        rules += [rf"\cmidrule(lr){{{column}-{column + span - 1}}}"] if label else []
        column += span
    above = [" & ".join(groups) + r" \\", "".join(rules)] if any(label for label, _ in table.groups) else []
    body = [" & ".join(map(_cell, row)) + r" \\" for row in table.rows]
    lines = [
        rf"\begin{{{environment}}}", r"\centering", rf"\footnotesize\setlength{{\tabcolsep}}{{{SPACE_PT}pt}}",
        r"\setlength{\belowcaptionskip}{4pt}",
        caption, rf"\begin{{tabular}}{{@{{}}{sides}@{{}}}}", r"\toprule", *above, *_header(table), r"\midrule", *body,
        r"\bottomrule", r"\end{tabular}", rf"\end{{{environment}}}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _header(table: Table) -> list[str]:
    """Return the header with the names of the columns in as many lines as the longest one takes; shorter ones stand at the bottom."""
    names = [_lines(name) for name in table.header]
    depth = max(map(len, names))
    padded = [[""] * (depth - len(name)) + name for name in names]
    return [" & ".join(tex(name[line]) for name in padded) + r" \\" for line in range(depth)]


def _lines(name: str) -> list[str]:
    """Break the name of a column into lines of about a dozen letters."""
    lines = [""]
    for word in name.split():
        if lines[-1] and len(lines[-1]) + len(word) >= 12:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _cell(entry: Entry) -> str:
    text = tex(entry.text)
    if entry.kind == PUBLISHED:
        return rf"\textit{{{text}}}"
    return rf"\textbf{{{text}}}" if entry.best else text


def tex(text: str) -> str:
    """Escape a text for LaTeX: characters that it cannot set become their Unicode number, and CO2 gets its subscript."""
    return "".join(TEX.get(c, c if c <= LAST_OF_LATIN else f"(U+{ord(c):04X})") for c in text).replace("CO2", r"CO\textsubscript{2}")
