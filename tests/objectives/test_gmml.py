"""GMML's corruption, decoder and loss against a slow loop from the paper, closed forms, and what is refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounter

from tests.objectives.conftest import batch_of
from vitssl import config, model
from vitssl.config import ConfigError
from vitssl.costs import cost
from vitssl.data.loading.batch import Batch
from vitssl.objectives.gmml import Gmml, pixel_error

PAIRS = {
    "gmml": {"gmml": {"blocks": [-1]}},
    "gmml, patches, l2, jointly": {
        "classify": {"pool": "mean", "weight": 0.1},
        "gmml": {"blocks": [-1], "align": "patch", "loss": "l2", "decoder_layers": 2, "activation": "relu", "weight": 0.9},
    },
    "gmml, autoencoder": {"gmml": {"blocks": [-1], "loss_on": "all", "loss": "l2", "corrupt": {"noise": None, "alien": None}}},
}
CURVE = {"objectives": {"gmml": {"blocks": [0, 1], "align": "patch"}}}
OVER_RANKS = "each image's loss is its own"
GMML = {"objectives.gmml": {"blocks": [0, 1]}}
OFF = {f"objectives.gmml.corrupt.{kind}": None for kind in ("noise", "zeros", "alien", "copy")}


def only(kind: str, *area: float) -> dict:
    return OFF | {f"objectives.gmml.corrupt.{kind}": {"area": list(area) or [0.5, 0.75]}}


def corrupted(network, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the objective will make with seed 3."""
    torch.manual_seed(3)
    return network.objectives["gmml"].corrupt(images, len(images))


def slow_loss(network, images: torch.Tensor, altered: torch.Tensor, mask: torch.Tensor, *, squared: bool, total: bool) -> torch.Tensor:
    """Eq. 1 image by image and pixel by pixel, divided by the number of values: blocks' outputs summed or averaged, the shared norm,
    point-wise layers, and every token's own square of pixels."""
    backbone, cfg = network.backbone, network.objectives["gmml"].cfg
    *hidden, last = network.objectives["gmml"].decoder
    errors, p, side = [], backbone.stride, images.shape[-1] // backbone.stride
    for image, bad, hidden_1HW in zip(images, altered, mask, strict=True):
        tokens = backbone.patch_embed(bad[None])[0] + backbone.pos_embed[0, 1:]
        sequence = torch.cat([backbone.cls_token[0] + backbone.pos_embed[0, :1], tokens])[None]
        outputs = []
        for block in backbone.blocks:
            sequence = block(sequence)
            outputs.append(sequence[0, 1:])
        fused = outputs[0] + outputs[1]
        fused = backbone.norm(fused / 2 if cfg.fuse == "mean" else fused)
        for n in range(side * side):
            token = fused[n]
            for part in hidden:
                token = part(token)
            square_CPP = torch.einsum("d,dcij->cij", token, last.weight) + last.bias[:, None, None]
            row, column = n // side, n % side
            for i in range(p):
                for j in range(p):
                    y, x = row * p + i, column * p + j
                    if total or hidden_1HW[0, y, x]:
                        difference = square_CPP[:, i, j] - image[:, y, x]
                        errors.append((difference**2 if squared else difference.abs()).mean())
    return torch.stack(errors).mean()


@pytest.mark.parametrize(
    "fields",
    [{}, {"align": "patch", "fuse": "sum", "loss": "l2"}, {"decoder_layers": 2, "activation": "relu", "loss_on": "all"}],
    ids=str,
)
def test_loss_and_gradient_equal_the_slow_loop(make_run, fields):
    network = model.build(make_run(GMML, {f"objectives.gmml.{name}": value for name, value in fields.items()}), 10).double().eval()
    images = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    altered, mask = corrupted(network, images)
    batch = batch_of(images)
    torch.manual_seed(3)
    loss = network.objectives["gmml"](network.step(batch), batch, torch.zeros(()))["gmml"]
    slow = slow_loss(network, images, altered, mask, squared=fields.get("loss") == "l2", total=fields.get("loss_on") == "all")
    parameters = list(network.parameters())
    torch.testing.assert_close(loss, slow)
    for fast, expected in zip(torch.autograd.grad(loss, parameters), torch.autograd.grad(slow, parameters), strict=True):
        torch.testing.assert_close(fast, expected, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_a_constant_target_and_a_prediction_of_zero(share):
    images, mask = torch.full((2, 3, 8, 8), -0.7), torch.rand(2, 1, 8, 8) < share
    assert pixel_error(torch.zeros_like(images), images, mask, "l1").item() == pytest.approx(0.7)
    assert pixel_error(torch.zeros_like(images), images, mask, "l2").item() == pytest.approx(0.49)


def test_pixels_that_are_not_corrupted_do_not_count():
    images, prediction, mask = torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8), torch.rand(2, 1, 8, 8) < 0.5
    expected = pixel_error(prediction, images, mask, "l1")
    assert torch.equal(pixel_error(torch.where(mask, prediction, 7.0), images, mask, "l1"), expected)
    assert expected.item() == pytest.approx(F.l1_loss(prediction, images, reduction="none")[mask.expand_as(images)].mean().item())


