"""How fast, and for how much energy, earlier runs of an architecture trained: the finished runs of a runs folder measured it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from jobs.plan.architecture import architecture
from jobs.plan.launch import Launch
from jobs.plan.sweep import Resources
from vitssl.config import ConfigError, Run
from vitssl.costs.emissions import visible_gpus
from vitssl.files import read_events, read_json
from vitssl.run_folder import DONE
from vitssl.words import note


class Key(NamedTuple):
    """What a measured pace applies to."""

    architecture: str
    executor: str
    on_gpu: bool
    gpu: str | None  # the site's


@dataclass(frozen=True)
class Pace:
    """Medians over runs."""

    images_per_s: float  # of one process, while it trains
    kwh_per_image: float | None  # of all that a run did; None where no energy was recorded
    device: str


def key_of(run: Run, resources: Resources, launch: Launch) -> Key:
    """What a run's pace goes by."""
    return Key(architecture(run), launch.executor, on_gpu(run, resources, launch), launch.site.gpu)


def on_gpu(run: Run, resources: Resources, launch: Launch) -> bool:
    """Will a run train on GPUs?"""
    if run.loop.device == "cpu":
        return False
    return bool(resources.gpus_per_node if launch.executor == "slurm" else visible_gpus())  # which nothing hides from a run here


def measured(runs: Path, but: Path | None = None) -> dict[Key, Pace]:
    """The pace of every architecture that has a finished run in a folder of sweeps, the sweep ``but`` left out."""
    paces: dict[Key, list[Pace]] = {}
    for done in sorted(path for path in runs.glob("*/*/done.json") if path.parents[1] != but):
        try:
            for key, pace in _of_run(done.parent):
                paces.setdefault(key, []).append(pace)
        except ConfigError as error:  # of whatever sweep: it must not stop this one
            note(f"the pace of a run is not counted: {error}")
    return {key: _median(values) for key, values in paces.items()}


def _of_run(folder: Path) -> Iterator[tuple[Key, Pace]]:
    """The pace of a finished run, if its folder says it."""
    job = read_json(folder / "job.json")
    told = job.keys() >= {"architecture", "executor", "site"} and "reused_from" not in job  # which counts where it was trained
    pace = _pace(folder, read_json(folder / DONE)) if told else None
    if pace is not None:
        gpu = read_json(folder / "cost.json").get("inference_device") == "cuda"
        yield Key(job["architecture"], job["executor"], gpu, job["site"].get("gpu")), pace


def _pace(folder: Path, done: dict) -> Pace | None:
    """That of one run; None where it logged no speed."""
    events = read_events(folder / "metrics.jsonl")
    starts = [event for event in events if event["event"] == "start"]
    rates = [event["images_per_s"] for event in events if event["event"] == "train" and "images_per_s" in event]
    if not starts or not rates:
        return None
    images = done.get("step", 0) * starts[-1].get("batch_size", 0)
    energy_kwh = sum(read_json(record)["energy_kwh"] for record in folder.glob("emissions-*.json"))
    rates = rates[1:] or rates  # in the first steps memory is found and caches fill, which would count in a run of few lines
    return Pace(median(rates) / starts[-1]["world_size"], energy_kwh / images if energy_kwh and images else None, starts[-1]["device"])


def _median(paces: list[Pace]) -> Pace:
    energies = [pace.kwh_per_image for pace in paces if pace.kwh_per_image is not None]
    return Pace(median(pace.images_per_s for pace in paces), median(energies) if energies else None, paces[-1].device)
