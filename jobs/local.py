"""The local executor: the same graph and folders as on a cluster, one run after the other on this machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from jobs.folders import Launch, error_of, is_done, is_trained, status_command, write_run
from jobs.graph import Graph, Job
from jobs.node import NodeInfo, report_command, start
from jobs.time_left import Seen, seen_of, work
from vitssl.config import ConfigError
from vitssl.files import busy_file, read_json, write_json
from vitssl.words import about, counted

PID_FILE = "local.json"


class Stopper:
    """Ctrl-C or SIGTERM: the first asks the current run to save and stop, the second ends it at once."""

    def __init__(self, stop_file: Path):
        self.stop_file = stop_file
        self.asked = self.killed = False
        self.number = 0  # of the last signal
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self, number: int, frame: Any) -> None:
        if self.asked and self.process is not None:
            self.killed = True
            os.killpg(self.process.pid, signal.SIGKILL)
        self.asked, self.number = True, number
        self.stop_file.touch()
        # os.write, since a handler may interrupt a print; on a terminal below the progress line
        line = "killing" if self.killed else "stopping: what was trained is saved, which takes some seconds (a second signal kills)"
        os.write(sys.stderr.fileno(), f"{chr(10) if sys.stderr.isatty() else ''}{line}\n".encode())


def run(graph: Graph, launch: Launch, console: Console) -> int:
    """Run every job that is not done, parents first, then the report.

    Returns:
        The exit code: 0 when every job is done, 1 when one failed, and 128 and its number where a signal stopped the sweep (Ctrl-C: 130).
    """
    with tempfile.TemporaryDirectory(prefix="vitssl-") as scratch, _alone(launch.sweep, Path(scratch) / "stop") as stop_file:
        stopper, seen = Stopper(stop_file), seen_of(graph.jobs)
        # a lost terminal too, unless nohup made the process ignore it
        numbers = [signal.SIGINT, signal.SIGTERM, *([] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP])]
        before = {number: signal.signal(number, stopper) for number in numbers}
        try:
            for position, job in enumerate(graph.jobs, start=1):
                if not stopper.asked:
                    place = Place(f"[{position}/{len(graph.jobs)}]", job, [j for j in graph.jobs[position:] if not is_done(j)], seen)
                    _run_job(job, place, launch, stopper, console)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    again = (launch.command, "bold")
    if stopper.asked:
        how = "Killed; the last checkpoint is kept" if stopper.killed else "Stopped; what was trained is saved"
        console.print(Text.assemble(f"{how}. To go on: ", again), soft_wrap=True)
        return 128 + stopper.number
    about = launch.about() | {"source": str(launch.source)}
    reported = subprocess.run(report_command(launch.sweep, about), check=False, cwd=launch.source).returncode == 0
    if undone := [job for job in graph.jobs if not is_done(job)]:
        reason = (
            f"{len(undone)} of {counted(len(graph.jobs), 'run')} not done; the reason is printed above and by "
            f"`{status_command(launch.sweep)}`. Once it is fixed, the same command goes on and keeps what is done: "
        )
        console.print(Text.assemble(reason, again), soft_wrap=True)
    return 0 if reported and not undone else 1


@dataclass
class Place:
    """A run's place in its sweep, and what comes after it."""

    position: str  # such as [3/12]
    job: Job
    after: list[Job]  # that are not done
    seen: Seen

    @property
    def title(self) -> str:
        return f"{self.position} {self.job.name}"

    @property
    def left(self) -> str:
        """The time left for the sweep at this run's start, as far as any run was seen; else empty."""
        time_s = self.seen.total_s(work(job.run) for job in [self.job, *self.after])
        return "" if time_s is None or not self.after else f"; {about(time_s)} left for the sweep"

    @property
    def variables(self) -> dict[str, str]:
        """What the run's own progress line needs to say that (`vitssl.log`)."""
        todo = [work(job.run) for job in self.after]
        times_s = [self.seen.time_s(one) for one in todo]
        unseen = sum(one.images for one, time_s in zip(todo, times_s, strict=True) if time_s is None)
        others = {"seconds": sum(filter(None, times_s)), "times_this": unseen / work(self.job.run).images}
        return {"VITSSL_SWEEP": json.dumps({"position": self.position, **others})}


