"""The pace of training: speed and energy per image of each architecture, as measured by the finished runs in a folder of runs."""

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
from vitssl.files import read_json
from vitssl.run_folder import COST, JOB, emissions_of
from vitssl.words import note


class Key(NamedTuple):
    """The facts that two runs must share for the pace of one to apply to the other."""

    architecture: str
    executor: str
    on_gpu: bool
    gpu: str | None  # the GPU model that the site names


@dataclass(frozen=True)
class Pace:
    """The speed and the energy per image of training, as medians over runs."""

    images_per_s: float  # of one process, during training
    kwh_per_image: float | None  # energy of all that a run did, per image trained on; None if no energy was recorded
    device: str


def key_of(run: Run, resources: Resources, launch: Launch) -> Key:
    """Return the key of the pace that applies to a run."""
    return Key(architecture(run), launch.executor, on_gpu(run, resources, launch.executor), launch.site.gpu)


def on_gpu(run: Run, resources: Resources, executor: str) -> bool:
    """Whether a run will train on GPUs."""
    if run.loop.device == "cpu":
        return False
    return bool(resources.gpus_per_node if executor == "slurm" else visible_gpus())  # a local run sees the same GPUs


def measured(runs: Path, except_sweep: Path | None = None) -> dict[Key, Pace]:
    """Return the pace of every architecture with a finished run in ``runs``, a folder of sweeps; ``except_sweep`` is left out."""
    paces: dict[Key, list[Pace]] = {}
    for done_file in sorted(path for path in runs.glob("*/*/done.json") if path.parents[1] != except_sweep):
        try:
            for key, pace in _of_run(done_file.parent):
                paces.setdefault(key, []).append(pace)
        except ConfigError as error:  # damage in another sweep must not stop this one
            note(f"the pace of a run is not counted: {error}")
    return {key: _median(values) for key, values in paces.items()}


def _of_run(folder: Path) -> Iterator[tuple[Key, Pace]]:
    """Yield the key and pace of a finished run, unless its folder does not say them or it was reused."""
    job = read_json(folder / JOB)
    if not job.keys() >= {"architecture", "executor", "site"} or "reused_from" in job:  # a reused run counts where it was trained
        return
    cost = read_json(folder / COST)
    if training := cost.get("training"):
        energy_kwh, images = sum(record["energy_kwh"] for record in emissions_of(folder)), training["images"]
        pace = Pace(training["images_per_s"], energy_kwh / images if energy_kwh and images else None, training["device"])
        yield Key(job["architecture"], job["executor"], cost.get("inference_device") == "cuda", job["site"].get("gpu")), pace


def _median(paces: list[Pace]) -> Pace:
    """Return the medians over several ``paces``; the energy's is over those that have one."""
    energies = [pace.kwh_per_image for pace in paces if pace.kwh_per_image is not None]
    return Pace(median(pace.images_per_s for pace in paces), median(energies) if energies else None, paces[-1].device)
