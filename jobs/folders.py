"""What the launcher leaves on disk: the source's snapshot, each run's folder, the sweep's folder."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from jobs.graph import Graph, Job
from jobs.shards import ROOT
from jobs.sweep import Arm, Spec
from vitssl.config import Site, save


def write_json(path: Path, content: Any) -> None:
    """Write atomically."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(content, indent=1))
    partial.replace(path)


def is_done(job: Job) -> bool:
    return (job.folder / "done.json").exists()


def error_of(folder: Path) -> str | None:
    """The message of the last attempt's failure."""
    path = folder / "error.json"
    return json.loads(path.read_text())["message"] if path.exists() else None


# ----------------------------------------------------------------------------------------------------------- snapshot


def snapshot(sweep: Path) -> Path:
    """Copy vitssl/ and jobs/ to `source/<hash of their content>`, once per content."""
    files = sorted(p for part in ("vitssl", "jobs") for p in (ROOT / part).rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(ROOT)}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    target = sweep / "source" / digest.hexdigest()[:12]
    if not target.exists():
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        for file in files:
            copy = partial / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
        partial.replace(target)
    return target


def commit() -> tuple[str | None, bool]:
    """The commit of the source and whether it was changed since; (None, True) outside of a git repository."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        return None, True
    sha = _git("rev-parse", "HEAD")
    return sha or None, bool(_git("status", "--porcelain"))


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False).stdout.strip()


# --------------------------------------------------------------------------------------------------------- run folders


@dataclasses.dataclass
class Launch:
    """What all jobs of one submission have in common."""

    sweep: Path
    executor: str  # slurm, local
    site: Site
    source: Path
    use_current_source: bool = False
    node_share: float | None = None
    module: str = "vitssl.train"
    commit: tuple[str | None, bool] = dataclasses.field(default_factory=commit)
    command: str = dataclasses.field(default_factory=lambda: " ".join(["python", *sys.argv]))

    def about(self) -> dict[str, Any]:
        sha, dirty = self.commit
        return {"site": dataclasses.asdict(self.site), "commit": sha, "dirty": dirty, "command": self.command}


def write_run(job: Job, launch: Launch) -> None:
    """Write `run.yaml` and `job.json`. A run that has begun goes on with the source that it began with."""
    save(job.run, job.folder)
    content = launch.about() | dataclasses.asdict(job.resources)
    content |= {
        "name": job.name,
        "arm": job.arm,
        "stage": job.stage,
        "axes": job.axes,
        "executor": launch.executor,
        "parents": [str(parent.folder) for parent in job.parents],
        "binds": _binds(job),
        "source": str(_source(job, launch)),
        "node_share": launch.node_share,
    }
    write_json(job.folder / "job.json", content)


def _binds(job: Job) -> list[str]:
    outside = [job.run.data.shards, job.run.init_from, job.run.data.cache_dir]
    return [path for path in outside if path is not None]


def _source(job: Job, launch: Launch) -> Path:
    path = job.folder / "job.json"
    if path.exists() and (job.folder / "last.pt").exists() and not launch.use_current_source:
        before = Path(json.loads(path.read_text())["source"])
        if before.exists():
            return before
    return launch.source


# --------------------------------------------------------------------------------------------------------- sweep.json


def write_sweep(spec: Spec, graph: Graph, launch: Launch) -> None:
    """Write `sweep.json`, the only thing besides run folders that a report reads."""
    cells = [
        {
            "arm": cell.arm,
            "axes": cell.axes,
            "stages": [{"stage": s.name, "folder": j.name} for s, j in zip(cell.stages, jobs, strict=True)],
        }
        for cell, jobs in graph.cells
    ]
    content = launch.about() | {
        "name": spec.name,
        "file": spec.file,
        "paper": dataclasses.asdict(spec.paper) if spec.paper else None,
        "notes": spec.notes,
        "columns": spec.columns,
        "baseline": spec.baseline if spec.baseline in spec.arms else None,
        "metric": spec.metric,
        "axes": {name: list(values) for name, values in spec.axes.items()},
        "arms": [_arm(name, arm, spec) for name, arm in spec.arms.items()],
        "cells": cells,
        "resources": dataclasses.asdict(spec.resources),
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    write_json(launch.sweep / "sweep.json", content)


def _arm(name: str, arm: Arm, spec: Spec) -> dict[str, Any]:
    shown = {key: getattr(arm, key) for key in ("published", "quoted", "not_runnable", "note")}
    return {"name": name, "row": arm.row or name, **shown, "published_cost": _published_cost(arm, spec)}


def _published_cost(arm: Arm, spec: Spec) -> dict[str, Any] | None:
    """A paper's cost stands only beside the column that it was measured on."""
    if arm.published_cost is None or any(not isinstance(value, dict) for value in arm.published_cost.values()):
        return arm.published_cost
    for label in spec.axes.get(spec.columns or "", {}):
        if str(label) in arm.published_cost:
            return {**arm.published_cost[str(label)], "column": str(label)}
    return None
