"""What the launcher needs of a data set's shards: that they exist, which content they hold, how many images."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from jobs.graph import Stage
from jobs.node import inside
from jobs.sweep import unknown
from vitssl.config import ConfigError, Run, Site, needs_labels
from vitssl.data.index import Index, load_index
from vitssl.data.subset import train_and_heldout

ROOT = Path(__file__).resolve().parents[1]


@functools.cache
def index_of(folder: Path) -> Index:
    """The index of a folder of shards, with every shard there in its full length.

    Raises:
        ConfigError: naming the file that is missing or damaged.
    """
    try:
        return load_index(folder)
    except ValueError as error:
        raise ConfigError(f"data.shards: {error}") from None


def prepare(stages: Iterable[Stage]) -> dict[str, str]:
    """Make the paths of every stage's data absolute; gives {missing folder: source to build it from}.

    Raises:
        ConfigError: shards that are missing and cannot be built.
    """
    missing: dict[str, str] = {}
    for stage in stages:
        data = stage.run.data
        data.shards = str(Path(data.shards).expanduser().resolve())
        data.source = data.source and _anchored(data.source)
        if not (Path(data.shards) / "index.json").exists():
            if data.source is None:
                raise ConfigError(
                    f"{stage.where}: data.shards: {data.shards} holds no index.json; "
                    f"build it with `vitssl shards build SOURCE {data.shards}` or set data.source"
                )
            missing[data.shards] = data.source
    return missing


def _path_in(source: str) -> str:
    """The path that a source names: folder:PATH, idx:PATH, csv:PATH or torchvision:NAME?root=PATH; empty where it names none."""
    kind, _, rest = source.partition(":")
    return rest.partition("?root=")[2] if kind == "torchvision" else rest


def _anchored(source: str) -> str:
    """The source with its path made absolute: it is the user's, while shards are built from within the project."""
    path = _path_in(source)
    return source.removesuffix(path) + str(Path(path).expanduser().resolve()) if path else source


def build(missing: dict[str, str], site: Site) -> None:
    """Build shards in the foreground, in the site's container if it has one.

    Raises:
        ConfigError: a build failed; its own message stands above.
    """
    for folder, source in missing.items():
        print(f"{folder} does not exist yet: building it from {source}", flush=True)
        Path(folder).parent.mkdir(parents=True, exist_ok=True)
        paths = [Path(folder).parent, *_existing(_path_in(source))]
        command = [*inside(site, sys.executable, paths), "-m", "vitssl.cli", "shards", "build"]
        if subprocess.run([*command, source, folder], cwd=ROOT, check=False).returncode:
            raise ConfigError(f"data.source: building {folder} from {source} failed; nothing was queued")


def _existing(path: str) -> list[Path]:
    """The path, or the nearest folder above it that exists: what a container must see to read it, or to make it."""
    return [next(p for p in (Path(path), *Path(path).parents) if p.exists())] if path else []


def fingerprint(run: Run, where: str) -> str | None:
    """The content hash of a Run's shards; None where they are still to be built.

    Raises:
        ConfigError: the Run asks for other content, for a split that is not there, or for more images than there are;
            or its batch is larger than all of them.
    """
    folder = Path(run.data.shards)
    if not (folder / "index.json").exists():
        return None
    index = index_of(folder)
    if run.data.sha256 not in (None, index.sha256):
        raise ConfigError(f"{where}: data.sha256: the Run asks for {run.data.sha256} but {folder} holds {index.sha256}")
    for field in ("train_split", "test_split"):
        for split in getattr(run.data, field).split("+"):
            if split not in index.splits:
                raise unknown(split, index.splits, f"{where}: data.{field}: {folder}")
    try:
        images = num_images(run)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if run.optim.batch_size > images * run.data.repeats:
        raise ConfigError(f"{where}: optim.batch_size: {run.optim.batch_size} is more than the {images} images to train on; set it lower")
    return index.sha256


def describe(run: Run) -> str:
    """What a Run's shards hold, for people: a folder may be called otherwise than what was put into it."""
    index = index_of(Path(run.data.shards))
    counts = {split: sum(shard["images"] for shard in index.shards if shard["split"] == split) for split in index.splits}
    listed = ", ".join(f"{count:,} {split}" for split, count in counts.items())
    return f"{run.data.shards}: {index.name}, {len(index.classes)} classes, {listed} images"


_COUNTED: dict[str, int] = {}


def num_images(run: Run) -> int:
    """How many images a Run trains on: after `data.images`, the held-out split, and labels that it cannot do without.

    Raises:
        ConfigError: `data` asks for what the shards do not have.
    """
    need_labels = needs_labels(run)
    key = f"{run.data}{need_labels}"
    if key not in _COUNTED:
        _COUNTED[key] = len(train_and_heldout(index_of(Path(run.data.shards)), run.data, need_labels).train)
    return _COUNTED[key]
