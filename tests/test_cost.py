"""MACs and parameters against the published figures and arithmetic by hand."""

from __future__ import annotations

import pytest

from vitssl import config, cost

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
