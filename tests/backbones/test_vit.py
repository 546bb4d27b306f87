"""The ViT is timm's: same names, same outputs; counts are the published ones."""

from __future__ import annotations

import dataclasses

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from vitssl import config
from vitssl.backbones import layers
from vitssl.backbones.base import Features
from vitssl.backbones.vit import ViT


def vit(size_px=32, requires=frozenset(), **fields) -> ViT:
    torch.manual_seed(0)
    fields = {"name": "vit_pico", "patch_size": 8} | fields
    return ViT(config.merge(config.BackboneConfig, fields), size_px, requires).eval()


def timm_twin(ours: ViT, name: str, size_px: int, **options) -> torch.nn.Module:
    twin = timm.create_model(name, img_size=size_px, num_classes=0, **options).eval()
    twin.load_state_dict(ours.state_dict())
    return twin


@pytest.mark.parametrize(("name", "count"), [("vit_tiny", 5_524_416), ("vit_small", 21_665_664), ("vit_base", 85_798_656)])
def test_parameter_counts_are_deits(name, count):
    with torch.device("meta"):
        assert sum(p.numel() for p in ViT(config.BackboneConfig(name=name), 224).parameters()) == count


@pytest.mark.parametrize(("name", "count"), [("vit_tiny", 5_486_592), ("vit_small", 21_590_016)])
def test_fixed_positions_are_not_parameters(name, count):
    ours = vit(224, name=name, patch_size=16, positions="sincos")
    assert sum(p.numel() for p in ours.parameters()) == count
    assert ours.pos_embed.shape == (1, 197, ours.embed_dim)


@pytest.mark.parametrize(("size_px", "patch"), [(224, 16), (96, 16), (32, 4)])
def test_outputs_equal_timms(size_px, patch):
    ours = vit(size_px, name="vit_tiny", patch_size=patch)
    twin = timm_twin(ours, "vit_tiny_patch16_224", size_px, patch_size=patch)
    images_BCHW = torch.randn(2, 3, size_px, size_px)
    features = ours(ours.embed(images_BCHW), out_indices=(0, 11))
    expected = twin.forward_features(images_BCHW)
    assert torch.equal(torch.cat([features.prefix_BPD, features.tokens_BND], 1), expected)
    assert torch.equal(ours.norm(features.intermediates[11].sequence()), expected)
    first = twin.forward_intermediates(images_BCHW, indices=[0], intermediates_only=True, output_fmt="NLC")[0]
    assert torch.equal(features.intermediates[0].sequence()[:, 1:], first)


SMALL = {"embed_dim": 48, "depth": 2, "num_heads": 3}


