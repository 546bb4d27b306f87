"""The local executor: the same graph and folders as on a cluster, on this machine: as many runs side by side as it has slots for."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from jobs.command import NodeInfo, report_command, start
from jobs.folders import status_command, write_run
from jobs.plan.graph import Graph, Job
from jobs.plan.launch import Launch
from jobs.plan.time_left import Seen, Work, remaining, seen_of, time_of, work
from jobs.slots import WHOLE, Slot, slots
from vitssl import sweep_folder
from vitssl.config import ConfigError
from vitssl.files import busy_file, read_json, write_json
from vitssl.run_folder import LAST, error_of, fail
from vitssl.sweep_folder import LOCAL
from vitssl.training.stopping import LAUNCHER
from vitssl.words import counted, note


class Stopper:
    """Ctrl-C or SIGTERM: the first asks the running runs to save and stop, the second ends them at once."""

    def __init__(self, stop_file: Path):
        """``stop_file`` exists once it was asked; each run has another, in a folder of its own beside it."""
        self.stop_file = stop_file
        self.asked = self.killed = False
        self.number = 0  # of the last signal
        self._running: dict[Path, subprocess.Popen[bytes]] = {}  # by their stop files

    def __call__(self, number: int, frame: Any) -> None:
        if self.asked and self._running:
            self.killed = True
            for process in list(self._running.values()):
                with suppress(ProcessLookupError):  # it has just ended
                    os.killpg(process.pid, signal.SIGKILL)
        self.number = number
        self.ask()
        # os.write, since a handler may interrupt a print; on a terminal below the progress line
        line = "killing" if self.killed else "stopping: saving takes some seconds (press Ctrl-C again to stop at once without saving)"
        with suppress(OSError):  # the terminal has gone
            os.write(sys.stderr.fileno(), f"{chr(10) if sys.stderr.isatty() else ''}{line}\n".encode())

    def ask(self) -> None:
        """Ask all runs to save and stop; none begins any more."""
        self.asked = True
        for stop_file in (self.stop_file, *list(self._running)):
            stop_file.touch()

    def file_of(self, job: Job) -> Path:
        folder = self.stop_file.parent / job.name
        folder.mkdir(exist_ok=True)
        return folder / "stop"

    def wait_for(self, process: subprocess.Popen[bytes], stop_file: Path) -> int:
        """The exit code of a run, when it has ended."""
        self._running[stop_file] = process
        if self.asked:  # between its start and now
            stop_file.touch()
        try:
            return process.wait()
        finally:
            del self._running[stop_file]


def run(graph: Graph, launch: Launch, console: Console) -> int:
    """Run every job that is not done, parents first, then the report.

    Returns:
        The exit code: 0 when every job is done, 1 when one failed, and 128 and its number where a signal stopped the sweep (Ctrl-C: 130).
    """
    with tempfile.TemporaryDirectory(prefix="vitssl-") as scratch, _alone(launch.sweep, Path(scratch) / "stop") as stop_file:
        stopper = Stopper(stop_file)
        # a lost terminal too, unless nohup made the process ignore it
        numbers = [signal.SIGINT, signal.SIGTERM, *([] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP])]
        before = {number: signal.signal(number, stopper) for number in numbers}
        try:
            _run_all(graph.jobs, launch, stopper, console)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    again = (launch.command, "bold")
    if stopper.asked:
        how = "Killed; the last checkpoint is kept" if stopper.killed else "Stopped; what was trained is saved"
        console.print(Text.assemble(f"{how}. To continue: ", again), soft_wrap=True)
        return 128 + stopper.number
    _refuse_removed(launch)
    reported = subprocess.run(report_command(launch.sweep, launch.of_report), check=False, cwd=launch.source).returncode == 0
    if undone := [job for job in graph.jobs if not job.is_done]:
        reason = (
            f"{len(undone)} of {counted(len(graph.jobs), 'run')} not done; the reason is printed above and by "
            f"`{status_command(launch.sweep)}`. Once it is fixed, the same command continues and keeps finished runs: "
        )
        console.print(Text.assemble(reason, again), soft_wrap=True)
    return 0 if reported and not undone else 1


def _run_all(jobs: list[Job], launch: Launch, stopper: Stopper, console: Console) -> None:
    """Every job after those that it starts from, in as many threads as there are slots; each waits for one run."""
    free, seen, waiting = slots(jobs, launch), seen_of(jobs), list(jobs)
    running: dict[Future[None], Place] = {}
    if (width := len(free)) > 1:
        console.print(f"{width} runs side by side, on {free[0]} each")
    with ThreadPoolExecutor(width) as pool:
        while waiting or running:
            unfinished = {id(job) for job in (*waiting, *(place.job for place in running.values()))}
            ready = [job for job in waiting if not any(id(parent) in unfinished for parent in job.parents)]
            for job in ready[: 0 if stopper.asked else len(free)]:
                waiting.remove(job)
                beside = [remaining(other.job).begun for other in running.values() if not other.job.is_done]
                after = [remaining(other) for other in waiting if not other.is_done]
                place = Place(f"[{len(jobs) - len(waiting)}/{len(jobs)}]", job, beside, after, seen, width, free.pop(0))
                running[pool.submit(_run_job, job, place, launch, stopper, console)] = place
            if not running:
                return
            for ended in wait(running, return_when=FIRST_COMPLETED).done:
                free.append(running.pop(ended).slot)
                if error := ended.exception():
                    stopper.ask()
                    raise error


@dataclass
class Place:
    """A run's place in its sweep, and what else is to be done."""

    position: str  # in the order in which runs begin, such as [3/12]
    job: Job
    beside: list[Work]  # what is left of the runs that are trained already
    after: list[Work]  # and of those that come later
    seen: Seen
    width: int = 1  # how many runs are trained side by side
    slot: Slot = WHOLE

    @property
    def title(self) -> str:
        return f"{self.position} {self.job.name}"

    @property
    def variables(self) -> dict[str, str]:
        """Its GPUs, and what the run's own progress line needs to say the time left (`vitssl.training.log`)."""
        others = [*self.beside, *self.after]
        unseen = [one for one in others if self.seen.time_s(one) is None]
        known_s = sum(time_s for one in others if (time_s := self.seen.time_s(one)) is not None)
        starts_s = sum(one.starts for one in unseen) * self.seen.start_s
        times_this = sum(one.images for one in unseen) / work(self.job.run).images
        longest_s = max((time_s for one in self.beside if (time_s := self.seen.time_s(one)) is not None), default=0.0)
        told = {"seconds": known_s + starts_s, "times_this": times_this, "longest": longest_s}
        side_by_side = min(self.width, 1 + len(others))
        return self.slot.variables | {"VITSSL_SWEEP": json.dumps({"position": self.position, "side_by_side": side_by_side, **told})}


