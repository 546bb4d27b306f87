"""Weights from outside a sweep: files, run folders, and released ones (`timm:NAME`), fetched once at submission."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from jobs.graph import Stage
from jobs.node import container_command
from jobs.shards import ROOT
from vitssl.config import ConfigError, Site, assign, check_fits, checkpoints, load

RELEASED = "timm:"
FOLDER = Path("weights")  # in the working directory, as shards/ is


def prepare(stages: Iterable[Stage]) -> dict[str, str]:
    """Replace released weights' names by files; returns {missing file: name} to fetch now: compute nodes often have no internet.

    Raises:
        ConfigError: a file or run folder that does not exist, or the run folder of another network.
    """
    missing: dict[str, str] = {}
    from_outside = ((s, field, value) for s in stages for field, value in checkpoints(s.run).items() if field not in s.pointers)
    for stage, field, value in from_outside:
        with stage.error_location():
            if value.startswith(RELEASED):
                file = (FOLDER / f"{value.removeprefix(RELEASED)}.pt").resolve()
                assign(stage.run, field, str(file))
                if not file.exists():
                    missing[str(file)] = value
            elif not Path(value).exists():
                raise ConfigError(f"there is no {value}; put the weights there, or name another file or run folder", field)
            elif Path(value).is_dir():
                theirs, last = load(value), Path(value) / "last.pt"
                if not (Path(value) / "done.json").exists():  # it would give other weights each time, under the same identity
                    raise ConfigError(f"{value} is not done; let it finish, or name the file of a state of it, such as {last}", field)
                check_fits(stage.run, field, theirs)
    return missing


def fetch(missing: dict[str, str], site: Site) -> None:
    """Download in the foreground, in the site's container if it has one.

    Raises:
        ConfigError: a download failed; its message is printed above.
    """
    for file, name in missing.items():
        print(f"{file} does not exist yet: fetching {name}", flush=True)
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        command = [*container_command(site, sys.executable, [Path(file).parent]), "-m", "vitssl.cli", "weights", name, file]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            raise ConfigError(f"{name} could not be fetched; put its file at {file}, or name another file; nothing was queued", "init_from")
