"""The SLURM tasks of a sweep: one that trains a run, stops it when asked and says how it ended, and one that writes the report.

They run outside the container, so that this module and its imports need neither torch nor anything else from there.
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
from vitssl.run_folder import DONE, ERROR, LAST, fail, is_trained
from vitssl.training.stopping import STOPPED

# of a task that knows why its run failed: `batch.sh` does not start that again, though NFS may show the first node what another one wrote
# a minute late. Above STOPPED, since srun's code is the highest of its tasks'
FAILED = 100
# SLURM warns this long before it kills: enough for a step, a save, and SLURM's 60 s of slack
WARNING_S = 180
LEAVE_S = 30  # before SLURM ends the job, which is final, the task leaves, whatever training still does
KILLED = re.compile(r"exit ?code *:? -\d+|Signal \d+ \(SIG[A-Z]+\)")  # as torchrun says of a worker that a signal ended
# NFS caches for up to a minute that a file does not exist
PATIENCE_S = 90


def _ignore_usr2() -> None:
    # SLURM may signal every process of the step; an ignored signal stays ignored through exec, a handler would not
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


@dataclass
class Node:
    """A SLURM task: one per node of a run's job."""

    folder: str

    def __call__(self) -> str:
        """Train the run until it is done, or evaluate it; when asked to stop, wait until it is saved, and exit.

        Where it is not done and has left no error, `batch.sh` puts the job back into the queue; where it has, the exit code says so.

        Raises:
            RuntimeError: that ended without an error of its own, or what it starts from is not done.
        """
        folder, environment = Path(self.folder), submitit.JobEnvironment()
        # an earlier attempt's result would be taken for this one's, and submitit refuses to write where one was half written
        result = environment.paths.result_pickle
        for path in (result, result.with_suffix(result.suffix + ".save_tmp")):
            path.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(prefix="vitssl-") as scratch:
            stop_file, trained = Path(scratch) / "stop", is_trained(folder)
            signals = StopSignals(stop_file, warning_s(job_of(folder)["hours"]))
            if not trained:
                _refuse_unfinished(folder, environment.node)
            signals.ends_at = _ends_at(environment)
            # training stops earlier where a step and a save take longer than SLURM warns before the end
            variables = {} if signals.ends_at is None else {"VITSSL_ENDS_AT": f"{signals.ends_at:.0f}"}
            code, log = _train(folder, _node_info(environment), stop_file, variables)
            # a trained run was evaluated; of one that ends well, NFS may show late that it is trained
            ended_well = code == 0 if trained else not not_done([folder], PATIENCE_S if code == 0 else 0)
            if ended_well:
                return str(folder)
            if stop_file.exists() and not (folder / ERROR).exists():
                sys.exit(STOPPED)
            unexplained = not busy_file(stop_file).exists() and not (folder / ERROR).exists()
        # training has never begun: most likely the container does not start, and another try would end like this one
        begun = any((folder / name).exists() for name in (LAST, "metrics.jsonl"))
        if environment.node == 0 and unexplained and not begun and not _was_killed(code, log):
            fail(folder, f"exit code {code}, see {folder / 'log'}")
        if not (folder / ERROR).exists():
            raise RuntimeError(f"{folder.name} failed: exit code {code}, see {folder}/log")
        print(f"{folder.name} failed: {read_json(folder / ERROR)['message']}", file=sys.stderr)
        sys.exit(FAILED)

    def checkpoint(self) -> DelayedSubmission:
        """What submitit requeues if a signal arrives before our handlers are installed."""
        return DelayedSubmission(self)


def _refuse_unfinished(folder: Path, node: int) -> None:
    """Whatever SLURM was told to wait for, a run starts from finished ones only.

    Raises:
        RuntimeError: naming one that is not.
    """
    parents = [Path(parent) for parent in read_json(folder / "job.json")["parents"]]
    missing = not_done(parents)
    for parent in (parent for parent in parents if parent in missing):
        if node == 0:
            refuse(folder, parent)
        raise RuntimeError(f"{folder.name} was not started: {parent.name}, which it starts from, is not done")


def refuse(folder: Path, parent: Path) -> None:
    """Leave in a run's folder that it could not start."""
    fail(folder, f"not started: {parent.name}, which it starts from, is not done")


def not_done(folders: Iterable[Path], patience_s: float = PATIENCE_S) -> set[Path]:
    """Those without done.json. On a machine other than the one that wrote it, NFS may show it late: it is looked for again."""
    end, left = time.monotonic() + patience_s, set(folders)
    while left := {folder for folder in left if not folder.is_dir() or DONE not in os.listdir(folder)}:
        if time.monotonic() >= end:
            break
        time.sleep(1)
    return left


def _node_info(environment: submitit.JobEnvironment) -> NodeInfo:
    hosts = list(environment.hostnames)
    restart = int(os.environ.get("SLURM_RESTART_COUNT", 0))
    return NodeInfo(len(hosts), environment.node, hosts[environment.node], hosts[0], int(environment.raw_job_id), restart)


def warning_s(hours: float) -> int:
    """How long before the end of a job of so many hours SLURM warns it, or up to a minute earlier."""
    return min(WARNING_S, round(hours * 3600 / 4))


class StopSignals:
    """A stop signal leaves a file that all workers look for between steps; torchrun itself is never signalled.

    The workers have until shortly before the job's end to finish a step and save. Where SLURM did not say when that is, they have what a
    warning leaves at least; unless they had begun to stop by themselves, which need not be close to the end.
    """

    def __init__(self, stop_file: Path, warning_s: int):
        self._file, self._warning_s = stop_file, warning_s
        self.ends_at: float | None = None  # of the job, in seconds of the clock
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._request)
        signal.signal(signal.SIGALRM, self._overdue)

    def _request(self, number: int, frame: Any) -> None:
        begun = self._file.exists()
        self._file.touch()
        if self.ends_at is not None:
            signal.alarm(max(10, int(self.ends_at - LEAVE_S - time.time())))
        elif not begun:
            signal.alarm(max(10, self._warning_s - LEAVE_S))

    def _overdue(self, number: int, frame: Any) -> None:
        raise TimeoutError


def _ends_at(environment: submitit.JobEnvironment) -> float | None:
    """When SLURM ends the job, in seconds of the clock; None where it does not say."""
    try:  # by array and index: the last element has the array's own number, under which all of them are listed
        return datetime.fromisoformat(cluster.output("squeue", "-h", "-j", environment.job_id, "-o", "%e").strip()).timestamp()
    except ValueError:  # a ConfigError is one, too: the controller hangs; else N/A, or nothing
        return None


def _train(folder: Path, node: NodeInfo, stop_file: Path, variables: Mapping[str, str]) -> tuple[int | None, Path]:
    """The exit code of training, None where it did not stop in the time that SLURM leaves it; and its log."""
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
    """Did a signal end training, by the exit code of its process, a shell's or a container's of it, or torchrun's report of a worker?"""
    return code is None or code < 0 or code == 128 + signal.SIGKILL or KILLED.search(end_of(log)) is not None


@dataclass
class Report:
    """The last job of a sweep: the report, whether the runs succeeded or not."""

    folder: str
    job: dict[str, Any]  # as in job.json

    def __call__(self) -> str:
        _ignore_usr2()  # submitit would end a report that SLURM warns
        subprocess.run(report_command(Path(self.folder), self.job), check=True, cwd=self.job["source"])
        return self.folder
