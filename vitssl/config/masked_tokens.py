"""The fields of ``backbone.masked_tokens``. The defaults of the first four are the paper's; it says nothing on the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from vitssl.config.base import Problem, inactive_problems, interval_problems, minimum_problems, positive_problems
from vitssl.words import counted


@dataclass
class MaskedTokens:
    """Learnable masked tokens (Hu et al. 2022) in the last blocks of a ViT or T2T-ViT."""

    count: int = 4  # number of masked tokens: N, the paper's sparsity granularity
    blocks: int = 4  # number of last blocks that have masked tokens
    temperature: float = 0.1  # tau of SoftSort; scores are not scaled otherwise, so include any scale in it
    mix: float = 0.2  # alpha: the fraction that is pooled anew in each block after the first
    # how each masked token selects patch tokens. hard: exactly those with the highest scores, with the soft gradient (straight-through, as
    # in SoftSort's code); random: the ablation, drawn for each image in training; the same for all images in evaluation, so that it can be
    # repeated, and therefore also in a teacher, which is in evaluation mode
    selection: Literal["soft", "hard", "random"] = "soft"
    scores: Literal["raw", "normed"] = "raw"  # compute scores from the tokens as they are (Eq. 8), or after a LayerNorm without parameters
    later_blocks: Literal["mix", "carry"] = "mix"  # mix: as in Eq. 7; carry: masked tokens pass through later blocks like any other token
    query_std: float = 0.02  # standard deviation of the queries' initial values; the tokens of SiT and DINO have the same

    def problems(self, path: str, depth: int) -> Iterator[Problem]:
        """Yield what is wrong with the fields; ``path`` is the dotted path of this part, ``depth`` the number of the backbone's blocks."""
        yield from minimum_problems(1, self, path, "count", "blocks")
        yield from minimum_problems(0, self, path, "query_std")
        if self.blocks > depth:
            yield Problem(f"{path}.blocks", f"{self.blocks} is more than the backbone's {counted(depth, 'block')}")
        yield from positive_problems(self, path, "temperature")
        yield from interval_problems("[0, 1]", self, path, "mix", share=True)
        yield from inactive_problems(self, path, self.inactive_fields())

    def inactive_fields(self) -> dict[str, str]:
        """Return {field that has no effect, given the others: the setting that it belongs to}."""
        fields = dict.fromkeys(("temperature", "scores", "query_std"), "a learned selection") if self.selection == "random" else {}
        return fields | ({"mix": "later_blocks: mix"} if self.later_blocks == "carry" else {})
