"""The regularisers of masked tokens against slow loops from the paper's equations, and their closed forms."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitssl import model
from vitssl.config import ConfigError
from vitssl.data.loading.batch import Batch
from vitssl.objectives.losses import Gathered, token_contrast
from vitssl.objectives.masked_tokens import sparse_loss

BACKBONE = {"backbone.masked_tokens": {"count": 3, "blocks": 2}}
PAIRS = {
    "masked_tokens/masked_tokens": {"classify": {"pool": "mean"}, "masked_tokens": {}},
    "masked_tokens/masked_tokens, raw": {"classify": {"pool": "mean"}, "masked_tokens": {"normed": False}},
    "masked_tokens/masked_tokens, sparse": {"classify": {"pool": "mean"}, "masked_tokens": {"contrast_weight": 0.0}},
}  # fmt: skip
CURVE = {"objectives": {"classify": {"weight": 0.5}, "masked_tokens": {}}, **BACKBONE}
OVER_RANKS = {}


def batch_of(B: int = 4, **copies: int) -> Batch:
    views = {name: torch.randn(count * B, 3, 8, 8) for name, count in ({"main": 1} | copies).items()}
    return Batch(views, {name: torch.arange(len(view)) % B for name, view in views.items()}, torch.arange(B), float(B))


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return torch.dot(a, b) / (a.norm() * b.norm())


def slow_contrast(tokens_KND: Tensor, temperature: float = 1.0) -> Tensor:
    """Eq. 12 and 13 as sums over images and pairs, with the sign and the logarithm that make sense of them."""
    K, N, _ = tokens_KND.shape
    total = torch.zeros((), dtype=tokens_KND.dtype)
    for k in range(K):
        for j1 in range(N):
            negatives = sum(
                torch.exp(cosine(tokens_KND[k, j1], tokens_KND[other, j]) / temperature)
                for other in range(K)
                if other != k
                for j in range(N)
            )
            for j2 in range(N):
                if j2 != j1:
                    positive = torch.exp(cosine(tokens_KND[k, j1], tokens_KND[k, j2]) / temperature)
                    total = total - torch.log(positive / (positive + negatives))
    return total / (K * N * (N - 1))


def contrast(tokens_BJD: Tensor, temperature: float = 1.0) -> Tensor:
    unit_BJD = F.normalize(tokens_BJD, dim=-1)
    return token_contrast(unit_BJD, Gathered(unit_BJD, torch.arange(len(unit_BJD)), 0), temperature)


@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_contrast_and_its_gradient_are_the_slow_loops(temperature: float) -> None:
    tokens_BJD = torch.randn(4, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    fast, slow = (tokens_BJD.clone().requires_grad_() for _ in range(2))
    got, expected = contrast(fast, temperature), slow_contrast(slow, temperature)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(*torch.autograd.grad(got + expected, (fast, slow)))
    assert torch.autograd.gradcheck(lambda t: contrast(t, temperature), (tokens_BJD.requires_grad_(),))


@pytest.mark.parametrize(("count", "images", "expected"), [(4, 64, 5.53339), (28, 32, 6.76734)])
def test_contrast_of_equal_tokens(count: int, images: int, expected: float) -> None:
    loss = contrast(torch.ones(images, count, 5, dtype=torch.float64))
    assert loss.item() == pytest.approx(math.log(1 + count * (images - 1))) == pytest.approx(expected, abs=1e-5)


def test_an_image_that_is_there_twice_is_no_negative_of_itself() -> None:
    """Of images 0, 1, 0 the outer two have only image 1's tokens as negatives."""
    unit_BJD = F.normalize(torch.randn(3, 2, 6, dtype=torch.float64), dim=-1)
    got = token_contrast(unit_BJD, Gathered(unit_BJD, torch.tensor([0, 1, 0]), 0), 1.0)
    expected = []
    for k, others in enumerate([[1], [0, 2], [1]]):
        for i, j in ((0, 1), (1, 0)):
            positive = (unit_BJD[k, i] @ unit_BJD[k, j]).exp()
            negatives = (unit_BJD[others].flatten(0, 1) @ unit_BJD[k, i]).exp().sum()
            expected.append(-(positive / (positive + negatives)).log())
    torch.testing.assert_close(got, torch.stack(expected).mean())


def test_one_image_has_no_negatives() -> None:
    tokens = torch.randn(1, 3, 6, requires_grad=True)
    loss = contrast(tokens)
    loss.backward()
    assert loss.item() == 0 and tokens.grad.abs().max() == 0


def test_the_order_of_images_and_of_tokens_does_not_matter() -> None:
    tokens_BJD = torch.randn(5, 4, 6)
    torch.testing.assert_close(contrast(tokens_BJD[torch.randperm(5)][:, torch.randperm(4)]), contrast(tokens_BJD))


@pytest.mark.parametrize(("count", "expected"), [(4, 1.38629), (28, 3.33220)])
def test_a_classifier_of_zeros_tells_no_tokens_apart(make_run, count: int, expected: float) -> None:
    network = model.build(make_run(CURVE, {"backbone.masked_tokens.count": count}), 10)
    part = network.objectives["masked_tokens"]
    assert sum(p.numel() for p in part.parameters()) == count * (32 + 1)
    torch.nn.init.zeros_(part.classifier.weight)
    _, terms, _ = network(batch_of(), torch.zeros(()))
    assert terms["masked_tokens_sparse"].item() == pytest.approx(expected, abs=1e-5)


