"""Classification of image files, with a printed line or a row of a CSV file for each."""

from __future__ import annotations

import csv
import dataclasses
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

from rich.progress import track
from torch import Tensor

from vitssl.atomic import replacing
from vitssl.config import ConfigError, Run, checkpoints, dotted, load
from vitssl.paths import check_out
from vitssl.terminal import console
from vitssl.trained import Trained, predict_each
from vitssl.words import as_cell, counted, few, note, one_line

BEST = 5  # classes in a printed line

Write = Callable[[Path, Tensor], None]  # takes the path of an image and its class probabilities (K,)


def check_runs(runs: Sequence[Trained]) -> None:
    """Refuse runs that cannot predict together.

    Raises:
        ConfigError: a run predicts no classes, or other classes than the first run.
    """
    for run in runs:
        run.check_predicts()
        if run.classes != runs[0].classes:
            classes = f"its classes are {few(run.classes)}, and those of {runs[0].folder} {few(runs[0].classes)}"
            raise ConfigError(f"{run.folder}: {classes}, so their probabilities have no mean")


def mixed_runs_note(runs: Sequence[Trained]) -> str | None:
    """Return a note if the runs differ in more than their seeds and the weights they start from, otherwise None.

    A pattern of names may match more runs than was meant.
    """
    all_fields = [_fields(run.run) for run in runs]
    values = {key: Counter(str(fields.get(key)) for fields in all_fields) for key in dict.fromkeys(chain(*all_fields))}
    if not (differ := [key for key, counts in values.items() if len(counts) > 1]):
        return None
    kinds = ", ".join(f"{number} x {value}" for value, number in values[differ[0]].items())
    others = f" and {counted(len(differ) - 1, 'more field')}" if differ[1:] else ""
    return f"averaging {len(runs)} runs that differ in {differ[0]} ({kinds}){others}; name those of one kind alone"


def _fields(run: Run) -> dict[str, Any]:
    """Return {dotted field: value} without seeds and evaluators; a run to start from is given by its own fields instead of its path."""
    fields = dotted(dataclasses.asdict(dataclasses.replace(run, evals={}))) | dict.fromkeys(checkpoints(run), "weights")
    for name, start in checkpoints(run).items():
        with suppress(ConfigError):  # a run that is gone, or damaged, is not needed to predict
            fields |= {f"{name}.{key}": value for key, value in _fields(load(Path(start))).items()}
    return {key: value for key, value in fields.items() if key.split(".")[-1] != "seed"}


def predict(runs: Sequence[Trained], files: Sequence[Path], out: Path | None = None) -> int:
    """Print the best classes of each image, or write all its probabilities as a row of ``out``; several runs are averaged.

    The columns of ``out`` are path, class, probability (of that class), and one column per class with its name.

    Returns:
        The number of images that could not be read; each is named on stderr, and the others have their lines or rows.

    Raises:
        ConfigError: ``out`` exists, or cannot be written.
    """
    unread, classes = 0, runs[0].classes
    if text := mixed_runs_note(runs):
        note(text)
    with _printed(classes) if out is None else _rows(out, classes) as write:
        for path, result in zip(files, _shown(_means(runs, files), len(files), show=out is not None), strict=True):
            if isinstance(result, ConfigError):
                unread += 1
                print(f"error: {result}", file=sys.stderr)
            else:
                write(path, result)
    if out is not None:
        print(f"{out}: {len(files) - unread:,} of {counted(len(files), 'image')}")
    return unread


def _means(runs: Sequence[Trained], files: Sequence[Path]) -> Iterator[Tensor | ConfigError]:
    """Yield the class probabilities (K,) of each image as means over the runs, or the error if the image cannot be read."""
    for result in predict_each(runs, files):
        yield result if isinstance(result, ConfigError) else result.mean(0)


def _shown(results: Iterable, total: int, show: bool) -> Iterable:
    """Return the results, with a progress bar if ``show`` is set and stderr is a terminal."""
    screen = console(stderr=True)
    if not (show and screen.is_terminal):
        return results  # a disabled bar of rich 13 leaves an empty line
    return track(results, "images", total, console=screen, transient=True)


@contextmanager
def _printed(classes: list[str]) -> Iterator[Write]:
    """Yield a function that prints the best classes of an image."""

    def write(path: Path, probabilities: Tensor) -> None:
        best = probabilities.topk(min(BEST, len(classes)))
        shown = "  ".join(f"{classes[k]} {p:.3f}" for p, k in zip(best.values.tolist(), best.indices.tolist(), strict=True))
        print(f"{one_line(os.fsencode(path).decode(errors='replace'))}  {shown}")

    yield write


@contextmanager
def _rows(out: Path, classes: list[str]) -> Iterator[Write]:
    """Yield a function that writes the row of an image to ``out``, which is there once all rows are written."""
    check_out(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with (
        replacing(out) as temporary,
        temporary.open("w", newline="", encoding="utf-8", errors="surrogateescape") as stream,  # file names need not be UTF-8
    ):
        rows = csv.writer(stream, lineterminator="\n")
        rows.writerow(["path", "class", "probability", *map(as_cell, classes)])

        def write(path: Path, probabilities: Tensor) -> None:
            values = [f"{p:.6g}" for p in probabilities.tolist()]
            best = int(probabilities.argmax())
            rows.writerow([as_cell(str(path)), as_cell(classes[best]), values[best], *values])

        yield write
