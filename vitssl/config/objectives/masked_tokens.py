"""The fields of ``objectives.masked_tokens``: what is asked of a backbone's masked tokens (MT-SiT, MT-DINO)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from vitssl.config.base import Problem, minimum_problems, positive_problems
from vitssl.config.objectives.base import ObjectiveConfig, negatives_problems, repeated_view_problems

if TYPE_CHECKING:
    from vitssl.config.run import Run


@dataclass
class MaskedTokensConfig(ObjectiveConfig):
    """The two regularisers of masked tokens (Hu et al. 2022, section 2.3), beside the Run's other objectives.

    The paper gives neither the weights nor the views of the regularisers, and does not say whether the final norm comes before them. They
    need passes with all tokens: beside an objective that hides tokens (mae) they take one more pass, of the unmasked view.
    """

    second: Optional[str] = None  # a second view, whose masked tokens are regularised too, separately
    local: Optional[str] = None  # a third such view, such as DINO's small crops
    sparse_weight: float = 1.0  # factor on L_sparse, which makes the tokens of an image differ
    contrast_weight: float = 1.0  # factor on L_con, which tells images apart
    normed: bool = True  # take tokens after the final norm, as SiT and DINO do
    temperature: float = 1.0  # what the cosine similarities are divided by; Eq. 12 has no temperature

    def requires(self) -> set[str]:
        return {"masked_tokens"}

    def views(self) -> list[str]:
        return [self.view, *filter(None, (self.second, self.local))]

    def inactive_fields(self) -> dict[str, str]:
        return {} if self.contrast_weight else {"temperature": "contrast_weight"}

    def problems(self, name: str, run: Run) -> Iterator[Problem]:
        yield from super().problems(name, run)
        yield from repeated_view_problems(name, self.views())
        yield from minimum_problems(0, self, name, "sparse_weight", "contrast_weight")
        if not self.sparse_weight and not self.contrast_weight:
            yield Problem(name, "both of its terms have weight 0; leave it out, or set one")
        yield from positive_problems(self, name, "temperature")
        if self.contrast_weight:
            yield from self._contrast_problems(name, run)

    def _contrast_problems(self, name: str, run: Run) -> Iterator[Problem]:
        if run.backbone.masked_tokens is not None and run.backbone.masked_tokens.count < 2:
            yield Problem(
                f"{name}.contrast_weight",
                "a single masked token has no others in its image to differ from; set 0, or raise backbone.masked_tokens.count",
            )
        yield from negatives_problems(name, run)
