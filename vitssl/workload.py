"""How long this node's part of a job computed on CPUs, and what else kept the machine busy meanwhile."""

from __future__ import annotations

import os

import psutil


class CpuMeter:
    """CPU time since it was made, of this job's ranks on the node (with what they started) and of everything else."""

    def __init__(self) -> None:
        self._ranks, self._machine = _ranks_s(), _machine_s()

    def read(self) -> dict[str, float]:
        """``cpu_time_s`` of the job's ranks here, ``other_cpu_time_s`` of the machine's other work, and its number of ``cores``."""
        ranks_s, machine_s = _ranks_s() - self._ranks, _machine_s() - self._machine
        return {"cpu_time_s": ranks_s, "other_cpu_time_s": max(0.0, machine_s - ranks_s), "cores": os.cpu_count() or 1}


def _ranks_s() -> float:
    """Under torchrun all that it started, which are the ranks; else this process. A process that has ended counts with its parent."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return sum(psutil.Process().cpu_times()[:4])
    torchrun = psutil.Process(os.getppid())
    total_s = sum(torchrun.cpu_times()[2:4])
    for process in torchrun.children(recursive=True):
        try:
            total_s += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:  # it has just ended
            continue
    return total_s


def _machine_s() -> float:
    times = psutil.cpu_times()
    return sum(times[:8]) - times.idle - times.iowait  # what follows the first eight is a part of user and nice
