"""Looks into trained networks: numbers about some images, kept in the run folder, and the figure that is drawn of them.

``analysis/NAME.json`` holds the numbers and what they were made of, ``NAME.npz`` the arrays that a figure needs besides, ``NAME.png`` and
``NAME.svg`` the figure. Reports of sweeps draw the same numbers of several runs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from vitssl.analysis import attention, selections
from vitssl.analysis.base import Numbers, Sample
from vitssl.config import ConfigError
from vitssl.evaluate import Trained
from vitssl.files import write_json
from vitssl.report import analyses

KINDS: dict[str, Callable[[Trained, Sample], Numbers]] = {
    "selections": selections.measure,
    "mask-attention": attention.to_masked_tokens,
}


def analyze(trained: Trained, name: str, sample: Sample) -> Path:
    """Write the numbers and the figure of an analysis into the run folder; an earlier one of that name is replaced.

    Args:
        name: of KINDS.
        sample: the images that it looks at.

    Returns:
        The figure, a PNG.

    Raises:
        ConfigError: no such images, or a network that has nothing of the kind.
    """
    try:
        numbers = KINDS[name](trained, sample)
    except ConfigError as error:
        raise ConfigError(error.reason, error.field, error.place or str(trained.folder)) from None
    folder = trained.folder / "analysis"
    folder.mkdir(exist_ok=True)
    write_json(folder / f"{name}.json", sample.facts() | numbers.facts)
    if numbers.arrays:
        np.savez_compressed(folder / f"{name}.npz", **numbers.arrays)
    return analyses.save(folder, name)