def test_half_of_the_images_get_noise_and_the_others_blocks_of_another_image(make_run):
    objective: Gmml = model.build(make_run(GMML), 10).objectives["gmml"]
    torch.manual_seed(0)
    images = torch.arange(600.0)[:, None, None, None].expand(600, 3, 8, 8) + 1000
    altered, mask = objective.corrupt(images, 600)
    assert torch.equal(altered[~mask.expand_as(images)], images[~mask.expand_as(images)]) and mask.shape == (600, 1, 8, 8)
    noisy = torch.stack([(image[hidden.expand_as(image)] < 10).all() for image, hidden in zip(altered, mask, strict=True)])
    assert noisy.float().mean().item() == pytest.approx(0.5, abs=0.08)
    for image, hidden, own in zip(altered[~noisy], mask[~noisy], images[~noisy], strict=True):
        values = image[hidden.expand_as(image)].unique()
        assert len(values) == 1 and values[0] != own[0, 0, 0]
    assert (mask[noisy].float().mean((1, 2, 3)) >= 0.5).all() and (mask[~noisy].float().mean((1, 2, 3)) >= 0.3).all()


def test_shares_of_three_kinds(make_run):
    shares = {"noise.share": 1, "zeros": {"share": 2}, "alien.share": 5}
    objective = model.build(make_run(GMML, {f"objectives.gmml.corrupt.{name}": value for name, value in shares.items()}), 10).objectives[
        "gmml"
    ]
    torch.manual_seed(0)
    altered, mask = objective.corrupt(torch.full((1000, 3, 8, 8), 9.0), 1000)
    zeros = torch.stack([(image[hidden.expand_as(image)] == 0).all() for image, hidden in zip(altered, mask, strict=True)])
    alien = (altered == 9).flatten(1).all(1)
    assert [zeros.float().mean().item(), alien.float().mean().item()] == pytest.approx([2 / 8, 5 / 8], abs=0.04)


def test_blocks_of_patches_hide_whole_patches(make_run):
    objective = model.build(make_run(GMML, {"objectives.gmml.align": "patch"}), 10).objectives["gmml"]
    _, mask = objective.corrupt(torch.randn(50, 3, 8, 8), 50)
    patches = F.unfold(mask.float(), 2, stride=2)
    assert ((patches.mean(1) == 0) | (patches.mean(1) == 1)).all()


def test_two_crops_of_an_image(make_run):
    """An image's own second crop is a neighbour in the batch, and never the alien."""
    run = make_run(GMML, only("alien", 1.0, 1.0), {"data.views.main.count": 2})
    network = model.build(run, 10)
    images = torch.arange(3.0).repeat(2)[:, None, None, None].expand(6, 3, 8, 8)
    for _ in range(20):
        altered, _ = network.objectives["gmml"].corrupt(images, 3)
        assert (altered[:, 0, 0, 0] != images[:, 0, 0, 0]).all()
    batch = Batch({"main": torch.randn(6, 3, 8, 8)}, {"main": torch.zeros(6)}, torch.arange(3), 3.0)
    assert torch.isfinite(network(batch, torch.zeros(()))[0])


def test_equal_maps_averaged_are_the_map(make_run):
    """With blocks that change nothing; the sum is twice it."""
    for fuse, factor in (("mean", 1.0), ("sum", 2.0)):
        network = model.build(make_run(GMML, {"objectives.gmml.fuse": fuse}), 10).eval()
        network.backbone.blocks, network.backbone.norm = torch.nn.ModuleList([Unchanged(), Unchanged()]), torch.nn.Identity()
        seen = []
        network.objectives["gmml"].decoder.register_forward_hook(lambda m, arguments, out, seen=seen: seen.append(arguments[0].tokens_BND))
        images = torch.randn(2, 3, 8, 8)
        altered, _ = corrupted(network, images)
        torch.manual_seed(3)
        network(batch_of(images), torch.zeros(()))
        torch.testing.assert_close(seen[0], factor * network.backbone.embed(altered).tokens)


class Unchanged(torch.nn.Module):
    def forward(self, tokens):
        return tokens


@pytest.mark.parametrize(("name", "parameters"), [("vit_tiny", 5_783_043), ("vit_small", 22_404_099)])
def test_parameters_of_gmmls_networks(make_run, name, parameters):
    bare = {f"backbone.{field}": None for field in ("embed_dim", "depth", "num_heads", "patch_size")}
    run = make_run({"data.image_size": 224, "objectives.gmml": {}}, bare, {"backbone.name": name})
    assert sum(p.numel() for p in model.build(run, 10).parameters()) == parameters


