"""Grad-CAM and attention maps against differences, loops, and what is known beforehand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch import Tensor

import vitssl
from vitssl import cli
from vitssl.analysis import attention, grad_cam, maps
from vitssl.analysis.base import DrawnImages
from vitssl.config import ConfigError
from vitssl.data import UNLABELLED
from vitssl.data.loading.batch import Batch
from vitssl.trained import Trained

SMALL = {"backbone.patch_size": 4}  # four patches of the 8-px digits
MEAN = {"objectives.classify.pool": "mean"}
OTHER = {f"backbone.{name}": None for name in ("embed_dim", "depth", "num_heads", "patch_size")} | {"data.image_size": 32}
RESNET = OTHER | MEAN | {"backbone.name": "resnet8"}
NETWORKS = {
    "class token": SMALL,
    "mean of patches": SMALL | MEAN,
    "two blocks": SMALL | {"objectives.classify.blocks": 2},
    "frozen": SMALL | {"backbone.frozen": True},
    "registers": SMALL | {"backbone.reg_tokens": 2, "backbone.attention": "local"},
    "masked tokens": SMALL | {"backbone.masked_tokens": {"count": 3, "blocks": 1}},
    "resnet8": RESNET,
    "several heads": RESNET | {"objectives.classify.extra_heads": [{"pool": "mean", "norm": "batch"}]},
    "cvt_pico": OTHER | {"backbone.name": "cvt_pico"},
    "cvt_pico of drloc": OTHER | MEAN | {"backbone.name": "cvt_pico", "backbone.variant": "drloc"},
    "swin_pico": OTHER | MEAN | {"backbone.name": "swin_pico"},
    "t2t_pico": OTHER | {"backbone.name": "t2t_pico"},
    "a map of timm": OTHER | MEAN | {"backbone.name": "timm", "backbone.timm_model": "test_convnext"},
    "tokens of timm": OTHER | MEAN | {"backbone.name": "timm", "backbone.timm_model": "test_vit", "backbone.patch_size": 16},
}


@pytest.fixture
def loaded(untrained_run):
    """Loads a run with random weights, in float64."""

    def load(*layers: dict) -> Trained:
        trained = vitssl.load(untrained_run(*layers))
        trained.model.double()
        return trained

    return load


def images(trained: Trained) -> Tensor:
    size = trained.run.data.image_size
    return torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def moved(trained: Trained, place: grad_cam.TargetLayer, image_1CHW: Tensor, by_D: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
    """The patch tokens of the place, and the logits when ``by_D`` is added to all of them."""
    seen: list[Tensor] = []

    def move(_, inputs, output: Tensor) -> Tensor:
        seen.append(place.tokens(output))
        with torch.enable_grad():
            leaf = output.detach().requires_grad_()
            (added,) = torch.autograd.grad((place.tokens(leaf) * by_D).sum(), leaf)
        return output + added

    handle = place.module.register_forward_hook(move)
    with torch.no_grad(), handle:
        logits_1K = trained.model.predict(Batch.of_images(image_1CHW))
    return seen[0][0], logits_1K[0]


@pytest.mark.parametrize("name", NETWORKS)
def test_grad_cam_is_that_of_finite_differences(loaded, name: str) -> None:
    """What the logit gains, where all patches move a little towards one of them, is N times this one's value before the ReLU."""
    trained = loaded(NETWORKS[name])
    place, image_1CHW = grad_cam.target_layer(trained), images(trained)
    map_N, logits_K = grad_cam.cam(trained, place, image_1CHW, 3)
    tokens_ND, unmoved_K = moved(trained, place, image_1CHW)
    N = len(tokens_ND)
    assert N == math.prod(trained.model.backbone.grid(trained.run.data.image_size)) == len(map_N)
    torch.testing.assert_close(logits_K, unmoved_K)
    chosen = torch.linspace(0, N - 1, min(N, 8)).long()
    ends = [[moved(trained, place, image_1CHW, step * tokens_ND[n])[1][3] for step in (1e-4, -1e-4)] for n in chosen]
    gains = torch.stack([(ahead - back) / 2e-4 for ahead, back in ends])
    torch.testing.assert_close(map_N[chosen], gains.clamp(min=0) / N, rtol=1e-4, atol=1e-9)
    assert gains.abs().max() > 1e-6, "patches act on the logit from here"


def test_a_network_without_the_norm_is_refused(loaded) -> None:
    trained = loaded(SMALL)
    trained.model.backbone.blocks = torch.nn.Identity()
    with pytest.raises(ConfigError, match=r"^vit_pico has no norm1 before its last attention, where Grad-CAM looks$"):
        grad_cam.target_layer(trained)


def test_behind_the_last_block_patches_do_not_act_on_a_class_token(loaded) -> None:
    """Which is why Grad-CAM looks before it."""
    trained = loaded(SMALL)
    behind = grad_cam.TargetLayer(trained.model.backbone.blocks[-1], grad_cam.target_layer(trained).tokens)
    assert not grad_cam.cam(trained, behind, images(trained), 3)[0].any()


def test_of_a_linear_head_on_the_mean_it_is_the_class_activation_map(loaded) -> None:
    """Zhou et al. 2016: relu(W a_n) / N."""
    trained = loaded(RESNET)
    image_1CHW, head = images(trained), trained.model.objectives["classify"].head
    map_N, _ = grad_cam.cam(trained, grad_cam.target_layer(trained), image_1CHW, 7)
    with torch.no_grad():
        tokens_ND = trained.model.backbone(trained.model.backbone.embed(image_1CHW)).tokens_BND[0]
        torch.testing.assert_close(map_N, (tokens_ND @ head.weight[7]).relu() / len(tokens_ND))


