"""Tables of image files, one row for each image, under a header that names the columns: path, label and, perhaps, split.

Values are separated by commas, semicolons (Excel in Europe) or tabs. Here tables are read, not images. Whatever is wrong with a table is a
ConfigError of one line that names the file.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vitssl.config import ConfigError
from vitssl.data.sources.lists import Row, read_text
from vitssl.data.sources.splits import spelled
from vitssl.words import counted, listed, one_line

if TYPE_CHECKING:
    from _csv import Reader

# what people call the columns of such tables
COLUMNS = {
    "path": ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path"),
    "label": ("label", "class", "class_name", "category", "target"),
    "split": ("split", "set", "subset"),
}
SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab"}
MOST_SHOWN = 200  # characters of a header that a message shows
MISSING = {
    "path": "expected path,label[,split]",
    "split": "write train, test, val or unlabeled, or leave out the column, so that all rows are for training",
    "group": "write what the image belongs to, or a name of its own",
}


def read_csv(file: Path, chosen: Mapping[str, str] | None = None) -> dict[str, list[Row]]:
    """Read the rows of a table by split; without a column for it, the split is "train".

    Args:
        file: the table.
        chosen: the table's names of its columns: of "path" and "label" if they are not the only ones in COLUMNS that fit, and of "group",
            which has no other name.
    """
    text = read_text(file)
    try:
        return _rows(file, text, chosen or {})
    except csv.Error as error:  # such as a field of more than 131,072 characters: a quotation mark that nothing closes
        raise ConfigError(f"{file}: not a table of comma-separated values ({error})") from None


def _rows(file: Path, text: str, chosen: Mapping[str, str]) -> dict[str, list[Row]]:
    separator = _separator(text, chosen)
    reader = csv.reader(io.StringIO(text), delimiter=separator)
    columns = [column.strip() for column in next(reader, [])]
    places = _places(file, columns, chosen)
    splits: dict[str, list[Row]] = {}
    for where, record in _records(file, reader, len(columns), separator):
        values = {what: record[place].strip() if what != "path" else record[place] for what, place in places.items()}
        for what in MISSING:
            if what in values and not values[what]:
                raise ConfigError(f"{where}: no {columns[places[what]]}; {MISSING[what]}")
        row = Row(where, values["path"], values["label"], values["label"], values.get("group", ""))
        splits.setdefault(spelled(values.get("split", "train")), []).append(row)
    return splits


def _records(file: Path, reader: Reader, width: int, separator: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (file:line, values) of each row that is not blank. Refuse rows of another width: their values would be in the wrong columns."""
    for record in (record for record in reader if any(map(str.strip, record))):
        where = f"{file}:{reader.line_num}"
        if len(record) != width:
            name = SEPARATORS[separator]
            advice = f"put a value that holds a {name} in quotes" if len(record) > width else f"an empty value needs its {name} too"
            raise ConfigError(f"{where}: {counted(len(record), 'value')} under a header of {counted(width, 'column')}; {advice}")
        yield where, record


def _separator(text: str, chosen: Mapping[str, str]) -> str:
    """Return the separator by which the header has the most columns that are known."""
    known = {name for names in COLUMNS.values() for name in names} | {name.lower() for name in chosen.values()}
    header = text.partition("\n")[0]
    headers = {separator: next(csv.reader([header], delimiter=separator), []) for separator in SEPARATORS}
    return max(SEPARATORS, key=lambda separator: sum(column.strip().lower() in known for column in headers[separator]))


def _places(file: Path, columns: list[str], chosen: Mapping[str, str]) -> dict[str, int]:
    """Return the position in a row of the path, the label, the split if there is one, and whatever else was chosen."""
    if twice := next((column for column, times in Counter(columns).items() if column and times > 1), None):
        raise ConfigError(f"{file}: the column {one_line(twice)!r} is there twice; rename or delete one")
    positions = {}
    for what, column in chosen.items():
        if column not in columns:
            raise ConfigError(f"{file}: {what}={column}: there is no such column; it has {_shown(columns)}")
        positions[what] = columns.index(column)
    free = [column for column in columns if column not in chosen.values()]
    for what in COLUMNS:
        if what not in chosen and (found := _column(file, what, columns, free)):
            positions[what] = columns.index(found)
    return positions


def _column(file: Path, what: str, columns: list[str], free: list[str]) -> str | None:
    """Return the name, among the ``free`` columns, of the column that holds ``what``; None if there is no split column."""
    if what in free:
        return what
    matches = [column for column in free if column.lower() in COLUMNS[what]]
    if len(matches) > 1:
        choose = f", or choose with {what}=COLUMN" if what != "split" else ""
        raise ConfigError(f"{file}: columns {listed(matches)} may each be the {what}; rename all but one{choose}")
    if not matches and what != "split":
        raise ConfigError(f"{file}: no column {what!r}; {_advice(file, what, columns)}")
    return matches[0] if matches else None


def _advice(file: Path, what: str, columns: list[str]) -> str:
    expected = "expected path,label[,split] in the first line, which is taken as the header"
    if not any(columns):
        return f"{expected}; it is empty"
    known = any(column.lower() in names for column in columns for names in COLUMNS.values())
    unnamed = f"add a header, separated by commas, semicolons or tabs; list:{file.parent}?train={file.name} reads lines of path and label"
    return f"{expected}; it has {_shown(columns)}; {f'choose one with {what}=COLUMN' if known else unnamed}"


def _shown(columns: list[str]) -> str:
    return one_line(listed(columns))[:MOST_SHOWN]
