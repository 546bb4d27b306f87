"""Commands that build, check and describe shards."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vitssl.cli.base import command, positive
from vitssl.words import note, printable


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add the command shards, with its actions."""
    parser = commands.add_parser("shards", help="build, check or describe WebDataset shards")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    add = command(actions, "build", _build, "write tar shards and index.json; continues an interrupted build")
    sources = "digits, folder:PATH, folder:PATH?test=0.2 (holds out a fifth of each class), torchvision:NAME, "
    add("source", help=f"{sources}list:PATH?train=FILE&test=FILE, cub:PATH, npz:FILE, idx:PATH, csv:FILE or wds:TARS?test=TARS")
    add("out", type=Path, help="the folder to write, for example shards/photos")
    add("--workers", type=positive, default=None, help="number of processes; default: one per core")
    add("--skip-bad", action="store_true", help="skip images that cannot be read; `shards info` lists them")
    add("--rebuild", action="store_true", help="replace the shards in OUT; the old ones stay until the new ones are complete")
    add = command(actions, "verify", _verify, "read every byte and decode every image")
    add("folder", type=Path)
    add = command(actions, "info", _info, "show counts, classes and statistics")
    add("folder", type=Path)


def _build(arguments: argparse.Namespace) -> None:
    from vitssl.data import shards
    from vitssl.data.sources import opening

    opening.check_order(arguments.source, arguments.out)
    for line in opening.folder_notes(arguments.source):
        note(line)
    build = shards.rebuild if arguments.rebuild else shards.build
    try:
        index = build(arguments.source, arguments.out, workers=arguments.workers, skip_bad=arguments.skip_bad, progress=True)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("what is written is kept; the same command continues the build") from None
    print(printable(shards.info(arguments.out)))
    if len(index.classes) == 1:
        note(f"all images belong to one class, {index.classes[0]}: there is nothing to classify")


def _verify(arguments: argparse.Namespace) -> int:
    from vitssl.data import shards

    problems = shards.verify(arguments.folder)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if problems:
        return 2
    print(f"{arguments.folder}: all shards and images are intact")
    return 0


def _info(arguments: argparse.Namespace) -> None:
    from vitssl.data import shards

    print(printable(shards.info(arguments.folder)))
