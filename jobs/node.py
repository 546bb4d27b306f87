"""What runs on a node: the command of one run, and the SLURM task that starts it, stops it when asked and requeues it.

The task runs outside the container; torchrun and training run inside. This module and its imports need neither torch nor anything
else from the container.
"""

from __future__ import annotations

import os
import re
import shlex
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

from jobs import cluster
from jobs.logs import end_of
from vitssl.config import Site, merge
from vitssl.files import busy_file, read_json, write_json
from vitssl.run_folder import DONE, ERROR, is_trained
from vitssl.stopping import STOPPED

TRAINING = "vitssl.train"
CACHE = "VITSSL_CACHE_DIR"
# of a task that knows why its run failed: `batch.sh` does not start that again, though NFS may show the first node what another one wrote
# a minute late. Above STOPPED, since srun's code is the highest of its tasks'
FAILED = 100
# a stopping worker saves first; torchrun's default of 30 s is too short for that
SHUTDOWN_S = 300
# SLURM warns this long before it kills: enough for a step, a save, and SLURM's 60 s of slack
WARNING_S = 180
# Threads wait for each other by spinning, by default so long that beside other work they keep the one that they wait for from its core.
# So short a time costs nothing on a quiet machine, and beside other work makes a run several times as fast (vitssl/docs/speed.md).
SHORT_WAITS = {"GOMP_SPINCOUNT": "3000"}
WAITS = {"OMP_WAIT_POLICY", *SHORT_WAITS}
LEAVE_S = 30  # before SLURM ends the job, which is final, the task leaves, whatever training still does
KILLED = re.compile(r"exit ?code *:? -\d+|Signal \d+ \(SIG[A-Z]+\)")  # as torchrun says of a worker that a signal ended
# NFS caches for up to a minute that a file does not exist
PATIENCE_S = 90


def container_command(site: Site, python: str, paths: list[Path]) -> list[str]:
    """The command that starts Python at a site: in its container, with these paths bound, if it has one."""
    if site.image is None:
        return [python]
    binds = [*site.binds, *(str(path) for path in dict.fromkeys(paths) if path.exists())]
    return [*shlex.split(site.container), *(word for bind in binds for word in ("--bind", bind)), site.image, "python"]


def cli_command(site: Site, paths: list[Path], *words: str) -> list[str]:
    """What types `vitssl WORDS` at a site."""
    return [*container_command(site, sys.executable, paths), "-m", "vitssl", *words]


@dataclass
class NodeInfo:
    """A node's place among the nodes of its job."""

    nodes: int = 1
    rank: int = 0  # of this node
    host: str = "localhost"  # its name
    head: str = "localhost"  # the first node's name
    job: int = 0  # SLURM's raw job id
    restart: int = 0  # how often SLURM requeued the job

    def port(self) -> int:
        """Where the processes of several nodes find each other: below the ephemeral range (32768), and different after a requeue.

        All nodes have to know it before they can talk, so none is tried in turn: where another job's is the same on the same first node
        (one in 12,000 of those that share it), the later job fails, and says that the address is in use.
        """
        return 20000 + (7 * self.job + self.restart) % 12000


def command(folder: Path, job: dict[str, Any], node: NodeInfo, stop_file: Path, module: str = TRAINING) -> list[str]:
    """The command that trains the run in ``folder`` on one node."""
    site, processes = _site(job), max(1, job["gpus_per_node"])
    python = container_command(site, sys.executable, [folder.parent, Path(job["source"]), stop_file.parent, *_outside(job, site)])
    if node.nodes == 1 and processes == 1:
        return [*python, "-m", module, str(folder)]
    # torchrun makes a folder for logs even where it writes none, and leaves it in /tmp unless it is told where
    training = ["--log-dir", str(stop_file.parent), "--nproc-per-node", str(processes), "-m", module, str(folder)]
    if node.nodes == 1:
        return [*python, "-m", "vitssl.loopback", *training]
    # static: what torchrun's elastic rendezvous finds in its store it unpickles, and everybody on the network can write there
    rendezvous = ["--nnodes", str(node.nodes), "--node-rank", str(node.rank), "--rdzv-backend", "static"]
    rendezvous += ["--master-addr", node.head, "--master-port", str(node.port()), "--max-restarts", "0"]
    return [*python, "-m", "torch.distributed.run", *rendezvous, *training]


def _outside(job: dict[str, Any], site: Site) -> list[Path]:
    """The paths that a run uses outside its sweep's folder. The node's cache folder is created, so that a container can bind it."""
    cache = cache_folder(job["cache_dir"], site)[1]
    if site.image is not None and cache is not None:
        Path(cache).mkdir(parents=True, exist_ok=True)
    return [Path(path) for path in (*job["binds"], cache) if path is not None]


