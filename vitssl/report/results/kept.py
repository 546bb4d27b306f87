"""What run folders keep for figures besides their records, checked before a report begins: predictions, what was analysed, pictures.

Shapes: N images, J masked tokens, S images that are shown, P patches.
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

KINDS = {"confidence": "f", "top5": "b", "loss": "f", "auc": "f"}  # of what predictions say of each image besides classes


@dataclass(frozen=True)
class Predictions:
    """Of the images of a split.

    Attributes:
        classes: their names.
        labels_N: the class of each image.
        predicted_N: the class that it was taken for.
        confidence_N: the probability of that class.
        top5_N: is its class among the first five?
        loss_N: its cross-entropy.
        auc_N: what it adds to the area under the ROC curve; None where a class has no image.
    """

    classes: list[str]
    labels_N: np.ndarray
    predicted_N: np.ndarray
    confidence_N: np.ndarray
    top5_N: np.ndarray
    loss_N: np.ndarray
    auc_N: np.ndarray | None = None


def check(folder: Path) -> None:
    """Look at everything that a run folder keeps for figures.

    Raises:
        ConfigError: naming the file that is damaged, or not as this version writes it.
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
    """An evaluator's predictions-NAME.npz.

    Raises:
        ConfigError: it is damaged, or not as this version writes it.
    """
    return _predictions(path, path.stat().st_mtime_ns)


@cache
def _predictions(path: Path, changed_ns: int) -> Predictions:
    """Once for all parts of a report, as long as the file is not written anew."""
    classes, labels_N, predicted_N, *of_images = _arrays(path, ("classes", "labels", "predicted", "confidence", "top5", "loss"), "auc")
    if classes.ndim != 1 or classes.dtype.kind != "U":
        refuse(path, "classes is not a list of names")
    for name, values_N in (("labels", labels_N), ("predicted", predicted_N)):
        if values_N.ndim != 1 or values_N.dtype.kind not in "iu" or values_N.shape != labels_N.shape:
            refuse(path, f"{name} is not a list of whole numbers, one for each image")
        if values_N.size and not 0 <= int(values_N.min()) <= int(values_N.max()) < len(classes):
            refuse(path, f"{name} has numbers of which {len(classes):,} classes have none")
    for (name, kind), values_N in zip(KINDS.items(), of_images, strict=True):
        if values_N is not None and (values_N.shape != labels_N.shape or values_N.dtype.kind != kind):
            refuse(path, f"{name} is not a list of {'truths' if kind == 'b' else 'numbers'}, one for each image")
    return Predictions(classes.tolist(), labels_N, predicted_N, *of_images)


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
    beside = path.with_suffix(".npz")
    images_SHWC, selected_SJP, frequency_JP = _arrays(beside, ("images", "selected", "frequency"))
    S, shape = len(images_SHWC) if images_SHWC.ndim else 0, images_SHWC.shape[1:]
    divided = len(shape) == 3 and shape[2] == 3 and not any(side % parts for side, parts in zip(shape[:2], facts["grid"], strict=True))
    if not S or images_SHWC.dtype != np.uint8 or not divided:
        refuse(beside, "images are not RGB images that the patches divide")
    if selected_SJP.shape != (S, J, P) or selected_SJP.dtype != np.bool_:
        refuse(beside, "selected does not say of each patch whether a masked token selects it")
    if frequency_JP.shape != (J, P) or frequency_JP.dtype.kind != "f":
        refuse(beside, "frequency does not say how often a masked token selects each patch")


def _check_pictured(facts: dict[str, Any], path: Path) -> None:
    R, S, P = len(facts["rows"]), len(facts["index"]), math.prod(facts["grid"])
    said, places = ([(f"rows[{r}].{name}", row[name]) for r, row in enumerate(facts["rows"]) if row[name]] for name in ("said", "place"))
    _check_lengths(path, S, [("titles", facts["titles"]), *said])
    _check_lengths(path, 2, [("grid", facts["grid"]), *places])
    beside = path.with_suffix(".npz")
    images_SHWC, maps_RSP = _arrays(beside, ("images", "maps"))
    if images_SHWC.ndim != 4 or images_SHWC.shape[::3] != (S, 3) or not images_SHWC.size or images_SHWC.dtype != np.uint8:
        refuse(beside, "images are not the RGB images that the JSON file names")
    if maps_RSP.shape != (R, S, P) or maps_RSP.dtype.kind != "f" or not np.isfinite(maps_RSP).all() or (maps_RSP < 0).any():
        refuse(beside, "maps are not numbers from 0 on, one for each place of the grid")


def _arrays(path: Path, names: Iterable[str], *optional: str) -> list[Any]:
    """The arrays of these names; of the ``optional`` ones None for one that is not there."""
    try:
        content = read_intact(path)
    except FileNotFoundError:
        raise ConfigError("it is missing although the JSON file beside it exists; restore it from a backup", place=str(path)) from None
    try:
        with np.load(io.BytesIO(content)) as saved:
            arrays = [saved[name] for name in names] + [saved.get(name) for name in optional]
    except KeyError as error:
        refuse(path, str(error.args[0]))
    except (ValueError, MemoryError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:  # a shape beyond what follows it, objects
        refuse(path, str(error).split("\n")[0])
    if not all(isinstance(array, np.ndarray | None) for array in arrays):
        refuse(path, "it holds other things than arrays")
    return arrays


def _check_lengths(path: Path, length: int, lists: Iterable[tuple[str, list[Any]]]) -> None:
    for field, values in lists:
        if len(values) != length:
            refuse(path, f"{field}: {len(values)} values of {length}")
