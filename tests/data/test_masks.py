from __future__ import annotations

import pytest
import torch

from vitssl.config import ConfigError
from vitssl.data.masks import complement, random_keep


@pytest.mark.parametrize(("tokens", "ratio", "kept"), [(196, 0.75, 49), (196, 0.9, 19), (7, 0.5, 3), (16, 0.75, 4)])
def test_keeps_as_many_as_mae(tokens, ratio, kept):
    selection = random_keep(5, tokens, ratio)
    assert selection.keep_BM.shape == (5, kept) and selection.mask_BN.shape == (5, tokens)
    assert (selection.mask_BN.sum(1) == tokens - kept).all()


def test_equals_a_slow_loop():
    selection = random_keep(6, 20, 0.75, torch.Generator().manual_seed(3), name="mae")
    noise = torch.rand(6, 20, generator=torch.Generator().manual_seed(3))
    for keep, mask, row in zip(*selection[1:], noise.tolist(), strict=True):
        smallest = sorted(range(20), key=row.__getitem__)[:5]
        assert sorted(keep.tolist()) == sorted(smallest)
        assert mask.tolist() == [n not in smallest for n in range(20)]
    assert selection.name == "mae"


def test_every_token_and_pair_is_kept_equally_often():
    images, tokens, kept = 20_000, 12, 4
    visible = (~random_keep(images, tokens, 2 / 3, torch.Generator().manual_seed(1)).mask_BN).double()
    share = kept / tokens
    z = (visible.mean(0) - share) / (share * (1 - share) / images) ** 0.5
    # tokens are drawn without replacement: this much of the sum of squares is chi-square with 11 degrees of freedom, 0.1 % above 31
    assert z.square().sum() * (tokens - 1) / tokens < 31
    pairs = (visible.T @ visible / images)[~torch.eye(tokens, dtype=torch.bool)]
    expected = share * (kept - 1) / (tokens - 1)
    assert (pairs - expected).abs().max() < 5 * (expected * (1 - expected) / images) ** 0.5


def test_images_get_different_masks():
    assert len(random_keep(50, 64, 0.75, torch.Generator().manual_seed(0)).mask_BN.unique(dim=0)) == 50


def test_complement_is_what_was_hidden():
    selection = random_keep(8, 30, 0.7, torch.Generator().manual_seed(1), name="mae")
    other = complement(selection)
    assert torch.equal(other.mask_BN, ~selection.mask_BN)
    for keep, mask in zip(other.keep_BM, selection.mask_BN, strict=True):
        assert keep.tolist() == mask.nonzero()[:, 0].tolist()
    assert torch.equal(complement(other).keep_BM, selection.keep_BM.sort(dim=1).values)
    assert other.name == "mae/complement"


def test_a_ratio_that_keeps_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"mask_ratio=0.9 keeps none of 4 tokens"):
        random_keep(2, 4, 0.9)
