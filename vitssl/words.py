"""Numbers and lists in words for people, and notes to them."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Sequence

FORMULA = tuple("=+-@\t\r＝＋－＠")  # noqa: RUF001 - what a spreadsheet's formula begins with, in full width too


def counted(number: float, one: str, several: str = "") -> str:
    """Return a number of things in words: 1 run, 2 runs, 1,000 classes, 2.50 epochs.

    Args:
        number: how many.
        one: the singular.
        several: the plural; empty: the singular with an s.
    """
    shown = f"{number:,.0f}" if number == int(number) else f"{number:,.2f}"
    return f"{shown} {one if number == 1 else several or f'{one}s'}"


def listed(names: Iterable[str]) -> str:
    """Return the names in a sentence, each once: a, b and c."""
    *first, last = dict.fromkeys(names) or [""]
    return f"{', '.join(first)} and {last}" if first else last


def few(names: Sequence[str]) -> str:
    """Return the names in a sentence; of more than six, the first four and how many there are: cat, dog, elk, fox, ... (10)."""
    return ", ".join([*names[:4], "..."]) + f" ({len(names)})" if len(names) > 6 else listed(names)


def first_few(names: Sequence[str], most: int = 3) -> str:
    """Return the first ``most`` names and how many more there are: cat, dog, fox and 7 more."""
    return ", ".join(names[:most]) + f" and {len(names) - most:,} more" * (len(names) > most)


def duration(time_s: float) -> str:
    """Return a time in the unit that fits it: 45 s, 3.2 min, 25 min, 7.5 h."""
    if time_s < 100:
        return f"{time_s:.0f} s"
    amount, unit = (time_s / 60, "min") if time_s < 100 * 60 else (time_s / 3600, "h")
    return f"{amount:.1f} {unit}" if amount < 10 else f"{amount:,.0f} {unit}"


def about(time_s: float) -> str:
    """Return an estimated time in words: less than a minute, about 2.5 min, about 25 min, about 2.5 h."""
    if time_s < 60:
        return "less than a minute"
    if time_s < 5 * 60:
        return f"about {round(time_s / 30) / 2:g} min"
    return f"about {time_s / 60:.0f} min" if time_s < 100 * 60 else f"about {duration(time_s)}"


def is_control(letter: str) -> bool:
    """Whether ``letter`` begins a line, moves a terminal's cursor or sets its title, or stands for no character (half a surrogate)."""
    return unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp")


def printable(text: str, but_for: str = "\n\t") -> str:
    """Return ``text`` with its control characters, except those in ``but_for``, written as escapes.

    They would move a terminal's cursor or set its title.
    """
    if text.isprintable():
        return text
    return "".join(ascii(letter)[1:-1] if is_control(letter) and letter not in but_for else letter for letter in text)


def one_line(text: str) -> str:
    """Return ``text`` as `printable` does, with line breaks and tabs written as escapes too."""
    return printable(text, but_for="")


def has_control(text: str) -> bool:
    """Whether ``text`` has a control character, other than the surrogates that stand for bytes of file names that are not UTF-8."""
    return not text.isprintable() and any(is_control(letter) and not "\ud800" <= letter <= "\udfff" for letter in text)


def as_cell(text: str) -> str:
    """Return ``text`` as a cell of a CSV file. An apostrophe keeps spreadsheets from taking it for a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text


def note(text: str) -> None:
    """Print a note on stderr, about something other than what the user asked for."""
    print_line(f"note: {printable(text)}")


def print_line(line: str) -> None:
    """Print a line on stderr in one piece: `print` writes its end apart, after which another process may have written."""
    sys.stderr.write(f"{line}\n")