def test_sparse_is_the_mean_of_eq_11_over_images(make_run) -> None:
    network = model.build(make_run(CURVE), 10).double()
    part, tokens_BJD = network.objectives["masked_tokens"], torch.randn(4, 3, 32, dtype=torch.float64, requires_grad=True)
    logits_BJJ = tokens_BJD @ part.classifier.weight.T + part.classifier.bias
    expected = -sum(logits_BJJ[b, j].log_softmax(0)[j] for b in range(4) for j in range(3)) / 12
    got = sparse_loss(part.classifier(tokens_BJD))
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(*(torch.autograd.grad(loss, tokens_BJD)[0] for loss in (got, expected)))


@pytest.mark.parametrize("normed", [True, False])
def test_they_are_of_the_last_blocks_masked_tokens(make_run, normed: bool) -> None:
    network = model.build(make_run(CURVE, {"objectives.masked_tokens.normed": normed}), 10)
    batch = batch_of()
    _, terms, weighted = network(batch, torch.zeros(()))
    features = network.backbone(network.backbone.embed(batch.views["main"]), out_indices=(1,))
    tokens_BJD = features.extra_BJD if normed else features.intermediates[1].extra_BJD
    assert terms["masked_tokens_contrast"].item() == pytest.approx(slow_contrast(tokens_BJD.double()).item(), abs=1e-5)
    assert torch.allclose(features.extra_BJD, features.intermediates[1].extra_BJD) is False
    assert weighted["masked_tokens_sparse"].item() == terms["masked_tokens_sparse"].item()


def test_views_of_other_sizes_count_too(make_run) -> None:
    """DINO's small crops, whose masked tokens select among fewer patches."""
    fields = {"data.views.local": {"count": 2, "size": 4}, "objectives": {"classify": None, "masked_tokens": {"local": "local"}}}
    network = model.build(make_run(BACKBONE, fields), 10)
    batch = batch_of()
    batch.views["local"] = torch.randn(8, 3, 4, 4)
    _, terms, _ = network(batch, torch.zeros(()))
    tokens = [network.backbone(network.backbone.embed(view)).extra_BJD for view in batch.views.values()]
    parts = [slow_contrast(part.double()) for whole in tokens for part in whole.split(4)]
    assert len(parts) == 3
    assert terms["masked_tokens_contrast"].item() == pytest.approx(torch.stack(parts).mean().item(), abs=1e-5)


def test_copies_and_the_other_view_are_contrasted_apart(make_run) -> None:
    """An image's second view is no negative of its first, and no positive."""
    fields = {"data.views.main.count": 2, "data.views.second": {}, "objectives": {"classify": None, "masked_tokens": {"second": "second"}}}
    network = model.build(make_run(BACKBONE, fields), 10)
    batch = batch_of(main=2, second=1)
    _, terms, _ = network(batch, torch.zeros(()))
    tokens = [network.backbone(network.backbone.embed(view)).extra_BJD for view in batch.views.values()]
    parts = [slow_contrast(part.double()) for whole in tokens for part in whole.split(4)]
    assert len(parts) == 3
    assert terms["masked_tokens_contrast"].item() == pytest.approx(torch.stack(parts).mean().item(), abs=1e-5)


def test_weights_of_the_terms(make_run) -> None:
    fields = {"weight": 0.5, "sparse_weight": 0.0, "contrast_weight": 0.2}
    network = model.build(make_run(CURVE, {"objectives.masked_tokens": fields}), 10)
    _, terms, weighted = network(batch_of(), torch.zeros(()))
    assert network.objectives["masked_tokens"].classifier is None and "masked_tokens_sparse" not in terms
    assert weighted["masked_tokens_contrast"].item() == pytest.approx(0.1 * terms["masked_tokens_contrast"].item())


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"backbone.masked_tokens": None}, r"objectives\.masked_tokens: backbone\.name=vit_pico has no masked tokens; set backbone\."),
        (
            {"backbone.masked_tokens.count": 1},
            r"masked_tokens\.contrast_weight: a single masked token has no others in its image to differ from",
        ),
        ({"objectives.masked_tokens.second": "main"}, r"masked_tokens: its views must all be different, not main, main"),
        ({"objectives.masked_tokens": {"sparse_weight": 0, "contrast_weight": 0}}, r"masked_tokens: both of its terms have weight 0"),
        ({"objectives.masked_tokens": {"contrast_weight": 0, "temperature": 2}}, r"masked_tokens\.temperature: .* contrast_weight"),
        ({"objectives.masked_tokens.temperature": 0}, r"masked_tokens\.temperature: 0\.0 is not positive"),
        ({"loop.micro_batch_size": 8}, r"masked_tokens: loop\.micro_batch_size may split the batch"),
        ({"optim.batch_size": 1}, r"masked_tokens: a batch of one image has no negatives"),
    ],
)
def test_what_cannot_be_is_one_line(make_run, layer: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_run(CURVE, layer)
