"""Notes on settings that a user may not have meant, printed before anything is trained; all of them are allowed."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from jobs.plan.layers import is_of_values
from jobs.plan.shards import expected_index, image_counts, images_key
from jobs.plan.sweep import Spec
from vitssl.config import Run, Site, active, classifies, dotted, labelled_rows, labels_part_of_batches, nested, size_of
from vitssl.config.methods import flow
from vitssl.config.objectives.reconstruction import ReconstructionConfig
from vitssl.data.index import Index
from vitssl.data.loading.subset import split_of
from vitssl.words import counted, listed

if TYPE_CHECKING:
    from jobs.plan.cells import Cell

COLOURS = "[{jitter: {prob: 0.8}}, {gray: {prob: 0.2}}]"
FEW_LABELLED, FEW_IN_A_BATCH = 0.1, 16  # of the images, and images of a batch: with fewer it holds little to learn to classify from
LARGER = 10  # times the network's weights: a larger decoder costs far more than the network
WITHOUT_BF16 = r"(?i)\b(V100|P100|T4|TITAN|GTX|RTX[ -]?20\d\d|RTX[ -]?[4568]000|2080)\b(?! ?Ada)"  # names of boards before Ampere


def notes(spec: Spec, made: Sequence[Cell], site: Site) -> list[str]:
    """Return the notes, one line each and without duplicates."""
    of_runs = (_untested_folds, _trained_on_test_images, _alike_in_colours, _few_labels_in_a_batch, _large_decoders)
    return list(dict.fromkeys([*_own_values(spec), *(note for notes_of in of_runs for note in notes_of(made)), *_without_bf16(made, site)]))


def _own_values(spec: Spec) -> Iterator[str]:
    """Yield a note for each stage that sets the field of an axis itself, so that its runs have the axis value only in their names."""
    for axis in (axis for axis in spec.axes if axis not in spec.added_axes and is_of_values(spec, axis)):
        for arm, recipe in spec.arms.items():
            for stage in recipe.stages:
                if (value := dotted(nested(recipe.fields_of(stage))).get(axis)) is not None:
                    yield f"axes.{axis} does not reach arms.{arm}.stages.{stage}, which sets {axis}={flow(value)} instead"


def _untested_folds(made: Sequence[Cell]) -> Iterator[str]:
    """Yield a note if the seeds of a sweep test only some of the folds of ``data.folds``."""
    tested: dict[int, set[int]] = {}
    for folds, seed in ((run.data.folds, run.seed) for _, run in _places(made)):
        if folds is not None:
            tested.setdefault(folds, set()).add(seed % folds)
    for folds, parts in tested.items():
        if len(parts) < folds:
            yield f"the seeds test {len(parts)} of data.folds={folds}; 'axes.seed=[{','.join(map(str, range(folds)))}]' tests all"


def _trained_on_test_images(made: Sequence[Cell]) -> Iterator[str]:
    """Yield a note for each stage that trains on files on which its chain is tested at the end, from other shards or another split."""

    @functools.cache
    def files(run_key: str, part: str) -> np.ndarray:
        run = runs[run_key]
        index = expected_index(run.data)
        return _files(index)[getattr(split_of(index, run), part)] if index is not None and index.sha256 else np.empty(0, np.int64)

    @functools.cache
    def shared(earlier: str, last: str) -> int:
        return int(np.isin(files(last, "test"), files(earlier, "train")).sum())

    runs: dict[str, Run] = {}
    for cell in made:
        keys = [images_key(stage.run) for stage in cell.stages]
        runs |= dict(zip(keys, (stage.run for stage in cell.stages), strict=True))
        for stage, key in zip(cell.stages[:-1], keys[:-1], strict=True):
            if classifies(cell.stages[-1].run) and (count := shared(key, keys[-1])):
                images = f"{cell.arm}.{stage.name} trains on {counted(count, 'image')} that {cell.arm} is tested on"
                yield f"{images}: {stage.run.data.shards} holds the same files; leave them out of those shards or of data.train_split"


def _files(index: Index) -> np.ndarray:
    """Return a number for each image's file, (N,): its length and its checksum."""
    return index.size << 32 | index.crc32


