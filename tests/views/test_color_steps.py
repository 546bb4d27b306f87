"""The colour pipelines of papers' public code, each from YAML against a slow loop over images and against its shares by hand."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from sklearn.datasets import load_sample_images

from vitssl.config import ColorStep, View, merge
from vitssl.config.color import ColorOp
from vitssl.data.loading.batch import RawBatch
from vitssl.views import color
from vitssl.views.color_steps import color_ops
from vitssl.views.image_op import apply
from vitssl.views.random import StepRandom

# LUT, strong view: colour jitter, then one of three
LUT = """
- jitter: {strength: [0.4, 0.4, 0.2, 0.1], prob: 0.8}
- one_of: [gray, solarize, blur]
"""
# DeiT III (three-augment): one of three, then a jitter of 0.3 without hue, always
DEIT_III = """
- one_of: [gray, solarize, blur]
- jitter: {strength: [0.3, 0.3, 0.3, 0]}
"""
# DINO: the first global crop is always blurred, the second now and then and solarised, the local ones half of the time
DINO = """
- jitter: {strength: [0.4, 0.4, 0.2, 0.1], prob: 0.8}
- gray: {prob: 0.2}
"""
DINO_1, DINO_2, DINO_LOCAL = (DINO + step for step in ("- blur", "- blur: {prob: 0.1}\n- solarize: {prob: 0.2}", "- blur: {prob: 0.5}"))
# SiT: ColorJitter(0.4, 0.4, 0.4), always, and nothing else
SIT = "[jitter]"
GMML = """
- jitter: {strength: [0.1, 0.1, 0.1, 0.01], prob: 0.3}
- blur: {prob: 0.1}
"""
PIPELINES = {"lut": LUT, "deit_iii": DEIT_III, "dino_1": DINO_1, "dino_2": DINO_2, "dino_local": DINO_LOCAL, "sit": SIT, "gmml": GMML}
HUES = {"hue", "brightness", "contrast", "color"}


@cache
def steps(text: str) -> list[ColorStep]:
    view = merge(View, {"color": yaml.safe_load(text)})
    assert not list(view.problems("view", 224))
    return view.color


def step_random(images: int, step: int = 0) -> StepRandom:
    nothing = torch.zeros(images)
    return StepRandom(0, "main", 1, RawBatch(nothing, nothing, nothing, nothing, step, slice(0, images), images, 0.0))


def operations(text: str, step: int = 0) -> tuple[str, ...]:
    return tuple(op.operation.__name__ for op in color_ops(steps(text), step_random(8, step)))


# ------------------------------------------------------------------------------------------------- what each image undergoes


def traces(text: str, images: int = 20_000, step: int = 0) -> Counter[tuple[str, ...]]:
    """How often which operations, in order; the four of a jitter as "jitter" where they stand together and undergo all their images."""
    ops = list(color_ops(steps(text), step_random(images, step)))
    names = np.array([op.operation.__name__ for op in ops])
    undergone = np.stack([op.chosen_B for op in ops], axis=1)
    found: Counter[tuple[str, ...]] = Counter()
    for row, count in zip(*np.unique(undergone, axis=0, return_counts=True), strict=True):
        found[tuple(_jitters_as_one(list(names[row])))] += int(count)
    return found


def _jitters_as_one(names: list[str]) -> Iterator[str]:
    while names:
        first = next((i for i, name in enumerate(names) if name not in HUES), len(names))
        yield f"jitter{first}" if first else names[0]
        del names[: max(first, 1)]


def shares(found: Counter[tuple[str, ...]]) -> dict[tuple[str, ...], float]:
    return {names: count / found.total() for names, count in found.items()}


def products(*parts: dict[str, float]) -> dict[tuple[str, ...], float]:
    """The chances of all sequences of independent parts, "" being nothing."""
    result: dict[tuple[str, ...], float] = {(): 1.0}
    for part in parts:
        result = {(*names, *([name] if name else [])): p * q for names, p in result.items() for name, q in part.items()}
    return result


def now_and_then(name: str, p: float) -> dict[str, float]:
    return {name: p, "": 1 - p}


ONE_OF_THREE = dict.fromkeys(("grayscale", "solarize", "gaussian_blur"), 1 / 3)
FOUR, THREE = "jitter4", "jitter3"  # with and without hue
SHARES = {
    "lut": products(now_and_then(FOUR, 0.8), ONE_OF_THREE),
    "deit_iii": products(ONE_OF_THREE, {THREE: 1.0}),
    "dino_1": products(now_and_then(FOUR, 0.8), now_and_then("grayscale", 0.2), {"gaussian_blur": 1.0}),
    "dino_2": products(
        now_and_then(FOUR, 0.8), now_and_then("grayscale", 0.2), now_and_then("gaussian_blur", 0.1), now_and_then("solarize", 0.2)
    ),
    "dino_local": products(now_and_then(FOUR, 0.8), now_and_then("grayscale", 0.2), now_and_then("gaussian_blur", 0.5)),
    "sit": products({THREE: 1.0}),
    "gmml": products(now_and_then(FOUR, 0.3), now_and_then("gaussian_blur", 0.1)),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_images_undergo_what_the_papers_code_does_as_often_and_in_its_order(name):
    found = shares(traces(PIPELINES[name]))
    assert found.keys() == SHARES[name].keys()
    assert found == pytest.approx(SHARES[name], abs=0.012)  # a standard deviation is 0.0035 at most


RANGES = {
    "lut": {"brightness": (0.6, 1.4), "contrast": (0.6, 1.4), "color": (0.8, 1.2), "hue": (-0.1, 0.1)},
    "deit_iii": dict.fromkeys(("brightness", "contrast", "color"), (0.7, 1.3)),
    "dino_2": {"brightness": (0.6, 1.4), "contrast": (0.6, 1.4), "color": (0.8, 1.2), "hue": (-0.1, 0.1)},
    "sit": dict.fromkeys(("brightness", "contrast", "color"), (0.6, 1.4)),
    "gmml": {**dict.fromkeys(("brightness", "contrast", "color"), (0.9, 1.1)), "hue": (-0.01, 0.01)},
}


@pytest.mark.parametrize("name", RANGES)
def test_arguments_are_uniform_in_the_papers_ranges(name):
    ranges = RANGES[name] | {"gaussian_blur": (0.1, 2.0), "solarize": (128, 128), "grayscale": (0, 0)}
    ops = list(color_ops(steps(PIPELINES[name]), step_random(20_000)))
    assert {op.operation.__name__ for op in ops} >= RANGES[name].keys()
    for op in ops:
        low, high = ranges[op.operation.__name__]
        own = op.argument_B[op.chosen_B]
        assert low <= own.min() and own.max() <= high
        quarters = np.quantile(own, [0, 0.25, 0.5, 0.75, 1])
        assert quarters == pytest.approx(np.linspace(low, high, 5), abs=0.04 * (high - low))


def test_a_jitter_has_one_random_order_a_step():
    orders = Counter()
    for step in range(400):
        names = tuple(
            op.operation.__name__ for op in color_ops(steps("[{jitter: {strength: [0.4, 0.4, 0.2, 0.1]}}]"), step_random(1, step))
        )
        assert set(names) == HUES
        orders[names] += 1
    assert len(orders) == 24 and max(orders.values()) < 400 / 24 * 2.5


# -------------------------------------------------------------------------------------------------------------- slow loop


def photos(side: int, count: int) -> torch.Tensor:
    pictures = [np.array(Image.fromarray(i).resize((side, side))) for i in load_sample_images().images]
    return torch.from_numpy(np.stack([pictures[k % 2] for k in range(count)])).permute(0, 3, 1, 2).float().contiguous()


class Slow:
    """One image through a pipeline, its random numbers taken from the streams by name."""

    def __init__(self, pixels: torch.Tensor, k: int, random: StepRandom):
        self.pixels, self.k, self.random = pixels[None].clone(), k, random

    def chance(self, purpose: str) -> float:
        return float(self.random.uniform(purpose)[self.k])

    def do(self, operation: Callable, argument: float) -> None:
        self.pixels = operation(self.pixels, torch.tensor([argument], dtype=torch.float32)).clone()

    def jitter(self, brightness: float, contrast: float, saturation: float, hue: float) -> None:
        for i in self.random.order("jitter/order", 4)[0]:
            name = ("brightness", "contrast", "color", "hue")[i]
            amount, center = (brightness, contrast, saturation, hue)[i], 0 if i == 3 else 1
            if amount:
                self.do(getattr(color, name), center - amount + 2 * amount * self.chance(f"jitter/{name}"))

    def blur(self) -> None:
        self.do(color.gaussian_blur, 0.1 + 1.9 * self.chance("blur/argument"))

    def one_of_three(self) -> None:
        choice = int(3 * self.chance("one_of"))
        if choice == 0:
            self.do(color.grayscale, 0)
        elif choice == 1:
            self.do(color.solarize, 128)
        else:
            self.blur()


def lut(image: Slow) -> None:
    if image.chance("jitter") < 0.8:
        image.jitter(0.4, 0.4, 0.2, 0.1)
    image.one_of_three()


def deit_iii(image: Slow) -> None:
    image.one_of_three()
    image.jitter(0.3, 0.3, 0.3, 0)


def dino(image: Slow, blur: float, solarize: float) -> None:
    if image.chance("jitter") < 0.8:
        image.jitter(0.4, 0.4, 0.2, 0.1)
    if image.chance("grayscale") < 0.2:
        image.do(color.grayscale, 0)
    if image.chance("blur") < blur:
        image.blur()
    if image.chance("solarize") < solarize:
        image.do(color.solarize, 128)


def gmml(image: Slow) -> None:
    if image.chance("jitter") < 0.3:
        image.jitter(0.1, 0.1, 0.1, 0.01)
    if image.chance("blur") < 0.1:
        image.blur()


SLOW = {
    "lut": lut,
    "deit_iii": deit_iii,
    "dino_1": lambda image: dino(image, 1.0, 0.0),
    "dino_2": lambda image: dino(image, 0.1, 0.2),
    "dino_local": lambda image: dino(image, 0.5, 0.0),
    "sit": lambda image: image.jitter(0.4, 0.4, 0.4, 0),
    "gmml": gmml,
}


@pytest.mark.parametrize("name", PIPELINES)
def test_pixels_equal_a_slow_loop_over_images(name):
    images, random = 40, step_random(40, step=2)
    before = photos(24, images)
    after = before.clone()
    apply(list(color_ops(steps(PIPELINES[name]), random)), after, slice(0, images))
    for k in range(images):
        slow = Slow(before[k], k, random)
        SLOW[name](slow)
        assert (after[k] - slow.pixels[0]).abs().max() <= 1  # a blur's sums of another size may round a pixel the other way
    assert (after != before).any((1, 2, 3)).sum() >= images * 0.2


# ---------------------------------------------------------------------------------------------------------- streams, choices


def test_no_steps_do_nothing():
    assert operations("[]") == operations("[{jitter: {strength: [0, 0, 0, 0]}}]") == ()


def test_only_what_is_asked_for_is_done_in_the_order_of_the_list():
    text = "[{solarize: {prob: 0.2}}, {gray: {prob: 0.2}}, {jitter: {strength: [0, 0.4, 0, 0]}}, {blur: {prob: 0.5}}]"
    assert [op.operation.__name__ for op in color_ops(steps(text), step_random(8))] == [
        "solarize",
        "grayscale",
        "contrast",
        "gaussian_blur",
    ]


def chosen(text: str, images: int = 4000) -> list[np.ndarray]:
    return [op.chosen_B for op in color_ops(steps(text), step_random(images))]


def test_what_an_operation_does_depends_neither_on_its_place_nor_on_the_others():
    alone, other = chosen("[{gray: {prob: 0.3}}]"), chosen("[jitter, {blur: {prob: 0.4}}, {gray: {prob: 0.3}}]")
    assert np.array_equal(alone[0], other[-1])


def test_an_operation_that_comes_again_is_independent_of_the_first():
    first, second = chosen("[{gray: {prob: 0.5}}, {gray: {prob: 0.5}}]")
    assert np.array_equal(first, chosen("[{gray: {prob: 0.5}}]")[0])
    assert (first & second).mean() == pytest.approx(0.25, abs=0.03)
    blurs = list(color_ops(steps("[blur, blur]"), step_random(4000)))
    assert abs(np.corrcoef(blurs[0].argument_B, blurs[1].argument_B)[0, 1]) < 0.05
    choices = chosen("[{one_of: [gray, solarize]}, {one_of: [gray, solarize]}]")
    assert (choices[0] & choices[2]).mean() == pytest.approx(0.25, abs=0.03)


def test_exactly_one_of_several_is_chosen_for_each_image_with_equal_chances():
    for count in (2, 3, 4):
        found = np.stack(chosen(f"[{{one_of: {['gray', 'solarize', 'blur', 'gray'][:count]}}}]", images=12_000))
        assert (found.sum(0) == 1).all()
        assert found.mean(1) == pytest.approx(np.full(count, 1 / count), abs=0.02)


def test_one_of_several_keeps_its_own_chance_and_numbers():
    text = "[{one_of: [{gray: {prob: 0.25}}, {blur: {sigma: [0.5, 1.5]}}, {jitter: {strength: [0.2, 0, 0, 0]}}]}]"
    gray, blur, brightness = color_ops(steps(text), step_random(20_000))
    assert gray.chosen_B.mean() == pytest.approx(1 / 12, abs=0.01) and blur.chosen_B.mean() == pytest.approx(1 / 3, abs=0.015)
    assert 0.5 <= blur.argument_B.min() < 0.52 and 1.48 < blur.argument_B.max() <= 1.5
    assert (
        brightness.argument_B.max() <= 1.2 and not (gray.chosen_B & blur.chosen_B).any() and not (blur.chosen_B & brightness.chosen_B).any()
    )


def test_the_threshold_is_the_lowest_level_that_is_inverted():
    ops = list(color_ops(steps("[{solarize: {threshold: 200}}]"), step_random(1)))
    images = torch.arange(256.0).view(1, 1, 16, 16).expand(1, 3, 16, 16).contiguous()
    apply(ops, images, slice(0, 1))
    assert images[0, 0].flatten().tolist() == [*range(200), *range(55, -1, -1)]


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(ColorOp)])
def test_every_operation_that_can_be_asked_for_is_done(name: str) -> None:
    assert list(color_ops(steps(f"[{name}]"), step_random(1, 0)))
