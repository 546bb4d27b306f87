"""The CIFAR ResNets: sizes of the paper, ends, a slow reference."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from vitssl import config
from vitssl.backbones.cifarresnet import Block, CifarResNet
from vitssl.costs import cost


def resnet(**fields) -> CifarResNet:
    torch.manual_seed(0)
    return CifarResNet(config.merge(config.BackboneConfig, {"name": "resnet8"}, fields)).eval()


@pytest.mark.parametrize(("name", "classes", "count"), [("resnet56", 10, 853_018), ("resnet56", 100, 858_868), ("resnet8", 10, 75_290)])
def test_parameter_counts_with_shortcuts_that_have_none(name, classes, count):
    """He et al.'s Table 6 says 0.85 M for 56 layers."""
    assert sum(p.numel() for p in resnet(name=name).parameters()) + 65 * classes == count


def test_parameter_count_with_convolutions_as_shortcuts():
    """Option B, as the code of locality guidance has it: 16 x 32 + 32 x 64 weights and two batch norms more."""
    assert sum(p.numel() for p in resnet(name="resnet56", shortcut="projection").parameters()) + 65 * 100 == 861_620


def test_a_shortcut_without_parameters_draws_nothing():
    """Else networks of a seed would not start as they did before there was a choice."""
    torch.manual_seed(0)
    Block(4, 8, 2, "identity")
    after = torch.rand(1)
    torch.manual_seed(0)
    for in_dim in (4, 8):
        torch.nn.Conv2d(in_dim, 8, 3, bias=False)
    assert torch.equal(after, torch.rand(1))


@torch.no_grad()
def test_a_projecting_block_equals_the_formula():
    block = resnet(shortcut="projection").stages[1][0]
    map_BDhw = torch.randn(2, 16, 8, 8)
    inner = F.relu(block.bn1(block.conv1(map_BDhw)))
    beside = F.batch_norm(F.conv2d(map_BDhw, block.shortcut[0].weight, stride=2), torch.zeros(32), torch.ones(32))
    torch.testing.assert_close(block(map_BDhw), F.relu(block.bn2(block.conv2(inner)) + beside))
    assert resnet(shortcut="projection").stages[0][0].shortcut is None, "where the width stays, so does the image"


def test_it_has_56_layers_and_125_million_macs():
    layers = [m for m in resnet(name="resnet56").modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(layers) + 1 == 56
    fields = {"data": {"shards": "nowhere", "image_size": 32}, "backbone.name": "resnet56", "objectives.classify": {"pool": "mean"}}
    macs = cost.measure(config.merge(config.Run, fields), 10)["macs_inference"]
    stages = [18 * 16**2, 16 * 32 + 17 * 32**2, 32 * 64 + 17 * 64**2]  # channel products of a stage's convolutions
    convolutions = 9 * 1024 * 48 + sum(9 * pixels * products for pixels, products in zip((1024, 256, 64), stages, strict=True))
    assert macs == pytest.approx(convolutions, rel=0.02) and convolutions / 1e6 == pytest.approx(125.5, abs=0.1)


def slow(ours: CifarResNet, images_BCHW: torch.Tensor) -> list[torch.Tensor]:
    """The stages' maps: every block's shortcut copied value by value into an array of zeros."""

    def norm(bn: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        scale = bn.weight / (bn.running_var + 1e-5) ** 0.5
        return (x - bn.running_mean[:, None, None]) * scale[:, None, None] + bn.bias[:, None, None]

    x, maps = norm(ours.bn1, F.conv2d(images_BCHW, ours.conv1.weight, padding=1)).clamp(min=0), []
    for s, stage in enumerate(ours.stages):
        for b, block in enumerate(stage):
            step = 2 if s > 0 and b == 0 else 1
            y = norm(block.bn1, F.conv2d(x, block.conv1.weight, stride=step, padding=1)).clamp(min=0)
            y = norm(block.bn2, F.conv2d(y, block.conv2.weight, padding=1))
            shortcut = torch.zeros_like(y)
            for r in range(y.shape[2]):
                for c in range(y.shape[3]):
                    shortcut[:, : x.shape[1], r, c] = x[:, :, step * r, step * c]
            x = (y + shortcut).clamp(min=0)
        maps.append(x)
    return maps


def test_ends_are_the_stages_and_the_last_one_is_the_output():
    ours, images_BCHW = resnet(depths=[2, 1, 2]), torch.randn(2, 3, 12, 12)
    for part in ours.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(part.running_var, 0.5, 2.0)
            torch.nn.init.normal_(part.running_mean)
            torch.nn.init.normal_(part.bias)
    features = ours(ours.embed(images_BCHW), out_indices=(0, 1, 2))
    assert (ours.strides, ours.widths, ours.embed_dim, ours.stride) == ((1, 2, 4), (16, 32, 64), 64, 4)
    for end, expected_BDhw in enumerate(slow(ours, images_BCHW)):
        tokens_BND, grid = features.intermediates[end].tokens_BND, features.intermediates[end].grid
        assert grid == ours.grid(12, end) == tuple(expected_BDhw.shape[-2:]) and tokens_BND.shape[-1] == ours.widths[end]
        assert torch.allclose(tokens_BND.transpose(1, 2).unflatten(2, grid), expected_BDhw, atol=1e-4)
    assert torch.equal(features.tokens_BND, features.intermediates[2].sequence()) and features.prefix_BPD.shape == (2, 0, 64)
    assert features.grid == (3, 3)


def test_layer_ids_count_the_blocks():
    ours = resnet(depths=[2, 1, 2])
    ids = {name: ours.layer_id(name) for name, _ in ours.named_parameters()}
    assert (ids["conv1.weight"], ids["stages.0.1.bn2.bias"], ids["stages.1.0.conv1.weight"], ids["stages.2.1.conv2.weight"]) == (0, 2, 3, 5)
    assert max(ids.values()) == ours.num_layers == 5


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"data.image_size": 30}, r"backbone\.name: resnet8 has an output token per 4 px, which does not divide the 30 px"),
        (
            {"objectives.classify.pool": "cls"},
            r"objectives\.classify: backbone\.name=resnet8 has no class token; set objectives\.classify\.pool=mean",
        ),
        ({"objectives.mae": {}}, r"objectives\.mae: backbone\.name=resnet8 cannot hide tokens"),
        ({"backbone.mlp_ratio": 2.0}, r"backbone\.mlp_ratio: .* a backbone that has this option \(resnet8 does not\)"),
    ],
)
def test_what_it_cannot_do_is_refused(layer, words):
    fields = {"data": {"shards": "nowhere", "image_size": 32}, "backbone.name": "resnet8", "objectives.classify.pool": "mean"}
    with pytest.raises(config.ConfigError, match=words):
        config.check(config.merge(config.Run, fields, layer))
