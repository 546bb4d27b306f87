"""What the launcher asks of the training environment, in the site's container if it has one: its own Python may have no torch."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jobs.command import cli_command
from vitssl.config import Run, Site, save
from vitssl.version import ROOT

MISTAKE = 2  # the exit code of a user's


class Refused(Exception):
    """The last line that the command said of why it did not do what was asked."""


class Unreachable(Refused):
    """The environment is not here: a container's program that only compute nodes have, for example."""


def of_runs(command: str, runs: Sequence[Run], classes: Iterable[int], site: Site, files: Iterable[Path] = ()) -> list[dict[str, Any]]:
    """What ``vitssl COMMAND --json`` says of each Run; all in one process, which takes seconds to start.

    Args:
        command: cost or fits.
        runs: of any number.
        classes: how many there are in the images of each.
        site: with the container.
        files: what is read besides.

    Raises:
        Refused: it failed.
    """
    with tempfile.TemporaryDirectory(prefix="vitssl-") as scratch:
        folders = [Path(scratch) / str(i) for i in range(len(runs))]
        for run, folder in zip(runs, folders, strict=True):
            save(run, folder)
        words = [command, *map(str, folders), "--classes", ",".join(map(str, classes)), "--json"]
        said = command_output(words, site, [Path(scratch), *files])
    return [json.loads(line) for line in said.splitlines()]


def command_output(words: Sequence[str], site: Site, paths: Sequence[Path] = ()) -> str:
    """What ``vitssl WORDS`` prints.

    Raises:
        Refused: it failed.
    """
    line = cli_command(site, [ROOT, *paths], *words)
    try:
        result = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Unreachable(f"{line[0]}: {error.strerror}") from None
    if result.returncode:
        said = (result.stderr.strip().splitlines() or ["no message"])[-1].removeprefix("error: ")
        raise (Refused if result.returncode == MISTAKE or site.image is None else Unreachable)(said)
    return result.stdout
