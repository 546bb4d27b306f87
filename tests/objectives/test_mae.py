"""MAE's masking, decoder input and loss against a slow loop from the paper, and closed forms."""

from __future__ import annotations

import pytest
import torch

from vitssl import model
from vitssl.data.loading.batch import Batch
from vitssl.objectives import masking
from vitssl.objectives.decoders import LinearDecoder
from vitssl.objectives.masking import TokenMask, random_mask

OVER_RANKS = "each image's loss is its own"
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
    decoder, backbone = network.objectives["mae"].decoder, network.backbone
    p, side = backbone.stride, images_BCHW.shape[-1] // backbone.stride
    errors = []
    for b, image_CHW in enumerate(images_BCHW):
        keep = selection.keep_BM[b].tolist()
        embedded = backbone.embed(image_CHW[None])
        features = backbone(embedded, torch.tensor([keep]))
        rows = [decoder.embed(features.prefix_BPD[0, 0])]
        for n in range(side * side):
            token = decoder.embed(features.tokens_BND[0, keep.index(n)]) if n in keep else decoder.mask_token[0, 0]
            rows.append(token)
        tokens = torch.stack(rows)[None] + decoder.pos_embed
        for block in decoder.blocks:
            tokens = block(tokens)
        prediction_NE = decoder.pred(decoder.norm(tokens))[0, 1:]
        for n in range(side * side):
            if n in keep:
                continue
            r, c = n // side, n % side
            target = torch.stack([image_CHW[:, r * p + i, c * p + j] for i in range(p) for j in range(p)]).flatten()
            if normalize:
                target = (target - target.mean()) / (target.var() + 1e-6) ** 0.5
            errors.append(((prediction_NE[n] - target) ** 2).mean())
    return torch.stack(errors).mean().item()


def drawn(objective) -> list[TokenMask]:
    """The masks that the objective will draw."""
    masks = []
    objective.decoder.register_forward_hook(lambda module, arguments, output: masks.append(arguments[1]))
    return masks


@pytest.mark.parametrize("normalize", [False, True])
def test_loss_equals_the_slow_loop(make_run, normalize):
    run = make_run(SSAT, {"objectives.mae.normalize_targets": normalize})
    network = model.build(run, 10).eval()
    images_BCHW = torch.randn(3, 3, 8, 8)
    torch.manual_seed(5)
    batch, masks = batch_of(images_BCHW), drawn(network.objectives["mae"])
    loss = network.objectives["mae"](network.step(batch), batch, torch.zeros(()))["mae"]
    assert masks[0].mask_BN.sum(1).tolist() == [12, 12, 12]
    assert loss.item() == pytest.approx(slow_loss(network, images_BCHW, masks[0], normalize), rel=1e-5)


def test_zero_prediction_closed_forms(make_run):
    """Normalised targets: (E-1)/E * var/(var+1e-6), here with E = 12 values a patch; a constant image gives 0."""
    targets_BNE = masking.normalize_patches(masking.patchify(torch.randn(2, 3, 8, 8), 2))
    mask_BN = torch.ones(2, 16)
    assert masking.masked_error(torch.zeros_like(targets_BNE), targets_BNE, mask_BN, "l2").item() == pytest.approx(11 / 12, abs=1e-4)
    constant_BNE = masking.normalize_patches(masking.patchify(torch.full((1, 3, 8, 8), 0.7), 2))
    assert masking.masked_error(torch.zeros_like(constant_BNE), constant_BNE, torch.ones(1, 16), "l2").item() == 0
    patches_BNE = masking.normalize_patches(masking.patchify(torch.randn(1, 3, 224, 224), 16))
    error = masking.masked_error(torch.zeros_like(patches_BNE), patches_BNE, torch.ones(1, 196), "l2")
    assert error.item() == pytest.approx(767 / 768, abs=1e-4)


@pytest.mark.parametrize(("classes", "total"), [(10, 1.12909), (100, 1.35935)])
def test_ssat_total_at_zero_outputs(make_run, classes, total):
    """lambda * ln C + (1 - lambda) * 767/768 with normalised targets, lambda 0.1, 16-px patches (Eq. 1)."""
    run = make_run(SSAT, {"objectives.mae.normalize_targets": True, "data.image_size": 32, "backbone.patch_size": 16})
    network = model.build(run, classes).eval()
    for name, parameter in network.named_parameters():
        if "head" in name or "decoder.pred" in name:
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


def test_patchify_is_row_major_with_channels_innermost():
    images_BCHW = torch.arange(3 * 4 * 4.0).reshape(1, 3, 4, 4)
    patches_BNE = masking.patchify(images_BCHW, 2)
    assert patches_BNE[0, 1, :6].tolist() == [2, 18, 34, 3, 19, 35]
    assert torch.equal(patches_BNE.sum(), images_BCHW.sum()) and patches_BNE.shape == (1, 4, 12)


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


