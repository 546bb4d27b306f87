"""Weights from outside a sweep, which are checked, fetched and imported once, at submission.

They are checkpoint files, run folders, released weights (`timm:NAME`), which are fetched, and files of other code (`import:LAYOUT:FILE`),
which are imported.
"""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Iterable
from pathlib import Path

from jobs.command import cli_command
from jobs.plan import questions
from jobs.plan.architecture import architecture
from jobs.plan.cells import Stage
from jobs.plan.existing_runs import hash_once
from jobs.plan.shards import expected_index
from vitssl.config import ConfigError, Run, Site, assign, check_fits, checkpoints, load
from vitssl.config.weights import FOLDER, IMPORT, RELEASED, imported_folder, layout_and_file
from vitssl.run_folder import LAST, is_trained
from vitssl.version import ROOT
from vitssl.words import note

# the fields that name what a Run starts from, and a Run with their defaults
START, USUAL = ("init_from", "init_weights", "init_objectives", "init_except"), Run()


def prepare(stages: Iterable[Stage]) -> dict[str, str]:
    """Replace the names of released weights and imports by files and run folders, and return {missing path: name} to fetch now.

    They are fetched at submission as compute nodes often have no internet, and as one import serves all runs. Weights that exist are
    checked, so this is called again after the fetch.

    Raises:
        ConfigError: a file or run folder does not exist, or a run folder is unfinished or holds another network.
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
    """Return the file to fetch released weights to, or the run folder to import a file to; None for any other ``value``."""
    if value.startswith(RELEASED):
        return (FOLDER / f"{value.removeprefix(RELEASED)}.pt").resolve()
    if not value.startswith(IMPORT):
        return None
    layout, file = layout_and_file(value, field)
    if not file.is_file():
        raise ConfigError(f"there is no file {file}; put the weights there, or name another file", field)
    return imported_folder(layout, file, hash_once(file)).resolve()


def _check(stage: Stage, field: str, path: Path) -> None:
    """Check that the weights at ``path`` exist and, if it is a run folder, that the run is finished and fits the stage."""
    if not path.exists():
        raise ConfigError(f"there is no {path}; put the weights there, or name another file or run folder", field)
    if path.is_dir():
        parent, last = load(path), path / LAST
        if not is_trained(path):  # its weights still change, while its identity stays the same
            named = f", or name one of its checkpoints, such as {last}" if last.exists() else ""
            raise ConfigError(f"{path} is not finished; let it finish{named}", field)
        check_fits(stage.run, field, parent)


def check_names(missing: dict[str, str], site: Site) -> None:
    """Check that the released weights exist, by asking the training environment, in the site's container if it has one."""
    for name in dict.fromkeys(name for name in missing.values() if name.startswith(RELEASED)):
        try:
            questions.command_output(["weights", name], site)
        except questions.Refused as refused:
            raise ConfigError(f"{name}: {refused}", "init_from") from None


def check_networks(stages: Iterable[Stage], site: Site) -> None:
    """Check that each file to start from fits its network, and that timm has the networks that Runs name.

    Only the tensors and timm can tell, so the training environment is asked. If it cannot be asked from here, a misfit shows when a run
    starts.

    Raises:
        ConfigError: a file does not fit, or timm does not have the network.
    """
    distinct: dict[tuple, tuple[Stage, Run, int]] = {}  # one stage for each different network and start
    for stage in stages:
        run, index = stage.run, expected_index(stage.run.data)
        from_file = run.init_from is not None and "init_from" not in stage.pointers and Path(run.init_from).is_file()
        if index is not None and (from_file or run.backbone.timm_model):
            run = run if from_file else dataclasses.replace(run, **{name: getattr(USUAL, name) for name in START})
            start = [str(getattr(run, name)) for name in START]
            key = (architecture(run), len(index.classes), *start, run.optim.layer_decay, *run.optim.decay)
            distinct.setdefault(key, (stage, run, len(index.classes)))
    if not distinct:
        return
    question_stages, runs, classes = zip(*distinct.values(), strict=True)
    try:
        problems = questions.of_runs("fits", runs, classes, site, [Path(run.init_from) for run in runs if run.init_from])
    except questions.Unreachable as unreachable:
        note(f"whether files of weights and networks of timm fit is seen when runs start: {unreachable}")
        return
    except questions.Refused as refused:
        raise ConfigError(f"vitssl fits failed: {refused}") from None
    for stage, problem in zip(question_stages, problems, strict=True):
        if problem:
            with stage.error_location():
                raise ConfigError(**problem)


def fetch(missing: dict[str, str], site: Site) -> None:
    """Download or import the ``missing`` weights in the foreground, in the site's container if it has one.

    Args:
        missing: {path to write: name}, as `prepare` returns it.
        site: the site whose container is used.

    Raises:
        ConfigError: a download or an import failed.
    """
    for path, name in missing.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        binds, words, done = [Path(path).parent], ["weights", name, path], "fetched"
        if name.startswith(IMPORT):
            layout, file = layout_and_file(name)
            binds, words, done = [*binds, file.resolve().parent], ["import", str(file.resolve()), "--as", layout, "--out", path], "imported"
        print(f"{path} does not exist yet: {'importing' if done == 'imported' else 'fetching'} {name}", flush=True)
        if subprocess.run(cli_command(site, binds, *words), cwd=ROOT, check=False).returncode:
            advice = "put its file at" if done == "fetched" else "import it by hand (vitssl import --help) to"
            raise ConfigError(f"{name} could not be {done}; {advice} {path}, or name another file; nothing was queued", "init_from")
