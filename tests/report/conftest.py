"""Sweep folders as a launcher and its jobs would leave them, with numbers that tests choose."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import sweep_facts
from vitssl import config
from vitssl.config import Run, Site
from vitssl.report.figures import analyses, plots, style
from vitssl.report.results.collect import collect
from vitssl.report.results.grid import Grid, lay_out

SITE = dataclasses.asdict(Site(name="cluster", gpu="RTX A5000", price_per_gpu_hour=0.5, currency="EUR", country="DEU"))
STAGES = {
    "scratch": [("train", {"objectives.classify": {}})],
    "ssat": [
        ("train", {"objectives.classify": {"weight": 0.1}, "objectives.mae": {"weight": 0.9, "decoder_depth": 2, "decoder_dim": 128}})
    ],
    "sslft": [("pretrain", {"objectives.mae": {}, "loop.epochs": 50}), ("finetune", {"objectives.classify": {}, "loop.epochs": 50})],
}
MACS = {"classify": 1_258_219_584, "mae": 425_600_000, "simclr": 1_258_219_584}
PARAMS = {"classify": 5_526_346, "mae": 5_850_000, "simclr": 5_600_000}


@pytest.fixture(autouse=True)
def figures_for_pages(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Reports have their figures as a page shows them alone: PNG and PDF, which tests that ask for ``all_files`` look at, take longest."""
    files = style.FILES
    monkeypatch.setattr(style, "FILES", {})
    return files


