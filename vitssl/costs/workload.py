"""CPU time of a job on this node, and of the other work that kept the machine busy meanwhile."""

from __future__ import annotations

import os
import time

import psutil


class CpuMeter:
    """A meter of the CPU time of this job's ranks (and their children) on the node, and of other work on the cores that they may use."""

    def __init__(self) -> None:
        self._begun_s, self._ranks, self._machine = time.monotonic(), _ranks_s(), _machine_s()

    def read(self, duration_s: float) -> dict[str, float]:
        """Return ``cpu_time_s`` of the job's ranks here, ``other_cpu_time_s`` of other work on their cores, and the number of ``cores``.

        Both times are measured since this meter was made, and scaled to the measurement of energy that they are recorded with:

            share = duration_s / time since this meter was made
            cpu_time_s = share * CPU time of the ranks
            other_cpu_time_s = share * CPU time of the cores - cpu_time_s    (at least 0)

        Args:
            duration_s: length of the measurement, by another clock than this meter's.
        """
        share = duration_s / max(time.monotonic() - self._begun_s, 1e-9)
        # a process whose parent has ended is no child of a rank any more, and takes with it what it computed before this meter was made
        ranks_s = share * max(0.0, _ranks_s() - self._ranks)
        machine_s = share * (_machine_s() - self._machine)
        return {"cpu_time_s": ranks_s, "other_cpu_time_s": max(0.0, machine_s - ranks_s), "cores": len(_cores())}


def _cores() -> list[int]:
    """Return the numbers of the cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


def _ranks_s() -> float:
    """Return the CPU time of the job's ranks and all that they started, such as workers that decode images or compile.

    Under torchrun these are the processes that it started, without its own time; otherwise this process is the only rank. A process that
    has ended counts with its parent.
    """
    launched = "TORCHELASTIC_RUN_ID" in os.environ
    top = psutil.Process(os.getppid() if launched else os.getpid())
    total_s = sum(top.cpu_times()[2 if launched else 0 : 4])
    for process in top.children(recursive=True):
        try:
            total_s += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:  # the process has just ended
            continue
    return total_s


def _machine_s() -> float:
    """Return the CPU time of the cores that this process may use, or of all cores if the system lists too few."""
    cores, per_core = _cores(), psutil.cpu_times(percpu=True)
    usable = [per_core[core] for core in cores] if cores[-1] < len(per_core) else per_core
    return sum(sum(times[:8]) - times.idle - times.iowait for times in usable)  # fields after the first eight are parts of user and nice
