"""The SLURM tasks of a sweep: `Node` trains a run, stops it when asked and reports how it ended; `Report` writes the report.

They run outside the container, so this module and its imports need neither torch nor other packages of the container.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import submitit
from submitit.helpers import DelayedSubmission

from jobs.command import NodeInfo, job_of, report_command, start
from jobs.logs import end_of
from jobs.slurm import cluster
from vitssl.files import busy_file, read_json
from vitssl.run_folder import DONE, ERROR, EVENTS, JOB, LAST, fail, is_trained
from vitssl.training.stopping import STOPPED
from vitssl.variables import ENDS_AT

# exit code of a task that knows why its run failed: `batch.sh` does not start the run again, even if NFS shows the first node only a minute
# later what another node wrote. It is above STOPPED, since srun returns the highest code of its tasks
FAILED = 100
# SLURM warns this long before it kills a job: enough for a step, a save, and SLURM's 60 s of slack
WARNING_S = 180
LEAVE_S = 30  # the task exits this long before SLURM ends the job, which would be final, even if training still runs
KILLED_PATTERN = re.compile(r"exit ?code *:? -\d+|Signal \d+ \(SIG[A-Z]+\)")  # torchrun's message about a worker that a signal ended
# NFS may cache for up to a minute that a file does not exist
PATIENCE_S = 90


def _ignore_usr2() -> None:
    # SLURM may signal every process of the step. An ignored signal stays ignored through exec, whereas a handler is lost
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


@dataclass
class Node:
    """A SLURM task that trains a run; its job has one per node."""

    folder: str

    def __call__(self) -> str:
        """Train the run, or evaluate it if it is trained. If asked to stop, wait until it is saved, and exit.

        `batch.sh` puts the job of an unfinished run back into the queue, unless the run left an error, which the exit code reports.

        Raises:
            RuntimeError: training ended without an error of its own, or a run that this one starts from is not done.
        """
        folder, environment = Path(self.folder), submitit.JobEnvironment()
        # submitit would take an earlier attempt's result for this one's, and refuses to overwrite a half-written file
        result = environment.paths.result_pickle
        for path in (result, result.with_suffix(result.suffix + ".save_tmp")):
            path.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(prefix="vitssl-") as scratch:
            stop_file, trained = Path(scratch) / "stop", is_trained(folder)
            signals = StopSignals(stop_file, warning_s(job_of(folder)["hours"]))
            if not trained:
                _refuse_unfinished(folder, environment.node)
            signals.ends_at = _ends_at(environment)
            # training stops earlier if a step and a save take longer than the time between SLURM's warning and the end
            variables = {} if signals.ends_at is None else {ENDS_AT: f"{signals.ends_at:.0f}"}
            code, log = _train(folder, _node_info(environment), stop_file, variables)
            # a run that was trained before was only evaluated; after training that ends well, NFS may show done.json late
            ended_well = code == 0 if trained else not not_done([folder], PATIENCE_S if code == 0 else 0)
            if ended_well:
                return str(folder)
            if stop_file.exists() and not (folder / ERROR).exists():
                sys.exit(STOPPED)
            unexplained = not busy_file(stop_file).exists() and not (folder / ERROR).exists()
        # if training never began, most likely the container does not start, and another attempt would end in the same way
        begun = any((folder / name).exists() for name in (LAST, EVENTS))
        if environment.node == 0 and unexplained and not begun and not _was_killed(code, log):
            fail(folder, f"exit code {code}, see {folder / 'log'}")
        if not (folder / ERROR).exists():
            raise RuntimeError(f"{folder.name} failed: exit code {code}, see {folder}/log")
        print(f"{folder.name} failed: {read_json(folder / ERROR)['message']}", file=sys.stderr)
        sys.exit(FAILED)

    def checkpoint(self) -> DelayedSubmission:
        """Return what submitit requeues if a signal arrives before `StopSignals` has installed its handlers."""
        return DelayedSubmission(self)


def _refuse_unfinished(folder: Path, node: int) -> None:
    """Refuse to train a run before all runs that it starts from are done, whatever dependencies SLURM was given.

    Raises:
        RuntimeError: the message names a parent that is not done.
    """
    parents = [Path(parent) for parent in read_json(folder / JOB)["parents"]]
    missing = not_done(parents)
    for parent in (parent for parent in parents if parent in missing):
        if node == 0:
            record_not_started(folder, parent)
        raise RuntimeError(f"{folder.name} was not started: {parent.name}, which it starts from, is not done")


def record_not_started(folder: Path, parent: Path) -> None:
    """Record in the run's ``folder`` that it was not started because ``parent`` is not done."""
    fail(folder, f"not started: {parent.name}, which it starts from, is not done")


