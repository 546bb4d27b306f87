"""Images read from a cold disk: ours in the order of the shards, against webdataset on the same tars and against image files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import torchvision
import webdataset

from vitssl import config
from vitssl.bench.base import Bench, Comparison
from vitssl.bench.data import cores
from vitssl.data import shards
from vitssl.data.index import load_index
from vitssl.data.loading.loader import TrainLoader
from vitssl.data.loading.subset import train_and_heldout

BATCH = 64
PER_TAR = 500  # images
WINDOWS = 4  # shuffle windows in an epoch
BUFFER = 1000  # images among which webdataset shuffles, as in its documentation

Files: TypeAlias = torchvision.datasets.ImageFolder


def drop_page_cache(files: Iterable[Path]) -> None:
    """Drop the page cache of ``files``, which needs no privileges; a disk may have a cache of its own."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)  # pages that are not written yet would stay
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _tars(bench: Bench, files: Files) -> list[Path]:
    """Return the training images as tars that webdataset writes, in random order, without the last tar, which is left for testing."""
    folder = bench.scratch / "tars"
    if not folder.exists():
        folder.mkdir()
        with webdataset.ShardWriter(str(folder / "%06d.tar"), maxcount=PER_TAR, verbose=0) as writer:
            for number, i in enumerate(np.random.default_rng(0).permutation(len(files)).tolist()):
                path, label = files.samples[i]
                writer.write({"__key__": f"{number:08d}", Path(path).suffix[1:].lower(): Path(path).read_bytes(), "cls": label})
    return sorted(folder.glob("*.tar"))[:-1]


def _our_loader(bench: Bench, tars: list[Path], **fields: Any) -> TrainLoader:
    """Return a loader that reads ``tars`` in place, with ``fields`` of data."""
    folder = bench.scratch / "in_place"
    if not folder.exists():
        last = len(tars)
        shards.build(f"wds:{tars[0].parent}/{{000000..{last - 1:06d}}}.tar?test={last:06d}.tar", folder, workers=1, progress=False)
    index = load_index(folder)
    budget = {"shards": str(folder), "cache_dir": str(bench.scratch / "cache"), "shuffle_window": max(1, len(index) // WINDOWS)}
    data = config.merge(config.Data, budget, fields)
    split = train_and_heldout(index, data, need_labels=True, is_evaluated=False)
    return TrainLoader(index, split, data, seed=0, batch_size=BATCH, device=torch.device("cpu"))


def _webdataset_pipeline(tars: list[Path]) -> webdataset.WebDataset:
    """Return the pipeline of webdataset's documentation, before decoding."""
    return webdataset.WebDataset(list(map(str, tars)), shardshuffle=len(tars), seed=0).shuffle(BUFFER, seed=0)


def median_neighbour_distance(order: np.ndarray) -> float:
    """Return the median distance in a stream (a permutation of positions in the files) of two images that are neighbours in the files."""
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return float(np.median(np.abs(np.diff(place))))


def _speed(bench: Bench, files: Iterable[Path], images: int, read: Callable[[], Any]) -> float:
    """Return the images per second of a pass over cold files."""
    drop_page_cache(files)
    return images / bench.seconds(read)


def _epoch(loader: TrainLoader) -> int:
    """Read every image once, but for the end of an incomplete last batch; return the number of images."""
    return sum(len(part.index_B) for (part,) in loader.batches(0, loader.num_samples // BATCH))


def _against(bench: Bench, rival: Callable[[], float], tars: list[Path], note: str, **fields: Any) -> Comparison:
    """Compare our epoch of ``tars``, read with ``fields`` of data, with a rival."""
    loader = _our_loader(bench, tars, **fields)
    count = loader.num_samples // BATCH * BATCH
    ours = partial(_speed, bench, tars, count, lambda: _epoch(loader))
    return bench.compare("images/s", ours, rival, note)


def _start(bench: Bench) -> tuple[Files, list[Path]]:
    """Limit torch to one core; return the training images as files and as tars."""
    torch.set_num_threads(1)
    files = Files(str(bench.images / "train"), transform=torchvision.transforms.PILToTensor())
    return files, _tars(bench, files)


@cores(1)
def against_webdataset(bench: Bench, **fields: Any) -> Comparison:
    """Compare an epoch from cold tars to uint8 images, channels first, with webdataset, in one process on one core.

    Our images come in batches, webdataset's one by one.
    """
    tars = _start(bench)[1]

    def decode() -> int:
        return sum(1 for _ in _webdataset_pipeline(tars).decode("torchrgb8").to_tuple("jpg;jpeg;png", "cls"))

    theirs = np.array([int(sample["__key__"]) for sample in _webdataset_pipeline(tars)])
    loader = _our_loader(bench, tars, **fields)
    ours = loader.order.slice(0, loader.order.num_images)
    apart, rival_apart = median_neighbour_distance(ours), median_neighbour_distance(theirs)
    distances = f"neighbours in a tar come {apart:,.0f} / {rival_apart:,.0f} images apart"
    setting = f"webdataset with a buffer of {BUFFER:,}, the same cold tars of {len(theirs):,} images, one core"
    note = f"{_reading_text(fields)} / {setting}; {distances}"
    return _against(bench, partial(_speed, bench, tars, len(theirs), decode), tars, note, **fields)


@cores(1)
def against_image_folder(bench: Bench, **fields: Any) -> Comparison:
    """Compare an epoch from cold tars to uint8 images with one of image files in random order, in one process on one core."""
    files, tars = _start(bench)
    paths = [Path(path) for path, _ in files.samples]

    def decode() -> None:
        for i in np.random.default_rng(0).permutation(len(files)).tolist():
            files[i]

    note = f"{_reading_text(fields)} / ImageFolder, the same {len(files):,} images cold, one core"
    return _against(bench, partial(_speed, bench, paths, len(files), decode), tars, note, **fields)


def _reading_text(fields: dict[str, Any]) -> str:
    """Return in words how our loader reads with ``fields`` of data."""
    return "streamed in windows" if fields.get("cache_gb") == 0 else "from the cache, in memory,"
