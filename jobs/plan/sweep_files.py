"""Which file a sweep was named by, and what other files and folders are taken for one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jobs.plan.overrides import CLI
from vitssl.config import ConfigError, read_yaml
from vitssl.config.base import closest, did_you_mean
from vitssl.files import read_json
from vitssl.sweep_folder import SWEEP
from vitssl.version import ROOT

if TYPE_CHECKING:
    from jobs.plan.sweep import Spec

SWEEPS = ROOT / "sweeps"
ENDINGS = (".yaml", ".yml")
EXAMPLE = "name one, for example sweeps/quickstart.yaml"


def find(named: str | Path) -> Path:
    """The sweep file of that path or, in the working directory's sweeps/ or the project's, of that name, with or without its ending."""
    path = Path(named)
    if path.is_file():
        if path.suffix not in ("", *ENDINGS):
            raise ConfigError(f"not a sweep file, whose name ends in .yaml; {EXAMPLE}", place=str(path))
        return path
    if path.is_dir():
        made_by = read_json(path / SWEEP).get("file")
        raise ConfigError(f"this is a folder; name a sweep file, for example {made_by or 'sweeps/quickstart.yaml'}", place=str(path))
    if "=" in path.name:
        raise ConfigError(f"{str(path)!r} is not a sweep file; that comes first, then key=value", place=CLI)
    folders = [path.parent, Path("sweeps"), SWEEPS.relative_to(Path.cwd()) if SWEEPS.is_relative_to(Path.cwd()) else SWEEPS]
    there = {file.stem: file for folder in reversed(folders) for file in sorted(folder.glob("*")) if file.suffix in ENDINGS}
    if path.parent == Path() and path.suffix in ("", *ENDINGS) and path.stem in there:
        return there[path.stem]
    near = [str(there[stem]) for stem in closest(path.stem, list(there))]
    raise ConfigError(f"there is no such file{did_you_mean(near) or f'; {EXAMPLE}'}", place=str(path))


def refuse_taken_name(spec: Spec, folder: Path) -> None:
    """Another file of the same `name` would take the place of its report; that of another clone, perhaps of more arms, is the same."""
    other = read_json(folder / SWEEP).get("file")
    if other and Path(other).is_file() and not _is_of_one_sweep(Path(other), Path(spec.file)):
        free = next(name for name in (Path(spec.file).stem, f"{spec.name}_2") if name != spec.name)
        reason = f"{folder} holds the runs of {other}; give this one a name of its own, such as name={free}"
        raise ConfigError(reason, "name", spec.place("name"))


def _is_of_one_sweep(one: Path, other: Path) -> bool:
    if one.resolve() == other.resolve():
        return True
    arms = [(read_yaml(file).get("arms") or {}).keys() for file in (one, other)]
    return one.name == other.name and (arms[0] <= arms[1] or arms[1] <= arms[0])
