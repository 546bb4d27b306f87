"""Which source this is: its version, and the commit where it is a checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vitssl import __version__
from vitssl.files import hash_file

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ("vitssl", "jobs")  # what a run's snapshot holds
# parts of vitssl/ that no training or evaluation depends on
UNTRAINED = ("__main__.py", "analysis", "arguments.py", "bench", "cli", "docs", "paths.py", "report", "terminal.py", "weights", "words.py")


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


def snapshot_of(run: Path, job: dict[str, Any]) -> Path | None:
    """The source that a run was trained with, by its folder and its job.json, where it is still there: beside the run, since the folder of
    the sweep may have been moved."""
    folder = run.parent / "source" / Path(job["source"]).name if "source" in job else None
    return folder if folder is not None and folder.is_dir() else None


def differing(roots: Iterable[Path]) -> list[str]:
    """The files that are not the same in all of these checkouts and snapshots, but for those on which no training or evaluation depends."""
    hashes = [_trained_with(root) for root in roots]
    names = sorted({name for of_root in hashes for name in of_root})
    return [name for name in names if len({of_root.get(name) for of_root in hashes}) > 1]


def _trained_with(root: Path) -> dict[str, str]:
    files = (path.relative_to(root) for path in (root / "vitssl").rglob("*.py"))
    return {str(file): hash_file(root / file) for file in files if file.parts[1] not in UNTRAINED}


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False).stdout.strip()
