"""How long this node's part of a job computed on CPUs, and what else kept the machine busy meanwhile."""

from __future__ import annotations

import os
import time

import psutil


class CpuMeter:
    """CPU time of this job's ranks on the node (with what they started), and of everything else on the cores that they may use."""

    def __init__(self) -> None:
        self._begun_s, self._ranks, self._machine = time.monotonic(), _ranks_s(), _machine_s()

    def read(self, duration_s: float) -> dict[str, float]:
        """``cpu_time_s`` of the job's ranks here, ``other_cpu_time_s`` of other work on their cores, and the number of these ``cores``.

        Args:
            duration_s: of the measurement that they stand beside, by another clock; they are the part of it, and not of the time since
                this meter was made.
        """
        share = duration_s / max(time.monotonic() - self._begun_s, 1e-9)
        ranks_s, machine_s = share * (_ranks_s() - self._ranks), share * (_machine_s() - self._machine)
        return {"cpu_time_s": ranks_s, "other_cpu_time_s": max(0.0, machine_s - ranks_s), "cores": len(_cores())}


def _cores() -> list[int]:
    """The numbers of those that this process may use."""
    return sorted(os.sched_getaffinity(0))


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
    """Of the cores that this process may use; of all, where the system lists fewer than these are of."""
    cores, every = _cores(), psutil.cpu_times(percpu=True)
    mine = [every[core] for core in cores] if cores[-1] < len(every) else every
    return sum(sum(times[:8]) - times.idle - times.iowait for times in mine)  # what follows the first eight is a part of user and nice
