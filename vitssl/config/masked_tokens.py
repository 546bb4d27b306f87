"""The fields of ``backbone.masked_tokens``. The paper gives the first four their values and is silent on the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from vitssl.config.base import Problem, less_than, not_positive
from vitssl.words import counted


@dataclass
class MaskedTokens:
    """Learnable masked tokens (Hu et al. 2022) in the last blocks of a ViT or T2T-ViT."""

    count: int = 4  # how many there are: N, the paper's sparsity granularity
    blocks: int = 4  # how many of the last blocks have masked tokens
    temperature: float = 0.1  # tau of SoftSort; divided by nothing more, so a scale of the scores goes in here
    mix: float = 0.2  # alpha: the part that is pooled anew in each block after the first
    # how each chooses patch tokens. hard: exactly the highest scores, with the gradient of soft ones (straight-through, as in SoftSort's
    # code); random: the ablation, drawn for every image in training, and the same for all images in evaluation, so that it can be repeated;
    # so a teacher, which evaluates while its student trains, always takes the same places
    selection: Literal["soft", "hard", "random"] = "soft"
    scores: Literal["raw", "normed"] = "raw"  # of the tokens as Eq. 8 writes them, or after a LayerNorm without parameters
    later_blocks: Literal["mix", "carry"] = "mix"  # only mixing gives Eq. 7 a meaning; carry: they go through as any other token
    query_std: float = 0.02  # standard deviation of the queries' start: that of both baselines' tokens

    def problems(self, path: str, depth: int) -> Iterator[Problem]:
        """``path``: of this field; ``depth``: blocks of the backbone."""
        yield from less_than(1, self, path, "count", "blocks")
        yield from less_than(0, self, path, "query_std")
        if self.blocks > depth:
            yield Problem(f"{path}.blocks", f"{self.blocks} is more than the backbone's {counted(depth, 'block')}")
        yield from not_positive(self, path, "temperature")
        if not 0 <= self.mix <= 1:
            yield Problem(f"{path}.mix", f"{self.mix} is not in [0, 1]")
        for name, needed in self.inactive_fields().items():
            if getattr(self, name) != getattr(type(self), name):
                yield Problem(f"{path}.{name}", f"only {needed} reads it; leave it out")

    def inactive_fields(self) -> dict[str, str]:
        """{field that does nothing with the others as they are: what it belongs to}."""
        fields = dict.fromkeys(("temperature", "scores", "query_std"), "a learned selection") if self.selection == "random" else {}
        return fields | ({"mix": "later_blocks: mix"} if self.later_blocks == "carry" else {})
