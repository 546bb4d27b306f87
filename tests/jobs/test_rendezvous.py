"""Another user of the network writes into the store where a job's processes find each other."""

from __future__ import annotations

import base64
import dataclasses
import multiprocessing
import os
import pickle
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

from jobs.node import NodeInfo, command
from vitssl.config import Site

WORKER = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
time.sleep(8)
total = torch.ones(1)
dist.all_reduce(total)
with open(f"{sys.argv[1]}/sum-{dist.get_rank()}", "w") as file:
    file.write(str(int(total)))
dist.destroy_process_group()
"""
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


@pytest.mark.release
@pytest.mark.skipif(not hasattr(torch.distributed.TCPStore, "list_keys"), reason="this torch's store does not list its keys")
def test_nothing_in_the_store_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    job = {"source": str(tmp_path), "site": dataclasses.asdict(Site()), "gpus_per_node": 2, "cache_dir": None, "binds": []}
    words = command(tmp_path, job, NodeInfo(), tmp_path / "stop", "worker")
    wrote = multiprocessing.get_context("fork").Value("i", 0)
    port = int(words[words.index("--master-port") + 1])
    attacker = multiprocessing.get_context("fork").Process(target=attack, args=(port, f"touch {tmp_path}/attacked", wrote))
    attacker.start()
    try:
        job_ended = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    finally:
        attacker.kill()
    assert wrote.value > 0, "the attack reached no store"
    assert not (tmp_path / "attacked").exists()
    assert job_ended.returncode == 0 and [(tmp_path / f"sum-{rank}").read_text() for rank in (0, 1)] == ["2", "2"], job_ended.stderr
