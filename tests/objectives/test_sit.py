"""SiT's tasks against slow loops and closed forms, its corruption against one image at a time."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.transforms.functional import gaussian_blur

from vitssl import config, dist, model
from vitssl.config import ConfigError
from vitssl.config.objectives.sit import SitConfig
from vitssl.data.loading.batch import Batch
from vitssl.objectives import inpainting, sit
from vitssl.objectives.inpainting import blurred, draw_rectangles
from vitssl.objectives.sit import rotated

PAIRS = {
    "sit/cls, reg": {"sit": {"view": "local", "out_dim": 8}},
    "sit/cls, reg, masked_tokens": {"sit": {"view": "local", "out_dim": 8, "uncertainty": "none"}, "masked_tokens": {"view": "sit"}},
}
CURVE = {"objectives": {"sit": {"out_dim": 8}}, "data.views.main.count": 2, "backbone.reg_tokens": 1}
OVER_RANKS = "its corruptions differ between ranks; test_negatives_are_of_all_ranks_or_of_this_one"


def batch_of(B: int = 4, px: int = 8) -> Batch:
    return Batch({"main": torch.randn(2 * B, 3, px, px)}, {"main": torch.arange(2 * B) % B}, torch.arange(B), float(B))


@pytest.fixture
def no_corruption(monkeypatch) -> None:
    monkeypatch.setattr(sit, "corrupt", lambda images, *_: images)


# -------------------------------------------------------------------------------------------------------------- views


def test_images_are_turned_as_rot90_does() -> None:
    images, quarters = torch.randn(8, 3, 5, 5), torch.tensor([0, 1, 2, 3, 3, 2, 1, 0])
    for image, quarter, result in zip(images, quarters, rotated(images, quarters), strict=True):
        assert torch.equal(result, torch.rot90(image, int(quarter), (1, 2)))


def test_blur_is_torchvisions_with_a_kernel_for_each_image() -> None:
    images = torch.randn(7, 3, 12, 10, generator=torch.Generator().manual_seed(0))
    sigma, radius = torch.linspace(0.1, 5.1, 7), torch.arange(1, 8)
    for i, result in enumerate(blurred(images, sigma, radius)):
        expected = gaussian_blur(images[i], [2 * int(radius[i]) + 1] * 2, [float(sigma[i])] * 2)
        torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-4)


def test_rectangles_are_counted_until_the_sum_of_their_areas_is_reached() -> None:
    torch.manual_seed(0)
    drawn, area = draw_rectangles(torch.zeros(20, 3, 16, 16), 30, [0.1, 0.4]), torch.linspace(0, 0.5, 20)
    used, union = drawn.select_by_area(area), drawn.union(drawn.select_by_area(area))
    for i in range(20):
        covered, total, count = torch.zeros(16, 16, dtype=torch.bool), 0, 0
        while total < area[i] * 256:
            box = drawn.rows_RSH[i, count, :, None] & drawn.columns_RSW[i, count]
            covered, total, count = covered | box, total + int(box.sum()), count + 1
        assert used[i].tolist() == [True] * count + [False] * (30 - count)
        assert torch.equal(union[i, 0], covered)


def test_statistics_of_rectangles() -> None:
    """Sides of 5 to 25 % of 224 px, cut at the edge; those that are drawn are more than enough."""
    torch.manual_seed(0)
    drawn = draw_rectangles(torch.zeros(1, 1, 224, 224).expand(500, -1, -1, -1), SitConfig().num_rectangles(0.3), [0.05, 0.25])
    sides = drawn.rows_RSH.sum(-1)
    assert sides.min() >= 11 and sides.max() == 56
    assert sides.float().mean().item() == pytest.approx(33.5 - 1.65, abs=0.3)  # the mean of 11 to 56, less what is cut off
    used = drawn.select_by_area(torch.full((500,), 0.3))
    assert used.sum(1).max() < 54 and used.sum(1).float().mean().item() == pytest.approx(15.5, abs=0.5)
    first = drawn.rows_RSH[:, 0].float().mean(0)
    assert first[112] > 3 * first[0]


def slow_corrupt(images: Tensor, num_images: int, cfg: SitConfig) -> Tensor:
    """With the same draws, an image and a rectangle at a time."""

    def boxes(count: int, sides: list[float]) -> list[list[Tensor]]:
        drawn = draw_rectangles(images, count, sides)
        return [[rows[:, None] & columns for rows, columns in zip(*pair, strict=True)] for pair in zip(*drawn, strict=True)]

    def until(boxes: list[Tensor], area: Tensor) -> list[Tensor]:
        used: list[Tensor] = []
        while sum(int(box.sum()) for box in used) < area * images[0, 0].numel():
            used.append(boxes[len(used)])
        return used

    result = images.clone()
    for image, (box,) in zip(result, boxes(1, cfg.gray), strict=True):
        image[:, box] = image.mean(0)[box]
    sigma, radius = 0.1 + 5 * torch.rand(len(images)), torch.randint(1, 8, (len(images),))
    for i, (box,) in enumerate(boxes(1, cfg.blur)):
        result[i][:, box] = gaussian_blur(result[i], [2 * int(radius[i]) + 1] * 2, [float(sigma[i])] * 2)[:, box]
    drawn, area = boxes(54, cfg.sides), cfg.noise_area * torch.rand(len(images))
    noise = torch.randn_like(images)
    for i in range(len(images)):
        for box in until(drawn[i], area[i]):
            result[i][:, box] = noise[i][:, box]
    other = torch.randint(num_images, (len(images),))
    drawn, area, before = boxes(54, cfg.sides), cfg.alien_area * torch.rand(len(images)), result.clone()
    for i in range(len(images)):
        for box in until(drawn[i], area[i]):
            result[i][:, box] = before[i // num_images * num_images + other[i]][:, box]
    return result


def test_corruption_is_that_of_one_image_at_a_time() -> None:
    cfg, images = SitConfig(), torch.randn(8, 3, 24, 24)
    torch.manual_seed(3)
    got = inpainting.corrupt(images, 4, cfg)
    torch.manual_seed(3)
    torch.testing.assert_close(got, slow_corrupt(images, 4, cfg), atol=1e-5, rtol=1e-4)
    assert not torch.equal(got, images)


def test_noise_and_other_images_can_be_off() -> None:
    torch.manual_seed(0)
    images = torch.arange(8.0)[:, None, None, None].expand(8, 3, 16, 16)
    torch.testing.assert_close(
        inpainting.corrupt(images, 4, SitConfig(noise_area=0.0, alien_area=0.0)), images
    )  # grey and blur of one value


# ------------------------------------------------------------------------------------------------------------- losses


def slow_terms(network: model.Model, images: Tensor, quarters: Tensor) -> dict[str, Tensor]:
    part, R = network.objectives["sit"], len(images)
    pictures = torch.stack([torch.rot90(image, int(q), (1, 2)) for image, q in zip(images, quarters, strict=True)])
    features = network.backbone(network.backbone.embed(pictures))
    rotation = -sum(part.rotation(features.prefix_BPD[i, 0]).log_softmax(0)[q] for i, q in enumerate(quarters)) / R
    rows = [part.projection(features.prefix_BPD[i, 1]) for i in range(R)]
    similar = [[torch.exp(F.cosine_similarity(a, b, dim=0) / part.cfg.temperature) for b in rows] for a in rows]
    contrast = (
        -sum(torch.log(similar[i][(i + R // 2) % R] / sum(value for k, value in enumerate(similar[i]) if k != i)) for i in range(R)) / R
    )
    weight, bias = part.decoder[0].weight, part.decoder[0].bias
    error, px = torch.zeros((), dtype=images.dtype), weight.shape[-1]
    for i in range(R):
        for n, token in enumerate(features.tokens_BND[i]):
            row, column = divmod(n, images.shape[-1] // px)
            patch = pictures[i, :, row * px : (row + 1) * px, column * px : (column + 1) * px]
            error = error + (torch.einsum("d,dchw->chw", token, weight) + bias[:, None, None] - patch).abs().sum()
    return {"sit_rotation": rotation, "sit_contrast": contrast, "sit_reconstruction": error / images.numel()}


def test_terms_and_gradients_are_the_slow_loops(make_run, no_corruption) -> None:
    network = model.build(make_run(CURVE), 0).double()
    batch = Batch({"main": batch_of().views["main"].double()}, {}, torch.arange(4), 4.0)
    torch.manual_seed(7)
    total, terms, _ = network(batch, torch.zeros(()))
    torch.manual_seed(7)
    expected = slow_terms(network, batch.views["main"], torch.randint(4, (8,)))
    for name, value in expected.items():
        torch.testing.assert_close(terms[name], value.detach())
    slow_total = sum(
        torch.exp(-a * network.objectives["sit"].log_weights[name]) * expected[name] for name, a in sit.UNCERTAINTY_FACTORS.items()
    )
    slow_total = slow_total + sum(network.objectives["sit"].log_weights.values()) / 2
    torch.testing.assert_close(total, slow_total)
    parameters = tuple(network.parameters())
    for got, wanted in zip(torch.autograd.grad(total, parameters), torch.autograd.grad(slow_total, parameters), strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-9, rtol=1e-6)


@pytest.mark.parametrize(
    ("uncertainty", "expected"),
    [
        ("exponent", 4.44225),
        ("factor", math.exp(-1) * (math.log(4) + math.log(143) + 0.5) + 1.5),
        ("none", math.log(4) + math.log(143) + 1),
    ],
)
def test_the_total_at_a_known_point(make_run, no_corruption, uncertainty: str, expected: float) -> None:
    """72 images, rotation logits 0, equal embeddings, an L1 error of 1, and each s at its start, 1."""
    network = model.build(make_run(CURVE, {"objectives.sit.uncertainty": uncertainty, "optim.batch_size": 72}), 0)
    part = network.objectives["sit"]
    with torch.no_grad():
        for parameter in (part.rotation.weight, part.projection.weight, part.decoder[0].weight, part.decoder[0].bias):
            parameter.zero_()
        part.projection.bias.fill_(1.0)
        part.decoder[0].bias.fill_(1.0)
    batch = Batch({"main": torch.zeros(144, 3, 8, 8)}, {}, torch.arange(72), 72.0)
    total, terms, _ = network(batch, torch.zeros(()))
    assert terms["sit_rotation"].item() == pytest.approx(1.38629, abs=1e-5) and terms["sit_contrast"].item() == pytest.approx(
        4.96284, abs=1e-5
    )
    assert total.item() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("negatives", "among"), [("global", 16), ("per_gpu", 8)])
def test_negatives_are_of_all_ranks_or_of_this_one(make_run, monkeypatch, negatives: str, among: int) -> None:
    """The second of two ranks, whose other holds images 4 to 7."""
    network = model.build(make_run(CURVE, {"objectives.sit.negatives": negatives}), 0).train()
    part, tokens_RD, theirs_RD = network.objectives["sit"], torch.randn(8, 32), torch.randn(8, 32)
    unit_RD, their_units_RD = (F.normalize(part.projection(rows), dim=1) for rows in (tokens_RD, theirs_RD))
    images_R = torch.arange(4).repeat(2)
    monkeypatch.setattr(dist, "gather", lambda own: torch.cat([their_units_RD if own.is_floating_point() else own + 4, own]))
    monkeypatch.setattr(dist, "rank", lambda: 1)
    all_SD = torch.cat([their_units_RD, unit_RD])[-among:]
    logits_RS, first = unit_RD @ all_SD.T / 0.5, among - 8
    logits_RS[range(8), range(first, among)] = -torch.inf
    expected = F.cross_entropy(logits_RS, first + torch.tensor([4, 5, 6, 7, 0, 1, 2, 3]))
    torch.testing.assert_close(part._contrast(tokens_RD, images_R), expected)


def test_rectangles_fill_the_area_that_is_drawn_however_small_they_are() -> None:
    cfg = SitConfig(sides=[0.03, 0.08], noise_area=0.2)
    images = torch.zeros(64, 3, 224, 224)
    rectangles = draw_rectangles(images, cfg.num_rectangles(0.2), cfg.sides)
    pixels_RS = rectangles.rows_RSH.sum(-1) * rectangles.columns_RSW.sum(-1)
    assert (pixels_RS.sum(1) > 0.2 * 224 * 224).all() and SitConfig().num_rectangles(0.3) == 54


def test_published_parameter_counts() -> None:
    """SiT of ViT-B with its three heads and scalars, and fine-tuning with two heads."""
    base = {"data.shards": "none", "backbone": {"name": "vit_base", "reg_tokens": 1}}
    pretraining = {"objectives.sit": {}, "data.views.main.count": 2}
    two_heads = {"objectives.classify": {"pool": "cls", "extra_heads": [{"pool": "reg"}]}}
    for layers, classes, expected in ((pretraining, 0, 86_786_826), (two_heads, 10, 85_815_572), (two_heads, 100, 85_953_992)):
        with torch.device("meta"):
            network = model.build(config.merge(config.Run, base, layers), classes)
        assert sum(p.numel() for p in network.parameters()) == expected


def test_masked_tokens_are_those_of_its_corrupted_views(make_run, monkeypatch) -> None:
    """MT-SiT makes no pass of its own for its regularisers."""
    layers = {"backbone.masked_tokens": {"count": 2, "blocks": 1}, "objectives.masked_tokens": {"view": "sit"}}
    network, passes = model.build(make_run(CURVE, layers), 0), []
    forward = type(network.backbone).forward
    monkeypatch.setattr(type(network.backbone), "forward", lambda self, *args: passes.append(1) or forward(self, *args))
    _, terms, _ = network(batch_of(), torch.zeros(()))
    assert len(passes) == 1 and {"sit_rotation", "masked_tokens_sparse", "masked_tokens_contrast"} <= terms.keys()


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"data.views.main.count": 1}, r"objectives\.sit: data\.views\.main\.count is 1; two views are compared, so it must be 2"),
        ({"backbone.reg_tokens": 0}, r"has no registers; set backbone\.reg_tokens"),
        ({"backbone.reg_tokens": 2}, r"backbone\.reg_tokens: 2 registers beside the class token; objectives\.sit needs 1"),
        ({"objectives.sit.sides": [0.3, 0.1]}, r"objectives\.sit\.sides: \[0\.3, 0\.1\] is not a rising pair"),
        ({"objectives.sit": {"noise_area": 0, "alien_area": 0, "sides": [0.1, 0.2]}}, r"sit\.sides: .* noise_area or alien_area"),
        ({"objectives.sit.sides": [0.01, 0.02]}, r"sit\.sides: rectangles of .* would have to be 5334 to fill 0\.3; at most 960"),
        ({"objectives.sit.alien_area": 1.5}, r"objectives\.sit\.alien_area: 1\.5 is not in"),
        ({"data.image_size": 6}, r"objectives\.sit: data\.views\.main has 6 px, fewer than a blur's 8"),
        ({"loop.micro_batch_size": 4}, r"objectives\.sit: loop\.micro_batch_size may split the batch"),
        ({"objectives.masked_tokens.view": "s", "backbone.masked_tokens": {"blocks": 1}}, r"no data\.views\.s; the Run has main, sit"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(make_run, layer: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_run(CURVE, layer)
