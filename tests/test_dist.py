"""Collectives with gradient, on two real ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from jobs.inputs import prepare
from tests.ranks import free_port, spawn
from vitssl import dist
from vitssl.config import ConfigError


def test_a_rank_ends_with_the_torchrun_that_started_it() -> None:
    """torchrun's ranks have sessions of their own; a kill of its process group leaves them."""
    rank = "import time; from vitssl import dist; dist._end_with_parent(); print('ready', flush=True); time.sleep(60)"
    agent = (
        f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {rank!r}], start_new_session=True);"
        " print(p.pid, flush=True); p.wait()"
    )
    process = subprocess.Popen([sys.executable, "-c", agent], stdout=subprocess.PIPE, text=True, start_new_session=True)
    child = int(process.stdout.readline())
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    end = time.monotonic() + 20
    while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text().split()[2]:
        assert time.monotonic() < end
        time.sleep(0.05)


def _rank(rank: int, port: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RANK": str(rank)}
    dist.start(torch.device("cpu"))
    counter = CompileCounter()
    found = {}
    for name, gather in (("eager", dist.gather), ("compiled", torch.compile(dist.gather, backend=counter, fullgraph=True))):
        own = (torch.arange(6.0).reshape(2, 3) + 10 * rank).requires_grad_()
        rows = gather(own)
        (rows * torch.arange(12.0).reshape(3, 4).T * (rank + 1)).sum().backward()  # whose gradient is not contiguous
        found[name] = rows.detach(), own.grad
    torch.save(found | {"frames": counter.frame_count}, f"{folder}/{rank}.pt")
    dist.stop()


def test_gathered_rows_and_their_gradient(tmp_path):
    """The loss of rank r weighs row i with (r + 1) w_i: each rank gets 3 w of its own rows."""
    spawn(_rank, free_port(), str(tmp_path))
    weight = torch.arange(12.0).reshape(3, 4).T
    for rank in (0, 1):
        found = torch.load(tmp_path / f"{rank}.pt")
        for rows, gradient in (found["eager"], found["compiled"]):
            assert torch.equal(rows, torch.cat([torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(2, 3) + 10]))
            assert torch.equal(gradient, 3 * weight[2 * rank : 2 * rank + 2])
        assert found["frames"] == 1


def _late(rank: int, port: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RANK": str(rank)}
    dist.start(torch.device("cpu"), timeout_s=1.0)
    dist.all_sum(torch.zeros(1))
    wait = dist.barrier(timeout_h=12)
    time.sleep(2.5 * rank)
    wait()
    dist.all_sum(torch.zeros(1))
    time.sleep(2.5 * rank)
    try:
        dist.all_sum(torch.zeros(1))
        outcome = "waited"
    except RuntimeError:
        outcome = "gave up"
    Path(folder, str(rank)).write_text(outcome)
    os._exit(0)  # the group is broken


def _ending(rank: int, port: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RANK": str(rank)}
    dist.start(torch.device("cpu"))
    wait, began = dist.barrier(timeout_h=60 / 3600), time.monotonic()
    if rank == 1:
        os._exit(0)
    try:
        wait()
    except RuntimeError as error:
        Path(folder, "0").write_text(f"{dist.lost_peer(error)} {time.monotonic() - began < 30}")
    os._exit(0)


def test_before_training_a_rank_waits_for_none_that_has_ended(tmp_path):
    """As on another node, where no torchrun ends the ranks of this one."""
    spawn(_ending, free_port(), str(tmp_path))
    assert (tmp_path / "0").read_text() == "True True"


def test_bf16_is_emulated_by_a_cpu_of_which_the_launcher_says_so() -> None:
    info = dict(line.split(":", 1) for line in prepare.CPU_INFO.read_text().splitlines() if ":" in line)
    flags = {word for name, words in info.items() if name.strip() in ("flags", "Features") for word in words.split()}
    assert dist.is_bf16_emulated(torch.device("cpu"), "bf16") == (not any(kind <= flags for kind in prepare.WITH_BF16))
    assert not dist.is_bf16_emulated(torch.device("cpu"), "fp32") and not dist.is_bf16_emulated(torch.device("cpu"), "fp16")


@pytest.mark.release
def test_before_training_ranks_wait_longer_than_within_it(tmp_path):
    spawn(_late, free_port(), str(tmp_path))
    assert (tmp_path / "0").read_text() == "gave up"


def test_alone_everything_is_its_own():
    own = torch.randn(2, 3)
    assert dist.gather(own) is own


def test_one_of_several_gpus_is_chosen_as_in_torch(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [dist.device(name).index for name in ("auto", "cuda", "cuda:0", "cuda:1")] == [0, 0, 0, 1]
    assert dist.device(torch.device("cuda:1")) == torch.device("cuda", 1) and dist.device(torch.device("cpu")).type == "cpu"
    with pytest.raises(ConfigError, match=r"there is no cuda:2 \(2 visible\)"):
        dist.device("cuda:2")
    for name in ("cuda:", "cuda:x", "cpu:0", "gpu", "auto:1"):
        with pytest.raises(ConfigError, match=f"'{name}' is none of auto, cpu, cuda and cuda:N"):
            dist.device(name)
