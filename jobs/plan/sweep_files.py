"""Finding the sweep file that a user names, and refusing a sweep whose folder already holds another file's runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jobs.plan.overrides import CLI
from vitssl.config import ConfigError, read_yaml
from vitssl.config.base import closest, did_you_mean
from vitssl.files import read_json
from vitssl.sweep_folder import SWEEP, SWEEP_FILE
from vitssl.version import ROOT

if TYPE_CHECKING:
    from jobs.plan.sweep import Spec

SWEEPS = ROOT / "sweeps"
ENDINGS = (".yaml", ".yml")
EXAMPLE = "name one, for example sweeps/quickstart.yaml"


def find(named: str | Path) -> Path:
    """Return the sweep file that ``named`` means.

    That is a path, or the name of a file, with or without its ending, in the working directory, its sweeps/ or the project's sweeps/.

    Raises:
        ConfigError: there is no such file, or it is no sweep file.
    """
    path = Path(named)
    if path.is_file():
        if path.suffix not in ("", *ENDINGS):
            raise ConfigError(f"not a sweep file, whose name ends in .yaml; {EXAMPLE}", place=str(path))
        return path
    if path.is_dir():
        files = filter(None, (read_json(path / SWEEP).get("file"), path / SWEEP_FILE))
        example = next((file for file in files if Path(file).is_file()), "sweeps/quickstart.yaml")
        raise ConfigError(f"this is a folder; name a sweep file, for example {example}", place=str(path))
    if "=" in path.name:
        raise ConfigError(f"{str(path)!r} is not a sweep file; that comes first, then key=value", place=CLI)
    folders = [path.parent, Path("sweeps"), SWEEPS.relative_to(Path.cwd()) if SWEEPS.is_relative_to(Path.cwd()) else SWEEPS]
    by_stem = {file.stem: file for folder in reversed(folders) for file in sorted(folder.glob("*")) if file.suffix in ENDINGS}
    if path.parent == Path() and path.suffix in ("", *ENDINGS) and path.stem in by_stem:
        return by_stem[path.stem]
    similar = [str(by_stem[stem]) for stem in closest(path.stem, list(by_stem))]
    raise ConfigError(f"there is no such file{did_you_mean(similar) or f'; {EXAMPLE}'}", place=str(path))


def refuse_taken_name(spec: Spec, folder: Path) -> None:
    """Refuse a sweep with the `name` of another file's sweep, whose report it would replace.

    The same file in another clone of the project is accepted, and so is the copy in the folder, even if one of the two has more arms.
    """
    other = read_json(folder / SWEEP).get("file")
    if other and Path(other).is_file() and not _is_of_one_sweep(Path(other), Path(spec.file), folder / SWEEP_FILE):
        free = next(name for name in (Path(spec.file).stem, f"{spec.name}_2") if name != spec.name)
        reason = f"{folder} holds the runs of {other}; give this one a name of its own, such as name={free}"
        raise ConfigError(reason, "name", spec.place("name"))


def _is_of_one_sweep(one: Path, other: Path, copy: Path) -> bool:
    """Whether two paths are the same file, or two files of the same name, or one and the ``copy``, with all arms of one in the other."""
    if one.resolve() == other.resolve():
        return True
    arms = [(read_yaml(file).get("arms") or {}).keys() for file in (one, other)]
    is_copied = copy.resolve() in (one.resolve(), other.resolve())
    return (one.name == other.name or is_copied) and (arms[0] <= arms[1] or arms[1] <= arms[0])
