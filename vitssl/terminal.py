"""The console for all output on a terminal. Texts appear as they are, whatever brackets or colons a path or a name has."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.segment import Segment

from vitssl.words import printable


def console(**options: Any) -> Console:
    """Return a rich Console that takes no text in brackets for markup or in colons for an emoji, and that colours no numbers.

    Control characters in a text have no effect.
    """
    return _Screen(markup=False, emoji=False, highlight=False, **options)


class _Screen(Console):
    def render(self, *arguments: Any, **options: Any) -> Iterable[Segment]:
        for segment in super().render(*arguments, **options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Handle that the reader of the output, such as `head`, has left: raise the error, but go silent if the output is stderr.

        rich would end the process here, and with it a training that has not been saved.
        """
        if self.file is not sys.stderr:
            raise  # rich calls this while it handles the error
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
