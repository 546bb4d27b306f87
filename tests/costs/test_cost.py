"""MACs and parameters against the published figures and arithmetic by hand."""

from __future__ import annotations

from math import prod

import pytest
import torch
from fvcore.nn import ActivationCountAnalysis, FlopCountAnalysis
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vitssl import config
from vitssl.costs import cost, macs

SSAT = {
    "backbone": {"name": "vit_tiny", "positions": "sincos"},
    "objectives": {"classify": {"weight": 0.1}, "mae": {"weight": 0.9, "decoder_dim": 128, "decoder_depth": 2}},
}


def measured(layers, classes):
    return cost.measure(config.merge(config.Run, {"data.shards": "nowhere"}, layers), classes)


def vit_macs(n, d, depth, patches, patch_values, classes):
    """Patch convolution, blocks (qkv, QK, AV, projection, MLP, two norms at 5 per element), final norm, head."""
    block = n * d * 3 * d + 2 * n * n * d + n * d * d + 8 * n * d * d + 2 * 5 * n * d
    return patches * patch_values * d + depth * block + 5 * n * d + d * classes


def test_vit_tiny_is_the_papers_1_26(classes=2):
    got = measured({"backbone.name": "vit_tiny", "objectives.classify": {}}, classes)
    assert got["macs_inference"] == 1_258_219_584 == vit_macs(197, 192, 12, 196, 768, classes)
    products = got["macs_inference"] - 25 * 5 * 197 * 192  # without LayerNorm's, 5 per element
    assert got["macs_train_step"] == got["macs_train_forward"] + 2 * products - 196 * 768 * 192  # the image has no gradient


def test_vit_small_is_4_61_with_deits_parameters():
    got = measured({"backbone.name": "vit_small", "objectives.classify": {}}, 1000)
    assert got["macs_inference"] / 1e9 == pytest.approx(4.61, abs=0.005)
    assert got["params_inference"] == 22_050_664


@pytest.mark.parametrize(("classes", "params"), [(10, 6_009_226), (100, 6_026_596), (1000, 6_200_296)])
def test_ssat_parameters(classes, params):
    got = measured(SSAT, classes)
    assert got["params_train"] == params
    assert got["params_inference"] == 5_486_592 + 193 * classes


def test_ssat_passes_as_the_paper_counts_and_as_run():
    """Masked pass: encoder on 50 tokens and the decoder on 197 (196 predicted). As run, the patch embedding is shared."""
    got = measured(SSAT, 10)
    encoder = vit_macs(50, 192, 12, 196, 768, 0)
    decoder = 50 * 192 * 128 + vit_macs(197, 128, 2, 0, 0, 0) - 5 * 128 + 196 * 128 * 768
    assert got["macs_passes"]["mae"] == encoder + decoder
    assert got["macs_passes"]["mae"] / 1e9 == pytest.approx(0.4256, abs=1e-4)
    assert sum(got["macs_passes"].values()) / 1e9 == pytest.approx(1.684, abs=1e-3)
    assert got["macs_train_forward"] == sum(got["macs_passes"].values()) - 196 * 768 * 192
    assert got["macs_train_forward"] / 1e9 == pytest.approx(1.655, abs=1e-3)


def test_pretraining_alone_infers_with_the_backbone():
    got = measured({"backbone.name": "vit_tiny", "objectives.mae": {"decoder_dim": 128, "decoder_depth": 2}}, 10)
    assert got["params_inference"] == 5_524_416
    assert got["macs_inference"] == vit_macs(197, 192, 12, 196, 768, 0)


def test_an_objective_that_shares_a_pass_counts_by_what_it_adds(make_run):
    """SimCLR beside classify: one more pass, of the other view, and the projection of both."""
    simclr = {"objectives.simclr": {"hidden_dim": 16, "out_dim": 8}, "data.views.second": {"scale": [0.5, 1.0]}}
    alone, joint = (cost.measure(make_run(*layers), 10) for layers in ([simclr], [simclr, {"objectives.classify": {}}]))
    assert (
        sum(joint["macs_passes"].values()) == joint["macs_train_forward"] < joint["macs_passes"]["classify"] + alone["macs_train_forward"]
    )


# ------------------------------------------------------------------------------------------- against fvcore's own analyses


class Step(nn.Module):
    """Images to the total loss of a training step, as fvcore traces it."""

    def __init__(self, run):
        super().__init__()
        self.network, self.batch = cost._unfused(run, 10), cost._batch(run)

    def forward(self, *views):
        self.batch.views = dict(zip(self.batch.views, views, strict=True))
        return self.network(self.batch, torch.zeros(()))[0]


