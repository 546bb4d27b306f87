"""MAE's masking, decoder input and loss against a slow loop from the paper, and closed forms."""

from __future__ import annotations

import pytest
import torch

from vitssl import model
from vitssl.data.batch import Batch
from vitssl.model import StepEncode
from vitssl.objectives import mae

SSAT = {
    "objectives.classify": {"weight": 0.1},
    "objectives.mae": {"weight": 0.9, "decoder_dim": 16, "decoder_depth": 2, "decoder_heads": 2},
}


def batch_of(images_BCHW, labels_B=None) -> Batch:
    B = len(images_BCHW)
    labels_B = torch.zeros(B, dtype=torch.int64) if labels_B is None else labels_B
    return Batch({"main": images_BCHW}, {"main": labels_B}, torch.arange(B), float(B))


def slow_loss(network, images_BCHW, selection, normalize: bool) -> float:
    """Image by image, patch by patch: encode the visible ones, decode with mask tokens, compare the hidden ones."""
    objective, backbone = network.objectives["mae"], network.backbone
    p, side = backbone.patch_size, images_BCHW.shape[-1] // backbone.patch_size
    errors = []
    for b, image_CHW in enumerate(images_BCHW):
        keep = selection.keep_BM[b].tolist()
        embedded = backbone.embed(image_CHW[None])
        features = backbone(embedded, torch.tensor([keep]))
        rows = [objective.decoder_embed(features.prefix_BPD[0, 0])]
        for n in range(side * side):
            token = objective.decoder_embed(features.tokens_BND[0, keep.index(n)]) if n in keep else objective.mask_token[0, 0]
            rows.append(token)
        tokens = torch.stack(rows)[None] + objective.decoder_pos_embed
        for block in objective.decoder_blocks:
            tokens = block(tokens)
        prediction_NE = objective.decoder_pred(objective.decoder_norm(tokens))[0, 1:]
        for n in range(side * side):
            if n in keep:
                continue
            r, c = n // side, n % side
            target = torch.stack([image_CHW[:, r * p + i, c * p + j] for i in range(p) for j in range(p)]).flatten()
            if normalize:
                target = (target - target.mean()) / (target.var() + 1e-6) ** 0.5
            errors.append(((prediction_NE[n] - target) ** 2).mean())
    return torch.stack(errors).mean().item()


@pytest.mark.parametrize("normalize", [False, True])
def test_loss_equals_the_slow_loop(make_run, normalize):
    run = make_run(SSAT, {"objectives.mae.normalize_targets": normalize})
    network = model.build(run, 10).eval()
    images_BCHW = torch.randn(3, 3, 8, 8)
    torch.manual_seed(5)
    encode = StepEncode(network, batch_of(images_BCHW))
    loss = network.objectives["mae"](encode, batch_of(images_BCHW), torch.zeros(()))["mae"]
    selection = encode.selection("mae")
    assert selection.mask_BN.sum(1).tolist() == [12, 12, 12]
    assert loss.item() == pytest.approx(slow_loss(network, images_BCHW, selection, normalize), rel=1e-5)


def test_zero_prediction_closed_forms(make_run):
    """Normalised targets: (E-1)/E * var/(var+1e-6), here with E = 12 values a patch; a constant image gives 0."""
    targets_BNE = mae.normalize_patches(mae.patchify(torch.randn(2, 3, 8, 8), 2))
    mask_BN = torch.ones(2, 16)
    assert mae.masked_mse(torch.zeros_like(targets_BNE), targets_BNE, mask_BN).item() == pytest.approx(11 / 12, abs=1e-4)
    constant_BNE = mae.normalize_patches(mae.patchify(torch.full((1, 3, 8, 8), 0.7), 2))
    assert mae.masked_mse(torch.zeros_like(constant_BNE), constant_BNE, torch.ones(1, 16)).item() == 0
    patches_BNE = mae.normalize_patches(mae.patchify(torch.randn(1, 3, 224, 224), 16))
    assert mae.masked_mse(torch.zeros_like(patches_BNE), patches_BNE, torch.ones(1, 196)).item() == pytest.approx(767 / 768, abs=1e-4)


@pytest.mark.parametrize(("classes", "total"), [(10, 1.12909), (100, 1.35935)])
def test_ssat_total_at_zero_outputs(make_run, classes, total):
    """lambda * ln C + (1 - lambda) * 767/768 with normalised targets, lambda 0.1, 16-px patches (Eq. 1)."""
    run = make_run(SSAT, {"objectives.mae.normalize_targets": True, "data.image_size": 32, "backbone.patch_size": 16})
    network = model.build(run, classes).eval()
    for name, parameter in network.named_parameters():
        if "head" in name or "decoder_pred" in name:
            torch.nn.init.zeros_(parameter)
    got, _, weighted = network(batch_of(torch.randn(8, 3, 32, 32)), torch.zeros(()))
    assert got.item() == pytest.approx(total, abs=1e-4)
    assert got.item() == pytest.approx(sum(weighted.values()).item(), abs=1e-6)


def test_lambda_at_its_ends(make_run):
    images_BCHW = torch.randn(4, 3, 8, 8)
    for weight, name in ((1.0, "classify"), (0.0, "mae")):
        run = make_run(SSAT, {"objectives.classify.weight": weight, "objectives.mae.weight": 1 - weight})
        torch.manual_seed(0)
        total, terms, _ = model.build(run, 10).eval()(batch_of(images_BCHW), torch.zeros(()))
        assert total.item() == pytest.approx(terms[name].item())


def test_patchify_is_row_major_with_channels_innermost_and_invertible():
    images_BCHW = torch.arange(3 * 4 * 4.0).reshape(1, 3, 4, 4)
    patches_BNE = mae.patchify(images_BCHW, 2)
    assert patches_BNE[0, 1, :6].tolist() == [2, 18, 34, 3, 19, 35]
    assert torch.equal(mae.unpatchify(patches_BNE, 2), images_BCHW)


def test_gradient_reaches_every_parameter_and_the_hidden_patches_none_of_the_encoder(make_run):
    network = model.build(make_run(SSAT), 10)
    images_BCHW = torch.randn(4, 3, 8, 8, requires_grad=True)
    network(batch_of(images_BCHW), torch.zeros(()))[0].backward()
    without = [name for name, p in network.named_parameters() if p.grad is None or p.grad.abs().max() == 0]
    assert not without


def test_embedding_is_shared_and_passes_are_made_once(make_run, monkeypatch):
    network = model.build(make_run(SSAT), 10).eval()
    calls = []
    embed = network.backbone.embed
    monkeypatch.setattr(network.backbone, "embed", lambda x: calls.append("embed") or embed(x))
    network.backbone.register_forward_hook(lambda *a: calls.append("pass"))
    network(batch_of(torch.randn(2, 3, 8, 8)), torch.zeros(()))
    assert calls == ["embed", "pass", "pass"]
