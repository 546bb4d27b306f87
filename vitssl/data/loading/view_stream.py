"""Views made ahead of the step that trains on them, by a thread on a CUDA stream of its own.

RandAugment of a batch is about two hundred small kernels, which a CPU needs longer to launch than a GPU to run: beside an H100, 11 ms for
64 images of 224 px and 14 ms for 256. The launches of the training step come on top, since Python runs one thread at a time. Therefore
the views of several small batches are made together.
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
AHEAD = 1  # groups of slices that wait, besides the one being made and the one being trained on


def slice_groups(slices: Iterable[T], size: int, first: int) -> Iterator[list[T]]:
    """Yield groups of ``size`` slices, cut before the multiples of ``size``; the first slice has the number ``first``.

    So, from its second group on, a resumed run makes the same groups as a run that was never stopped.
    """
    slices, count = iter(slices), size - first % size
    while group := list(islice(slices, count)):
        yield group
        count = size


def on_own_stream(made: Generator[list[Batch], None, None], device: torch.device) -> Generator[Batch, None, None]:
    """Yield the slices of all groups, on a GPU made ahead, and keep no reference to them. Closing the generator ends the thread."""
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
                    tensor.record_stream(stream)  # otherwise its memory could be reused while this stream still reads it
            del batch
            while group:
                yield group.pop(0)


def _on_stream(
    made: Generator[list[Batch], None, None], device: torch.device
) -> Generator[tuple[list[Batch], torch.cuda.Event], None, None]:
    """Yield each group with the event that says that it is made, on a stream of its own."""
    torch.cuda.set_device(device)  # a new thread starts on GPU 0
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.default_stream(device))  # the inputs of the views were put on the default stream
    with contextlib.closing(made), torch.cuda.stream(stream):
        for group in made:
            yield group, stream.record_event()
