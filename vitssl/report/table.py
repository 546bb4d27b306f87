"""What a table of the report is: the content of every cell, and whether it was measured here or printed in the paper."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby

DASH, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
MEASURED, PUBLISHED, NOTE, BAD = "measured", "published", "note", "bad"


@dataclass(frozen=True)
class Entry:
    """One cell of a table."""

    text: str = DASH
    kind: str = MEASURED  # PUBLISHED: printed by the paper, set apart everywhere; BAD: failed; NOTE: neither
    parts: tuple[float, ...] = ()  # of what was computed here, unrounded: the figures that the text joins by a plus
    spread: float | None = None  # their standard deviation over runs, where it is shown
    link: str = ""  # relative to the report's folder

    def times(self, factor: float) -> Entry:
        """The same in another unit."""
        return figure(*(part * factor for part in self.parts), spread=None if self.spread is None else self.spread * factor)


@dataclass
class Table:
    title: str
    header: list[str]
    rows: list[list[Entry]]
    caption: str = ""
    groups: list[tuple[str, int]] = field(default_factory=list)  # (label, number of columns) above the header
    left: frozenset[int] = frozenset({0})  # columns of text
    best: set[tuple[int, int]] = field(default_factory=set)  # (row, column) of the best values

    def pick(self, columns: list[int]) -> Table:
        """The same table with these columns only."""
        labels = [label for label, span in self.groups for _ in range(span)]
        return Table(
            self.title, [self.header[c] for c in columns], [[row[c] for c in columns] for row in self.rows], self.caption,
            groups=[(label, len(list(run))) for label, run in groupby(labels[c] for c in columns)] if labels else [],
            left=frozenset(i for i, c in enumerate(columns) if c in self.left),
            best={(row, columns.index(c)) for row, c in self.best if c in columns},
        )  # fmt: skip

    def without(self, *names: str) -> Table:
        """Without the columns of these names."""
        return self.pick([c for c, name in enumerate(self.header) if name not in names])

    def trimmed(self) -> Table:
        """Without the empty columns."""
        full = [c for c in range(len(self.header)) if c == 0 or any(row[c].text != DASH for row in self.rows)]
        return self.pick(full)


def figure(*values: float | None, spread: float | None = None) -> Entry:
    """A computed figure, or one for each stage of a chain, as text and unrounded; a dash where there is none."""
    parts = tuple(value for value in values if value is not None)
    text = " + ".join(map(number, parts)) + ("" if spread is None else f" ± {_to_digits_of(number(parts[0]), spread)}")
    return Entry(text, parts=parts, spread=spread) if parts else Entry()


def _to_digits_of(shown: str, spread: float) -> str:
    """A spread with as many decimals as the figure that it belongs to; with more where it would be none."""
    digits = f"{spread:,.{len(shown.partition('.')[2])}f}"
    return digits if float(digits.replace(",", "")) or not spread else f"{float(f'{spread:.1g}'):f}".rstrip("0")


def number(value: float | None) -> str:
    """Three significant digits; a dash for None."""
    if value is None:
        return DASH
    if abs(value) >= 999.5:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:#.3g}".rstrip(".") if value else "0"


def signed(value: float) -> str:
    return f"{round(value, 2) + 0.0:+.2f}".replace("-", MINUS)  # no zero has a minus
