"""Results of analyses that consist of maps over a few images.

Shapes: S images, N cells of a grid over each of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from vitssl.analysis.base import DrawnImages, Numbers
from vitssl.config import ConfigError
from vitssl.trained import Trained

PICTURES = 10  # default number of images
MOST = 50  # images that a figure can show


@dataclass
class Maps:
    """One map for every image.

    Attributes:
        name: what the maps show.
        values: (S, N), not negative.
        captions: a caption for the map of each image.
        place: row and column of the cell whose maps these are, if any.
        compared: whether to draw the maps beside those of a sweep's other arms.
    """

    name: str
    values: Tensor
    captions: list[str] = field(default_factory=list)
    place: tuple[int, int] | None = None
    compared: bool = True


def check(drawn: DrawnImages) -> None:
    """Refuse more images than a figure can show.

    Raises:
        ConfigError: there are more than MOST.
    """
    if len(drawn.positions) > MOST:
        raise ConfigError(f"a figure shows at most {MOST} images, not {len(drawn.positions):,}", "--images")


def numbers(drawn: DrawnImages, images_SHWC: np.ndarray, grid: tuple[int, ...], rows: list[Maps]) -> Numbers:
    """Return maps over the drawn images as numbers and arrays, with the classes of the images as titles.

    Args:
        drawn: the images.
        images_SHWC: their pixels.
        grid: rows and columns of the maps.
        rows: the maps, one for each row of the figure.

    Raises:
        ConfigError: a map has values that are not finite.
    """
    for row in rows:
        drawn.check_finite(row.values, f"{row.name} maps")
    index, labels = drawn.index, drawn.index.label[drawn.positions]
    facts = {
        "grid": list(grid),
        "index": drawn.positions.tolist(),
        "titles": [index.classes[label] if label >= 0 else "unlabelled" for label in labels],
        "rows": [{"name": row.name, "said": row.captions, "place": row.place, "compared": row.compared} for row in rows],
    }
    return Numbers(facts, {"images": images_SHWC, "maps": torch.stack([row.values for row in rows]).float().numpy()})


def pixels(trained: Trained, images_BCHW: Tensor) -> np.ndarray:
    """Return the images that the network saw as uint8 pixels (B, H, W, 3)."""
    mean, std = (torch.tensor(values, device=images_BCHW.device)[:, None, None] for values in (trained.mean, trained.std))
    return ((images_BCHW.float() * std + mean) * 255).round().clamp(0, 255).byte().permute(0, 2, 3, 1).cpu().numpy()
