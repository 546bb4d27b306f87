"""The base class of evaluators, the subject that they evaluate, and their results.

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
from vitssl.config.evals import EvalConfig, FeaturesConfig
from vitssl.config.metrics import METRICS
from vitssl.data.index import Index, load_index
from vitssl.data.loading.batch import Batch
from vitssl.data.loading.loader import EvalLoader
from vitssl.data.loading.subset import SplitPositions, check_evaluator, evaluation_images
from vitssl.evaluators.metrics import class_metrics
from vitssl.model import Model
from vitssl.views import EvalView

EVALUATED_AT_ONCE = 128  # most images of a rank in one forward pass
WITHOUT_GRADIENTS = 4  # without gradients, this many times the images of a training step still take less memory


@dataclass
class Result:
    """The results of an evaluator.

    Attributes:
        metrics: by name; shares in percent.
        arrays: values of all images, in the order of the index, for figures and tables: labels, predicted (int64), confidence (float32),
            top5 (bool: whether the label is among the first five), loss, auc (float32: the image's contribution to the mean).
    """

    metrics: dict[str, float]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


class Evaluator:
    """Base class of evaluators, constructed from their config."""

    def __init__(self, cfg: EvalConfig):
        self.cfg = cfg

    def run(self, subject: Subject, complete: bool) -> Result:
        """Evaluate the subject's current weights.

        Args:
            subject: the network and its data.
            complete: also compute the metrics that need all predictions at once.

        Raises:
            ConfigError: the split does not exist, or none of its images has a label.
        """
        raise NotImplementedError


def eval_batch_size(run: Run) -> int:
    """Return the number of images in a forward pass without gradients; it is smaller if a small ``loop.micro_batch_size`` is set."""
    return min(EVALUATED_AT_ONCE, WITHOUT_GRADIENTS * (run.loop.micro_batch_size or EVALUATED_AT_ONCE))


class Subject:
    """A network with some weights, and the images that it can be evaluated on.

    Args:
        network: in training or evaluation mode, which evaluators restore.
        run: the network's Run.
        classes: class names, in the order of the logits.
        view: makes the evaluated view of images.
        data: returns the index of the Run's shards, and which of their images are for training, held out and for testing; called when an
            evaluator needs them.
        ema: returns the averaged weights, or None if the Run does not keep them.
        best: returns the weights that held-out images chose, or None.
    """

    def __init__(
        self, network: Model, run: Run, classes: list[str], view: EvalView, data: Callable[[], tuple[Index, SplitPositions]],
        ema: Callable[[], dict[str, Tensor] | None] = lambda: None, best: Callable[[], dict[str, Tensor] | None] = lambda: None,
    ):  # fmt: skip
        self.network, self.run, self.classes, self.view, self._data, self._ema, self._best = network, run, classes, view, data, ema, best
        self._loaders: dict[tuple[str | None, str], EvalLoader] = {}
        self._features: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}

    def loader(self, split: str, shards: str | None = None) -> EvalLoader:
        """Return a loader of this rank's part of the labelled images of a split; it is cached, as it may hold them in GPU memory.

        Raises:
            ConfigError: the shards or their split do not exist, or they have other classes.
        """
        if (shards, split) not in self._loaders:
            index, parts = self._data() if shards is None else (load_index(shards), None)
            labelled, labels = evaluation_images(index, parts, split, self.classes or index.classes)
            self._loaders[shards, split] = EvalLoader(
                index, labelled, labels, self.run.data, batch_size=eval_batch_size(self.run),
                rank=dist.rank(), world_size=dist.world_size(), device=self.device,
            )  # fmt: skip
        return self._loaders[shards, split]

    def check(self, evals: dict[str, EvalConfig]) -> None:
        """Refuse at the start of training what would fail after its first epoch.

        Also load shards other than the Run's, since decoding them later could take longer than GPUs wait for each other.

        Raises:
            ConfigError: images are missing, classes differ, or an evaluator of features has nothing to learn from.
        """
        for name, cfg in evals.items():
            try:
                self.check_images(cfg)
                if cfg.shards is not None:
                    self.loader(cfg.split, cfg.shards)
                    if isinstance(cfg, FeaturesConfig) and not self.classes:
                        self.loader("train", cfg.shards)  # see `training_features`
            except ConfigError as error:
                raise evaluator_error(error, name) from None

    def check_images(self, cfg: EvalConfig) -> None:
        """Check one evaluator as `check` does, without loading shards.

        Raises:
            ConfigError: as in `check`.
        """
        check_evaluator(cfg, *self._data(), None if cfg.shards is None else load_index(cfg.shards))

    @property
    def device(self) -> torch.device:
        return self.view.device

    def batches(self, split: str, shards: str | None = None) -> Iterator[Batch]:
        """Return the batches of this rank's part of the labelled images of a split, as evaluation sees them."""
        return map(self.view, self.loader(split, shards))

    def classes_of(self, cfg: FeaturesConfig) -> list[str]:
        """Return the classes that an evaluator of features tells apart: the Run's, or if it has none those of the evaluator's shards."""
        return self.classes or ([] if cfg.shards is None else load_index(cfg.shards).classes)

    def training_features(self, cfg: FeaturesConfig) -> tuple[Tensor, Tensor]:
        """Return the features and labels, as `features` does, that an evaluator learns from, of the images of all ranks.

        They are the Run's training images, or those of the evaluator's shards if the Run's have no labels.
        """
        features_ND, labels_N = self.features(cfg, "train", None if self.classes else cfg.shards)
        return dist.gather_rows(features_ND), dist.gather_rows(labels_N)

    def features(self, cfg: FeaturesConfig, split: str, shards: str | None = None) -> tuple[Tensor, Tensor]:
        """Return pooled features (N, D) in float32 and labels (N,) of this rank's labelled images of a split, on the device.

        They are computed once for all evaluators of the same weights.
        """
        key = (cfg.weights, cfg.pool, cfg.blocks, split, shards)
        if key not in self._features:
            self._features[key] = self._make_features(cfg, split, shards)
        return self._features[key]

    def forget_features(self) -> None:
        """Drop cached features; to be called before the weights change."""
        self._features.clear()

    @torch.no_grad()
    def _make_features(self, cfg: FeaturesConfig, split: str, shards: str | None) -> tuple[Tensor, Tensor]:
        backbone, pool = self.network.backbone, cfg.pooled_by(self.run)
        num_layers = len(backbone.widths)
        indices = tuple(range(num_layers - cfg.blocks, num_layers)) if cfg.blocks > 1 else ()
        D = backbone.embed_dim * cfg.blocks * len(pool.split("+"))
        features_BD, labels_B = [torch.empty(0, D, device=self.device)], [torch.empty(0, dtype=torch.int64, device=self.device)]
        with evaluation_mode(self.network):
            for batch in self.batches(split, shards):
                with dist.inference_autocast(self.device, self.run.loop.precision):
                    features: Features = backbone(backbone.embed(batch.views["main"]), out_indices=indices)
                    selected = [features.intermediates[i].apply_norm(backbone.norm) for i in indices] or [features]  # after the final norm
                    pooled_BD = torch.cat([block.pooled(pool) for block in selected], dim=1)
                features_BD.append(pooled_BD.float())
                labels_B.append(batch.targets["main"])
        return torch.cat(features_BD), torch.cat(labels_B)

    @contextmanager
    def weights(self, which: str) -> Iterator[None]:
        """Return a context in which the network has the weights ``which``: model, ema, teacher or best.

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


def evaluator_error(error: ConfigError, name: str) -> ConfigError:
    """Return ``error`` with the field's path under the evaluator ``name``."""
    return ConfigError(error.reason, f"evals.{name}.{error.field}" if error.field else f"evals.{name}", error.place)


@contextmanager
def evaluation_mode(network: Model) -> Iterator[None]:
    was_training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was_training)


