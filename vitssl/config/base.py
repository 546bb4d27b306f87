"""What the parts of a Run share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Any


class ConfigError(ValueError):
    """A mistake that the user can mend. The message is one line: what is wrong, which field, what to do."""


def free(default: Any) -> Any:
    """A field that does not change the result (paths, workers, logging): it stays out of the Run's identity."""
    return field(default=default, metadata={"identity": False})


def less_than(low: float, part: Any, prefix: str, *names: str) -> Iterator[str]:
    """The problems of those fields of ``part`` that are set and less than ``low``."""
    dotted = f"{prefix}." if prefix else ""
    for name in names:
        value = getattr(part, name)
        if value is not None and value < low:
            yield f"{dotted}{name}: {value} is less than {low}"
