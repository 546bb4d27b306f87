"""Energy and CO2e of one attempt at a run on one node, measured with codecarbon (offline).

codecarbon measures whole machines. Therefore a job has exactly one ``Tracker`` per node, for any number of ranks. The tracker is told which
GPUs are the job's, and the energy of the node's CPUs and RAM is counted by the job's share of the node:

    energy = energy of the job's GPUs + share * (energy of the node's CPUs + energy of its RAM)
    share = CPUs of the job / CPUs of the node    (`share_of_node`)
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from vitssl.config import ConfigError, Site
from vitssl.costs import intensity
from vitssl.costs.workload import CpuMeter
from vitssl.files import write_json

GRID_FIELDS = ("country", "intensity_kg_per_kwh", "intensity_csv")  # the fields of a site that name its grid
FLUSH_S = 10.0  # seconds between measurements: a killed job loses at most this much of its record


def intensity_kg_per_kwh(site: Site) -> float:
    """Return the grid's mean carbon intensity at ``site``, in kg CO2e per kWh.

    It is the mean of the site's file, otherwise the figure of its profile, otherwise what codecarbon bundles for its country.

    Raises:
        ConfigError: the file is invalid, or no figure is bundled for the country's code (codecarbon itself would silently take a world
            average).
    """
    if site.intensity_csv is not None:
        return intensity.read(site.intensity_csv).mean
    if site.intensity_kg_per_kwh is not None:
        return site.intensity_kg_per_kwh
    with _without_slurm():
        from codecarbon.input import DataSource
    mix = DataSource().get_global_energy_mix_data().get(site.country)
    if mix is None:
        advice = f"write an ISO 3166-1 alpha-3 code ({_suggested_countries(site.country)}) or set site.intensity_kg_per_kwh"
        raise ConfigError(f"codecarbon knows no {site.country!r}; {advice}", "site.country")
    if not mix.get("carbon_intensity"):
        raise ConfigError(f"codecarbon has no carbon intensity for {site.country}; set site.intensity_kg_per_kwh", "site.country")
    return mix["carbon_intensity"] / 1000


def names_grid(site: Site) -> bool:
    """Whether ``site`` says where its energy comes from, instead of leaving that to the default."""
    return any(getattr(site, name) != getattr(Site, name) for name in GRID_FIELDS)


def is_restated(trained_at: Site, site: Site) -> bool:
    """Whether a report takes the grid that a sweep's last command names, at ``site``, for a run that was trained before.

    It does for a run of the same site whose own command named no grid, but not by the hour, since the file of an intensity by the hour need
    not cover the time when the run trained.
    """
    return trained_at.name == site.name and not names_grid(trained_at) and names_grid(site) and site.intensity_csv is None


def grid_name(site: Site) -> str:
    """Return the name of the grid in energy records: the country, or that the site has figures of its own.

    A file of intensities always counts as such; a single figure only if the site leaves the country to the default.
    """
    if site.intensity_csv is not None:
        return intensity.BY_HOUR
    return intensity.OWN_FIGURE if site.intensity_kg_per_kwh is not None and site.country == Site.country else site.country


def _suggested_countries(country: str) -> str:
    """Return the codes and names of countries that an unknown name or code may stand for; an example if there are none."""
    import pycountry

    matches: list[Any] = []
    with suppress(LookupError):
        matches = [pycountry.countries.lookup("GB" if country.upper() == "UK" else country)]
    if not matches and len(country) > 2:
        with suppress(LookupError):
            matches = pycountry.countries.search_fuzzy(country)[:3]
    return ", ".join(f"{match.alpha_3}: {match.name}" for match in matches) or "such as DEU: Germany"


def share_of_node() -> float:
    """Return this job's share of its node's CPUs, in (0, 1].

        share = min(CPUs that this process may run on, CPUs that SLURM allotted on this node) / CPUs of the node

    Both are needed: without cgroups a SLURM job may run on all CPUs, and several runs on this machine may share the CPUs of one job.
    """
    usable, allotted = len(os.sched_getaffinity(0)), os.environ.get("SLURM_CPUS_ON_NODE")
    return min(1.0, (min(usable, int(allotted)) if allotted else usable) / (os.cpu_count() or usable))


class Tracker:
    """Context manager that records the energy of this process's node in ``emissions-<attempt>-<node>.json``.

    Args:
        folder: the run folder.
        attempt: number of the attempt, from 0.
        site: gives the country or the grid's intensity.
        gpus: how many of the visible GPUs the job computes on, from the first; 0 for a job on the CPU of a node with GPUs, None for all.
        flush_s: seconds between two measurements, each of which is written at once.

    Raises:
        ConfigError: the country's carbon intensity is unknown, or GPUs cannot be measured (when created, before anything starts).
        RuntimeError: codecarbon cannot measure here (when entered).
    """

    def __init__(self, folder: Path, attempt: int, site: Site, *, gpus: int | None = None, flush_s: float = FLUSH_S):
        # SLURM's name of the node, as several nodes of a test cluster share one host
        self._node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        self.path = Path(folder) / f"emissions-{attempt}-{self._node}.json"
        self._attempt, self._flush_s = attempt, flush_s
        self._iso_code = site.country
        self._country = grid_name(site)
        self._intensity, self._share = intensity_kg_per_kwh(site), share_of_node()
        self._grid = intensity.read(site.intensity_csv) if site.intensity_csv is not None else None
        self._by_hour = intensity.ByQuarterHour()
        self._gpus = visible_gpus()[:gpus] if gpus != 0 else []
        if len(self._gpus) < (gpus or 0):
            raise ConfigError(
                f"{self._node}: NVIDIA's NVML shows {len(self._gpus)} of this job's {gpus} GPUs, so their energy cannot be measured; "
                "a container needs the driver's `utility` capability (NVIDIA_DRIVER_CAPABILITIES)"
            )
        self._lock = threading.Lock()  # codecarbon's timer and stop() both write

    def __enter__(self) -> Tracker:
        with _without_slurm(), _quiet_codecarbon() as complaints:
            self._tracker = self._make()
            self._cpu = CpuMeter()  # made last, so that it does not count the seconds that making the tracker takes
            self._tracker.start()
            self._tracker.flush()
            if not self.path.is_file():
                self._tracker.stop()  # otherwise its timer would go on
        if not self.path.is_file():
            raise RuntimeError(f"codecarbon measured nothing on {self._node}: {'; '.join(complaints) or 'it gave no reason'}")
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        with _quiet_codecarbon() as complaints:
            self._tracker.stop()
        if complaints and self.path.parent.is_dir():  # the removal of a run's folder is reported elsewhere
            warnings.warn(f"{self.path.name} lacks the last seconds of this attempt: {'; '.join(complaints)}", stacklevel=2)

    def _make(self) -> Any:
        """Return codecarbon's tracker, which passes every measurement to `_write`."""
        from codecarbon import OfflineEmissionsTracker
        from codecarbon.core.cpu import is_rapl_available
        from codecarbon.output_methods.base_output import BaseOutput

        class Output(BaseOutput):
            """codecarbon calls `live_out` at every measurement and `out` at a flush and at the end."""

            out = live_out = staticmethod(lambda total, delta: self._write(total))

        # every setting that affects the numbers is given, so that no codecarbon configuration of the user changes them
        tracker = OfflineEmissionsTracker(
            country_iso_code=self._iso_code, force_carbon_intensity_g_co2e_kwh=self._intensity * 1000, tracking_mode="machine",
            gpu_ids=[gpu.index for gpu in self._gpus], measure_power_secs=self._flush_s, api_call_interval=1, pue=1.0,
            force_cpu_power=None, force_ram_power=None, allow_multiple_runs=True, output_methods=[], output_handlers=[Output()],
            emissions_endpoint=None, log_level="warning",
        )  # fmt: skip
        self._cpu_power_source = "rapl" if is_rapl_available() else "tdp"
        return tracker

    def _write(self, total: Any) -> None:
        if self._gpus and not total.gpu_model:
            raise RuntimeError(f"codecarbon finds none of this job's {len(self._gpus)} GPUs; it needs nvidia-smi on the PATH")
        with self._lock:
            write_json(self.path, self._record(total))

    def _record(self, total: Any) -> dict[str, Any]:
        """Return the record of the energy that was drawn so far; the caller must hold the lock.

        energy_kwh = gpu_kwh + node_share * (node_cpu_kwh + node_ram_kwh)
        co2e_kg = energy_kwh * intensity, or with intensities by the hour the sum over quarter hours (`intensity.co2e_kg`)
        gpu_busy_s = duration_s * GPUs * their mean utilisation
        """
        gpu_kwh = total.gpu_energy if self._gpus else 0.0
        cpu_kwh, ram_kwh = total.cpu_energy * self._share, total.ram_energy * self._share
        energy_kwh, end = gpu_kwh + cpu_kwh + ram_kwh, time.time()
        self._by_hour.add(energy_kwh, end)
        by_hour = self._by_hour.kwh
        co2e_kg = energy_kwh * self._intensity if self._grid is None else intensity.co2e_kg(by_hour, self._grid)
        return {
            "attempt": self._attempt, "node": self._node, "start": end - total.duration, "end": end, "duration_s": total.duration,
            "gpus": len(self._gpus), "gpu_names": [gpu.name for gpu in self._gpus], "gpu_uuids": [gpu.uuid for gpu in self._gpus],
            "cpu_model": total.cpu_model, "gpu_kwh": gpu_kwh, "cpu_kwh": cpu_kwh, "ram_kwh": ram_kwh, "energy_kwh": energy_kwh,
            "node_cpu_kwh": total.cpu_energy, "node_ram_kwh": total.ram_energy, "node_share": self._share,
            "co2e_kg": co2e_kg, "intensity_kg_per_kwh": co2e_kg / energy_kwh if energy_kwh else self._intensity, "country": self._country,
            "kwh_by_quarter_hour": by_hour,
            "cpu_power_source": self._cpu_power_source, "codecarbon": total.codecarbon_version,
            "gpu_busy_s": total.duration * len(self._gpus) * total.gpu_utilization_percent / 100, **self._cpu.read(total.duration),
        }  # fmt: skip


