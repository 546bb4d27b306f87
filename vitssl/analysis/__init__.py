"""Analyses of trained networks: numbers computed from some images, kept in the run folder, and a figure drawn from them.

``analysis/NAME.json`` holds the numbers and their origin, ``NAME.npz`` further arrays that the figure needs, ``NAME.png``,
``NAME.svg`` and ``NAME.pdf`` the figure. Files of a teacher are called ``NAME-teacher.json`` and so on, those of best.pt
``NAME-best.json``. Reports of sweeps draw the same numbers for several runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitssl.analysis import attention, grad_cam, maps, selections, tokens
from vitssl.analysis.base import DrawnImages, Numbers
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
    """One kind of analysis.

    Attributes:
        measure: returns the numbers.
        part: returns the part of the network that is analysed, or raises a ConfigError that says why there is none.
        images: default number of images.
    """

    measure: Callable[[Trained, DrawnImages], Numbers]
    part: Callable[[Trained], Any]
    images: int = 1000


KINDS = {
    "attention": Analysis(attention.measure, attention.transformer_of),
    "tokens": Analysis(tokens.measure, tokens.multi_token_layers),
    "maps": Analysis(maps.measure, attention.transformer_of, PICTURES),
    "grad-cam": Analysis(grad_cam.measure, grad_cam.target_layer, PICTURES),
    "selections": Analysis(selections.measure, selections.selection_of),
    "mask-attention": Analysis(attention.to_masked_tokens, selections.selection_of),
}


def analyze_each(
    folders: Sequence[Path], name: str, load: Callable[[Path], Trained], draw_of: Callable[[Trained], DrawnImages]
) -> Iterator[Path]:
    """Run `analyze` on several runs, loading one at a time, and yield the figures.

    Runs without the part that is analysed are left out with a note.

    Args:
        folders: of the runs.
        name: of the analysis, a key of KINDS.
        load: loads the run in a folder.
        draw_of: draws the images for a run.

    Raises:
        ConfigError: as in `analyze`; if no run has the part, it says what the first one lacks.
    """
    left_out: dict[Path, ConfigError] = {}
    for folder in folders:
        trained = load(folder)
        try:
            KINDS[name].part(trained)
        except ConfigError as error:
            reason = error.reason.removeprefix(f"{folder}: ")
            left_out[folder] = ConfigError(reason, error.field, str(folder))  # without the traceback, which holds the network
        else:
            yield analyze(trained, name, draw_of(trained))
        del trained  # before the next one is loaded
    if folders and not {*folders} - left_out.keys():
        raise left_out[folders[0]]
    note_left_out(list(left_out), "in which there is nothing of the kind")


def analyze(trained: Trained, name: str, drawn: DrawnImages) -> Path:
    """Write the numbers and the figure of an analysis into the run folder, replacing an earlier one of the same weights.

    Args:
        trained: the run.
        name: of the analysis, a key of KINDS. Names of files also contain the weights, unless these are the model's last ones.
        drawn: the images to analyse.

    Returns:
        The path of the figure, a PNG.

    Raises:
        ConfigError: the network does not have the part that is analysed.
    """
    numbers = KINDS[name].measure(trained, drawn)
    folder, value_by_default = trained.folder / "analysis", {"model": trained.weights, Path(LAST).stem: Path(trained.checkpoint).stem}
    stem = "-".join([name, *(value for default, value in value_by_default.items() if value != default)])
    folder.mkdir(exist_ok=True)
    write_json(folder / f"{stem}.json", drawn.facts() | numbers.facts)
    if numbers.arrays:
        with replacing(folder / f"{stem}.npz") as temporary, temporary.open("wb") as stream:
            np.savez_compressed(stream, **dict[str, Any](numbers.arrays))
    return analyses.save(folder, name, stem)
