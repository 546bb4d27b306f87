"""Ranks: which one this process is, and sums over all of them.

Everything works unchanged in a single process without a process group.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from datetime import timedelta
from types import TracebackType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from vitssl.config import ConfigError

PR_SET_PDEATHSIG = 1  # of prctl(2): the signal that this process gets when its parent ends


def rank() -> int:
    return int(os.environ.get("RANK", 0))


def local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", 0))


def world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", 1))


def local_world_size() -> int:
    """Processes of this node; each uses another GPU, of the first ones that are visible."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def leave_others() -> None:
    """From here on this process is the only one: what is to be done is for one, and those that torchrun started beside it do nothing."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)


def is_main() -> bool:
    return rank() == 0


def device(name: str) -> torch.device:
    """The device of this process for ``loop.device``.

    Raises:
        ConfigError: cuda is requested and there is none for this rank.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("cuda was asked for, but torch sees no GPU on this machine", "loop.device")
    if local_rank() >= torch.cuda.device_count():
        raise ConfigError(f"process {local_rank()} of this node has no GPU ({torch.cuda.device_count()} visible)", "loop.device")
    return torch.device("cuda", local_rank())


MIXED = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(where: torch.device, precision: str) -> torch.autocast:
    """The context of every forward: 16 bits where the Run's precision says so."""
    return torch.autocast(where.type, dtype=MIXED.get(precision, torch.bfloat16), enabled=precision in MIXED)


def inference_autocast(where: torch.device, precision: str) -> torch.autocast:
    """The same of passes without gradients; but fp16 takes a CPU four times as long as fp32."""
    return autocast(where, "fp32" if precision == "fp16" and where.type == "cpu" else precision)


def set_precision(precision: str) -> None:
    """Of matrix products and convolutions in fp32: TF32 where the Run's precision says so, which torch's default has for convolutions."""
    # torch's newer fp32_precision flags make these and, in some versions, its compiler fail when they are read
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def seed(where: torch.device, value: int) -> None:
    """Of the random numbers of the CPU and of the GPU in use; ``torch.manual_seed`` takes time for all kinds of device."""
    torch.default_generator.manual_seed(value)
    if where.type == "cuda":
        torch.cuda.manual_seed(value)


def emulates(where: torch.device, precision: str) -> bool:
    """Is this a GPU older than Ampere, that has no bf16 of its own, and the Run's precision is that?"""
    return where.type == "cuda" and precision == "bf16" and torch.cuda.get_device_capability(where) < (8, 0)


def start(where: torch.device, timeout_s: float = 1800.0) -> None:
    """Join the process group that torchrun describes, if there is one."""
    if where.type == "cuda":
        torch.cuda.set_device(where)
    if world_size() == 1:
        return
    _end_with_parent()
    backend = "cpu:gloo,cuda:nccl" if where.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    traceback_with_rank = sys.excepthook  # torch's, which it has just set; it prints when it returns

    def print_and_leave(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        traceback_with_rank(kind, error, trace)
        hard_exit(1)

    sys.excepthook = print_and_leave


def _end_with_parent() -> None:
    """torchrun starts each rank in a new session, which a kill of its process group does not reach: they would train on without it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def hard_exit(code: int) -> NoReturn:
    """End this process, without shutting down a process group that is still there: NCCL would wait for ranks that wait for this one."""
    if not dist.is_initialized():
        sys.exit(code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def stop() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def lost_peer(error: BaseException) -> bool:
    """Is this the end of another rank, seen from here? gloo raises plain RuntimeErrors that name their source file."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo/transport" in str(error))


def barrier(timeout_h: float) -> None:
    """Wait until all ranks are here, for longer than the process group does: before training one node may decode images for hours, and
    others not."""
    if dist.is_initialized():
        group = dist.new_group(backend="gloo", timeout=timedelta(hours=timeout_h))
        dist.all_reduce(torch.zeros(1), group=group)
        dist.destroy_process_group(group)


def all_sum(tensor: Tensor) -> Tensor:
    """Sum over ranks, in place; without gradient."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def all_max(tensor: Tensor) -> Tensor:
    """Maximum over ranks, in place."""
    if dist.is_initialized():
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor


def anywhere(*flags: bool) -> list[bool]:
    """Each flag is true where it is on any rank, so that all act at the same step."""
    return [bool(flag) for flag in all_max(torch.tensor(flags, dtype=torch.int32)).tolist()]


def from_main(tensor: Tensor) -> Tensor:
    """The main rank's values on every rank, in place."""
    if dist.is_initialized():
        dist.broadcast(tensor, src=0)
    return tensor


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        parts = [torch.empty_like(tensor) for _ in range(world_size())]
        dist.all_gather(parts, tensor)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        # every rank's loss depends on every rank's rows; DDP's average over ranks then gives the gradient of the mean loss
        return all_sum(gradient.clone(memory_format=torch.contiguous_format)).chunk(world_size())[rank()]


def gather(tensor: Tensor) -> Tensor:
    """The equally many rows of all ranks, in the order of ranks; the gradient is summed over ranks."""
    if dist.is_initialized():
        return _Gather.apply(tensor.contiguous())
    return tensor


@torch.no_grad()
def gather_rows(tensor: Tensor) -> Tensor:
    """The rows of all ranks, of which each rank may have a different number, in the order of ranks; without gradient."""
    if not dist.is_initialized():
        return tensor
    counts = gather(torch.tensor([len(tensor)], device=tensor.device)).tolist()
    padded = tensor.new_zeros(max(counts), *tensor.shape[1:])
    padded[: len(tensor)] = tensor
    return torch.cat([part[:count] for part, count in zip(gather(padded).split(max(1, max(counts))), counts, strict=True)])
