"""One step as objectives see it: the views of a batch and the backbone's passes over them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from vitssl.backbones import norms
from vitssl.backbones.base import Backbone, Embedded, Features
from vitssl.data.loading.batch import Batch


class Step:
    """The passes of one training step, or of one prediction.

    A full pass over a view (no token hidden) runs once and all objectives share its features; a masked pass runs on every call, since
    its mask belongs to one objective. All passes over a view share its patch embedding.

    A classifier is evaluated with the running statistics of batch norms, so these come from full passes: passes over masked images, or
    over images that an objective made, leave them unchanged. Only where no objective makes a full pass (MAE alone) do those update them.

    Args:
        backbone: the network.
        batch: the views.
        out_indices: the intermediate places whose features some objective reads.
        whole_pass: does some objective make a full pass?
        frozen: the backbone is not trained.
    """

    def __init__(
        self, backbone: Backbone, batch: Batch, *, out_indices: tuple[int, ...] = (), whole_pass: bool = True, frozen: bool = False
    ):
        self._backbone, self._out_indices, self._whole_pass, self._frozen = backbone, out_indices, whole_pass, frozen
        self._views, self._given = dict(batch.views), frozenset(batch.views)
        self._embedded: dict[str, Embedded] = {}
        self._passes: dict[str, Features] = {}

    def encode(self, view: str, *, keep_BM: Tensor | None = None, mask_BN: Tensor | None = None) -> Features:
        """The features of a view.

        Args:
            view: its name.
            keep_BM: the tokens to keep, as ``TokenMask.keep_BM``; the others are dropped.
            mask_BN: the tokens to replace by a learned one, as ``TokenMask.mask_BN``.
        """
        full = keep_BM is None and mask_BN is None
        if full and view in self._passes:
            return self._passes[view]
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self._frozen):
            if view not in self._embedded:
                with self._statistics(whole=view in self._given):
                    self._embedded[view] = self._backbone.embed(self._views[view])
            with self._statistics(whole=view in self._given and full):
                features = self._backbone(self._embedded[view], keep_BM, mask_BN, self._out_indices)
        if full:
            self._passes[view] = features
        return features

    def _statistics(self, whole: bool) -> AbstractContextManager[None]:
        return nullcontext() if whole or not self._whole_pass else norms.frozen_statistics(self._backbone)

    def norm(self, tokens: Tensor) -> Tensor:
        """The backbone's final norm, for intermediate tokens (..., D) of its output's width."""
        return self._backbone.norm(tokens)

    def images(self, view: str) -> Tensor:
        """The view's images, (count * B, 3, H, W)."""
        return self._views[view]

    def grid(self, view: str) -> tuple[int, ...]:
        """Rows and columns of the view's N tokens, before them time where the backbone takes videos."""
        return self._backbone.grid_of(self._views[view])

    def add(self, view: str, images_BCHW: Tensor) -> None:
        """Register images that an objective makes (corrupted ones, say) as a view of another name."""
        assert view not in self._views, f"view {view!r} exists already"
        self._views[view] = images_BCHW
