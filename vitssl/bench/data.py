"""Comparisons of loading and augmenting images, and of training with both."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from PIL import Image
from timm.data import create_transform

from vitssl import config
from vitssl.bench.base import Bench, Comparison
from vitssl.bench.sizes import SIZES, peak_flops_s, training_step
from vitssl.costs import cost
from vitssl.data import shards
from vitssl.data.index import Index, load_index
from vitssl.data.loading.batch import Batch, RawBatch
from vitssl.data.loading.loader import TrainLoader
from vitssl.data.loading.subset import train_and_heldout
from vitssl.data.loading.view_stream import on_own_stream, slice_groups
from vitssl.data.pixels.layout import unbind_images
from vitssl.data.sources.opening import open_source
from vitssl.views import TrainViews


def digits_as_jpeg(root: Path) -> Path:
    """Write the digits as 32-px JPEG files in class folders below ``root``: an image folder that every machine can create."""
    for i, (split, sample) in enumerate(open_source("digits").samples()):
        folder = root / split / str(sample.label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(sample.image)).convert("RGB").resize((32, 32)).save(folder / f"{i:04d}.jpg")
    return root


def _loader(bench: Bench, device: torch.device, batch_size: int = 256) -> tuple[TrainLoader, Index]:
    """Return a loader of the images as shards, which are built once, and their index."""
    folder = bench.scratch / "shards"
    if not folder.exists():
        shards.build(f"folder:{bench.images}", folder, workers=1, progress=False)
    index = load_index(folder)
    data = config.merge(config.Data, {"shards": str(folder), "cache_dir": str(bench.scratch / "cache")})
    split = train_and_heldout(index, data, need_labels=True)
    return TrainLoader(index, split, data, seed=0, batch_size=batch_size, device=device), index


def loader(bench: Bench) -> Comparison:
    """Compare our cached batches, memory copies by one thread, with the decoding of an ImageFolder, by one thread too."""
    torch.set_num_threads(1)
    ours, _ = _loader(bench, torch.device("cpu"))
    folder = torchvision.datasets.ImageFolder(str(bench.images / "train"), transform=torchvision.transforms.PILToTensor())
    chosen = np.random.default_rng(0).permutation(len(folder))[:1024]

    def hand_out() -> float:
        return 50 * 256 / bench.seconds(lambda: [None for _ in ours.batches(0, 50)])

    def decode() -> float:
        return len(chosen) / bench.seconds(lambda: [folder[i] for i in chosen])

    return bench.compare("images/s", hand_out, decode, "cached uint8 batches / ImageFolder + PIL decoding, one core each")


RAND_AUGMENT = {"auto_augment": "rand-m9-mstd0.5-inc1", "erasing_prob": 0.25}


def _batch(bench: Bench) -> tuple[RawBatch, Index]:
    """Limit torch to one core; return a batch to make views of, and the index that it is from."""
    torch.set_num_threads(1)
    ours, index = _loader(bench, torch.device("cpu"))
    return next(ours.batches(0, 1))[0], index


def main_view(index: Index, view: dict[str, Any], device: torch.device) -> TrainViews:
    """Return the view ``main`` at 224 px."""
    return TrainViews(
        {"main": config.merge(config.View, view)}, image_size=224, mean=index.mean, std=index.std,
        num_classes=len(index.classes), seed=0, device=device,
    )  # fmt: skip


def augmenting(raw: RawBatch, index: Index, view: dict[str, Any], together: int = 1) -> Callable[[], list[Batch]]:
    """Return a function that makes the view of ``together`` copies of a batch on its device, with new random numbers each time."""
    views, steps = main_view(index, view, raw.pixels.device), count()
    return lambda: views.make_batches([replace(raw, step=next(steps)) for _ in range(together)])


def _speed(bench: Bench, raw: RawBatch, index: Index, view: dict[str, Any]) -> Callable[[], float]:
    """Return a function that measures the images per second of one of our views."""
    work = augmenting(raw, index, view)
    return lambda: len(raw.index_B) / bench.seconds(work)


def _views_against_timm(bench: Bench, view: dict[str, Any], timm_options: dict[str, Any], what: str) -> Comparison:
    """Compare one of our views with timm's pipeline of the given options."""
    raw, index = _batch(bench)
    common: dict[str, Any] = {"interpolation": "bicubic", "mean": index.mean, "std": index.std, "color_jitter": None}
    transform = create_transform(224, is_training=True, **common, **timm_options)
    pictures = [torchvision.transforms.functional.to_pil_image(image) for image in unbind_images(raw.pixels, raw.sizes_B2.numpy())]

    def pil() -> float:
        return len(pictures) / bench.seconds(lambda: torch.stack([transform(p) for p in pictures]))

    note = f"{what} to 224 px / timm's PIL pipeline on the same images, one core each"
    return bench.compare("images/s", _speed(bench, raw, index, view), pil, note)


def views(bench: Bench) -> Comparison:
    return _views_against_timm(bench, {}, {}, "RandomResizedCrop + flip")


def views_randaugment(bench: Bench) -> Comparison:
    theirs = {"auto_augment": RAND_AUGMENT["auto_augment"], "re_prob": RAND_AUGMENT["erasing_prob"]}
    return _views_against_timm(bench, RAND_AUGMENT, theirs, "the same with RandAugment + erasing")


def views_bicubic(bench: Bench) -> Comparison:
    raw, index = _batch(bench)
    bicubic, bilinear = (_speed(bench, raw, index, RAND_AUGMENT | {"auto_augment_interpolation": kind}) for kind in ("bicubic", "bilinear"))
    return bench.compare("images/s", bicubic, bilinear, "RandAugment's geometry bicubic / bilinear, both ours, one core")


@contextmanager
def cores(count: int) -> Iterator[None]:
    """Context that binds this process, and what it starts meanwhile, to ``count`` CPU cores."""
    affinity = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(affinity)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, affinity)


@cores(4)
def end_to_end(bench: Bench, network: str, method: str, batch_size: int, view: dict[str, Any], steps: int) -> Comparison:
    """Compare training in bf16, compiled, with loader and views, with the same step on one random batch; the note has the former's MFU.

    ``steps`` should be so many that the time of the first views, which overlaps with no step, counts little.
    """
    source, index = _loader(bench, bench.device, batch_size)
    step = training_step(bench, network, method, compiled=True, batch_size=batch_size, num_classes=len(index.classes))
    augment = main_view(index, view, bench.device)

    def real() -> float:
        def train() -> None:
            raws = slice_groups(
                (raw for slices in source.batches(0, steps) for raw in slices), augment.slices_at_once(batch_size, source.largest_px), 0
            )
            with closing(on_own_stream((augment.make_batches(group) for group in raws), bench.device)) as batches:
                for batch in batches:
                    step(batch)

        return steps * batch_size / bench.seconds(train)

    def synthetic() -> float:
        return batch_size / bench.seconds(step, steps)

    comparison = bench.compare("images/s", real, synthetic, "")
    flops = 2 * cost.measure(step.run, len(index.classes))["macs_train_step"] * comparison.ours
    speed = f"{flops / 1e12:.1f} TFLOP/s, MFU {flops / peak_flops_s(bench):.1%} of this GPU's best matrix product"
    setting = f"{SIZES.get(network, network)} {method} bf16, compiled, batch {batch_size}, with loader and views"
    comparison.note = f"{setting}{', RandAugment' if view else ''} / the same step on synthetic data, on at most 4 CPU cores; {speed}"
    return comparison
