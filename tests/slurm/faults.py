"""The faults of the drill (drill.py): what happens to a training on the test cluster, at a step drawn at random."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from jobs.slurm import cluster
from tests.slurm.commands import TIMED_OUT, controller, events, misbehaving_sbatch, parent_of, read_only, sh, wait_for

TMPFS_MB, INODES = 64, 2000
NODE_OUTAGE_S = 10


@dataclass
class Trial:
    """A sweep of a pretraining, in whose folder the fault happens, and a run that starts from it."""

    name: str
    place: Path  # the working directory, with runs/ and shards/
    step: int
    chance: random.Random
    nodes: int = 2
    outage_s: float = 60  # of the controller
    folder: Path = Path()  # the pretraining's, once it is submitted
    words: list[str] = field(default_factory=list)  # further ones of the command
    detail: str = ""

    @property
    def sweep(self) -> Path:
        return self.place / "runs" / self.name

    @property
    def job(self) -> str:
        return cluster.job_id(self.folder)

    def wait_for_step(self) -> None:
        wait_for(lambda: any(event["step"] >= self.step for event in events(self.folder, "train")), timeout_s=600)


@dataclass
class Fault:
    """``around`` surrounds the submission; ``inject`` happens at the step. Where it stops the run, for the reason ``cause`` (a regular
    expression on what the status says), ``inject`` ends what it did after a `yield`, and the person's command is typed again."""

    inject: Callable[[Trial], Any] | None = None
    around: Callable[[Trial], Any] = lambda trial: nullcontext()
    cause: str | None = None
    taken: bool = True  # the first submission
    alone: bool = False  # it reaches every job there is
    nodes: int = 1  # at least: on one there is no torchrun


# ------------------------------------------------------------------------------------------------ signals and kills


def signal_job(*choices: str) -> Callable[[Trial], None]:
    """In any of these ways."""

    def inject(trial: Trial) -> None:
        trial.detail = trial.chance.choice(choices)
        sh("scancel", *trial.detail.split(), trial.job)

    return inject


def requeue(trial: Trial) -> None:
    sh("scontrol", "requeue", trial.job)


def found(*words: str) -> list[int]:
    return [int(pid) for pid in subprocess.run(["pgrep", *words], capture_output=True, text=True, check=False).stdout.split()]


def started(trial: Trial) -> list[int]:
    """What the tasks started: torchrun, or training itself on one node."""
    if trial.nodes == 1:
        return found("-o", "-f", f"^[^ ]*python[^ ]* -m vitssl.train {trial.folder}$")
    return found("-f", f"torch.distributed.run .*{trial.folder}$")


def workers(trial: Trial) -> list[int]:
    return started(trial) if trial.nodes == 1 else [child for pid in started(trial) for child in found("-P", str(pid))]


def tasks(trial: Trial) -> list[int]:
    return [parent_of(pid) for pid in started(trial)]


def stepds(trial: Trial) -> list[int]:
    """SLURM's own processes that hold the tasks, one on each node."""
    return found("-f", rf"^slurmstepd: \[{trial.job}\.0\]")


def kill(which: Callable[[Trial], list[int]]) -> Callable[[Trial], None]:
    """kill -9 of one of these processes, on either node."""

    def inject(trial: Trial) -> None:
        assert any(map(_killed, trial.chance.sample(pids := which(trial), len(pids)))), "there is none of these processes to kill"

    return inject


