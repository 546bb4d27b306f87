"""torchvision's data sets: their splits, the folder they are in, and access to their original files."""

from __future__ import annotations

import http.client
import inspect
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from vitssl.config import ConfigError
from vitssl.config.base import closest, did_you_mean
from vitssl.data.sources.samples import Options, Sample, Source, refuse_repeated_options

DEFAULT_ROOT = Path("~/.cache/vitssl/torchvision")

# split -> arguments of the parts that make it up
_Splits: TypeAlias = dict[str, list[dict[str, Any]]]
_TRAIN_FLAG: _Splits = {"train": [{"train": True}], "test": [{"train": False}]}
_TRAIN_TEST: _Splits = {"train": [{"split": "train"}], "test": [{"split": "test"}]}
_TRAIN_VAL_TEST: _Splits = {"train": [{"split": "train"}, {"split": "val"}], "test": [{"split": "test"}]}
_TRAINVAL_TEST: _Splits = {"train": [{"split": "trainval"}], "test": [{"split": "test"}]}
_TRAIN_VAL: _Splits = {"train": [{"split": "train"}], "test": [{"split": "val"}]}
SETS = {
    "CIFAR10": _TRAIN_FLAG,
    "CIFAR100": _TRAIN_FLAG,
    "MNIST": _TRAIN_FLAG,
    "FashionMNIST": _TRAIN_FLAG,
    "KMNIST": _TRAIN_FLAG,
    "USPS": _TRAIN_FLAG,
    "SVHN": _TRAIN_TEST,
    "STL10": _TRAIN_TEST | {"unlabeled": [{"split": "unlabeled"}]},
    "Flowers102": _TRAIN_VAL_TEST,  # the papers train on train + val, 2,040 images
    "DTD": _TRAIN_VAL_TEST,
    "FGVCAircraft": _TRAINVAL_TEST,
    "OxfordIIITPet": _TRAINVAL_TEST,
    "StanfordCars": _TRAIN_TEST,
    "Food101": _TRAIN_TEST,
    "GTSRB": _TRAIN_TEST,
    "Imagenette": _TRAIN_VAL,
    "ImageNet": _TRAIN_VAL,
}


# Sets that open their images themselves: the attributes with the paths and labels, by which the files' bytes are kept.
_FILES = {"OxfordIIITPet": ("_images", "_labels")}


def open_set(name: str, root: str | Path = DEFAULT_ROOT) -> tuple[list[str], dict[str, list]]:
    """Return class names and, for each split, the data sets that make it up.

    The items of a data set are (path of the original file if torchvision can tell it, else a PIL image; label).

    Raises:
        ConfigError: the name is unknown, or the data is neither there nor can be downloaded.
    """
    if name not in SETS:
        similar = closest(name.lower(), [known.lower() for known in SETS])
        suggestion = did_you_mean([f"torchvision:{known}" for known in SETS if known.lower() in similar])
        raise ConfigError(f"torchvision:{name}: not one of {', '.join(SETS)}{suggestion}")
    root = Path(root).expanduser()
    splits = {split: [_open(name, root, arguments) for arguments in parts] for split, parts in SETS[name].items()}
    first = splits["train"][0]
    if names := getattr(first, "classes", None):
        return _distinct([name if isinstance(name, str) else ", ".join(name) for name in names], getattr(first, "wnids", [])), splits
    highest = max(int(first[i][1]) for i in range(len(first)))
    return [str(k) for k in range(highest + 1)], splits


def _distinct(names: list[str], wnids: list[str]) -> list[str]:
    """Add its WordNet number to a name that several classes have: ImageNet's crane is a bird, and a machine too."""
    counts = Counter(names)
    return [f"{name} ({wnids[k]})" if counts[name] > 1 and wnids else name for k, name in enumerate(names)]


def _open(name: str, root: Path, arguments: dict[str, Any]) -> Any:
    from torchvision import datasets

    cls = getattr(datasets, name)
    parameters = inspect.signature(cls.__init__).parameters
    if "loader" in parameters or "kwargs" in parameters:
        arguments = arguments | {"loader": str}  # the path itself, so that the file's bytes are kept
    try:
        opened = cls(root, **arguments)
    except (RuntimeError, FileNotFoundError):
        opened = _download(cls, name, root, arguments)
    return _Files(opened, *_FILES[name]) if name in _FILES else opened


class _Files(list[tuple[str, int]]):
    """The (path, label) of each image of a data set that opens its images itself."""

    def __init__(self, opened: Any, paths: str, labels: str):
        super().__init__(zip(map(str, getattr(opened, paths)), getattr(opened, labels), strict=True))
        self.classes = opened.classes


def _download(cls: Any, name: str, root: Path, arguments: dict[str, Any]) -> Any:
    advice = f"where there is no network give a folder that has it: torchvision:{name}?root=PATH"
    if "download" not in inspect.signature(cls.__init__).parameters:
        raise ConfigError(f"torchvision:{name}: not in {root}, and torchvision cannot download it; {advice}")
    try:
        root.mkdir(parents=True, exist_ok=True)
        return cls(root, download=True, **arguments)
    except (OSError, RuntimeError, ValueError, http.client.HTTPException) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"torchvision:{name}: not in {root}, and the download failed ({reason}); {advice}") from None


def open_torchvision(name: str, options: Options) -> Source:
    refuse_repeated_options(f"torchvision:{name}", options)
    classes, splits = open_set(name, *options.get("root", []))
    return Source(name, classes, {split: _Parts(split, parts) for split, parts in splits.items()})


class _Parts(Sequence[Sample]):
    """The samples of one or more torchvision data sets, one after the other."""

    def __init__(self, split: str, parts: list):
        from torch.utils.data import ConcatDataset

        self.split = split
        self.images: ConcatDataset[tuple[Any, int]] = ConcatDataset(parts)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: Any) -> Any:
        image, label = self.images[i]
        return Sample(f"{self.split} {i}", int(label), image if isinstance(image, str) else np.asarray(image))
