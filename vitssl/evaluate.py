"""Accuracy of a model on a split, and a trained run as an object that predicts and gives features.

Shapes: B images, K classes, N tokens of the backbone's output grid, P prefix tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitssl import config, dist, model, state
from vitssl.backbones.base import Features
from vitssl.config import ConfigError
from vitssl.data.batch import UNLABELLED, Batch, RawBatch
from vitssl.data.decode import decode, resize, resized_sizes, upright
from vitssl.data.index import load_index
from vitssl.data.loader import EvalLoader
from vitssl.views import EvalView

OneImage = str | Path | Image.Image
EVALUATED_AT_ONCE = 128  # images of a rank: without gradients they need little room, whatever a training batch was


@torch.no_grad()
def accuracy(
    network: model.Model, batches: Iterable[RawBatch], view: Callable[[RawBatch], Batch], precision: str = "fp32"
) -> dict[str, float]:
    """Top-1 and top-5 in percent and the mean cross-entropy over the labelled images of all ranks, each counted once."""
    was_training = network.training
    network.eval()
    sums = torch.zeros(4, dtype=torch.float64)
    on_device: list[Tensor] = []  # what is fetched batch by batch would make the device wait
    for raw in batches:
        batch = view(raw)
        with dist.autocast(batch.device, precision):
            logits_BK = network.predict(batch).float()
        labels_B = raw.labels_B.to(batch.device, non_blocking=True)
        loss = F.cross_entropy(logits_BK, labels_B, reduction="sum", ignore_index=UNLABELLED)
        hits = [top_k_correct(logits_BK, labels_B, k).sum() for k in (1, 5)]
        on_device.append(torch.stack([*hits, loss, (labels_B != UNLABELLED).sum()]).double())
    if on_device:
        sums += torch.stack(on_device).sum(0).cpu()
    network.train(was_training)
    top1, top5, loss, count = dist.all_sum(sums).tolist()
    if not count:
        raise ConfigError("there is no labelled image to evaluate on")
    return {"top1": 100 * top1 / count, "top5": 100 * top5 / count, "loss": loss / count, "count": int(count)}


def top_k_correct(logits_BK: Tensor, labels_B: Tensor, k: int) -> Tensor:
    """(B,) bool: is the label among the k highest scores?"""
    best_Bk = logits_BK.topk(min(k, logits_BK.shape[1]), dim=1).indices
    return torch.any(best_Bk == labels_B[:, None], dim=1)


class Trained:
    """A trained run, ready to classify images or, also where it was only pretrained, to give their features.

    Attributes:
        folder: its run folder.
        run: its config.
        classes: class names, in the order of the logits.
        model: the network, in evaluation mode; ``model.backbone`` has timm's parameter names.
    """

    def __init__(self, folder: Path, checkpoint: str = state.LAST, device: str = "auto", ema: bool = False):
        self.folder, self.run = folder, config.load(folder)
        saved = state.read(folder / checkpoint)
        if ema and saved.get("ema") is None:
            raise ConfigError(f"{folder / checkpoint}: holds no averaged weights; a run with loop.ema_decay has them in {state.LAST}")
        data = saved["data"]
        self.classes: list[str] = data["classes"]
        self.device = dist.device(device)
        self.model = model.build(self.run, len(self.classes))
        self.model.load_state_dict(saved["ema" if ema else "model"])
        self.model.to(self.device).eval()
        self.view = EvalView(self.run.data.image_size, self.run.data.eval_crop, data["mean"], data["std"], self.device)

    @torch.no_grad()
    def predict(self, images: OneImage | Iterable[OneImage]) -> Tensor:
        """Class probabilities (B, K), on the CPU, of files or PIL images of any size; of a single one, (1, K).

        Raises:
            ConfigError: a run without `classify`, a file that is no image, or no images at all.
        """
        self._must_classify()
        logits_BK = [self.model.predict(batch).float() for batch in self._views(images, "predict")]
        return torch.cat(logits_BK).softmax(-1).cpu()

    @torch.no_grad()
    def features(self, images: OneImage | Iterable[OneImage]) -> Features:
        """What the backbone makes of files or PIL images of any size, on the CPU; of a single one, with B = 1.

        ``tokens_BND`` (B, N, D) are the output grid's tokens, row by row, ``grid`` its rows and columns, and ``prefix_BPD`` (B, P, D)
        the class token: P is 1, or 0 where the backbone has none. All went through the final norm. ``stages`` is empty.

        Raises:
            ConfigError: a file that is no image, or no images at all.
        """
        backbone = self.model.backbone
        passes = [backbone(backbone.embed(batch.views["main"])) for batch in self._views(images, "features")]
        prefix_BPD, tokens_BND = (torch.cat(parts).cpu() for parts in zip(*((f.prefix_BPD, f.tokens_BND) for f in passes), strict=True))
        return Features(prefix_BPD, tokens_BND, passes[0].grid)

    def _must_classify(self) -> None:
        """Refuse a run whose logits are asked for and that has none.

        Raises:
            ConfigError: it has no classify objective.
        """
        if not config.classifies(self.run):
            advice = "so it predicts no classes; vitssl.load(RUN).features(images) gives its features"
            raise ConfigError(f"{self.folder}: this run has no classify objective, {advice}")

    def _views(self, images: OneImage | Iterable[OneImage], method: str) -> Iterator[Batch]:
        """Image by image, as evaluation sees it."""
        images = [images] if isinstance(images, OneImage) else list(images)
        if not images:
            raise ConfigError(f"{method}: there are no images; give at least one file or PIL image")
        return (self.view(_raw(image, self.run.data.cache_px)) for image in images)


def _raw(image: OneImage, cache_px: int | None) -> RawBatch:
    """Decoded and resized as the cache does it, which training and evaluation read."""
    pixels_HWC = upright(image) if isinstance(image, Image.Image) else _decoded(Path(image))
    ((height, width),) = resized_sizes(np.array([pixels_HWC.shape[:2]]), cache_px)
    pixels = torch.from_numpy(resize(pixels_HWC, height, width).copy()).permute(2, 0, 1)[None]
    zero = torch.zeros(1, dtype=torch.int64)
    return RawBatch(pixels, torch.tensor([pixels.shape[-2:]]), zero + UNLABELLED, zero, 0, slice(0, 1), 1, 0.0)


def _decoded(path: Path) -> np.ndarray:
    try:
        return decode(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(f"{path}: not an image that can be read ({error.strerror})") from None


def run_folder(path: Path) -> Path:
    """The folder of a run, from that folder or the run.yaml in it.

    Raises:
        ConfigError: it is a sweep's folder, or another file.
    """
    if path.name == "run.yaml" and path.is_file():
        return path.parent
    if path.is_file():
        raise ConfigError(f"{path} is not a run; name a run folder (runs/<sweep>/<run>), or the run.yaml in it")
    if (path / "sweep.json").is_file():
        example = next((f", for example {found.parent}" for found in sorted(path.glob("*/run.yaml"))), "")
        raise ConfigError(f"{path} is the folder of a whole sweep; name one of its runs{example}")
    return path


def load(folder: str | Path, checkpoint: str = state.LAST, device: str = "auto", ema: bool = False) -> Trained:
    """A trained run by its folder: ``vitssl.load("runs/quickstart/ssat-…").predict("digit.png")``.

    Args:
        folder: the run folder.
        checkpoint: a file in it: the last state, ``best.pt`` of the held-out split, or one that ``loop.keep_every`` kept.
        device: auto, cpu or cuda.
        ema: take the moving average of the weights, which a run with ``loop.ema_decay`` keeps.

    Raises:
        ConfigError: not a run folder, or without a checkpoint.
    """
    return Trained(run_folder(Path(folder)), checkpoint, device, ema)


def evaluate_folder(folder: Path, shards: str | None = None, split: str = "test", ema: bool = False) -> dict[str, float]:
    """Accuracy of a finished run on a split of its own shards or of others with the same classes.

    Raises:
        ConfigError: a run without `classify`, other classes, or no such split.
    """
    trained = load(folder, ema=ema)
    trained._must_classify()
    index = load_index(shards or trained.run.data.shards)
    if index.classes != trained.classes:
        raise ConfigError(f"{index.folder}: its classes are not those that {folder} was trained on")
    loader = EvalLoader(
        index, index.where(split), index.label, trained.run.data,
        batch_size=EVALUATED_AT_ONCE, rank=0, world_size=1, device=trained.device,
    )  # fmt: skip
    return accuracy(trained.model, loader, trained.view, trained.run.loop.precision)
