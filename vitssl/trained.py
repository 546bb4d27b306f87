"""A trained run as an object that predicts, gives features and is evaluated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitssl import config, dist, evaluators, model
from vitssl.backbones.base import Features
from vitssl.checkpoints import pretrained
from vitssl.checkpoints.run_checkpoint import existing_checkpoint, fitted, load_model, read_run
from vitssl.config import ConfigError
from vitssl.config.evals import EvalConfig
from vitssl.data import UNLABELLED
from vitssl.data.index import Index, load_index
from vitssl.data.loading.batch import Batch, RawBatch
from vitssl.data.loading.subset import SplitPositions, split_of
from vitssl.data.pixels.decode import decode_file, decode_opened, resize, resized_sizes
from vitssl.evaluators.base import eval_batch_size
from vitssl.files import read_json
from vitssl.paths import find_run_folder
from vitssl.reader import MOST_IMAGE_BYTES, read_whole
from vitssl.run_folder import BEST, DONE, LAST, RUN
from vitssl.views import EvalView
from vitssl.words import counted, few

OneImage = str | Path | Image.Image
NO_IMAGES = "there are no images; give at least one file or PIL image"


class Trained:
    """A trained run, ready to classify images, or to give their features even if it was only pretrained.

    Attributes:
        folder: the run folder.
        run: the config of the run.
        classes: class names, in the order of the logits.
        mean, std: the channel statistics that images are normalised by.
        checkpoint, weights, step: which weights these are; imported weights have no step.
        model: the network, in evaluation mode; ``model.backbone`` has timm's parameter names.
    """

    def __init__(self, folder: Path, checkpoint: str = LAST, device: str | torch.device = "auto", weights: str = "model"):
        self.folder, self.run, self._done = folder, config.load(folder), read_json(folder / DONE)
        self.checkpoint, self.weights = checkpoint, weights
        saved = read_run(existing_checkpoint(folder, checkpoint))
        self.step: int | None = saved["progress"]["step"] if "progress" in saved else None
        data = saved["data"]
        self.classes: list[str] = data["classes"]
        self.mean: list[float] = list(data["mean"])
        self.std: list[float] = list(data["std"])
        self.device = dist.device(device)
        self.model = model.build(self.run, len(self.classes))
        load_model(self.model, saved["model"], folder / checkpoint)
        if saved.get("ema") is not None:
            saved["ema"] = fitted(self.model, saved["ema"], folder / checkpoint)
        self._averaged = saved.get("ema")
        if weights != "model":
            self._take(saved, weights)
        self.model.to(self.device).eval()
        self.view = EvalView(self.run.data.image_size, self.run.data.eval_crop, self.mean, self.std, self.device)

    def _take(self, saved: dict[str, Any], weights: str) -> None:
        try:
            self.model.load_state_dict(pretrained.chosen(saved, weights), strict=weights != "teacher")
        except ConfigError as error:
            raise ConfigError(error.reason, error.field, str(self.folder / self.checkpoint)) from None

    def __repr__(self) -> str:
        tasks = " + ".join(config.active(self.run.objectives)) or "no objective"
        parts = [f"{self.run.backbone.network} for {tasks}", counted(len(self.classes), "class", "classes"), *self._told_by_folder()]
        return f"<Trained {self.folder}: {', '.join(parts)}>"

    def _told_by_folder(self) -> list[str]:
        """Return which weights these are and, if the run has ended, their accuracy on the test split."""
        parts = [f"{self.weights} weights"] if self.weights != "model" else []
        if self.checkpoint != LAST:
            return [*parts, self.checkpoint]
        if not self._done:
            return [*parts, "imported" if self.step is None else f"not finished, at step {self.step:,}"]
        test = self._done.get("test" if self.weights == "model" else f"test_{self.weights}")
        return [*parts, *([f"top-1 {test['top1']:.2f} %"] if test else []), counted(self._done["epochs"], "epoch")]

    def predict(self, images: OneImage | Iterable[OneImage]) -> Tensor:
        """Return the class probabilities (B, K) of files or PIL images of any size, on the CPU; (1, K) for a single image.

        Raises:
            ConfigError: the run has no `classify`, a file is no image or has values that `pixels.depth` refuses, or there are no images.
            TypeError: an image is an array or a tensor.
        """
        self.check_predicts()
        probabilities = []
        for result in self.predict_each([images] if isinstance(images, OneImage) else images):
            if isinstance(result, ConfigError):
                raise result
            probabilities.append(result)
        if not probabilities:
            raise ConfigError(f"predict: {NO_IMAGES}")
        return torch.stack(probabilities)

    def predict_each(self, images: Iterable[OneImage]) -> Iterator[Tensor | ConfigError]:
        """Yield the class probabilities (K,) of each image, on the CPU, or the error that says what is wrong with it."""
        for result in predict_each([self], images):
            yield result if isinstance(result, ConfigError) else result[0]

    @torch.no_grad()
    def probabilities(self, seen_BCSS: Tensor) -> Tensor:
        """Return the class probabilities (B, K), on the CPU, of images as evaluation sees them."""
        with self._numerics():
            return self.logits(seen_BCSS).float().softmax(-1).cpu()

    def logits(self, seen_BCSS: Tensor) -> Tensor:
        """Return the logits (B, K) of images as evaluation sees them, for weights that `check_predicts` accepts."""
        logits_BK = self.model.predict(Batch.of_images(seen_BCSS))
        assert logits_BK is not None
        return logits_BK

    def _numerics(self) -> torch.autocast:
        """Set the precision of the run's evaluation and return its autocast context."""
        dist.set_precision(self.run.loop.precision)
        return dist.inference_autocast(self.device, self.run.loop.precision)

    def check_predicts(self) -> None:
        """Refuse weights that have no classifier.

        Raises:
            ConfigError: the run has no `classify`, or these are a teacher's weights.
        """
        if not config.classifies(self.run):
            advice = "so it predicts no classes; vitssl.load(RUN).features(images) gives its features"
            raise ConfigError(f"{self.folder}: this run has no classify objective, {advice}")
        if self.weights == "teacher":
            raise ConfigError(
                f"{self.folder}: the classifier belongs to the student; with a teacher's weights only features() is available"
            )

    @torch.no_grad()
    def features(self, images: OneImage | Iterable[OneImage], blocks: Sequence[int] = ()) -> Features:
        """Return the backbone's features of files or PIL images of any size, on the CPU; B is 1 for a single image.

        ``tokens_BND`` (B, N, D) are the tokens of the output grid, row by row, and ``grid`` is its rows and columns. ``prefix_BPD``
        (B, P, D) are the class token (``pooled("cls")`` is (B, D)) and the registers. P is 1 without registers, and 0 if the backbone has
        neither. All of these tokens have passed the final norm. ``extra_BJD`` (B, J, D) are the masked tokens, and ``selection_BJN``
        (B, J, N) the weights of the patch tokens in them. ``numpy.asarray`` makes arrays of them without a copy.

        Args:
            images: files or PIL images.
            blocks: the blocks, or the stages of a backbone that has stages, whose outputs are wanted too. 0 is the first, and -1 the last.
                Their outputs before the final norm are in ``intermediates``, under the numbers given here.

        Raises:
            ConfigError: a file is not an image, there are no images, or there is no such block.
        """
        places = self.places(blocks)
        passes = [self.encode(seen_BCSS, places) for seen_BCSS in self._seen([images] if isinstance(images, OneImage) else images)]
        if not passes:
            raise ConfigError(f"features: {NO_IMAGES}")
        joined = _joined(passes)
        joined.intermediates = {
            block: _joined([f.intermediates[place] for f in passes]) for block, place in zip(blocks, places, strict=True)
        }
        return joined

    def places(self, blocks: Sequence[int]) -> tuple[int, ...]:
        """Return the backbone's intermediate places of ``blocks``, which may be counted from the end.

        Raises:
            ConfigError: there is no such block, or ``blocks`` is not a list.
        """
        count = len(self.model.backbone.widths)
        if not isinstance(blocks, Sequence):
            raise ConfigError(f"{blocks} is not a list of blocks; write [{blocks}]", "blocks")
        if wrong := next((block for block in blocks if not -count <= block < count), None):
            raise ConfigError(f"there is no block {wrong}; {self.run.backbone.network} has {-count} to {count - 1}", "blocks")
        return tuple(block % count for block in blocks)

    def encode(self, images_BCHW: Tensor, places: tuple[int, ...] = ()) -> Features:
        """Return the backbone's features of normalised images, with those at intermediate ``places``, in the precision of the run."""
        with self._numerics():
            return self.model.backbone(self.model.backbone.embed(images_BCHW), out_indices=places)

    def evaluate(self, evals: dict[str, EvalConfig]) -> dict[str, evaluators.Result]:
        """Return the results of evaluators, by name, with all of their metrics.

        Raises:
            ConfigError: this run cannot have such an evaluator, or its images do not exist.
        """
        dist.set_precision(self.run.loop.precision)
        return evaluators.evaluate(self.subject(), evals, complete=True)

    def subject(self) -> evaluators.Subject:
        """Return what evaluators look at: the weights of the run, and its part of the images.

        Raises:
            ConfigError: the run was loaded with other weights than the model's.
        """
        if self.weights != "model":
            raise ConfigError(f"{self.folder}: load it without weights={self.weights}; an evaluator's field weights says which to look at")
        return evaluators.Subject(self.model, self.run, self.classes, self.view, self.data, lambda: self._averaged, self._best)

    def _best(self) -> dict[str, Tensor]:
        path = existing_checkpoint(self.folder, BEST)
        return fitted(self.model, read_run(path)["model"], path)

    def data(self) -> tuple[Index, SplitPositions]:
        """Return the index of the run's shards, and the run's part of their images.

        Raises:
            ConfigError: the shards do not exist, are not those that the run was trained on, or have other classes.
        """
        if self.run.data.shards == config.NO_SHARDS:
            missing = "was imported without training images, which are needed here"
            raise ConfigError(f"{self.folder} {missing}; import it again with --shards SHARDS, into another folder")
        if not Path(self.run.data.shards).is_dir():
            moved = f"if they are elsewhere now, set data.shards in {self.folder / RUN}; or build them again there"
            raise ConfigError(f"{self.run.data.shards}, the shards of {self.folder}, do not exist; {moved}")
        index = load_index(self.run.data.shards)
        if index.classes != self.classes:
            classes = f"its classes are {few(index.classes)}, and {self.folder} was trained on {few(self.classes)}"
            raise ConfigError(f"{index.folder}: {classes}")
        if self.run.data.sha256 not in (None, index.sha256):
            advice = "so that it may test on images trained on; build that again, or name the images to test on by --shards"
            raise ConfigError(f"{index.folder} is not what {self.folder} was trained on (data.sha256), {advice}")
        return index, split_of(index, self.run)

    def _seen(self, images: Iterable[OneImage]) -> Iterator[Tensor]:
        """Yield batches (B, C, S, S) of images as evaluation sees them."""
        remaining = iter(images)
        while batch := list(islice(remaining, eval_batch_size(self.run))):
            yield torch.cat([self.view(_raw(image, self.run.data.cache_px)).views["main"] for image in batch])


