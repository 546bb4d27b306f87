"""The evaluator on altered images: its perspectives are torchvision's, its squares as large as they say, and nothing else changes."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import binary_dilation, binary_erosion
from torch._subclasses.fake_tensor import FakeTensorMode
from torchvision.transforms import RandomPerspective

import vitssl
from vitssl import cli, config, train
from vitssl.config import ConfigError
from vitssl.config.evals import ClassificationConfig, RobustnessConfig
from vitssl.evaluators.robustness import corners_42, occlude, outer_corners_42, warp
from vitssl.files import read_json

BLACK = torch.tensor([-2.0, -1.5, -1.0])[:, None, None]
WARPED = {"evals.warped": {"type": "robustness", "perspective": 0.5}}


def pillow_s(image: Image.Image, start_42: np.ndarray, end_42: np.ndarray) -> np.ndarray:
    """The image with its corners moved from start to end, by Pillow, as SSAT's public code has it; 0 outside."""
    rows, places = [], []
    for (x, y), (to_x, to_y) in zip(start_42.astype(float), end_42.astype(float), strict=True):  # of (to_x, to_y) it wants (x, y)
        rows += [[to_x, to_y, 1, 0, 0, 0, -x * to_x, -x * to_y], [0, 0, 0, to_x, to_y, 1, -y * to_x, -y * to_y]]
        places += [x, y]
    coefficients = np.linalg.solve(np.array(rows), np.array(places))
    return np.asarray(image.transform(image.size, Image.Transform.PERSPECTIVE, coefficients.tolist(), Image.Resampling.BILINEAR))


def test_a_perspective_is_pillow_s():
    side = 64
    smooth = Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((side, side))
    pixels = torch.from_numpy(np.asarray(smooth).astype(np.float32)).permute(2, 0, 1) / 255
    images_BCSS = (pixels + BLACK).repeat(6, 1, 1, 1)  # normalised: black is BLACK
    numbers = [3, 5, 7, 11, 13, 400]
    images_BCSS = warp(images_BCSS, numbers, 0.5, 1, BLACK)
    for image_CSS, number in zip(images_BCSS, numbers, strict=True):
        corners = outer_corners_42(side), corners_42(side, 0.5, 1, number)
        expected, inside = pillow_s(smooth, *corners), pillow_s(Image.new("L", smooth.size, 255), *corners) == 255
        found = 255 * (image_CSS - BLACK).permute(1, 2, 0).numpy()
        well_inside, near = binary_erosion(inside, iterations=2), binary_dilation(inside, iterations=3)
        assert well_inside.mean() > 0.2 and np.abs(found - expected)[well_inside].max() < 1.01  # Pillow rounds to whole levels
        assert not near.all() and np.abs(found)[~near].max() < 1e-4  # black, on the normalised scale too


@pytest.mark.parametrize(("side", "distortion"), [(64, 0.5), (33, 0.3), (8, 0.5)])
def test_corners_are_drawn_as_torchvision_draws_them(side, distortion):
    torch.manual_seed(0)
    count = 3000
    theirs = np.array([RandomPerspective.get_params(side, side, distortion)[1] for _ in range(count)])
    ours = np.array([corners_42(side, distortion, 0, number) for number in range(count)])
    assert RandomPerspective.get_params(side, side, distortion)[0] == outer_corners_42(side).tolist()
    for corner in range(4):
        for axis in range(2):
            one, other = ours[:, corner, axis], theirs[:, corner, axis]
            assert set(one) == set(other)
            assert abs(one.mean() - other.mean()) < 5 * one.std() * (2 / count) ** 0.5


def test_white_images_keep_as_much_as_in_the_paper_s_protocol():
    """54.6 % of the frame at torchvision's distortion of 0.5, measured of constant images with Pillow."""
    images_BCSS = warp(torch.ones(400, 3, 64, 64), range(400), 0.5, 0, torch.zeros(3, 1, 1))
    assert float(images_BCSS.mean()) == pytest.approx(0.546, abs=0.012)


def test_an_image_is_altered_alike_in_any_batch_and_otherwise_by_another_seed():
    images_BCSS = torch.rand(5, 3, 24, 24)
    numbers = [9, 2, 7, 4, 0]
    together = warp(images_BCSS, numbers, 0.4, 0, BLACK)
    alone = warp(images_BCSS[2:3], numbers[2:3], 0.4, 0, BLACK)
    assert torch.allclose(together[2:3], alone, atol=1e-5) and not torch.allclose(alone, images_BCSS[2:3], atol=0.1)
    assert not torch.allclose(together, warp(images_BCSS, numbers, 0.4, 1, BLACK), atol=0.1)
    still = warp(images_BCSS, numbers, 0.05, 0, BLACK)  # less than a pixel
    assert torch.allclose(still, images_BCSS, atol=1e-4)