@pytest.fixture
def all_files(figures_for_pages: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(style, "FILES", figures_for_pages)


@pytest.fixture
def without_plots(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """Reports have no figures, which take the longest: for the files of tests that are of something else."""
    drawing = [(module, module.draw) for module in (plots, analyses)]
    for module, _ in drawing:
        monkeypatch.setattr(module, "draw", lambda grid: {})
    return drawing


@pytest.fixture
def with_plots(without_plots: list[tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports have their figures in one test of such a file."""
    for module, draw in without_plots:
        monkeypatch.setattr(module, "draw", draw)


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def record(attempt: int = 0, hours: float = 1.0, gpus: int = 1, node: str = "n1", **values: float) -> dict[str, Any]:
    """One emissions file: per hour 0.2 kWh on each GPU, 0.04 kWh CPU, 0.01 kWh RAM; half of the node; 0.4 kg/kWh."""
    gpu, cpu, ram = 0.2 * hours * gpus, 0.04 * hours, 0.01 * hours
    entry = {
        "attempt": attempt, "node": node, "start": 0.0, "end": 3600 * hours, "duration_s": 3600 * hours, "gpus": gpus,
        "gpu_names": ["RTX A5000"] * gpus,
        "cpu_model": "EPYC", "gpu_kwh": gpu, "cpu_kwh": cpu, "ram_kwh": ram, "node_cpu_kwh": 2 * cpu, "node_ram_kwh": 2 * ram,
        "node_share": 0.5,
        "intensity_kg_per_kwh": 0.4, "country": "DEU", "cpu_power_source": "tdp", "codecarbon": "3.3.2",
        "gpu_busy_s": 0.0, "cpu_time_s": 3600 * hours, "other_cpu_time_s": 0.0, "cores": 4, "kwh_by_quarter_hour": {},
    } | values  # fmt: skip
    energy = entry["gpu_kwh"] + entry["cpu_kwh"] + entry["ram_kwh"]
    return {"energy_kwh": energy, "co2e_kg": energy * entry["intensity_kg_per_kwh"], **entry}


def data_facts(name: str = "cifar10", **values: Any) -> dict[str, Any]:
    """What the launcher tells of a run's data: 2,000 of CIFAR-10's images, all labelled."""
    facts = {"name": name, "classes": 10, "train_images": 2000, "labelled_images": 2000, "val_images": 0, "test_images": 10_000}
    return facts | {"smallest_px": [32, 32], "largest_px": [32, 32], "sha256": "0123456789abcdef" * 4} | values


def _events(run: Run, top1: float | None, attempts: int, ended: bool) -> list[dict[str, Any]]:
    epochs, objectives = run.loop.epochs if ended else run.loop.epochs // 2, config.active(run.objectives)
    versions = {"vitssl": "0.1.0", "python": "3.11.7", "torch": "2.14.1", "timm": "1.0.31"}
    start = {
        "event": "start", "time": 0.0, "world_size": 1, "accumulate": 1, "device": "NVIDIA RTX A5000", "host": "n1", "versions": versions,
        "steps": 10 * run.loop.epochs, "lr": config.scaled_lr(run.optim, run.optim.lr), "batch_size": run.optim.batch_size,
        "lost_steps": 0,
    }  # fmt: skip
    events = [{**start, "attempt": a, "step": 0} for a in range(attempts)]
    for epoch in range(1, epochs + 1):
        past = 1 - math.exp(-5 * epoch / run.loop.epochs)
        events.append(
            {
                "event": "train",
                "step": 10 * epoch,
                "epoch": epoch,
                "time": 0.0,
                "loss": 2.3,
                "terms": {o: 2.3 - 1.9 * past for o in objectives},
            }
        )
        if top1 is not None:
            test = {"top1": top1 * past, "top5": 99.0, "loss": 1.0, "count": 10_000}
            events.append({"event": "eval", "step": 10 * epoch, "epoch": epoch, "time": 0.0, "test": test})
    return [*events, {"event": "end", "attempt": attempts - 1, "step": 10 * epochs, "time": 0.0, "reason": "done"}] if ended else events


@lru_cache
def _run(layer: str) -> Run:
    return config.merge(Run, {"data.shards": "nowhere", "optim.batch_size": 64}, json.loads(layer))


def make_run(
    folder: Path, layer: dict[str, Any], seed: int = 0, *, top1: float | None = 80.0, state: str = "done", site: dict | None = None,
    records: list[dict[str, Any]] | None = None, shards: str = "shards/cifar10", done: dict[str, Any] | None = None,
    cost: dict[str, Any] | None = None, data: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    """One run folder: state done, failed, running (which stopped, if its last record is as old as here) or not begun."""
    run = _run(json.dumps(layer))
    run = dataclasses.replace(run, seed=seed, data=dataclasses.replace(run.data, shards=shards))
    _write(folder / "run.yaml", dataclasses.asdict(run))  # JSON is YAML
    objectives = list(config.active(run.objectives))
    described = data_facts(Path(shards).name, **(data or {}))
    _write(folder / "job.json", {"site": site or SITE, "source": "runs/x/source/0123456789ab", "data": described})
    if state == "not begun":
        return
    records = records if records is not None else [record(hours=run.loop.epochs / 100)]
    for entry in records:
        _write(folder / f"emissions-{entry['attempt']}-{entry['node']}.json", entry)
    attempts = len({entry["attempt"] for entry in records})
    events = _events(run, top1 if "classify" in objectives else None, attempts, state == "done")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    if state == "failed":
        _write(folder / "error.json", {"message": "loss is not finite at step 70 (optim.lr)", "time": 0.0})
    if state != "done":
        return
    _write(folder / "cost.json", {
        "params_train": max(PARAMS[o] for o in objectives), "params_inference": PARAMS["classify"],
        "macs_train_forward": sum(MACS[o] for o in objectives), "macs_train_step": 3 * sum(MACS[o] for o in objectives),
        "macs_passes": {o: MACS[o] for o in objectives},
        "macs_inference": MACS["classify"], "activations_inference": 14_250_000, "inference_images_per_s": 4000.0,
        "inference_device": "cuda", "inference_batch_size": 256, "precision": "bf16",
    } | (cost or {}))  # fmt: skip
    test = {"top1": top1, "top5": 99.0, "loss": 1.0, "count": 10_000} if "classify" in objectives else None
    best = {"top1": top1 + 0.3, "epoch": run.loop.epochs - 1} if test and top1 is not None else None
    finished = {"step": 10 * run.loop.epochs, "epochs": run.loop.epochs, "time_s": 1.0, "gpu_hours": 1.0, "test": test, "test_best": best}
    _write(folder / "done.json", finished | (done or {}))


def make_sweep(
    folder: Path, top1: dict[str, Any], axes: dict[str, list[Any]], *, arms: list[dict[str, Any]] | None = None,
    columns: str | None = "data", baseline: str | None = "scratch",
    make: dict[tuple, dict[str, Any]] | None = None, stages: dict[str, list] | None = None, **facts: Any,
) -> Path:  # fmt: skip
    """A sweep folder.

    Args:
        top1: accuracy by arm: a number, or a function of the axes.
        make: more for ``make_run``, by (arm, *axis values); {"skip": True} leaves the folder out.
        stages: by arm, as STAGES; an arm's name up to the first "_" is looked up.
    """
    stages, make = stages or STAGES, make or {}
    cells = []
    for arm, point in product(top1, product(*axes.values())):
        at, value, listed = dict(zip(axes, point, strict=True)), top1[arm], []
        kwargs = dict(make.get((arm, *point), {}))
        skip = kwargs.pop("skip", False)
        for name, layer in stages[arm.split("_")[0]]:
            place = f"{arm}-{name}-" + "-".join(f"{v}" for v in point)
            listed.append({"stage": name, "folder": place})
            score = value(at) if isinstance(value, Callable) else value
            if not skip:
                make_run(folder / place, layer, at.get("seed", 0), top1=score, shards=f"shards/{at.get('data', 'cifar10')}", **kwargs)
        cells.append({"arm": arm, "axes": at, "stages": listed})
    about = {
        "name": folder.name, "file": f"sweeps/{folder.name}.yaml", "columns": columns, "baseline": baseline, "axes": axes, "site": SITE,
        "command": f"python jobs/submit.py sweeps/{folder.name}.yaml", "commit": "0123456789abcdef", "created": "2026-11-21T06:00:00+00:00",
    }  # fmt: skip
    _write(folder / "sweep.json", sweep_facts(arms or top1, cells, **about | facts))
    return folder


@pytest.fixture
def sweep(tmp_path: Path):
    """``make_sweep`` in the test's temporary folder."""

    def made(*args: Any, name: str = "study", **kwargs: Any) -> Path:
        return make_sweep(tmp_path / name, *args, **kwargs)

    return made


@pytest.fixture
def run_folder(tmp_path: Path):
    """``make_run`` in the test's temporary folder; returns the folder."""

    def made(layer: dict[str, Any] | None = None, **kwargs: Any) -> Path:
        make_run(tmp_path / "run", layer or {"objectives.classify": {}}, **kwargs)
        return tmp_path / "run"

    return made


@pytest.fixture
def emissions_record():
    return record


PAPER = {"title": "Limited Data, Unlimited Potential", "table": "Table 3", "url": "https://arxiv.org/abs/2310.20704"}
TABLE_3 = [  # name, row, CIFAR-10, CIFAR-100, GMACs, GPU-hours, kg
    ("scratch", "Scratch", 79.47, 55.11, "1.26", 60, 5.96),
    ("sslft_50_50", "(1) SSL+FT", 85.33, 60.43, "0.43+1.26", 55, 5.46),
    ("sslft_50_100", "(2) SSL+FT", 86.48, 63.28, "0.43+1.26", 82, 8.15),
    ("sslft_100_50", "(3) SSL+FT", 85.3, 60.3, "0.43+1.26", 74, 7.35),
    ("sslft_100_100", "(4) SSL+FT", 88.72, 67.53, "0.43+1.26", 104, 10.33),
    ("ssat", "Ours", 91.65, 69.64, "1.67", 78, 7.55),
]


def make_table_3(folder: Path, **kwargs: Any) -> Path:
    """The SSAT paper's Table 3 with three seeds: measured = published - 1 + a tenth of the seed."""
    published = {name: {"cifar10": c10, "cifar100": c100} for name, _, c10, c100, *_ in TABLE_3}
    costs = {name: {"gmacs": g, "gpu_hours": h, "kg_co2e": kg} for name, _, _, _, g, h, kg in TABLE_3}
    arms = [{"name": n, "row": r, "published": published[n], "published_cost": costs[n]} for n, r, *_ in TABLE_3]
    top1 = {n: lambda at, n=n: published[n][at["data"]] - 1 + 0.1 * at["seed"] for n in published}
    axes = {"data": ["cifar10", "cifar100"], "seed": [0, 1, 2]}
    return make_sweep(folder, top1, axes, **{"arms": arms, "paper": PAPER, **kwargs})


@pytest.fixture
def table_3(tmp_path: Path):
    """`table_3(**kwargs)`: its folder, with other facts of the sweep."""
    return lambda **kwargs: make_table_3(tmp_path / "ssat_vs_sslft", **kwargs)


@pytest.fixture(scope="session")
def grid_3(tmp_path_factory: pytest.TempPathFactory) -> Grid:
    """It laid out, once for all tests that only look at it."""
    return lay_out(collect(make_table_3(tmp_path_factory.mktemp("table_3") / "ssat_vs_sslft")))