@pytest.mark.parametrize("name", ["vit_small_patch14_dinov2", "vit_small_patch14_reg4_dinov2", "deit3_small_patch16_224"])
@pytest.mark.parametrize("size_px", [56, 112])
def test_networks_with_layer_scale_equal_timms(name, size_px):
    """In value and gradient; where registers or all prefix tokens have no positions there, they are 0 here."""
    torch.manual_seed(1)
    patch = 14 if "dinov2" in name else 16
    twin = timm.create_model(name, img_size=4 * patch, num_classes=0, dynamic_img_size=True, **SMALL)
    for parameter in twin.parameters():
        nn.init.normal_(parameter, std=0.2)
    registers = 4 if "reg4" in name else 0
    ours = vit(4 * patch, patch_size=patch, layer_scale=1e-5, reg_tokens=registers, interpolate_antialias=True, **SMALL)
    ours.load_state_dict(ours.convert_state_dict(twin.state_dict(), prefix=""))
    images_BCHW = torch.randn(2, 3, size_px // 14 * patch, size_px // 14 * patch)
    features, expected = ours(ours.embed(images_BCHW)), twin.eval().forward_features(images_BCHW)
    got = torch.cat([features.prefix_BPD, features.tokens_BND], 1)
    torch.testing.assert_close(got, expected)
    for output in (got, expected):
        output.square().mean().backward()
    for part, theirs in ((ours.patch_embed, twin.patch_embed), (ours.blocks, twin.blocks), (ours.norm, twin.norm)):
        for (label, p), q in zip(part.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, msg=lambda text, label=label: f"{label}: {text}")


@pytest.mark.parametrize(("size_px", "registers"), [(16, 4), (24, 6), (32, 8), (64, 16)])
@pytest.mark.parametrize("positions", ["learned", "sincos"])
def test_its_own_positions_stay_where_registers_make_their_number_a_square(size_px, registers, positions):
    ours = vit(size_px, reg_tokens=registers, positions=positions)
    assert layers.is_square(ours.pos_embed.shape[1])
    converted = ours.convert_state_dict(ours.state_dict(), prefix="")["pos_embed"]
    assert torch.equal(converted, ours.pos_embed)


def test_layer_scale_starts_where_it_is_set():
    gammas = [value for name, value in vit(layer_scale=1e-4).named_parameters() if name.endswith("gamma")]
    assert len(gammas) == 8 and all(torch.equal(value, torch.full_like(value, 1e-4)) for value in gammas)


def test_weights_with_layer_scale_are_refused_without():
    with pytest.raises(config.ConfigError, match=r"backbone\.layer_scale: null, but the weights to start from have LayerScale; set 1e-5"):
        vit().convert_state_dict(vit(layer_scale=1.0).state_dict(), prefix="")


def test_unfused_attention_gives_the_same():
    ours, images_BCHW = vit(), torch.randn(2, 3, 32, 32)
    fused = ours(ours.embed(images_BCHW)).tokens_BND
    layers.set_fused_attention(ours, False)
    assert torch.allclose(ours(ours.embed(images_BCHW)).tokens_BND, fused, atol=1e-5)


def test_keep_drops_tokens_before_the_first_block():
    """Against a loop that feeds each image's kept tokens through the blocks by itself."""
    ours, images_BCHW = vit(), torch.randn(3, 3, 32, 32)
    keep_BM = torch.stack([torch.randperm(16)[:5] for _ in range(3)])
    embedded = ours.embed(images_BCHW)
    features = ours(embedded, keep_BM)
    for b in range(3):
        tokens = torch.cat([ours.cls_token[0] + ours.pos_embed[0, :1], embedded.tokens[b, keep_BM[b]]])[None]
        for block in ours.blocks:
            tokens = block(tokens)
        tokens = ours.norm(tokens)
        assert torch.allclose(features.tokens_BND[b], tokens[0, 1:], atol=1e-5)
        assert torch.allclose(features.prefix_BPD[b], tokens[0, :1], atol=1e-5)


def test_keeping_all_in_any_order_changes_nothing_but_the_order():
    ours, images_BCHW = vit(), torch.randn(1, 3, 32, 32)
    order = torch.randperm(16)[None]
    embedded = ours.embed(images_BCHW)
    assert torch.allclose(ours(embedded, order).tokens_BND, ours(embedded).tokens_BND[:, order[0]], atol=1e-5)


def test_a_hidden_patch_becomes_the_mask_token_at_its_own_place():
    """Against a loop that builds each image's tokens one by one."""
    ours, images_BCHW = vit(requires={"mask"}), torch.randn(3, 3, 32, 32)
    mask_BN = torch.rand(3, 16) < 0.6
    embedded = ours.embed(images_BCHW)
    features = ours(embedded, mask_BN=mask_BN, out_indices=(3,))
    for b in range(3):
        rows = [ours.cls_token[0, 0] + ours.pos_embed[0, 0]]
        for n in range(16):
            rows.append(ours.mask_token[0, 0] + ours.pos_embed[0, 1 + n] if mask_BN[b, n] else embedded.tokens[b, n])
        tokens = torch.stack(rows)[None]
        for block in ours.blocks:
            tokens = block(tokens)
        assert torch.allclose(features.intermediates[3].sequence()[b], tokens[0], atol=1e-5)
        assert torch.allclose(features.tokens_BND[b], ours.norm(tokens)[0, 1:], atol=1e-5)


def test_hidden_pixels_have_no_influence():
    ours, mask_BN = vit(requires={"mask"}), torch.zeros(1, 16, dtype=torch.bool)
    mask_BN[0, [0, 5, 15]] = True
    images_BCHW = torch.randn(1, 3, 32, 32, requires_grad=True)
    ours(ours.embed(images_BCHW), mask_BN=mask_BN).tokens_BND.square().sum().backward()
    influence_N = torch.nn.functional.max_pool2d(images_BCHW.grad.abs().amax(1), 8).flatten()
    assert torch.equal(influence_N == 0, mask_BN[0])


def test_there_is_a_mask_token_only_where_one_is_needed():
    assert vit().mask_token is None and "mask_token" not in vit().state_dict()
    assert vit(requires={"mask"}).mask_token.abs().min() > 0


def test_sincos_positions_have_maes_values():
    """papers: each row's sum of squares is D / 2; columns come first, rows second (MAE's released code)."""
    table_ND = layers.sincos_positions((14, 14), 192)
    assert torch.allclose(table_ND.square().sum(1), torch.tensor(96.0))
    row0_col1, row1_col0 = table_ND[1], table_ND[14]
    assert [round(x, 6) for x in (row0_col1[0].item(), row0_col1[96].item())] == [0.841471, 0.0]
    assert [round(x, 6) for x in (row1_col0[0].item(), row1_col0[96].item())] == [0.0, 0.841471]
    assert table_ND.sum().item() == pytest.approx(17277.554, abs=0.01)


def test_other_image_sizes_resize_the_positions():
    ours = vit(32)
    features = ours(ours.embed(torch.randn(1, 3, 64, 64)))
    assert features.grid == (8, 8) and features.tokens_BND.shape == (1, 64, 96)
    constant_ND = torch.ones(16, 96)
    assert torch.allclose(layers.resize_positions(constant_ND, (4, 4), (8, 8), antialias=True), torch.ones(64, 96))


def test_positions_for_small_crops_keep_their_scale_unless_antialiased():
    """DINO, DeiT and MAE resize without; timm's average over neighbours leaves little of random ones (14 x 14 to 6 x 6)."""
    plain, averaged = (vit(112, interpolate_antialias=antialias) for antialias in (False, True))
    averaged.load_state_dict(plain.state_dict())
    spread = plain.pos_embed[0, 1:].std().item()
    kept, shrunk = (network._positions((6, 6)).std().item() / spread for network in (plain, averaged))
    assert kept == pytest.approx(0.86, abs=0.03) and shrunk == pytest.approx(0.365, abs=0.03)
    image = plain.pos_embed[0, 1:].detach().T.reshape(1, 96, 14, 14)
    expected = F.interpolate(image, size=(6, 6), mode="bicubic").flatten(2)[0].T
    torch.testing.assert_close(plain._positions((6, 6)), expected)
    state = {"backbone.pos_embed": plain.pos_embed.detach()}
    small = vit(48).convert_state_dict(state, "backbone.")["backbone.pos_embed"][0, 1:]
    torch.testing.assert_close(small, expected)


def test_adapt_resizes_learned_positions_and_keeps_fixed_ones():
    small, large = vit(32), vit(64)
    state = {f"backbone.{k}": v for k, v in small.state_dict().items()}
    adapted = large.convert_state_dict(state, "backbone.")["backbone.pos_embed"]
    assert adapted.shape == (1, 65, 96)
    assert torch.equal(adapted[:, :1], small.pos_embed[:, :1])
    fixed = vit(64, positions="sincos")
    from_fixed = {"backbone.pos_embed": vit(32, positions="sincos").pos_embed}
    assert torch.equal(fixed.convert_state_dict(from_fixed, "backbone.")["backbone.pos_embed"], fixed.pos_embed)
    for size_px in (32, 64):
        with pytest.raises(config.ConfigError, match=r"backbone\.positions: sincos, but .* learned positions"):
            vit(size_px, positions="sincos").convert_state_dict(state, "backbone.")


def test_layer_ids_run_from_the_embedding_to_the_norm():
    ours = vit()
    ids = {name: ours.layer_id(name) for name, _ in ours.named_parameters()}
    assert {ids[n] for n in ("cls_token", "pos_embed", "patch_embed.proj.weight")} == {0}
    assert (ids["blocks.0.norm1.weight"], ids["blocks.3.mlp.fc2.bias"], ids["norm.weight"]) == (1, 4, 5)


@pytest.mark.parametrize("how", ["trunc_normal", "xavier"])
def test_init_touches_every_parameter_and_has_the_stated_scale(how):
    ours = vit(init=how)
    qkv = ours.blocks[0].attn.qkv.weight
    expected = 0.02 if how == "trunc_normal" else (2 / sum(qkv.shape)) ** 0.5
    assert qkv.std().item() == pytest.approx(expected, rel=0.05)
    assert all(torch.isfinite(p).all() for p in ours.parameters())
    assert ours.blocks[0].mlp.fc1.bias.abs().max() == 0
    assert vit(init=how, cls_token_std=0.5).cls_token.std().item() == pytest.approx(0.5, rel=0.3)


class Append(nn.Module):
    """A learned token behind the patches, which is the mean of those."""

    def forward(self, features: Features) -> Features:
        extra_BJD = torch.cat([features.extra_BJD, features.tokens_BND.mean(1, keepdim=True)], dim=1)
        return dataclasses.replace(features, extra_BJD=extra_BJD)


def test_a_part_before_a_block_may_append_tokens_that_later_blocks_see():
    """Before block 8: those before it are as without, its own and later ones are as of a sequence with one token more."""
    torch.manual_seed(0)
    network = vit(depth=12).eval()
    images_BCHW = torch.randn(2, 3, 32, 32)
    plain = network(network.embed(images_BCHW), out_indices=tuple(range(12)))
    network.insert(Append(), before=8)
    found = network(network.embed(images_BCHW), out_indices=tuple(range(12)))
    for i in range(8):
        assert torch.equal(found.intermediates[i].sequence(), plain.intermediates[i].sequence())
    before = plain.intermediates[7]
    tokens = torch.cat([before.sequence(), before.tokens_BND.mean(1, keepdim=True)], dim=1)
    for i in range(8, 12):
        tokens = network.blocks[i](tokens)
        torch.testing.assert_close(found.intermediates[i].sequence(), tokens)
        assert found.intermediates[i].extra_BJD.shape[1] == 1
    normed = network.norm(tokens)
    torch.testing.assert_close(found.tokens_BND, normed[:, 1:-1])
    torch.testing.assert_close(found.extra_BJD, normed[:, -1:])
    assert found.map().shape == (2, network.embed_dim, *found.grid) and found.map(11).shape == found.map().shape
    torch.testing.assert_close(found.map()[1, :, 2, 3], found.tokens_BND[1, 2 * found.grid[1] + 3])


def test_a_part_before_a_block_decays_and_is_saved_with_it():
    network = vit(depth=12)
    network.insert(nn.Linear(1, 1), before=8)
    assert network.layer_id("inserted.8.weight") == network.layer_id("blocks.8.norm1.weight") == 9
    with pytest.raises(AssertionError, match="no place for a part before block 12"):
        network.insert(nn.Linear(1, 1), before=12)


def test_registers_are_timms():
    theirs = VisionTransformer(img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3, reg_tokens=2, num_classes=0)
    ours = vit(patch_size=8, embed_dim=48, depth=2, num_heads=3, reg_tokens=2)
    ours.load_state_dict(theirs.state_dict())
    images_BCHW = torch.randn(2, 3, 32, 32)
    features = ours.eval()(ours.embed(images_BCHW))
    torch.testing.assert_close(features.sequence(), theirs.eval().forward_features(images_BCHW), atol=1e-5, rtol=1e-5)
    assert features.prefix_BPD.shape == (2, 3, 48) and ours.num_prefix_tokens == 3
    larger = vit(64, patch_size=8, embed_dim=48, depth=2, num_heads=3, reg_tokens=2)
    positions = larger.convert_state_dict({"pos_embed": theirs.pos_embed.detach()}, "")["pos_embed"]
    assert positions.shape == larger.pos_embed.shape and torch.equal(positions[:, :3], theirs.pos_embed[:, :3])


def test_images_need_not_be_square():
    network = vit(32, positions="learned").eval()
    features = network(network.embed(torch.randn(2, 3, 32, 64)))
    assert features.grid == network.grid((32, 64)) and features.map().shape[2:] == features.grid
