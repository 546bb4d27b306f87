"""Training steps of ViT-T, S and B as a GPU trains them: in bf16, compiled or not, beside timm's, and as a share of the device's peak."""

from __future__ import annotations

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitssl.bench.base import Bench, Comparison
from vitssl.bench.steps import SCRATCH, SSAT, TrainingStep, vit_run
from vitssl.costs import cost
from vitssl.data.loading.batch import Batch
from vitssl.training import optim, passes, train_state

METHODS = {"scratch": SCRATCH, "ssat": SSAT}
SIZES = {"vit_tiny": "ViT-T/16", "vit_small": "ViT-S/16", "vit_base": "ViT-B/16"}
STEPS = 10  # in a round
BATCH = 256


def training_step(bench: Bench, name: str, method: str, compiled: bool, batch_size: int = BATCH, num_classes: int = 10) -> TrainingStep:
    """Return the step of training a network in bf16 by one of ``METHODS``."""
    fields = {"backbone": {"name": name, "positions": "learned"}, "loop": {"precision": "bf16", "compile": compiled}}
    if compiled:
        torch.compiler.reset()  # torch keeps eight compiled forms of a function, and runs further ones uncompiled
    return TrainingStep(bench, vit_run(METHODS[method], fields), batch_size, num_classes)


def compiled(bench: Bench, name: str, method: str, batch_size: int = BATCH) -> Comparison:
    """Compare a compiled step with the same step uncompiled, in images per second; the note has the MFU of both."""
    if bench.on_gpu:
        torch.cuda.reset_peak_memory_stats(bench.device)
    steps = [training_step(bench, name, method, is_compiled, batch_size) for is_compiled in (True, False)]
    ours, rival = (lambda step=step: batch_size / bench.seconds(step, STEPS) for step in steps)
    comparison = bench.compare("images/s", ours, rival, "")
    image_flops = 2 * cost.measure(steps[0].run, 10)["macs_train_step"]
    shares = [f"{image_flops * speed / peak_flops_s(bench):.1%}" for speed in (comparison.ours, comparison.rival)]
    comparison.note = (
        f"{SIZES.get(name, name)} {method} at 224 px, bf16, batch {batch_size}, compiled / not; MFU {' / '.join(shares)} of this device's "
        f"best matrix product{_memory(bench)}"
    )
    return comparison


def beside_timm(bench: Bench, name: str, batch_size: int = BATCH) -> Comparison:
    """Compare our step of training from scratch with one of plain timm, both compiled in the same way."""
    ours = training_step(bench, name, "scratch", compiled=True, batch_size=batch_size)
    network = timm.create_model(f"{name}_patch16_224" if name in SIZES else "test_vit", num_classes=10, img_size=224)
    network = _Classifier(network).to(bench.device).train()
    scaler = optim.loss_scaler(bench.device, ours.run.loop.precision)
    run_pass = passes.make(train_state.compiled(network, ours.run), ours.run, bench.device, scaler, network.parameters())
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)

    def step() -> None:
        run_pass(ours.batch, 0.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    note = f"our {SIZES.get(name, name)} training step / plain timm's at 224 px, bf16, both compiled, batch {batch_size}"
    return bench.compare_seconds(ours, step, note, STEPS)


class _Classifier(nn.Module):
    """A network of timm's with the interface of our Model, trained with cross-entropy."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, batch: Batch, progress: Tensor) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        return F.cross_entropy(self.network(batch.views["main"]), batch.targets["main"]), {}, {}


def peak_flops_s(bench: Bench) -> float:
    """Return the FLOP/s that this device reaches in a large bf16 matrix product, so that MFU needs no table of GPUs' peak figures."""
    size = 8192 if bench.on_gpu else 256
    a_HW = torch.randn(size, size, device=bench.device, dtype=torch.bfloat16)
    multiply = lambda: a_HW @ a_HW  # noqa: E731
    bench.seconds(multiply, 5)
    return 2 * size**3 / min(bench.seconds(multiply, 20) for _ in range(3))


def _memory(bench: Bench) -> str:
    return f"; at most {torch.cuda.max_memory_allocated(bench.device) / 2**30:.1f} GiB" if bench.on_gpu else ""