PICO = {"data.shards": "nowhere", "data.image_size": 32, "backbone.name": "vit_pico"}
MEAN = {"objectives.classify": {"pool": "mean"}}
MAE = {"decoder_dim": 16, "decoder_depth": 1, "decoder_heads": 2}
SIMCLR = {"objectives.simclr": {"hidden_dim": 16, "out_dim": 8}, "data.views.second": {"scale": [0.5, 1.0]}}


def convolution_backward_flops(grad, images, weight, bias, stride, padding, dilation, transposed, output_padding, groups, wanted, **_):
    """Each value of a gradient (B, C, H, W) meets its filter's weights: for the images' gradient, and for the weights'."""
    (B, C, H, W), filter_weights = grad, prod(weight[1:])
    return 2 * B * C * H * W * filter_weights * sum(wanted[:2])


@pytest.mark.parametrize(
    "layers",
    [
        {"objectives.classify": {}, "objectives.mae": MAE},
        {"objectives.classify": {"blocks": 2}},  # whose final norm nothing reads
        {"objectives.classify": {"norm": "batch", "hidden_dim": 8}},
        SIMCLR,
        {"objectives.gmml": {"blocks": [0, 1]}},
        {"objectives.lut": {}, "data.views.second": {}},
        {"objectives.sit": {"out_dim": 8}, "data.views.main.count": 2, "backbone.reg_tokens": 1},
        {"objectives.dino": {"out_dim": 16}, "data.views.second": {}, "data.views.local": {"size": 16, "count": 2}},
        MEAN | {"objectives.drloc": {}, "backbone.name": "swin_pico"},
        MEAN | {"backbone.name": "cvt_pico"},
        MEAN | {"backbone.name": "t2t_pico"},
        MEAN | {"backbone.name": "resnet_pico"},
    ],
)
def test_shapes_alone_count_what_fvcore_counts_of_a_network_that_computes(layers):
    run = config.merge(config.Run, PICO, layers)
    step = Step(run)
    traced = FlopCountAnalysis(step, tuple(step.batch.views.values())).unsupported_ops_warnings(False)
    measured = cost.measure(run, 10)
    assert measured["macs_train_forward"] == traced.total()
    loss = step(*step.batch.views.values())
    # torch's own count, of 2 operations to a multiply-add; of the gradient of a depthwise convolution's weights it takes C times too much
    mapping = {torch.ops.aten.convolution_backward: convolution_backward_flops} if "cvt" in run.backbone.name else None
    with FlopCounterMode(display=False, custom_mapping=mapping) as backward:
        loss.backward()
    assert 2 * (measured["macs_train_step"] - measured["macs_train_forward"]) == backward.get_total_flops() > 0
    if run.objectives.classify is None:
        return
    step.forward = lambda images: step.network.predict(cost.Batch({"main": images}, {}, torch.zeros(1, dtype=torch.int64), labelled=0.0))
    traced = ActivationCountAnalysis(step, (step.batch.views["main"],)).unsupported_ops_warnings(False)
    assert measured["activations_inference"] == traced.total()


def test_what_is_not_trained_has_no_backward():
    """Of a frozen ViT's probe the classifier's weights alone have a gradient."""
    probe = cost.measure(config.merge(config.Run, PICO, {"objectives.classify": {}, "backbone.frozen": True}), 10)
    weights = probe["params_train"] - 10  # without its biases
    assert probe["macs_train_step"] == probe["macs_train_forward"] + weights


def test_what_multiplies_and_has_no_rule_is_refused():
    a_BMK, b_BKN = torch.ones(2, 3, 4, device="meta"), torch.ones(2, 4, 5, device="meta")
    with macs.Counter(), pytest.raises(NotImplementedError, match=r"no rule for aten\.baddbmm"):
        torch.baddbmm(torch.ones(2, 3, 5, device="meta"), a_BMK, b_BKN)


def test_shapes_change_in_place():
    """As torch.nn.init.orthogonal_ lets them until torch 2.4."""
    with macs.shapes_only():
        assert torch.empty(2, 3).t_().shape == (3, 2)


def test_what_does_not_bear_on_the_result_does_not_count():
    with macs.shapes_only(), macs.Counter() as counter:
        images, used, unused = torch.ones(2, 3), nn.Linear(3, 4), nn.Linear(3, 5)
        unused(images)
        result = used(images)
    assert counter.total(result) == (2 * 3 * 4, 2 * 4)


def test_counting_draws_no_weights_and_takes_no_memory():
    """A ViT-B has 344 MB of weights; random numbers elsewhere are not touched."""
    torch.manual_seed(0)
    state = torch.get_rng_state()
    with macs.shapes_only():
        network = cost._unfused(
            config.merge(config.Run, {"data.shards": "nowhere", "backbone.name": "vit_base", "objectives.classify": {}}), 10
        )
    assert all(parameter.is_meta for parameter in network.parameters())
    assert torch.equal(torch.get_rng_state(), state)
