"""Speed on this machine, as ratios: each comparison times ours and its rival in turn, in one process, and takes medians."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torch.nn.functional as F
import torchvision
from PIL import Image
from timm.data import create_transform
from torch import Tensor

from vitssl import config, cost, dist, memory, model, optim
from vitssl.config import ConfigError, Run
from vitssl.data import shards
from vitssl.data.batch import Batch, RawBatch
from vitssl.data.index import load_index
from vitssl.data.loader import TrainLoader
from vitssl.data.sources import open_source
from vitssl.data.subset import train_and_heldout
from vitssl.views import TrainViews


@dataclass
class Comparison:
    """Medians over the rounds; ``ratio`` is the median of the ratios ours / rival of the rounds."""

    name: str
    unit: str
    ours: float
    rival: float
    ratio: float
    rounds: int
    note: str


def run(images: Path | None, only: list[str], repeats: int) -> dict[str, Any]:
    """Make the comparisons named in ``only`` (all that this machine can, if empty).

    Raises:
        ConfigError: an unknown name, or a folder that does not hold train/<class>/<image>.
    """
    if images:
        open_source(f"folder:{images}")  # before minutes of steps
    known = COMPARISONS if torch.cuda.is_available() else {k: v for k, v in COMPARISONS.items() if k not in NEED_GPU}
    for name in only:
        if name not in known:
            raise ConfigError(f"{name} is not one of {', '.join(known)} (on this machine)", "--only")
    device = dist.device("auto")
    threads = torch.get_num_threads()
    if device.type == "cpu":
        memory.keep_freed()  # as training does
    with tempfile.TemporaryDirectory() as scratch:
        root = images or _digits_as_jpeg(Path(scratch) / "images")
        comparisons = []
        for name in only or known:
            comparisons.append(known[name](Bench(root, Path(scratch), device, repeats)))
            torch.set_num_threads(threads)
    device_name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {threads} threads"
    return {"device": device_name, "torch": torch.__version__, "timm": timm.__version__, "comparisons": [asdict(c) for c in comparisons]}


def table(figures: dict[str, Any]) -> str:
    lines = [f"{figures['device']}, torch {figures['torch']}, timm {figures['timm']}; medians of rounds in turn"]
    lines.append(f"{'comparison':18}{'ours':>12}{'rival':>12}  {'unit':10}{'ours/rival':>11}  what")
    for c in figures["comparisons"]:
        lines.append(f"{c['name']:18}{c['ours']:12.4g}{c['rival']:12.4g}  {c['unit']:10}{c['ratio']:11.3f}  {c['note']}")
    return "\n".join(lines)


@dataclass
class Bench:
    """What the comparisons share."""

    images: Path
    scratch: Path
    device: torch.device
    repeats: int

    def compare(self, name: str, unit: str, ours: Callable[[], float], rival: Callable[[], float], note: str) -> Comparison:
        """Both functions give a figure in ``unit``; one uncounted round first."""
        pairs = [(ours(), rival()) for _ in range(self.repeats + 1)][1:]
        mine, theirs = np.array(pairs).T
        return Comparison(name, unit, *map(float, (np.median(mine), np.median(theirs), np.median(mine / theirs))), self.repeats, note)

    def seconds(self, work: Callable[[], Any], times: int = 1) -> float:
        self._wait()
        started = time.perf_counter()
        for _ in range(times):
            work()
        self._wait()
        return (time.perf_counter() - started) / times

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


# --------------------------------------------------------------------------------------------------------------- steps


def _vit_run(*layers: Any) -> Run:
    base = {"data.shards": "unused", "backbone": {"name": "vit_tiny", "positions": "sincos"}, "optim.batch_size": 64}
    return config.merge(config.Run, base, *layers)


SCRATCH = {"objectives": {"classify": {}}}
SSAT = {"objectives": {"classify": {"weight": 0.1}, "mae": {"weight": 0.9, "decoder_dim": 128, "decoder_depth": 2}}}


class _Step:
    """A training step of a Run on random images: forward, backward, fused AdamW."""

    def __init__(self, bench: Bench, run: Run, batch_size: int):
        self.run, self.device = run, bench.device
        self.network = model.build(run, 10).to(bench.device).train()
        self.optimizer = optim.make(self.network, self.network.backbone, run.optim)
        size = run.data.image_size
        index = torch.arange(batch_size, device=bench.device)
        images = torch.randn(batch_size, 3, size, size, device=bench.device)
        self.batch = Batch({"main": images}, {"main": index % 10}, index, labelled=float(batch_size))
        self.progress = torch.zeros((), device=bench.device)

    def __call__(self, batch: Batch | None = None) -> None:
        with dist.autocast(self.device, self.run.loop.precision):
            total = self.network(batch or self.batch, self.progress)[0]
        total.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def _step_batch(bench: Bench) -> int:
    return 64 if bench.device.type == "cuda" else 32


def ssat_step(bench: Bench) -> Comparison:
    size, times = _step_batch(bench), 10 if bench.device.type == "cuda" else 1
    ssat, scratch = (_Step(bench, _vit_run(layer), size) for layer in (SSAT, SCRATCH))
    note = f"SSAT step / scratch step, ViT-T/16 at 224 px, fp32, batch {size} (MACs: 1.315)"
    return bench.compare("ssat_step", "s", lambda: bench.seconds(ssat, times), lambda: bench.seconds(scratch, times), note)


def drloc_step(bench: Bench, name: str, backbone: str, pooling: str) -> Comparison:
    size, times = _step_batch(bench), 10 if bench.device.type == "cuda" else 1
    alone = {"backbone": {"name": backbone, "positions": "learned"}, "objectives": {"classify": {"pool": "mean"}}}
    joint = {"objectives.drloc": {"weight": 0.5, "pooling": pooling}}
    drloc, classify = (_Step(bench, _vit_run(alone, layer), size) for layer in (joint, {}))
    note = f"classify + drloc (64 pairs) step / classify step, {backbone} at 224 px, fp32, batch {size}"
    return bench.compare(name, "s", lambda: bench.seconds(drloc, times), lambda: bench.seconds(classify, times), note)


def timm_step(bench: Bench) -> Comparison:
    size, times = _step_batch(bench), 10 if bench.device.type == "cuda" else 1
    ours = _Step(bench, _vit_run(SCRATCH, {"backbone.positions": "learned"}), size)
    network = timm.create_model("vit_tiny_patch16_224", num_classes=10).to(bench.device).train()
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    images, labels = ours.batch.views["main"], ours.batch.targets["main"]

    def rival() -> None:
        F.cross_entropy(network(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    note = f"our ViT-T/16 training step / plain timm's, fp32, batch {size}"
    return bench.compare("timm_step", "s", lambda: bench.seconds(ours, times), lambda: bench.seconds(rival, times), note)


# ---------------------------------------------------------------------------------------------------------------- data


def _digits_as_jpeg(root: Path) -> Path:
    """The digits as 32-px JPEG files in class folders: an image folder that every machine can create."""
    for i, (split, sample) in enumerate(open_source("digits").samples()):
        folder = root / split / str(sample.label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(sample.image).convert("RGB").resize((32, 32)).save(folder / f"{i:04d}.jpg")
    return root


def _loader(bench: Bench, device: torch.device, **fields: Any) -> tuple[TrainLoader, Any]:
    folder = bench.scratch / "shards"
    if not folder.exists():
        shards.build(f"folder:{bench.images}", folder, workers=1, progress=False)
    index = load_index(folder)
    data = config.merge(config.Data, {"shards": str(folder), "cache_dir": str(bench.scratch / "cache")}, fields)
    split = train_and_heldout(index, data, need_labels=True)
    return TrainLoader(index, split, data, seed=0, batch_size=256, device=device), index


def loader(bench: Bench) -> Comparison:
    """Per core: our cached hand-out is one thread's memory copies, the rival's decoding is one thread's too."""
    torch.set_num_threads(1)
    ours, _ = _loader(bench, torch.device("cpu"))
    folder = torchvision.datasets.ImageFolder(str(bench.images / "train"), transform=torchvision.transforms.PILToTensor())
    chosen = np.random.default_rng(0).permutation(len(folder))[:1024]

    def hand_out() -> float:
        return 50 * 256 / bench.seconds(lambda: [None for _ in ours.batches(0, 50)])

    def decode() -> float:
        return len(chosen) / bench.seconds(lambda: [folder[i] for i in chosen])

    return bench.compare("loader", "images/s", hand_out, decode, "cached uint8 batches / ImageFolder + PIL decoding, one core each")


