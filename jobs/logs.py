"""What a run printed: the end of its newest log, and what is added to it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from vitssl.config import ConfigError
from vitssl.files import read_json
from vitssl.words import printable

PAUSE_S = 0.5
ASKED_EVERY_S = 10.0  # SLURM's controller is, what a run that leaves no record is doing
END_BYTES = 1 << 16  # of a log, in which it says why it ended
TAIL_BYTES = 1 << 20  # of a log's end, in which its last lines are looked for


def newest(folder: Path) -> Path | None:
    """The log of a run's newest attempt: what training printed, or, where none began, what SLURM's job did. None: there is neither."""
    return max(_of_training(folder) or _of_job(folder), key=lambda path: (path.stat().st_mtime_ns, path.name), default=None)


def logs_of(folder: Path) -> list[Path]:
    """The newest log of training, and those of the newest job, to which SLURM writes too."""
    return [*filter(None, [newest(folder)]), *(path for path in _of_job(folder) if path != newest(folder))]


def _of_training(folder: Path) -> list[Path]:
    return list((folder / "log").glob("*.txt"))


def _of_job(folder: Path) -> list[Path]:
    job = read_json(folder / "slurm.json").get("job_id")
    return list((folder.parent / "submitit" / job).glob("*_log.out")) if job else []


def end_of(path: Path) -> str:
    """What a log says last; empty where there is none."""
    if not path.exists():
        return ""
    with path.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, 2) - END_BYTES))
        return stream.read().decode(errors="replace")


def show(folder: Path, lines: int, state: str) -> None:
    """Print the end of a run's newest log, and its path on stderr.

    Raises:
        ConfigError: there is none; why.
    """
    path = newest(folder)
    if path is None:
        raise ConfigError(f"there is no log: the run is {state}", place=str(folder))
    _begin(path, lines)


def follow(folder: Path, lines: int, ended: Callable[[], bool]) -> None:
    """As `show`, and go on with what is added, and with the log of the next attempt, until the run has ended."""
    path: Path | None = None
    place, asked_s = 0, -ASKED_EVERY_S
    while True:
        over = False
        if any((folder / name).exists() for name in ("done.json", "error.json")) or time.monotonic() > asked_s + ASKED_EVERY_S:
            over, asked_s = ended(), time.monotonic()
        latest = newest(folder)  # after that: what was printed before the end is shown
        if path is not None:
            place = _print_from(path, place)
        if latest is not None and latest != path:
            place, path = _begin(latest, lines), latest
        if over:
            return
        time.sleep(PAUSE_S)


def _begin(path: Path, lines: int) -> int:
    """Name a log, and print its last lines; where it ended."""
    print(f"==> {path} <==", file=sys.stderr, flush=True)
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - TAIL_BYTES))
        text = stream.read(TAIL_BYTES)
    _write("".join(_text(text).splitlines(keepends=True)[-lines:]))
    return size


def _print_from(path: Path, place: int) -> int:
    with path.open("rb") as stream:
        stream.seek(place)
        text = stream.read()
    _write(_text(text))
    return place + len(text)


def _text(content: bytes) -> str:
    """What may go to a terminal; a progress line that is drawn again and again is a line each time."""
    return printable(content.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n"))


def _write(text: str) -> None:
    print(text, end="", flush=True)
