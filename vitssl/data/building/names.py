"""The names that a source gives to the images of shards.

Shards only number their images; the names are in the listing that a build leaves beside the index.
"""

from __future__ import annotations

import numpy as np

from vitssl.data.building import findings, listing, writing
from vitssl.data.index import Index


def of_images(index: Index) -> np.ndarray | None:
    """Return the name of each image (N,) in the order of the shards, such as ``train/cat/7.jpg``.

    None if the names are not known: for tars that stay where they are, and for shards without their listing or with that of others.

    Raises:
        ConfigError: the listing or the file of the build's findings is damaged.
    """
    listed, build_findings = listing.of_images(index.folder), findings.read(index.folder)
    left_out = {(split, name) for split, name, _ in build_findings.left_out} if build_findings else set()
    names, classes = np.empty(len(index), dtype=object), np.array([*index.classes, ""])  # label -1 takes the last one
    for split in index.splits:
        entries, positions = listed.get(split, []), index.where(split)
        kept = [entries[i] for i in writing.shard_order(len(entries)) if (split, entries[i][0]) not in left_out]
        if [class_name for _, class_name in kept] != classes[index.label[positions]].tolist():
            return None
        names[positions] = [name for name, _ in kept]
    return names.astype(str)
