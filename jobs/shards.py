"""What the launcher needs of a data set's shards: that they exist, which content they hold, how many images."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jobs.graph import Stage
from jobs.node import inside
from jobs.sweep import unknown
from vitssl.config import ConfigError, Data, Site

ROOT = Path(__file__).resolve().parents[1]


@functools.cache
def read_index(folder: Path) -> dict[str, Any]:
    """The content of `index.json`, without the arrays over samples."""
    content = json.loads((folder / "index.json").read_text())
    return {key: content[key] for key in ("sha256", "classes", "shards")}


def prepare(stages: Iterable[Stage]) -> dict[str, str]:
    """Make every stage's `data.shards` absolute; gives {missing folder: source to build it from}.

    Raises:
        ConfigError: shards that are missing and cannot be built, or lack a split that a stage trains or tests on.
    """
    missing: dict[str, str] = {}
    for stage in stages:
        data = stage.run.data
        data.shards = str(Path(data.shards).expanduser().resolve())
        if not (Path(data.shards) / "index.json").exists():
            if data.source is None:
                raise ConfigError(
                    f"{stage.where}: data.shards: {data.shards} holds no index.json; "
                    f"build it with `vitssl shards build SOURCE {data.shards}` or set data.source"
                )
            missing[data.shards] = data.source
    return missing


def build(missing: dict[str, str], site: Site) -> None:
    """Build shards in the foreground, in the site's container if it has one.

    Raises:
        ConfigError: a build failed; its own message stands above.
    """
    for folder, source in missing.items():
        print(f"{folder} does not exist yet: building it from {source}", flush=True)
        Path(folder).parent.mkdir(parents=True, exist_ok=True)
        local = source.partition(":")[2].partition("?")[0]
        paths = [Path(folder).parent, *([Path(local).resolve()] if local else [])]
        command = [*inside(site, sys.executable, paths), "-m", "vitssl.cli", "shards", "build"]
        if subprocess.run([*command, source, folder], cwd=ROOT, check=False).returncode:
            raise ConfigError(f"data.source: building {folder} from {source} failed; nothing was queued")


def fingerprint(data: Data, where: str) -> str | None:
    """The content hash of a Run's shards; None where they are still to be built.

    Raises:
        ConfigError: the Run asks for other content, or for a split that is not there.
    """
    folder = Path(data.shards)
    if not (folder / "index.json").exists():
        return None
    index = read_index(folder)
    if data.sha256 not in (None, index["sha256"]):
        raise ConfigError(f"{where}: data.sha256: the Run asks for {data.sha256} but {folder} holds {index['sha256']}")
    splits = dict.fromkeys(shard["split"] for shard in index["shards"])
    for field in ("train_split", "test_split"):
        for split in getattr(data, field).split("+"):
            if split not in splits:
                raise unknown(split, splits, f"{where}: data.{field}: {folder}")
    return index["sha256"]


def num_images(data: Data) -> int:
    """Training images of a Run, after `data.images` and the held-out split."""
    index = read_index(Path(data.shards))
    wanted = data.train_split.split("+")
    count = sum(shard["images"] for shard in index["shards"] if shard["split"] in wanted)
    if data.images is not None and data.images.fraction is not None:
        count = round(count * data.images.fraction)
    elif data.images is not None:
        count = min(count, (data.images.per_class or 0) * len(index["classes"]))
    return round(count * (1 - data.val_fraction))
