"""Policies are timm's (and the AutoAugment paper's); sampled operations do to each image what a slow loop over Pillow's does."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from timm.data import auto_augment as timm_ops
from torchvision.transforms import AutoAugment, AutoAugmentPolicy

from vitssl.config import ConfigError
from vitssl.data.loading.batch import RawBatch
from vitssl.views import color, image_op
from vitssl.views.augment import ARGUMENTS, CIFAR_ARGUMENTS, GEOMETRY, NONE, OPERATIONS, Policy, SampledOps, affine, parse_policy
from vitssl.views.image_op import apply
from vitssl.views.random import StepRandom

FILL = torch.tensor([120.0, 110.0, 100.0])
TIMM = {
    "TranslateX": timm_ops.translate_x_rel,
    "TranslateY": timm_ops.translate_y_rel,
    "ShearX": timm_ops.shear_x,
    "ShearY": timm_ops.shear_y,
    "Rotate": timm_ops.rotate,
    "Solarize": timm_ops.solarize,
    "Color": timm_ops.color,
    "Invert": lambda image, _: timm_ops.invert(image),
    "AutoContrast": lambda image, _: timm_ops.auto_contrast(image),
}


def step_random(images: int, step: int = 0, seed: int = 0) -> StepRandom:
    nothing = torch.zeros(images)
    return StepRandom(seed, "main", 1, RawBatch(nothing, nothing, nothing, nothing, step, slice(0, images), images, 0.0))


def photos(side: int) -> list[Image.Image]:
    return [Image.fromarray(i).resize((side, side)) for i in load_sample_images().images]


def batch(images: list[Image.Image]) -> torch.Tensor:
    return torch.from_numpy(np.stack([np.array(i) for i in images])).permute(0, 3, 1, 2).float().contiguous()


def sampled(*steps: list[tuple[str, float] | None]) -> SampledOps:
    """One list of (operation, argument) per image."""
    names = [[OPERATIONS.index(s[0]) if s else NONE for s in image] for image in steps]
    return SampledOps(np.array(names), np.array([[s[1] if s else 0.0 for s in image] for image in steps]))


def carry_out(made: SampledOps, pixels: torch.Tensor, interpolation: str = "bilinear") -> torch.Tensor:
    apply(list(made.image_ops(pixels.shape[-1], FILL, interpolation)), pixels, slice(0, len(pixels)))
    return pixels


# -------------------------------------------------------------------------------------------------------------- policy


def test_auto_augment_is_timms_table():
    policy = parse_policy("original")
    theirs = [(op.name, op.prob, op.magnitude) for pair in timm_ops.auto_augment_policy_original(None) for op in pair]
    assert policy.entries == theirs and policy.rows.tolist() == [[2 * i, 2 * i + 1] for i in range(25)]


def test_cifar10_is_the_papers_table():
    ours = [(OPERATIONS.index(ARGUMENTS[name][0]), p, m) for name, p, m in parse_policy("cifar10").entries]
    theirs = [step for pair in AutoAugment()._get_policies(AutoAugmentPolicy.CIFAR10) for step in pair]
    assert len(ours) == len(theirs) == 50
    for (operation, p, magnitude), (name, their_p, their_magnitude) in zip(ours, theirs, strict=True):
        assert (OPERATIONS[operation], p) == (name, their_p)
        assert their_magnitude in (magnitude, None)  # torchvision leaves out those without effect


# what SL-ViT's public code draws from: operation -> (argument at the magnitudes 0 and 9, whether its sign is drawn)
CIFAR_RANGES = {
    "ShearX": (0, 0.3, True),
    "ShearY": (0, 0.3, True),
    "TranslateX": (0, 150 / 331, True),
    "TranslateY": (0, 150 / 331, True),
    "Rotate": (0, 30, False),
    "Posterize": (8, 4, False),
    "Solarize": (256, 0, False),
    **dict.fromkeys(("Color", "Contrast", "Brightness", "Sharpness"), (0, 0.9, True)),
}


def cifar_argument(operation: str, magnitude: int, sign: int) -> float:
    first, last, signed = CIFAR_RANGES[operation]
    value = float(np.linspace(first, last, 10)[magnitude]) * (sign if signed else 1)
    return {"Posterize": round(value)}.get(operation, 1 + value if (first, last) == (0, 0.9) else value)


def test_cifar10_has_ten_levels_for_each_operation():
    policy = parse_policy("cifar10")
    for name, _, magnitude in policy.entries:
        operation, argument = policy.arguments[name]
        for sign in (-1, 1):
            if operation in CIFAR_RANGES:
                level, expected = np.array([magnitude / policy.highest]), cifar_argument(operation, int(magnitude), sign)
                assert argument(level, np.array([sign])) == pytest.approx([expected]), (name, magnitude)
    drawn = policy.sample(step_random(30_000))
    found = {name: np.unique(drawn.argument_BT[drawn.operation_BT == OPERATIONS.index(name)]).round(3).tolist() for name in CIFAR_RANGES}
    assert found["Solarize"] == [28.444, 113.778, 170.667, 199.111] and found["Posterize"] == [5] and found["Rotate"] == [6.667]
    assert found["Color"] == [0.1, 0.2, 0.3, 0.7, 1, 1.3, 1.7, 1.8, 1.9]
    assert found["TranslateX"] == [-0.453, -0.403, 0.403, 0.453] and found["ShearY"] == [-0.267, -0.233, 0.233, 0.267]


def test_cifar10_draws_signs_as_often_as_not():
    made = parse_policy("cifar10").sample(step_random(40_000))
    for name, neutral in (("TranslateY", 0), ("ShearY", 0), ("Sharpness", 1), ("Brightness", 1)):
        argument = made.argument_BT[made.operation_BT == OPERATIONS.index(name)]
        assert (argument > neutral).mean() == pytest.approx(0.5, abs=0.04)
    shares = {name: (made.operation_BT == OPERATIONS.index(name)).sum() / 40_000 for name in ("Rotate", "Posterize", "Invert")}
    assert shares == pytest.approx({"Rotate": 0.7 / 25, "Posterize": 0.3 / 25, "Invert": 0.2 / 25}, abs=0.004)


@pytest.mark.parametrize(("text", "increasing"), [("rand-m9-mstd0.5-inc1", True), ("rand-m7-n3-p0.7", False), ("rand", False)])
def test_rand_augment_is_timms(text, increasing):
    ours, theirs = parse_policy(text), timm_ops.rand_augment_transform(text, {})
    assert ours.independent and ours.rows.shape == (15, theirs.num_layers)
    assert ours.entries == [(op.name, op.prob, op.magnitude) for op in theirs.ops]
    assert {op.magnitude_std for op in theirs.ops} == {ours.magnitude_std}


@pytest.mark.parametrize("text", ["rand-x3", "rand-m", "rand-m9-t1a", "originalr", "augmix-m3"])
def test_unknown_policies_are_refused(text):
    with pytest.raises(ConfigError, match=r"^auto_augment: .*none of"):
        parse_policy(text)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_are_timms(name, monkeypatch):
    their_argument = timm_ops.LEVEL_TO_ARG[name]
    for sign in (-1, 1):
        monkeypatch.setattr(random, "random", lambda sign=sign: 0.9 if sign < 0 else 0.1)
        for magnitude in np.linspace(0, 10, 21):
            ours = ARGUMENTS[name][1](np.array([magnitude / 10]), np.array([sign]))
            if their_argument is not None:
                assert ours[0] == pytest.approx(their_argument(magnitude, {})[0])


def test_draws_follow_the_policy():
    images = 30_000
    made = parse_policy("rand-m9-mstd0.5-inc1").sample(step_random(images))
    assert (made.operation_BT == NONE).mean() == pytest.approx(0.5, abs=0.01)
    shares = [(made.operation_BT == k).mean() for k in range(len(OPERATIONS))]
    assert shares == pytest.approx([1 / 30] * 15, abs=0.003)
    degrees = made.argument_BT[made.operation_BT == OPERATIONS.index("Rotate")]
    assert (degrees > 0).mean() == pytest.approx(0.5, abs=0.05) and np.abs(degrees).max() == 30  # magnitudes above 10 are cut
    assert np.abs(degrees).mean() == pytest.approx(27, abs=0.3) and 0.9 < np.abs(degrees).std() < 1.6
    same = made.operation_BT[:, 0] == made.operation_BT[:, 1]
    assert same[made.operation_BT[:, 0] != NONE].mean() == pytest.approx(1 / 30, abs=0.006)  # steps are independent


def test_a_policy_of_no_steps_changes_nothing():
    pixels = batch(photos(9))
    assert torch.equal(carry_out(parse_policy("rand-n0").sample(step_random(2)), pixels.clone()), pixels)


def test_auto_augment_draws_whole_rows():
    entries = [("Invert", 1, 0), ("Equalize", 0.25, 0), ("Color", 1, 10), ("Color", 1, 0)]
    made = Policy(entries, np.array([[0, 1], [2, 3]]), independent=False).sample(step_random(4000))
    first, second = ([OPERATIONS[k] if k != NONE else None for k in column] for column in made.operation_BT.T)
    assert set(zip(first, second, strict=True)) == {("Invert", "Equalize"), ("Invert", None), ("Color", "Color")}
    assert first.count("Invert") == pytest.approx(2000, abs=150)
    assert second.count("Equalize") == pytest.approx(500, abs=100)
    assert made.argument_BT[np.array(first) == "Color"] == pytest.approx(np.array([[1.9, 0.1]] * first.count("Color")))


def test_uniform_magnitudes_above_a_std_of_100():
    degrees = parse_policy("rand-m8-mstd101-p1").sample(step_random(20_000))
    degrees = np.abs(degrees.argument_BT[degrees.operation_BT == OPERATIONS.index("Rotate")])
    assert degrees.max() < 24 and np.histogram(degrees, 4, (0, 24))[0] / len(degrees) == pytest.approx([0.25] * 4, abs=0.03)
    above = parse_policy("rand-m20-mstd101-p1").sample(step_random(500))
    assert np.abs(above.argument_BT[above.operation_BT == OPERATIONS.index("Rotate")]).max() == 30  # magnitudes end at 10, as in timm


# ------------------------------------------------------------------------------------------------------------ carrying out


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize(("operation", "size"), list(zip(GEOMETRY, (27, 0.29, 0.17, 0.41, 0.45), strict=True)))
def test_one_geometric_operation_equals_timms(operation, size, sign):
    argument = sign * size
    image = photos(64)[0]
    ours = carry_out(sampled([(operation, argument)]), batch([image]))
    theirs = TIMM[operation](image, argument, resample=Image.Resampling.BILINEAR, fillcolor=tuple(int(f) for f in FILL))
    assert (ours[0] - batch([theirs])[0]).abs().max() <= 1


@pytest.mark.parametrize(("operation", "size"), list(zip(GEOMETRY, (27, 0.29, 0.17, 0.41, 0.45), strict=True)))
def test_bicubic_geometry_is_closer_to_timms_than_bilinear(operation, size):
    image = photos(64)[0]
    theirs = batch([TIMM[operation](image, size, resample=Image.Resampling.BICUBIC, fillcolor=tuple(int(f) for f in FILL))])
    away = {kind: (carry_out(sampled([(operation, size)]), batch([image]), kind) - theirs).abs().mean() for kind in ("bicubic", "bilinear")}
    assert away["bicubic"] < 1.2 and away["bicubic"] < 0.5 * away["bilinear"]


def test_colours_run_in_the_order_of_the_steps_on_the_right_images():
    one, two = photos(40)
    solarize, invert = ("Solarize", 100), ("Invert", 0)
    steps = [[solarize, invert], [invert, solarize], [None, ("AutoContrast", 0)], [None, None], [("Color", 0.3), ("Color", 1.6)]]
    images = [one, one, two, two, one]
    ours = carry_out(sampled(*steps), batch(images))
    for k, (image, row) in enumerate(zip(images, steps, strict=True)):
        for step in row:
            image = TIMM[step[0]](image, step[1]) if step else image
        assert (ours[k] - batch([image])[0]).abs().max() <= 2, steps[k]
    assert not torch.equal(ours[0], ours[1])


def test_two_geometric_steps_are_one_map():
    """Where nothing left the image in between, and up to the second interpolation that Pillow does and we do not."""
    smooth = Image.fromarray(load_sample_images().images[1]).resize((8, 8)).resize((96, 96), Image.Resampling.BICUBIC)
    ours = carry_out(sampled([("Rotate", 20), ("ShearX", 0.2)]), batch([smooth]))[0]
    theirs = smooth
    for name, argument in (("Rotate", 20), ("ShearX", 0.2)):
        theirs = TIMM[name](theirs, argument, resample=Image.Resampling.BILINEAR, fillcolor=(0, 0, 0))
    difference = (ours - batch([theirs])[0])[:, 30:66, 30:66]
    assert difference.abs().max() <= 4 and difference.abs().mean() < 1
    swapped = carry_out(sampled([("ShearX", 0.2), ("Rotate", 20)]), batch([smooth]))[0]
    assert (ours - swapped).abs().max() > 20


def test_affine_maps_compose_in_the_order_of_the_steps():
    moved, turned = affine("TranslateX", np.array([0.25]), 8)[0], affine("Rotate", np.array([90]), 8)[0]
    made, _ = sampled([("TranslateX", 0.25), ("Rotate", 90)]).affine_maps(8)
    assert made[0] == pytest.approx(moved @ turned)
    assert made[0] @ [4, 4, 1] == pytest.approx([6, 4, 1])  # the centre shows what the translation put there


def test_a_part_takes_its_own_rows():
    whole, images = sampled(*[[("Invert", 0)] if k % 3 == 0 else [("Posterize", k % 4)] for k in range(10)]), batch(photos(16) * 5)
    expected = carry_out(whole, images.clone())
    for start in range(0, 10, 4):
        apply(list(whole.image_ops(16, FILL, "bilinear")), images[start : start + 4], slice(start, start + 4))
    assert torch.equal(images, expected)


def test_all_operations_go_to_the_device_in_two_copies_or_none(monkeypatch):
    copied = []
    monkeypatch.setattr(image_op, "to_device", lambda array, device: copied.append(array.dtype) or torch.from_numpy(array))
    carry_out(sampled([("Rotate", 9.0), ("Invert", 0)], [("Posterize", 2), ("Color", 0.5)], [None, None]), batch(photos(16)[:3]))
    assert copied == [np.int64, np.float32]
    carry_out(sampled([None], [None]), batch(photos(16)[:2]))
    assert len(copied) == 2


def test_every_operation_can_be_drawn():
    for arguments in (ARGUMENTS, CIFAR_ARGUMENTS):
        assert {operation for operation, _ in arguments.values()} == set(OPERATIONS) == {*GEOMETRY, *color.OPS}
