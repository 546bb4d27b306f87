"""The version of this source code, and its commit if it is a checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vitssl import __version__
from vitssl.files import hash_file
from vitssl.variables import REVISION

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ("vitssl", "jobs")  # the folders that a run's snapshot holds
# parts of vitssl/ that no training or evaluation depends on
UNTRAINED = ("__main__.py", "analysis", "arguments.py", "bench", "cli", "docs", "paths.py", "report", "terminal.py", "weights", "words.py")


def describe() -> str:
    """Describe the source for people, for example ``vitssl 0.1.0, commit 1a2b3c4d5e6f, changed since``."""
    sha, changed = commit()
    return ", ".join([f"vitssl {__version__}", *([f"commit {sha[:12]}"] if sha else []), *(["changed since"] if sha and changed else [])])


def commit() -> tuple[str | None, bool]:
    """Return the commit of the source and whether the source was changed since; (None, True) outside a git repository.

    A container image gives its commit in VITSSL_REVISION. An untracked file matters only if it is source: not a user's sweep, whose
    fields its runs hold, nor a list, log or data.
    """
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        revision = os.environ.get(REVISION) or None
        return revision, revision is None
    changed = _git("status", "--porcelain", "--untracked-files=no")
    untracked = _git("status", "--porcelain", "--untracked-files=all", "--", *SOURCE)
    return _git("rev-parse", "HEAD") or None, bool(changed or untracked)


def snapshot_of(run: Path, job: dict[str, Any]) -> Path | None:
    """Return the snapshot of the source that a run trains with, or None if there is none any more.

    It is looked for beside the run folder, since the sweep's folder may have been moved after it was recorded.

    Args:
        run: the run folder.
        job: the content of the run's job.json.
    """
    folder = run.parent / "source" / Path(job["source"]).name if "source" in job else None
    return folder if folder is not None and folder.is_dir() else None


def sources_of(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a run was submitted with since it began, from its job.json: source, commit and dirty; the last is the present."""
    present = {name: job[name] for name in ("source", "commit", "dirty") if name in job}
    return [*job.get("earlier_sources", []), *([present] if "source" in job else [])]


def snapshots_of(run: Path, job: dict[str, Any]) -> list[Path]:
    """Return the snapshots of `sources_of` that still exist."""
    return [folder for source in sources_of(job) if (folder := snapshot_of(run, source)) is not None]


def differing(roots: Iterable[Path]) -> list[str]:
    """Return the files that differ between the checkouts and snapshots, except those on which no training or evaluation depends."""
    hashes = [_trained_with(root) for root in roots]
    names = sorted({name for hashes_of_root in hashes for name in hashes_of_root})
    return [name for name in names if len({hashes_of_root.get(name) for hashes_of_root in hashes}) > 1]


def _trained_with(root: Path) -> dict[str, str]:
    files = (path.relative_to(root) for path in (root / "vitssl").rglob("*.py"))
    return {str(file): hash_file(root / file) for file in files if file.parts[1] not in UNTRAINED}


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False).stdout.strip()
