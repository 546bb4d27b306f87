"""Multiply-adds and activations of a network, from shapes alone: nothing is computed, and no weights are drawn.

fvcore's rules are applied to every operator as it is dispatched: a multiply-add counts once, as in the papers' "GFLOPs", and a LayerNorm
counts 5 per element. fvcore's own analyses trace a network, drawing its weights and computing its sums, which takes seconds each. With
`shapes_only` a network is built and run in a fraction of a second. So is its backward pass, in which matrix products and convolutions
count.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # fvcore's last release still calls torch.jit.script
    from fvcore.nn import jit_handles as fvcore

aten = torch.ops.aten
# dispatched operator -> fvcore's rule
RULES: dict[Any, Callable[[list[Any], list[Any]], Any]] = {
    aten.addmm: fvcore.addmm_flop_jit,
    aten.mm: fvcore.matmul_flop_jit,
    aten.bmm: fvcore.bmm_flop_jit,
    aten.convolution: lambda inputs, outputs: fvcore.conv_flop_count(*_shapes(*inputs[:2], *outputs), transposed=inputs[6].value),
    aten.native_layer_norm: fvcore.norm_flop_counter(2),
    aten.native_group_norm: fvcore.norm_flop_counter(1),
    aten.native_batch_norm: fvcore.batchnorm_flop_jit,
    aten.upsample_bilinear2d: fvcore.elementwise_flop_counter(0, 4),
    aten.upsample_nearest2d: fvcore.elementwise_flop_counter(0, 1),
    aten.grid_sampler_2d: fvcore.elementwise_flop_counter(0, 4),
    aten._adaptive_avg_pool2d: fvcore.elementwise_flop_counter(1, 0),
}
RULES[aten.convolution_backward] = lambda inputs, outputs: _convolution_backward([value.value for value in inputs])
# operators whose outputs count as activations: matrix products and convolutions
PRODUCTS = {aten.addmm, aten.mm, aten.bmm, aten.convolution}


def _layer_norm(x: Tensor, normalised: list[int], *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    statistics = x.new_empty([*x.shape[: -len(normalised)], *[1] * len(normalised)])
    return torch.empty_like(x), statistics, statistics


def _layer_norm_backward(
    grad: Tensor, x: Tensor, shape: list[int], mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None, asked_for: list[bool]
) -> tuple[Tensor | None, ...]:
    return tuple(
        torch.empty_like(tensor) if is_asked and tensor is not None else None
        for tensor, is_asked in zip((x, weight, bias), asked_for, strict=True)
    )


# empty results of operators whose shapes torch would find in Python, in a millisecond each, which took most of the time of counting
QUICKLY: dict[Any, Callable[..., Any]] = {
    aten.addmm.default: lambda bias, a, b, **_: a.new_empty((a.shape[0], b.shape[1])),
    aten.gelu.default: lambda x, **_: torch.empty_like(x),
    aten.gelu_backward.default: lambda grad, x, **_: torch.empty_like(x),
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
}


@contextmanager
def shapes_only() -> Iterator[None]:
    """Context in which new tensors have a shape and no numbers, so that networks are built and run without memory or computation."""
    with torch.device("meta"), _NothingInPlace():
        yield


class _NothingInPlace(TorchDispatchMode):
    """A mode that skips operators which only change numbers, such as drawing initial weights."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        in_place = func._schema.name.endswith("_") and isinstance(args[0], Tensor) and args[0].is_meta
        keeps_shape = torch.Tag.inplace_view not in func.tags  # `t_` changes it
        if in_place and keeps_shape:
            return args[0]
        return QUICKLY.get(func, func)(*args, **(kwargs or {}))


@dataclass
class _Value:
    """An operator's argument or result, with the methods by which fvcore's rules read its shape or constant."""

    value: Any

    def isCompleteTensor(self) -> bool:
        return isinstance(self.value, Tensor)

    def type(self) -> _Value:
        return self

    def sizes(self) -> list[int]:
        return list(self.value.shape)

    def toIValue(self) -> Any:
        return self.value


def _shapes(*values: _Value) -> list[list[int]]:
    return [value.sizes() for value in values]


def _convolution_backward(inputs: list[Any]) -> int:
    """Return the multiply-adds of a convolution's backward pass, for which fvcore has no rule.

    The gradients of the input and of the weights cost as many as the forward pass each, if they are asked for.
    """
    grad, images, weight, *_, transposed, _, _, asked_for = inputs
    forward = fvcore.conv_flop_count(list(images.shape), list(weight.shape), list(grad.shape), transposed)
    return forward * sum(asked_for[:2])


@dataclass
class _Operation:
    """An operator that was dispatched, and what it counts."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    macs: int
    activations: int


class Counter(TorchDispatchMode):
    """Context that records the multiply-adds and activations of the operators that are dispatched in it."""

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[_Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs, outputs = (_tensors(values) for values in ((args, kwargs), result))
        macs = activations = 0
        if (operator := func.overloadpacket) in RULES:
            macs = int(RULES[operator]([_Value(arg) for arg in args], [_Value(outputs[0])]))
            activations = prod(outputs[0].shape) if operator in PRODUCTS else 0
        elif operator in flop_registry:  # torch's own list of operators that multiply
            raise NotImplementedError(f"no rule for {operator}, which would count as nothing: add one to RULES in vitssl/costs/macs.py")
        self._operations.append(_Operation(inputs, outputs, macs, activations))
        return result

    @property
    def macs(self) -> int:
        """The multiply-adds of all operators."""
        return sum(operation.macs for operation in self._operations)

    def total(self, result: Tensor) -> tuple[int, int]:
        """Return the multiply-adds and activations of the operators that ``result`` depends on; all others are left out."""
        needed, macs, activations = {id(result)}, 0, 0
        for operation in reversed(self._operations):
            if needed.intersection(map(id, operation.outputs)):
                needed.update(map(id, operation.inputs))
                macs, activations = macs + operation.macs, activations + operation.activations
        return macs, activations


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
