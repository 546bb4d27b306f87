"""Processes of this machine as gloo ranks; forked from one that has imported everything, which saves each ten seconds.

The fork server belongs to the test worker and starts at the first use. What the start of a process itself is tested for uses
`start_programs`, which runs `python -m vitssl.train FOLDER` as torchrun does.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
import torch.multiprocessing

from vitssl import dist, train

ROOT = Path(__file__).parent.parent


def free_port() -> int:
    """One that was free a moment ago; a test whose port somebody takes in between fails, and says so."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@functools.cache
def _start_server() -> None:
    multiprocessing.set_forkserver_preload(["tests.preloaded"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        forkserver.ensure_running()


def spawn(function: Callable[..., None], *args: Any, ranks: int = 2) -> None:
    """`function(rank, *args)` in each process; raises what one of them raises."""
    _start_server()
    torch.multiprocessing.start_processes(function, args, nprocs=ranks, start_method="forkserver")


class Rank(multiprocessing.get_context("forkserver").Process):
    """`python -m vitssl.train FOLDER` in an environment; what it says of errors is in the file `errors`."""

    def __init__(self, folder: Path, env: dict[str, str], errors: str):
        super().__init__()
        self.folder, self.env, self.errors = folder, env, Path(errors)

    def run(self) -> None:
        os.environ.clear()  # the fork server's, when it was started
        os.environ.update(self.env)
        with self.errors.open("w") as file:
            os.dup2(file.fileno(), sys.stderr.fileno())
        dist.hard_exit(train.main([str(self.folder)]))

    def wait(self, timeout_s: float) -> int:
        """The exit code."""
        self.join(timeout_s)
        assert self.exitcode is not None, f"rank {self.env['RANK']} of {self.folder} still runs"
        return self.exitcode


def _environments(ranks: int, env: dict[str, str]) -> list[dict[str, str]]:
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks), **env}
    return [{**common, "RANK": str(r), "LOCAL_RANK": str(r)} for r in range(ranks)]


def start_ranks(folder: Path, ranks: int, **env: str) -> list[Rank]:
    _start_server()
    errors = tempfile.mkdtemp(prefix="errors-", dir=folder.parent)
    processes = [Rank(folder, own, f"{errors}/{own['RANK']}.txt") for own in _environments(ranks, env)]
    for process in processes:
        process.start()
    return processes


def run_ranks(folder: Path, ranks: int, **env: str) -> list[int]:
    processes = start_ranks(folder, ranks, **env)
    codes = [process.wait(120) for process in processes]
    assert set(codes) <= {0, train.STOPPED}, processes[0].errors.read_text()
    return codes


def start_programs(folder: Path, ranks: int, **env: str) -> list[subprocess.Popen]:
    command = [sys.executable, "-m", "vitssl.train", str(folder)]
    environments = _environments(ranks, {"PYTHONPATH": str(ROOT), **env})
    return [subprocess.Popen(command, env=own, stderr=subprocess.PIPE, text=True) for own in environments]
