"""A check that this Python has the packages that the scripts need. It must run without them, so it imports only the standard library."""

from __future__ import annotations

import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("codecarbon", "numpy", "omegaconf", "PIL", "psutil", "rich", "submitit", "yaml")  # to plan and submit; training needs more
OLDEST = (3, 11)


def require() -> None:
    """Exit with code 2 and a one-line message if this Python is too old or lacks a package.

    From then on, Ctrl-C prints one line instead of a traceback, even before a script's `main` begins.
    """
    sys.excepthook = _excepthook
    missing = [name for name in NEEDED if find_spec(name) is None]
    if sys.version_info >= OLDEST and not missing:
        return
    problem = f"has no {', '.join(missing)}" if sys.version_info >= OLDEST else f"is older than {'.'.join(map(str, OLDEST))}"
    print(f"error: this Python ({sys.executable}) {problem}; {_advice()}", file=sys.stderr)
    sys.exit(2)


def _excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def _advice() -> str:
    """Return how to repeat the command with the Python of the project's environment, and how to create that if it does not exist."""
    python = ROOT / ".venv" / "bin" / "python"
    rerun = shlex.join([_near(python), *sys.argv])
    if python.exists() and Path(sys.prefix) != ROOT / ".venv":
        return f"type: {rerun}"
    install = shlex.join([_near(python.with_name("pip")), "install", "-e", _near(ROOT)])
    return f"activate vitssl's environment, or create it: python3 -m venv {shlex.quote(_near(ROOT / '.venv'))} && {install} && {rerun}"


def _near(path: Path) -> str:
    """Return ``path`` relative to the working directory if it is inside, unchanged otherwise."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
