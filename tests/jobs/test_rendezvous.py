"""Who can reach the processes of a job: where they listen, and another user who writes into the store where they find each other."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import multiprocessing
import os
import pickle
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch.distributed

from jobs.command import NodeInfo, command
from vitssl.config import Site

WORKER = """
import pathlib, sys, time, torch, torch.distributed as dist
folder = pathlib.Path(sys.argv[1])
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
(folder / f"ready-{dist.get_rank()}").touch()
while not (folder / "go").exists():
    time.sleep(0.1)
dist.all_reduce(total)
(folder / f"sum-{dist.get_rank()}").write_text(str(int(total)))
dist.destroy_process_group()
"""
ROOT = Path(__file__).parents[2]
NOBODY = 65534


class Command:
    """What unpickling it runs."""

    def __init__(self, line: str):
        self.line = line

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.line,)


def attack(port: int, line: str, wrote: Any) -> None:
    """As another user: the pickle under every key of the rendezvous, again and again."""
    if os.getuid() == 0:
        os.setuid(NOBODY)
    evil = base64.b64encode(pickle.dumps(Command(line)))
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            store = torch.distributed.TCPStore("127.0.0.1", port, is_master=False, timeout=torch.distributed.default_pg_timeout / 900)
            for key in {"torch.rendezvous.none", *store.list_keys()}:
                if "torch.rendezvous" in key:
                    store.set(key.removeprefix("/"), evil)
                    wrote.value += 1
        except RuntimeError:  # it does not listen yet, or has ended
            time.sleep(0.2)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A job of one node and two ranks, which add when all of them are there, and again after `go`."""
    (folder / "worker.py").write_text(WORKER)
    (folder / "tmp").mkdir()
    job = {
        "source": str(folder),
        "site": dataclasses.asdict(Site()),
        "gpus_per_node": 2,
        "cache_dir": None,
        "binds": [],
        "module": "worker",
    }
    words = command(folder, job, NodeInfo(), folder / "stop")
    path = os.pathsep.join(map(str, (folder, ROOT)))
    variables = os.environ | {"PYTHONPATH": path, "TMPDIR": str(folder / "tmp")}
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=variables, start_new_session=True)
    try:
        yield process
    finally:
        (folder / "go").touch()
        process.communicate(timeout=60)


def listening(process: int) -> list[tuple[str, int]]:
    """Addresses and ports on which a process and all that it started listen, TCP or UDP, as the kernel lists them."""
    here = psutil.Process(process)
    family = {process, *(child.pid for child in here.children(recursive=True))}
    sockets = [found for found in psutil.net_connections("inet") if found.pid in family and not found.raddr]
    return [(found.laddr.ip, found.laddr.port) for found in sockets]


def wait_for(*paths: Path) -> None:
    end = time.monotonic() + 60
    while not all(path.exists() for path in paths):
        assert time.monotonic() < end, f"no {' and '.join(map(str, paths))}"
        time.sleep(0.1)


@pytest.mark.release
def test_a_job_of_one_node_listens_on_the_loopback_interface_alone(tmp_path: Path) -> None:
    with running(tmp_path) as job:
        wait_for(tmp_path / "ready-0", tmp_path / "ready-1")
        found = listening(job.pid)
        (tmp_path / "go").touch()
        assert job.wait(timeout=60) == 0
    assert len(found) >= 3, "the store, and one of each rank"
    assert {address for address, _ in found} == {"127.0.0.1"}
    assert [(tmp_path / f"sum-{rank}").read_text() for rank in (0, 1)] == ["4", "4"]
    assert not os.listdir(tmp_path / "tmp"), "left on the node"


@pytest.mark.release
@pytest.mark.skipif(not hasattr(torch.distributed.TCPStore, "list_keys"), reason="this torch's store does not list its keys")
def test_nothing_in_the_store_is_unpickled(tmp_path: Path) -> None:
    wrote = multiprocessing.get_context("fork").Value("i", 0)
    with running(tmp_path) as job:
        while not (ports := listening(job.pid)):
            assert job.poll() is None
        line = f"touch {tmp_path}/attacked"
        attacker = multiprocessing.get_context("fork").Process(target=attack, args=(ports[0][1], line, wrote))
        attacker.start()
        try:
            wait_for(tmp_path / "ready-0", tmp_path / "ready-1")
            time.sleep(8)  # torchrun's elastic rendezvous reads its store every five
            (tmp_path / "go").touch()
            assert job.wait(timeout=60) == 0
        finally:
            attacker.kill()
    assert wrote.value > 0, "the attack reached no store"
    assert not (tmp_path / "attacked").exists()
    assert [(tmp_path / f"sum-{rank}").read_text() for rank in (0, 1)] == ["4", "4"]