def _places(made: Iterable[Cell]) -> Iterator[tuple[str, Run]]:
    """Yield every Run with its arm, or with ARM.STAGE if the arm has several stages."""
    for cell in made:
        for stage in cell.stages:
            yield cell.arm if len(cell.stages) == 1 else f"{cell.arm}.{stage.name}", stage.run


def _alike_in_colours(made: Iterable[Cell]) -> Iterator[str]:
    """Yield a note if an objective that needs colours to differ (``needs_colours``) trains on coloured images whose views keep them."""
    for place, run in _places(made):
        views = run.data.views.enabled()
        contrasted = [name for name, objective in active(run.objectives).items() if objective.needs_colours]
        if contrasted and _coloured(run) and not any(view.color or view.auto_augment for view in views.values()):
            words = shlex.join(f"arms.{place}.data.views.{view}.color={COLOURS}" for view in views)
            yield f"{listed(contrasted)} of {place} compares views of unchanged colours, which its paper changes: add {words}"


def _few_labels_in_a_batch(made: Iterable[Cell]) -> Iterator[str]:
    """Yield a note if a classifier learns beside another objective from batches of which hardly an image has a label.

    There is none if some Run sets ``data.labelled_batch_fraction``, but one if that is so small that it changes nothing.
    """
    joint = [(place, run) for place, run in _places(made) if labels_part_of_batches(run) and expected_index(run.data) is not None]
    is_known = any(run.data.labelled_batch_fraction is not None for _, run in joint)
    for place, run in joint:
        counts, least_rows = image_counts(run), labelled_rows(run)
        share = counts["labelled_images"] / counts["train_images"]
        in_batch = run.optim.batch_size * share
        if least_rows is not None and least_rows <= in_batch:
            setting = f"data.labelled_batch_fraction={run.data.labelled_batch_fraction}"
            yield f"{setting} changes nothing for {place}: {share:.3g} of its images have a label"
        elif share < FEW_LABELLED and in_batch < FEW_IN_A_BATCH and not is_known:
            batch = f"of the {run.optim.batch_size} images in a batch of {place}, {in_batch:.2g} have a label on average"
            yield f"{batch}; arms.{place}.data.labelled_batch_fraction=0.25 draws labelled images more often than others"


def _coloured(run: Run) -> bool:
    """Whether the images of ``run`` are known to have colours; False for shards that are not built yet."""
    index = expected_index(run.data)
    return index is not None and len(set(index.mean)) > 1


def _without_bf16(made: Iterable[Cell], site: Site) -> Iterator[str]:
    """Yield a note if Runs train in bf16 on a GPU without native bf16."""
    if site.gpu and re.search(WITHOUT_BF16, site.gpu) and any(run.loop.precision == "bf16" for _, run in _places(made)):
        yield f"a {site.gpu} has no native bf16, which makes it slow; use loop.precision=fp16"


def _large_decoders(made: Iterable[Cell]) -> Iterator[str]:
    """Yield a note for a decoder of full size, as MAE's is by default, on a network that is far smaller."""
    for _, run in _places(made):
        size = size_of(run.backbone)
        for name, objective in active(run.objectives).items():
            if (
                len(size.depths) == 1
                and isinstance(objective, ReconstructionConfig)
                and objective.decoder == "transformer"
                and objective.decoder_dim**2 * objective.decoder_depth >= LARGER * size.embed_dim**2 * size.depths[0]
            ):
                decoder = f"{name}'s decoder is {objective.decoder_dim} wide and {objective.decoder_depth} deep"
                advice = f"objectives.{name}.decoder_dim and decoder_depth make it smaller"
                yield f"{decoder}, the network {size.embed_dim} and {size.depths[0]}: it will cost most of the training; {advice}"
