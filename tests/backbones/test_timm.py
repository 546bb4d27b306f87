"""Networks of timm are timm's: same weights, outputs, gradients and statistics; what does not fit is refused in one line."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import timm
import torch
from fvcore.nn import FlopCountAnalysis
from timm.layers import DropPath
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn

from tests.conftest import but_for_a_release
from vitssl import backbones, config, model
from vitssl.backbones import norms
from vitssl.backbones.base import Features
from vitssl.backbones.timm import TimmNetwork
from vitssl.checkpoints import pretrained, tensor_files
from vitssl.config import ConfigError
from vitssl.costs import cost
from vitssl.training import optim
from vitssl.weights.exporting import export

CLASSIFY = {"data.image_size": 64, "objectives.classify": {"pool": "mean"}}
BARE = {f"backbone.{name}": None for name in ("embed_dim", "depth", "num_heads", "patch_size")}
# every kind of batch norm that timm's networks have, and of end: a map, one with channels last (MambaOut), tokens behind special ones
TINY = {
    "test_convnext": {},
    "test_resnet": {},
    "test_efficientnet": {},
    "test_byobnet": {},
    "test_nfnet": {},
    "test_vit": {"patch_size": 16},
    "test_mambaout": {},
    "test_maxvit": {},
}
# name -> what it has besides; published sizes, of which shapes are counted
PUBLISHED = {
    "convnext_tiny": {}, "efficientnet_b0": {}, "densenet121": {}, "resnext50_32x4d": {}, "poolformer_s12": {}, "pvt_v2_b0": {},
    "swin_tiny_patch4_window7_224": {}, "coatnet_pico_rw_224": {}, "hiera_tiny_224": {}, "mixer_s32_224": {},
    "xcit_nano_12_p16_224": {"patch_size": 16}, "levit_128s": {"patch_size": 56},
}  # fmt: skip


def make(name: str, size_px: int = 64, **fields) -> TimmNetwork:
    torch.manual_seed(0)
    return backbones.build(config.BackboneConfig(name="timm", timm_model=name, **fields), size_px)


def theirs(name: str, ours: TimmNetwork, size_px: int = 64) -> nn.Module:
    """timm's own with the same weights."""
    of_size = {"img_size": size_px} if timm.get_pretrained_cfg(name).fixed_input_size else {}
    twin = timm.create_model(name, num_classes=0, global_pool="", **of_size, **({"drop_path_rate": 0.0} if "swin" in name else {}))
    twin.load_state_dict(ours.network.state_dict(), strict=True)
    return twin


def features(ours: TimmNetwork, images_BCHW: Tensor, **options) -> Features:
    return ours(ours.embed(images_BCHW), **options)


def as_tokens(output: Tensor, ours: TimmNetwork) -> Tensor:
    """What timm gives, as (B, N, D), by hand."""
    if output.dim() == 3:
        return output
    if output.shape[1] != ours.embed_dim:
        output = output.movedim(3, 1)
    return torch.stack([output[:, :, i, j] for i in range(output.shape[2]) for j in range(output.shape[3])], dim=1)


