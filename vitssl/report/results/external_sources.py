"""What a sweep takes from outside: weights that its runs start from, whose cost is in none of its figures, and runs of other sweeps."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from vitssl.config import ConfigError, checkpoints
from vitssl.files import read_json
from vitssl.report.results.collect import RunFolder, Sweep
from vitssl.report.results.sums import add
from vitssl.report.units import quantity
from vitssl.run_folder import JOB
from vitssl.words import counted, listed


def origins(run: RunFolder) -> list[str]:
    """Return the names of what a run starts from outside its own arm: imported files, and other runs."""
    if imported := run.job.get("imported"):
        return [_imported(imported)]
    own_stages = {Path(parent).name for parent in run.job.get("parents", [])}
    starts = [Path(start) for start in checkpoints(run.run).values() if start] if run.run else []
    return [_named(start) for start in dict.fromkeys(starts) if start.name not in own_stages]


def not_counted(sweep: Sweep) -> str:
    """Return a sentence on the weights that runs start from, whose cost is not counted; empty if there are none."""
    names = dict.fromkeys(origin for run in sweep.runs.values() for origin in origins(run))
    return f" Not counted: the cost of weights trained elsewhere that runs started from ({listed(names)})." if names else ""


def others(sweep: Sweep) -> str:
    """Return in words how many runs of the sweep's folder its last command does not name, and what they used; empty if there are none."""
    if not sweep.others:
        return ""
    used = add(run.spent for run in sweep.others)["energy_kwh"]
    return f"{counted(len(sweep.others), 'other run')} in the sweep's folder" + (f", which used {quantity(used, 'kWh')}" if used else "")


def reused(sweep: Sweep) -> str:
    """Return a sentence on the runs that were trained for other sweeps, whose reports count them, too; empty if there are none."""
    origins = [Path(run.job["reused_from"]).parent for run in sweep.runs.values() if "reused_from" in run.job]
    sweeps = Counter(origin.name for origin in origins if origin.name != sweep.folder.absolute().name and origin.exists())
    if not sweeps:
        return ""
    whose = f"the sweep {listed(sweeps)}, whose report counts" if len(sweeps) == 1 else f"the sweeps {listed(sweeps)}, whose reports count"
    return f" {sweeps.total()} of these runs were trained for {whose} them too."


def _named(start: Path) -> str:
    """Return the name of a run that another one starts from, and what it learned from; of imported weights, their file."""
    try:
        job = read_json(start / JOB) if start.is_dir() else {}
    except ConfigError:  # it is not this sweep's, whose report does not stop for it
        return f"{start.name} (its {JOB} is damaged)"
    if "imported" in job:
        return _imported(job["imported"])
    images = f" (of {job['data']['train_images']:,} images of {job['data']['name']})" if "data" in job else ""
    return f"{start.name}{images}"


def _imported(facts: dict[str, Any]) -> str:
    return f"{Path(facts['file']).name} (layout {facts['layout']}, sha256 {facts['sha256'][:12]})"
