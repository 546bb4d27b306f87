"""What to type where this Python lacks the packages that the scripts need; so this module imports nothing but Python's own."""

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
    """End with exit code 2 and one line where something is missing; from now on Ctrl-C is one line too, before a script has begun."""
    sys.excepthook = _excepthook
    missing = [name for name in NEEDED if find_spec(name) is None]
    if sys.version_info >= OLDEST and not missing:
        return
    lacks = f"has no {', '.join(missing)}" if sys.version_info >= OLDEST else f"is older than {'.'.join(map(str, OLDEST))}"
    print(f"error: this Python ({sys.executable}) {lacks}; {_advice()}", file=sys.stderr)
    sys.exit(2)


def _excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def _advice() -> str:
    """How to type the same command with the environment's Python, and how to make it before."""
    python = ROOT / ".venv" / "bin" / "python"
    again = shlex.join([_near(python), *sys.argv])
    if python.exists() and Path(sys.prefix) != ROOT / ".venv":
        return f"type: {again}"
    install = shlex.join([_near(python.with_name("pip")), "install", "-e", _near(ROOT)])
    return f"activate vitssl's environment, or create it: python3 -m venv {shlex.quote(_near(ROOT / '.venv'))} && {install} && {again}"


def _near(path: Path) -> str:
    """Relative to the working directory where it is in it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