SIMMIM = {"objectives.mae": {"hide": "mask", "decoder": "pixel_shuffle", "loss": "l1"}}


def test_simmim_is_the_mean_absolute_error_of_the_hidden_patches(make_run):
    """A slow loop: every token's linear prediction against its own patch, hidden ones only (Xie et al. 2022)."""
    network = model.build(make_run(SIMMIM), 10).eval()
    objective, images_BCHW = network.objectives["mae"], torch.randn(3, 3, 8, 8)
    batch, masks = batch_of(images_BCHW), drawn(objective)
    loss = objective(network.step(batch), batch, torch.zeros(()))["mae"]
    mask_BN = masks[0].mask_BN
    tokens_BND = network.step(batch).encode("main", mask_BN=mask_BN).tokens_BND
    errors = []
    for b, n in mask_BN.nonzero().tolist():
        r, c = n // 4, n % 4
        target = torch.stack([images_BCHW[b, :, 2 * r + i, 2 * c + j] for i in range(2) for j in range(2)]).flatten()
        errors.append((tokens_BND[b, n] @ objective.decoder.weight.T + objective.decoder.bias - target).abs().mean())
    assert loss.item() == pytest.approx(torch.stack(errors).mean().item(), rel=1e-5)


def test_a_hidden_patch_has_no_influence_on_any_token(make_run):
    network = model.build(make_run(SIMMIM), 10).eval()
    images_BCHW = torch.randn(2, 3, 8, 8)
    mask_BN = random_mask(2, 16, 0.75).mask_BN
    hidden = mask_BN.view(2, 1, 4, 4).repeat_interleave(2, 2).repeat_interleave(2, 3)
    others = torch.where(hidden, torch.randn_like(images_BCHW), images_BCHW)
    tokens = [network.step(batch_of(images)).encode("main", mask_BN=mask_BN).tokens_BND for images in (images_BCHW, others)]
    assert torch.equal(*tokens)


STAGED = {"embed_dim": 8, "depth": None, "num_heads": 1, "patch_size": None}
FUSING = {
    "drop": {"backbone": {**STAGED, "name": "cvt_pico"}, "objectives.mae": {**SSAT["objectives.mae"], "hide": "drop", "fuse": True}},
    "mask": {
        "backbone": {**STAGED, "name": "swin_pico", "patch_size": 4, "depths": [1, 1, 2], "window_size": 2},
        "objectives.mae": {"hide": "mask", "decoder": "pixel_shuffle", "fuse": True},
    },
}


def slow_fusion(objective, backbone, features, keep_N: list[int], b: int) -> torch.Tensor:
    """Place by place: the last stage's token, plus each earlier stage's cells of that place through their own weights; then the norm."""
    last = features.intermediates[len(backbone.strides) - 1]
    rows, columns = list(last.prefix_BPD[b]), last.grid[1]
    for m, n in enumerate(keep_N):
        r, c = n // columns, n % columns
        total = last.tokens_BND[b, m]
        for i, stride in enumerate(backbone.strides[:-1]):
            cells, f, shrink = features.intermediates[i].tokens_BND[b], backbone.stride // stride, objective.fusion.shrink[i]
            total = total + shrink.bias
            for y in range(f):
                for x in range(f):
                    total = total + shrink.weight[:, :, y, x] @ cells[(r * f + y) * columns * f + c * f + x]
        rows.append(total)
    return backbone.norm(torch.stack(rows))


@pytest.mark.parametrize("hide", FUSING)
def test_fusion_equals_the_slow_loop(make_run, hide):
    """ConvMAE's multi-scale fusion (Gao et al. 2022, section 3.3) of an encoder of three stages; the classifier's pass has none of it."""
    run = make_run({"data.image_size": 64, "objectives.classify.pool": "mean"}, FUSING[hide])
    network = model.build(run, 10).eval()
    objective, batch = network.objectives["mae"], batch_of(torch.randn(2, 3, 64, 64))
    seen = []
    objective.decoder.register_forward_hook(lambda module, arguments, output: seen.append(arguments[0]))
    masks, step = drawn(objective), network.step(batch)
    objective(step, batch, torch.zeros(()))
    keep_BM, mask_BN = masks[0]
    features = step.encode("main", keep_BM=keep_BM) if hide == "drop" else step.encode("main", mask_BN=mask_BN)
    for b in range(2):
        keep_N = keep_BM[b].tolist() if hide == "drop" else list(range(mask_BN.shape[1]))
        expected = slow_fusion(objective, network.backbone, features, keep_N, b)
        assert torch.allclose(torch.cat([seen[0].prefix_BPD[b], seen[0].tokens_BND[b]]), expected, atol=1e-5)


def test_swin_decoder_has_simmims_size():
    """768 x 3072 + 3072 parameters for Swin-T."""
    decoder = LinearDecoder(768, 32**2 * 3)
    assert sum(p.numel() for p in decoder.parameters()) == 2_362_368
