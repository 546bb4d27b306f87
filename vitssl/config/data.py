"""The fields of ``data``: which images, how few of them, and their views."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, Optional

from vitssl.config.base import Problem, interval_problems, minimum_problems, rising_problems, runtime_field
from vitssl.config.color import ColorStep

LEAST_STD = 1e-6  # smallest standard deviation of a channel that shows anything
# (mean, std) of red, green and blue, in [0, 1] units
STATISTICS = {
    "imagenet": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    "half": ([0.5] * 3, [0.5] * 3),
    # as in SSAT's and much other public code, which averages the standard deviations of images; that of all pixels is 0.247 0.244 0.262
    "cifar10": ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]),
}


@dataclass
class Subset:
    """A part of the training images: either a share of them or a number per class."""

    fraction: Optional[float] = None  # fraction of the images, in (0, 1]
    per_class: Optional[int] = None  # number of images per class
    balanced: bool = True  # with `fraction`: draw the same fraction of each class; false: draw regardless of class
    seed: Optional[int] = 0  # random seed of the draw; null: no draw, take the first images in the shards' order (the source's)
    # draw anew for each seed of the Run, by the sum of both seeds, so that the spread over seeds includes that of the draw
    redraw: bool = False

    def problems(self, name: str) -> Iterator[Problem]:
        if (self.fraction is None) == (self.per_class is None):
            yield Problem(name, "set exactly one of fraction and per_class; null unsets the other")
        yield from interval_problems("(0, 1]", self, name, "fraction", share=True)
        yield from minimum_problems(1, self, name, "per_class")
        yield from minimum_problems(0, self, name, "seed")
        if self.redraw and self.seed is None:
            yield Problem(f"{name}.redraw", f"nothing is drawn if {name}.seed is null; leave out one of the two")


@dataclass
class View:
    """One named augmentation of the batch, computed on the device. Magnitudes follow timm and torchvision."""

    count: int = 1  # independent copies of this view per image (stacked crop-major)
    size: Optional[int] = None  # pixels per side; null: data.image_size
    # random_resized: a random part of the image, resized; pad: a random crop after padding; resize: the whole image
    crop: Literal["random_resized", "pad", "resize"] = "random_resized"
    scale: list[float] = field(default_factory=lambda: [0.08, 1.0])  # crop area / image area, drawn from this range
    ratio: list[float] = field(default_factory=lambda: [3 / 4, 4 / 3])  # crop width / crop height, drawn from this range
    pad_px: int = 4  # for `crop: pad`: reflection padding in pixels around the image resized to `size`
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"  # how the crop is resized
    hflip: float = 0.5  # probability of a horizontal flip
    auto_augment: str = ""  # a policy by its timm name: rand-m9-mstd0.5-inc1, original (AutoAugment for ImageNet); also cifar10; empty: off
    auto_augment_interpolation: Literal["bilinear", "bicubic"] = "bicubic"  # for auto_augment's geometric operations
    # colour operations, in this order; a bare name stands for the operation with its defaults, as in
    # [{jitter: {strength: [0.4, 0.4, 0.2, 0.1], prob: 0.8}}, {one_of: [gray, blur]}]
    color: list[ColorStep] = field(default_factory=list)
    erasing_prob: float = 0.0  # probability of erasing one box (timm's RandomErasing)
    erasing_scale: list[float] = field(default_factory=lambda: [0.02, 1 / 3])  # area of the erased box / image area
    erasing_mode: Literal["pixel", "const"] = "pixel"  # fill the box with noise, or with zeros (after normalisation)
    mixup_alpha: float = 0.0  # alpha of mixup's beta distribution; 0: off
    cutmix_alpha: float = 0.0  # alpha of CutMix's beta distribution; 0: off
    mix_prob: float = 1.0  # probability that a batch is mixed, if mixup or CutMix is on
    switch_prob: float = 0.5  # probability of CutMix rather than mixup, if both are on

    def inactive_fields(self) -> dict[str, str]:
        """Return {field that has no effect, given the others: the setting that it belongs to}."""
        mixed = bool(self.mixup_alpha) + bool(self.cutmix_alpha)
        owners = {} if self.crop == "random_resized" else dict.fromkeys(("scale", "ratio"), "crop: random_resized")
        owners |= {} if self.crop == "pad" else {"pad_px": "crop: pad"}
        owners |= {} if self.auto_augment else {"auto_augment_interpolation": "an auto_augment"}
        owners |= {} if self.erasing_prob else dict.fromkeys(("erasing_scale", "erasing_mode"), "an erasing_prob")
        owners |= {} if mixed else {"mix_prob": "a mixup_alpha or cutmix_alpha"}
        return owners if mixed == 2 else owners | {"switch_prob": "both mixup_alpha and cutmix_alpha"}

    def problems(self, name: str, size_px: int) -> Iterator[Problem]:
        if self.crop == "pad" and not 0 <= self.pad_px < size_px:
            yield Problem(f"{name}.pad_px", f"{self.pad_px} pixels of reflection padding do not fit a view of {size_px} px")
        yield from minimum_problems(1, self, name, "count")
        for key, high in (("scale", 1.0), ("ratio", 100.0), ("erasing_scale", 1.0)):
            yield from rising_problems(f"{name}.{key}", getattr(self, key), high)
        yield from interval_problems("[0, 1]", self, name, "hflip", "erasing_prob", "mix_prob", "switch_prob", share=True)
        yield from minimum_problems(0, self, name, "mixup_alpha", "cutmix_alpha")
        for i, step in enumerate(self.color):
            yield from step.problems(f"{name}.color[{i}]")
        if self.auto_augment and not re.fullmatch(r"rand(-(m|mstd|inc|n|p)\d+\.?\d*)*|original|cifar10", self.auto_augment):
            reason = f"{self.auto_augment!r} is none of rand-m9-mstd0.5-inc1 (and the like), original, cifar10"
            yield Problem(f"{name}.auto_augment", reason)


@dataclass
class Views:
    main: View = field(default_factory=View)  # the view that objectives read by default
    second: Optional[View] = None  # a second view of each image (SimCLR, DINO, LUT)
    local: Optional[View] = None  # small crops (DINO)

    def enabled(self) -> dict[str, View]:
        """Return the views that are configured, by name, in the order of the fields."""
        return {f.name: view for f in dataclasses.fields(self) if (view := getattr(self, f.name)) is not None}


SHUFFLE_WINDOW = 100_000


@dataclass
class Data:
    shards: str = runtime_field("???")  # folder written by `vitssl shards build`
    source: Optional[str] = runtime_field(None)  # what the launcher builds `shards` from if the folder does not exist
    sha256: Optional[str] = None  # fingerprint of the shards' content; the launcher fills it in, training verifies it
    # split of the shards to train on; join several by "+"; "?" marks one that may be absent: train+unlabeled?
    train_split: str = "train"
    test_split: str = "test"  # split of the shards on which accuracy is measured
    # cross-validation: number of parts of train_split's labelled images; the Run's seed chooses which part is the test set. With 5, seeds 0
    # to 4 take each part once; seeds 5 to 9 do so with parts drawn anew
    folds: Optional[int] = None
    images: Optional[Subset] = None  # train on a subset of the images, for every objective
    labels: Optional[Subset] = None  # keep the labels of a subset; the other images stay, unlabelled
    # for a classifier beside an objective that needs no labels, where few images have a label and many are unlabelled: this fraction of
    # each batch has labels, for example 0.25, so that labelled images come more often than others; no effect if as many have one anyway
    labelled_batch_fraction: Optional[float] = None
    val_split: Optional[str] = None  # split of the shards held out for choosing the epoch, evaluated as "val"
    val_fraction: float = 0.0  # in place of val_split: fraction of the training images to hold out
    val_seed: int = 0  # random seed of the draw of val_fraction
    # best.pt is of the epoch with the best value of this on the held-out images; of ece and loss the lowest is the best
    val_metric: Literal["top1", "top5", "balanced_accuracy", "macro_f1", "auc", "ece", "loss"] = "top1"
    # in images: a larger epoch is shuffled only within windows of this size, so that shards are read in order
    shuffle_window: int = SHUFFLE_WINDOW
    repeats: int = 1  # repeated augmentation: copies of each image in a batch; the number of samples per epoch stays the same
    image_size: int = 224  # pixels per side of the network's input
    # channel statistics to normalise by: the shards' own, or standard ones
    normalize: Literal["dataset", "imagenet", "half", "cifar10"] = "dataset"
    mean: Optional[list[float]] = None  # means of red, green and blue, in [0, 1] units, in place of normalize; needs std
    std: Optional[list[float]] = None  # standard deviations of red, green and blue; needs mean
    eval_crop: float = 0.875  # evaluation: resize the short side to image_size / eval_crop, centre-crop image_size
    cache_px: Optional[int] = None  # shrink images to this short side when they are cached; smaller ones stay as they are
    cache_gb: float = runtime_field(16.0)  # decoded data sets up to this size are cached, larger ones are streamed
    cache_dir: Optional[str] = runtime_field(None)  # the cache's folder, on the node; null: $VITSSL_CACHE_DIR, else $TMPDIR
    device_cache_gb: float = runtime_field(1.0)  # decoded data sets up to this size are kept in GPU memory
    workers: int = runtime_field(4)  # decoding processes per GPU when streaming
    views: Views = field(default_factory=Views)  # augmentations of each image, by name

    def inactive_fields(self) -> dict[str, str]:
        """Return {field that has no effect, given the others: the setting that it belongs to}."""
        owners = {} if self.val_fraction else {"val_seed": "a val_fraction"}
        owners |= {} if self.val_fraction or self.val_split is not None else {"val_metric": "a val_fraction or a val_split"}
        owners |= {"test_split": "no data.folds"} if self.folds else {}
        return owners if self.mean is None else owners | {"normalize": "no data.mean and data.std"}

    def problems(self) -> Iterator[Problem]:
        for name in ("images", "labels"):
            if (subset := getattr(self, name)) is not None:
                yield from subset.problems(f"data.{name}")
        yield from interval_problems("[0, 1)", self, "data", "val_fraction", share=True)
        yield from interval_problems("(0, 1)", self, "data", "labelled_batch_fraction", share=True)
        if self.val_split is not None and self.val_fraction:
            yield Problem("data.val_split", "data.val_fraction holds out images too; set one of the two")
        for name, low in (("mean", 0.0), ("std", LEAST_STD)):
            values = getattr(self, name)
            if values is not None and (len(values) != 3 or not all(low <= v <= 1 for v in values)):
                yield Problem(f"data.{name}", f"{values} is not three numbers (red, green, blue) between 0 and 1, the range of pixels here")
        if (self.mean is None) != (self.std is None):
            present, lacking = ("mean", "std") if self.std is None else ("std", "mean")
            yield Problem(f"data.{present}", f"set data.{lacking} too, or neither")
        yield from interval_problems("(0, 1]", self, "data", "eval_crop", share=True)
        yield from minimum_problems(0, self, "data", "val_seed", "workers", "cache_gb", "device_cache_gb")
        yield from minimum_problems(1, self, "data", "shuffle_window", "repeats", "cache_px")
        yield from minimum_problems(2, self, "data", "folds")
        for name, view in self.views.enabled().items():
            yield from view.problems(f"data.views.{name}", view.size or self.image_size)

    def size_problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the sides of images that networks see. To be checked first, as other checks divide by them."""
        yield from minimum_problems(1, self, "data", "image_size")
        for name, view in self.views.enabled().items():
            yield from minimum_problems(1, view, f"data.views.{name}", "size")


def view_px(data: Data, view: str) -> int:
    """Return the side of a view's square images, in pixels."""
    return getattr(data.views, view).size or data.image_size


def statistics(data: Data, mean: list[float], std: list[float]) -> tuple[list[float], list[float]]:
    """Return the channel means and stds that normalise images, in [0, 1] units; ``mean`` and ``std`` are those of the data set."""
    if data.mean is not None and data.std is not None:
        return data.mean, data.std
    # a channel that has one value in all images, such as red and blue if only green was recorded, becomes 0
    return STATISTICS.get(data.normalize) or (mean, [value if value >= LEAST_STD else 1.0 for value in std])