def _run_job(job: Job, place: Place, launch: Launch, stopper: Stopper, console: Console) -> None:
    title = place.title
    if is_done(job):
        console.print(f"{title}: done before", highlight=False, soft_wrap=True)
        return
    trained_before = is_trained(job)
    write_run(job, launch)
    for parent in job.parents:
        if not is_trained(parent):
            fail(job, f"not run: {parent.name}, which it starts from, is not done")
            reason = f", because {parent.name}, which it starts from, is not done"
            console.print(Text.assemble((f"{title}: not run", "red"), reason), soft_wrap=True)
            return
    console.print(f"{title}: trained before; evaluating it" if trained_before else f"{title}{place.left}", highlight=False, soft_wrap=True)
    anew, begun_s = not (job.folder / "last.pt").exists(), time.monotonic()
    busy_file(stopper.stop_file).unlink(missing_ok=True)
    # in a new session: Ctrl-C in the terminal reaches this process alone, which then asks the run to stop
    stopper.process = start(job.folder, NodeInfo(), stopper.stop_file, launch.module, place.variables, start_new_session=True)
    code, trained = stopper.process.wait(), is_trained(job)
    stopper.process = None
    if trained and anew:
        place.seen.add(work(job.run), time.monotonic() - begun_s)
    if code == 0 and trained and not trained_before and not is_done(job):  # by an older source, which knows none of its evaluators
        _run_job(job, place, launch, stopper, console)
        return
    if not is_done(job) and not stopper.asked:
        if error_of(job.folder) is None and not busy_file(stopper.stop_file).exists():
            killed = "training was killed, probably for lack of memory: lower loop.micro_batch_size or optim.batch_size"
            fail(job, killed if code == -signal.SIGKILL else f"training ended with exit code {code}")
        console.print(Text.assemble((f"{title}: failed", "red"), f": {error_of(job.folder) or 'see above'}"), soft_wrap=True)


def fail(job: Job, message: str) -> None:
    write_json(job.folder / "error.json", {"message": message})


@contextmanager
def _alone(sweep: Path, stop_file: Path) -> Iterator[Path]:
    """One local launcher per sweep at a time; its process id is in a file, for `jobs/cancel.py`, and what it was asked to stop by."""
    path = sweep / PID_FILE
    refuse_running(sweep)
    write_json(path, {"pid": os.getpid(), "host": socket.gethostname(), "born": _born(os.getpid()), "stop_file": str(stop_file)})
    try:
        yield stop_file
    finally:
        path.unlink(missing_ok=True)


def refuse_running(sweep: Path) -> None:
    """One local launcher per sweep.

    Raises:
        ConfigError: naming the process that runs it on this machine now.
    """
    if (pid := running(sweep)) is None:
        return
    if (asked := read_json(sweep / PID_FILE).get("stop_file")) and Path(asked).exists():
        raise ConfigError(f"{sweep}: process {pid} of this machine was asked to stop, and still saves; try again in a few seconds")
    look = f"python jobs/status.py {sweep} shows how far it is, python jobs/cancel.py {sweep} ends it"
    raise ConfigError(f"{sweep} is being run by process {pid} of this machine; {look}")


def running(sweep: Path) -> int | None:
    """The id of the process that runs this sweep on this machine now."""
    launcher = read_json(sweep / PID_FILE)
    if not launcher:
        return None
    born = launcher["born"]
    alive = born is not None and launcher["host"] == socket.gethostname() and _born(launcher["pid"]) == born
    return launcher["pid"] if alive else None


def _born(pid: int) -> str | None:
    """When a process was started, which tells it from a later one with the same id."""
    result = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return result.stdout.strip() or None
