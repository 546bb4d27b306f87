"""The fields of ``data``: which images, how few of them, and their views."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Optional

from vitssl.config.base import Problem, if_percent, later, less_than, not_a_probability, not_rising, runtime_field
from vitssl.config.color import BEFORE, ColorStep, with_steps

LEAST_STD = 1e-6  # of a channel that anything is to be seen in
# of channels, in [0, 1] units: (mean, std)
STATISTICS = {
    "imagenet": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    "half": ([0.5] * 3, [0.5] * 3),
    # those of SSAT's and much other public code: the mean of the images' standard deviations, where the pixels' are 0.247 0.244 0.262
    "cifar10": ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]),
}


@dataclass
class Subset:
    """A part of the training images: either a share of them or a number per class."""

    fraction: Optional[float] = None  # share of the images, in (0, 1]
    per_class: Optional[int] = None  # images of every class
    balanced: bool = True  # with `fraction`: the same share of every class; false draws from all images alike
    seed: Optional[int] = 0  # of the draw of images; null: no draw, the first ones in the order of the shards, which is the source's
    redraw: bool = False  # draw others with each seed of the Run, so that a spread over seeds covers the draw too

    def problems(self, name: str) -> Iterator[Problem]:
        if (self.fraction is None) == (self.per_class is None):
            yield Problem(name, "set exactly one of fraction and per_class; null unsets the other")
        if self.fraction is not None and not 0 < self.fraction <= 1:
            path = f"{name}.fraction"
            yield Problem(path, f"{self.fraction:g} is not in (0, 1]{if_percent(path, self.fraction)}")
        yield from less_than(1, self, name, "per_class")
        yield from less_than(0, self, name, "seed")
        if self.redraw and self.seed is None:
            yield Problem(f"{name}.redraw", f"nothing is drawn where {name}.seed is null; leave one of the two out")


@dataclass
class View:
    """One named augmentation of the batch, computed on the device. Magnitudes follow timm and torchvision."""

    NOW_WRITTEN: ClassVar[dict[str, str]] = BEFORE  # fields that it had -> what says the same now
    as_now_written = staticmethod(with_steps)  # what an older version wrote -> today's fields
    count: int = 1  # how many independent copies of this view per image (stacked crop-major)
    size: Optional[int] = None  # pixels per side; null takes data.image_size
    # random_resized: a random part of the image, resized; pad: the image with a border, cut back; resize: all of it
    crop: Literal["random_resized", "pad", "resize"] = "random_resized"
    scale: list[float] = field(default_factory=lambda: [0.08, 1.0])  # crop area / image area, drawn from this range
    ratio: list[float] = field(default_factory=lambda: [3 / 4, 4 / 3])  # crop width / crop height, drawn from this range
    pad_px: int = 4  # `crop: pad` resizes to `size`, pads by this much (reflecting) and crops back
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"  # of the crop
    hflip: float = 0.5  # probability of a mirrored image
    auto_augment: str = ""  # random operations by timm's names: rand-m9-mstd0.5-inc1, original (AutoAugment, ImageNet); also cifar10
    auto_augment_interpolation: Literal["bilinear", "bicubic"] = later("bicubic", before="bilinear")  # of auto_augment's geometry
    # colour operations, in this order; a name alone is that with its defaults, as in
    # [{jitter: {strength: [0.4, 0.4, 0.2, 0.1], prob: 0.8}}, {one_of: [gray, blur]}]
    color: list[ColorStep] = field(default_factory=list)
    erasing_prob: float = 0.0  # probability of timm's RandomErasing, one box
    erasing_scale: list[float] = field(default_factory=lambda: [0.02, 1 / 3])  # area of the erased box / image area
    erasing_mode: Literal["pixel", "const"] = "pixel"  # the box becomes noise, or zero after normalising
    mixup_alpha: float = 0.0  # of the beta distribution of mixup's shares; 0: off
    cutmix_alpha: float = 0.0  # of the beta distribution of cutmix's shares; 0: off
    mix_prob: float = 1.0  # probability of mixing a batch at all, when mixup or cutmix is on
    switch_prob: float = 0.5  # probability of cutmix rather than mixup, when both are on

    def inactive_fields(self) -> dict[str, str]:
        """{field that has no effect, given the others: what it belongs to}."""
        mixed = bool(self.mixup_alpha) + bool(self.cutmix_alpha)
        owners = {} if self.crop == "random_resized" else dict.fromkeys(("scale", "ratio"), "crop: random_resized")
        owners |= {} if self.crop == "pad" else {"pad_px": "crop: pad"}
        owners |= {} if self.auto_augment else {"auto_augment_interpolation": "an auto_augment"}
        owners |= {} if self.erasing_prob else dict.fromkeys(("erasing_scale", "erasing_mode"), "an erasing_prob")
        owners |= {} if mixed else {"mix_prob": "a mixup_alpha or cutmix_alpha"}
        return owners if mixed == 2 else owners | {"switch_prob": "both mixup_alpha and cutmix_alpha"}

    def problems(self, name: str, size_px: int) -> Iterator[Problem]:
        if self.crop == "pad" and not 0 <= self.pad_px < size_px:
            yield Problem(f"{name}.pad_px", f"{self.pad_px} pixels cannot be reflected from a view of {size_px} px")
        yield from less_than(1, self, name, "count")
        for key, high in (("scale", 1.0), ("ratio", 100.0), ("erasing_scale", 1.0)):
            yield from not_rising(f"{name}.{key}", getattr(self, key), high)
        for f in dataclasses.fields(self):
            if f.name.endswith("_prob") or f.name == "hflip":
                yield from not_a_probability(f"{name}.{f.name}", getattr(self, f.name))
            if f.name.endswith("_alpha"):
                yield from less_than(0, self, name, f.name)
        for i, step in enumerate(self.color):
            yield from step.problems(f"{name}.color[{i}]")
        if self.auto_augment and not re.fullmatch(r"rand(-(m|mstd|inc|n|p)\d+\.?\d*)*|original|cifar10", self.auto_augment):
            reason = f"{self.auto_augment!r} is none of rand-m9-mstd0.5-inc1 (and the like), original, cifar10"
            yield Problem(f"{name}.auto_augment", reason)


@dataclass
class Views:
    main: View = field(default_factory=View)  # the view that objectives read where they name no other
    second: Optional[View] = None  # another one of each image (SimCLR, DINO, LUT)
    local: Optional[View] = None  # small crops (DINO)

    def enabled(self) -> dict[str, View]:
        """The views that are configured, by name, in the order of the fields."""
        return {f.name: view for f in dataclasses.fields(self) if (view := getattr(self, f.name)) is not None}


SHUFFLE_WINDOW = 100_000


@dataclass
class Data:
    shards: str = runtime_field("???")  # folder written by `vitssl shards build`
    source: Optional[str] = runtime_field(None)  # what the launcher builds `shards` from where the folder does not exist
    sha256: Optional[str] = None  # fingerprint of the shards' content; the launcher fills it in, training verifies it
    train_split: str = "train"  # split of the shards that is trained on; several joined by "+"; in train+unlabeled? the ?: if it is there
    test_split: str = "test"  # split of the shards that accuracies are measured on
    # cross-validation: the labelled images of train_split in so many parts, of which the Run's seed says which one is the test set: of 5
    # seeds 0 to 4 take turns; 5 to 9 do so with parts drawn anew
    folds: Optional[int] = None
    images: Optional[Subset] = None  # fewer images, for every objective
    labels: Optional[Subset] = None  # fewer labels: the other images stay, unlabelled
    val_split: Optional[str] = None  # held-out images for choosing the epoch, evaluated as "val": a split of the shards
    val_fraction: float = 0.0  # or this share of the training images, which are then left out of training
    val_seed: int = 0  # of the draw of val_fraction
    shuffle_window: int = SHUFFLE_WINDOW  # images; an epoch of more moves them within so many, which reads shards in order
    repeats: int = 1  # repeated augmentation: copies of an image in a batch; an epoch keeps its number of samples
    image_size: int = 224  # pixels per side of what the network sees
    normalize: Literal["dataset", "imagenet", "half", "cifar10"] = "dataset"  # channel statistics: the shards', or well-known ones
    mean: Optional[list[float]] = None  # means of red, green and blue in place of those, in [0, 1] units; with std or not at all
    std: Optional[list[float]] = None  # standard deviations that go with mean
    eval_crop: float = 0.875  # evaluation: resize the short side to image_size / eval_crop, centre-crop image_size
    cache_px: Optional[int] = None  # shrink images whose short side is longer to this many pixels, once, in the cache
    cache_gb: float = runtime_field(16.0)  # decoded sets up to this size are cached, larger ones are streamed
    cache_dir: Optional[str] = runtime_field(None)  # a folder on the node for the cache; null takes $TMPDIR
    device_cache_gb: float = runtime_field(1.0)  # decoded sets up to this size live in GPU memory
    workers: int = runtime_field(4)  # decoding processes, per GPU, when streaming
    views: Views = field(default_factory=Views)  # augmentations of each image, by name

    def inactive_fields(self) -> dict[str, str]:
        """As `View.inactive_fields`."""
        owners = {} if self.val_fraction else {"val_seed": "a val_fraction"}
        owners |= {"test_split": "no data.folds"} if self.folds else {}
        return owners if self.mean is None else owners | {"normalize": "no data.mean and data.std"}

    def problems(self) -> Iterator[Problem]:
        for name in ("images", "labels"):
            if (subset := getattr(self, name)) is not None:
                yield from subset.problems(f"data.{name}")
        if not 0 <= self.val_fraction < 1:
            reason = f"{self.val_fraction:g} is not in [0, 1){if_percent('data.val_fraction', self.val_fraction)}"
            yield Problem("data.val_fraction", reason)
        if self.val_split is not None and self.val_fraction:
            yield Problem("data.val_split", "data.val_fraction holds out images too; set one of the two")
        for name, low in (("mean", 0.0), ("std", LEAST_STD)):
            values = getattr(self, name)
            if values is not None and (len(values) != 3 or not all(low <= v <= 1 for v in values)):
                yield Problem(f"data.{name}", f"{values} is not three numbers (red, green, blue) between 0 and 1; pixels are 0 to 1 here")
        if (self.mean is None) != (self.std is None):
            present, lacking = ("mean", "std") if self.std is None else ("std", "mean")
            yield Problem(f"data.{present}", f"set data.{lacking} too, or neither")
        if not 0 < self.eval_crop <= 1:
            yield Problem("data.eval_crop", f"{self.eval_crop} is not in (0, 1]")
        yield from less_than(0, self, "data", "val_seed", "workers", "cache_gb", "device_cache_gb")
        yield from less_than(1, self, "data", "shuffle_window", "repeats", "cache_px")
        yield from less_than(2, self, "data", "folds")
        for name, view in self.views.enabled().items():
            yield from view.problems(f"data.views.{name}", view.size or self.image_size)

    def size_problems(self) -> Iterator[Problem]:
        """Of the sides that networks see, by which other checks divide."""
        yield from less_than(1, self, "data", "image_size")
        for name, view in self.views.enabled().items():
            yield from less_than(1, view, f"data.views.{name}", "size")


def view_px(data: Data, view: str) -> int:
    """Side of a view's square images, in pixels."""
    return getattr(data.views, view).size or data.image_size


def statistics(data: Data, mean: list[float], std: list[float]) -> tuple[list[float], list[float]]:
    """Channel mean and std, in [0, 1] units, that images are normalised by; the arguments are the data set's."""
    if data.mean is not None and data.std is not None:
        return data.mean, data.std
    # a channel of one value in all images, such as red and blue where only green was recorded, becomes 0
    return STATISTICS.get(data.normalize) or (mean, [value if value >= LEAST_STD else 1.0 for value in std])
