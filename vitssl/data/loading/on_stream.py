"""Views made ahead of the step that trains on them, by a thread on a stream of its own.

RandAugment of a batch is some two hundred small kernels, which a CPU needs longer to launch than a GPU to run: beside an H100, 11 ms for 64
images of 224 px and 14 ms for 256. What the training step launches comes on top, since Python runs one thread at a time. Therefore views of
several small batches are made together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import TypeVar

import torch

from vitssl.data.loading.batch import Batch
from vitssl.data.loading.prefetch import prefetch

T = TypeVar("T")
AHEAD = 1  # groups of slices that wait, besides the one that is being made and the one that is trained on


def groups(slices: Iterable[T], size: int, first: int) -> Iterator[list[T]]:
    """``size`` slices at a time, of which the first has the number ``first``: cut before the multiples of ``size``.

    So a resumed run makes, from its second group on, what one makes that was never stopped.
    """
    slices, wanted = iter(slices), size - first % size
    while group := list(islice(slices, wanted)):
        yield group
        wanted = size


def on_own_stream(made: Generator[list[Batch], None, None], device: torch.device) -> Generator[Batch, None, None]:
    """The slices of all groups, on a GPU made ahead, and held no longer; closing the generator ends the thread."""
    if device.type != "cuda":
        for group in made:
            while group:
                yield group.pop(0)
        return
    with contextlib.closing(prefetch(_on_stream(made, device), AHEAD)) as ahead:
        for group, ready in ahead:
            stream = torch.cuda.current_stream(device)
            stream.wait_event(ready)
            for batch in group:
                for tensor in batch.tensors():
                    tensor.record_stream(stream)  # else its memory could be given out while this stream still reads it
            del batch
            while group:
                yield group.pop(0)


def _on_stream(
    made: Generator[list[Batch], None, None], device: torch.device
) -> Generator[tuple[list[Batch], torch.cuda.Event], None, None]:
    torch.cuda.set_device(device)  # a new thread starts on GPU 0
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.default_stream(device))  # what the views are made with was put there
    with contextlib.closing(made), torch.cuda.stream(stream):
        for group in made:
            yield group, stream.record_event()