def not_done(folders: Iterable[Path], patience_s: float = PATIENCE_S) -> set[Path]:
    """Return the ``folders`` without done.json, after looking again for ``patience_s``: NFS may show a file of another machine late."""
    deadline, missing = time.monotonic() + patience_s, set(folders)
    while missing := {folder for folder in missing if not folder.is_dir() or DONE not in os.listdir(folder)}:
        if time.monotonic() >= deadline:
            break
        time.sleep(1)
    return missing


def _node_info(environment: submitit.JobEnvironment) -> NodeInfo:
    hosts = list(environment.hostnames)
    restart = int(os.environ.get("SLURM_RESTART_COUNT", 0))
    return NodeInfo(len(hosts), environment.node, hosts[environment.node], hosts[0], int(environment.raw_job_id), restart)


def warning_s(hours: float) -> int:
    """Return how long before its end SLURM warns a job of ``hours``, a quarter of its time at most. SLURM may warn a minute earlier."""
    return min(WARNING_S, round(hours * 3600 / 4))


class StopSignals:
    """Signal handlers that create a stop file, for which all workers look between steps; torchrun itself is never signalled.

    The workers have until shortly before the job's end to finish a step and save; then a TimeoutError is raised. If SLURM did not say when
    the job ends, they have the time that a warning leaves at least, or no limit if they had already begun to stop by themselves, which need
    not be close to the end.
    """

    def __init__(self, stop_file: Path, warning_s: int):
        self._file, self._warning_s = stop_file, warning_s
        self.ends_at: float | None = None  # end of the job, in seconds since 1970
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._request)
        signal.signal(signal.SIGALRM, self._overdue)

    def _request(self, number: int, frame: Any) -> None:
        already_stopping = self._file.exists()
        self._file.touch()
        if self.ends_at is not None:
            signal.alarm(max(10, int(self.ends_at - LEAVE_S - time.time())))
        elif not already_stopping:
            signal.alarm(max(10, self._warning_s - LEAVE_S))

    def _overdue(self, number: int, frame: Any) -> None:
        raise TimeoutError


def _ends_at(environment: submitit.JobEnvironment) -> float | None:
    """Return when SLURM ends the job, in seconds since 1970; None if it does not say."""
    try:  # by array and index, since the raw id of the last element is the array's own, under which all elements are listed
        return datetime.fromisoformat(cluster.output("squeue", "-h", "-j", environment.job_id, "-o", "%e").strip()).timestamp()
    except ValueError:  # the answer is N/A or empty; or a ConfigError, which is a ValueError, if the controller hangs
        return None


def _train(folder: Path, node: NodeInfo, stop_file: Path, variables: Mapping[str, str]) -> tuple[int | None, Path]:
    """Train, and return (exit code, log). The code is None if training did not stop in the time that SLURM leaves it."""
    log = folder / "log" / f"train-{node.job}-{node.restart}-{node.host}.txt"
    log.parent.mkdir(exist_ok=True)
    with log.open("ab") as output:
        streams = {"stdout": output, "stderr": subprocess.STDOUT}
        process = start(folder, node, stop_file, variables, preexec_fn=_ignore_usr2, **streams)
        try:
            return process.wait(), log
        except TimeoutError:
            return None, log
        finally:
            signal.alarm(0)


def _was_killed(code: int | None, log: Path) -> bool:
    """Whether a signal ended training: by its exit code, also as a shell or container passes it on, or by torchrun's message in the log."""
    return code is None or code < 0 or code == 128 + signal.SIGKILL or KILLED_PATTERN.search(end_of(log)) is not None


@dataclass
class Report:
    """The last job of a sweep, which writes the report whether the runs succeeded or not."""

    folder: str
    job: dict[str, Any]  # as in job.json

    def __call__(self) -> str:
        _ignore_usr2()  # on SLURM's warning, submitit would end the report
        subprocess.run(report_command(Path(self.folder), self.job), check=True, cwd=self.job["source"])
        return self.folder
