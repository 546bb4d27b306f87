"""RandAugment and AutoAugment. Operations are drawn for each image on the CPU and applied on the device.

Operations, magnitudes and policies are timm's, or for ``cifar10`` those of SL-ViT's public code, with two differences. The rotations,
shears and translations of an image are combined into one affine map, which is applied before the colour operations with a single
interpolation. Pixels that one of these moves out of the image keep their value if the next moves them back.

Shapes: T steps of a policy (operations one after the other), E entries of a policy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
from torch import Tensor

from vitssl.config import ConfigError
from vitssl.views import color
from vitssl.views.image_op import ImageOp
from vitssl.views.random import StepRandom
from vitssl.views.resample import warp

HIGHEST, HIGHEST_CIFAR = 10.0, 9.0  # highest magnitudes
NONE = -1  # no operation
GEOMETRY = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")
OPERATIONS = (*GEOMETRY, *color.OPS)

# timm's name -> the operation here, and a function from a level in [0, 1] and a random sign to its argument
Arguments = dict[str, tuple[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]]
ARGUMENTS: Arguments = {
    "AutoContrast": ("AutoContrast", lambda level, sign: level),
    "Equalize": ("Equalize", lambda level, sign: level),
    "Invert": ("Invert", lambda level, sign: level),
    "Rotate": ("Rotate", lambda level, sign: sign * level * 30),  # degrees
    "ShearX": ("ShearX", lambda level, sign: sign * level * 0.3),
    "ShearY": ("ShearY", lambda level, sign: sign * level * 0.3),
    "TranslateXRel": ("TranslateX", lambda level, sign: sign * level * 0.45),  # of the width
    "TranslateYRel": ("TranslateY", lambda level, sign: sign * level * 0.45),
    "Posterize": ("Posterize", lambda level, sign: np.floor(level * 4)),  # bits kept
    "PosterizeIncreasing": ("Posterize", lambda level, sign: 4 - np.floor(level * 4)),
    "PosterizeOriginal": ("Posterize", lambda level, sign: 4 + np.floor(level * 4)),
    "Solarize": ("Solarize", lambda level, sign: np.floor(level * 256)),  # lowest inverted pixel value
    "SolarizeIncreasing": ("Solarize", lambda level, sign: 256 - np.floor(level * 256)),
    "SolarizeAdd": ("SolarizeAdd", lambda level, sign: np.floor(level * 110)),
}
for _name in ("Color", "Contrast", "Brightness", "Sharpness"):  # blend factors; 1 changes nothing
    ARGUMENTS[_name] = (_name, lambda level, sign: level * 1.8 + 0.1)
    ARGUMENTS[f"{_name}Increasing"] = (_name, lambda level, sign: np.maximum(1 + sign * level * 0.9, 0.1))

# The ranges of the CIFAR-10 policy have ten equally spaced values, for magnitudes 0 to 9
CIFAR_ARGUMENTS = ARGUMENTS | {
    "Rotate": ("Rotate", lambda level, sign: level * 30),  # always counter-clockwise
    "TranslateXRel": ("TranslateX", lambda level, sign: sign * level * 150 / 331),
    "TranslateYRel": ("TranslateY", lambda level, sign: sign * level * 150 / 331),
    "Posterize": ("Posterize", lambda level, sign: np.rint(8 - level * 4)),
    "Solarize": ("Solarize", lambda level, sign: 256 - level * 256),
}
CIFAR_ARGUMENTS |= {_name: ARGUMENTS[f"{_name}Increasing"] for _name in ("Color", "Contrast", "Brightness", "Sharpness")}

RAND_AUGMENT = (
    "AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize", "SolarizeAdd", "Color", "Contrast", "Brightness",
    "Sharpness", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel",
)  # fmt: skip
RAND_AUGMENT_INCREASING = tuple(f"{name}Increasing" if f"{name}Increasing" in ARGUMENTS else name for name in RAND_AUGMENT)

# AutoAugment (Cubuk et al. 2019), Tables 9 and 7: two operations per line, each with probability and magnitude
AUTO_AUGMENT = {
    "original": """
        PosterizeOriginal 0.4 8  Rotate 0.6 9
        Solarize 0.6 5           AutoContrast 0.6 5
        Equalize 0.8 8           Equalize 0.6 3
        PosterizeOriginal 0.6 7  PosterizeOriginal 0.6 6
        Equalize 0.4 7           Solarize 0.2 4
        Equalize 0.4 4           Rotate 0.8 8
        Solarize 0.6 3           Equalize 0.6 7
        PosterizeOriginal 0.8 5  Equalize 1.0 2
        Rotate 0.2 3             Solarize 0.6 8
        Equalize 0.6 8           PosterizeOriginal 0.4 6
        Rotate 0.8 8             Color 0.4 0
        Rotate 0.4 9             Equalize 0.6 2
        Equalize 0.0 7           Equalize 0.8 8
        Invert 0.6 4             Equalize 1.0 8
        Color 0.6 4              Contrast 1.0 8
        Rotate 0.8 8             Color 1.0 2
        Color 0.8 8              Solarize 0.8 7
        Sharpness 0.4 7          Invert 0.6 8
        ShearX 0.6 5             Equalize 1.0 9
        Color 0.4 0              Equalize 0.6 3
        Equalize 0.4 7           Solarize 0.2 4
        Solarize 0.6 5           AutoContrast 0.6 5
        Invert 0.6 4             Equalize 1.0 8
        Color 0.6 4              Contrast 1.0 8
        Equalize 0.8 8           Equalize 0.6 3""",
    "cifar10": """
        Invert 0.1 7             Contrast 0.2 6
        Rotate 0.7 2             TranslateXRel 0.3 9
        Sharpness 0.8 1          Sharpness 0.9 3
        ShearY 0.5 8             TranslateYRel 0.7 9
        AutoContrast 0.5 8       Equalize 0.9 2
        ShearY 0.2 7             Posterize 0.3 7
        Color 0.4 3              Brightness 0.6 7
        Sharpness 0.3 9          Brightness 0.7 9
        Equalize 0.6 5           Equalize 0.5 1
        Contrast 0.6 7           Sharpness 0.6 5
        Color 0.7 7              TranslateXRel 0.5 8
        Equalize 0.3 7           AutoContrast 0.4 8
        TranslateYRel 0.4 3      Sharpness 0.2 6
        Brightness 0.9 6         Color 0.2 8
        Solarize 0.5 2           Invert 0.0 3
        Equalize 0.2 0           AutoContrast 0.6 0
        Equalize 0.2 8           Equalize 0.6 4
        Color 0.9 9              Equalize 0.6 6
        AutoContrast 0.8 4       Solarize 0.2 8
        Brightness 0.1 3         Color 0.7 0
        Solarize 0.4 5           AutoContrast 0.9 3
        TranslateYRel 0.9 9      TranslateYRel 0.7 9
        AutoContrast 0.9 2       Solarize 0.8 3
        Equalize 0.8 8           Invert 0.1 3
        TranslateYRel 0.7 9      AutoContrast 0.9 1""",
}


class SampledOps(NamedTuple):
    """The operations that each image undergoes, in order, with their arguments."""

    operation_BT: np.ndarray  # index into OPERATIONS, or NONE
    argument_BT: np.ndarray

    def image_ops(self, side: int, fill_C: Tensor, interpolation: str) -> Iterator[ImageOp]:
        """Yield one geometric operation for all steps, then the colour operations step by step.

        Args:
            side: pixels per side of the images.
            fill_C: colour of pixels from outside of the image.
            interpolation: of the geometric operation.
        """
        map_B33, moved_B = self.affine_maps(side)
        yield ImageOp(partial(warp, fill_C=fill_C, interpolation=interpolation), moved_B, map_B33[:, :2])
        for operation_B, argument_B in zip(self.operation_BT.T, self.argument_BT.T, strict=True):
            for operation in np.unique(operation_B[operation_B >= len(GEOMETRY)]):
                yield ImageOp(color.OPS[OPERATIONS[operation]], operation_B == operation, argument_B)

    def affine_maps(self, side: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the affine map of each image, (B, 3, 3), and whether the image has any geometric operation, (B,)."""
        map_B33 = np.tile(np.eye(3), (len(self.operation_BT), 1, 1))
        for operation_B, argument_B in zip(self.operation_BT.T, self.argument_BT.T, strict=True):
            for index, name in enumerate(GEOMETRY):
                affected_B = operation_B == index
                # a later operation reads the result of earlier ones, so output coordinates pass through its map first
                map_B33[affected_B] = map_B33[affected_B] @ affine(name, argument_B[affected_B], side)
        return map_B33, np.any(np.isin(self.operation_BT, range(len(GEOMETRY))), axis=1)


