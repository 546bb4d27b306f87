"""What an evaluator gets, and what it gives.

Shapes: N images of a split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitssl import dist
from vitssl.backbones.base import Features
from vitssl.checkpoints import pretrained
from vitssl.config import ConfigError, Run
from vitssl.config.evals import METRICS, EvalConfig, FeaturesConfig
from vitssl.data.index import Index, load_index
from vitssl.data.loading.batch import Batch
from vitssl.data.loading.loader import EvalLoader
from vitssl.data.loading.subset import Split, check_evaluator, evaluated
from vitssl.model import Model
from vitssl.views import EvalView

EVALUATED_AT_ONCE = 128  # images of a rank
WITHOUT_GRADIENTS = 4  # times as many images as a step of training holds take less memory than that


@dataclass
class Result:
    """An evaluator's results.

    Attributes:
        metrics: by name; shares in percent.
        arrays: of all images, in the order of the index, for figures and tables: labels, predicted (int64), confidence (float32),
            top5 (bool: is the label among the first five?), loss, auc (float32: what each image adds to the mean).
    """

    metrics: dict[str, float]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


class Evaluator:
    """Made from its config."""

    def __init__(self, cfg: EvalConfig):
        self.cfg = cfg

    def run(self, subject: Subject, complete: bool) -> Result:
        """Evaluate the subject's present weights.

        Raises:
            ConfigError: the split is not there, or nothing of it has a label.
        """
        raise NotImplementedError


def at_once(run: Run) -> int:
    """Images of a forward pass without gradients: fewer where memory is so short that ``loop.micro_batch_size`` is set."""
    return min(EVALUATED_AT_ONCE, WITHOUT_GRADIENTS * (run.loop.micro_batch_size or EVALUATED_AT_ONCE))


class Subject:
    """A network with some weights, and the images that it can be evaluated on.

    Args:
        network: in training or evaluation mode, which evaluators restore.
        run: its Run.
        classes: names, in the order of the logits.
        view: how images are evaluated.
        data: gives the index of the Run's shards, and which of their images are for training, held out and for testing; called where an
            evaluator asks for them.
        ema: gives the averaged weights, if the Run keeps them.
        best: gives those that held-out images chose.
    """

    def __init__(
        self, network: Model, run: Run, classes: list[str], view: EvalView, data: Callable[[], tuple[Index, Split]],
        ema: Callable[[], dict[str, Tensor] | None] = lambda: None, best: Callable[[], dict[str, Tensor] | None] = lambda: None,
    ):  # fmt: skip
        self.network, self.run, self.classes, self.view, self._data, self._ema, self._best = network, run, classes, view, data, ema, best
        self._loaders: dict[tuple[str | None, str], EvalLoader] = {}
        self._features: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}

    def loader(self, split: str, shards: str | None = None) -> EvalLoader:
        """The labelled images of a split, this rank's part; kept, as it may hold them in GPU memory.

        Raises:
            ConfigError: there are no such shards or no such split of them, or they have other classes.
        """
        if (shards, split) not in self._loaders:
            index, parts = self._data() if shards is None else (load_index(shards), None)
            labelled, labels = evaluated(index, parts, split, self.classes)
            self._loaders[shards, split] = EvalLoader(
                index, labelled, labels, self.run.data, batch_size=at_once(self.run),
                rank=dist.rank(), world_size=dist.world_size(), device=self.device,
            )  # fmt: skip
        return self._loaders[shards, split]

    def check(self, evals: dict[str, EvalConfig]) -> None:
        """Refuse at the start of a training what would fail after its first epoch, and decode other shards than the Run's: that may
        take longer than GPUs wait for each other later on.

        Raises:
            ConfigError: images that are not there, other classes, or nothing that an evaluator of features could learn from.
        """
        for name, cfg in evals.items():
            try:
                self.check_images(cfg)
                if cfg.shards is not None:
                    self.loader(cfg.split, cfg.shards)
            except ConfigError as error:
                raise named(error, name) from None

    def check_images(self, cfg: EvalConfig) -> None:
        """As `check`, of one evaluator."""
        check_evaluator(cfg, *self._data(), None if cfg.shards is None else load_index(cfg.shards))

    @property
    def device(self) -> torch.device:
        return self.view.device

    def batches(self, split: str, shards: str | None = None) -> Iterator[Batch]:
        """The labelled images of a split, this rank's part, as evaluation sees them."""
        return map(self.view, self.loader(split, shards))

    def features(self, cfg: FeaturesConfig, split: str, shards: str | None = None) -> tuple[Tensor, Tensor]:
        """Pooled features (N, D) and labels (N,) of this rank's labelled images of a split, as float32 on the device; made once for all
        evaluators of the same weights."""
        key = (cfg.weights, cfg.pool, cfg.blocks, split, shards)
        if key not in self._features:
            self._features[key] = self._make_features(cfg, split, shards)
        return self._features[key]

    def forget_features(self) -> None:
        """To be called before the weights change."""
        self._features.clear()

    @torch.no_grad()
    def _make_features(self, cfg: FeaturesConfig, split: str, shards: str | None) -> tuple[Tensor, Tensor]:
        backbone, pool = self.network.backbone, cfg.pooled_by(self.run)
        last = len(backbone.widths)
        places = tuple(range(last - cfg.blocks, last)) if cfg.blocks > 1 else ()
        D = backbone.embed_dim * cfg.blocks * len(pool.split("+"))
        features_BD, labels_B = [torch.empty(0, D, device=self.device)], [torch.empty(0, dtype=torch.int64, device=self.device)]
        with evaluation_mode(self.network):
            for batch in self.batches(split, shards):
                with dist.inference_autocast(self.device, self.run.loop.precision):
                    features: Features = backbone(backbone.embed(batch.views["main"]), out_indices=places)
                    read = [features.intermediates[i].normed(backbone.norm) for i in places] or [features]  # after the final norm
                    pooled_BD = torch.cat([block.pooled(pool) for block in read], dim=1)
                features_BD.append(pooled_BD.float())
                labels_B.append(batch.targets["main"])
        return torch.cat(features_BD), torch.cat(labels_B)

    @contextmanager
    def weights(self, which: str) -> Iterator[None]:
        """Within, the network has these weights.

        Raises:
            ConfigError: the Run has no such weights.
        """
        if which == "model":
            yield
            return
        original = {name: value.clone() for name, value in self.network.state_dict().items()}
        chosen = self._best() if which == "best" else pretrained.chosen({"model": original, "ema": self._ema()}, which)
        if chosen is None:
            raise ConfigError("there are no held-out images to choose the best weights by", "weights")
        self.network.load_state_dict(chosen, strict=which == "best")
        try:
            yield
        finally:
            self.network.load_state_dict(original)


