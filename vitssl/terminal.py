"""Where everything that people read on a terminal goes: as it is, whatever brackets or colons a path or a name has."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.segment import Segment

from vitssl.words import printable


def console(**options: Any) -> Console:
    """rich's Console, for which text in brackets is no markup, text in colons no picture, and a number nothing to colour; control
    characters in a text do nothing."""
    return _Screen(markup=False, emoji=False, highlight=False, **options)


class _Screen(Console):
    def render(self, *arguments: Any, **options: Any) -> Iterable[Segment]:
        for segment in super().render(*arguments, **options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Whoever read, such as `head`, has left: an error, but for what is said beside, on stderr. rich would end the process here, and
        with it a training that has not been saved."""
        if self.file is not sys.stderr:
            raise  # rich calls this where it has caught the error
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
