"""Numbers and lists in words for people, and notes to them."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Sequence

FORMULA = tuple("=+-@\t\r＝＋－＠")  # noqa: RUF001 - what a spreadsheet's formula begins with, in full width too


def counted(number: float, one: str, several: str = "") -> str:
    """A number of things: 1 run, 2 runs, 1,000 classes, 2.50 epochs.

    Args:
        number: how many.
        one: what one of them is called.
        several: and more of them, or none; empty: with an s.
    """
    shown = f"{number:,.0f}" if number == int(number) else f"{number:,.2f}"
    return f"{shown} {one if number == 1 else several or f'{one}s'}"


def listed(names: Iterable[str]) -> str:
    """Each once: a, b and c."""
    *first, last = dict.fromkeys(names) or [""]
    return f"{', '.join(first)} and {last}" if first else last


def few(names: Sequence[str]) -> str:
    """The first of many, and how many there are: cat, dog, fox, ... (10)."""
    return ", ".join([*names[:4], "..."]) + f" ({len(names)})" if len(names) > 4 else listed(names)


def first_few(names: Sequence[str], most: int = 3) -> str:
    """cat, dog, fox and 7 more."""
    return ", ".join(names[:most]) + f" and {len(names) - most:,} more" * (len(names) > most)


def duration(time_s: float) -> str:
    """A time in the unit that fits it: 45 s, 3.2 min, 25 min, 7.5 h."""
    if time_s < 100:
        return f"{time_s:.0f} s"
    amount, unit = (time_s / 60, "min") if time_s < 100 * 60 else (time_s / 3600, "h")
    return f"{amount:.1f} {unit}" if amount < 10 else f"{amount:,.0f} {unit}"


def about(time_s: float) -> str:
    """A time that was estimated: less than a minute, about 2.5 min, about 25 min, about 2.5 h."""
    if time_s < 60:
        return "less than a minute"
    if time_s < 5 * 60:
        return f"about {round(time_s / 30) / 2:g} min"
    return f"about {time_s / 60:.0f} min" if time_s < 100 * 60 else f"about {duration(time_s)}"


def is_control(letter: str) -> bool:
    """Does it begin a line, move a terminal's cursor or set its title, or stand for no character (half a surrogate)?"""
    return unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp")


def printable(text: str, but_for: str = "\n\t") -> str:
    """The text with control characters, which would move a terminal's cursor or set its title, written as in a program."""
    if text.isprintable():
        return text
    return "".join(ascii(letter)[1:-1] if is_control(letter) and letter not in but_for else letter for letter in text)


def one_line(text: str) -> str:
    """As `printable`, line breaks and tabs too."""
    return printable(text, but_for="")


def has_control(text: str) -> bool:
    """Is a character in it of which a message would have several lines? File names that are not UTF-8 may pass."""
    return not text.isprintable() and any(is_control(letter) and not "\ud800" <= letter <= "\udfff" for letter in text)


def as_cell(text: str) -> str:
    """A text in a CSV file, which no spreadsheet takes for a formula: an apostrophe before one is what they read as text."""
    return f"'{text}" if text.startswith(FORMULA) else text


def note(text: str) -> None:
    """Tell people of something beside what they asked for."""
    print(f"note: {printable(text)}", file=sys.stderr)
