"""What the source of shards calls their images. Shards number them; the names are in the listing that a build leaves beside the index."""

from __future__ import annotations

import numpy as np

from vitssl.data.building import findings, listing, writing
from vitssl.data.index import Index


def of_images(index: Index) -> np.ndarray | None:
    """The name of each image (N,) in the order of the shards, such as ``train/cat/7.jpg``.

    None where they are not known: of tars that stay where they are, and of shards without their listing, or with another's.

    Raises:
        ConfigError: the listing, or what was found in the build, is damaged.
    """
    listed, found = listing.of_images(index.folder), findings.read(index.folder)
    left_out = {(split, name) for split, name, _ in found.left_out} if found else set()
    names, classes = np.empty(len(index), dtype=object), np.array([*index.classes, ""])  # label -1 is the last one
    for split in index.splits:
        of_split, places = listed.get(split, []), index.where(split)
        kept = [of_split[i] for i in writing.order(len(of_split)) if (split, of_split[i][0]) not in left_out]
        if [of_class for _, of_class in kept] != classes[index.label[places]].tolist():
            return None
        names[places] = [name for name, _ in kept]
    return names.astype(str)
