"""A working directory with shards, and the ways in: expand a sweep's text, submit it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs import shards, sweep
from jobs.graph import Graph, cells, link

EXAMPLE = Path(__file__).with_name("sweep.yaml").read_text()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory where shards/digits has an index of 100 training images."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "shards" / "digits"
    folder.mkdir(parents=True)
    parts = [{"split": "train", "images": 60}, {"split": "train", "images": 40}, {"split": "test", "images": 20}]
    (folder / "index.json").write_text(json.dumps({"sha256": "f00d", "classes": ["a", "b"], "shards": parts}))
    shards.read_index.cache_clear()
    return tmp_path


@pytest.fixture
def expand(place: Path) -> Callable[..., Graph]:
    """`expand(*overrides, text=..., everything=...)`: the graph of a sweep file with this text."""

    def make(*overrides: str, text: str = EXAMPLE, everything: bool = False) -> Graph:
        path = Path("sweep.yaml")
        path.write_text(text)
        spec = sweep.read(path, sweep.parse_overrides(list(overrides)), everything)
        planned = cells(spec)
        shards.prepare(stage for cell in planned for stage in cell.stages)
        return link(spec, planned, place / "runs" / spec.name, shards.fingerprint)

    return make
