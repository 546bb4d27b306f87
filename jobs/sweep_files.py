"""Which file a sweep was named by, and what other files and folders are taken for one."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.overrides import CLI
from vitssl.config import ConfigError, Site, read_yaml
from vitssl.config.base import closest
from vitssl.files import read_json

if TYPE_CHECKING:
    from jobs.sweep import Spec

SWEEPS = Path(__file__).resolve().parents[1] / "sweeps"
ENDINGS = (".yaml", ".yml")


def find(named: str | Path) -> Path:
    """The sweep file of that path or, in the working directory's sweeps/ or the project's, of that name, with or without its ending.

    Raises:
        ConfigError: there is none; it says which one was probably meant.
    """
    path = Path(named)
    if path.is_file():
        if path.suffix not in ("", *ENDINGS):
            raise ConfigError("no sweep file, whose name would end in .yaml; name one, for example sweeps/quickstart.yaml", place=str(path))
        return path
    if path.is_dir():
        raise _folder_error(path)
    if "=" in path.name:
        raise ConfigError(f"{str(path)!r} is not a sweep file; that comes first, then key=value", place=CLI)
    folders = [path.parent, Path("sweeps"), SWEEPS.relative_to(Path.cwd()) if SWEEPS.is_relative_to(Path.cwd()) else SWEEPS]
    there = {file.stem: file for folder in reversed(folders) for file in sorted(folder.glob("*")) if file.suffix in ENDINGS}
    if path.parent == Path() and path.suffix in ("", *ENDINGS) and path.stem in there:
        return there[path.stem]
    near = closest(path.stem, list(there))
    advice = f" (did you mean {there[near[0]]}?)" if near else "; name a sweep file, for example sweeps/quickstart.yaml"
    raise ConfigError(f"there is no such file{advice}", place=str(path))


def _folder_error(folder: Path) -> ConfigError:
    if made_by := read_json(folder / "sweep.json").get("file"):
        return ConfigError(f"this is a folder of runs; name the sweep file that they are of: {made_by}", place=str(folder))
    if (folder / "run.yaml").exists():
        return ConfigError("this is the folder of one run; name the file of a whole sweep", place=str(folder))
    files = sorted((file for file in folder.glob("*") if file.suffix in ENDINGS), key=lambda file: (file.stem != "quickstart", file))
    example = f", for example {files[0]}" if files else ""
    return ConfigError(f"this is a folder; name a sweep file{example}", place=str(folder))


def refuse_other_kinds(content: dict[str, Any], file: str) -> None:
    """Other YAML files that people name: an empty one, a run's and a site's."""
    if not content:
        raise ConfigError("this file is empty; sweeps/README.md has a complete example", place=file)
    if "arms" not in content and content.keys() >= {"objectives", "backbone", "optim"}:
        raise ConfigError("this is one run; name the file of a whole sweep", place=file)
    if "arms" not in content and {"name"} < content.keys() | {"name"} <= {f.name for f in dataclasses.fields(Site)}:
        raise ConfigError(f"this is a site's profile; name a sweep file, and the site with --site {file}", place=file)


def refuse_taken_name(spec: Spec, folder: Path) -> None:
    """Another file of the same `name` would take the place of its report; that of another clone, perhaps of more arms, is the same."""
    other = read_json(folder / "sweep.json").get("file")
    if other and Path(other).is_file() and not _is_of_one_sweep(Path(other), Path(spec.file)):
        free = next(name for name in (Path(spec.file).stem, f"{spec.name}_2") if name != spec.name)
        reason = f"{folder} holds the runs of {other}; give this one a name of its own, such as name={free}"
        raise ConfigError(reason, "name", spec.place("name"))


def _is_of_one_sweep(one: Path, other: Path) -> bool:
    if one.resolve() == other.resolve():
        return True
    arms = [(read_yaml(file).get("arms") or {}).keys() for file in (one, other)]
    return one.name == other.name and (arms[0] <= arms[1] or arms[1] <= arms[0])
