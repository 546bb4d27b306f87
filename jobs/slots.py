"""How many runs this machine trains side by side, and on which of its cores.

A run on CPUs has `loop.threads` of them, and cores of its own for these, so that it waits for no other and its energy is told from
theirs. Runs on a GPU go one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from jobs.folders import Launch, is_done
from jobs.graph import Job
from jobs.pace import on_gpu
from vitssl.config import ConfigError

MOST = 4  # unless more are asked for: each has memory of its own
Slot = tuple[int, ...]  # the numbers of its cores; of none: the whole machine
WHOLE: Slot = ()


def slots(jobs: Sequence[Job], launch: Launch) -> list[Slot]:
    """One for each run that the machine trains at a time, of equally many cores.

    Raises:
        ConfigError: several at a time are asked for (`--max-parallel`) of runs on a GPU.
    """
    todo = [job for job in jobs if not is_done(job)]
    if gpu := next((job for job in todo if on_gpu(job.run, job.resources, launch)), None):
        if (launch.site.max_parallel or 1) > 1:
            raise ConfigError(f"{gpu.name} trains on a GPU; on this machine such runs go one after the other", "site.max_parallel")
        return [WHOLE]
    cores, each = sorted(os.sched_getaffinity(0)), max(map(_threads, todo), default=1)
    count = min(len(cores) // each, launch.site.max_parallel or MOST, _most_at_once(todo))
    return [tuple(cores[i * each : (i + 1) * each]) for i in range(count)] if count > 1 else [WHOLE]


def _most_at_once(todo: Sequence[Job]) -> int:
    """How many can be trained at a time: what a run starts from goes before it."""
    ids = {id(job) for job in todo}
    parents = {id(parent) for job in todo for parent in job.parents}
    first = [job for job in todo if not any(id(parent) in ids for parent in job.parents)]
    return max(len(first), len(ids - parents))


def _threads(job: Job) -> int:
    """Of all processes of a run, one for each GPU that it asks for, here on CPUs."""
    return job.run.loop.threads * max(1, job.resources.gpus_per_node)
