"""Which patches each masked token selects (Figure 2 of the masked tokens paper), and how these sets lie.

The figures are of the M_j patches of highest score; the soft weights, which training uses, are spread around them.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitssl.analysis.base import Numbers, Sample
from vitssl.analysis.pictures import PICTURES, pixels
from vitssl.backbones.base import IsotropicTransformer
from vitssl.backbones.masked_tokens import Selection, hard_weights, subset_sizes
from vitssl.config import ConfigError
from vitssl.trained import Trained


def selection_of(trained: Trained) -> Selection:
    """The part of a network that selects.

    Raises:
        ConfigError: it has no masked tokens.
    """
    backbone = trained.model.backbone
    parts = backbone.inserted.values() if isinstance(backbone, IsotropicTransformer) else ()
    selection = next((part for part in parts if isinstance(part, Selection)), None)
    if selection is None:
        raise ConfigError("the run has no masked tokens to look at", "backbone.masked_tokens")
    return selection


def measure(trained: Trained, sample: Sample) -> Numbers:
    """Sizes of the sets, how much two of an image share, and how often a selected patch has a selected neighbour.

    Locality stands beside that of sets of as many patches drawn at random, with the sample's seed.
    """
    part, scores = selection_of(trained), []
    handle = part.register_forward_pre_hook(lambda part, inputs: scores.append(part.scores(inputs[0].tokens_BND)))
    selected, images = [], []
    try:
        with torch.no_grad():
            for batch in sample.batches():
                scores.clear()
                images_BCHW = batch.views["main"]
                grid = trained.encode(images_BCHW).grid
                selected.append((hard_weights(scores[0]) > 0).cpu())
                if sum(map(len, images)) < PICTURES:
                    images.append(pixels(trained, images_BCHW)[:PICTURES])
    finally:
        handle.remove()
    selected_SJN = torch.cat(selected)
    random_SJN = hard_weights(torch.rand(selected_SJN.shape, generator=torch.Generator().manual_seed(sample.seed))) > 0
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
        "index": sample.positions[:PICTURES],
        "frequency": selected_SJN.double().mean(0).numpy(),  # of each place of the grid
    }
    return Numbers(facts, arrays)


def locality(selected_SJN: Tensor, grid: tuple[int, ...]) -> Tensor:
    """The share of a set's patches of which one above, below, left or right is in the set too, (S, J)."""
    maps_SJHW = selected_SJN.unflatten(2, grid)
    padded = F.pad(maps_SJHW, (1, 1, 1, 1))
    beside = padded[..., 1:-1, :-2] | padded[..., 1:-1, 2:] | padded[..., :-2, 1:-1] | padded[..., 2:, 1:-1]
    return (maps_SJHW & beside).sum((2, 3)) / maps_SJHW.sum((2, 3))


def iou(selected_SJN: Tensor) -> Tensor:
    """Intersection over union of every two sets of an image, (S, J, J)."""
    members_SJN = selected_SJN.float()
    shared_SJJ = members_SJN @ members_SJN.transpose(1, 2)
    sizes_SJ = members_SJN.sum(-1)
    return shared_SJJ / (sizes_SJ[:, :, None] + sizes_SJ[:, None, :] - shared_SJJ)
