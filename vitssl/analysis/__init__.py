"""Looks into trained networks: numbers about some images, kept in the run folder, and the figure that is drawn of them.

``analysis/NAME.json`` holds the numbers and what they were made of, ``NAME.npz`` the arrays that a figure needs besides, ``NAME.png`` and
``NAME.svg`` the figure; of a teacher they are ``NAME-teacher.json`` and so on. Reports of sweeps draw the same numbers of several runs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from vitssl.analysis import attention, selections
from vitssl.analysis.base import Numbers, Sample
from vitssl.atomic import replacing
from vitssl.config import ConfigError
from vitssl.files import write_json
from vitssl.report.figures import analyses
from vitssl.trained import Trained

KINDS: dict[str, Callable[[Trained, Sample], Numbers]] = {
    "selections": selections.measure,
    "mask-attention": attention.to_masked_tokens,
}


def check(trained: Trained) -> None:
    """Refuse a run that an analysis finds nothing in, before others are analysed.

    Raises:
        ConfigError: naming the run.
    """
    try:
        selections.selection_of(trained)  # both are about masked tokens
    except ConfigError as error:
        raise ConfigError(error.reason, error.field, str(trained.folder)) from None


def analyze(trained: Trained, name: str, sample: Sample) -> Path:
    """Write the numbers and the figure of an analysis into the run folder; an earlier one of the same weights is replaced.

    Args:
        name: of KINDS; with other weights than the model's, the files are called after them too.
        sample: the images that it looks at.

    Returns:
        The figure, a PNG.

    Raises:
        ConfigError: a network that has nothing of the kind.
    """
    check(trained)
    numbers = KINDS[name](trained, sample)
    folder, stem = trained.folder / "analysis", name if trained.weights == "model" else f"{name}-{trained.weights}"
    folder.mkdir(exist_ok=True)
    write_json(folder / f"{stem}.json", sample.facts() | numbers.facts)
    if numbers.arrays:
        with replacing(folder / f"{stem}.npz") as temporary, temporary.open("wb") as stream:
            np.savez_compressed(stream, **numbers.arrays)
    return analyses.save(folder, name, stem)