# ---------------------------------------------------------------------------------------------------- codecarbon's quirks


@contextmanager
def _without_slurm() -> Iterator[None]:
    """Context that hides the SLURM job from codecarbon.

    Otherwise codecarbon would count the CPUs and the RAM of the whole job on every node, instead of the node's. Without `scontrol` (in a
    container) it would silently measure nothing. It reads these variables once, when it is imported.
    """
    hidden = {name: os.environ.pop(name) for name in ("SLURM_JOB_ID", "SLURM_JOBID") if name in os.environ}
    try:
        import codecarbon  # noqa: F401

        yield
    finally:
        os.environ.update(hidden)


@contextmanager
def _quiet_codecarbon() -> Iterator[list[str]]:
    """Context that silences codecarbon's log, and yields a list to which the exceptions that codecarbon swallows are added."""
    logger, complaints = logging.getLogger("codecarbon"), []

    def listen(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            complaints.append(f"{type(error).__name__}: {error}")
        return False

    logger.addFilter(listen)
    logger.setLevel(logging.WARNING)
    try:
        yield complaints
    finally:
        logger.removeFilter(listen)
        logger.setLevel(logging.ERROR)


# ----------------------------------------------------------------------------------------------------------------- GPUs


@dataclass(frozen=True)
class Gpu:
    """A GPU of this node."""

    index: int  # NVML's index, by which codecarbon selects: its matching by UUID drops the letter G and finds nothing (3.3.2)
    uuid: str
    name: str


def visible_gpus() -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves to this job: the node's if it is not set, none without NVIDIA's driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    boards = [Gpu(i, pynvml.nvmlDeviceGetUUID(h), pynvml.nvmlDeviceGetName(h)) for i, h in enumerate(handles)]
    return select_gpus(boards, os.environ.get("CUDA_VISIBLE_DEVICES"))


def select_gpus(boards: list[Gpu], visible: str | None) -> list[Gpu]:
    """Return the ``boards`` that ``visible`` names by index or by the beginning of a UUID; like CUDA, stop at the first unknown name.

    Raises:
        ConfigError: a MIG slice is named: NVML measures the energy of whole boards only, which others use too.
    """
    if visible is None:
        return boards
    selected = []
    for name in (part.strip() for part in visible.split(",")):
        if name.startswith("MIG-"):
            raise ConfigError(f"the energy of {name}, a slice of a board, cannot be measured; ask for whole GPUs", "CUDA_VISIBLE_DEVICES")
        matches = [b for b in boards if name and (str(b.index) == name or (name.startswith("GPU-") and b.uuid.startswith(name)))]
        if len(matches) != 1:
            break
        selected += matches
    return selected
