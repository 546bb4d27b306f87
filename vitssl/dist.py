"""The ranks of a run: which one this process is, and communication between them.

Everything works unchanged in a single process without a process group.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
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
    """Return the number of processes on this node; each uses a GPU of its own, and together they use the first visible ones."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def become_only_rank() -> None:
    """Make this process the only rank from here on: its work is for one process, and the others that torchrun started do nothing."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)


def is_main() -> bool:
    return rank() == 0


def device(name: str | torch.device) -> torch.device:
    """Return the device of this process by its name: auto, cpu, cuda for the GPU of this rank, or ``cuda:N`` for the Nth GPU, from 0.

    Raises:
        ConfigError: there is no such kind of device, or no such GPU.
    """
    name = str(name)
    kind, _, number = name.partition(":")
    if name not in ("auto", "cpu", "cuda") and not (kind == "cuda" and number.isdecimal()):
        raise ConfigError(f"{name!r} is none of auto, cpu, cuda and cuda:N", "device")
    if kind == "cpu" or (kind == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("cuda was asked for, but torch sees no GPU on this machine", "loop.device")
    index = int(number) if number else local_rank()
    if index >= torch.cuda.device_count():
        whose = f"there is no {name}" if number else f"process {index} of this node has no GPU"
        raise ConfigError(f"{whose} ({torch.cuda.device_count()} visible)", "loop.device")
    return torch.device("cuda", index)


MIXED = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(where: torch.device, precision: str) -> torch.autocast:
    """Return the context of every forward pass: 16 bits if the Run's precision is bf16 or fp16."""
    return torch.autocast(where.type, dtype=MIXED.get(precision, torch.bfloat16), enabled=precision in MIXED)


def inference_autocast(where: torch.device, precision: str) -> torch.autocast:
    """Return the context of passes without gradients: `autocast`, but fp32 for fp16 on a CPU, where fp16 takes four times as long."""
    return autocast(where, "fp32" if precision == "fp16" and where.type == "cpu" else precision)


def set_precision(precision: str) -> None:
    """Set the precision of fp32 matrix products and convolutions: TF32 if the Run's precision says so, otherwise full fp32.

    torch's default is TF32 for convolutions.
    """
    # torch's newer fp32_precision flags would make reading these fail, and in some versions torch's compiler too
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def seed(where: torch.device, value: int) -> None:
    """Seed the random numbers of the CPU and of the GPU in use; ``torch.manual_seed`` spends time on every kind of device."""
    torch.default_generator.manual_seed(value)
    if where.type == "cuda":
        torch.cuda.manual_seed(value)


def is_bf16_emulated(where: torch.device, precision: str) -> bool:
    """Whether the Run's precision is bf16 and its device has none: a GPU older than Ampere, or a CPU without AVX-512 or the like."""
    if precision != "bf16":
        return False
    if where.type == "cuda":
        return torch.cuda.get_device_capability(where) < (8, 0)
    return not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def start(where: torch.device, timeout_s: float = 1800.0) -> None:
    """Join the process group that torchrun describes, if there is one."""
    if where.type == "cuda":
        torch.cuda.set_device(where)
    if world_size() == 1:
        return
    _end_with_parent()
    backend = "cpu:gloo,cuda:nccl" if where.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    traceback_with_rank = sys.excepthook  # torch's, which init_process_group has set; it prints when it returns

    def print_and_leave(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        traceback_with_rank(kind, error, trace)
        hard_exit(1)

    sys.excepthook = print_and_leave


def _end_with_parent() -> None:
    """End this process when its parent ends.

    torchrun starts each rank in a new session, which a kill of torchrun's process group does not reach. The ranks would train on
    without it.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def hard_exit(code: int) -> NoReturn:
    """End this process without shutting down an existing process group: NCCL would wait for ranks that wait for this one."""
    if not dist.is_initialized():
        sys.exit(code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def stop() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def lost_peer(error: BaseException) -> bool:
    """Whether ``error`` means that another rank has ended. gloo raises plain RuntimeErrors that name their source file."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo/transport" in str(error))


def barrier(timeout_h: float) -> Callable[[], None]:
    """Connect the ranks, and return a function that waits until all have called it, for up to ``timeout_h`` hours.

    That is longer than the process group waits: before training, one node may decode images for hours while others do not. Ranks that are
    connected notice when one of them ends, even on another node, whose torchrun does not end those of this node. If they connected only
    when they wait, they would wait for the address of a rank that has ended until the time is over.
    """
    if not dist.is_initialized():
        return lambda: None
    group: Any = dist.new_group(backend="gloo", timeout=timedelta(hours=timeout_h))  # of all ranks, so that none is left without

    def wait() -> None:
        dist.all_reduce(torch.zeros(1), group=group)
        dist.destroy_process_group(group)

    return wait


def all_sum(tensor: Tensor) -> Tensor:
    """Sum ``tensor`` over ranks, in place and without gradient."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def all_max(tensor: Tensor) -> Tensor:
    """Take the maximum of ``tensor`` over ranks, in place."""
    if dist.is_initialized():
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor


def wait_for_ranks() -> None:
    """Wait until all ranks are here, as long as the process group waits.

    To be called before ranks end with a code: when one of them has, torchrun kills the others of its node after 30 s.
    """
    all_max(torch.zeros(1))


def any_rank(*flags: bool) -> list[bool]:
    """Return for each flag whether it is true on any rank, so that all ranks act at the same step."""
    return [bool(flag) for flag in all_max(torch.tensor(flags, dtype=torch.int32)).tolist()]


def from_main(tensor: Tensor) -> Tensor:
    """Copy the main rank's values of ``tensor`` to every rank, in place."""
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
    """Return the rows of all ranks, in the order of ranks; each rank has equally many. The gradient is summed over ranks."""
    if dist.is_initialized():
        return _Gather.apply(tensor.contiguous())
    return tensor


@torch.no_grad()
def gather_rows(tensor: Tensor) -> Tensor:
    """Return the rows of all ranks, in the order of ranks and without gradient; ranks may have different numbers of rows."""
    if not dist.is_initialized():
        return tensor
    counts = gather(torch.tensor([len(tensor)], device=tensor.device)).tolist()
    padded = tensor.new_zeros(max(counts), *tensor.shape[1:])
    padded[: len(tensor)] = tensor
    return torch.cat([part[:count] for part, count in zip(gather(padded).split(max(1, max(counts))), counts, strict=True)])
