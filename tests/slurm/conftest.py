"""A real SLURM cluster of four nodes on this machine, for the tests of this folder; skipped where its daemons are not installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobs import folders, submit
from jobs.slurm import cluster as queue
from tests.jobs.conftest import write_index
from tests.slurm.commands import sh, wait_for

HERE = Path(__file__).parent
SCRIPT = HERE / "slurm_local.sh"
PATH = os.environ["PATH"] + os.pathsep + "/usr/sbin"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def cluster_of_worker() -> Iterator[dict[str, str]]:
    """A running cluster, by the environment that leads to it; each worker has its own, as tests look at all that is in a queue."""
    folder = os.environ.get("SLURM_LOCAL_DIR", os.path.join(tempfile.gettempdir(), f"slurm-test-{os.getpid()}"))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    beside = {"PORT": 16800 + 200 * number, "PREFIX": f"gw{number}node"}
    with started(f"{folder}-{number}", **beside) if number else started(folder) as environment:
        yield environment


@pytest.fixture(scope="module")
def cluster(cluster_of_worker: dict[str, str]) -> Iterator[None]:
    """All SLURM commands of a file's tests find the worker's cluster; those of other tests find none, whichever worker they are in."""
    with patched(cluster_of_worker):
        yield


@contextmanager
def running(folder: str, **knobs: object) -> Iterator[None]:
    """A cluster with these knobs of slurm_local.sh, which all SLURM commands find meanwhile."""
    with started(folder, **knobs) as environment, patched(environment):
        yield


@contextmanager
def patched(environment: dict[str, str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield


@contextmanager
def started(folder: str, **knobs: object) -> Iterator[dict[str, str]]:
    """A cluster with these knobs of slurm_local.sh, and the environment that leads to it; one that was there before stays."""
    if os.geteuid() != 0 or shutil.which("slurmctld", path=PATH) is None:
        pytest.skip("needs root and SLURM's daemons (tests/slurm/slurm_local.sh install)")
    stand_in = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent / "jobs")}  # of the jobs
    environment = {f"SLURM_LOCAL_{name}": str(value) for name, value in knobs.items()} | stand_in
    kept = _script("status", folder, environment).returncode == 0
    try:
        start = _script("start", folder, environment)
        assert start.returncode == 0, f"the cluster did not start: {start.stderr[-200:]}"
        yield environment | {"SLURM_CONF": f"{folder}/etc/slurm.conf"}
    finally:
        if not kept:
            _script("clean", folder, environment)


def _script(word: str, folder: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What it says, to a file: the daemons that it starts keep it open."""
    command = ["bash", str(SCRIPT), word, folder]
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        done = subprocess.run(command, env=os.environ | environment, stdin=subprocess.DEVNULL, stderr=said, timeout=300, check=False)
        said.seek(0)
        done.stderr = said.read()
    print(done.stderr, file=sys.stderr)  # for pytest
    return done


@pytest.fixture
def place(cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory; the sweep's jobs that a test leaves behind are cancelled. What waits for jobs asks for them often."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(queue, "ASKED_EVERY_S", 2.0)
    yield tmp_path
    subprocess.run(["scancel", "--me"], check=True)
    wait_for(lambda: not sh("squeue", "-h", "--me"))


@pytest.fixture
def standin(place: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Submit a sweep of stand-in runs: `standin(*arguments)` gives the sweep's folder."""
    monkeypatch.setattr(folders, "TRAINING", "standin")
    shards = place / "shards" / "digits"
    shards.mkdir(parents=True)
    write_index(shards, [("train", 300), ("test", 10)])

    def submit_it(*arguments: str) -> Path:
        assert submit.main([str(HERE / "standin.yaml"), "--executor", "slurm", *arguments]) == 0
        return place / "runs" / "standin"

    return submit_it


@pytest.fixture
def hold(place: Path) -> Path:
    """While this file is there, runs wait after HELD_AT steps."""
    path = place / "runs" / "standin" / "hold"
    path.parent.mkdir(parents=True)
    path.touch()
    return path