@pytest.mark.parametrize("side", [2, 3, 4, 8, 15])
def test_no_pixel_of_a_small_image_is_lost(side):
    """A horizon that goes through the centre of a pixel, where torchvision's function gives NaN for 11 of 3,000 images of 8 px."""
    images_BCSS = warp(torch.rand(3000, 3, side, side), range(3000), 0.6, 0, torch.zeros(3, 1, 1))
    assert images_BCSS.isfinite().all() and images_BCSS.min() >= 0 and images_BCSS.max() <= 1 and images_BCSS.mean() > 0.2


@pytest.mark.parametrize(("side", "share", "zeros"), [(224, 0.5, 12544), (7, 0.5, 16), (8, 0.0, 0), (8, 1.0, 64), (9, 0.34, 9)])
def test_the_square_is_centred_and_as_large_as_it_says(side, share, zeros):
    images_BCSS = torch.ones(2, 3, side, side)
    occlude(images_BCSS, share)
    hidden = images_BCSS[1, 2] == 0
    assert int(hidden.sum()) == zeros and torch.equal(hidden, images_BCSS[0, 0] == 0)
    if (side - round(share * side)) % 2 == 0:
        assert torch.equal(hidden, hidden.flip(0)) and torch.equal(hidden, hidden.flip(1))


def test_images_are_altered_on_the_gpu():
    with FakeTensorMode():
        on_gpu = torch.ones(3, 3, 8, 8, device="cuda")
        altered = warp(on_gpu, range(3), 0.5, 0, torch.ones(3, 1, 1, device="cuda"))
        occlude(altered, 0.5)
        assert altered.device == on_gpu.device and altered.shape == on_gpu.shape


@pytest.fixture
def folder(make_run, digits, tmp_path):
    def make(name, *layers):
        layers = ({"loop": {"epochs": 3}, "data.images": {"per_class": 16}, "objectives.classify": {}}, *layers)
        config.save(make_run(*layers, shards=digits), tmp_path / name)
        return tmp_path / name

    return make


def test_a_run_is_evaluated_on_altered_images_whoever_asks(folder, capsys):
    run = folder("run", WARPED)
    assert train.main([str(run)]) == 0
    warped, plain = read_json(run / "evals.json")["warped"]["metrics"], read_json(run / "done.json")["test"]
    assert warped.keys() == plain.keys() and warped["count"] == 450 and warped["loss"] != plain["loss"]
    with np.load(run / "predictions-warped.npz") as saved:
        assert 100 * (saved["predicted"] == saved["labels"]).mean() == pytest.approx(warped["top1"])
    capsys.readouterr()
    assert cli.main(["evaluate", str(run), "--type", "robustness", "--set", "perspective=0.5"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["top1"], found["loss"]) == (warped["top1"], pytest.approx(warped["loss"], rel=1e-5))
    evals = {
        "still": RobustnessConfig(perspective=0.1),  # of 8 pixels: less than one
        "gone": RobustnessConfig(occlusion=1.0),
        "own": ClassificationConfig(),
    }
    results = vitssl.load(run).evaluate(evals)
    assert results["still"].metrics["loss"] == pytest.approx(results["own"].metrics["loss"], rel=1e-4)
    assert len(set(results["gone"].arrays["predicted"])) == 1  # nothing is left to tell images apart


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, r"evals\.x\.type: nothing alters the images; set perspective or occlusion"),
        ({"perspective": 0.7}, r"evals\.x\.perspective: 0\.7 is not in \[0, 0\.6\]"),
        ({"occlusion": -0.1}, r"evals\.x\.occlusion: -0\.1 is not in \[0, 1\]"),
        ({"perspective": 0.5, "seed": -1}, r"evals\.x\.seed: -1 is less than 0"),
        ({"occlusion": 0.5, "classes": "shards"}, r"evals\.x\.classes: shards has an effect only with other shards"),
        ({"perspective": 0.1}, r"evals\.x\.perspective: 0\.1 is less than a pixel of images of 8 px; raise it"),
        ({"occlusion": 0.05}, r"evals\.x\.occlusion: 0\.05 is less than a pixel of images of 8 px"),
        ({"occlusion": 0.5, "seed": 1}, r"evals\.x\.seed: 1 has an effect only with a perspective"),
    ],
)
def test_what_alters_nothing_or_too_much_is_refused(make_run, fields, message):
    with pytest.raises(ConfigError, match=message):
        make_run({"objectives.classify": {}, "evals": {"x": {"type": "robustness", **fields}}})


def test_the_type_is_suggested_by_its_fields(make_run):
    with pytest.raises(ConfigError, match=r"the type is missing; write 'evals=\{x: \{type: robustness, occlusion: 0\.5\}\}'"):
        make_run({"objectives.classify": {}, "evals": {"x": {"occlusion": 0.5}}})
