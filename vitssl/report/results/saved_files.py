"""The files that run folders keep for figures, checked before a report begins: predictions and pictures.

Shapes: N images.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from vitssl.config import ConfigError
from vitssl.files import read_file, read_intact
from vitssl.records import refuse

DTYPE_KINDS = {"confidence": "f", "top5": "b", "loss": "f", "auc": "f"}  # dtype kinds of the values of each image, besides its classes


@dataclass(frozen=True, eq=False)  # arrays have no hash; a file is read once, so that what is computed from it can be kept by identity
class Predictions:
    """What an evaluator predicted for the images of a split.

    Attributes:
        classes: the names of the classes.
        labels_N: the class of each image.
        predicted_N: the predicted class.
        confidence_N: the probability of the predicted class.
        top5_N: whether the image's class is among the five most probable ones.
        loss_N: the cross-entropy.
        auc_N: what the image adds to the area under the ROC curve; None if some class has no image.
    """

    classes: list[str]
    labels_N: np.ndarray
    predicted_N: np.ndarray
    confidence_N: np.ndarray
    top5_N: np.ndarray
    loss_N: np.ndarray
    auc_N: np.ndarray | None = None


def check(folder: Path) -> None:
    """Check every file that a run folder keeps for figures.

    Raises:
        ConfigError: a file is damaged, or not in the format that this version writes; the message names it.
    """
    for path in folder.glob("predictions-*.npz"):
        predictions(path)
    for path in folder.glob("*.png"):
        read_file(path)


def predictions(path: Path) -> Predictions:
    """Read a file predictions-NAME.npz, which holds the predictions of the evaluator NAME.

    Raises:
        ConfigError: it is damaged, or not in the format that this version writes.
    """
    return _predictions(path, path.stat().st_mtime_ns)


@cache
def _predictions(path: Path, changed_ns: int) -> Predictions:
    """Read predictions once for all parts of a report; ``changed_ns`` makes a file that was rewritten be read anew."""
    classes, labels_N, predicted_N, *per_image = read_arrays(path, ("classes", "labels", "predicted", "confidence", "top5", "loss"), "auc")
    if classes.ndim != 1 or classes.dtype.kind != "U":
        refuse(path, "classes is not a list of names")
    for name, values_N in (("labels", labels_N), ("predicted", predicted_N)):
        if values_N.ndim != 1 or values_N.dtype.kind not in "iu" or values_N.shape != labels_N.shape:
            refuse(path, f"{name} is not a list of whole numbers, one for each image")
        if values_N.size and not 0 <= int(values_N.min()) <= int(values_N.max()) < len(classes):
            refuse(path, f"{name} has numbers of which {len(classes):,} classes have none")
    for (name, kind), values_N in zip(DTYPE_KINDS.items(), per_image, strict=True):
        if values_N is not None and (values_N.shape != labels_N.shape or values_N.dtype.kind != kind):
            refuse(path, f"{name} is not a list of {'truths' if kind == 'b' else 'numbers'}, one for each image")
    return Predictions(classes.tolist(), labels_N, predicted_N, *per_image)


def read_arrays(path: Path, names: Iterable[str], *optional: str) -> list[Any]:
    """Return the arrays ``names`` of an npz file, then each of the ``optional`` ones, or None if the file lacks it."""
    try:
        content = read_intact(path)
    except FileNotFoundError:
        raise ConfigError("it is missing although the JSON file beside it exists; restore it from a backup", place=str(path)) from None
    try:
        with np.load(io.BytesIO(content)) as saved:
            arrays = [saved[name] for name in names] + [saved.get(name) for name in optional]
    except KeyError as error:
        refuse(path, str(error.args[0]))
    except (ValueError, MemoryError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:  # a shape beyond the data, or objects
        refuse(path, str(error).split("\n")[0])
    if not all(isinstance(array, np.ndarray | None) for array in arrays):
        refuse(path, "it holds other things than arrays")
    return arrays
