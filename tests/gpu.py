"""The first hours on a GPU, in pieces of a few minutes: `python -m tests.gpu PIECE [--out FOLDER] [--steps N] [--only METHOD ...]`.

Each piece prints what it finds and writes it to FOLDER/PIECE.json, with the board, versions and commit. Beside them: `pytest -m gpu`,
`vitssl bench`, and `python jobs/submit.py sweeps/ssat_vs_sslft.yaml --executor local`, whose report has minutes and energy.

waits       how often a step of each method's training waits for the device
precision   losses of bf16 and fp16 beside those of fp32, of each method over the same steps
batches     images a second of ViT-T, from scratch and with SSAT, compiled and not, by batch size
energy      what codecarbon records of a minute's training beside NVML's counter of the same minute
views       images a second of the views alone, with and without RandAugment
profile     where the time of an SSAT step and of its views goes, compiled and not
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from tests.conftest import TINY
from tests.training.test_train import CURVES
from vitssl import config, dist, train, version
from vitssl.bench import sizes
from vitssl.bench.base import Bench
from vitssl.bench.data import RAND_AUGMENT, augmenting
from vitssl.costs import cost
from vitssl.data import shards
from vitssl.data.index import load_index
from vitssl.data.loading.loader import TrainLoader
from vitssl.data.loading.subset import train_and_heldout
from vitssl.files import read_events
from vitssl.training import log

LAST = 20  # steps whose losses are averaged
KEY = 100  # letters of a kernel's name
BATCHES = (64, 128, 256, 512, 1024)
JOULES_PER_KWH = 3.6e6


class Place:
    """Shards of the digits, and folders of Runs on this device."""

    def __init__(self, folder: Path, steps: int, only: Collection[str] = ()):
        self.folder, self.steps, self.device = folder, steps, dist.device("auto")
        self.methods = {name: fields for name, fields in CURVES.items() if not only or name in only}
        self.bench = Bench(folder, folder, self.device, repeats=3)
        shards.build("digits", folder / "digits", progress=False)

    def train(self, name: str, *layers: Any) -> Path:
        """Train a tiny Run to its end; gives its folder."""
        usual = {"data.shards": str(self.folder / "digits"), "loop": {"device": "auto", "eval_every": 0}}
        config.save(config.merge(config.Run, TINY, usual, *layers), self.folder / name)
        if code := train.main([str(self.folder / name)]):
            raise SystemExit(f"{name} ended with exit code {code}")
        return self.folder / name


def waits(place: Place) -> dict[str, float]:
    """By method and precision, of a run without lines of the log: those of twice as many steps less those of as many, for one step."""
    found = {}
    for (name, fields), kind in product(place.methods.items(), ("bf16", "fp16")):
        counts = []
        for steps in (place.steps, 2 * place.steps):
            loop = {"loop": {"max_steps": steps, "log_every": 10 * steps, "precision": kind}}
            with _counted_waits(place.device) as caught:
                place.train(f"{name}_{kind}_{steps}", fields, loop)
            counts.append(sum("synchroniz" in str(one.message) for one in caught))
        found[f"{name}, {kind}"] = (counts[1] - counts[0]) / place.steps
    return found


@contextmanager
def _counted_waits(device: torch.device) -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield caught
        finally:
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")


def precision(place: Place) -> dict[str, dict[str, float]]:
    """By method: means of the last losses in fp32, bf16 and fp16, and their ratios to the first."""
    found = {}
    for name, fields in place.methods.items():
        ends = {}
        for kind in ("fp32", "bf16", "fp16"):
            loop = {"loop": {"max_steps": place.steps, "epochs": 50, "log_every": 1, "precision": kind}}
            events = read_events(place.train(f"{name}_{kind}", fields, loop) / "metrics.jsonl")
            ends[kind] = mean(event["loss"] for event in events[-LAST:] if event["event"] == "train")
        found[name] = ends | {f"{kind} / fp32": ends[kind] / ends["fp32"] for kind in ("bf16", "fp16")}
    return found


def batches(place: Place) -> dict[str, dict[str, float]]:
    """Images a second, and the share of the device's best matrix product."""
    peak, found, name = sizes.peak_flops_s(place.bench), {}, _network(place)
    for method in sizes.METHODS:
        for compiled in (False, True):
            for batch_size in BATCHES if place.device.type == "cuda" else BATCHES[:1]:
                step = sizes.training_step(place.bench, name, method, compiled, batch_size)
                seconds = [place.bench.seconds(step, place.steps) for _ in range(4)]
                speed = batch_size / sorted(seconds[1:])[1]
                mfu = 2 * cost.measure(step.run, 10)["macs_train_step"] * speed / peak
                found[f"{name} {method}, batch {batch_size}, {'compiled' if compiled else 'plain'}"] = {"images/s": speed, "MFU": mfu}
    return found


def _network(place: Place) -> str:
    return "vit_tiny" if place.device.type == "cuda" else "vit_pico"


