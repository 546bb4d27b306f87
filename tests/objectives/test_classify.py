"""Cross-entropy against closed forms and a slow loop, with unlabelled images and mixed targets."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight
from torch import nn

from vitssl import model
from vitssl.config import ConfigError
from vitssl.data.loading.batch import Batch
from vitssl.evaluators.metrics import top_k_correct
from vitssl.objectives.classify import balanced_weights, soft_cross_entropy
from vitssl.training.train_state import TrainState, start

OVER_RANKS = "each image's loss is its own (but for a batch norm's, test_norms); the divisor is that of all ranks, as tested below"


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


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_weights_of_classes_are_torchs_and_those_of_mixtures_the_loops(smoothing):
    """In value and gradient; torch divides by the sum of the weights, and spreads the smoothed part by them."""
    torch.manual_seed(0)
    weight_K = torch.tensor([0.5, 2.0, 1.0, 0.25, 4.0])
    logits_BK, labels_B = torch.randn(6, 5, requires_grad=True), torch.tensor([0, 1, -1, 3, 4, -1])
    got = soft_cross_entropy(logits_BK, labels_B, 0.0, labelled=7, weight_K=weight_K)
    expected = F.cross_entropy(logits_BK, labels_B, weight_K, ignore_index=-1, reduction="sum") / 7
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(*(torch.autograd.grad(loss, logits_BK)[0] for loss in (got, expected)))
    mixed_BK = torch.rand(6, 5)
    got = soft_cross_entropy(logits_BK, mixed_BK, smoothing, labelled=6, weight_K=weight_K)
    assert got.item() == pytest.approx(slow(logits_BK, mixed_BK * weight_K, smoothing) / 6, abs=1e-5)
    hard_BK = F.one_hot(labels_B.clamp(min=0), 5) * (labels_B >= 0)[:, None]
    both = [soft_cross_entropy(logits_BK, targets, smoothing, 4, weight_K) for targets in (labels_B, hard_BK.float())]
    torch.testing.assert_close(*both)


def test_balanced_weights_are_scikit_learns():
    labels = [0] * 50 + [1] * 5 + [3] * 20
    expected = compute_class_weight("balanced", classes=np.array([0, 1, 3]), y=labels)
    got = balanced_weights(torch.bincount(torch.tensor(labels), minlength=5))
    assert got[[0, 1, 3]].tolist() == pytest.approx(expected.tolist()) and got[[2, 4]].tolist() == [0, 0]
    assert got[labels].mean() == pytest.approx(1)


def test_a_balanced_classifier_counts_the_labels_that_it_trains_on(make_run, digits, tmp_path):
    """Of the digits' training images a tenth of each class; the weights are no part of a checkpoint."""
    few = make_run({"objectives.classify.class_weight": "balanced", "data.labels.fraction": 0.1}, shards=digits)
    attempt = TrainState(tmp_path, few)
    start(attempt)
    labels = attempt.split.labels[attempt.split.train]
    counts = np.bincount(labels[labels >= 0])
    assert counts.sum() < 140 and len(set(counts)) > 1
    expected = counts.sum() / (10 * counts)
    assert attempt.model.objectives["classify"].weight_K.tolist() == pytest.approx(expected.tolist())
    assert not any("weight_K" in name for name in attempt.model.state_dict())


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
    assert torch.allclose(logits_BK, F.linear(pooled_BD, head.weight, head.bias), atol=1e-6)


def passed(network, images_BCHW):
    """The output, and the tokens of both blocks after the final norm."""
    backbone = network.backbone
    features = backbone(backbone.embed(images_BCHW), out_indices=(0, 1))
    return features, [backbone.norm(features.intermediates[i].sequence()) for i in (0, 1)]


def test_several_heads_add_their_losses_and_average_their_logits(make_run):
    """GMML's: a linear layer on the class token, and an MLP on the mean of the patch tokens."""
    heads = {"extra_heads": [{"pool": "mean", "hidden_dim": 128}], "label_smoothing": 0.1}
    network = model.build(make_run({"objectives.classify": heads}), 7).eval()
    batch = Batch({"main": torch.randn(3, 3, 8, 8)}, {"main": torch.tensor([0, 1, -1])}, torch.arange(3), 2.0)
    features, _ = passed(network, batch.views["main"])
    classify = network.objectives["classify"]
    mlp = nn.Sequential(classify.extra_heads[0].before.hidden, nn.GELU())
    first = F.linear(features.prefix_BPD[:, 0], classify.head.weight, classify.head.bias)
    second = F.linear(mlp(features.tokens_BND.mean(1)), classify.extra_heads[0].weight, classify.extra_heads[0].bias)
    torch.testing.assert_close(network.predict(batch), (first + second) / 2)
    expected = sum(soft_cross_entropy(logits, batch.targets["main"], 0.1, 2.0) for logits in (first, second))
    torch.testing.assert_close(network(batch, torch.zeros(()))[1]["classify"], expected.detach())


