"""Questions to the training environment, in the site's container if it has one, as the launcher's own Python may have no torch."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jobs.command import cli_command
from vitssl.config import Run, Site, save
from vitssl.version import ROOT, SOURCE

MISTAKE = 2  # the exit code of a user's mistake


class Refused(Exception):
    """The command failed; the message is the last line that it printed."""


class Unreachable(Refused):
    """The training environment cannot be used from here, for example because only compute nodes have the container's program."""


def of_runs(command: str, runs: Sequence[Run], classes: Iterable[int], site: Site, files: Iterable[Path] = ()) -> list[dict[str, Any]]:
    """Return what ``vitssl COMMAND --json`` says of each Run, asked in a single process, which takes seconds to start.

    Args:
        command: cost or fits.
        runs: any number of Runs.
        classes: the number of classes of each Run's images.
        site: the site, whose container is used if it has one.
        files: further files that the command reads.

    Raises:
        Refused: the command failed.
    """
    with tempfile.TemporaryDirectory(prefix="vitssl-") as scratch:
        folders = [Path(scratch) / str(i) for i in range(len(runs))]
        for run, folder in zip(runs, folders, strict=True):
            save(run, folder)
        words = [command, *map(str, folders), "--classes", ",".join(map(str, classes)), "--json"]
        output = command_output(words, site, [Path(scratch), *files])
    return [json.loads(line) for line in output.splitlines()]


def command_output(words: Sequence[str], site: Site, paths: Sequence[Path] = ()) -> str:
    """Return what ``vitssl WORDS`` prints.

    Args:
        words: the command and its arguments.
        site: the site, whose container is used if it has one.
        paths: files and folders that the command reads, besides the project's.

    Raises:
        Refused: the command failed.
    """
    line = cli_command(site, [ROOT, *paths], *words)
    try:
        result = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Unreachable(f"{line[0]}: {error.strerror}") from None
    if result.returncode:
        raise (Refused if result.returncode == MISTAKE or site.image is None else Unreachable)(_reason(result.stderr))
    return result.stdout


def _reason(printed: str) -> str:
    """Return the last line that a command printed to stderr; of a traceback, with the last place in our own source."""
    message = (printed.strip().splitlines() or ["no message"])[-1].removeprefix("error: ")
    folders = f"{re.escape(str(ROOT))}/((?:{'|'.join(SOURCE)})/.+)"
    places = re.findall(rf'^  File "{folders}", line (\d+), in ', printed, re.MULTILINE)
    return f"{message} ({':'.join(places[-1])})" if places else message
