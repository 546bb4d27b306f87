"""The step that objectives share: the views of a batch and the backbone's passes over them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from vitssl.backbones import norms
from vitssl.backbones.base import Backbone, Embedded, Features
from vitssl.data.loading.batch import Batch


class Step:
    """The backbone's passes in one training step or one prediction.

    A full pass over a view, with no token hidden, runs once, and all objectives share its features. A masked pass runs on every call, since
    its mask belongs to one objective. All passes over a view share its patch embedding.

    A classifier is evaluated with the running statistics of batch norms, so these must come from full passes. Passes over masked images, or
    over images that an objective made, leave them unchanged. They update them only if no objective makes a full pass (as with MAE alone).

    Args:
        backbone: the network.
        batch: the views.
        out_indices: the intermediate layers whose features any objective reads.
        has_full_pass: whether any objective makes a full pass.
        frozen: whether the backbone stays untrained.
    """

    def __init__(
        self, backbone: Backbone, batch: Batch, *, out_indices: tuple[int, ...] = (), has_full_pass: bool = True, frozen: bool = False
    ):
        self._backbone, self._out_indices, self._has_full_pass, self._frozen = backbone, out_indices, has_full_pass, frozen
        self._views, self._given = dict(batch.views), frozenset(batch.views)
        self._embedded: dict[str, Embedded] = {}
        self._passes: dict[str, Features] = {}

    def encode(self, view: str, *, keep_BM: Tensor | None = None, mask_BN: Tensor | None = None) -> Features:
        """Return the features of a view.

        Args:
            view: its name.
            keep_BM: the tokens to keep, as in ``TokenMask.keep_BM``; the others are dropped.
            mask_BN: the tokens to replace by a learned one, as in ``TokenMask.mask_BN``.
        """
        full = keep_BM is None and mask_BN is None
        if full and view in self._passes:
            return self._passes[view]
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self._frozen):
            if view not in self._embedded:
                with self._statistics(full=view in self._given):
                    self._embedded[view] = self._backbone.embed(self._views[view])
            with self._statistics(full=view in self._given and full):
                features = self._backbone(self._embedded[view], keep_BM, mask_BN, self._out_indices)
        if full:
            self._passes[view] = features
        return features

    def _statistics(self, full: bool) -> AbstractContextManager[None]:
        return nullcontext() if full or not self._has_full_pass else norms.frozen_statistics(self._backbone)

    def norm(self, tokens: Tensor) -> Tensor:
        """Apply the backbone's final norm to intermediate tokens (..., D) of the output's width."""
        return self._backbone.norm(tokens)

    def images(self, view: str) -> Tensor:
        """Return the images of ``view``, (count * B, 3, H, W)."""
        return self._views[view]

    def grid(self, view: str) -> tuple[int, ...]:
        """Return the rows and columns of the N tokens of ``view``; backbones for videos put a time axis before them."""
        return self._backbone.grid_of(self._views[view])

    def add(self, view: str, images_BCHW: Tensor) -> None:
        """Register images that an objective makes, for example by corruption, as a view with a new name."""
        assert view not in self._views, f"view {view!r} exists already"
        self._views[view] = images_BCHW
