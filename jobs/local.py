"""The local executor, which runs a sweep on this machine: the same graph and folders as on a cluster, one run per slot at a time."""

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

from jobs.command import NodeInfo, start, write_report
from jobs.folders import status_command, write_run
from jobs.plan.graph import Graph, Job
from jobs.plan.launch import Launch
from jobs.plan.time_left import MeasuredTimes, Work, measured_times, remaining, time_of, work
from jobs.slots import WHOLE, Slot, slots
from vitssl import sweep_folder
from vitssl.config import ConfigError
from vitssl.files import busy_file, read_json, write_json
from vitssl.run_folder import EVENTS, LAST, error_of, fail
from vitssl.sweep_folder import LOCAL
from vitssl.training.stopping import LAUNCHER
from vitssl.variables import SWEEP
from vitssl.words import counted, note

SAVING_S = 120.0  # how long a command waits for a process that saves before it refuses to take up the process's sweep


class Stopper:
    """A signal handler for Ctrl-C, SIGTERM and SIGHUP: the first signal asks the runs to save and stop, the second kills them."""

    def __init__(self, stop_file: Path):
        """``stop_file`` is created once the sweep is asked to stop; each run has its own, in a folder beside it."""
        self.stop_file = stop_file
        self.asked = self.killed = False
        self.number = 0  # of the last signal
        self._running: dict[Path, subprocess.Popen[bytes]] = {}  # by stop file

    def __call__(self, number: int, frame: Any) -> None:
        if self.asked and self._running:
            self.killed = True
            for process in list(self._running.values()):
                with suppress(ProcessLookupError):  # it has just ended
                    os.killpg(process.pid, signal.SIGKILL)
        self.number = number
        self.ask()
        # os.write, since the handler may interrupt a print; on a terminal, a line break first, to write below the progress line
        line = "killing" if self.killed else "stopping: saving takes some seconds (press Ctrl-C again to stop at once without saving)"
        with suppress(OSError):  # the terminal is gone
            os.write(sys.stderr.fileno(), f"{chr(10) if sys.stderr.isatty() else ''}{line}\n".encode())

    def ask(self) -> None:
        """Ask all running runs to save and stop, and start no more."""
        self.asked = True
        for stop_file in (self.stop_file, *list(self._running)):
            stop_file.touch()

    def file_of(self, job: Job) -> Path:
        folder = self.stop_file.parent / job.name
        folder.mkdir(exist_ok=True)
        return folder / "stop"

    def wait_for(self, process: subprocess.Popen[bytes], stop_file: Path) -> int:
        """Wait until a run's ``process`` has ended, and return its exit code."""
        self._running[stop_file] = process
        if self.asked:  # the signal came after the run was started, but before it was in `_running`
            stop_file.touch()
        try:
            return process.wait()
        finally:
            del self._running[stop_file]


def run(graph: Graph, launch: Launch, console: Console) -> int:
    """Run every job that is not done, parents first, then the report.

    Returns:
        The exit code: 0 if every job is done, 1 if one failed, 128 + N if signal N stopped the sweep (Ctrl-C: 130).
    """
    with tempfile.TemporaryDirectory(prefix="vitssl-") as scratch, _launcher_lock(launch.sweep, Path(scratch) / "stop") as stop_file:
        stopper = Stopper(stop_file)
        # SIGHUP, of a lost terminal, unless nohup made this process ignore it
        numbers = [signal.SIGINT, signal.SIGTERM, *([] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP])]
        old_handlers = {number: signal.signal(number, stopper) for number in numbers}
        try:
            _run_all(graph.jobs, launch, stopper, console)
        finally:
            for number, handler in old_handlers.items():
                signal.signal(number, handler)
    command = (launch.command, "bold")
    if stopper.asked:
        outcome = "Killed; the last checkpoint is kept" if stopper.killed else "Stopped; what was trained is saved"
        console.print(Text.assemble(f"{outcome}. To continue: ", command), soft_wrap=True)
        return 128 + stopper.number
    _refuse_removed(launch)
    reported = write_report(launch.sweep, launch.report_job)
    if unfinished := [job for job in graph.jobs if not job.is_done]:
        reason = (
            f"{len(unfinished)} of {counted(len(graph.jobs), 'run')} not done; the reason is printed above and by "
            f"`{status_command(launch.sweep)}`. Once it is fixed, the same command continues and keeps finished runs: "
        )
        console.print(Text.assemble(reason, command), soft_wrap=True)
    return 0 if reported and not unfinished else 1


