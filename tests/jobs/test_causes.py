"""What ended a job that left no reason: the words of gloo, NCCL and the store, as torch 2.14 prints them."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.logs import cause

GLOO = "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete"
NCCL = (
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800021 ms"
)
CONNECT = "torch.distributed.DistNetworkError: The client socket has timed out after 300000ms while trying to connect to (node-1, 20123)."
CLIENTS = "torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients. 1/2 clients joined."


def log(folder: Path, attempt: str, node: str, text: str) -> None:
    (folder / "log").mkdir(exist_ok=True)
    (folder / "log" / f"train-{attempt}-{node}.txt").write_text(f"epoch 3\n{text}\n")


@pytest.mark.parametrize("said", [GLOO, NCCL, CONNECT, CLIENTS])
def test_the_nodes_that_waited_and_those_that_were_silent_are_named(tmp_path: Path, said: str) -> None:
    log(tmp_path, "7-0", "old-node", GLOO)  # of an earlier attempt
    log(tmp_path, "7-1", "node-2", "")
    log(tmp_path, "7-1", "node-1", said)
    assert cause(tmp_path) == "node-1 waited in vain for node-2: one hangs, or the network does (site.exclude=node-2 avoids it)"


def test_where_all_waited_none_is_blamed(tmp_path: Path) -> None:
    for node in ("a", "b"):
        log(tmp_path, "7-0", node, GLOO)
    assert cause(tmp_path) == "the processes on a and b waited for one another in vain: one hangs, or the network does"


def test_what_ends_it_later_is_the_cause(tmp_path: Path) -> None:
    log(tmp_path, "7-0", "a", f"{GLOO}\nOutOfMemoryError")
    assert cause(tmp_path) == "the GPU's memory was used up: lower loop.micro_batch_size"
    log(tmp_path, "7-0", "a", "all is well")
    assert cause(tmp_path) is None