def test_jointly_classification_sees_the_clean_image(make_run):
    network = model.build(make_run(GMML, {"objectives.classify": {}}), 10).eval()
    alone = model.build(make_run({"objectives.classify": {}}), 10).eval()
    batch = batch_of(torch.randn(4, 3, 8, 8))
    _, terms, _ = network(batch, torch.zeros(()))
    assert terms["classify"].item() == pytest.approx(alone(batch, torch.zeros(()))[0].item())
    assert network.predict(batch).shape == (4, 10)


@pytest.mark.parametrize(
    ("layers", "word"),
    [
        (OFF, "loss_on: all"),
        ({"optim.batch_size": 1}, "no other to take blocks from"),
        ({"loop.micro_batch_size": 1}, "loop.micro_batch_size"),
        (only("noise", 0.8, 0.2), "rising pair"),
        (only("noise", 0.8), "rising pair"),
        ({"objectives.gmml.corrupt.noise.share": 0}, "share"),
        (only("noise") | {"objectives.gmml.corrupt.noise.share": 3}, "share"),
        ({"objectives.gmml.decoder_layers": 0, "objectives.gmml.activation": "relu"}, "activation"),
        ({"data.image_size": 224, "backbone.patch_size": 16, "objectives.gmml.max_side": 0.05}, "so small"),
        ({"objectives.gmml.corrupt.alien.share": -1}, "share"),
        ({"objectives.gmml.max_side": 0}, "max_side"),
        ({"objectives.gmml.decoder_layers": -1}, "decoder_layers"),
        ({"objectives.gmml.blocks": [0]}, "lacks the last block"),
        ({"objectives.gmml.blocks": [5, 7]}, "not all in -2 to 1"),
        ({"objectives.gmml.blocks": [1, -1]}, "twice"),
        ({"objectives.gmml.blocks": []}, "blocks"),
        (only("copy") | {"objectives.gmml.align": "patch", "backbone.patch_size": 8}, "one patch"),
    ],
)
def test_what_cannot_be_trained_is_refused(make_run, layers, word):
    with pytest.raises(ConfigError, match=word):
        make_run(GMML, layers)


def test_one_image_for_a_gpu_is_refused(make_run):
    network = model.build(make_run(GMML), 10)
    with pytest.raises(ConfigError, match="batch_size"):
        network(batch_of(torch.randn(1, 3, 8, 8)), torch.zeros(()))


def test_compiled_it_is_one_graph(make_run):
    network, counter = model.build(make_run(GMML), 10), CompileCounter()
    compiled = torch.compile(network, backend=counter)
    for step in range(3):
        compiled(batch_of(torch.randn(4, 3, 8, 8)), torch.tensor(step / 3))[0].backward()
    assert counter.frame_count == 1


def test_cost_of_a_step_and_of_inference(make_run):
    """One full pass and the decoder, whose transposed convolution is a linear layer; blocks cost no products."""
    gmml, classify = (cost.measure(make_run(layers), 10) for layers in (GMML, {"objectives.classify": {}}))
    decoder = 16 * (3 * 32 * 32 + 32 * 3 * 2 * 2)
    # the final norm does not see the class token: five operations a value
    assert gmml["macs_train_forward"] - gmml["macs_inference"] == decoder - 5 * 32
    assert gmml["params_inference"] == classify["params_inference"] - 330


@pytest.mark.parametrize(
    ("backbone", "expected"),
    [
        ({"name": "vit_tiny"}, [5, 7, 9, 11]),
        ({"name": "vit_large"}, [11, 15, 19, 23]),
        ({"name": "vit_pico", "depth": 6}, [2, 3, 4, 5]),
        ({"name": "vit_pico"}, [1, 2, 3]),
        ({"name": "vit_pico", "depth": 1}, [0]),
        ({"name": "swin_pico"}, [3]),
    ],
)
def test_the_default_blocks_are_the_papers_as_far_up_in_any_depth(backbone, expected):
    run = config.merge(config.Run, {"data.shards": "x", "objectives.gmml": {}, "backbone": backbone})
    config.check(run)
    assert run.objectives.gmml.fused(run.backbone) == expected


@pytest.mark.parametrize(
    ("gmml", "identity"), [({}, "9e88454c6ba3"), ({"blocks": [5, 7, 9, 11]}, "9e88454c6ba3"), ({"blocks": [3, 7, 9, 11]}, "254bc839d8ff")]
)  # fmt: skip
def test_runs_are_found_again_whose_default_was_a_list(gmml, identity):
    assert config.identity(config.merge(config.Run, {"data.shards": "x", "objectives.gmml": gmml})) == identity


def test_a_small_network_is_trained_by_the_default_blocks(make_run):
    run = make_run({"objectives.gmml": {}})
    assert model.build(run, 2).objectives["gmml"].out_indices == (0, 1)
