"""Words of generated sentences."""

from __future__ import annotations

from collections.abc import Iterable


def listed(names: Iterable[str]) -> str:
    """Each once: a, b and c."""
    *first, last = dict.fromkeys(names) or [""]
    return f"{', '.join(first)} and {last}" if first else last


def counted(number: int, noun: str) -> str:
    """1 run, 2 runs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
