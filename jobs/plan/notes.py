"""What a person may not have meant, said before anything is trained: each of it may be meant, and is no error."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from jobs.plan.layers import is_of_values
from jobs.plan.shards import expected_index
from jobs.plan.sweep import Spec
from vitssl.config import Run, Site, active, dotted, nested, size_of
from vitssl.config.methods import flow
from vitssl.words import listed

if TYPE_CHECKING:
    from jobs.plan.cells import Cell

CONTRASTED = ("simclr", "dino")  # what tells an image's views from others': by their colours, where these are alike
COLOURS = "[{jitter: {prob: 0.8}}, {gray: {prob: 0.2}}]"
LARGER = 10  # times as many weights as the network's has a decoder that costs far more than it


WITHOUT_BF16 = r"(?i)\b(V100|P100|T4|TITAN|GTX|RTX[ -]?20\d\d|RTX[ -]?[4568]000|2080)\b(?! ?Ada)"  # names of boards before Ampere


def notes(spec: Spec, made: Sequence[Cell], site: Site) -> list[str]:
    """A line each, the same one once."""
    of_runs = [*_untested_folds(made), *_alike_in_colours(made), *_large_decoders(made), *_without_bf16(made, site)]
    return list(dict.fromkeys([*_own_values(spec), *of_runs]))


def _own_values(spec: Spec) -> Iterator[str]:
    """Stages that set the field of an axis themselves: their runs have the axis's value in their name alone."""
    for axis in (axis for axis in spec.axes if axis not in spec.added_axes and is_of_values(spec, axis)):
        for arm, recipe in spec.arms.items():
            for stage, fields in recipe.stages.items():
                if (value := dotted(nested(fields)).get(axis)) is not None:
                    yield f"axes.{axis} does not reach arms.{arm}.stages.{stage}, which sets {axis}={flow(value)} instead"


def _untested_folds(made: Sequence[Cell]) -> Iterator[str]:
    """Folds that no seed tests on."""
    tested: dict[int, set[int]] = {}
    for folds, seed in ((run.data.folds, run.seed) for _, run in _places(made)):
        if folds is not None:
            tested.setdefault(folds, set()).add(seed % folds)
    for folds, parts in tested.items():
        if len(parts) < folds:
            yield f"the seeds test {len(parts)} of data.folds={folds}; 'axes.seed=[{','.join(map(str, range(folds)))}]' tests all"


def _places(made: Iterable[Cell]) -> Iterator[tuple[str, Run]]:
    """Every Run with the arm that it is of, and the stage where there are several."""
    for cell in made:
        for stage in cell.stages:
            yield cell.arm if len(cell.stages) == 1 else f"{cell.arm}.{stage.name}", stage.run


def _alike_in_colours(made: Iterable[Cell]) -> Iterator[str]:
    """SimCLR and DINO on coloured images in views of unchanged colours, by which an image's views are known without looking further."""
    for place, run in _places(made):
        views = run.data.views.enabled()
        contrasted = [name for name in active(run.objectives) if name in CONTRASTED]
        if contrasted and _coloured(run) and not any(view.color or view.auto_augment for view in views.values()):
            words = shlex.join(f"arms.{place}.data.views.{view}.color={COLOURS}" for view in views)
            yield f"{listed(contrasted)} of {place} compares views of unchanged colours, which its paper changes: add {words}"


def _coloured(run: Run) -> bool:
    """Are its images not grey? Of shards that are not built yet that is not known, and they are not called coloured."""
    index = expected_index(run.data)
    return index is not None and len(set(index.mean)) > 1


def _without_bf16(made: Iterable[Cell], site: Site) -> Iterator[str]:
    """Runs in bf16 on a board that computes it by other means."""
    if site.gpu and re.search(WITHOUT_BF16, site.gpu) and any(run.loop.precision == "bf16" for _, run in _places(made)):
        yield f"a {site.gpu} has no native bf16, which makes it slow; use loop.precision=fp16"


def _large_decoders(made: Iterable[Cell]) -> Iterator[str]:
    """Decoders of full size, as MAE's are by default, on networks that are far smaller."""
    for _, run in _places(made):
        size = size_of(run.backbone)
        for name, objective in active(run.objectives).items():
            if (
                len(size.depths) == 1
                and getattr(objective, "decoder", "") == "transformer"
                and objective.decoder_dim**2 * objective.decoder_depth >= LARGER * size.embed_dim**2 * size.depths[0]
            ):
                decoder = f"{name}'s decoder is {objective.decoder_dim} wide and {objective.decoder_depth} deep"
                advice = f"objectives.{name}.decoder_dim and decoder_depth make it smaller"
                yield f"{decoder}, the network {size.embed_dim} and {size.depths[0]}: it will cost most of the training; {advice}"
