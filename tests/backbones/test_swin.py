"""Swin is timm's: same names, same outputs for any size; counts are the published ones."""

from __future__ import annotations

import copy
import re
from functools import cache

import pytest
import timm
import torch
from fvcore.nn import FlopCountAnalysis
from timm.models.swin_transformer import SwinTransformer, get_relative_position_index
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from vitssl import config
from vitssl.backbones import layers, swin
from vitssl.backbones.base import Features
from vitssl.backbones.swin import Swin

TINY = {"name": "swin_pico", "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": 2, "window_size": 4}  # token: 4 px


def make(size_px=32, requires=frozenset(), **fields) -> Swin:
    torch.manual_seed(0)
    ours = Swin(config.merge(config.BackboneConfig, {**TINY, **fields}), size_px, requires).eval()
    for name, parameter in ours.named_parameters():  # attention and its tables matter
        if name.endswith(("table", "bias")):
            nn.init.normal_(parameter)
        elif parameter.ndim == 2:
            nn.init.xavier_uniform_(parameter)
    return ours


@cache
def tiny() -> Swin:
    return make(224, name="swin_tiny", patch_size=None, embed_dim=None, depths=None, num_heads=None, window_size=None)


def features(ours: Swin, images_BCHW: Tensor, **options) -> Features:
    return ours(ours.embed(images_BCHW), **options)