RAND_AUGMENT = {"auto_augment": "rand-m9-mstd0.5-inc1", "erasing_prob": 0.25}


def _batch(bench: Bench) -> tuple[RawBatch, Any]:
    """A batch to make views of, and the index that it is from, on one core."""
    torch.set_num_threads(1)
    ours, index = _loader(bench, torch.device("cpu"))
    return next(ours.batches(0, 1))[0], index


def _speed(bench: Bench, raw: RawBatch, index: Any, view: dict[str, Any]) -> Callable[[], float]:
    """Images per second of a view of ours at 224 px; other random numbers each time."""
    views = TrainViews(
        {"main": config.merge(config.View, view)}, image_size=224, mean=index.mean, std=index.std,
        num_classes=len(index.classes), seed=0, device=torch.device("cpu"),
    )  # fmt: skip
    steps = count()
    return lambda: len(raw.images_BCHW) / bench.seconds(lambda: views(replace(raw, step=next(steps))))


def _views_against_timm(bench: Bench, name: str, view: dict[str, Any], timm_options: dict[str, Any], what: str) -> Comparison:
    raw, index = _batch(bench)
    same = {"interpolation": "bicubic", "mean": index.mean, "std": index.std, "color_jitter": None}
    transform = create_transform(224, is_training=True, **same, **timm_options)
    pictures = [torchvision.transforms.functional.to_pil_image(image) for image in raw.images_BCHW]
    pictures = [p.crop((0, 0, int(w), int(h))) for p, (h, w) in zip(pictures, raw.sizes_B2, strict=True)]

    def pil() -> float:
        return len(pictures) / bench.seconds(lambda: torch.stack([transform(p) for p in pictures]))

    note = f"{what} to 224 px / timm's PIL pipeline on the same images, one core each"
    return bench.compare(name, "images/s", _speed(bench, raw, index, view), pil, note)


