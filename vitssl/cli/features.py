"""The features of a split's images in one file of NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitssl import config
from vitssl.atomic import replacing
from vitssl.backbones.base import Features
from vitssl.config import ConfigError
from vitssl.data.building.names import of_images
from vitssl.data.index import load_index
from vitssl.data.loading.loader import EvalLoader
from vitssl.data.loading.subset import split_of
from vitssl.evaluators.base import eval_batch_size
from vitssl.paths import check_npz
from vitssl.trained import Trained


def write(
    trained: Trained, shards: Path, out: Path, split: str = "test", blocks: Sequence[int] = (), tokens: bool = False
) -> dict[str, np.ndarray]:
    """Write the features of a split's images to ``out``, and return them as arrays by name.

    Images are seen as by the run's evaluation; features are float32. The arrays are:

    - ``cls`` (N, D), the class token, and ``reg`` (N, D), the mean of the registers, if the backbone has them, and ``mean`` (N, D), the
      mean of the patch tokens: after the final norm. For each of ``blocks``, ``cls_block<i>`` and so on: before the norm.
    - ``labels`` (N,), -1 for images without a label, and ``index`` (N,), the positions of the images in the shards' index: int64.
    - ``classes``, the names of the shards' classes.
    - ``names`` (N,), what the shards' source calls the images, if that is known (`vitssl.data.building.names`).
    - ``part`` (N,), only for the shards that the run was trained on: what it used each image for, train, val (held out), test, or
      nothing ("").

    Args:
        trained: the run.
        shards: shards with any classes.
        out: the file to write, which must not exist.
        split: a split of the shards, or several joined by ``+``.
        blocks: the blocks whose features are added, numbered as for `Trained.features`.
        tokens: also add ``tokens`` (N, patch tokens, D) and ``tokens_block<i>``. A network with masked tokens adds those as
            ``masked_tokens`` (N, J, D), and the weights of the patch tokens in them as ``selection`` (N, J, patch tokens).

    Raises:
        ConfigError: no such shards, split or block, or ``out`` exists.
    """
    check_npz(out)
    index, places = load_index(shards), trained.places(blocks)
    names = of_images(index)
    positions = index.where(split)
    if not len(positions):
        raise ConfigError(f"{shards}: split {split} has no images")
    loader = EvalLoader(index, positions, index.label, trained.run.data, batch_size=eval_batch_size(trained.run), device=trained.device)
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
        arrays["part"] = split_of(index, trained.run).uses()[positions]
    _save(out, arrays)
    return arrays


def _arrays(features: Features, suffix: str, trained: Trained, tokens: bool) -> dict[str, np.ndarray]:
    """Return the arrays of one place in the backbone, by name with ``suffix``."""
    # not every stage of a backbone has prefix tokens
    available = config.capabilities(trained.run.backbone) if features.prefix_BPD.shape[1] else set()
    arrays: dict[str, Tensor] = {pool: features.pooled(pool) for pool in ("cls", "reg") if pool in available}
    arrays["mean"] = features.pooled("mean")
    if tokens:
        arrays["tokens"] = features.tokens_BND
        if features.selection_BJN is not None:
            arrays |= {"masked_tokens": features.extra_BJD, "selection": features.selection_BJN}
    return {f"{name}{suffix}": value.float().cpu().numpy() for name, value in arrays.items()}


def _save(out: Path, arrays: dict[str, np.ndarray]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]  # numpy's stub takes each of them for allow_pickle
