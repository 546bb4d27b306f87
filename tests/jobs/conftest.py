"""A working directory with shards, and the ways in: expand a sweep's text, submit it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs import folders, local
from jobs.inputs import prepare
from jobs.plan import overrides, shards, sweep
from jobs.plan.cells import cells
from jobs.plan.graph import Graph, link
from tests.jobs.standin import COST
from vitssl import cli
from vitssl.data import index as data_index
from vitssl.data.index import COLUMNS, Index
from vitssl.run_folder import median_speed

HERE = Path(__file__).parent
# `python -c STAND_IN jobs/submit.py ...` submits with the stand-in, by the command line that it would have
STAND_IN = (
    "import sys; sys.argv[0] = sys.argv.pop(1); from jobs import folders, submit; folders.TRAINING = 'standin'; sys.exit(submit.main())"
)
EXAMPLE = Path(__file__).with_name("sweep.yaml").read_text()


def over(usual: Sequence[str], words: Sequence[str]) -> list[str]:
    """The usual words of a command line, but for those whose keys the others have."""
    typed = {word.partition("=")[0] for word in words}
    return [*(word for word in usual if word.partition("=")[0] not in typed), *words]


def trained_by(module: str, patch: pytest.MonkeyPatch, *paths: Path) -> None:
    """From now on runs are trained by this module of tests/jobs, or of these folders; and this process writes reports, which is quicker."""
    patch.setattr(folders, "TRAINING", module)
    patch.setenv("PYTHONPATH", os.pathsep.join(map(str, [HERE, *paths])))
    patch.setattr(local, "write_report", lambda folder, _: cli.main(["report", str(folder)]) == 0)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory where shards/digits has an index of 100 training images."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "shards" / "digits"
    folder.mkdir(parents=True)
    write_index(folder, [("train", 60), ("train", 40), ("test", 20)])
    return tmp_path


def write_index(folder: Path, parts: list[tuple[str, int]], name: str = "digits", first_file: int = 0) -> None:
    """The index of empty shards: two classes in turn, and files whose checksums count from ``first_file``."""
    listed = [{"name": f"{i}.tar", "split": split, "images": n, "bytes": 1, "sha256": ""} for i, (split, n) in enumerate(parts)]
    for shard in listed:
        (folder / shard["name"]).write_bytes(b"x")
    count = sum(n for _, n in parts)
    numbers = np.arange(count)
    columns = {name: np.ones(count, np.int64) for name in COLUMNS} | {
        "label": numbers % 2,
        "offset": 0 * numbers,
        "crc32": numbers + first_file,
    }
    index = Index(folder, name, "", "", ["a", "b"], [0.5] * 3, [0.5] * 3, listed, **columns, built_from=f"folder:{name}")
    index.sha256 = data_index.fingerprint(index)
    data_index.write_index(index)
    shards.index_of.cache_clear()
    prepare._was_built_from.cache_clear()
    shards._COUNTED.clear()
    shards._CHECKED.clear()


@pytest.fixture
def expand(place: Path) -> Callable[..., Graph]:
    """`expand(*words, text=..., everything=...)`: the graph of a sweep file with this text."""

    def make(*words: str, text: str = EXAMPLE, everything: bool = False) -> Graph:
        path = Path("sweep.yaml")
        path.write_text(text)
        spec = sweep.read(path, overrides.parse(list(words)), everything)
        planned = cells(spec)
        prepare.shards(stage for cell in planned for stage in cell.stages)
        return link(spec, planned, place / "runs" / spec.name, shards.fingerprint)

    return make


def write_finished(folder: Path, job: dict[str, Any], speeds: Sequence[float], *, device: str = "CPU", ranks: int = 1) -> None:
    """The records of a run that trained 50 batches of 20 on this device, at those images/s of all ranks one after the other."""
    folder.mkdir(parents=True)
    cost = COST | {"inference_device": "cuda" if "NVIDIA" in device else "cpu"}
    if speeds:
        cost["training"] = {"images_per_s": median_speed(speeds) / ranks, "images": 1000, "device": device}
    for name, content in {"done": {"step": 50, "epochs": 1.0}, "job": job, "cost": cost}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
