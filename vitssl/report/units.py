"""Units that fit a quantity: minutes, Wh or g if hours, kWh or kg would begin with zeros."""

from __future__ import annotations

import re
from dataclasses import replace

from vitssl.report.table import Entry, Table, figure, number

# for each unit in which quantities are computed: the units to show them in, from the smallest, and the factor to each
SCALES = {
    "hours": {"seconds": 3600.0, "minutes": 60.0, "hours": 1.0},
    "kWh": {"mWh": 1e6, "Wh": 1e3, "kWh": 1.0, "MWh": 1e-3},
    "kg": {"mg": 1e6, "g": 1e3, "kg": 1.0, "t": 1e-3},
    "GMACs": {"MMACs": 1e3, "GMACs": 1.0, "TMACs": 1e-3},
    "PMACs": {"GMACs": 1e6, "TMACs": 1e3, "PMACs": 1.0, "EMACs": 1e-3, "ZMACs": 1e-6},
    "M": {"k": 1e3, "M": 1.0, "G": 1e-3},
}


def scale(base: str, largest: float) -> tuple[str, float]:
    """Return the largest unit in which ``largest`` is at least 1, or else the smallest unit, and the factor from ``base`` to it."""
    units = list(SCALES[base].items())
    return next(((unit, factor) for unit, factor in reversed(units) if largest * factor >= 1), units[0])


def quantity(value: float, base: str, name: str | None = None) -> str:
    """Format ``value`` in a fitting unit, such as 135 Wh.

    A ``name`` that contains the unit, such as GPU-hours, is shown instead of it: 3.50 GPU-minutes.
    """
    unit, factor = scale(base, value)
    return f"{number(value * factor)} {(name or base).replace(base, unit)}"


def fit(table: Table) -> Table:
    """Return the table with its quantities in units that fit.

    All columns whose headers contain the same unit are shown in one unit, which fits their largest figure.
    """
    header, rows = list(table.header), [list(row) for row in table.rows]
    for base in SCALES:
        columns = [c for c, name in enumerate(table.header) if re.search(rf"\b{base}\b", name) and _computed(rows, c)]
        deciding = columns[:1] if base == "hours" else columns  # the duration decides for CPU-hours, too
        figures = [part for row in rows for c in deciding for part in row[c].parts]
        if figures:
            unit, factor = scale(base, max(figures))
            for c in columns:
                header[c] = re.sub(rf"\b{base}\b", unit, header[c])
                for row in rows:
                    row[c] = row[c].times(factor) if row[c].parts else row[c]
    return replace(table, header=header, rows=rows)


def _computed(rows: list[list[Entry]], column: int) -> bool:
    """Whether every entry of the column is a quantity that was computed here, or a dash.

    The numbers of a paper stay in its unit. A difference is no such quantity, even if the arm's name in the header looks like a unit.
    """
    return all(row[column].text == figure(*row[column].parts, spread=row[column].spread).text for row in rows)
