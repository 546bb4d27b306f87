"""Images read from a cold disk: ours in the order of the shards, against webdataset on the same tars and against image files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

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
WINDOWS = 4  # in an epoch
BUFFER = 1000  # images that webdataset shuffles among, as its documentation does

Files = torchvision.datasets.ImageFolder


def forget(files: Iterable[Path]) -> None:
    """Drop what the page cache of this machine holds of files; it needs no rights. A disk may have a cache of its own."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)  # what is not written yet would stay
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _tars(bench: Bench, files: Files) -> list[Path]:
    """The training images as webdataset writes them, in random order, but for the last tar, which is left for testing."""
    folder = bench.scratch / "tars"
    if not folder.exists():
        folder.mkdir()
        with webdataset.ShardWriter(str(folder / "%06d.tar"), maxcount=PER_TAR, verbose=0) as writer:
            for number, i in enumerate(np.random.default_rng(0).permutation(len(files)).tolist()):
                path, label = files.samples[i]
                writer.write({"__key__": f"{number:08d}", Path(path).suffix[1:].lower(): Path(path).read_bytes(), "cls": label})
    return sorted(folder.glob("*.tar"))[:-1]


def _ours(bench: Bench, tars: list[Path], **fields: Any) -> TrainLoader:
    """A loader of these tars in place."""
    folder = bench.scratch / "in_place"
    if not folder.exists():
        last = len(tars)
        shards.build(f"wds:{tars[0].parent}/{{000000..{last - 1:06d}}}.tar?test={last:06d}.tar", folder, workers=1, progress=False)
    index = load_index(folder)
    budget = {"shards": str(folder), "cache_dir": str(bench.scratch / "cache"), "shuffle_window": max(1, len(index) // WINDOWS)}
    data = config.merge(config.Data, budget, fields)
    split = train_and_heldout(index, data, need_labels=True, evaluated=False)
    return TrainLoader(index, split, data, seed=0, batch_size=BATCH, device=torch.device("cpu"))


def _theirs(tars: list[Path]) -> webdataset.WebDataset:
    """The pipeline of webdataset's documentation, not decoded yet."""
    return webdataset.WebDataset(list(map(str, tars)), shardshuffle=len(tars), seed=0).shuffle(BUFFER, seed=0)


def median_apart(order: np.ndarray) -> float:
    """Median distance, in a stream that names its images by their place in the files, of two that are neighbours there."""
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return float(np.median(np.abs(np.diff(place))))


def _speed(bench: Bench, files: Iterable[Path], images: int, read: Callable[[], Any]) -> float:
    """Images per second of a pass over cold files."""
    forget(files)
    return images / bench.seconds(read)


def _epoch(loader: TrainLoader) -> int:
    """Every image once, but for the end of the last batch; how many."""
    return sum(len(part.index_B) for (part,) in loader.batches(0, loader.num_samples // BATCH))


def _against(bench: Bench, rival: Callable[[], float], tars: list[Path], note: str, **fields: Any) -> Comparison:
    loader = _ours(bench, tars, **fields)
    count = loader.num_samples // BATCH * BATCH
    ours = partial(_speed, bench, tars, count, lambda: _epoch(loader))
    return bench.compare("images/s", ours, rival, note)


def _start(bench: Bench) -> tuple[Files, list[Path]]:
    torch.set_num_threads(1)
    files = Files(str(bench.images / "train"), transform=torchvision.transforms.PILToTensor())
    return files, _tars(bench, files)


@cores(1)
def against_webdataset(bench: Bench, **fields: Any) -> Comparison:
    """In one process on one core: an epoch from cold tars to uint8 images, channels first; ours in batches, theirs one by one."""
    tars = _start(bench)[1]

    def decode() -> int:
        return sum(1 for _ in _theirs(tars).decode("torchrgb8").to_tuple("jpg;jpeg;png", "cls"))

    theirs = np.array([int(sample["__key__"]) for sample in _theirs(tars)])
    loader = _ours(bench, tars, **fields)
    apart = f"neighbours in a tar come {median_apart(loader.order.epoch(0)):,.0f} / {median_apart(theirs):,.0f} images apart"
    note = f"{_way(fields)} / webdataset with a buffer of {BUFFER:,}, the same cold tars of {len(theirs):,} images, one core; {apart}"
    return _against(bench, partial(_speed, bench, tars, len(theirs), decode), tars, note, **fields)


@cores(1)
def against_image_folder(bench: Bench, **fields: Any) -> Comparison:
    """In one process on one core: an epoch from cold files to uint8 images, files in random order."""
    files, tars = _start(bench)
    paths = [Path(path) for path, _ in files.samples]

    def decode() -> None:
        for i in np.random.default_rng(0).permutation(len(files)).tolist():
            files[i]

    note = f"{_way(fields)} / ImageFolder, the same {len(files):,} images cold, one core"
    return _against(bench, partial(_speed, bench, paths, len(files), decode), tars, note, **fields)


def _way(fields: dict[str, Any]) -> str:
    return "streamed in windows" if fields.get("cache_gb") == 0 else "from the cache, in memory,"
