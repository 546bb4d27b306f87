from __future__ import annotations

import pytest
import torch

from vitssl.objectives.masking import disjoint_masks, random_mask


@pytest.mark.parametrize(("tokens", "ratio", "kept"), [(196, 0.75, 49), (196, 0.9, 19), (7, 0.5, 3), (16, 0.75, 4)])
def test_keeps_as_many_as_mae(tokens, ratio, kept):
    mask = random_mask(5, tokens, ratio)
    assert mask.keep_BM.shape == (5, kept) and mask.mask_BN.shape == (5, tokens)
    assert (mask.mask_BN.sum(1) == tokens - kept).all()


def test_equals_a_slow_loop():
    torch.manual_seed(3)
    drawn = random_mask(6, 20, 0.75)
    torch.manual_seed(3)
    noise = torch.rand(6, 20)
    for keep, mask, row in zip(*drawn, noise.tolist(), strict=True):
        smallest = sorted(range(20), key=row.__getitem__)[:5]
        assert sorted(keep.tolist()) == sorted(smallest)
        assert mask.tolist() == [n not in smallest for n in range(20)]


def test_every_token_and_pair_is_kept_equally_often():
    images, tokens, kept = 20_000, 12, 4
    torch.manual_seed(1)
    visible = (~random_mask(images, tokens, 2 / 3).mask_BN).double()
    share = kept / tokens
    z = (visible.mean(0) - share) / (share * (1 - share) / images) ** 0.5
    # tokens are drawn without replacement: this much of the sum of squares is chi-square with 11 degrees of freedom, 0.1 % above 31
    assert z.square().sum() * (tokens - 1) / tokens < 31
    pairs = (visible.T @ visible / images)[~torch.eye(tokens, dtype=torch.bool)]
    expected = share * (kept - 1) / (tokens - 1)
    assert (pairs - expected).abs().max() < 5 * (expected * (1 - expected) / images) ** 0.5


def test_images_get_different_masks():
    torch.manual_seed(0)
    assert len(random_mask(50, 64, 0.75).mask_BN.unique(dim=0)) == 50


def test_disjoint_masks_are_parts_of_one_permutation():
    """LUT: two sets of 49 of 196 tokens, one for each view; they share none, and the first is what `random_mask` draws."""
    torch.manual_seed(1)
    first, second = disjoint_masks(8, 196, [49, 49])
    torch.manual_seed(1)
    alone = random_mask(8, 196, 0.75)
    assert torch.equal(first.keep_BM, alone.keep_BM) and torch.equal(first.mask_BN, alone.mask_BN)
    permutation_BN = torch.rand(8, 196, generator=torch.Generator().manual_seed(1)).argsort(1)
    assert torch.equal(torch.cat([first.keep_BM, second.keep_BM], dim=1), permutation_BN[:, :98])
    assert (first.mask_BN | second.mask_BN).all() and (~second.mask_BN).sum(1).tolist() == [49] * 8


def test_with_all_tokens_handed_out_each_mask_hides_what_the_other_keeps():
    torch.manual_seed(1)
    first, second = disjoint_masks(8, 30, [9, 21])
    assert torch.equal(second.mask_BN, ~first.mask_BN)
    for keep, mask in zip(second.keep_BM, first.mask_BN, strict=True):
        assert sorted(keep.tolist()) == mask.nonzero()[:, 0].tolist()


def test_more_tokens_than_there_are_cannot_be_disjoint():
    with pytest.raises(AssertionError, match="no disjoint parts"):
        disjoint_masks(2, 4, [3, 2])
