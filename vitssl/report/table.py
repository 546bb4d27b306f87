"""The data structure of the report's tables: the content of every cell, and whether it was measured here or printed in the paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

DASH, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
MEASURED, PUBLISHED, NOTE, BAD = "measured", "published", "note", "bad"


@dataclass(frozen=True)
class Entry:
    """One cell of a table."""

    text: str = DASH
    kind: str = MEASURED  # PUBLISHED: printed by the paper, and set apart everywhere; BAD: a failure; NOTE: any other text
    parts: tuple[float, ...] = ()  # the unrounded figures that were computed here; the text joins them by +
    spread: float | None = None  # the standard deviation of the figure over runs, if it is shown
    link: str = ""  # relative to the report's folder
    best: bool = False  # a best value, or a difference whose interval excludes 0

    def times(self, factor: float) -> Entry:
        """Return the entry with its figures and their spread multiplied by ``factor``, which converts them to another unit."""
        return figure(*(part * factor for part in self.parts), spread=None if self.spread is None else self.spread * factor)


@dataclass
class Table:
    """The title, header, entries and caption of a table, without any formatting."""

    title: str
    header: list[str]
    rows: list[list[Entry]]
    caption: str = ""
    groups: list[tuple[str, int]] = field(default_factory=list)  # (label, number of columns) above the header
    left: frozenset[int] = frozenset({0})  # the columns of text, by index

    @property
    def best(self) -> set[tuple[int, int]]:
        """The places (row, column) of the best values, by index."""
        return {(r, c) for r, row in enumerate(self.rows) for c, entry in enumerate(row) if entry.best}

    def pick(self, columns: Sequence[int]) -> Table:
        """Return the table with only the columns at these indices."""
        labels = [label for label, span in self.groups for _ in range(span)]
        return Table(
            self.title, [self.header[c] for c in columns], [[row[c] for c in columns] for row in self.rows], self.caption,
            groups=[(label, len(list(same))) for label, same in groupby(labels[c] for c in columns)] if labels else [],
            left=frozenset(i for i, c in enumerate(columns) if c in self.left),
        )  # fmt: skip

    def without(self, *names: str) -> Table:
        """Return the table without the columns that have these names."""
        return self.pick([c for c, name in enumerate(self.header) if name not in names])

    def trimmed(self) -> Table:
        """Return the table without its empty columns; the first column always stays."""
        full = [c for c in range(len(self.header)) if c == 0 or any(row[c].text != DASH for row in self.rows)]
        return self.pick(full)


def figure(*values: float | None, spread: float | None = None) -> Entry:
    """Return an entry for a computed figure, or for one per stage of a chain, with the unrounded figures; a dash if there are none."""
    parts = tuple(value for value in values if value is not None)
    text = " + ".join(map(number, parts)) + ("" if spread is None else f" ± {_to_digits_of(number(parts[0]), spread)}")
    return Entry(text, parts=parts, spread=spread) if parts else Entry()


def _to_digits_of(shown: str, spread: float) -> str:
    """Format ``spread`` with as many decimals as ``shown``, or with one significant digit if it would read as zero."""
    digits = f"{spread:,.{len(shown.partition('.')[2])}f}"
    return digits if float(digits.replace(",", "")) or not spread else f"{float(f'{spread:.1g}'):f}".rstrip("0")


def number(value: float | None) -> str:
    """Format ``value`` with three significant digits; a dash for None."""
    if value is None:
        return DASH
    if abs(value) >= 999.5:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:#.3g}".rstrip(".") if value else "0"


def signed(value: float) -> str:
    """Format ``value`` with its sign and two decimals."""
    return f"{round(value, 2) + 0.0:+.2f}".replace("-", MINUS)  # adding 0.0 removes the sign of a negative zero
