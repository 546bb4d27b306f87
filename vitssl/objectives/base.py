"""An objective: features and a batch to named loss terms; it owns its heads, decoder, teacher or centre.

To add one: ``NameConfig`` in `vitssl/config/objectives/name.py` (its fields, what it requires, its checks), its import and field in the
table there (`__init__.py`), and ``Name`` in `name.py` here. The Model, the loop and the launcher need no change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch import Tensor, nn

from vitssl import config
from vitssl.backbones.base import Backbone, Features
from vitssl.data.batch import Batch

if TYPE_CHECKING:
    from vitssl.data.masks import Selection


class Encode(Protocol):
    """The step's backbone passes: each (view, selection) pair is computed once, whoever asks, however often."""

    def __call__(self, view: str, keep: str | None = None, mask: str | None = None) -> Features:
        """The features of a view; with ``keep`` of the tokens that the named selection keeps, with ``mask`` of all, the hidden replaced."""

    def norm(self, tokens: Tensor) -> Tensor:
        """The backbone's final norm, for the tokens of an end of its last width."""

    def selection(self, name: str) -> Selection:
        """The selection that the objective of that name draws in this step, the same for all who ask."""

    def images(self, view: str) -> Tensor:
        """The view's images, (count * B, 3, H, W)."""

    def add(self, view: str, images: Tensor) -> None:
        """Register images that an objective makes (corrupted ones, say) under a name of its own."""


class Objective(nn.Module):
    """Base class: made from (its config, the Run, the backbone, the number of classes). Every method but ``forward`` has a default."""

    cfg: config.ObjectiveConfig
    ends: tuple[int, ...] = ()  # the backbone's ends (`Backbone.widths`) whose features this objective reads
    whole_pass: bool = True  # it makes a pass over a view as it is, nothing hidden or altered: of such, batch norms keep their statistics

    def select(self, batch_size: int, grid: tuple[int, int], like: Tensor) -> Selection:
        """Draw the token selection that carries this objective's name (on ``like``'s device)."""
        raise NotImplementedError(f"{type(self).__name__} draws no selection")

    def forward(self, encode: Encode, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        """Unweighted scalar terms by name. ``progress`` in [0, 1] is a 0-dim tensor, so that compiled code sees no new constant."""
        raise NotImplementedError

    def weight(self, term: str, progress: Tensor) -> float | Tensor:
        """The factor of a term in the total loss."""
        return self.cfg.weight

    def start(self, backbone: Backbone) -> None:
        """Called once, after weights are initialised or loaded and before DDP: teachers copy the backbone here."""

    def before_step(self, progress: float) -> None:
        """Called after every backward, before clipping: gradients that are not to be used are dropped here."""

    def after_step(self, backbone: Backbone, progress: float) -> None:
        """Called after every optimiser step: teachers move here."""

    def predict(self, encode: Encode, batch: Batch) -> Tensor | None:
        """Logits (B, K) for view "main", where the objective can classify."""
        return None