def cache_folder(of_run: str | None, site: Site) -> tuple[str, str | None]:
    """(what names it, the folder for caches) of a run on this node; None for the one of temporary files."""
    named = {"data.cache_dir": of_run, "site.env": site.env.get(CACHE), CACHE: os.environ.get(CACHE)}
    return next(((name, folder) for name, folder in named.items() if folder), ("", None))


def set_up(site: Site, source: Path) -> list[str]:
    """Shell lines before training: the site's, its variables, and the source first on Python's path."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in site.env.items()]
    return [*site.setup, *exports, f'export PYTHONPATH={shlex.quote(str(source))}"${{PYTHONPATH:+:$PYTHONPATH}}"']


def environment(job: dict[str, Any], stop_file: Path) -> dict[str, str]:
    """A run's environment: its source snapshot first on the path, the site's variables, and the file that asks it to stop."""
    given = os.environ | _site(job).env
    paths = [job["source"], *filter(None, [given.get("PYTHONPATH")])]
    variables = {
        "PYTHONPATH": os.pathsep.join(paths),
        "VITSSL_STOP_FILE": str(stop_file),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the order of NVML, which measures their energy
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(SHUTDOWN_S),
    }
    return given | ({} if WAITS & given.keys() else SHORT_WAITS) | variables


def start(
    folder: Path, node: NodeInfo, stop_file: Path, module: str = TRAINING, variables: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[bytes]:
    """Start the run of a folder on this node, with further variables in its environment."""
    job = _job(folder)
    environ = environment(job, stop_file) | dict(variables or {})
    words = command(folder, job, node, stop_file, module)
    if job["executor"] == "local" and _site(job).setup:  # on SLURM the batch script has run them
        words = ["bash", "-c", "\n".join([*set_up(_site(job), Path(job["source"])), 'exec "$@"']), "setup", *words]
    return subprocess.Popen(words, cwd=job["source"], env=environ, **options)


def _job(folder: Path) -> dict[str, Any]:
    """The `job.json` of a run; a trained one is evaluated by the new source, on one GPU."""
    job = read_json(folder / "job.json")
    return job | job.get("evaluation", {})


def _ignore_usr2() -> None:
    # SLURM may signal every process of the step; an ignored signal stays ignored through exec, a handler would not
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def _site(job: dict[str, Any]) -> Site:
    return merge(Site, job["site"], where="job.json: site")


# ----------------------------------------------------------------------------------------------------- the SLURM tasks


@dataclass
class Node:
    """A SLURM task: one per node of a run's job."""

    folder: str
    module: str = TRAINING

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
            signals = StopSignals(stop_file, warning_s(_job(folder)["hours"]))
            if not trained:
                _refuse_unfinished(folder, environment.node)
            signals.ends_at = _ends_at(environment)
            # training stops earlier where a step and a save take longer than SLURM warns before the end
            variables = {} if signals.ends_at is None else {"VITSSL_ENDS_AT": f"{signals.ends_at:.0f}"}
            code, log = _train(folder, _node_info(environment), stop_file, self.module, variables)
            # a trained run was evaluated; of one that ends well, NFS may show late that it is trained
            ended_well = code == 0 if trained else not not_done([folder], PATIENCE_S if code == 0 else 0)
            if ended_well:
                return str(folder)
            if stop_file.exists() and not (folder / ERROR).exists():
                sys.exit(STOPPED)
            unexplained = not busy_file(stop_file).exists() and not (folder / ERROR).exists()
        # training has never begun: most likely the container does not start, and another try would end like this one
        begun = any((folder / name).exists() for name in ("last.pt", "metrics.jsonl"))
        if environment.node == 0 and unexplained and not begun and not _was_killed(code, log):
            write_json(folder / ERROR, {"message": f"exit code {code}, see {folder / 'log'}", "time": time.time()})
        if not (folder / ERROR).exists():
            raise RuntimeError(f"{folder.name} failed: exit code {code}, see {folder}/log")
        print(f"{folder.name} failed: {read_json(folder / 'error.json')['message']}", file=sys.stderr)
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
    write_json(folder / ERROR, {"message": f"not started: {parent.name}, which it starts from, is not done", "time": time.time()})


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


def _train(folder: Path, node: NodeInfo, stop_file: Path, module: str, variables: Mapping[str, str]) -> tuple[int | None, Path]:
    """The exit code of training, None where it did not stop in the time that SLURM leaves it; and its log."""
    log = folder / "log" / f"train-{node.job}-{node.restart}-{node.host}.txt"
    log.parent.mkdir(exist_ok=True)
    with log.open("ab") as output:
        streams = {"stdout": output, "stderr": subprocess.STDOUT}
        process = start(folder, node, stop_file, module, variables, preexec_fn=_ignore_usr2, **streams)
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


def report_command(folder: Path, job: dict[str, Any]) -> list[str]:
    """The command that prints and writes the report of a sweep's folder."""
    return cli_command(_site(job), [folder, Path(job["source"])], "report", str(folder))