def test_sits_heads_read_a_special_token_each(make_run):
    heads = {"activation": "tanh", "hidden_dim": 16, "extra_heads": [{"pool": "reg"}]}
    network = model.build(make_run({"objectives.classify": heads, "backbone.reg_tokens": 1}), 7).eval()
    images_BCHW = torch.randn(2, 3, 8, 8)
    features, _ = passed(network, images_BCHW)
    classify = network.objectives["classify"]
    hidden = torch.tanh(classify.head.before.hidden(features.prefix_BPD[:, 0]))
    logits = [F.linear(hidden, classify.head.weight, classify.head.bias)]
    logits += [F.linear(features.prefix_BPD[:, 1], classify.extra_heads[0].weight, classify.extra_heads[0].bias)]
    torch.testing.assert_close(network.predict(Batch({"main": images_BCHW}, {}, torch.arange(2), 0.0)), sum(logits) / 2)


@pytest.mark.parametrize("pool", ["cls", "cls+mean"])
def test_dinos_probe_concatenates_blocks(make_run, pool):
    network = model.build(make_run({"objectives.classify": {"pool": pool, "blocks": 2}}), 7).eval()
    images_BCHW, head = torch.randn(2, 3, 8, 8), network.objectives["classify"].head
    _, blocks = passed(network, images_BCHW)
    parts = [torch.cat([b[:, 0], b[:, 1:].mean(1)], 1) if "mean" in pool else b[:, 0] for b in blocks]
    logits_BK = network.predict(Batch({"main": images_BCHW}, {}, torch.arange(2), 0.0))
    torch.testing.assert_close(logits_BK, F.linear(torch.cat(parts, 1), head.weight, head.bias))


def test_fc_norm_is_behind_the_mean(make_run):
    """MAE's fine-tuning: the mean of tokens that no norm has seen, then a norm."""
    network = model.build(make_run({"objectives.classify": {"pool": "mean", "norm": "fc"}}), 7)
    images_BCHW, head = torch.randn(2, 3, 8, 8), network.objectives["classify"].head
    last = network.backbone(network.backbone.embed(images_BCHW), out_indices=(1,)).intermediates[1].sequence()
    expected = F.linear(network.backbone.norm(last[:, 1:].mean(1)), head.weight, head.bias)
    batch = Batch({"main": images_BCHW}, {"main": torch.tensor([0, 1])}, torch.arange(2), 2.0)
    torch.testing.assert_close(network.predict(batch), expected)
    network(batch, torch.zeros(()))[0].backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in network.parameters())


def test_maes_probe_normalises_features_by_a_batch_norm_without_affine(make_run):
    """On a frozen backbone: only the linear layer is trained; its input has mean 0 and variance 1 over the batch."""
    run = make_run({"objectives.classify": {"norm": "batch", "init_std": 0.01}, "backbone.frozen": True})
    network = model.build(run, 7).train()
    assert [name for name, p in network.named_parameters() if p.requires_grad] == [
        f"objectives.classify.head.{n}" for n in ("weight", "bias")
    ]
    batch = Batch({"main": torch.randn(8, 3, 8, 8)}, {"main": torch.arange(8) % 7}, torch.arange(8), 8.0)
    classify, seen = network.objectives["classify"], []
    classify.head.before.norm.register_forward_hook(lambda *found: seen.append(found[2]))
    network(batch, torch.zeros(()))[0].backward()
    assert seen[0].mean(0).abs().max() < 1e-5 and (seen[0].var(0, unbiased=False) - 1).abs().max() < 1e-2
    features, _ = passed(network, batch.views["main"])
    normed = F.batch_norm(features.prefix_BPD[:, 0], None, None, training=True, eps=1e-6)
    expected = F.cross_entropy(F.linear(normed, classify.head.weight, classify.head.bias), batch.targets["main"])
    torch.testing.assert_close(network.train()(batch, torch.zeros(()))[1]["classify"], expected.detach())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pool": "reg"}, "has no registers; set backbone.reg_tokens"),
        ({"blocks": 3}, r"objectives\.classify\.blocks: 3 is more than the 2"),
        ({"norm": "fc"}, r"objectives\.classify\.norm: fc comes after the mean"),
        (
            {"extra_heads": [{"activation": "tanh"}]},
            r"objectives\.classify\.extra_heads\[0\]\.activation: tanh has an effect only with a hidden_dim",
        ),
        ({"extra_heads": [{"pool": "reg"}]}, "has no registers"),
    ],
)
def test_impossible_heads_are_refused(make_run, fields, message):
    with pytest.raises(ConfigError, match=message):
        make_run({"objectives.classify": fields})


def test_top_k():
    logits_BK = torch.tensor([[0.1, 0.9, 0.5], [0.9, 0.1, 0.5]])
    assert top_k_correct(logits_BK, torch.tensor([1, 2]), 1).tolist() == [True, False]
    assert top_k_correct(logits_BK, torch.tensor([2, 2]), 2).tolist() == [True, True]
    assert top_k_correct(logits_BK, torch.tensor([0, 1]), 5).tolist() == [True, True]
