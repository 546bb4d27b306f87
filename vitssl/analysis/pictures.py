"""What an analysis gives that is a map over each of a few images.

Shapes: S images, N places of a grid over them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from vitssl.analysis.base import Numbers, Sample
from vitssl.config import ConfigError
from vitssl.trained import Trained

PICTURES = 10  # images that are drawn unless more are asked for
MOST = 50


@dataclass
class Maps:
    """One map of every image.

    Attributes:
        name: what they are maps of.
        values: (S, N), not below 0.
        said: a few words about each image's map.
        place: row and column of the place that they belong to, if any.
        compared: are they drawn beside those of a sweep's other arms?
    """

    name: str
    values: Tensor
    said: list[str] = field(default_factory=list)
    place: tuple[int, int] | None = None
    compared: bool = True


def check(sample: Sample) -> None:
    """Refuse more images than a figure can show.

    Raises:
        ConfigError: more than MOST.
    """
    if len(sample.positions) > MOST:
        raise ConfigError(f"a figure shows at most {MOST} images, not {len(sample.positions):,}", "--images")


def numbers(sample: Sample, images_SHWC: np.ndarray, grid: tuple[int, ...], rows: list[Maps]) -> Numbers:
    """The numbers and arrays of maps over the sample's images, which are called by their classes."""
    for row in rows:
        sample.check_finite(row.values, f"{row.name} maps")
    index, labels = sample.index, sample.index.label[sample.positions]
    facts = {
        "grid": list(grid),
        "index": sample.positions.tolist(),
        "titles": [index.classes[label] if label >= 0 else "unlabelled" for label in labels],
        "rows": [{"name": row.name, "said": row.said, "place": row.place, "compared": row.compared} for row in rows],
    }
    return Numbers(facts, {"images": images_SHWC, "maps": torch.stack([row.values for row in rows]).float().numpy()})


def pixels(trained: Trained, images_BCHW: Tensor) -> np.ndarray:
    """What the network saw, as uint8 (B, H, W, 3)."""
    mean, std = (torch.tensor(values, device=images_BCHW.device)[:, None, None] for values in (trained.mean, trained.std))
    return ((images_BCHW.float() * std + mean) * 255).round().clamp(0, 255).byte().permute(0, 2, 3, 1).cpu().numpy()
