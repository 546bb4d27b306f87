"""Cross-entropy against closed forms and a slow loop, with unlabelled images and mixed targets."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from vitssl import model
from vitssl.data.batch import Batch
from vitssl.evaluate import top_k_correct
from vitssl.objectives.classify import soft_cross_entropy


def slow(logits_BK, targets_BK, smoothing):
    """Per image: the mass on every class times its negative log probability; images without mass are skipped."""
    total, K = 0.0, logits_BK.shape[1]
    for logits, target in zip(logits_BK.tolist(), targets_BK.tolist(), strict=True):
        norm = math.log(sum(math.exp(x) for x in logits))
        mass = sum(target)
        for x, t in zip(logits, target, strict=True):
            total -= ((1 - smoothing) * t + smoothing * mass / K) * (x - norm)
    return total


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("K", "value"), [(10, 2.30259), (100, 4.60517), (1000, 6.90776)])
def test_zero_logits_give_log_k_whatever_the_smoothing(K, value, smoothing):
    loss = soft_cross_entropy(torch.zeros(4, K), torch.arange(4), smoothing, labelled=4)
    assert loss.item() == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_equals_torch_on_labels_and_the_loop_on_mixtures(smoothing):
    torch.manual_seed(0)
    logits_BK, labels_B = torch.randn(6, 5), torch.tensor([0, 1, -1, 3, 4, -1])
    known = labels_B >= 0
    expected = F.cross_entropy(logits_BK[known], labels_B[known], label_smoothing=smoothing)
    assert torch.allclose(soft_cross_entropy(logits_BK, labels_B, smoothing, labelled=4), expected, atol=1e-6)

    mixed_BK = torch.rand(6, 5)
    mixed_BK[2] = 0  # two unlabelled images mixed
    got = soft_cross_entropy(logits_BK, mixed_BK, smoothing, labelled=6)
    assert got.item() == pytest.approx(slow(logits_BK, mixed_BK, smoothing) / 6, abs=1e-5)


@pytest.mark.parametrize("std", [0.0, 2e-5, 0.01])
def test_the_head_may_start_at_another_scale_or_at_zero(make_run, std):
    head = model.build(make_run({"objectives.classify": {"init_std": std}}), 200).objectives["classify"].head
    assert head.weight.std().item() == pytest.approx(std, rel=0.05) and head.bias.abs().max() == 0


def test_a_batch_without_labels_costs_nothing_and_has_a_gradient():
    logits_BK = torch.randn(3, 5, requires_grad=True)
    loss = soft_cross_entropy(logits_BK, torch.full((3,), -1), 0.1, labelled=1)
    loss.backward()
    assert loss.item() == 0 and logits_BK.grad.abs().max() == 0


def test_slices_average_to_the_global_mean_though_labels_are_unequal():
    """Two ranks with 4 and 1 labels: what the loader calls `labelled` is 2.5 for both."""
    torch.manual_seed(0)
    logits_BK, labels_B = torch.randn(8, 5), torch.tensor([0, 1, 2, 3, -1, -1, 4, -1])
    parts = [soft_cross_entropy(logits_BK[s], labels_B[s], 0.0, labelled=2.5) for s in (slice(0, 4), slice(4, 8))]
    known = labels_B >= 0
    assert torch.allclose(sum(parts) / 2, F.cross_entropy(logits_BK[known], labels_B[known]))


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_pooling(make_run, pool):
    network = model.build(make_run({"objectives.classify": {"pool": pool}}), num_classes=7).eval()
    images_BCHW = torch.randn(2, 3, 8, 8)
    backbone, head = network.backbone, network.objectives["classify"].head
    features = backbone(backbone.embed(images_BCHW))
    pooled_BD = features.prefix_BPD[:, 0] if pool == "cls" else sum(features.tokens_BND[:, n] for n in range(16)) / 16
    logits_BK = network.predict(Batch({"main": images_BCHW}, {}, torch.arange(2), 0.0))
    assert torch.allclose(logits_BK, head(pooled_BD), atol=1e-6)


def test_top_k():
    logits_BK = torch.tensor([[0.1, 0.9, 0.5], [0.9, 0.1, 0.5]])
    assert top_k_correct(logits_BK, torch.tensor([1, 2]), 1).tolist() == [True, False]
    assert top_k_correct(logits_BK, torch.tensor([2, 2]), 2).tolist() == [True, True]
    assert top_k_correct(logits_BK, torch.tensor([0, 1]), 5).tolist() == [True, True]
