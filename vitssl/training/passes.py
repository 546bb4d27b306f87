"""The forward and backward pass of a step, launched kernel by kernel or replayed from one CUDA graph.

A step of a small network is more than a thousand kernels, which take a CPU several times longer to launch than a GPU to run. A graph
launches all of them at once.
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
WARM_UP = 3  # passes before the recording, in which torch compiles and libraries choose their kernels


class Pass:
    """The forward and backward pass of a slice: adds its share of the loss's gradients to the parameters', and returns the detached terms.

    Args:
        model: returns (total, terms, weighted terms).
        run: the Run, which sets the precision and the number of slices.
        device: of all tensors.
        scaler: of the loss.
    """

    def __init__(self, model: nn.Module, run: Run, device: torch.device, scaler: torch.amp.GradScaler):
        self._model, self._scaler, self._device, self._precision = model, scaler, device, run.loop.precision
        self._slices = config.slices(run, dist.world_size())

    def __call__(self, batch: Batch, progress: float) -> Losses:
        # tensors, since code would be recompiled for every value of a number
        labelled = torch.full((), float(batch.labelled) or 1.0, device=self._device)
        return self._run(replace(batch, labelled=labelled), torch.full((), progress, device=self._device))

    def _run(self, batch: Batch, progress: Tensor) -> Losses:
        with dist.autocast(self._device, self._precision):
            total, terms, weighted = self._model(batch, progress)
        self._scaler.scale(total / self._slices).backward()
        return terms, weighted


class RecordedPass(Pass):
    """A pass that is recorded as a CUDA graph; its inputs, gradients and terms stay at the memory addresses of the recording.

    Python code is not run again when the graph is replayed. Therefore the Model may change nothing but tensors, in place, and copy nothing
    to or from the host. Random numbers depend on the generator's seed before each pass, as without a graph.
    """

    def __init__(self, model: nn.Module, run: Run, device: torch.device, scaler: torch.amp.GradScaler, parameters: Iterable[nn.Parameter]):
        super().__init__(model, run, device, scaler)
        self._parameters, self._warm_up = list(parameters), WARM_UP
        self._inputs: list[Tensor] = []

    def _run(self, batch: Batch, progress: Tensor) -> Losses:
        if self._warm_up:
            self._warm_up -= 1
            return super()._run(batch, progress)
        assert isinstance(batch.labelled, Tensor)  # as `__call__` gives it
        inputs = [*batch.tensors(), batch.labelled, progress]
        if not self._inputs:
            self._record(batch, progress)
            self._inputs = inputs
        else:
            for recorded, current in zip(self._inputs, inputs, strict=True):
                recorded.copy_(current)
        self._graph.replay()
        for parameter, gradient in self._gradients:
            parameter.grad = gradient  # the loop has dropped it, and an objective may have
        return self._losses

    def _record(self, batch: Batch, progress: Tensor) -> None:
        for parameter in self._parameters:
            parameter.grad = None  # so that the graph writes gradients instead of adding to them
        self._graph = torch.cuda.CUDAGraph()
        # thread_local, since another thread makes views meanwhile, on its own stream
        with torch.cuda.graph(self._graph, stream=torch.cuda.Stream(self._device), capture_error_mode="thread_local"):
            self._losses = super()._run(batch, progress)
        self._gradients = [(parameter, parameter.grad) for parameter in self._parameters if parameter.grad is not None]


def make(model: nn.Module, run: Run, device: torch.device, scaler: torch.amp.GradScaler, parameters: Iterable[nn.Parameter]) -> Pass:
    """Return a recorded pass if the Run asks for it and it is possible, otherwise a plain one."""
    if device.type == "cuda" and config.uses_cuda_graph(run, dist.world_size()):
        return RecordedPass(model, run, device, scaler, parameters)
    return Pass(model, run, device, scaler)