def affine(operation: str, argument_B: np.ndarray, side: int) -> np.ndarray:
    """Return the maps (B, 3, 3) from output to source coordinates (x, y, 1) of an operation, as in Pillow's rotate and transform.

    Coordinates are in pixels from the upper left corner.
    """
    map_B33 = np.tile(np.eye(3), (len(argument_B), 1, 1))
    if operation == "Rotate":
        cos_B, sin_B, half = np.cos(np.deg2rad(argument_B)), np.sin(np.deg2rad(argument_B)), side / 2
        map_B33[:, 0] = np.stack([cos_B, -sin_B, half * (1 - cos_B + sin_B)], axis=1)
        map_B33[:, 1] = np.stack([sin_B, cos_B, half * (1 - sin_B - cos_B)], axis=1)
        return map_B33
    row, column, value_B = {
        "ShearX": (0, 1, argument_B),
        "ShearY": (1, 0, argument_B),
        "TranslateX": (0, 2, argument_B * side),
        "TranslateY": (1, 2, argument_B * side),
    }[operation]
    map_B33[:, row, column] = value_B
    return map_B33


class Policy(NamedTuple):
    """The entries that an image may get. RandAugment draws an entry for every step, AutoAugment a row of entries for all steps."""

    entries: list[tuple[str, float, float]]  # timm's operation name, probability, magnitude
    rows: np.ndarray  # int (rows, T), indices into the entries
    independent: bool  # whether every step draws its own row
    magnitude_std: float = 0.0  # above 100: magnitudes are uniform in [0, magnitude], as in timm
    highest: float = HIGHEST  # highest magnitude
    arguments: Arguments = ARGUMENTS

    def sample(self, random: StepRandom) -> SampledOps:
        """Draw the operations of every image and their arguments."""
        count, steps = self.rows.shape
        which_BT, whether_BT, sign_BT = np.moveaxis(random.uniform("auto_augment", steps, 3), -1, 0)
        row_BT = (which_BT * count).astype(int)
        entry_BT = self.rows[row_BT if self.independent else row_BT[:, :1], np.arange(steps)]
        probability_E, magnitude_E = np.array([entry[1:] for entry in self.entries], dtype=float).T
        chosen_BT = whether_BT < probability_E[entry_BT]
        magnitude_BT = magnitude_E[entry_BT]
        if self.magnitude_std > 100:
            magnitude_BT = magnitude_BT * random.uniform("auto_augment/magnitude", steps)
        else:
            magnitude_BT = magnitude_BT + self.magnitude_std * random.normal("auto_augment/magnitude", steps)
        level_BT = np.clip(magnitude_BT, 0, self.highest) / self.highest
        operation_BT, argument_BT = np.full(entry_BT.shape, NONE), np.zeros(entry_BT.shape)
        for entry, (name, _, _) in enumerate(self.entries):
            affected_BT = chosen_BT & (entry_BT == entry)
            operation, argument = self.arguments[name]
            operation_BT[affected_BT] = OPERATIONS.index(operation)
            argument_BT[affected_BT] = argument(level_BT[affected_BT], np.where(sign_BT[affected_BT] < 0.5, -1, 1))
        return SampledOps(operation_BT, argument_BT)


