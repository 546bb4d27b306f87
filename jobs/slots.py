"""Slots: how many runs this machine trains side by side, and on which of its cores and GPUs.

A run has its own cores, so that it waits for no other run and its energy can be told from that of the others: on CPUs `loop.threads` cores,
on GPUs an equal share of all cores. GPUs are never shared.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from jobs.plan.graph import Job
from jobs.plan.launch import Launch
from jobs.plan.pace import on_gpu
from vitssl.costs.emissions import visible_gpus
from vitssl.words import counted

MOST = 4  # runs at once on CPUs, unless the site asks for more, since each needs its own memory


class Slot(NamedTuple):
    """The cores and GPUs that a run may use; if both are empty, the whole machine."""

    cores: tuple[int, ...] = ()  # numbers of the CPU cores
    gpus: tuple[int, ...] = ()  # NVML's numbers of the GPUs

    def __str__(self) -> str:
        gpus = [counted(len(self.gpus), "GPU")] if self.gpus else []
        return " and ".join([*gpus, counted(len(self.cores), "core")])

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that show a run its own GPUs only, in NVML's order, which `jobs.command.environment` sets."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, self.gpus))} if self.gpus else {}


WHOLE = Slot()


def slots(jobs: Sequence[Job], launch: Launch) -> list[Slot]:
    """Return a slot for each run that the machine trains at a time, all with the same number of cores and GPUs."""
    todo = [job for job in jobs if not job.is_done]
    cores, limit, gpus, gpus_each = sorted(os.sched_getaffinity(0)), launch.site.max_parallel, [], 0
    if gpu_jobs := [job for job in todo if on_gpu(job.run, job.resources, launch.executor)]:
        if "CUDA_VISIBLE_DEVICES" in launch.site.env:  # all runs get the same GPUs, so they cannot run side by side
            return [WHOLE]
        gpus, gpus_each = [gpu.index for gpu in visible_gpus()], max(max(1, job.resources.gpus_per_node) for job in gpu_jobs)
        count = min(len(gpus) // gpus_each, len(cores), limit or len(gpus), _most_at_once(todo))
        cores_each = len(cores) // max(1, count)
    else:
        # for all processes of a run: one for each GPU that it asks for, although it trains on CPUs here
        cores_each = max((job.run.loop.threads * max(1, job.resources.gpus_per_node) for job in todo), default=1)
        count = min(len(cores) // cores_each, limit or MOST, _most_at_once(todo))
    return [Slot(_part(cores, cores_each, i), _part(gpus, gpus_each, i)) for i in range(count)] if count > 1 else [WHOLE]


def _part(numbers: Sequence[int], size: int, index: int) -> tuple[int, ...]:
    return tuple(numbers[index * size : (index + 1) * size])


def _most_at_once(todo: Sequence[Job]) -> int:
    """Return how many of the jobs in ``todo`` may be trained at a time, given that parents come first."""
    ids = {id(job) for job in todo}
    parents = {id(parent) for job in todo for parent in job.parents}
    startable = [job for job in todo if not any(id(parent) in ids for parent in job.parents)]
    return max(len(startable), len(ids - parents))