def _run_job(job: Job, place: Place, launch: Launch, stopper: Stopper, console: Console) -> None:
    title = place.title
    _refuse_removed(launch)
    if job.is_done:
        console.print(f"{title}: already done", soft_wrap=True)
        return
    trained_before = job.is_trained
    write_run(job, launch)
    for parent in job.parents:
        if not parent.is_trained:
            fail(job.folder, f"not run: {parent.name}, which it starts from, is not done")
            reason = f", because {parent.name}, which it starts from, is not done"
            console.print(Text.assemble((f"{title}: not run", "red"), reason), soft_wrap=True)
            return
    console.print(f"{title}: already trained; evaluating it" if trained_before else title, soft_wrap=True)
    anew, begun_s = not (job.folder / LAST).exists(), time.monotonic()
    stop_file = stopper.file_of(job)
    # in a new session: Ctrl-C in the terminal reaches this process alone, which then asks the run to stop
    with _there(stop_file):
        process = start(job.folder, NodeInfo(), stop_file, place.variables, start_new_session=True)
        if place.slot.cores:
            with suppress(ProcessLookupError):  # it has ended at once
                os.sched_setaffinity(process.pid, place.slot.cores)
        code, trained = stopper.wait_for(process, stop_file), job.is_trained
    if trained and anew:
        _count(place.seen, job, time.monotonic() - begun_s)
    if code == 0 and trained and not trained_before and not job.is_done:  # by an older source, which knows none of its evaluators
        _run_job(job, place, launch, stopper, console)
        return
    _refuse_removed(launch)
    if not job.folder.is_dir():
        gone = f": its folder is gone; the same command starts it anew ({job.folder})"
        console.print(Text.assemble((f"{title}: failed", "red"), gone), soft_wrap=True)
    elif not job.is_done and not stopper.asked:
        unsaid = error_of(job.folder) is None and not busy_file(stop_file).exists()
        if unsaid:
            killed = "training was killed (signal 9); if memory ran out, lower loop.micro_batch_size or optim.batch_size"
            fail(job.folder, killed if code == -signal.SIGKILL else f"training ended with exit code {code}")
        console.print(Text.assemble((f"{title}: failed", "red"), f": {error_of(job.folder) or 'see above'}"), soft_wrap=True)
        if unsaid and code == 1 and not (job.folder / "metrics.jsonl").exists():
            raise ConfigError(
                "training did not even start, as is said above, so that no other run is begun; where packages do not fit each other, such"
                " as torch and torchvision of different indexes, install them anew by one command"
            )


def _refuse_removed(launch: Launch) -> None:
    """Nothing can go on in a sweep's folder that has gone: its source, with which runs train, was in it."""
    if not launch.source.is_dir():
        raise ConfigError(f"{launch.sweep} was removed during training; the same command starts it anew")


@contextmanager
def _there(stop_file: Path) -> Iterator[None]:
    """Meanwhile a run can see that this process is there: killed, it leaves the lock free, and the run saves and stops."""
    with stop_file.with_name(LAUNCHER).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _count(seen: Seen, job: Job, time_s: float) -> None:
    """That a run took so long from the start to the end of its process."""
    trained_s = time_of(job.folder)
    seen.add(work(job.run), trained_s)
    seen.add_start(time_s - trained_s)


@contextmanager
def _alone(sweep: Path, stop_file: Path) -> Iterator[Path]:
    """One local launcher per sweep at a time; its process id is in a file, for `jobs/cancel.py`, and what it was asked to stop by."""
    path = sweep / LOCAL
    refuse_running(sweep)
    if other := sweep_folder.elsewhere(sweep):
        note(f"{other} was running {sweep} too; if it still is, end it there")
    launcher = {"pid": os.getpid(), "host": socket.gethostname(), "born": sweep_folder.born_at(os.getpid()), "stop_file": str(stop_file)}
    write_json(path, launcher)
    try:
        yield stop_file
    finally:
        if read_json(path) == launcher:
            path.unlink()


def refuse_running(sweep: Path) -> None:
    """Refuse a sweep that a process of this machine runs now."""
    if (pid := sweep_folder.running(sweep)) is None:
        return
    if sweep_folder.was_asked(sweep):
        raise ConfigError(f"{sweep}: process {pid} on this machine was asked to stop and is still saving; try again in a few seconds")
    look = f"python jobs/status.py {sweep} shows its progress, python jobs/cancel.py {sweep} stops it"
    raise ConfigError(f"process {pid} on this machine is running {sweep}; {look}")
