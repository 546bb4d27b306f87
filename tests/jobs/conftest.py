"""A working directory with shards, and the ways in: expand a sweep's text, submit it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jobs import overrides, shards, sweep
from jobs.graph import Graph, cells, link
from vitssl.data.index import COLUMNS, Index, fingerprint, to_json

EXAMPLE = Path(__file__).with_name("sweep.yaml").read_text()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory where shards/digits has an index of 100 training images."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "shards" / "digits"
    folder.mkdir(parents=True)
    write_index(folder, [("train", 60), ("train", 40), ("test", 20)])
    return tmp_path


def write_index(folder: Path, parts: list[tuple[str, int]], name: str = "digits") -> None:
    """The index of empty shards: two classes in turn."""
    listed = [{"name": f"{i}.tar", "split": split, "images": n, "bytes": 1, "sha256": ""} for i, (split, n) in enumerate(parts)]
    for shard in listed:
        (folder / shard["name"]).write_bytes(b"x")
    count = sum(n for _, n in parts)
    columns = {name: np.ones(count, np.int64) for name in COLUMNS} | {"label": np.arange(count) % 2, "offset": np.zeros(count, np.int64)}
    index = Index(folder, name, "", "", ["a", "b"], [0.5] * 3, [0.5] * 3, listed, **columns)
    content = to_json(index)
    (folder / "index.json").write_text(json.dumps(content | {"sha256": fingerprint(content)}))
    shards.index_of.cache_clear()
    shards._was_built_from.cache_clear()
    shards._COUNTED.clear()


@pytest.fixture
def expand(place: Path) -> Callable[..., Graph]:
    """`expand(*words, text=..., everything=...)`: the graph of a sweep file with this text."""

    def make(*words: str, text: str = EXAMPLE, everything: bool = False) -> Graph:
        path = Path("sweep.yaml")
        path.write_text(text)
        spec = sweep.read(path, overrides.parse(list(words)), everything)
        planned = cells(spec)
        shards.prepare(stage for cell in planned for stage in cell.stages)
        return link(spec, planned, place / "runs" / spec.name, shards.fingerprint)

    return make
