"""Features: one sequence in parts, and its patch tokens on their grid."""

from __future__ import annotations

import pytest
import torch

from vitssl.backbones.base import Features


@pytest.mark.parametrize("grid", [(4, 4), (2, 5), (2, 3, 4)])  # the last as a video's: time, rows, columns
def test_patch_tokens_are_put_on_their_grid_whatever_stands_around_them(grid):
    count = torch.Size(grid).numel()
    sequence_BTD = torch.randn(2, 1 + count + 3, 8)
    features = Features.split(sequence_BTD, 1, 3, grid)
    assert torch.equal(features.sequence(), sequence_BTD) and features.map().shape == (2, 8, *grid)
    for n, place in enumerate(torch.cartesian_prod(*(torch.arange(side) for side in grid)).tolist()):
        assert torch.equal(features.map()[(slice(None), slice(None), *place)], sequence_BTD[:, 1 + n])


def test_a_class_token_that_is_not_there_is_not_given():
    features = Features.split(torch.randn(2, 16, 8), 0, 0, (4, 4))
    for pool in ("cls", "cls+mean"):
        with pytest.raises(ValueError, match=r"no class token \(cls\); an objective that needs one says so by `requires` of its config"):
            features.pooled(pool)


def test_an_intermediate_place_has_the_same_parts():
    inner, features = (Features.split(torch.randn(2, tokens, 8), 0, 0, grid) for tokens, grid in ((16, (4, 4)), (4, (2, 2))))
    features.intermediates = {0: inner}
    assert torch.equal(features.map(0), inner.map())