def parse_policy(text: str, field_prefix: str = "") -> Policy:
    """Return the policy that ``text`` describes: ``original``, ``cifar10``, or RandAugment such as ``rand-m9-mstd0.5-inc1``.

    Args:
        text: the value of the field ``auto_augment``.
        field_prefix: path of the view, which errors put before the field's name.

    Raises:
        ConfigError: an unknown name or section.
    """
    name, *sections = text.split("-")
    if text == "cifar10":
        return _auto_augment(AUTO_AUGMENT[text])._replace(highest=HIGHEST_CIFAR, arguments=CIFAR_ARGUMENTS)
    if text in AUTO_AUGMENT:
        return _auto_augment(AUTO_AUGMENT[text])
    if name != "rand":
        reason = f"{text!r} is none of rand-m9-mstd0.5-inc1 (and the like), {', '.join(AUTO_AUGMENT)}"
        raise ConfigError(reason, f"{field_prefix}auto_augment")
    options = {"m": HIGHEST, "mstd": 0.0, "inc": 0.0, "n": 2.0, "p": 0.5}  # timm's defaults
    for section in sections:
        match = re.fullmatch(r"([a-z]+)(\d+\.?\d*)", section)
        if match is None or match[1] not in options:
            reason = f"{text!r}: {section!r} is none of {', '.join(options)} followed by a number"
            raise ConfigError(reason, f"{field_prefix}auto_augment")
        options[match[1]] = float(match[2])
    names = RAND_AUGMENT_INCREASING if options["inc"] else RAND_AUGMENT
    rows = np.tile(np.arange(len(names))[:, None], int(options["n"]))
    return Policy([(name, options["p"], options["m"]) for name in names], rows, True, options["mstd"])


def _auto_augment(table: str) -> Policy:
    words = table.split()
    entries = [(name, float(p), float(m)) for name, p, m in zip(words[::3], words[1::3], words[2::3], strict=True)]
    return Policy(entries, np.arange(len(entries)).reshape(-1, 2), independent=False)