def _run_all(jobs: list[Job], launch: Launch, stopper: Stopper, console: Console) -> None:
    """Run every job after the jobs that it starts from, with one thread per slot, each of which waits for one run."""
    free, seen, waiting = slots(jobs, launch), measured_times(jobs), list(jobs)
    running: dict[Future[None], Place] = {}
    if (width := len(free)) > 1:
        console.print(f"{width} runs side by side, on {free[0]} each")
    with ThreadPoolExecutor(width) as pool:
        while waiting or running:
            unfinished = {id(job) for job in (*waiting, *(place.job for place in running.values()))}
            ready = [job for job in waiting if not any(id(parent) in unfinished for parent in job.parents)]
            for job in ready[: 0 if stopper.asked else len(free)]:
                waiting.remove(job)
                beside = [remaining(other.job).without_start for other in running.values() if not other.job.is_done]
                after = [remaining(other) for other in waiting if not other.is_done]
                place = Place(f"[{len(jobs) - len(waiting)}/{len(jobs)}]", job, beside, after, seen, width, free.pop(0))
                running[pool.submit(_run_job, place, launch, stopper, console)] = place
            if not running:
                return
            for ended in wait(running, return_when=FIRST_COMPLETED).done:
                free.append(running.pop(ended).slot)
                if error := ended.exception():
                    stopper.ask()
                    raise error


@dataclass
class Place:
    """A run's place in its sweep, and the work that is left for the other runs."""

    position: str  # in the order in which the runs begin, such as [3/12]
    job: Job
    beside: list[Work]  # what is left of the runs that are training now
    after: list[Work]  # and of the runs that come later
    seen: MeasuredTimes
    width: int = 1  # how many runs are trained side by side
    slot: Slot = WHOLE

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of the run: its GPUs, and the facts for the time left in its progress line (`vitssl.training.log`)."""
        others = [*self.beside, *self.after]
        unseen = [piece for piece in others if self.seen.time_s(piece) is None]
        known_s = sum(time_s for piece in others if (time_s := self.seen.time_s(piece)) is not None)
        starts_s = sum(piece.starts for piece in unseen) * self.seen.start_s
        times_this = sum(piece.images for piece in unseen) / work(self.job.run).images
        longest_s = max((time_s for piece in self.beside if (time_s := self.seen.time_s(piece)) is not None), default=0.0)
        facts = {"seconds": known_s + starts_s, "times_this": times_this, "longest": longest_s}
        side_by_side = min(self.width, 1 + len(others))
        return self.slot.variables | {SWEEP: json.dumps({"position": self.position, "side_by_side": side_by_side, **facts})}


def _run_job(place: Place, launch: Launch, stopper: Stopper, console: Console) -> None:
    job, title = place.job, f"{place.position} {place.job.name}"
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
    from_scratch, begun_s = not (job.folder / LAST).exists(), time.monotonic()
    stop_file = stopper.file_of(job)
    # in a new session, so that Ctrl-C in the terminal reaches only this process, which then asks the run to stop
    with _liveness_lock(stop_file):
        process = start(job.folder, NodeInfo(), stop_file, place.variables, start_new_session=True)
        if place.slot.cores:
            with suppress(ProcessLookupError):  # it has already ended
                os.sched_setaffinity(process.pid, place.slot.cores)
        code, trained = stopper.wait_for(process, stop_file), job.is_trained
    if trained and from_scratch:
        _add_times(place.seen, job, time.monotonic() - begun_s)
    if code == 0 and trained and not trained_before and not job.is_done:  # trained by an older source without these evaluators
        _run_job(place, launch, stopper, console)
        return
    _refuse_removed(launch)
    if not job.folder.is_dir():
        reason_removed = f": its folder is gone; the same command starts it anew ({job.folder})"
        console.print(Text.assemble((f"{title}: failed", "red"), reason_removed), soft_wrap=True)
    elif not job.is_done and not stopper.asked:
        unexplained = error_of(job.folder) is None and not busy_file(stop_file).exists()
        if unexplained:
            out_of_memory = "training was killed (signal 9); if memory ran out, lower loop.micro_batch_size or optim.batch_size"
            fail(job.folder, out_of_memory if code == -signal.SIGKILL else f"training ended with exit code {code}")
        console.print(Text.assemble((f"{title}: failed", "red"), f": {error_of(job.folder) or 'see above'}"), soft_wrap=True)
        if unexplained and code == 1 and not (job.folder / EVENTS).exists():
            raise ConfigError(
                "training did not even start, as is said above, so that no other run is begun; where packages do not fit each other, such"
                " as torch and torchvision of different indexes, install them anew by one command"
            )


def _refuse_removed(launch: Launch) -> None:
    """Raise a ConfigError if the sweep's folder was removed: no run can go on without the source snapshot in it."""
    if not launch.source.is_dir():
        raise ConfigError(f"{launch.sweep} was removed during training; the same command starts it anew")


