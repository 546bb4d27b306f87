"""Batch norm over ranks is one process's batch norm over the whole batch."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from tests.ranks import free_port, spawn
from vitssl import dist
from vitssl.backbones import norms
from vitssl.config import ConfigError

SHARES = (5, 3)  # images of each rank: unequal, so that weighting by the count shows
KINDS = {1: (nn.BatchNorm1d, norms.BatchNorm1d, (8, 6)), 2: (nn.BatchNorm2d, norms.BatchNorm2d, (8, 6, 4, 3))}


def values(dims: int) -> Tensor:
    """Channels of several scales, off zero."""
    generator = torch.Generator().manual_seed(dims)
    shape = KINDS[dims][2]
    return torch.randn(shape, generator=generator) * torch.logspace(-1, 1, 6).view(1, 6, *[1] * (dims - 1) * 2) + 3


def trained(norm: nn.Module, batches: list[Tensor]) -> dict[str, Tensor]:
    """Outputs, gradients and statistics after some training steps on a loss that is a sum over images."""
    with torch.no_grad():
        for i, parameter in enumerate(norm.parameters()):
            parameter.copy_(torch.linspace(-1.0, 2.0, 6) + i)
    inputs = [batch.clone().requires_grad_() for batch in batches]
    outputs = [norm(batch) for batch in inputs]
    sum((output.sin() + 1).pow(3).sum() for output in outputs).backward()
    found = {f"output{i}": output.detach() for i, output in enumerate(outputs)}
    found |= {f"input{i}.grad": batch.grad for i, batch in enumerate(inputs)}
    found |= {f"{name}.grad": parameter.grad for name, parameter in norm.named_parameters()}
    return found | norm.state_dict()


def _rank(rank: int, port: int, folder: Path) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    torch.set_num_threads(1)
    dist.start(torch.device("cpu"))
    found = {}
    for dims, (_, ours, _) in KINDS.items():
        own = values(dims).split(SHARES)[rank]
        found[dims, "plain"] = trained(ours(6), [own, 2 * own])
        if dims == 2:
            found[dims, "compiled"] = trained(torch.compile(ours(6), backend="aot_eager", fullgraph=True), [own, 2 * own])
        found[dims, "no affine"] = trained(ours(6, affine=False), [own])
        with torch.autocast("cpu", torch.bfloat16):
            found[dims, "bf16"] = trained(ours(6), [own.bfloat16()])
        per_gpu = ours(6)
        norms.set_over_ranks(per_gpu, False)
        found[dims, "per_gpu"] = trained(per_gpu, [own])
        frozen = ours(6)
        with norms.frozen_statistics(frozen):
            found[dims, "frozen"] = trained(frozen, [own])
    torch.save(found, folder / f"{rank}.pt")
    dist.stop()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("ranks")
    spawn(_rank, free_port(), folder)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def whole(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """What both ranks found as one process would: images side by side, parameters' gradients added, statistics alike."""
    found = {}
    for name in parts[0]:
        pair = [part[name] for part in parts]
        if name.startswith(("output", "input")):
            found[name] = torch.cat(pair)
        elif name.endswith(".grad"):
            found[name] = sum(pair)
        else:
            assert torch.equal(*pair), f"{name} differs between ranks"
            found[name] = pair[0]
    return {name.removeprefix("_orig_mod."): value for name, value in found.items()}


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], **tolerances: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=lambda text, name=name: f"{name}: {text}", **tolerances)


