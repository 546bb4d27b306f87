"""The fields of ``objectives.classify``: classification."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, Optional

from vitssl.config.backbones import family, family_name, num_intermediates
from vitssl.config.base import Problem, inactive_problems, interval_problems, minimum_problems
from vitssl.config.objectives.base import ObjectiveConfig

if TYPE_CHECKING:
    from vitssl.config.run import Run


@dataclass
class HeadConfig:
    """What a classifier's head reads, and what comes before its last linear layer."""

    pool: Literal["cls", "reg", "mean", "cls+reg", "cls+mean"] = (
        "cls"  # what the head reads: class token, mean of the registers, mean of the patch tokens; + concatenates
    )
    blocks: int = 1  # concatenate this many last blocks, each after the final norm (DINO's probe: 4)
    # batch: batch norm without affine parameters (MAE's probe); fc: the final norm comes after the mean
    norm: Literal["none", "batch", "fc"] = "none"
    hidden_dim: Optional[int] = None  # width of a hidden layer in the head; null: none
    activation: Literal["gelu", "tanh"] = "gelu"  # of the hidden layer: gelu as in GMML, tanh as in SiT

    def requires(self) -> set[str]:
        return {"cls", "reg"} & set(self.pool.split("+"))

    def inactive_fields(self) -> dict[str, str]:
        return {} if self.hidden_dim else {"activation": "a hidden_dim"}

    def head_problems(self, name: str, run: Run) -> Iterator[Problem]:
        yield from minimum_problems(1, self, name, "hidden_dim", "blocks")
        staged = len(family(run.backbone).widths) > 1
        if staged and (self.blocks > 1 or self.norm == "fc"):
            yield Problem(
                f"{name}.{'blocks' if self.blocks > 1 else 'norm'}",
                f"{run.backbone.name} has stages, and its final norm fits only the last",
            )
        elif self.blocks > num_intermediates(run.backbone):
            yield Problem(
                f"{name}.blocks", f"{self.blocks} is more than the {num_intermediates(run.backbone)} of backbone.name={run.backbone.name}"
            )
        if self.norm == "fc" and family_name(run.backbone) == "timm":
            yield Problem(f"{name}.norm", "timm's networks end in their norms, so that none is left to come after the mean; leave it out")
        if self.norm == "fc" and (self.pool != "mean" or self.blocks > 1):
            yield Problem(f"{name}.norm", "fc comes after the mean of the last block's patch tokens; set pool: mean and blocks: 1")


@dataclass
class ClassifyConfig(HeadConfig, ObjectiveConfig):
    """Classification by one head, or by several (``extra_heads``) whose losses are summed and logits averaged (GMML, SiT)."""

    classifies: ClassVar[bool] = True
    needs_labels: ClassVar[bool] = True
    label_smoothing: float = 0.0  # fraction of each label that is spread over all classes
    # weights of images in the loss; balanced: inversely proportional to the number of labelled training images of the class, 1 on average
    # over these images
    class_weight: Literal["none", "balanced"] = "none"
    # standard deviation of the last layer's initial weights: 0 (timm 0.4), 2e-5 (MAE), 0.01 (probes); null: as backbone.init
    init_std: Optional[float] = None
    extra_heads: list[HeadConfig] = field(default_factory=list)  # further heads; their losses are summed and their logits averaged

    def requires(self) -> set[str]:
        return super().requires().union(*(head.requires() for head in self.extra_heads))

    def has_batch_norm(self) -> bool:
        return any(head.norm == "batch" for head in (self, *self.extra_heads))

    def problems(self, name: str, run: Run) -> Iterator[Problem]:
        yield from ObjectiveConfig.problems(self, name, run)
        yield from interval_problems("[0, 1)", self, name, "label_smoothing", share=True)
        yield from minimum_problems(0, self, name, "init_std")
        yield from self.head_problems(name, run)
        for i, head in enumerate(self.extra_heads):
            yield from head.head_problems(f"{name}.extra_heads[{i}]", run)
            yield from inactive_problems(head, f"{name}.extra_heads[{i}]", head.inactive_fields())
