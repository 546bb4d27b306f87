"""Where everything that people read on a terminal goes: as it is, whatever brackets or colons a path or a name has."""

from __future__ import annotations

from typing import Any

from rich.console import Console


def console(**options: Any) -> Console:
    """rich's Console, for which text in brackets is no markup, and text in colons no picture."""
    return Console(markup=False, emoji=False, **options)
