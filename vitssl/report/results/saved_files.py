"""The files that run folders keep for figures, checked before a report begins: predictions, analyses and pictures.

Shapes: N images, J masked tokens, S shown images, P patches, R rows of maps.
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from vitssl.config import ConfigError
from vitssl.files import read_file, read_intact, read_json
from vitssl.records import refuse

KINDS = {"confidence": "f", "top5": "b", "loss": "f", "auc": "f"}  # dtype kinds of the values of each image, besides its classes


@dataclass(frozen=True)
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
    for path in folder.glob("analysis/*.json"):
        facts = read_json(path)
        if path.name.startswith(("attention", "tokens", "mask-attention")):
            _check_blocks(facts["blocks"], path)
        if path.name.startswith("mask-attention"):
            _check_masked_tokens(facts, path)
        if path.name.startswith("selections"):
            _check_selections(facts, path)
        if path.name.startswith(("maps", "grad-cam")):
            _check_pictured(facts, path)
    for path in folder.glob("analysis/*.npz"):
        read_intact(path)
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
    classes, labels_N, predicted_N, *per_image = _arrays(path, ("classes", "labels", "predicted", "confidence", "top5", "loss"), "auc")
    if classes.ndim != 1 or classes.dtype.kind != "U":
        refuse(path, "classes is not a list of names")
    for name, values_N in (("labels", labels_N), ("predicted", predicted_N)):
        if values_N.ndim != 1 or values_N.dtype.kind not in "iu" or values_N.shape != labels_N.shape:
            refuse(path, f"{name} is not a list of whole numbers, one for each image")
        if values_N.size and not 0 <= int(values_N.min()) <= int(values_N.max()) < len(classes):
            refuse(path, f"{name} has numbers of which {len(classes):,} classes have none")
    for (name, kind), values_N in zip(KINDS.items(), per_image, strict=True):
        if values_N is not None and (values_N.shape != labels_N.shape or values_N.dtype.kind != kind):
            refuse(path, f"{name} is not a list of {'truths' if kind == 'b' else 'numbers'}, one for each image")
    return Predictions(classes.tolist(), labels_N, predicted_N, *per_image)


def _check_blocks(blocks: dict[str, Any], path: Path) -> None:
    if not blocks or not all(block.isdecimal() and len(block) < 6 for block in blocks):
        refuse(path, "blocks: it has no blocks by their numbers")


def _check_masked_tokens(facts: dict[str, Any], path: Path) -> None:
    for block, tokens in facts["blocks"].items():
        for token, measured in tokens.items():
            _check_lengths(
                path, facts["masked_tokens"], ((f"blocks.{block}.{token}.{kind}", measured[kind]) for kind in ("mean", "std", "share"))
            )


def _check_selections(facts: dict[str, Any], path: Path) -> None:
    J, P = len(facts["sizes"]), math.prod(facts["grid"])
    lists = ((name, facts[name]) for name in ("locality", "locality_random", "iou"))
    _check_lengths(path, J, [*lists, *((f"iou[{j}]", shared) for j, shared in enumerate(facts["iou"]))])
    if len(facts["grid"]) != 2:
        refuse(path, "grid: it is not rows and columns of patches")
    arrays_path = path.with_suffix(".npz")
    images_SHWC, selected_SJP, frequency_JP = _arrays(arrays_path, ("images", "selected", "frequency"))
    S, shape = len(images_SHWC) if images_SHWC.ndim else 0, images_SHWC.shape[1:]
    divided = len(shape) == 3 and shape[2] == 3 and not any(side % parts for side, parts in zip(shape[:2], facts["grid"], strict=True))
    if not S or images_SHWC.dtype != np.uint8 or not divided:
        refuse(arrays_path, "images are not RGB images that the patches divide")
    if selected_SJP.shape != (S, J, P) or selected_SJP.dtype != np.bool_:
        refuse(arrays_path, "selected does not say of each patch whether a masked token selects it")
    if frequency_JP.shape != (J, P) or frequency_JP.dtype.kind != "f":
        refuse(arrays_path, "frequency does not say how often a masked token selects each patch")


def _check_pictured(facts: dict[str, Any], path: Path) -> None:
    R, S, P = len(facts["rows"]), len(facts["index"]), math.prod(facts["grid"])
    texts, places = ([(f"rows[{r}].{name}", row[name]) for r, row in enumerate(facts["rows"]) if row[name]] for name in ("said", "place"))
    _check_lengths(path, S, [("titles", facts["titles"]), *texts])
    _check_lengths(path, 2, [("grid", facts["grid"]), *places])
    arrays_path = path.with_suffix(".npz")
    images_SHWC, maps_RSP = _arrays(arrays_path, ("images", "maps"))
    if images_SHWC.ndim != 4 or images_SHWC.shape[::3] != (S, 3) or not images_SHWC.size or images_SHWC.dtype != np.uint8:
        refuse(arrays_path, "images are not the RGB images that the JSON file names")
    if maps_RSP.shape != (R, S, P) or maps_RSP.dtype.kind != "f" or not np.isfinite(maps_RSP).all() or (maps_RSP < 0).any():
        refuse(arrays_path, "maps are not numbers from 0 on, one for each place of the grid")


def _arrays(path: Path, names: Iterable[str], *optional: str) -> list[Any]:
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


def _check_lengths(path: Path, length: int, lists: Iterable[tuple[str, list[Any]]]) -> None:
    for field, values in lists:
        if len(values) != length:
            refuse(path, f"{field}: {len(values)} values of {length}")