@pytest.mark.parametrize(("dims", "how"), [(1, "plain"), (2, "plain"), (2, "compiled")])
def test_two_ranks_equal_torchs_norm_of_the_whole_batch(two_ranks, dims, how):
    torchs = KINDS[dims][0](6).double()
    expected = trained(torchs, [values(dims).double(), 2 * values(dims).double()])
    found = {
        name: value.double() if value.is_floating_point() else value for name, value in whole([r[dims, how] for r in two_ranks]).items()
    }
    assert_close(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dims", KINDS)
def test_two_ranks_without_parameters(two_ranks, dims):
    expected = trained(KINDS[dims][0](6, affine=False), [values(dims)])
    assert_close(whole([r[dims, "no affine"] for r in two_ranks]), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dims", KINDS)
def test_bf16_values_have_float32_statistics(two_ranks, dims):
    found = whole([r[dims, "bf16"] for r in two_ranks])
    assert found["output0"].dtype == torch.bfloat16
    rounded = values(dims).bfloat16().float()
    expected = trained(KINDS[dims][0](6), [rounded])
    for name in ("running_mean", "running_var"):
        assert found[name].dtype == torch.float32
        torch.testing.assert_close(found[name], expected[name])
    torch.testing.assert_close(found["output0"].float(), expected["output0"], rtol=2**-8, atol=1e-3)


@pytest.mark.parametrize("dims", KINDS)
def test_frozen_statistics_normalise_by_the_batch_and_forget_it(two_ranks, dims):
    torchs, ours, _ = KINDS[dims]
    expected, untouched = trained(torchs(6), [values(dims)]), torchs(6).state_dict()
    expected |= {name: untouched[name] for name in ("running_mean", "running_var", "num_batches_tracked")}
    alone = ours(6)
    with norms.frozen_statistics(alone):
        assert_close(trained(alone, [values(dims)]), expected)
    assert_close(whole([r[dims, "frozen"] for r in two_ranks]), expected, rtol=1e-4, atol=1e-3)
    alone(values(dims))
    assert alone.num_batches_tracked == 1, "the statistics stay frozen after the pass"


@pytest.mark.parametrize("dims", KINDS)
def test_per_gpu_each_rank_normalises_by_its_images_and_all_keep_the_mean_of_the_statistics(two_ranks, dims):
    expected = [trained(KINDS[dims][0](6), [own]) for own in values(dims).split(SHARES)]
    for rank in range(2):
        found = two_ranks[rank][dims, "per_gpu"]
        running = {name for name in found if name.startswith("running")}
        assert_close({n: found[n] for n in found.keys() - running}, {n: expected[rank][n] for n in found.keys() - running})
        assert_close({n: found[n] for n in running}, {n: (expected[0][n] + expected[1][n]) / 2 for n in running})


def test_one_value_per_channel_is_one_line():
    for norm, single in ((norms.BatchNorm1d(6), torch.randn(1, 6)), (norms.BatchNorm2d(6), torch.randn(1, 6, 1, 1))):
        with pytest.raises(ConfigError, match=r"^optim\.batch_size: .*one value per channel.*loop\.micro_batch_size"):
            norm(single)
        norm.eval()(single)


CUDA = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")])
WRONG = pytest.mark.xfail(strict=True, reason="torch's backward pass on a CPU; once it is right, BatchNorm2d need not refuse such maps")


@pytest.mark.parametrize("device", [pytest.param("cpu", marks=WRONG), CUDA])
def test_torchs_gradient_of_a_map_of_width_1(device):
    """The smallest case, which the module describes."""
    tokens_BMD, weights_BMD = (torch.randn(2, 3, 4, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2))
    rows = F.batch_norm(tokens_BMD.flatten(0, 1), None, None, training=True)
    (expected,) = torch.autograd.grad(rows, tokens_BMD, weights_BMD.flatten(0, 1))
    normed = F.batch_norm(tokens_BMD.transpose(1, 2)[..., None], None, None, training=True)
    (found,) = torch.autograd.grad(normed, tokens_BMD, weights_BMD.transpose(1, 2).contiguous()[..., None])
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("width_first", [False, True])
def test_a_map_of_width_1_is_refused(width_first):
    """torch's gradient of it is wrong on a CPU for some strides, of the map or of the gradient; the module has the smallest case."""
    tokens_BMD = torch.randn(2, 3, 4)
    map_BDM1 = tokens_BMD.transpose(1, 2)[..., None]
    if width_first:
        assert norms.BatchNorm2d(4)(map_BDM1.transpose(2, 3)).shape == (2, 4, 1, 3)  # height 1: right in all layouts
    else:
        with pytest.raises(AssertionError, match="normalise a matrix"):
            norms.BatchNorm2d(4)(map_BDM1)


@pytest.mark.parametrize("side", [1, 3])
@pytest.mark.parametrize("layouts", list(itertools.product(("first", "last"), repeat=2)))
def test_the_gradient_is_that_of_the_plain_formula_whatever_the_layouts(side, layouts):
    """Of the map, and of the gradient that comes back."""
    memory = {"first": torch.contiguous_format, "last": torch.channels_last}
    values, gradient = (torch.randn(2, 4, side, side, dtype=torch.float64).contiguous(memory_format=memory[name]) for name in layouts)
    values.requires_grad_()
    centred = values - values.mean((0, 2, 3), keepdim=True)
    plain = centred / (values.var((0, 2, 3), correction=0, keepdim=True) + 1e-5).sqrt()
    (expected,) = torch.autograd.grad(plain, values, gradient)
    for norm, shape in ((norms.BatchNorm2d(4), None), (norms.BatchNorm1d(4), (-1, 4))):
        tokens = values if shape is None else values.permute(0, 2, 3, 1).reshape(shape)
        normed = norm.double()(tokens)
        if shape is not None:
            normed = normed.view(2, side, side, 4).permute(0, 3, 1, 2)
        torch.testing.assert_close(torch.autograd.grad(normed, values, gradient)[0], expected)


@pytest.mark.parametrize("dims", KINDS)
def test_one_process_equals_torch_to_the_bit(dims):
    torchs, ours, _ = KINDS[dims]
    twins = torchs(6), ours(6)
    first, second = (trained(norm, [values(dims), 2 * values(dims)]) for norm in twins)
    assert_close(second, first, rtol=0, atol=0)
    left, right = (norm.eval()(values(dims)) for norm in twins)
    assert torch.equal(left, right)


def test_freezing_compiles_to_one_graph():
    net = nn.Sequential(nn.Conv2d(3, 6, 1), norms.BatchNorm2d(6))

    def step(images: Tensor) -> Tensor:
        with norms.frozen_statistics(net):
            masked = net(images * 0.5)
        return masked.sum() + net(images).sum()

    counter = CompileCounter()
    compiled = torch.compile(step, backend=counter, fullgraph=True)
    for _ in range(3):
        compiled(torch.randn(2, 3, 4, 4))
    assert (counter.frame_count, int(net[1].num_batches_tracked)) == (1, 3)
