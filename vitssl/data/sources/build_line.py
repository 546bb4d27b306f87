"""What to type for a folder that holds images, tars or runs where shards were asked for."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from vitssl.data.sources.folders import A_FIFTH, source_of, walk_images
from vitssl.data.sources.splits import HELD_OUT, TRAIN, first_named, split_folders, subfolders


def holds_runs(folder: str | Path) -> bool:
    """Is it a folder of runs, of a sweep or of one run? The images in it are figures."""
    return any(next(Path(folder).glob(f"{depth}{name}"), None) for depth in ("", "*/") for name in ("sweep.json", "run.yaml"))


def build_line(folder: str | Path) -> str | None:
    """The command that writes the shards of a folder of images, with what splits it where it has no test split; None for other folders."""
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
    """The WebDataset in a folder, its splits by the names of the tars; None where there is none."""
    begins = sorted({re.sub(r"\d+$", "", path.stem) for path in folder.glob("*.tar")})
    train = next((begin for begin in begins if begin.lower().startswith("train")), "")
    test = next((begin for name in HELD_OUT for begin in begins if begin.lower().startswith(name)), None)
    return f"wds:{folder}/{train}*.tar" + (f"?test={test}*.tar" if test and train else "") if begins else None


def build_command(source: str, out: str | Path) -> str:
    """As it is typed into a shell."""
    return shlex.join(["vitssl", "shards", "build", source, str(out)])


def _short(path: Path) -> Path:
    """Relative to the current folder, where it lies in it: as the user would type it."""
    here = Path.cwd()
    return path.absolute().relative_to(here) if path.absolute().is_relative_to(here) and path.absolute() != here else path


def _default_out(folder: Path) -> Path:
    out = Path("shards") / folder.absolute().name
    return out if out.absolute() != folder.absolute() else out.with_name(f"{out.name}-shards")
