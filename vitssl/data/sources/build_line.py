"""The command to suggest for a folder that holds images, tars or runs when shards were asked for."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from vitssl.data.sources.folders import A_FIFTH, source_of, walk_images
from vitssl.data.sources.splits import HELD_OUT, TRAIN, first_named, split_folders, subfolders


def holds_runs(folder: str | Path) -> bool:
    """Whether a folder is one of runs, of a sweep or of a single run, so that the images in it are figures."""
    return any(next(Path(folder).glob(f"{depth}{name}"), None) for depth in ("", "*/") for name in ("sweep.json", "run.yaml"))


def build_line(folder: str | Path) -> str | None:
    """Return the command that writes the shards of a folder of images or tars, or None for other folders.

    If a folder of images has no test split, the command holds out a fifth of each class.
    """
    folder = _short(Path(folder))
    if not folder.is_dir():
        return None
    train = first_named(folder, TRAIN)
    tested = bool(split_folders(folder, HELD_OUT))
    base = train if train.is_dir() or tested else folder
    if not base.is_dir() or not any(images for name in subfolders(base) for _, images in walk_images(base / name)):
        tars = _source_of_tars(folder)
        return build_command(tars, _default_out(folder)) if tars else None
    return build_command(source_of(folder, {} if tested else A_FIFTH), _default_out(folder))


def _source_of_tars(folder: Path) -> str | None:
    """Return the source string of the WebDataset in a folder, with its splits by the names of the tars; None if there are no tars."""
    prefixes = sorted({re.sub(r"\d+$", "", path.stem) for path in folder.glob("*.tar")})
    train = next((prefix for prefix in prefixes if prefix.lower().startswith("train")), "")
    test = next((prefix for name in HELD_OUT for prefix in prefixes if prefix.lower().startswith(name)), None)
    return f"wds:{folder}/{train}*.tar" + (f"?test={test}*.tar" if test and train else "") if prefixes else None


def build_command(source: str, out: str | Path) -> str:
    """Return the command that builds ``source`` into ``out``, as it is typed into a shell."""
    return shlex.join(["vitssl", "shards", "build", source, str(out)])


def _short(path: Path) -> Path:
    """Return a path relative to the current folder if it lies in it, as the user would type it."""
    current = Path.cwd()
    return path.absolute().relative_to(current) if path.absolute().is_relative_to(current) and path.absolute() != current else path


def _default_out(folder: Path) -> Path:
    """Return the folder to suggest for the shards of ``folder``, which is never ``folder`` itself."""
    out = Path("shards") / folder.absolute().name
    return out if out.absolute() != folder.absolute() else out.with_name(f"{out.name}-shards")
