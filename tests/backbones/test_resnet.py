"""ResNet is timm's: same names, same outputs and statistics; counts are the published ones."""

from __future__ import annotations

import pytest
import timm
import torch
from fvcore.nn import FlopCountAnalysis
from timm.models.resnet import Bottleneck
from timm.models.resnet import ResNet as TimmResNet
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from vitssl import config
from vitssl.backbones import norms
from vitssl.backbones.base import Features
from vitssl.backbones.resnet import ResNet


def make(**fields) -> ResNet:
    torch.manual_seed(0)
    ours = ResNet(config.merge(config.BackboneConfig, {"name": "resnet_pico", **fields}))
    for name, parameter in ours.named_parameters():  # else every block is the identity
        if parameter.ndim == 1:
            nn.init.normal_(parameter, mean=float(name.endswith("weight")), std=0.3)
    return ours


def features(ours: ResNet, images_BCHW: Tensor, **options) -> Features:
    return ours(ours.embed(images_BCHW), **options)


def tokens(map_BDHW: Tensor) -> Tensor:
    return map_BDHW.flatten(2).transpose(1, 2)


def test_parameter_counts_are_the_published_ones():
    with torch.device("meta"):
        ours = ResNet(config.BackboneConfig(name="resnet50"))
    count = sum(p.numel() for p in ours.parameters())
    assert count + 2048 * 1000 + 1000 == 25_557_032
    assert (ours.embed_dim, ours.widths, ours.strides) == (2048, (256, 512, 1024, 2048), (4, 8, 16, 32))


@pytest.mark.parametrize("training", [True, False])
def test_outputs_and_statistics_equal_timms_resnet50(training):
    ours, twin = make(name="resnet50").train(training), timm.create_model("resnet50", num_classes=0).train(training)
    twin.load_state_dict(ours.state_dict())
    images_BCHW = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        found, (last, maps) = features(ours, images_BCHW, out_indices=(0, 1, 2, 3)), twin.forward_intermediates(images_BCHW)
    assert found.prefix_BPD.shape == (2, 0, 2048) and found.grid == (2, 2)
    assert torch.equal(found.tokens_BND, tokens(last))
    assert torch.equal(ours.norm(found.intermediates[3].sequence()), found.tokens_BND)
    for end, map_BDHW in enumerate(maps[1:]):  # timm's first is the stem's
        assert torch.equal(found.intermediates[end].sequence(), tokens(map_BDHW))
        assert found.intermediates[end].grid == map_BDHW.shape[2:] == ours.grid(64, end) and ours.widths[end] == map_BDHW.shape[1]
    theirs = twin.state_dict()
    assert list(theirs) == list(ours.state_dict())
    assert all(torch.equal(value, theirs[name]) for name, value in ours.state_dict().items())


@pytest.mark.parametrize("depths", [[2], [1, 2], [1, 1, 1]])
def test_any_shape_equals_timms(depths):
    """timm's stem has 64 channels always, so this is for that width."""
    ours = make(embed_dim=64, depths=depths).eval()
    twin = TimmResNet(Bottleneck, (*depths,), num_classes=0, channels=(64, 128, 256)[: len(depths)]).eval()
    images_BCHW = torch.randn(2, 3, 32, 32)
    if len(depths) < 3:
        twin.layer3 = twin.layer4 = nn.Identity()
    if len(depths) < 2:
        twin.layer2 = nn.Identity()
    twin.layer4 = nn.Identity()
    twin.load_state_dict(ours.state_dict())
    assert torch.equal(features(ours, images_BCHW).tokens_BND, tokens(twin.forward_features(images_BCHW)))


def test_all_widths_follow_embed_dim():
    ours = make(embed_dim=8)
    assert ours.conv1.weight.shape == (8, 3, 7, 7)
    assert features(ours, torch.randn(1, 3, 64, 64)).tokens_BND.shape == (1, 4, 256)
    assert ours.widths == (32, 64, 128, 256)
    assert {type(part) for part in ours.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)} == {norms.BatchNorm2d}


def test_drop_path_grows_linearly_over_all_blocks():
    ours = make(depths=[2, 1, 2], drop_path=0.4)
    rates = [getattr(block.drop_path, "drop_prob", 0.0) for i in (1, 2, 3) for block in ours.get_submodule(f"layer{i}")]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])


def test_blocks_begin_as_the_identity_and_convolutions_have_hes_scale():
    ours = ResNet(config.BackboneConfig(name="resnet50", depths=[1, 1, 1]))
    assert all(part.bn3.weight.abs().max() == 0 for part in ours.modules() if isinstance(part, Bottleneck))
    weight = ours.layer3[0].conv2.weight
    assert weight.std().item() == pytest.approx((2 / (256 * 9)) ** 0.5, rel=0.05)


def test_layer_ids_count_blocks_through_the_stages():
    ours = make(depths=[2, 1, 2])
    ids = {name: ours.layer_id(name) for name, _ in ours.named_parameters()}
    assert (ids["conv1.weight"], ids["bn1.bias"]) == (0, 0)
    assert [ids[f"layer{s}.{i}.conv2.weight"] for s, i in ((1, 0), (1, 1), (2, 0), (3, 0), (3, 1))] == [1, 2, 3, 4, 5]
    assert ids["layer3.0.downsample.1.weight"] == 4 and set(ids.values()) == set(range(ours.num_layers + 1))


def test_one_graph_in_training():
    ours, counter = make(depths=[1, 1], drop_path=0.1), CompileCounter()
    compiled = torch.compile(lambda images: features(ours, images).tokens_BND.sum(), backend=counter, fullgraph=True)
    for _ in range(3):
        compiled(torch.randn(2, 3, 16, 16)).backward()
    assert counter.frame_count == 1
    assert all(p.grad is not None for p in ours.parameters())


def test_bf16_keeps_float32_statistics():
    ours = make(depths=[1, 1])
    with torch.autocast("cpu", torch.bfloat16):
        found = features(ours, torch.randn(4, 3, 16, 16)).tokens_BND
    assert found.dtype == torch.bfloat16 and torch.isfinite(found).all()
    assert ours.bn1.running_var.dtype == torch.float32 and not torch.equal(ours.bn1.running_var, torch.ones(8))


class _Logits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = ResNet(config.BackboneConfig(name="resnet50")).eval(), nn.Linear(2048, 1000)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        return self.head(features(self.backbone, images_BCHW).tokens_BND.mean(1))


def test_macs_are_the_published_ones():
    """He et al.'s 4.1 G are the convolutions and the classifier; fvcore adds two operations per value that is normalised."""
    counted = FlopCountAnalysis(_Logits(), torch.zeros(1, 3, 224, 224))
    counted.unsupported_ops_warnings(False).uncalled_modules_warnings(False).tracer_warnings("none")
    parts = counted.by_operator()
    assert parts["conv"] == 4_087_136_256
    assert parts["linear"] == 2048 * 1000
    assert counted.total() == 4_111_412_224