def metric_sums(*values_B: Tensor) -> Tensor:
    """Return the sum of each value over a batch's images, followed by the number of images, in float64."""
    sums = torch.stack([value_B.sum(dtype=torch.float64) for value_B in values_B])
    return torch.cat([sums, sums.new_full((1,), len(values_B[0]))])


def over_classes(predicted_N: Tensor, labels_N: Tensor, num_classes: int) -> dict[str, float]:
    """Return the metrics in which each class counts alike (`metrics.class_metrics`), over the images of all ranks."""
    predicted, labels = (dist.gather_rows(rows).cpu().numpy() for rows in (predicted_N, labels_N))
    return class_metrics(predicted, labels, num_classes)


def means(sums: list[Tensor], names: tuple[str, ...]) -> dict[str, float]:
    """Return the means of metrics over the images of all ranks, and the number of images as ``count``.

    Args:
        sums: of each batch, as returned by `metric_sums`.
        names: of the summed metrics, keys of METRICS.

    Raises:
        ConfigError: there is no image.
    """
    total = torch.stack(sums).sum(0).cpu() if sums else torch.zeros(len(names) + 1, dtype=torch.float64)
    *values, count = dist.all_sum(total).tolist()
    if not count:
        raise ConfigError("there is no labelled image to evaluate on")
    scaled = {name: (100 if METRICS[name].unit == "%" else 1) * value / count for name, value in zip(names, values, strict=True)}
    return {**scaled, "count": int(count)}
