"""The fields of a view's ``color``: its colour operations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Optional

from vitssl.config.base import Problem, interval_problems, minimum_problems, rising_problems


@dataclass
class Operation:
    """The fields that every colour operation has."""

    prob: float = 1.0  # probability of applying it to an image

    def problems(self, name: str) -> Iterator[Problem]:
        """Yield what is wrong with the fields; ``name`` is the dotted path of the operation, such as data.views.main.color[0].jitter."""
        yield from interval_problems("[0, 1]", self, name, "prob", share=True)


@dataclass
class Jitter(Operation):
    """torchvision's ColorJitter, except that all images of a step share one random order of its four operations."""

    strength: list[float] = field(default_factory=lambda: [0.4, 0.4, 0.4, 0.0])  # strengths of brightness, contrast, saturation and hue

    def problems(self, name: str) -> Iterator[Problem]:
        yield from super().problems(name)
        if len(self.strength) != 4 or not all(0 <= s < math.inf for s in self.strength):
            yield Problem(f"{name}.strength", f"{self.strength} is not [brightness, contrast, saturation, hue], none negative")
        elif self.strength[3] > 0.5:
            yield Problem(f"{name}.strength", f"hue {self.strength[3]} is more than 0.5, which already covers all hues")


@dataclass
class Gray(Operation):
    pass


@dataclass
class Blur(Operation):
    """Gaussian blur."""

    sigma: list[float] = field(default_factory=lambda: [0.1, 2.0])  # in pixels; drawn uniformly from this range for each image

    def problems(self, name: str) -> Iterator[Problem]:
        yield from super().problems(name)
        yield from rising_problems(f"{name}.sigma", self.sigma, 100.0)


@dataclass
class Solarize(Operation):
    threshold: int = 128  # pixel values from this one up (0 to 255) are inverted

    def problems(self, name: str) -> Iterator[Problem]:
        yield from super().problems(name)
        yield from minimum_problems(0, self, name, "threshold")


@dataclass
class ColorOp:
    """One operation: exactly one of these is set."""

    jitter: Optional[Jitter] = None
    gray: Optional[Gray] = None  # convert to grayscale
    blur: Optional[Blur] = None
    solarize: Optional[Solarize] = None  # invert bright pixels

    def chosen(self) -> dict[str, Any]:
        """Return the operations that are set, by name; a checked ColorOp has exactly one."""
        return {f.name: value for f in dataclasses.fields(self) if (value := getattr(self, f.name)) is not None}

    def problems(self, name: str) -> Iterator[Problem]:
        if len(self.chosen()) != 1:
            yield Problem(
                f"{name}", f"set exactly one of {', '.join(f.name for f in dataclasses.fields(self))}; null is off, {{}} its defaults"
            )
        for op, value in self.chosen().items():
            parts = {f"{op}[{i}]": part for i, part in enumerate(value)} if isinstance(value, list) else {op: value}
            for path, part in parts.items():
                yield from part.problems(f"{name}.{path}")


@dataclass
class ColorStep(ColorOp):
    """One operation, or several of which each image meets one, with equal chances."""

    one_of: Optional[list[ColorOp]] = None  # apply one of these operations to each image, chosen with equal probability

    def choices(self) -> list[ColorOp]:
        return [self] if self.one_of is None else self.one_of

    def problems(self, name: str) -> Iterator[Problem]:
        yield from super().problems(name)
        if not self.choices():
            yield Problem(f"{name}.one_of", "there is nothing to choose from")
