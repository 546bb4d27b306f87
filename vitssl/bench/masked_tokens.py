"""Comparisons of masked tokens with the same network without them, and of SiT's corruption with a training step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from vitssl import backbones
from vitssl.backbones.base import Features
from vitssl.bench.base import Bench, Comparison
from vitssl.bench.steps import SCRATCH, TrainingStep, two_steps, vit_run
from vitssl.config.objectives.sit import SitConfig
from vitssl.objectives.inpainting import corrupt

LEARNED = {"backbone.positions": "learned"}
DINO = {
    **LEARNED, "backbone.name": "vit_small", "objectives.dino": {},
    "data.views": {"second": {}, "local": {"count": 8, "size": 96}},
}  # fmt: skip
MT_DINO = {"objectives.masked_tokens": {"second": "second"}, "backbone.masked_tokens": {"count": 4, "blocks": 4}}
VALIDATION_IMAGES = 50_000  # in ImageNet-1K


def mt_dino_step(bench: Bench) -> Comparison:
    """Compare a step of MT-DINO with one of DINO."""
    runs = (vit_run(DINO, layer) for layer in (MT_DINO, {}))
    what = "MT-DINO step (4 masked tokens, both regularisers) / DINO step, ViT-S/16, 2 x 224 and 8 x 96 px"
    return two_steps(bench, runs, what, on_cpu=4)


def mt_inference(bench: Bench, count: int, paper_s: int) -> Comparison:
    """Compare inference with masked tokens and without, on the same images."""
    size, times = (256, 10) if bench.on_gpu else (32, 1)
    images = torch.randn(size, 3, 224, 224, device=bench.device)

    def forward(**masked: object) -> Callable[[], Features]:
        run = vit_run(LEARNED, {"backbone": {"name": "vit_small", **masked}})
        network = backbones.build(run.backbone, 224).to(bench.device).eval()
        return torch.inference_mode()(lambda: network(network.embed(images)))

    masked, plain = forward(masked_tokens={"count": count, "blocks": 4}), forward()
    figures = bench.compare_seconds(masked, plain, "", times)
    more_s = (figures.ours - figures.rival) / size * VALIDATION_IMAGES
    note = f"inference of ViT-S/16 with {count} masked tokens / without, 224 px, fp32, batch {size}"
    return dataclasses.replace(figures, note=f"{note}; {more_s:+.1f} s for 50,000 images (paper: +{paper_s} s on A100s)")


def sit_corruption(bench: Bench) -> Comparison:
    """Compare SiT's corruption with a training step on as many images; on a CPU, this step of 32 images is eight steps of 4."""
    parts = 1 if bench.on_gpu else 8
    step = TrainingStep(bench, vit_run(LEARNED, SCRATCH, {"backbone.name": "vit_base"}), 32 // parts)
    images = torch.randn(32, 3, 224, 224, device=bench.device)
    note = "SiT's corruption of 32 views of 224 px / a classification step of ViT-B/16 on as many"
    return bench.compare("s", lambda: bench.seconds(lambda: corrupt(images, 16, SitConfig()), 3), lambda: parts * bench.seconds(step), note)
