"""Tables that fit the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Column, Table

from vitssl.terminal import console as screen
from vitssl.words import listed


def print_table(table: Table, console: Console, drop: Sequence[str] = ()) -> None:
    """Print a table with as many columns as fit the terminal, or the 80 columns of a pipe.

    Empty columns are left out, and then those of ``drop``, in this order, until the table fits. If it is still too wide, whole lines wrap
    rather than the names of runs.
    """
    columns = [column for column in table.columns if not table.row_count or any(column.cells)]
    left_out: list[str] = []
    needed = _width(_of_columns(table, columns))
    for header in drop:
        if needed > console.width and any(column.header == header for column in columns):
            columns = [column for column in columns if column.header != header]
            left_out.append(header)
            needed = _width(_of_columns(table, columns))
    wide = screen(file=console.file, width=max(needed, console.width), force_terminal=console.is_terminal)
    wide.print(_of_columns(table, columns))
    if left_out:
        wide.print(f"left out at {console.width} columns: {listed(left_out)}", style="dim")


def fits(table: Table, console: Console, without: Sequence[str] = ()) -> bool:
    """Whether a table fits the terminal without its empty columns and those of ``without``."""
    columns = [column for column in table.columns if any(column.cells) and column.header not in without]
    return _width(_of_columns(table, columns)) <= console.width


def _of_columns(table: Table, columns: Sequence[Column]) -> Table:
    """Return a copy of ``table`` with some of its columns."""
    narrow = Table(title=table.title, title_justify=table.title_justify)
    for column in columns:
        narrow.add_column(column.header, justify=column.justify)
    for cells in zip(*(column.cells for column in columns), strict=True):
        narrow.add_row(*cells)
    return narrow


def _width(table: Table) -> int:
    return screen(width=10_000).measure(table).maximum
