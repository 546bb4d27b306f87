"""The findings of a build: images that were left out or scaled, near-duplicates across splits, and equal images within a split.

They are written to a file beside index.json, since they are no content: with or without that file the shards are the same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitssl.atomic import write_atomically
from vitssl.config import ConfigError
from vitssl.data.index import Index
from vitssl.data.pixels.depth import RULE
from vitssl.files import read_json
from vitssl.words import counted, one_line

FILE = "found.json"
SHOWN = 3  # images that a line names
ROWS = {"left_out": [str] * 3, "near_duplicates": [*[str] * 4, float], "equal": [*[str] * 3, bool]}  # the types of each entry's values


@dataclass
class Findings:
    """What a build found; every entry of a list is one image."""

    scaled: dict[str, int]  # what images were scaled from -> how many
    left_out: list[list[str]]  # split, name, reason
    near_duplicates: list[list]  # split, name, the other split, name there, likeness up to 1
    equal: list[list]  # split, name, name of the first equal image in it, whether both are of one class

    def counts(self) -> dict[tuple[str, str], int]:
        """Return how many images of a split have a near-duplicate in another split, by (split, other split)."""
        return Counter((split, other) for split, _, other, *_ in self.near_duplicates)


def write(folder: Path, found: Findings) -> None:
    """Write ``found`` into ``folder``, with a line for each image."""
    lists = {name: ",\n  ".join(map(json.dumps, rows)) for name, rows in vars(found).items() if name != "scaled"}
    parts = [
        f'"scaled": {json.dumps(found.scaled)}',
        *(f'"{name}": [\n  {rows}\n ]' if rows else f'"{name}": []' for name, rows in lists.items()),
    ]
    write_atomically(folder / FILE, ("{" + ",\n ".join(parts) + "}\n").encode())


def read(folder: Path) -> Findings | None:
    """Read the findings of a folder of shards; None if it has no such file, for example because a damaged one was deleted.

    Raises:
        ConfigError: the file is damaged.
    """
    path = folder / FILE
    if not path.exists():
        return None
    record = read_json(path)
    if name := next(_unexpected(record), None):
        raise ConfigError(f"{name} has unexpected content: restore the file from a backup, or delete it", place=str(path))
    return Findings(**{name: record[name] for name in ("scaled", *ROWS)})


def _unexpected(record: dict[str, Any]) -> Iterator[str]:
    """Yield the names of the parts of ``record`` that are not as `write` writes them.

    `vitssl.records` cannot check them, since file names need not be UTF-8.
    """
    scaled = record.get("scaled")
    if not isinstance(scaled, dict) or any(type(count) is not int for count in scaled.values()):
        yield "scaled"
    for name, kinds in ROWS.items():
        rows = record.get(name)
        if not isinstance(rows, list) or any(not isinstance(row, list) or list(map(type, row)) != kinds for row in rows):
            yield name


def lines(index: Index) -> list[str]:
    """Return the findings of a build as lines for people."""
    found = read(index.folder)
    if found is None:
        return [f"near-duplicates across splits are not known: {index.folder / FILE} is missing"]
    left_out = [f"{name}: {reason}" for _, name, reason in found.left_out]
    images = "image that" if len(left_out) == 1 else "images that"
    return [
        *_similar_classes(index.classes),
        *([f"scaled   {_scaled(found.scaled)}"] if found.scaled else []),
        *([f"left out {len(left_out):,} {images} cannot be used: {_examples_text(left_out, index)}"] if left_out else []),
        *_near_duplicates(index, found),
        *_equal(index, found),
    ]


def _similar_classes(classes: list[str]) -> list[str]:
    """Return a warning of classes whose names differ so little that a table or a folder may have meant them as one."""
    spellings: dict[str, list[str]] = {}
    for name in classes:
        spellings.setdefault(" ".join(name.casefold().replace("_", " ").split()), []).append(name)
    twins = [" and ".join(map(repr, names)) for names in spellings.values() if len(names) > 1]
    more = f" and {len(twins) - SHOWN} more" * (len(twins) > SHOWN)
    return (
        [f"warning: classes that differ only in case, spaces or underscores: {one_line('; '.join(twins[:SHOWN]))}{more}"] if twins else []
    )


def _scaled(scaled: dict[str, int]) -> str:
    counts = ", ".join(f"{count:,} of {one_line(was)}" for was, count in sorted(scaled.items()))
    return f"to 8 bits: {counts} ({RULE})"


def _near_duplicates(index: Index, found: Findings) -> list[str]:
    warnings = []
    for (split, other), count in found.counts().items():
        matches = [row for row in found.near_duplicates if (row[0], row[2]) == (split, other)]
        pairs = [f"{name} ~ {like}" for _, name, _, like, _ in sorted(matches, key=lambda row: -row[4])]
        verb = "looks like one" if count == 1 else "look like one"
        warnings.append(
            f"warning: {count:,} of {len(index.where(split)):,} images of {split} {verb} of {other}: {_examples_text(pairs, index)}"
        )
    return warnings or (["no near-duplicates across splits"] if len(index.splits) > 1 else [])


def _equal(index: Index, found: Findings) -> list[str]:
    messages = []
    for split in index.splits:
        for same_class, prefix, note in ((False, "warning: ", " of another class, so that one label is wrong"), (True, "", "")):
            pairs = [f"{name} = {first}" for row_split, name, first, same in found.equal if (row_split, same) == (split, same_class)]
            if pairs:
                equals = "equals" if len(pairs) == 1 else "equal"
                messages.append(
                    f"{prefix}{counted(len(pairs), 'image')} of {split} {equals} an earlier one{note}: {_examples_text(pairs, index)}"
                )
    return messages


def _examples_text(texts: list[str], index: Index) -> str:
    more = f"; all {len(texts):,} in {index.folder / FILE}" if len(texts) > SHOWN else ""
    shown = "; ".join(texts[:SHOWN])
    return one_line(shown) + more  # file names need not be UTF-8
