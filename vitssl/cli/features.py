"""The features of a split's images in one file of NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from vitssl import config
from vitssl.atomic import replacing
from vitssl.backbones.base import Features
from vitssl.config import ConfigError, Run
from vitssl.data.building.names import of_images
from vitssl.data.index import Index, load_index
from vitssl.data.loading.loader import EvalLoader
from vitssl.data.loading.subset import split_of
from vitssl.evaluators.base import at_once
from vitssl.paths import check_npz
from vitssl.trained import Trained


def write(
    trained: Trained, shards: Path, out: Path, split: str = "test", blocks: Sequence[int] = (), tokens: bool = False
) -> dict[str, np.ndarray]:
    """Write and give the features of images as a run's evaluation sees them, in float32.

    ``cls`` (N, D), where the backbone has a class token, ``reg`` (N, D), the mean of its registers, and ``mean`` (N, D) of the patch
    tokens, after the final norm; for each of ``blocks`` ``cls_block<i>`` and so on, before it; ``labels`` (N,), -1 where there is none, and
    ``index`` (N,), the images' places in the shards' index, int64; ``classes``, the names of the shards' classes; ``names`` (N,), what the
    shards' source calls the images, where that is known (`vitssl.data.building.names`); ``part`` (N,), of the shards that the run was
    trained on: what it had each image for, train, val (held out), test, or nothing ("").

    Args:
        trained: the run.
        shards: of any classes.
        out: a new file.
        split: of the shards, or several joined by ``+``.
        blocks: as `Trained.features` has them.
        tokens: also ``tokens`` (N, patch tokens, D), and ``tokens_block<i>``; of a network with masked tokens these, ``masked_tokens``
            (N, J, D), and the weights of the patch tokens in them, ``selection`` (N, J, patch tokens).

    Raises:
        ConfigError: no such shards, split or block, or ``out`` exists.
    """
    check_npz(out)
    index, places = load_index(shards), trained.places(blocks)
    names = of_images(index)
    positions = index.where(split)
    if not len(positions):
        raise ConfigError(f"{shards}: split {split} has no images")
    loader = EvalLoader(
        index, positions, index.label, trained.run.data, batch_size=at_once(trained.run), rank=0, world_size=1, device=trained.device
    )
    parts: list[dict[str, np.ndarray]] = []
    with torch.no_grad():
        for raw in loader:
            batch = trained.view(raw)
            features = trained.encode(batch.views["main"], places)
            part = _arrays(features, "", trained, tokens)
            for block, place in zip(blocks, places, strict=True):
                part |= _arrays(features.intermediates[place], f"_block{block}", trained, tokens)
            parts.append(part | {"labels": batch.targets["main"].cpu().numpy(), "index": batch.index_B.cpu().numpy()})
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} | {"classes": np.array(index.classes)}
    if names is not None:
        arrays["names"] = names[positions]
    if index.sha256 == trained.run.data.sha256:
        arrays["part"] = _parts(index, trained.run)[positions]
    _save(out, arrays)
    return arrays


def _parts(index: Index, run: Run) -> np.ndarray:
    """What a Run has each image of its shards for, of the whole index."""
    split, parts = split_of(index, run), np.full(len(index), "", dtype="<U5")
    for name in ("train", "val", "test"):
        parts[getattr(split, name)] = name
    return parts


def _arrays(features: Features, suffix: str, trained: Trained, tokens: bool) -> dict[str, np.ndarray]:
    there = config.capabilities(trained.run.backbone) if features.prefix_BPD.shape[1] else set()  # not in every stage of a backbone
    arrays = {pool: features.pooled(pool) for pool in ("cls", "reg") if pool in there}
    arrays["mean"] = features.pooled("mean")
    if tokens:
        arrays["tokens"] = features.tokens_BND
        if features.selection_BJN is not None:
            arrays |= {"masked_tokens": features.extra_BJD, "selection": features.selection_BJN}
    return {f"{name}{suffix}": value.float().cpu().numpy() for name, value in arrays.items()}


def _save(out: Path, arrays: dict[str, np.ndarray]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **arrays)
