"""The results of ``vitssl analyze`` in run folders: what the files of each kind of analysis hold, and which of them can be drawn.

Shapes: J masked tokens, S shown images, P patches, R rows of maps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitssl.config import ConfigError
from vitssl.files import read_json
from vitssl.records import AMOUNT, COUNT, METRIC, POSITIVE_COUNT, check_as, refuse
from vitssl.report.results.saved_files import read_arrays

ANALYSED = {"images": COUNT, "shards": str, "split": str, "weights": str, "checkpoint": str}
SELECTIONS = ANALYSED | {
    "grid": [POSITIVE_COUNT, ...], "sizes": [COUNT, ...], "locality": [METRIC], "locality_random": [METRIC], "iou": [[METRIC]],
    "selection": str,
}  # fmt: skip
ATTENTION = ANALYSED | {
    "distance_if_equal": AMOUNT,
    "blocks": {...: {"distance": [METRIC, ...], "entropy": [METRIC, ...], "received": [METRIC, ...]}},
}
TOKENS = ANALYSED | {
    "place": str, "spectrum": [METRIC],
    "blocks": {...: {"distance": METRIC, "cosine_distance": METRIC, "variance": METRIC, "rank": METRIC}},
}  # fmt: skip
MASK_ATTENTION = ANALYSED | {
    "masked_tokens": POSITIVE_COUNT, "tokens": POSITIVE_COUNT,
    "blocks": {...: {...: {"mean": [METRIC], "std": [METRIC], "share": [METRIC]}}},
}  # fmt: skip
PICTURED = ANALYSED | {
    "grid": [POSITIVE_COUNT, ...], "index": [COUNT, ...], "titles": [str],
    "rows": [{"name": str, "said": [str], "place": ([COUNT], None), "compared": bool}, ...],
}  # fmt: skip


def _check_blocks(facts: dict[str, Any], path: Path) -> None:
    blocks = facts["blocks"]
    if not blocks or not all(block.isdecimal() and len(block) < 6 for block in blocks):
        refuse(path, "blocks: it has no blocks by their numbers")


def _check_masked_tokens(facts: dict[str, Any], path: Path) -> None:
    _check_blocks(facts, path)
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
    images_SHWC, selected_SJP, frequency_JP = read_arrays(arrays_path, ("images", "selected", "frequency"))
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
    images_SHWC, maps_RSP = read_arrays(arrays_path, ("images", "maps"))
    if images_SHWC.ndim != 4 or images_SHWC.shape[::3] != (S, 3) or not images_SHWC.size or images_SHWC.dtype != np.uint8:
        refuse(arrays_path, "images are not the RGB images that the JSON file names")
    if maps_RSP.shape != (R, S, P) or maps_RSP.dtype.kind != "f" or not np.isfinite(maps_RSP).all() or (maps_RSP < 0).any():
        refuse(arrays_path, "maps are not numbers from 0 on, one for each place of the grid")


def _check_lengths(path: Path, length: int, lists: Iterable[tuple[str, list[Any]]]) -> None:
    for field, values in lists:
        if len(values) != length:
            refuse(path, f"{field}: {len(values)} values of {length}")


@dataclass(frozen=True)
class Kind:
    """What the files of one kind of analysis hold.

    Attributes:
        schema: of the JSON file, as in `vitssl.records`.
        check: refuses the content of a JSON file at a path, and the arrays beside it, for what the schema does not say.
    """

    schema: dict[Any, Any]
    check: Callable[[dict[str, Any], Path], None]


KINDS = {
    "attention": Kind(ATTENTION, _check_blocks),
    "tokens": Kind(TOKENS, _check_blocks),
    "maps": Kind(PICTURED, _check_pictured),
    "grad-cam": Kind(PICTURED, _check_pictured),
    "selections": Kind(SELECTIONS, _check_selections),
    "mask-attention": Kind(MASK_ATTENTION, _check_masked_tokens),
}


def kind_of(path: Path) -> str | None:
    """Return the name of the analysis whose results a JSON file holds, by the file's name; None if this version knows none of them."""
    return max((name for name in KINDS if f"{path.stem}-".startswith(f"{name}-")), key=len, default=None)


def read(path: Path) -> dict[str, Any]:
    """Return the numbers in the JSON file of an analysis of a kind that is known.

    Raises:
        ConfigError: the file, or the arrays beside it, are damaged or not in the format that this version writes.
    """
    facts, name = read_json(path), kind_of(path)
    assert name is not None, path
    check_as(KINDS[name].schema, facts, path)
    KINDS[name].check(facts, path)
    return facts


def find(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the JSON files of a run's analyses that can be drawn, and what is wrong with others; those of unknown kinds are neither."""
    sound, problems = [], []
    for path in (path for path in sorted(folder.glob("analysis/*.json")) if kind_of(path) is not None):
        try:
            read(path)
            sound.append(path)
        except ConfigError as error:
            problems.append(str(error))
    return sound, problems
