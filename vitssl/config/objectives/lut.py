"""The fields of ``objectives.lut``: masked reconstruction and broader context for the unmasked tokens (LUT)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from vitssl.config.base import Problem, interval_problems, minimum_problems, positive_problems
from vitssl.config.data import view_px
from vitssl.config.objectives.base import Pool, negatives_problems, pool_requirements
from vitssl.config.objectives.reconstruction import ReconstructionConfig

if TYPE_CHECKING:
    from vitssl.config.run import Run


@dataclass
class LutConfig(ReconstructionConfig):
    """MAE whose unmasked tokens learn from all tokens of another view (Kim et al. 2024); the defaults are its code's for ViT-B.

    The paper's text has one view for the student and the other for the teacher: `symmetric: false`. With SimMIM's fields (`hide: mask`,
    `decoder: pixel_shuffle`, `loss: l1`) it is the paper's variant of SimMIM.
    """

    has_teacher: ClassVar[bool] = True
    smoke: ClassVar[dict[str, Any]] = ReconstructionConfig.smoke | {"hidden_dim": 32}
    normalize_targets: bool = True
    second: str = "second"  # the other view, of the same size
    symmetric: bool = True  # pass both views through both networks; the student keeps disjoint sets of their tokens
    reconstruction_weight: float = 1.0  # factor on the reconstruction loss; 0: no reconstruction
    context_weight: float = 0.25  # factor on the broader-context loss; ViT-S: 1.0
    guided: Literal["unmasked", "both"] = "unmasked"  # which tokens learn from the context; both: the decoder's masked tokens too
    level: Literal["pooled", "token", "both"] = "pooled"  # what is matched to the teacher; token: each token to the one in the same place
    pool: Pool = "mean"  # what pooled means: the class token, or the mean of the patch tokens
    distance: Literal["cosine", "infonce", "smooth_l1"] = "cosine"  # distance between student and teacher
    temperature: float = 0.2  # what infonce divides similarities by
    target_mask_ratio: float = 0.0  # fraction of the tokens that are hidden from the teacher
    hidden_dim: int = 4096  # hidden width of the projector and the predictor
    batch_norm: bool = True  # batch norm after the hidden layer, with statistics of each view separately
    teacher_momentum: float = 0.996  # momentum of the teacher's moving average; rises to 1 along a cosine

    def requires(self) -> set[str]:
        pooled = pool_requirements(self.pool) if self.level != "token" else set()
        return super().requires() | pooled | ({"keep"} if self.target_mask_ratio else set())

    def views(self) -> list[str]:
        return [self.view, self.second]

    def has_batch_norm(self) -> bool:
        return self.batch_norm

    def inactive_fields(self) -> dict[str, str]:
        inactive = super().inactive_fields()
        if not self.reconstruction_weight:
            names = ("decoder", "decoder_dim", "decoder_depth", "decoder_heads", "loss", "normalize_targets")
            inactive |= dict.fromkeys(names, "a reconstruction_weight")
        if self.level == "token":
            inactive["pool"] = "level: pooled or both"
        return inactive if self.distance == "infonce" else inactive | {"temperature": "distance: infonce"}

    def problems(self, name: str, run: Run) -> Iterator[Problem]:
        yield from super().problems(name, run)
        yield from minimum_problems(0, self, name, "reconstruction_weight", "context_weight")
        yield from minimum_problems(1, self, name, "hidden_dim")
        yield from self._view_problems(name, run)
        yield from self._context_problems(name, run)
        yield from interval_problems("[0, 1]", self, name, "teacher_momentum")

    def _view_problems(self, name: str, run: Run) -> Iterator[Problem]:
        if self.second == self.view:
            yield Problem(f"{name}.second", f"it is the same view as `view` (data.views.{self.view}); the context needs another")
        for view in self.views():
            if (count := getattr(run.data.views, view).count) != 1:
                yield Problem(name, f"data.views.{view}.count is {count}; it must be 1")
        if view_px(run.data, self.second) != view_px(run.data, self.view):
            yield Problem(name, f"data.views.{self.second} differs in size from data.views.{self.view}; both must have the same size")
        if self.symmetric and 2 * self.num_kept(run) > self.num_tokens(run):
            reason = (
                f"{self.mask_ratio} leaves the two views no disjoint sets of tokens; raise it to 0.5 or more, or set {name}.symmetric=false"
            )
            yield Problem(f"{name}.mask_ratio", reason)

    def _context_problems(self, name: str, run: Run) -> Iterator[Problem]:
        if not self.context_weight:
            yield Problem(f"{name}.context_weight", "0 leaves a masked reconstruction; use objectives.mae")
        if self.guided == "both" and not self.reconstruction_weight:
            yield Problem(f"{name}.guided", "masked tokens come from the decoder, and reconstruction_weight=0 makes none")
        if not 0 <= self.target_mask_ratio < 1 or int(self.num_tokens(run) * (1 - self.target_mask_ratio)) < 1:
            yield Problem(f"{name}.target_mask_ratio", f"{self.target_mask_ratio} is not in [0, 1), or keeps no token")
        if self.target_mask_ratio and self.level != "pooled":
            yield Problem(f"{name}.level", "a teacher that does not see all tokens has no target for some; set pooled")
        if self.distance == "infonce":
            yield from self._infonce_problems(name, run)

    def _infonce_problems(self, name: str, run: Run) -> Iterator[Problem]:
        yield from positive_problems(self, name, "temperature")
        if self.level != "pooled":
            yield Problem(f"{name}.level", "infonce tells images apart, not tokens; set pooled")
        yield from negatives_problems(name, run)