def timm_twin(ours: Swin, size_px: int, **options) -> SwinTransformer:
    """timm's Swin of the same shape and weights, and any classes; where its windows are smaller, the middle of our tables."""
    shape = {"embed_dim": ours.widths[0], "depths": ours.depths, "patch_size": ours.strides[0]}
    shape["num_heads"] = tuple(stage.blocks[0].attn.num_heads for stage in ours.layers)
    twin = SwinTransformer(img_size=size_px, **{"num_classes": 0, **shape, **options}).eval()
    state = ours.state_dict()
    for name, table in twin.state_dict().items():
        if name.endswith("table"):
            old, new = (round(len(t) ** 0.5) for t in (state[name], table))
            middle = slice((old - new) // 2, (old + new) // 2)
            state[name] = state[name].view(old, old, -1)[middle, middle].flatten(0, 1)
    missing = twin.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys and all(name.startswith("head.") for name in missing.missing_keys)
    return twin


def close(found: Tensor, expected: Tensor) -> bool:
    return torch.allclose(found, expected, rtol=1e-4, atol=1e-4)


# --------------------------------------------------------------------------------------------------------------- timm's


def test_parameter_counts_are_the_published_ones():
    with torch.device("meta"):
        ours = Swin(config.BackboneConfig(name="swin_tiny"), 224)
    count = sum(p.numel() for p in ours.parameters())
    assert count == 27_519_354
    assert count + 768 * 10 + 10 == 27_527_044  # Drloc's log, of ten classes
    assert count + 768 * 1000 + 1000 == 28_288_354


def test_logits_and_stages_of_swin_tiny_equal_timms():
    ours, images_BCHW = tiny(), torch.randn(1, 3, 224, 224)
    twin = timm.create_model("swin_tiny_patch4_window7_224", num_classes=10).eval()
    missing = twin.load_state_dict(ours.state_dict(), strict=False)
    assert missing.missing_keys == ["head.fc.weight", "head.fc.bias"] and not missing.unexpected_keys
    with torch.no_grad():
        found = features(ours, images_BCHW, out_indices=(0, 1, 2, 3))
        last, maps = twin.forward_intermediates(images_BCHW)
        logits = twin(images_BCHW)
    assert found.tokens_BND.shape == (1, 49, 768) and found.prefix_BPD.shape == (1, 0, 768)
    assert close(found.tokens_BND, last.flatten(1, 2))
    assert close(twin.head.fc(found.tokens_BND.mean(1)), logits)
    for end, map_BDHW in enumerate(maps):
        tokens_BND, grid = found.intermediates[end].tokens_BND, found.intermediates[end].grid
        assert grid == map_BDHW.shape[2:] == ours.grid(224, end) and ours.widths[end] == tokens_BND.shape[2]
        assert close(tokens_BND, map_BDHW.flatten(2).transpose(1, 2))
    assert torch.equal(ours.norm(found.intermediates[3].sequence()), found.tokens_BND)


@pytest.mark.parametrize("depths", [[1], [2, 3], [1, 2, 1], [2, 1, 1, 2]])
@pytest.mark.parametrize(("size_px", "window"), [(32, 7), (64, 4)])
def test_any_shape_equals_timms(depths, size_px, window):
    """Windows that divide the map, that need padding, and that are larger than it."""
    ours = make(size_px, depths=depths, window_size=window, mlp_ratio=3.0, qkv_bias=False)
    twin = timm_twin(ours, size_px, window_size=window, mlp_ratio=3.0, qkv_bias=False)
    images_BCHW = torch.randn(2, 3, size_px, size_px)
    assert close(features(ours, images_BCHW).tokens_BND, twin.forward_features(images_BCHW).flatten(1, 2))


@pytest.mark.parametrize("size_px", [8, 16, 24, 56, 64])
def test_images_of_another_size_equal_timms_network_of_that_size(size_px):
    """Made for 32 px with windows of 4 on maps of 16 and 8; 8 px have maps of 4 and 2."""
    ours, images_BCHW = make(32), torch.randn(2, 3, size_px, size_px)
    twin = timm_twin(ours, size_px, window_size=4)
    found = features(ours, images_BCHW)
    assert close(found.tokens_BND, twin.forward_features(images_BCHW).flatten(1, 2))
    assert found.grid == (size_px // 4, size_px // 4)


def test_local_crops_of_swin_tiny_equal_timms_network_of_their_size():
    """96 px have maps of 24, 12, 6 and 3, of which the last two are smaller than a window."""
    images_BCHW = torch.randn(2, 3, 96, 96)
    with torch.no_grad():
        expected = timm_twin(tiny(), 96, window_size=7).forward_features(images_BCHW)
        assert close(features(tiny(), images_BCHW).tokens_BND, expected.flatten(1, 2))


def test_a_window_larger_than_the_map_is_plain_attention():
    """Against a loop over queries and keys, on a map of 2 x 3 in a window of 4 x 4."""
    attention = make().layers[0].blocks[0].attn
    tokens_BND = torch.randn(2, 6, 8)
    found = attention(tokens_BND, grid=(2, 3))
    q, k, v = attention.qkv(tokens_BND).view(2, 6, 3, 2, 4).unbind(2)
    table = attention.relative_position_bias_table.view(7, 7, 2)
    out = torch.zeros(2, 6, 2, 4)
    for b, i, head in [(b, i, head) for b in range(2) for i in range(6) for head in range(2)]:
        logits = [q[b, i, head] @ k[b, j, head] / 2 + table[3 + i // 3 - j // 3, 3 + i % 3 - j % 3, head] for j in range(6)]
        out[b, i, head] = torch.stack(logits).softmax(0) @ v[b, :, head]
    assert close(found, attention.proj(out.flatten(2)))


def test_gradients_equal_timms():
    ours = make(32)
    twin = timm_twin(ours, 32, window_size=4)
    images_BCHW = torch.randn(2, 3, 32, 32)
    features(ours, images_BCHW).tokens_BND.pow(3).sum().backward()
    twin.forward_features(images_BCHW).pow(3).sum().backward()
    theirs = dict(twin.named_parameters())
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-3, atol=1e-2 * float(theirs[name].grad.abs().max()))


def test_fused_attention_gives_the_same():
    ours, images_BCHW = make(), torch.randn(2, 3, 32, 32)
    with torch.no_grad():  # without a gradient a CPU takes the fused kernel
        fused = features(ours, images_BCHW).tokens_BND
        layers.set_fused_attention(ours, False)
        assert close(features(ours, images_BCHW).tokens_BND, fused)


# ------------------------------------------------------------------------------------------------------------------ ours


def test_without_relative_positions_there_are_no_tables():
    ours, with_tables, images_BCHW = make(relative_positions=False), make(), torch.randn(2, 3, 32, 32)
    names = {name for name, _ in with_tables.named_parameters()}
    assert names - {name for name, _ in ours.named_parameters()} == {name for name in names if name.endswith("table")}
    with_tables.load_state_dict(ours.state_dict(), strict=False)
    for stage in with_tables.layers:
        for block in stage.blocks:
            nn.init.zeros_(block.attn.relative_position_bias_table)
    assert close(features(ours, images_BCHW).tokens_BND, features(with_tables, images_BCHW).tokens_BND)
    found = features(ours, images_BCHW[..., :8, :8])
    assert found.tokens_BND.shape == (2, 4, 16), "a map that is smaller than a window"


def test_the_mask_token_replaces_the_patches_of_hidden_cells():
    """Against a loop over patches: an 8 x 8 grid of masks, 16 x 16 patches."""
    ours = make(32, requires={"mask"})
    nn.init.normal_(ours.mask_token)
    mask_BN = torch.rand(2, 64) < 0.5
    embedded = ours.embed(torch.randn(2, 3, 32, 32))
    replaced = embedded.tokens.clone()
    for b, row, column in [(b, row, column) for b in range(2) for row in range(16) for column in range(16)]:
        if mask_BN[b, (row // 2) * 8 + column // 2]:
            replaced[b, row, column] = ours.mask_token[0, 0, 0]
    expected = ours(embedded._replace(tokens=replaced)).tokens_BND
    assert torch.equal(ours(embedded, mask_BN=mask_BN).tokens_BND, expected)
    assert torch.equal(ours(embedded, mask_BN=torch.zeros_like(mask_BN)).tokens_BND, ours(embedded).tokens_BND)


def test_hidden_pixels_change_nothing():
    ours, images_BCHW = make(64, requires={"mask"}, depths=[1, 1, 2, 1]), torch.randn(1, 3, 64, 64)
    mask_BN = torch.zeros(1, 16, dtype=torch.bool)
    mask_BN[0, 6] = True  # row 1, column 2 of cells of 16 px
    noise = torch.zeros_like(images_BCHW)
    noise[..., 16:32, 32:48] = torch.randn(16, 16)
    plain, noisy = (features(ours, images, mask_BN=mask_BN).tokens_BND for images in (images_BCHW, images_BCHW + noise))
    assert torch.equal(plain, noisy)
    assert not torch.equal(features(ours, images_BCHW).tokens_BND, features(ours, images_BCHW + noise).tokens_BND)


def test_the_mask_token_exists_only_where_it_is_needed_and_has_simmims_scale():
    assert "mask_token" not in make().state_dict()
    token = Swin(config.BackboneConfig(name="swin_tiny", depths=[1]), 32, {"mask"}).mask_token
    assert token.shape == (1, 1, 1, 96) and token.std().item() == pytest.approx(0.02, rel=0.3)


def test_every_parameter_gets_a_gradient():
    ours = make(32, requires={"mask"}, depths=[2, 1, 2], drop_path=0.1)
    mask_BN = torch.arange(16).remainder(2).bool().expand(2, -1)
    features(ours.train(), torch.randn(2, 3, 32, 32), mask_BN=mask_BN).tokens_BND.pow(3).sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in ours.parameters())


def test_drop_path_grows_linearly_over_all_blocks():
    ours = make(depths=[2, 1, 2], drop_path=0.4)
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for stage in ours.layers for block in stage.blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])


def test_init_is_timms():
    """Weights of linear layers and tables N(0, 0.02), biases zero, the patch convolution torch's default."""
    torch.manual_seed(0)
    ours, theirs = (
        Swin(config.BackboneConfig(name="swin_tiny", depths=[1, 1]), 56),
        SwinTransformer(img_size=56, depths=(1, 1), num_heads=(3, 6)),
    )
    expected = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        assert parameter.std().item() == pytest.approx(expected[name].std().item(), rel=0.15, abs=1e-6), name
        assert parameter.mean().item() == pytest.approx(expected[name].mean().item(), abs=0.02), name


def test_layer_ids_count_blocks_through_the_stages():
    ours = make(64, requires={"mask"}, depths=[2, 1, 2])
    ids = {name: ours.layer_id(name) for name, _ in ours.named_parameters()}
    assert {ids[n] for n in ("mask_token", "patch_embed.proj.weight", "patch_embed.norm.bias")} == {0}
    blocks = [f"layers.{s}.blocks.{i}.norm1.weight" for s, i in ((0, 0), (0, 1), (1, 0), (2, 0), (2, 1))]
    assert [ids[name] for name in blocks] == [1, 2, 3, 4, 5]
    assert (ids["layers.1.downsample.reduction.weight"], ids["layers.2.downsample.norm.bias"], ids["norm.weight"]) == (3, 4, 6)
    assert ours.num_layers == 5 and set(ids.values()) == set(range(7))


def test_two_sizes_compile_to_one_graph_that_is_not_compiled_again():
    ours = make(32, requires={"mask"}).train()
    counter = CompileCounter()

    @torch.compile(backend=counter, fullgraph=True)
    def step(images: Tensor, crops: Tensor, mask_BN: Tensor) -> Tensor:
        whole = features(ours, images, mask_BN=mask_BN, out_indices=(0, 1))
        return whole.tokens_BND.mean() + features(ours, crops).tokens_BND.mean() + whole.intermediates[0].sequence().mean()

    for _ in range(3):
        step(torch.randn(2, 3, 32, 32), torch.randn(4, 3, 8, 8), torch.rand(2, 64) < 0.5).backward()
    assert counter.frame_count == 1


def test_bf16_is_close_to_float32():
    ours, images_BCHW = make(24, requires={"mask"}), torch.randn(2, 3, 24, 24)
    mask_BN = torch.rand(2, 36) < 0.5
    exact = features(ours, images_BCHW, mask_BN=mask_BN).tokens_BND
    with torch.autocast("cpu", torch.bfloat16):
        rough = features(ours, images_BCHW, mask_BN=mask_BN).tokens_BND
    assert (rough - exact).abs().mean() < 0.05 * exact.abs().mean()


class _Pass(nn.Module):
    def __init__(self, backbone: Swin):
        super().__init__()
        self.backbone = backbone

    def forward(self, images_BCHW: Tensor) -> Tensor:
        return features(self.backbone, images_BCHW).tokens_BND


def test_macs_are_the_published_ones():
    """fvcore counts all products and five operations per normalised value: 4.51 G.

    The authors' count, which Drloc's log printed as 4.4936448 G with ten classes, has one operation per normalised value,
    four times the final norm's, and the classifier.
    """
    ours = copy.deepcopy(tiny())
    layers.set_fused_attention(ours, False)
    counted = FlopCountAnalysis(_Pass(ours), torch.zeros(1, 3, 224, 224))
    counted.unsupported_ops_warnings(False).uncalled_modules_warnings(False).tracer_warnings("none")
    parts = counted.by_operator()
    assert counted.total() == 4_508_426_496
    products = parts["conv"] + parts["linear"] + parts["matmul"]
    assert products + parts["layer_norm"] == counted.total()
    final_norm = 49 * 768
    assert products + parts["layer_norm"] // 5 + 3 * final_norm + 768 * 10 == 4_493_644_800


# --------------------------------------------------------------------------------------------------------------- weights


def test_the_authors_names_become_timms():
    ours = make(depths=[1, 2, 1])
    theirs = {"other.layers.0.downsample.norm.weight": torch.ones(1)}  # not the backbone's: left alone
    for name, value in ours.state_dict().items():
        name = re.sub(r"layers\.(\d)\.downsample", lambda found: f"layers.{int(found[1]) - 1}.downsample", name)
        theirs[f"backbone.{name}"] = value
    theirs["backbone.layers.0.blocks.0.attn.relative_position_index"] = get_relative_position_index(4, 4)
    theirs["backbone.layers.1.blocks.1.attn_mask"] = torch.zeros(4, 16, 16)
    adapted = ours.convert_state_dict(theirs, "backbone.")
    assert adapted.pop("other.layers.0.downsample.norm.weight") is not None
    assert {name.removeprefix("backbone."): id(value) for name, value in adapted.items()} == {
        name: id(theirs[key]) for name, key in zip(ours.state_dict(), [k for k in theirs if k.startswith("backbone.")], strict=False)
    }


def test_tables_of_other_windows_are_resized_and_nothing_else_is_touched():
    small, large = make(16), make(64, window_size=7)
    state = {f"backbone.{name}": value for name, value in small.state_dict().items()}
    adapted = large.convert_state_dict(state, "backbone.")
    assert {name: value.shape for name, value in adapted.items()} == {f"backbone.{n}": v.shape for n, v in large.state_dict().items()}
    untouched = [name for name in adapted if not name.endswith("table")]
    assert all(adapted[name] is state[name] for name in untouched)
    assert all(value is state[name] for name, value in small.convert_state_dict(state, "backbone.").items())


def test_resized_tables_keep_constants_symmetries_and_the_centre():
    assert torch.allclose(swin.resize_table(torch.ones(49, 3), 169, antialias=False), torch.ones(169, 3))
    table = torch.randn(7, 7, 2)
    table = table + table.flip(0, 1)
    resized = swin.resize_table(table.flatten(0, 1), 169, antialias=False).view(13, 13, 2)
    assert torch.allclose(resized, resized.flip(0, 1), atol=1e-5)
    assert torch.allclose(resized[6, 6], table[3, 3], atol=1e-5)
