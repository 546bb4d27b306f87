"""Weights from outside a sweep: files, run folders, released ones (`timm:NAME`), fetched once at submission, and files of other code
(`import:LAYOUT:FILE`), imported then.
"""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Iterable
from pathlib import Path

from jobs.command import cli_command
from jobs.plan import ask
from jobs.plan.architecture import architecture
from jobs.plan.cells import Stage
from jobs.plan.shards import expected_index
from vitssl.config import ConfigError, Run, Site, assign, check_fits, checkpoints, load
from vitssl.config.weights import FOLDER, IMPORT, RELEASED, imported_folder, layout_and_file
from vitssl.files import hash_file
from vitssl.run_folder import LAST, is_trained
from vitssl.version import ROOT
from vitssl.words import note

START, USUAL = ("init_from", "init_weights", "init_objectives", "init_except"), Run()  # the fields of what a Run starts from


def prepare(stages: Iterable[Stage]) -> dict[str, str]:
    """Replace the names of released weights and of imports by files and run folders.

    Gives {missing file or folder: name} to fetch now: compute nodes often have no internet, and one import serves all runs. What is there
    is checked; so it is to be called again after the fetch.

    Raises:
        ConfigError: a file or run folder that does not exist, or the run folder of another network.
    """
    missing: dict[str, str] = {}
    from_outside = ((s, field, value) for s in stages for field, value in checkpoints(s.run).items() if field not in s.pointers)
    for stage, field, value in from_outside:
        with stage.error_location():
            path = _place(value, field)
            if path is not None:
                assign(stage.run, field, str(path))
                if not (path.is_file() or is_trained(path)):
                    missing[str(path)] = value
                    continue
            _check(stage, field, Path(value) if path is None else path)
    return missing


def _place(value: str, field: str) -> Path | None:
    """The file that a released network is fetched to, or the run folder that a file is imported to; None: it is no such name."""
    if value.startswith(RELEASED):
        return (FOLDER / f"{value.removeprefix(RELEASED)}.pt").resolve()
    if not value.startswith(IMPORT):
        return None
    layout, file = layout_and_file(value, field)
    if not file.is_file():
        raise ConfigError(f"there is no file {file}; put the weights there, or name another file", field)
    return imported_folder(layout, file, hash_file(file)).resolve()


def _check(stage: Stage, field: str, path: Path) -> None:
    if not path.exists():
        raise ConfigError(f"there is no {path}; put the weights there, or name another file or run folder", field)
    if path.is_dir():
        theirs, last = load(path), path / LAST
        if not is_trained(path):  # it would give other weights each time, under the same identity
            raise ConfigError(f"{path} is not finished; let it finish, or name one of its checkpoints, such as {last}", field)
        check_fits(stage.run, field, theirs)


def check_names(missing: dict[str, str], site: Site) -> None:
    """Are there such released weights? Asked in the training environment, in the site's container if it has one."""
    for name in dict.fromkeys(name for name in missing.values() if name.startswith(RELEASED)):
        try:
            ask.command_output(["weights", name], site)
        except ask.Refused as refused:
            raise ConfigError(f"{name}: {refused}", "init_from") from None


def check_networks(stages: Iterable[Stage], site: Site) -> None:
    """Does each file to start from fit its network, and has timm the networks that it is to have? Only tensors and timm tell, which are
    where training is; where that cannot be asked, it is seen when a run starts.

    Raises:
        ConfigError: one does not, or timm has not.
    """
    asked: dict[tuple, tuple[Stage, Run, int]] = {}  # the first of those whose answer is the same
    for stage in stages:
        run, index = stage.run, expected_index(stage.run.data)
        from_file = run.init_from is not None and "init_from" not in stage.pointers and Path(run.init_from).is_file()
        if index is not None and (from_file or run.backbone.timm_model):
            run = run if from_file else dataclasses.replace(run, **{name: getattr(USUAL, name) for name in START})
            start = [str(getattr(run, name)) for name in START]
            key = (architecture(run), len(index.classes), *start, run.optim.layer_decay, *run.optim.decay)
            asked.setdefault(key, (stage, run, len(index.classes)))
    if not asked:
        return
    among, runs, classes = zip(*asked.values(), strict=True)
    try:
        said = ask.of_runs("fits", runs, classes, site, [Path(run.init_from) for run in runs if run.init_from])
    except ask.Unreachable as unreachable:
        note(f"whether files of weights and networks of timm fit is seen when runs start: {unreachable}")
        return
    except ask.Refused as refused:
        raise ConfigError(f"vitssl fits failed: {refused}") from None
    for stage, problem in zip(among, said, strict=True):
        if problem:
            with stage.error_location():
                raise ConfigError(**problem)


def fetch(missing: dict[str, str], site: Site) -> None:
    """Download or import in the foreground, in the site's container if it has one."""
    for path, name in missing.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        binds, words, done = [Path(path).parent], ["weights", name, path], "fetched"
        if name.startswith(IMPORT):
            layout, file = layout_and_file(name)
            binds, words, done = [*binds, file.resolve().parent], ["import", str(file.resolve()), "--as", layout, "--out", path], "imported"
        print(f"{path} does not exist yet: {'importing' if done == 'imported' else 'fetching'} {name}", flush=True)
        if subprocess.run(cli_command(site, binds, *words), cwd=ROOT, check=False).returncode:
            what = "put its file at" if done == "fetched" else "import it by hand (vitssl import --help) to"
            raise ConfigError(f"{name} could not be {done}; {what} {path}, or name another file; nothing was queued", "init_from")
