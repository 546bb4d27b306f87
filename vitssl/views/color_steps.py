"""The steps of a view's field ``color``. Operations are drawn for each image on the CPU and applied on the device.

Shapes: B images, all copies of a view.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import assert_never

import numpy as np

from vitssl.config import Blur, ColorStep, Gray, Jitter, Solarize
from vitssl.views import color
from vitssl.views.image_op import ImageOp, Operation
from vitssl.views.random import StepRandom

JITTERED = (color.brightness, color.contrast, color.color, color.hue)  # in the order of a jitter's strengths


def color_ops(steps: list[ColorStep], random: StepRandom) -> Iterator[ImageOp]:
    """Yield the operations of all steps in order, with the images that undergo them and their arguments."""
    counts: Counter[str] = Counter()
    for step in steps:
        choices, choice_B = step.choices(), np.array(0)
        if len(choices) > 1:
            choice_B = (random.uniform(_purpose("one_of", counts)) * len(choices)).astype(int)
        for i, choice in enumerate(choices):
            for name, op in choice.chosen().items():
                purpose = _purpose(name, counts)
                chosen_B = (random.uniform(purpose) < op.prob) & (choice_B == i)
                for operation, argument, affected_B in _operations(op, purpose, random):
                    yield ImageOp(operation, chosen_B & affected_B, np.broadcast_to(argument, chosen_B.shape))


def _purpose(name: str, counts: Counter[str]) -> str:
    """Return the purpose of an operation's random numbers; a repeated operation gets another purpose, and so other numbers."""
    name = {"gray": "grayscale"}.get(name, name)
    counts[name] += 1
    return name if counts[name] == 1 else f"{name}#{counts[name]}"


def _operations(
    op: Jitter | Gray | Blur | Solarize, purpose: str, random: StepRandom
) -> Iterator[tuple[Operation, np.ndarray | float, np.ndarray | bool]]:
    """Yield the operations of one step, each with its argument and the images it applies to, per image or the same for all."""
    match op:
        case Jitter():
            arguments = {}
            for i, (strength, operation) in enumerate(zip(op.strength, JITTERED, strict=False)):
                low, high = (-strength, strength) if operation is color.hue else (max(1 - strength, 0), 1 + strength)
                if strength > 0:
                    arguments[i] = low + (high - low) * random.uniform(f"{purpose}/{operation.__name__}")
            # as in torchvision, but with one random order for all images of a step
            for which_B in random.order(f"{purpose}/order", len(op.strength)).T:
                for i in np.unique(which_B[np.isin(which_B, list(arguments))]):
                    yield JITTERED[i], arguments[i], which_B == i
        case Gray():
            yield color.grayscale, 0.0, True
        case Blur():
            low, high = op.sigma
            yield color.gaussian_blur, low + (high - low) * random.uniform(f"{purpose}/argument"), True
        case Solarize():
            yield color.solarize, op.threshold, True
        case _:
            assert_never(op)
