"""What a sweep has from outside: weights that its runs start from, whose cost is in none of its figures, and runs of other sweeps."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from vitssl.config import Run, checkpoint_fields, dotted
from vitssl.files import read_json
from vitssl.report.results.collect import RunFolder, Sweep
from vitssl.words import listed


def origins(run: RunFolder) -> list[str]:
    """What a run has of others, by name: imported files, and runs that are no stages of its own arm."""
    if imported := run.job.get("imported"):
        return [_imported(imported)]
    own, fields = {Path(parent).name for parent in run.job.get("parents", [])}, dotted(run.run)
    starts = [Path(fields[name]) for name in checkpoint_fields(Run) if fields.get(name)]
    return [_named(start) for start in dict.fromkeys(starts) if start.name not in own]


def not_counted(sweep: Sweep) -> str:
    """A sentence on what runs start from and no cost has; empty where there is nothing."""
    names = dict.fromkeys(origin for run in sweep.runs.values() for origin in origins(run))
    return f" Not counted: the cost of weights trained elsewhere that runs started from ({listed(names)})." if names else ""


def reused(sweep: Sweep) -> str:
    """A sentence on the runs that were trained for other sweeps, whose reports have them too; empty where there are none."""
    origins = [Path(run.job["reused_from"]).parent for run in sweep.runs.values() if "reused_from" in run.job]
    of = Counter(origin.name for origin in origins if origin.name != sweep.folder.absolute().name and origin.exists())
    return f" {of.total()} of these runs were trained for the sweep {listed(of)}, whose report counts them too." if of else ""


def _named(start: Path) -> str:
    before = read_json(start / "job.json").get("imported") if start.is_dir() else None
    return _imported(before) if before else start.name


def _imported(facts: dict[str, Any]) -> str:
    return f"{Path(facts['file']).name} (layout {facts['layout']}, sha256 {facts['sha256'][:12]})"
