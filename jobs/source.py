"""The snapshot of the source that the runs of a sweep train with."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from vitssl.files import hash_file
from vitssl.version import ROOT, SOURCE


def source_files() -> list[Path]:
    """Return the files of vitssl/ and jobs/, except documentation, which does not affect runs."""
    files = (p for part in SOURCE for p in (ROOT / part).rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return sorted(p for p in files if not p.is_relative_to(ROOT / "vitssl" / "docs") and p.suffix != ".md")


def digest(files: list[Path]) -> str:
    """Return the sha256 of the names and contents of ``files``."""
    result = hashlib.sha256()
    for file in files:
        result.update(f"{file.relative_to(ROOT)}\0{hash_file(file)}\n".encode())
    return result.hexdigest()


def snapshot(sweep: Path) -> Path:
    """Copy the source to `source/<hash of its content>` in the sweep's folder, unless that exists, and return this folder."""
    files = source_files()
    target = sweep / "source" / digest(files)[:12]
    if not target.exists():
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        for file in files:
            copy = partial / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
        partial.replace(target)
    return target
