"""The steps of a view's ``color``, and the fields that a view had before there were steps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Optional

from vitssl.config.base import less_than, not_a_probability, not_rising


@dataclass
class Operation:
    """What every operation has."""

    prob: float = 1.0  # of doing it to an image

    def problems(self, name: str) -> Iterator[str]:
        """``name`` is the path of the field, such as data.views.main.color[0].jitter."""
        yield from not_a_probability(f"{name}.prob", self.prob)


@dataclass
class Jitter(Operation):
    """torchvision's ColorJitter, but with one random order of its four operations for all images of a step."""

    strength: list[float] = field(default_factory=lambda: [0.4, 0.4, 0.4, 0.0])  # brightness, contrast, saturation, hue; empty = off

    def problems(self, name: str) -> Iterator[str]:
        yield from super().problems(name)
        if self.strength and (len(self.strength) != 4 or not all(0 <= s < math.inf for s in self.strength)):
            yield f"{name}.strength: {self.strength} is not [brightness, contrast, saturation, hue], none negative"
        elif self.strength and self.strength[3] > 0.5:
            yield f"{name}.strength: a hue of {self.strength[3]} is more than 0.5, all the way round"


@dataclass
class Gray(Operation):
    pass


@dataclass
class Blur(Operation):
    """Gaussian."""

    sigma: list[float] = field(default_factory=lambda: [0.1, 2.0])  # pixels; each image's is uniform in this range

    def problems(self, name: str) -> Iterator[str]:
        yield from super().problems(name)
        yield from not_rising(f"{name}.sigma", self.sigma, 100.0)


@dataclass
class Solarize(Operation):
    threshold: int = 128  # the lowest level, of 0 to 255, that is inverted

    def problems(self, name: str) -> Iterator[str]:
        yield from super().problems(name)
        yield from less_than(0, self, name, "threshold")


@dataclass
class ColorOp:
    """One operation: exactly one of these is set."""

    jitter: Optional[Jitter] = None
    gray: Optional[Gray] = None
    blur: Optional[Blur] = None
    solarize: Optional[Solarize] = None

    def chosen(self) -> dict[str, Any]:
        """What is set, by name; a single entry, once checked."""
        return {f.name: value for f in dataclasses.fields(self) if (value := getattr(self, f.name)) is not None}

    def problems(self, name: str) -> Iterator[str]:
        if len(self.chosen()) != 1:
            yield f"{name}: set exactly one of {', '.join(f.name for f in dataclasses.fields(self))}; null is off, {{}} its defaults"
        for op, value in self.chosen().items():
            parts = {f"{op}[{i}]": part for i, part in enumerate(value)} if isinstance(value, list) else {op: value}
            for path, part in parts.items():
                yield from part.problems(f"{name}.{path}")


@dataclass
class ColorStep(ColorOp):
    """One operation, or several of which each image meets one, with equal chances."""

    one_of: Optional[list[ColorOp]] = None

    def choices(self) -> list[ColorOp]:
        return [self] if self.one_of is None else self.one_of

    def problems(self, name: str) -> Iterator[str]:
        yield from super().problems(name)
        if not self.choices():
            yield f"{name}.one_of: there is nothing to choose from"


# ------------------------------------------------------------------------------------------------ before there were steps

# the fields in their place -> how a Run says it now
BEFORE = {
    "color_jitter": "color: [{jitter: {strength: [0.4, 0.4, 0.2, 0.1]}}]",
    "color_jitter_prob": "color: [{jitter: {strength: [0.4, 0.4, 0.2, 0.1], prob: 0.8}}]",
    "grayscale_prob": "color: [{gray: {prob: 0.2}}]",
    "blur_prob": "color: [{blur: {prob: 0.5}}]",
    "blur_sigma": "color: [{blur: {sigma: [0.1, 2.0], prob: 0.5}}]",
    "solarize_prob": "color: [{solarize: {prob: 0.2}}]",
}


def with_steps(view: dict[str, Any]) -> dict[str, Any]:
    """A view's fields as an older version wrote them, with steps in place of those that it had before."""
    if not view.keys() & BEFORE.keys():
        return view
    steps = [step for step in _steps(without_steps([]) | view) if step not in _steps(without_steps([]))]
    return {name: value for name, value in view.items() if name not in BEFORE} | {"color": steps}


def _steps(fields: dict[str, Any]) -> list[dict[str, Any]]:
    """In the order in which they were always done."""
    return [
        {"jitter": {"prob": fields["color_jitter_prob"], "strength": fields["color_jitter"]}},
        {"gray": {"prob": fields["grayscale_prob"]}},
        {"blur": {"prob": fields["blur_prob"], "sigma": fields["blur_sigma"]}},
        {"solarize": {"prob": fields["solarize_prob"]}},
    ]


def without_steps(color: list[ColorStep]) -> dict[str, Any]:
    """The fields that said the same before there were steps; empty where none did."""
    off = {"jitter": Jitter(strength=[]), "gray": Gray(prob=0.0), "blur": Blur(prob=0.0), "solarize": Solarize(prob=0.0)}
    names = [name for step in color for name in step.chosen()]
    ops = off | {name: op for step in color for name, op in step.chosen().items()}
    if names != [name for name in off if name in names] or ops["solarize"].threshold != Solarize.threshold:
        return {}
    jitter, gray, blur, solarize = ops.values()
    return {
        "color_jitter": jitter.strength,
        "color_jitter_prob": jitter.prob,
        "grayscale_prob": gray.prob,
        "blur_prob": blur.prob,
        "blur_sigma": blur.sigma,
        "solarize_prob": solarize.prob,
    }