@pytest.mark.parametrize("name", but_for_a_release([*TINY, "swin_tiny_patch4_window7_224"], TINY))
@pytest.mark.parametrize("training", [True, False])
def test_outputs_gradients_and_statistics_are_timms(name, training):
    ours = make(name, **TINY.get(name, {})).double().train(training)
    twin = theirs(name, ours).double().train(training)
    images_BCHW = torch.randn(3, 3, 64, 64, dtype=torch.float64)
    found, expected = features(ours, images_BCHW), as_tokens(twin(images_BCHW), ours)
    torch.testing.assert_close(found.sequence(), expected)
    assert found.grid == ours.grid(64) and found.prefix_BPD.shape[1] == ours.num_prefix_tokens == (1 if name == "test_vit" else 0)
    for output in (found.sequence(), expected):
        (output - 0.3).pow(3).mean().backward()
    for (key, value), other in zip(ours.network.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(value.grad, other.grad, msg=key)
    torch.testing.assert_close(ours.network.state_dict(), twin.state_dict())


def test_a_rate_of_stochastic_depth_is_the_runs_and_not_timms_default():
    def rates(**fields) -> list[float]:
        return [part.drop_prob for part in make("swin_tiny_patch4_window7_224", **fields).modules() if isinstance(part, DropPath)]

    assert max(part.drop_prob for part in timm.create_model("swin_tiny_patch4_window7_224").modules() if isinstance(part, DropPath)) > 0.09
    assert {*rates()} == {0.0} and max(rates(drop_path=0.3)) == pytest.approx(0.3)


def test_its_own_batch_norms_are_replaced_by_those_of_the_global_batch():
    for name in ("test_resnet", "test_efficientnet", "test_byobnet"):
        network = make(name, batch_norm="per_gpu").network
        of_batches = [part for part in network.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
        assert of_batches and all(isinstance(part, norms._GlobalBatchNorm) and not part.over_ranks for part in of_batches)
        assert any(isinstance(part, norms.BatchNormAct2d) for part in of_batches) == (name != "test_resnet")


def test_the_only_place_is_the_last():
    ours = make("test_vit", patch_size=16).eval()
    found = features(ours, torch.randn(2, 3, 64, 64), out_indices=(0,))
    assert torch.equal(found.intermediates[0].sequence(), found.sequence()) and found.intermediates[0].prefix_BPD.shape[1] == 1
    assert (ours.strides, ours.widths) == ((16,), (64,)) and found.map().shape == (2, 64, 4, 4)


def test_resnet50_is_this_projects_own():
    ours, own = make("resnet50").eval(), backbones.build(config.BackboneConfig(name="resnet50"), 64).eval()
    own.load_state_dict(ours.network.state_dict())
    images_BCHW = torch.randn(1, 3, 64, 64)
    assert torch.equal(features(ours, images_BCHW).tokens_BND, own(own.embed(images_BCHW)).tokens_BND)


@pytest.mark.parametrize("name", but_for_a_release(PUBLISHED, ("convnext_tiny", "efficientnet_b0")))
def test_published_networks_have_a_grid_and_timms_multiply_adds(name, make_run):
    cfg = config.BackboneConfig(name="timm", timm_model=name, **PUBLISHED[name])
    with torch.device("meta"):
        ours = backbones.build(cfg, 224)
        used = features(ours, torch.zeros(2, 3, 224, 224))
    assert used.grid == (224 // ours.stride,) * 2 and used.tokens_BND.shape[2] == ours.embed_dim
    run = make_run(CLASSIFY | {"data.image_size": 224}, BARE, {"backbone": {"name": "timm", "timm_model": name, **PUBLISHED[name]}})
    with torch.device("meta"):
        twin = theirs(name, ours, 224).eval()
        for part in twin.modules():
            if hasattr(part, "fused_attn"):
                part.fused_attn = False
    counted = cost.measure(run, 10)
    classifier = ours.embed_dim * 10
    assert counted["params_inference"] == sum(p.numel() for p in twin.parameters()) + classifier + 10
    if name in ("convnext_tiny", "efficientnet_b0", "resnext50_32x4d"):
        twin = timm.create_model(name, num_classes=0, global_pool="").eval()
        macs = FlopCountAnalysis(twin, torch.zeros(1, 3, 224, 224)).unsupported_ops_warnings(False).total()
        assert counted["macs_inference"] == pytest.approx(macs + classifier, rel=2e-3)


@pytest.mark.parametrize("name", ["test_convnext", "test_vit", "convnext_atto", "resnet18", "mobilenetv3_small_050"])
def test_layers_decay_as_in_timm(name):
    """The head's group is the last: parts of it that stay here, as ConvNeXt's norm, decay no more than the classifier."""
    ours = make(name, **TINY.get(name, {}))
    network = nn.Module()
    network.backbone = ours
    cfg = config.Optim(layer_decay=0.5, decay=["."])
    groups = optim.param_groups(network, ours, cfg)
    scales = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    whole = timm.create_model(name, num_classes=10)
    names = {id(p): n for n, p in whole.named_parameters()}
    expected = {names[id(p)]: g["lr_scale"] for g in param_groups_layer_decay(whole, layer_decay=0.5) for p in g["params"]}
    for parameter, parameter_ours in ours.network.named_parameters():
        assert scales[id(parameter_ours)] == pytest.approx(expected[parameter]), parameter
    assert len(scales) == len(list(ours.parameters()))


def test_layers_that_timm_does_not_tell_apart_do_not_decay():
    ours = make("poolformer_s12")
    network = nn.Module()
    network.backbone = ours
    assert {group["lr_scale"] for group in optim.param_groups(network, ours, config.Optim())} == {1.0}
    with pytest.raises(ConfigError, match=r"^optim\.layer_decay: timm does not tell this network's layers apart; set it to 1$"):
        optim.param_groups(network, ours, config.Optim(layer_decay=0.9))


@pytest.mark.parametrize("name", ["rexnet_100", "ghostnet_100", "tiny_vit_5m_224"])
def test_nothing_is_dropped_that_the_run_does_not_drop(name):
    ours = make(name).train()
    images_BCHW = torch.randn(2, 3, 64, 64)
    first, second = (features(ours, images_BCHW).tokens_BND for _ in range(2))  # of other draws
    assert torch.equal(first, second)


def test_a_teacher_in_evaluation_mode_sees_its_parameters_move():
    """TinyViT's, LeViT's and others' attention keeps its biases then."""
    ours = make("tiny_vit_5m_224").eval()
    images_BCHW = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        features(ours, images_BCHW)
        for parameter in ours.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        found = features(ours, images_BCHW).tokens_BND
        expected = features(copy.deepcopy(ours).train().eval(), images_BCHW).tokens_BND
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", but_for_a_release([*TINY, "tiny_vit_5m_224", "caformer_s18", "vit_pe_core_tiny_patch16_384"], TINY))
def test_released_weights_are_taken_without_their_classifier(name, make_run, tmp_path):
    patch = TINY.get(name, {"patch_size": 16 if "patch16" in name else 32})
    run = make_run(CLASSIFY, BARE, {"backbone": {"name": "timm", "timm_model": name, **patch}}, {"init_from": str(tmp_path / "x.pt")})
    of_size = {"img_size": 64} if timm.get_pretrained_cfg(name).fixed_input_size else {}
    released = timm.create_model(name, **of_size)
    tensor_files.save(tmp_path / "x.pt", {"model": released.state_dict(), "source": f"timm:{name}"})
    network = model.build(run, 10)
    pretrained.init_from(network, network.backbone, run)
    found = network.backbone.network.state_dict()
    assert found and all(torch.equal(value, released.state_dict()[key]) for key, value in found.items())


@pytest.mark.parametrize("name", ["test_vit", "swin_tiny_patch4_window7_224"])
def test_positions_are_fitted_to_the_image_size_as_in_timm(name, make_run, tmp_path):
    fields = {"name": "timm", "timm_model": name, **TINY.get(name, {})}
    run = make_run(CLASSIFY, BARE, {"backbone": fields}, {"init_from": str(tmp_path / "x.pt")})
    torch.save(timm.create_model(name, img_size=224).state_dict(), tmp_path / "x.pt")
    network = model.build(run, 10)
    pretrained.init_from(network, network.backbone, run)
    loaded = {"file": str(tmp_path / "x.pt"), "num_classes": 1000}
    twin = timm.create_model(name, img_size=64, num_classes=0, global_pool="", pretrained=True, pretrained_cfg_overlay=loaded)
    torch.testing.assert_close(network.backbone.network.state_dict(), twin.state_dict(), rtol=0, atol=0)


def test_a_stage_for_images_of_another_size_starts_from_an_earlier_one(make_run, tmp_path):
    fields = {"backbone": {"name": "timm", "timm_model": "test_vit", "patch_size": 16}}
    small = model.build(make_run(CLASSIFY, BARE, fields), 10)
    tensor_files.save(tmp_path / "x.pt", {"model": small.state_dict(), "data": {}})
    run = make_run(CLASSIFY, BARE, fields, {"init_from": str(tmp_path / "x.pt"), "data.image_size": 128})
    network = model.build(run, 10)
    pretrained.init_from(network, network.backbone, run)
    ours, theirs = (one.backbone.network.state_dict() for one in (network, small))
    assert ours["pos_embed"].shape[1] > theirs["pos_embed"].shape[1]
    assert all(torch.equal(ours[key], value) for key, value in theirs.items() if key != "pos_embed")


def test_weights_of_another_network_are_one_line(make_run, tmp_path):
    for ours, theirs in (("test_vit", "test_convnext"), ("test_convnext", "test_vit"), ("test_resnet", "test_efficientnet")):
        run = make_run(
            CLASSIFY, BARE, {"backbone": {"name": "timm", "timm_model": ours, **TINY[ours]}}, {"init_from": str(tmp_path / "x.pt")}
        )
        torch.save(timm.create_model(theirs).state_dict(), tmp_path / "x.pt")
        network = model.build(run, 10)
        with pytest.raises(ConfigError, match=rf"^init_from: .*(of another network than this {ours}; name that|timm cannot fit these)"):
            pretrained.init_from(network, network.backbone, run)


def test_an_export_of_the_backbone_is_timms(make_run, tmp_path: Path):
    run = make_run(CLASSIFY, BARE, {"backbone": {"name": "timm", "timm_model": "test_convnext"}})
    folder, network = tmp_path / "run", model.build(run, 10).eval()
    config.save(run, folder)
    tensor_files.save(
        folder / "last.pt",
        {"model": network.state_dict(), "ema": None, "data": {"classes": [*"abcdefghij"], "mean": [0.5] * 3, "std": [0.5] * 3}},
    )
    line = export(folder, tmp_path / "out.pth", "timm", backbone=True)
    loaded = {"timm": timm, "torch": torch}
    exec(line, loaded)  # what the command says
    images_BCHW = torch.randn(2, 3, 64, 64)
    own = features(network.backbone, images_BCHW).map()
    assert torch.equal(loaded["model"](images_BCHW), own)
    with pytest.raises(ConfigError, match=r"timm's test_convnext has another classifier; export --to onnx, .* backbone alone"):
        export(folder, tmp_path / "whole.pth", "timm")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"timm_model": "convnex_tiny"}, "backbone.timm_model: 'convnex_tiny' is not known (did you mean convnext_tiny?)"),
        ({"timm_model": "convnext_tiny.fb_in1k"}, "write timm_model: convnext_tiny, and init_from: timm:convnext_tiny.fb_in1k"),
        (
            {"patch_size": 16},
            "backbone.patch_size: test_convnext has 2 x 2 tokens of an image of 64 px, not one per 16 px; set patch_size: 32",
        ),
        ({"timm_model": "crossvit_tiny_240"}, "for images of 64 px (Only token or avg pooling is supported.)"),
        ({"timm_model": "inception_v3", "size_px": 299}, "has 64 tokens of an image of 299 px, which are no even grid"),
        ({"timm_model": "vgg11_bn", "drop_path": 0.1}, "'drop_path_rate': 0.1}"),
    ],
)
def test_what_does_not_fit_is_one_line(fields, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make(**{"name": fields.get("timm_model", "test_convnext")} | {k: v for k, v in fields.items() if k != "timm_model"})


def test_a_network_for_one_size_refuses_views_of_another():
    ours = make("test_vit", patch_size=16)
    with pytest.raises(ConfigError, match=r"^backbone\.timm_model: test_vit takes images of 64 px alone, and a view has 32 px; give "):
        ours.embed(torch.zeros(1, 3, 32, 32))
    assert make("test_convnext").embed(torch.zeros(1, 3, 32, 32)).grid == (1, 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"backbone.name": "timm"}, "backbone.timm_model: name one of timm's networks, such as convnext_tiny"),
        (
            {"backbone.name": "timm", "backbone.timm_model": "test_vit", "objectives.classify.norm": "fc"},
            r"objectives\.classify\.norm: timm's networks end in their norms",
        ),
        ({"backbone.timm_model": "convnext_tiny"}, "backbone.timm_model: .* a backbone that has this option .vit_pico does not"),
        (
            {"backbone.name": "resnet10t"},
            r"\(did you mean resnet50\?\); for another network of timm's, write name: timm and timm_model: resnet10t",
        ),
        ({"backbone.name": "vit_tny"}, r"\(did you mean vit_tiny\?\)$"),
        ({"backbone.name": "efficientnet_b0"}, "for another network of timm's, write name: timm and timm_model: efficientnet_b0"),
    ],
)
def test_the_two_fields_belong_together(fields, message, make_run):
    with pytest.raises(ConfigError, match=message):
        config.check(make_run(CLASSIFY, BARE, fields))
