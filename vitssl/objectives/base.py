"""The interface of objectives, which turn features and a batch into named loss terms and own masks, heads, decoders, teachers or centres.

To add an objective, write ``NameConfig`` in `vitssl/config/objectives/name.py` (its fields, requirements and checks), import it and add a
field to the table there (`__init__.py`), and write ``Name`` in `name.py` here. The Model, the loop and the launcher need no change.
"""

from __future__ import annotations

from torch import Tensor, nn

from vitssl import config
from vitssl.backbones.base import Backbone
from vitssl.data.loading.batch import Batch
from vitssl.objectives.step import Step


class Objective(nn.Module):
    """Base class of objectives. Subclasses are constructed from (config, Run, backbone, number of classes) and must define ``forward``.

    On one GPU ``forward`` is recorded as a CUDA graph, so it must change nothing but tensors, in place, and copy nothing to or from the
    host.
    """

    cfg: config.ObjectiveConfig  # a subclass says its own kind: ``cfg: NameConfig``
    out_indices: tuple[int, ...] = ()  # the backbone's intermediate layers (`Backbone.widths`) whose features it reads
    is_loaded: bool = False  # whether its weights come from another run (`init_objectives`); set by `model.build`
    reconstructs: bool = False  # whether it restores hidden or altered parts of images
    has_full_pass: bool = True  # whether it encodes an unaltered view without hiding tokens; batch norms update running statistics then

    def forward(self, step: Step, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        """Return the unweighted scalar loss terms by name.

        ``progress`` in [0, 1] is a 0-dim tensor, so that compiled code does not see a new constant in every step.
        """
        raise NotImplementedError

    def weight(self, term: str, progress: Tensor) -> float | Tensor:
        """Return the factor of ``term`` in the total loss."""
        return self.cfg.weight

    def start(self, backbone: Backbone, class_counts_K: Tensor) -> None:
        """Prepare for training; called once, after weights are initialised or loaded and before DDP. Teachers copy the backbone here.

        Args:
            backbone: the Model's backbone.
            class_counts_K: int64, the number of labelled training images of each class.
        """

    def before_step(self, progress: float) -> None:
        """Drop gradients that must not be used; called when a step has all its gradients, before clipping."""

    def after_step(self, backbone: Backbone, progress: float) -> None:
        """Update state such as teachers; called after every optimiser step."""

    def reconstruct(self, step: Step, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return what the objective sees of its view's images and its reconstructions of them, both normalised, (B, 3, H, W).

        Only for objectives whose attribute ``reconstructs`` is true.
        """
        raise NotImplementedError

    def predict(self, step: Step, batch: Batch) -> Tensor | None:
        """Return logits (B, K) for view "main", or None if the objective does not classify."""
        return None