def named(error: ConfigError, name: str) -> ConfigError:
    """An evaluator's error under its name."""
    return ConfigError(error.reason, f"evals.{name}.{error.field}" if error.field else f"evals.{name}", error.place)


@contextmanager
def evaluation_mode(network: Model) -> Iterator[None]:
    was_training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was_training)


def summed(*values_B: Tensor) -> Tensor:
    """The sum of each value over a batch's images, then their number, float64."""
    sums = torch.stack([of_images_B.sum(dtype=torch.float64) for of_images_B in values_B])
    return torch.cat([sums, sums.new_full((1,), len(values_B[0]))])


def means(sums: list[Tensor], names: tuple[str, ...]) -> dict[str, float]:
    """Means over the images of all ranks, and their number.

    Args:
        sums: of batches, as `summed` gives them.
        names: of METRICS.

    Raises:
        ConfigError: there is no image.
    """
    total = torch.stack(sums).sum(0).cpu() if sums else torch.zeros(len(names) + 1, dtype=torch.float64)
    *values, count = dist.all_sum(total).tolist()
    if not count:
        raise ConfigError("there is no labelled image to evaluate on")
    scaled = {name: (100 if METRICS[name].unit == "%" else 1) * value / count for name, value in zip(names, values, strict=True)}
    return {**scaled, "count": int(count)}