def predict_each(runs: Sequence[Trained], images: Iterable[OneImage]) -> Iterator[Tensor | ConfigError]:
    """Yield the class probabilities (R, K) of each image by R runs, on the CPU, or the error that says what is wrong with it.

    Every image is read once for all runs with the same ``data.cache_px``. Images are read in batches, each when its first result is asked
    for, and forgotten before the next batch.
    """
    # divided by the number of runs, as the views of all runs are held
    remaining, batch_size = iter(images), max(1, min(eval_batch_size(run.run) for run in runs) // len(runs))
    while batch := list(islice(remaining, batch_size)):
        results: dict[int, Tensor | ConfigError] = {}
        views: dict[int, list[Tensor]] = {}  # {image: its view for each run}
        for i, image in enumerate(batch):
            try:
                raws = {cache_px: _raw(image, cache_px) for cache_px in {run.run.data.cache_px for run in runs}}
                views[i] = [run.view(raws[run.run.data.cache_px]).views["main"] for run in runs]
            except ConfigError as error:
                results[i] = error
        if views:
            outputs = [run.probabilities(torch.cat(seen)) for run, seen in zip(runs, zip(*views.values(), strict=True), strict=True)]
            results |= zip(views, torch.stack(outputs, 1), strict=True)
        yield from (results[i] for i in range(len(batch)))


def _joined(passes: list[Features]) -> Features:
    """Join the features of several passes into those of one, on the CPU, in float32 and without intermediates."""

    def joined(parts: Iterable[Tensor]) -> Tensor:
        return torch.cat(list(parts)).float().cpu()

    selections = [f.selection_BJN for f in passes if f.selection_BJN is not None]
    return Features(
        joined(f.prefix_BPD for f in passes),
        joined(f.tokens_BND for f in passes),
        joined(f.extra_BJD for f in passes),
        passes[0].grid,
        selection_BJN=joined(selections) if selections else None,
    )


def _raw(image: OneImage, cache_px: int | None) -> RawBatch:
    """Return a batch of one image, decoded and resized as in the cache that training and evaluation read."""
    if not isinstance(image, OneImage):
        raise TypeError(
            f"an image is a path or a PIL image, not {type(image).__name__}; PIL.Image.fromarray makes one of an array (H, W, 3)"
        )
    pixels_HWC = decode_opened(image) if isinstance(image, Image.Image) else _decoded(Path(image))
    ((height, width),) = resized_sizes(np.array([pixels_HWC.shape[:2]]), cache_px)
    pixels = torch.from_numpy(resize(pixels_HWC, height, width).copy()).permute(2, 0, 1)[None]
    zero = torch.zeros(1, dtype=torch.int64)
    return RawBatch(pixels, torch.tensor([pixels.shape[-2:]]), zero + UNLABELLED, zero, 0, slice(0, 1), 1, 0.0)


def _decoded(path: Path) -> np.ndarray:
    try:
        return decode_file(read_whole(path, MOST_IMAGE_BYTES), str(path)).pixels
    except OSError as error:
        raise ConfigError(f"{path}: not an image that can be read ({error.strerror})") from None


def load(folder: str | Path, checkpoint: str = LAST, device: str | torch.device = "auto", weights: str = "model") -> Trained:
    """Load a trained run from its folder: ``vitssl.load("runs/quickstart/ssat-…").predict("digit.png")``.

    Args:
        folder: the run folder.
        checkpoint: a file in that folder: the last state, ``best.pt`` (best on held-out images), or one that ``loop.keep_every`` kept.
        device: auto, cpu, cuda or cuda:N, or torch's.
        weights: model; ema, the moving average of the weights that a run with ``loop.ema_decay`` keeps; or teacher, the backbone of an
            objective's teacher.

    Raises:
        ConfigError: ``folder`` is not a run folder, or has no such checkpoint.
    """
    return Trained(find_run_folder(Path(folder)), checkpoint, device, weights)
