"""An objective: features and a batch to named loss terms; it owns its masks, heads, decoder, teacher or centre.

To add one: ``NameConfig`` in `vitssl/config/objectives/name.py` (its fields, what it requires, its checks), its import and field in the
table there (`__init__.py`), and ``Name`` in `name.py` here. The Model, the loop and the launcher need no change.
"""

from __future__ import annotations

from torch import Tensor, nn

from vitssl import config
from vitssl.backbones.base import Backbone
from vitssl.data.loading.batch import Batch
from vitssl.objectives.step import Step


class Objective(nn.Module):
    """Base class: made from (its config, the Run, the backbone, the number of classes). Every method but ``forward`` has a default.

    On one GPU ``forward`` is recorded as a CUDA graph: it changes nothing but tensors, in place, and copies nothing to or from the host.
    """

    cfg: config.ObjectiveConfig
    out_indices: tuple[int, ...] = ()  # the backbone's intermediate places (`Backbone.widths`) whose features it reads
    is_loaded: bool = False  # its weights are those of another run (`init_objectives`); `model.build` says so
    reconstructs: bool = False  # it gives hidden or altered parts of images back
    whole_pass: bool = True  # it encodes a view as it came, no token hidden; batch norms take their running statistics there

    def forward(self, step: Step, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        """Unweighted scalar terms by name. ``progress`` in [0, 1] is a 0-dim tensor, so that compiled code sees no new constant."""
        raise NotImplementedError

    def weight(self, term: str, progress: Tensor) -> float | Tensor:
        """The factor of a term in the total loss."""
        return self.cfg.weight

    def start(self, backbone: Backbone, class_counts_K: Tensor) -> None:
        """Called once, after weights are initialised or loaded and before DDP: teachers copy the backbone here.

        Args:
            backbone: the Model's.
            class_counts_K: int64, the labelled training images of each class.
        """

    def before_step(self, progress: float) -> None:
        """Called when all of a step's gradients are there, before clipping: those that must not be used are dropped here."""

    def after_step(self, backbone: Backbone, progress: float) -> None:
        """Called after every optimiser step: teachers are updated here."""

    def reconstruct(self, step: Step, batch: Batch) -> tuple[Tensor, Tensor]:
        """Where the objective ``reconstructs``: what it sees of its view's images, and what it gives back, normalised, (B, 3, H, W)."""
        raise NotImplementedError

    def predict(self, step: Step, batch: Batch) -> Tensor | None:
        """Logits (B, K) for view "main", where the objective can classify."""
        return None
