"""Commands and waiting, for the tests of this folder."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable


def sh(*words: str) -> str:
    return subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


def wait_for(condition: Callable[[], object], timeout_s: float = 60) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"timed out: {sh('squeue')}"
        time.sleep(0.1)