def energy(place: Place) -> dict[str, float]:
    """A minute and more of training; what NVML counts outside of the tracked time is at the power of a process that waits."""
    import pynvml

    pynvml.nvmlInit()
    board = pynvml.nvmlDeviceGetHandleByIndex(0)
    counter_kwh = lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(board) / 1000 / JOULES_PER_KWH  # noqa: E731
    torch.zeros(1, device=place.device)
    before_kwh, before_s = counter_kwh(), time.time()
    time.sleep(10)
    idle_kw = (counter_kwh() - before_kwh) / (time.time() - before_s) * 3600
    before_kwh, before_s = counter_kwh(), time.time()
    big = {"data.image_size": 224, "backbone": {"name": "vit_small", "embed_dim": None, "depth": None, "num_heads": None, "patch_size": 16}}
    loop = {"loop": {"epochs": 10_000, "max_steps": place.steps, "precision": "bf16"}, "optim.batch_size": 256}
    folder = place.train("energy", CURVES["ssat"], big, loop)
    total_kwh, total_s = counter_kwh() - before_kwh, time.time() - before_s
    (record,) = [json.loads(path.read_text()) for path in folder.glob("emissions-*.json")]
    tracked_s = record["duration_s"]
    nvml_kwh = total_kwh - idle_kw * (total_s - tracked_s) / 3600
    return {
        "codecarbon_gpu_kwh": record["gpu_kwh"], "nvml_kwh_of_the_same_time": nvml_kwh, "nvml_kwh": total_kwh, "tracked_s": tracked_s,
        "total_s": total_s, "idle_w": 1000 * idle_kw, "codecarbon / nvml": record["gpu_kwh"] / nvml_kwh,
    }  # fmt: skip


def views(place: Place) -> dict[str, dict[str, float]]:
    """Images a second of making views of the digits, 8 px, at 224 px, on the device alone."""
    found = {}
    for name, fields in (("crop and flip", {}), ("RandAugment and erasing", RAND_AUGMENT)):
        for batch_size in (sizes.BATCH // 4, sizes.BATCH):
            work = _augmenting(place, fields, batch_size)
            place.bench.seconds(work, place.steps)
            found[f"{name}, batch {batch_size}"] = {"images/s": batch_size / place.bench.seconds(work, place.steps)}
        together = _augmenting(place, fields, sizes.BATCH // 4, together=4)
        together()
        found[f"{name}, four batches of {sizes.BATCH // 4}"] = {"images/s": sizes.BATCH / place.bench.seconds(together, place.steps)}
    return found


def _augmenting(place: Place, fields: dict[str, Any], batch_size: int, together: int = 1) -> Callable[[], Any]:
    """Views of one batch of the digits, or of so many together."""
    index = load_index(place.folder / "digits")
    data = config.merge(config.Data, {"shards": str(place.folder / "digits"), "cache_dir": str(place.folder / "cache")})
    split = train_and_heldout(index, data, need_labels=True)
    (raw,) = next(TrainLoader(index, split, data, seed=0, batch_size=batch_size, device=place.device).batches(0, 1))
    return augmenting(raw, index, fields, together)


def profiled(place: Place) -> dict[str, dict[str, float]]:
    """Of an SSAT step and of its views, by how much of the time each operation takes, the largest first."""
    batch_size = sizes.BATCH // 4 if place.device.type == "cuda" else 2
    step = lambda compiled: sizes.training_step(place.bench, _network(place), "ssat", compiled, batch_size)  # noqa: E731
    parts = {"views": _augmenting(place, RAND_AUGMENT, batch_size), "plain": step(False), "compiled": step(True)}
    return {name: _shares(place, work) for name, work in parts.items()}


def _shares(place: Place, work: Callable[[], Any]) -> dict[str, float]:
    """On a GPU of its kernels, with how many a step launches, and in which share of the time the GPU does anything."""
    on_gpu = place.device.type == "cuda"
    place.bench.seconds(work, place.steps)
    wall_s = place.bench.seconds(work, place.steps)  # the profiler slows a step down
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as record:
        place.bench.seconds(work, place.steps)
    events = record.key_averages()
    if on_gpu:  # operators have the time of the kernels that they launched; these have their own lines
        events = [one for one in events if one.device_type == DeviceType.CUDA and not one.is_user_annotation]
    times_s: Counter[str] = Counter()
    for one in events:
        times_s[one.key[:KEY]] += (one.self_device_time_total if on_gpu else one.self_cpu_time_total) / 1e6 / place.steps
    busy = {"kernels": sum(one.count for one in events) / place.steps, "busy": times_s.total() / wall_s} if on_gpu else {}
    return {"step_s": wall_s} | busy | {name: time_s / wall_s for name, time_s in times_s.most_common(12)}


PIECES: dict[str, tuple[Callable[[Place], dict[str, Any]], int]] = {
    "waits": (waits, 20), "precision": (precision, 100), "batches": (batches, 10), "energy": (energy, 400), "views": (views, 50),
    "profile": (profiled, 10),
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("piece", choices=PIECES)
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder of the JSON files (default: %(default)s)")
    parser.add_argument("--steps", type=int, help="of each training; default: as many as the piece wants")
    parser.add_argument("--only", nargs="+", choices=CURVES, default=(), metavar="METHOD", help="of waits and precision; default: all")
    options = parser.parse_args(arguments)
    piece, steps = PIECES[options.piece]
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), options.steps or steps, options.only)
        content = {"where": _where(place.device), "found": piece(place)}
    options.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1)
    (options.out / f"{options.piece}.json").write_text(text + "\n")
    print(text)
    return 0


def _where(device: torch.device) -> dict[str, Any]:
    smi = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,power.limit", "--format=csv,noheader"]
    board = subprocess.run(smi, capture_output=True, text=True, check=True).stdout.strip() if device.type == "cuda" else None
    return log.machine(device) | {"board": board, "vitssl": version.describe(), "command": sys.argv}


if __name__ == "__main__":
    sys.exit(main())
