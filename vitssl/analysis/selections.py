"""The patches that each masked token selects (Figure 2 of the masked tokens paper), and how these sets are distributed.

The figures show the M_j patches with the highest scores. The soft weights, which training uses, are spread around them.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitssl.analysis.base import DrawnImages, Numbers
from vitssl.analysis.pictures import PICTURES, pixels
from vitssl.backbones.base import IsotropicTransformer
from vitssl.backbones.masked_tokens import Selection, hard_weights, subset_sizes
from vitssl.config import ConfigError
from vitssl.trained import Trained


def selection_of(trained: Trained) -> Selection:
    """Return the part of the network that selects patches.

    Raises:
        ConfigError: the network has no masked tokens.
    """
    backbone = trained.model.backbone
    parts = backbone.inserted.values() if isinstance(backbone, IsotropicTransformer) else ()
    selection = next((part for part in parts if isinstance(part, Selection)), None)
    if selection is None:
        raise ConfigError("the run has no masked tokens to look at", "backbone.masked_tokens")
    return selection


def measure(trained: Trained, drawn: DrawnImages) -> Numbers:
    """Measure the sets of selected patches: their sizes, the overlap of two sets of an image, and their locality.

    For comparison, ``locality_random`` is the locality of sets of the same sizes that are drawn at random with the same seed.
    """
    part, scores = selection_of(trained), []
    handle = part.register_forward_pre_hook(lambda part, inputs: scores.append(part.scores(inputs[0].tokens_BND)))
    selected: list[Tensor] = []
    images: list[np.ndarray] = []
    try:
        with torch.no_grad():
            for batch in drawn.batches():
                scores.clear()
                images_BCHW = batch.views["main"]
                grid = trained.encode(images_BCHW).grid
                selected.append((hard_weights(scores[0]) > 0).cpu())
                if sum(len(part_BHW3) for part_BHW3 in images) < PICTURES:
                    images.append(pixels(trained, images_BCHW)[:PICTURES])
    finally:
        handle.remove()
    selected_SJN = torch.cat(selected)
    random_SJN = hard_weights(torch.rand(selected_SJN.shape, generator=torch.Generator().manual_seed(drawn.seed))) > 0
    facts = {
        "grid": list(grid),
        "sizes": subset_sizes(*selected_SJN.shape[1:]),
        "locality": locality(selected_SJN, grid).mean(0).tolist(),
        "locality_random": locality(random_SJN, grid).mean(0).tolist(),
        "iou": iou(selected_SJN).mean(0).tolist(),
        "selection": part.cfg.selection,
    }
    arrays = {
        "images": np.concatenate(images)[:PICTURES],
        "selected": selected_SJN[:PICTURES].numpy(),
        "index": drawn.positions[:PICTURES],
        "frequency": selected_SJN.double().mean(0).numpy(),  # how often each patch of the grid is selected
    }
    return Numbers(facts, arrays)


def locality(selected_SJN: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Return the share of a set's patches that have a neighbour (above, below, left or right) in the same set, (S, J)."""
    maps_SJHW = selected_SJN.unflatten(2, grid)
    padded = F.pad(maps_SJHW, (1, 1, 1, 1))
    has_neighbour = padded[..., 1:-1, :-2] | padded[..., 1:-1, 2:] | padded[..., :-2, 1:-1] | padded[..., 2:, 1:-1]
    return (maps_SJHW & has_neighbour).sum((2, 3)) / maps_SJHW.sum((2, 3))


def iou(selected_SJN: Tensor) -> Tensor:
    """Return the intersection over union of all pairs of sets of an image, (S, J, J)."""
    members_SJN = selected_SJN.float()
    shared_SJJ = members_SJN @ members_SJN.transpose(1, 2)
    sizes_SJ = members_SJN.sum(-1)
    return shared_SJJ / (sizes_SJ[:, :, None] + sizes_SJ[:, None, :] - shared_SJJ)
