"""Arguments, checks and notes that the groups of commands share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vitssl.words import counted, note

if TYPE_CHECKING:
    from vitssl.arguments import Parser
    from vitssl.config import Run

WEIGHTS = "model, ema (averaged weights, if the run has loop.ema_decay), teacher (a backbone only) or best (--checkpoint best.pt)"
BEST_WEIGHTS = "best"


def command(
    commands: argparse._SubParsersAction[Parser], name: str, call: object, help_text: str, elsewhere: dict[str, str] | None = None
) -> Callable[..., argparse.Action]:
    """Add a command that runs ``call``, and return the function that adds its arguments.

    Args:
        elsewhere: what to type for options that people look for here, by option.
    """
    parser = commands.add_parser(name, help=help_text, description=help_text)
    parser.elsewhere = elsewhere or {}
    parser.set_defaults(call=call)
    return parser.add_argument


def add_set(add: Callable[..., object], meaning: str) -> None:
    add("--set", nargs="+", default=[], type=assignment, dest="fields", metavar="field=value", help=meaning)


def add_weights(add: Callable[..., object], choices: Sequence[str] | None = ("model", "ema", "teacher"), meaning: str = WEIGHTS) -> None:
    choices = choices and [*choices, BEST_WEIGHTS]
    add("--weights", default="model", choices=choices, help=meaning)
    add("--checkpoint", default="last.pt", help="checkpoint in the run folder, for example best.pt (default: %(default)s)")


def resolve_best(arguments: argparse.Namespace) -> None:
    """Let ``--weights best`` stand for the weights of best.pt, as it does in a configuration.

    Raises:
        ConfigError: another checkpoint is named too.
    """
    if getattr(arguments, "weights", None) != BEST_WEIGHTS or not hasattr(arguments, "checkpoint"):
        return
    from vitssl.config import ConfigError
    from vitssl.run_folder import BEST, LAST

    if arguments.checkpoint not in (BEST, LAST):
        raise ConfigError(f"best means those of {BEST}; leave out one of the two", f"--weights best --checkpoint {arguments.checkpoint}")
    arguments.weights, arguments.checkpoint = "model", BEST


def add_runs(add: Callable[..., object]) -> None:
    """Add the arguments that `runs_and_classes` reads."""
    add("runs", nargs="+", type=Path, metavar="run", help="run folder or run.yaml")
    add(
        "--classes",
        type=numbers,
        help="number of classes per run, comma-separated (0: no labels); needed if neither job.json nor the shards tell",
    )
    add("--json", action="store_true", help="print one line of JSON per run")


def runs_and_classes(arguments: argparse.Namespace) -> tuple[list[Path], list[Run], list[int]]:
    """Return the run folders, their Runs (trained or not), and the number of classes of each."""
    from vitssl import config

    folders = checked_run_folders(arguments.runs)
    runs = [config.load(folder) for folder in folders]
    classes = arguments.classes or list(map(_num_classes, folders, runs))
    if len(classes) != len(runs):
        raise config.ConfigError(f"{counted(len(classes), 'number')} for {counted(len(runs), 'run')}", "--classes")
    return folders, runs, classes


def _num_classes(folder: Path, run: Run) -> int:
    """Return a run's number of classes as its launcher recorded it, or else by its shards.

    Raises:
        ConfigError: neither tells.
    """
    from vitssl.config import NO_SHARDS, ConfigError
    from vitssl.data.index import load_index
    from vitssl.files import read_json
    from vitssl.run_folder import JOB

    if recorded := read_json(folder / JOB).get("data"):
        return recorded["classes"]
    if run.data.shards == NO_SHARDS:
        raise ConfigError("it was imported without images, which would tell its classes; add --classes N (0: no labels)", place=str(folder))
    return len(load_index(run.data.shards).classes)


def assignment(text: str) -> str:
    if "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not field=value")
    return text


def positive(text: str) -> int:
    return at_least(1, text)


def not_negative(text: str) -> int:
    return at_least(0, text)


def at_least(least: int, text: str) -> int:
    if not text.lstrip("-").isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least {least}")
    return int(text)


def numbers(text: str) -> list[int]:
    return [not_negative(part) for part in text.split(",")]


def names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def agreed(question: str) -> bool:
    """Ask at the terminal, and return whether the answer is y or yes.

    Raises:
        ConfigError: there is no terminal.
    """
    from vitssl.config import ConfigError

    if not sys.stdin.isatty():
        raise ConfigError(f"{question} There is no terminal to ask at; add --yes to agree")
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def checked_run_folder(path: Path) -> Path:
    """Return the folder of the run that ``path`` names, after checking that its run.yaml can be read.

    A mistake is thus reported before torch is loaded, which takes seconds.

    Raises:
        ConfigError: ``path`` names no run, or its run.yaml cannot be read.
    """
    return checked_run_folders([path])[0]


def checked_run_folders(paths: Sequence[Path], checkpoint: str | None = None) -> list[Path]:
    """Return the folders of the runs that ``paths`` name, after checking that the run.yaml of each can be read.

    If any of the runs has ``checkpoint``, those without it are left out, and a note says so.

    Raises:
        ConfigError: a path names no run, or a run.yaml cannot be read.
    """
    from vitssl import config
    from vitssl.paths import find_run_folders, note_left_out

    folders = find_run_folders(paths)
    for folder in folders:
        config.load(folder)
    chosen = [folder for folder in folders if checkpoint is None or (folder / checkpoint).exists()]
    if chosen:
        note_left_out([folder for folder in folders if folder not in chosen], f"without {checkpoint}")
    return chosen or folders


def note_checkpoint(folders: Sequence[Path], checkpoint: str, weights: str = "model") -> None:
    """Print a note on each run that is not fully trained, and one if last.pt is used where held-out images chose earlier epochs."""
    from vitssl.run_folder import LAST, is_trained

    for folder in folders:
        if not is_trained(folder):
            which = "its newest checkpoint" if checkpoint == LAST else checkpoint
            note(f"{folder} is not finished; using the weights of {which}")
    own = checkpoint == LAST and weights == "model"  # best.pt holds no others
    if earlier := [folder for folder in folders if own and is_trained(folder) and _chose_earlier(folder)]:
        whose = "this run" if len(folders) == 1 else f"{len(earlier)} of {counted(len(folders), 'run')}"
        note(f"using the last epoch; held-out images chose an earlier one of {whose}, which --weights best uses")


def _chose_earlier(folder: Path) -> bool:
    from vitssl.files import read_json
    from vitssl.run_folder import BEST, DONE

    done = read_json(folder / DONE)
    return (folder / BEST).exists() and (done.get("selected") or {}).get("epoch", done["epochs"]) < done["epochs"]
