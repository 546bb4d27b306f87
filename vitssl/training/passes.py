"""A forward and a backward pass: launched kernel by kernel, or recorded as one CUDA graph.

A small network's step is more than a thousand kernels, which take a CPU several times longer to launch than a GPU to run. A graph of them
is launched at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from vitssl import config, dist
from vitssl.config import Run
from vitssl.data.loading.batch import Batch

Losses = tuple[dict[str, Tensor], dict[str, Tensor]]  # the Model's terms, raw and weighted
WARM_UP = 3  # passes before one is recorded: torch compiles in them, and libraries choose their kernels


class Pass:
    """Adds a slice's share of the loss's gradients to the parameters'; gives the terms, detached.

    Args:
        model: gives (total, terms, weighted terms).
        run: whose precision it is.
        device: of all tensors.
        scaler: of the loss.
    """

    def __init__(self, model: nn.Module, run: Run, device: torch.device, scaler: torch.amp.GradScaler):
        self._model, self._scaler, self._device, self._precision = model, scaler, device, run.loop.precision
        self._slices = config.slices(run, dist.world_size())

    def __call__(self, batch: Batch, progress: float) -> Losses:
        # tensors, not numbers: code would be recompiled for every value
        labelled = torch.full((), batch.labelled or 1.0, device=self._device)
        return self._run(replace(batch, labelled=labelled), torch.full((), progress, device=self._device))

    def _run(self, batch: Batch, progress: Tensor) -> Losses:
        with dist.autocast(self._device, self._precision):
            total, terms, weighted = self._model(batch, progress)
        self._scaler.scale(total / self._slices).backward()
        return terms, weighted


class RecordedPass(Pass):
    """A pass as a CUDA graph, whose inputs, gradients and terms stay where they were when it was recorded.

    What Python did while it was recorded is not done again: the Model changes nothing but tensors, in place, and copies nothing to or
    from the host. Random numbers are those of the generator's seed before each pass, as without a graph.
    """

    def __init__(self, model: nn.Module, run: Run, device: torch.device, scaler: torch.amp.GradScaler, parameters: Iterable[nn.Parameter]):
        super().__init__(model, run, device, scaler)
        self._parameters, self._warm_up = list(parameters), WARM_UP
        self._inputs: list[Tensor] = []

    def _run(self, batch: Batch, progress: Tensor) -> Losses:
        if self._warm_up:
            self._warm_up -= 1
            return super()._run(batch, progress)
        inputs = [*batch.tensors(), batch.labelled, progress]
        if not self._inputs:
            self._record(batch, progress)
            self._inputs = inputs
        else:
            for mine, new in zip(self._inputs, inputs, strict=True):
                mine.copy_(new)
        self._graph.replay()
        for parameter, gradient in self._gradients:
            parameter.grad = gradient  # which an objective may have dropped, and the loop did
        return self._losses

    def _record(self, batch: Batch, progress: Tensor) -> None:
        for parameter in self._parameters:
            parameter.grad = None  # so that the graph writes gradients, and adds to none
        self._graph = torch.cuda.CUDAGraph()
        # meanwhile another thread makes views, on a stream of its own
        with torch.cuda.graph(self._graph, stream=torch.cuda.Stream(self._device), capture_error_mode="thread_local"):
            self._losses = super()._run(batch, progress)
        self._gradients = [(parameter, parameter.grad) for parameter in self._parameters if parameter.grad is not None]


def make(model: nn.Module, run: Run, device: torch.device, scaler: torch.amp.GradScaler, parameters: Iterable[nn.Parameter]) -> Pass:
    """Recorded, where the Run says so and can be."""
    if device.type == "cuda" and config.recorded(run, dist.world_size()):
        return RecordedPass(model, run, device, scaler, parameters)
    return Pass(model, run, device, scaler)
