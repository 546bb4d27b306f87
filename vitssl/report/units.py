"""Quantities in units that fit: minutes, Wh or g where hours, kWh or kg would begin with zeros."""

from __future__ import annotations

import re
from dataclasses import replace

from vitssl.report.table import Entry, Table, figure, number

# by the unit in which something is computed: its other units from the smallest, and what a figure is multiplied by
SCALES = {
    "hours": {"seconds": 3600.0, "minutes": 60.0, "hours": 1.0},
    "kWh": {"mWh": 1e6, "Wh": 1e3, "kWh": 1.0, "MWh": 1e-3},
    "kg": {"mg": 1e6, "g": 1e3, "kg": 1.0, "t": 1e-3},
    "GMACs": {"MMACs": 1e3, "GMACs": 1.0, "TMACs": 1e-3},
    "PMACs": {"GMACs": 1e6, "TMACs": 1e3, "PMACs": 1.0, "EMACs": 1e-3, "ZMACs": 1e-6},
    "M": {"k": 1e3, "M": 1.0, "G": 1e-3},
}


def scale(base: str, largest: float) -> tuple[str, float]:
    """The largest unit in which a figure is at least 1, or else the smallest, and the factor to it."""
    units = list(SCALES[base].items())
    return next(((unit, factor) for unit, factor in reversed(units) if largest * factor >= 1), units[0])


def quantity(value: float, base: str, name: str | None = None) -> str:
    """A figure and its unit: 135 Wh. With a ``name`` that has the unit in it, such as GPU-hours: 3.50 GPU-minutes."""
    unit, factor = scale(base, value)
    return f"{number(value * factor)} {(name or base).replace(base, unit)}"


def fit(table: Table) -> Table:
    """The table in which all columns that are headed by one unit are in the unit that fits their largest figure."""
    header, rows = list(table.header), [list(row) for row in table.rows]
    for base in SCALES:
        columns = [c for c, name in enumerate(table.header) if re.search(rf"\b{base}\b", name) and _computed(rows, c)]
        telling = columns[:1] if base == "hours" else columns  # hours first, and then those that a CPU's cores worked, in the same unit
        figures = [part for row in rows for c in telling for part in row[c].parts]
        if figures:
            unit, factor = scale(base, max(figures))
            for c in columns:
                header[c] = re.sub(rf"\b{base}\b", unit, header[c])
                for row in rows:
                    row[c] = row[c].times(factor) if row[c].parts else row[c]
    return replace(table, header=header, rows=rows)


def _computed(rows: list[list[Entry]], column: int) -> bool:
    """Is every entry of the column a quantity that was computed here? What a paper prints stays in its unit, and a difference has none of
    these, whatever the name of the arm in its header."""
    return all(row[column].text == figure(*row[column].parts, spread=row[column].spread).text for row in rows)