def test_the_predicted_class_stands_for_one_that_is_not_known(loaded) -> None:
    trained = loaded(SMALL)
    place, image_1CHW = grad_cam.target_layer(trained), images(trained)
    unknown_N, logits_K = grad_cam.cam(trained, place, image_1CHW, UNLABELLED)
    torch.testing.assert_close(unknown_N, grad_cam.cam(trained, place, image_1CHW, int(logits_K.argmax()))[0])


def test_every_image_has_the_map_of_its_class(untrained_run) -> None:
    trained = vitssl.load(untrained_run(SMALL))
    drawn = DrawnImages(trained, count=5)
    numbers, place = grad_cam.measure(trained, drawn), grad_cam.target_layer(trained)
    labels = drawn.index.label[drawn.positions].tolist()
    assert numbers.facts["titles"] == [str(label) for label in labels] and len(set(labels)) > 1
    (batch,) = drawn.batches()
    for i, label in enumerate(labels):
        image_1CHW = batch.views["main"][i : i + 1]
        map_N, logits_K = grad_cam.cam(trained, place, image_1CHW, label)
        np.testing.assert_allclose(numbers.arrays["maps"][0, i], map_N, rtol=1e-5)
        assert numbers.facts["rows"][0]["said"][i] == f"{logits_K.argmax()} ({logits_K.softmax(-1).max():.2f})"
    assert drawn.labels(trained.classes) == labels
    drawn.index.classes = ["other", *reversed(trained.classes[1:])]
    assert drawn.labels(trained.classes) == [10 - label if label else UNLABELLED for label in labels], "by their names"
    drawn.index.label[drawn.positions] = UNLABELLED
    assert drawn.labels(trained.classes) == [UNLABELLED] * 5


def test_attention_maps_are_rows_of_the_last_block(untrained_run) -> None:
    trained = vitssl.load(untrained_run({"backbone.patch_size": 2, "backbone.reg_tokens": 1}))
    drawn, backbone = DrawnImages(trained, count=5), trained.model.backbone
    numbers = maps.measure(trained, drawn)
    (batch,) = drawn.batches()
    with attention.recorded(backbone, [1]) as recorded, torch.no_grad():
        trained.encode(batch.views["main"])
    patches_BhTN = recorded[1][..., 2:]
    patches_BhTN = patches_BhTN / patches_BhTN.sum(-1, keepdim=True)
    rows = {row["name"]: (row, values_SN) for row, values_SN in zip(numbers.facts["rows"], numbers.arrays["maps"], strict=True)}
    token_of = {"class token": 0, "patch in row 3, column 3": 2 + 10, "patch in row 2, column 2": 2 + 5, "patch in row 4, column 4": 2 + 15}
    for name, token in token_of.items():
        np.testing.assert_allclose(rows[name][1], patches_BhTN[:, :, token].mean(1), rtol=1e-5)
    for head in range(2):
        np.testing.assert_allclose(rows[f"class token, head {head + 1}"][1], patches_BhTN[:, head, 0], rtol=1e-5)
    assert list(rows)[:4] == list(token_of) and len(rows) == 6
    assert (
        rows["patch in row 3, column 3"][0]["place"] == (2, 2)
        and [row["compared"] for row, _ in rows.values()] == [True, True] + [False] * 4
    )
    assert numbers.facts["grid"] == [4, 4] and numbers.arrays["images"].shape == (5, 8, 8, 3)


def test_equal_attention_is_an_even_map() -> None:
    """Whatever goes to tokens that are no patches."""
    map_BhTT = torch.full((1, 2, 8, 8), 1 / 8)
    map_BhTT[0, 0, 0] = torch.tensor([0.9, 0.1 - 6e-3, *[1e-3] * 6])
    of_tokens, of_heads = maps.query_attention(map_BhTT, 2, (2, 3), [4])
    torch.testing.assert_close(of_tokens, torch.full((1, 2, 6), 1 / 6))
    torch.testing.assert_close(of_heads, torch.full((1, 2, 6), 1 / 6))


@pytest.mark.parametrize(
    ("grid", "asked"), [((14, 14), [(7, 7), (3, 3), (10, 10)]), ((2, 2), [(1, 1), (0, 0)]), ((1, 2), [(0, 1), (0, 0)])]
)
def test_patches_that_are_asked_lie_on_the_grid(grid: tuple[int, int], asked: list[tuple[int, int]]) -> None:
    assert maps.patches(grid) == asked


@pytest.mark.parametrize("name", ["maps", "grad-cam"])
def test_ten_images_are_drawn_unless_more_are_asked_for(untrained_run, name: str) -> None:
    folder = untrained_run(SMALL)
    for words, count in (([], 10), (["--images", "12"], 12)):
        assert cli.main(["analyze", str(folder), name, *words]) == 0
        assert json.loads((folder / "analysis" / f"{name}.json").read_text())["images"] == count


def test_a_map_of_zeros_is_drawn(untrained_run, recwarn) -> None:
    """A head of zeros gives no gradient; the map is dark, not NaN."""
    folder = untrained_run(SMALL | {"objectives.classify.init_std": 0.0})
    assert cli.main(["analyze", str(folder), "grad-cam"]) == 0
    with np.load(folder / "analysis" / "grad-cam.npz") as arrays:
        assert not arrays["maps"].any()
    assert not [warning for warning in recwarn if "invalid" in str(warning.message)]
