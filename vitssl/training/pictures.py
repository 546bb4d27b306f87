"""Small PNG files in the run folder: the views of the first batch, and what the objectives reconstruct.

Neither changes a random draw of training: views are recorded as they pass by, and reconstructions are made after the last step.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitssl import config, dist
from vitssl.atomic import write_atomically
from vitssl.config import Run
from vitssl.data.index import Index
from vitssl.data.loading.batch import Batch
from vitssl.data.loading.loader import EvalLoader
from vitssl.evaluators.base import evaluation_mode
from vitssl.model import Model
from vitssl.objectives.base import Objective
from vitssl.views import EvalView

COUNT, MOST_PX, GAP_PX = 8, 96, 1  # images in a strip; longest side, to which larger images are shrunk; pixels between images

Statistics = tuple[list[float], list[float]]  # mean and standard deviation of the channels, in [0, 1] units


def record_views(folder: Path, batch: Batch, statistics: Statistics) -> None:
    """Write ``views-NAME.png`` for each view: the first images of ``batch`` as the network sees them. Existing files stay."""
    for name, view_BCHW in batch.views.items():
        if not (path := folder / f"views-{name}.png").exists():
            _write(path, [view_BCHW[:COUNT]], statistics)


def record_reconstructions(folder: Path, run: Run, network: Model, index: Index, positions: np.ndarray, statistics: Statistics) -> None:
    """Write ``reconstructions-NAME.png`` for every objective that reconstructs images.

    Its rows are what the objective sees of eight images, what it reconstructs, and the images themselves. They are spread evenly over
    ``positions``, the test images; without any, no file is written.
    """
    if not len(positions):
        return
    chosen, device = positions[np.linspace(0, len(positions) - 1, COUNT).astype(int)], next(network.parameters()).device
    raw = None
    for name, cfg in config.active(run.objectives).items():
        objective = network.objectives[name]
        if not objective.reconstructs:
            continue
        if raw is None:
            (raw,) = EvalLoader(index, chosen, index.label, run.data, batch_size=COUNT, device=device)
        view = EvalView(config.view_px(run.data, cfg.view), run.data.eval_crop, *statistics, device)
        batch = view(raw)
        batch.views = {cfg.view: batch.views.pop("main")}
        _write(folder / f"reconstructions-{name}.png", _reconstructed(network, objective, batch, run), statistics)


@torch.no_grad()
def _reconstructed(network: Model, objective: Objective, batch: Batch, run: Run) -> list[Tensor]:
    """Return what the objective sees, what it reconstructs, and the images; draws are seeded, and the generators restored afterwards."""
    devices = [batch.device] if batch.device.type == "cuda" else []
    with torch.random.fork_rng(devices), evaluation_mode(network), dist.inference_autocast(batch.device, run.loop.precision):
        torch.manual_seed(run.seed)
        seen_BCHW, given_BCHW = objective.reconstruct(network.step(batch), batch)
    return [seen_BCHW, given_BCHW, *batch.views.values()]


def _write(path: Path, rows: list[Tensor], statistics: Statistics) -> None:
    """Write rows of normalised images, each (B, 3, H, W), as one picture."""
    out = BytesIO()
    Image.fromarray(np.concatenate([_strip(row, statistics) for row in rows])).save(out, format="PNG", optimize=True)
    write_atomically(path, out.getvalue())


def _strip(images_BCHW: Tensor, statistics: Statistics) -> np.ndarray:
    """Return images side by side, uint8 (H + GAP_PX, B * (W + GAP_PX), 4), with a transparent gap on the right of and below each."""
    mean_C11, std_C11 = (torch.tensor(values)[:, None, None] for values in statistics)
    pixels_BCHW = images_BCHW.float().cpu() * std_C11 + mean_C11
    if max(pixels_BCHW.shape[2:]) > MOST_PX:
        pixels_BCHW = F.adaptive_avg_pool2d(pixels_BCHW, MOST_PX)
    opaque_BCHW = torch.cat([pixels_BCHW, torch.ones_like(pixels_BCHW[:, :1])], dim=1)
    levels_BCHW = (F.pad(opaque_BCHW, (0, GAP_PX, 0, GAP_PX)) * 255).round().clamp(0, 255).byte()
    return np.concatenate(list(levels_BCHW.permute(0, 2, 3, 1).numpy()), axis=1)
