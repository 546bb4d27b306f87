"""Looks into trained networks: numbers about some images, kept in the run folder, and the figure that is drawn of them.

``analysis/NAME.json`` holds the numbers and what they were made of, ``NAME.npz`` the arrays that a figure needs besides, ``NAME.png`` and
``NAME.svg`` the figure; of a teacher they are ``NAME-teacher.json`` and so on, of best.pt ``NAME-best.json``. Reports of sweeps
draw the same numbers of several runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitssl.analysis import attention, grad_cam, maps, selections, tokens
from vitssl.analysis.base import Numbers, Sample
from vitssl.analysis.pictures import PICTURES
from vitssl.atomic import replacing
from vitssl.config import ConfigError
from vitssl.files import write_json
from vitssl.paths import note_left_out
from vitssl.report.figures import analyses
from vitssl.run_folder import LAST
from vitssl.trained import Trained


@dataclass(frozen=True)
class Analysis:
    """One kind of look.

    Attributes:
        measure: gives the numbers.
        part: gives what it looks at, or raises a ConfigError that says why there is none.
        images: how many it draws unless told.
    """

    measure: Callable[[Trained, Sample], Numbers]
    part: Callable[[Trained], Any]
    images: int = 1000


KINDS = {
    "attention": Analysis(attention.measure, attention.transformer_of),
    "tokens": Analysis(tokens.measure, tokens.places_of),
    "maps": Analysis(maps.measure, attention.transformer_of, PICTURES),
    "grad-cam": Analysis(grad_cam.measure, grad_cam.place_of, PICTURES),
    "selections": Analysis(selections.measure, selections.selection_of),
    "mask-attention": Analysis(attention.to_masked_tokens, selections.selection_of),
}


def analyze_each(
    folders: Sequence[Path], name: str, load: Callable[[Path], Trained], sample_of: Callable[[Trained], Sample]
) -> Iterator[Path]:
    """`analyze` several runs, of which one at a time is loaded; those that an analysis finds nothing in are left out, which is said.

    Raises:
        ConfigError: as `analyze`; and where nothing is found in any of them, what the first one lacks.
    """
    left: dict[Path, ConfigError] = {}
    for folder in folders:
        trained = load(folder)
        try:
            KINDS[name].part(trained)
        except ConfigError as error:
            left[folder] = ConfigError(error.reason, error.field, str(folder))  # without the traceback, which holds the network
        else:
            yield analyze(trained, name, sample_of(trained))
        del trained  # before the next one is loaded
    if folders and not {*folders} - left.keys():
        raise left[folders[0]]
    note_left_out(list(left), "in which there is nothing of the kind")


def analyze(trained: Trained, name: str, sample: Sample) -> Path:
    """Write the numbers and the figure of an analysis into the run folder; an earlier one of the same weights is replaced.

    Args:
        name: of KINDS; with other weights than the model's last ones, the files are called after these too.
        sample: the images that it looks at.

    Returns:
        The figure, a PNG.

    Raises:
        ConfigError: a network that has nothing of the kind.
    """
    numbers = KINDS[name].measure(trained, sample)
    folder, which = trained.folder / "analysis", {"model": trained.weights, Path(LAST).stem: Path(trained.checkpoint).stem}
    stem = "-".join([name, *(value for usual, value in which.items() if value != usual)])
    folder.mkdir(exist_ok=True)
    write_json(folder / f"{stem}.json", sample.facts() | numbers.facts)
    if numbers.arrays:
        with replacing(folder / f"{stem}.npz") as temporary, temporary.open("wb") as stream:
            np.savez_compressed(stream, **numbers.arrays)
    return analyses.save(folder, name, stem)
