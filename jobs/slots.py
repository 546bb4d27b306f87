"""How many runs this machine trains side by side, and on which of its cores and GPUs.

A run has cores of its own, so that it waits for no other and its energy is told from theirs: on CPUs `loop.threads` of them, on GPUs its
share of all. GPUs are never shared.
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

MOST = 4  # on CPUs, unless more are asked for: each has memory of its own


class Slot(NamedTuple):
    """What a run may use; nothing: the whole machine."""

    cores: tuple[int, ...] = ()  # their numbers
    gpus: tuple[int, ...] = ()  # theirs, by NVML

    def __str__(self) -> str:
        gpus = [counted(len(self.gpus), "GPU")] if self.gpus else []
        return " and ".join([*gpus, counted(len(self.cores), "core")])

    @property
    def variables(self) -> dict[str, str]:
        """What shows a run its GPUs alone; their order is NVML's by `jobs.command.environment`."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, self.gpus))} if self.gpus else {}


WHOLE = Slot()


def slots(jobs: Sequence[Job], launch: Launch) -> list[Slot]:
    """One for each run that the machine trains at a time, of equally many cores and GPUs."""
    todo = [job for job in jobs if not job.is_done]
    cores, most, gpus, gpus_each = sorted(os.sched_getaffinity(0)), launch.site.max_parallel, [], 0
    if trained_there := [job for job in todo if on_gpu(job.run, job.resources, launch)]:
        if "CUDA_VISIBLE_DEVICES" in launch.site.env:  # the same for all runs
            return [WHOLE]
        gpus, gpus_each = [gpu.index for gpu in visible_gpus()], max(max(1, job.resources.gpus_per_node) for job in trained_there)
        count = min(len(gpus) // gpus_each, len(cores), most or len(gpus), _most_at_once(todo))
        cores_each = len(cores) // max(1, count)
    else:
        # of all processes of a run, one for each GPU that it asks for, here on CPUs
        cores_each = max((job.run.loop.threads * max(1, job.resources.gpus_per_node) for job in todo), default=1)
        count = min(len(cores) // cores_each, most or MOST, _most_at_once(todo))
    return [Slot(_part(cores, cores_each, i), _part(gpus, gpus_each, i)) for i in range(count)] if count > 1 else [WHOLE]


def _part(numbers: Sequence[int], size: int, index: int) -> tuple[int, ...]:
    return tuple(numbers[index * size : (index + 1) * size])


def _most_at_once(todo: Sequence[Job]) -> int:
    """How many can be trained at a time: what a run starts from goes before it."""
    ids = {id(job) for job in todo}
    parents = {id(parent) for job in todo for parent in job.parents}
    first = [job for job in todo if not any(id(parent) in ids for parent in job.parents)]
    return max(len(first), len(ids - parents))
