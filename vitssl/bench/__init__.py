"""Speed on this machine, as ratios: each comparison times our code and a rival in turn, in one process, and takes medians."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch

from vitssl import dist
from vitssl.bench import data, masked_tokens, sizes, steps, streaming
from vitssl.bench.base import Bench, Comparison
from vitssl.config import ConfigError
from vitssl.data.sources.opening import open_source
from vitssl.training import memory

STREAMED: dict[str, Any] = {"cache_gb": 0.0, "workers": 0}
COMPARISONS: dict[str, Callable[[Bench], Comparison]] = {
    "ssat_step": steps.ssat_step,
    "drloc_step_vit": partial(steps.drloc_step, backbone="vit_small", pooling="2x2"),
    "drloc_step_swin": partial(steps.drloc_step, backbone="swin_tiny", pooling="none"),
    "timm_step": steps.timm_step,
    **{f"timm_{size}": partial(sizes.beside_timm, name=size) for size in sizes.SIZES},
    **{f"compile_{method}_{size}": partial(sizes.compiled, name=size, method=method) for size in sizes.SIZES for method in sizes.METHODS},
    "gmml_step": steps.gmml_step,
    "gmml_corruption": steps.gmml_corruption,
    "lut_step": partial(steps.lut_step, symmetric=True),
    "lut_step_text": partial(steps.lut_step, symmetric=False),
    "mt_dino_step": masked_tokens.mt_dino_step,
    "mt_inference_4": partial(masked_tokens.mt_inference, count=4, paper_s=1),
    "mt_inference_28": partial(masked_tokens.mt_inference, count=28, paper_s=5),
    "sit_corruption": masked_tokens.sit_corruption,
    "loader": data.loader,
    "loader_webdataset": streaming.against_webdataset,
    "stream_webdataset": partial(streaming.against_webdataset, **STREAMED),
    "stream_image_folder": partial(streaming.against_image_folder, **STREAMED),
    "views": data.views,
    "views_randaugment": data.views_randaugment,
    "views_bicubic": data.views_bicubic,
    "end_to_end": partial(data.end_to_end, network="vit_small", method="scratch", batch_size=256, view={}, steps=40),
    "end_to_end_small": partial(data.end_to_end, network="vit_tiny", method="ssat", batch_size=64, view=data.RAND_AUGMENT, steps=200),
}
NEED_GPU = {"end_to_end", "end_to_end_small", *(name for name in COMPARISONS if name.startswith(("timm_vit", "compile_")))}


def run(images: Path | None, only: list[str], repeats: int) -> dict[str, Any]:
    """Make the comparisons named in ``only``; if it is empty, all that this machine can make.

    Raises:
        ConfigError: a name is unknown, or the folder does not hold train/<class>/<image>.
    """
    if images:
        open_source(f"folder:{images}")  # fails now, rather than after minutes of steps
    known = COMPARISONS if torch.cuda.is_available() else {k: v for k, v in COMPARISONS.items() if k not in NEED_GPU}
    for name in only:
        if name not in known:
            raise ConfigError(f"{name} is not one of {', '.join(known)} (on this machine)", "--only")
    device = dist.device("auto")
    threads = torch.get_num_threads()
    if device.type == "cpu":
        memory.keep_freed()  # as training does
    with tempfile.TemporaryDirectory() as scratch:
        root = images or data.digits_as_jpeg(Path(scratch) / "images")
        comparisons = []
        for name in only or known:
            print(f"measuring {name} ...", file=sys.stderr, flush=True)
            comparison = known[name](Bench(root, Path(scratch), device, repeats))
            comparisons.append({"name": name} | asdict(comparison))
            torch.set_num_threads(threads)
    device_name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {threads} threads"
    return {"device": device_name, "torch": torch.__version__, "timm": timm.__version__, "comparisons": comparisons}


def table(figures: dict[str, Any]) -> str:
    """Return the figures of `run` as lines of text."""
    lines = [f"{figures['device']}, torch {figures['torch']}, timm {figures['timm']}; medians of rounds in turn"]
    width = max(map(len, ["comparison", *(c["name"] for c in figures["comparisons"])])) + 1
    lines.append(f"{'comparison':{width}}{'ours':>12}{'rival':>12}  {'unit':10}{'ours/rival':>11}  what")
    for c in figures["comparisons"]:
        lines.append(f"{c['name']:{width}}{c['ours']:12.4g}{c['rival']:12.4g}  {c['unit']:10}{c['ratio']:11.3f}  {c['note']}")
    return "\n".join(lines)
