"""Views made ahead of the step that trains on them, by a thread on a stream of its own.

RandAugment of a batch is some hundred small kernels, which a CPU needs longer to launch than a GPU to run; meanwhile the training step's
own thread mostly waits in calls that let other threads run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import torch

from vitssl.data.batch import Batch
from vitssl.data.prefetch import prefetch

AHEAD = 1  # slices that wait, besides the one that is being made and the one that is trained on


def on_own_stream(slices: Generator[Batch, None, None], device: torch.device) -> Generator[Batch, None, None]:
    """The same slices, on a GPU made ahead; closing the generator ends the thread."""
    if device.type != "cuda":
        yield from slices
        return
    with contextlib.closing(prefetch(_made(slices, device), AHEAD)) as made:
        for batch, ready in made:
            stream = torch.cuda.current_stream(device)
            stream.wait_event(ready)
            for tensor in (*batch.views.values(), *batch.targets.values(), batch.index_B):
                tensor.record_stream(stream)  # else its memory could be given out while this stream still reads it
            yield batch
            del batch  # so that no more are alive than is said above


def _made(slices: Generator[Batch, None, None], device: torch.device) -> Generator[tuple[Batch, torch.cuda.Event], None, None]:
    torch.cuda.set_device(device)  # a new thread starts on GPU 0
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.default_stream(device))  # what the views are made with was put there
    with contextlib.closing(slices), torch.cuda.stream(stream):
        for batch in slices:
            yield batch, stream.record_event()
            del batch