def _killed(pid: int) -> bool:
    """Unless it has ended by itself."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


# ------------------------------------------------------------------------------------------------ nodes and the controller


def node_down(trial: Trial) -> None:
    names = sh("squeue", "-h", "-j", trial.job, "-o", "%N")
    trial.detail = trial.chance.choice(sh("scontrol", "show", "hostnames", names).split())
    sh("scontrol", "update", f"nodename={trial.detail}", "state=down", "reason=drill")
    time.sleep(NODE_OUTAGE_S)
    if "down" in sh("sinfo", "-h", "-p", "gpu", "-n", trial.detail, "-o", "%t"):  # its daemon may have asked for it to return
        sh("scontrol", "update", f"nodename={trial.detail}", "state=resume")


def _without_controller(trial: Trial, number: signal.Signals, back: Callable[[int], object]) -> None:
    """It gets a signal, and a worker is killed, so that the job has to ask it for another start; then it is brought back."""
    pid = controller()
    os.kill(pid, number)
    try:
        kill(workers)(trial)
        time.sleep(trial.outage_s)
    finally:
        back(pid)


def slow_controller(trial: Trial) -> None:
    """It hangs."""
    _without_controller(trial, signal.SIGSTOP, lambda pid: os.kill(pid, signal.SIGCONT))


def dead_controller(trial: Trial) -> None:
    """It is killed, and started again with the state that it has saved."""
    _without_controller(trial, signal.SIGKILL, lambda pid: sh("slurmctld"))
    wait_for(cluster.answers)


# ------------------------------------------------------------------------------------------------ files


def killed_and_gone(trial: Trial) -> None:
    kill(workers)(trial)
    wait_for(lambda: not started(trial))


def truncated(trial: Trial) -> None:
    """The last checkpoint is cut short between two attempts."""
    wait_for(lambda: (trial.folder / "previous.pt").exists())
    killed_and_gone(trial)
    last = trial.folder / "last.pt"
    if not last.exists():  # killed when a save had moved it to previous.pt, and had not put the new one there
        next(trial.folder.glob(".last.pt.*")).rename(last)
    os.truncate(last, trial.chance.randrange(last.stat().st_size))


@contextmanager
def own_shards(trial: Trial) -> Iterator[None]:
    """Which nobody else reads, and a cache of decoded images for this trial alone."""
    sh("cp", "-r", str(trial.place / "shards"), str(trial.place / f"shards-{trial.name}"))
    trial.words = [f"data.shards=shards-{trial.name}/digits", f"site.env={{VITSSL_CACHE_DIR: {trial.place}/cache-{trial.name}}}"]
    yield


def altered_shard(trial: Trial) -> Iterator[None]:
    """A bit of an image is flipped between two attempts, on nodes that have no copy of it."""
    killed_and_gone(trial)
    sh("rm", "-r", f"{trial.place}/cache-{trial.name}")
    tar = trial.chance.choice(sorted((trial.place / f"shards-{trial.name}" / "digits").glob("train-*.tar")))
    with tarfile.open(tar) as members:
        image = trial.chance.choice([member for member in members if member.isfile() and member.size])
    offset = image.offset_data + trial.chance.randrange(image.size)
    trial.detail = tar.name
    flip(tar, offset)
    yield
    flip(tar, offset)


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def on_tmpfs(*options: str) -> Callable[[Trial], Any]:
    @contextmanager
    def around(trial: Trial) -> Iterator[None]:
        trial.sweep.mkdir(parents=True)
        sh("mount", "-t", "tmpfs", "-o", ",".join(options), "drill", str(trial.sweep))
        yield

    return around


def full_disk(trial: Trial) -> Iterator[None]:
    filler = trial.sweep / "filler"
    with filler.open("wb", buffering=0) as file:
        until_full(lambda: file.write(bytes(4096)))
    yield
    filler.unlink()


def no_inodes(trial: Trial) -> Iterator[None]:
    names = iter(range(10**9))
    filler = trial.sweep / "filler"
    filler.mkdir()
    until_full(lambda: (filler / str(next(names))).touch())
    yield
    sh("rm", "-r", str(filler))


def until_full(action: Callable[[], object]) -> None:
    try:
        while True:
            action()
    except OSError as error:
        assert error.strerror == "No space left on device"


def read_only_folder(trial: Trial) -> Iterator[None]:
    with read_only(trial.folder):
        any(map(_killed, workers(trial)))  # or a save that failed has ended it
        yield


# ------------------------------------------------------------------------------------------------ submitting, and other people


def sbatch(lines: str) -> Callable[[Trial], Any]:
    """An sbatch that misbehaves, with shorter pauses than a person has."""

    @contextmanager
    def around(trial: Trial) -> Iterator[None]:
        folder = trial.place / f"bin-{trial.name}"
        folder.mkdir()
        path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        with mock.patch.dict(os.environ, PATH=path), mock.patch.multiple(cluster, PAUSES_S=(1, 1), ANSWER_S=2):
            misbehaving_sbatch(folder, lines)
            yield

    return around


def two_users(trial: Trial) -> None:
    """Another person, who may write everywhere, submits the same and cancels it: both leave the run alone, and say whose it is."""
    submitted = as_nobody(trial, "jobs.submit", *submit_words(trial))
    assert submitted.returncode == 2 and f"in SLURM's queue for root (job {trial.job})" in submitted.stderr, submitted.stderr
    cancelled = as_nobody(trial, "jobs.cancel", str(trial.sweep))
    assert f"job {trial.job} ({trial.folder.name}) belongs to root and keeps running" in cancelled.stderr, cancelled.stderr


def as_nobody(trial: Trial, module: str, *words: str) -> subprocess.CompletedProcess[str]:
    able = "+dac_override,+dac_read_search"  # of files
    nobody = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", f"--inh-caps={able}", f"--ambient-caps={able}"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "HOME": "/tmp"}
    command = [*nobody, sys.executable, "-m", module, *words]
    return subprocess.run(command, env=environment, cwd=trial.place, capture_output=True, text=True, check=False, timeout=120)


def submit_words(trial: Trial) -> list[str]:
    fields = [f"name={trial.name}", f"resources.nodes={trial.nodes}", *FIELDS]
    return [str(Path(__file__).with_name("tiny.yaml")), "--executor", "slurm", *fields, *trial.words]


FIELDS = ["loop.checkpoint_minutes=0.005"]  # one every 0.3 s
FAULTS = {
    "usr2": Fault(signal_job("-s USR2", "--batch -s USR2", "--full -s USR2")),
    "term": Fault(signal_job("-s TERM", "--batch -s TERM", "--full -s TERM")),
    "requeue": Fault(requeue),
    "worker": Fault(kill(workers)),
    "torchrun": Fault(kill(started), nodes=2),
    "task": Fault(kill(tasks), nodes=2),
    "slurmstepd": Fault(kill(stepds)),
    "node-down": Fault(node_down, alone=True, nodes=2),
    "truncated": Fault(truncated),
    "shard": Fault(altered_shard, own_shards, cause=r"train-\d+\.tar"),
    "full-disk": Fault(full_disk, on_tmpfs(f"size={TMPFS_MB}m"), cause=r"(?i)no (disk )?space"),
    "no-inodes": Fault(no_inodes, on_tmpfs(f"nr_inodes={INODES}"), cause=r"(?i)no (disk )?space"),
    "read-only": Fault(read_only_folder, cause=r"(?i)read-only"),
    "slow-controller": Fault(slow_controller, alone=True),
    "dead-controller": Fault(dead_controller, alone=True),
    "sbatch-third": Fault(around=sbatch(f"[ $((n % 3)) != 0 ] || {{ {TIMED_OUT}; }}")),
    "sbatch-hangs": Fault(around=sbatch("exec sleep 100"), taken=False),
    "sbatch-lost": Fault(around=sbatch(f'$real "$@" > /dev/null; {TIMED_OUT}')),
    "two-users": Fault(two_users),
}  # fmt: skip