def views(bench: Bench) -> Comparison:
    return _views_against_timm(bench, "views", {}, {}, "RandomResizedCrop + flip")


def views_randaugment(bench: Bench) -> Comparison:
    theirs = {"auto_augment": RAND_AUGMENT["auto_augment"], "re_prob": RAND_AUGMENT["erasing_prob"]}
    return _views_against_timm(bench, "views_randaugment", RAND_AUGMENT, theirs, "the same with RandAugment + erasing")


def views_bicubic(bench: Bench) -> Comparison:
    raw, index = _batch(bench)
    bicubic, bilinear = (_speed(bench, raw, index, RAND_AUGMENT | {"auto_augment_interpolation": kind}) for kind in ("bicubic", "bilinear"))
    return bench.compare("views_bicubic", "images/s", bicubic, bilinear, "RandAugment's geometry bicubic / bilinear, both ours, one core")


# ----------------------------------------------------------------------------------------------------------------- GPU


@contextmanager
def _cores(count: int) -> Iterator[None]:
    """Bind this process, and what it starts meanwhile, to ``count`` CPU cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@_cores(4)
def end_to_end(bench: Bench) -> Comparison:
    """ViT-S/16 in bf16 with loader, views and all, against the same step on one random batch; MFU of the former."""
    run = _vit_run(SCRATCH, {"backbone.name": "vit_small", "loop.precision": "bf16"})
    source, index = _loader(bench, bench.device)
    step = _Step(bench, run, source.batch_size)
    augment = TrainViews(
        {"main": run.data.views.main}, image_size=224, mean=index.mean, std=index.std,
        num_classes=len(index.classes), seed=0, device=bench.device,
    )  # fmt: skip
    steps = 20

    def real() -> float:
        def train() -> None:
            for parts in source.batches(0, steps):
                step(augment(parts[0]))

        return steps * source.batch_size / bench.seconds(train)

    def synthetic() -> float:
        return source.batch_size / bench.seconds(step, steps)

    comparison = bench.compare("end_to_end", "images/s", real, synthetic, "")
    flops = 6 * cost.measure(run, 10)["macs_train_forward"] * comparison.ours
    speed = f"{flops / 1e12:.1f} TFLOP/s, MFU {flops / _peak(bench):.1%} of this GPU's best matrix product"
    comparison.note = f"ViT-S/16 bf16 with loader and views / the same step on synthetic data, on at most 4 CPU cores; {speed}"
    return comparison


def _peak(bench: Bench) -> float:
    """What this device really reaches on a large bf16 matrix product, FLOP/s: MFU against it needs no table of boards."""
    size = 8192
    a_HW: Tensor = torch.randn(size, size, device=bench.device, dtype=torch.bfloat16)
    multiply = lambda: a_HW @ a_HW  # noqa: E731
    bench.seconds(multiply, 5)
    return 2 * size**3 / min(bench.seconds(multiply, 20) for _ in range(3))


COMPARISONS: dict[str, Callable[[Bench], Comparison]] = {
    "ssat_step": ssat_step,
    "drloc_step_vit": partial(drloc_step, name="drloc_step_vit", backbone="vit_small", pooling="2x2"),
    "drloc_step_swin": partial(drloc_step, name="drloc_step_swin", backbone="swin_tiny", pooling="none"),
    "timm_step": timm_step,
    "loader": loader,
    "views": views,
    "views_randaugment": views_randaugment,
    "views_bicubic": views_bicubic,
    "end_to_end": end_to_end,
}
NEED_GPU = {"end_to_end"}
