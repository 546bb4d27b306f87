"""Views made ahead of the step that trains on them, by a thread on a stream of its own.

RandAugment of a batch is some hundred small kernels, which a CPU needs longer to launch than a GPU to run; meanwhile the training step's
own thread mostly waits in calls that let other threads run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator

import torch

from vitssl.data.batch import Batch
from vitssl.data.prefetch import prefetch

STEPS = 1  # ahead, besides the one that is being made


def on_own_stream(steps: Generator[list[Batch], None, None], device: torch.device) -> Generator[list[Batch], None, None]:
    """The same slices of each step, on a GPU made ahead; closing the generator ends the thread."""
    if device.type != "cuda":
        yield from steps
        return
    with contextlib.closing(prefetch(_made(steps, device), STEPS)) as made:
        for slices, ready in made:
            stream = torch.cuda.current_stream(device)
            stream.wait_event(ready)
            for batch in slices:
                for tensor in _tensors(batch):
                    tensor.record_stream(stream)  # else its memory could be given out while this stream still reads it
            yield slices


def _made(steps: Generator[list[Batch], None, None], device: torch.device) -> Generator[tuple[list[Batch], torch.cuda.Event], None, None]:
    torch.cuda.set_device(device)  # a new thread starts on GPU 0
    with contextlib.closing(steps), torch.cuda.stream(torch.cuda.Stream(device)):
        for slices in steps:
            yield slices, torch.cuda.current_stream(device).record_event()


def _tensors(batch: Batch) -> Iterator[torch.Tensor]:
    yield from batch.views.values()
    yield from batch.targets.values()
    yield batch.index_B
