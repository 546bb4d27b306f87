"""Which source this is: its version, and the commit where it is a checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from vitssl import __version__

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ("vitssl", "jobs")  # what a run's snapshot holds


def describe() -> str:
    """For people, such as ``vitssl 0.1.0, commit 1a2b3c4d5e6f, changed since``."""
    sha, changed = commit()
    return ", ".join([f"vitssl {__version__}", *([f"commit {sha[:12]}"] if sha else []), *(["changed since"] if sha and changed else [])])


def commit() -> tuple[str | None, bool]:
    """The commit of the source and whether it was changed since; outside a git repository (None, True).

    A container image gives its commit in VITSSL_REVISION. An untracked file matters only where it is source: not a user's sweep, whose
    fields its runs hold, nor a list, log or data.
    """
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        revision = os.environ.get("VITSSL_REVISION") or None
        return revision, revision is None
    changed = _git("status", "--porcelain", "--untracked-files=no")
    new = _git("status", "--porcelain", "--untracked-files=all", "--", *SOURCE)
    return _git("rev-parse", "HEAD") or None, bool(changed or new)


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False).stdout.strip()