@contextmanager
def _liveness_lock(stop_file: Path) -> Iterator[None]:
    """Hold a lock that tells a run that its launcher is alive. If this process is killed, the lock is free, and the run saves and stops."""
    with stop_file.with_name(LAUNCHER).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _add_times(seen: MeasuredTimes, job: Job, time_s: float) -> None:
    """Add to ``seen`` that the process of a run took ``time_s`` from start to end, split into its training and the rest."""
    trained_s = time_of(job.folder)
    seen.add(work(job.run), trained_s)
    seen.add_start(time_s - trained_s)


@contextmanager
def _launcher_lock(sweep: Path, stop_file: Path) -> Iterator[Path]:
    """Allow one local launcher per sweep at a time, and record its process id and stop file in the sweep's folder for `jobs/cancel.py`."""
    path = sweep / LOCAL
    refuse_running(sweep)
    if remote := sweep_folder.remote_launcher(sweep):
        note(f"{remote} was running {sweep} too; if it still is, end it there")
    launcher = {"pid": os.getpid(), "host": socket.gethostname(), "born": sweep_folder.born_at(os.getpid()), "stop_file": str(stop_file)}
    write_json(path, launcher)
    try:
        yield stop_file
    finally:
        if read_json(path) == launcher:
            path.unlink()


def refuse_running(sweep: Path) -> None:
    """Raise a ConfigError if a process of this machine is running the sweep; one that was asked to stop is given time to save."""
    if (pid := sweep_folder.launcher_pid(sweep)) is None:
        return
    if sweep_folder.is_asked_to_stop(sweep):
        note(f"{sweep}: waiting for process {pid} of this machine, which was asked to stop and is still saving")
        deadline = time.monotonic() + SAVING_S
        while sweep_folder.launcher_pid(sweep) is not None:
            if time.monotonic() > deadline:
                raise ConfigError(f"{sweep}: process {pid} on this machine was asked to stop and is still saving; try again later")
            time.sleep(0.2)
        return
    advice = f"python jobs/status.py {sweep} shows its progress, python jobs/cancel.py {sweep} stops it"
    raise ConfigError(f"process {pid} on this machine is running {sweep}; {advice}")
