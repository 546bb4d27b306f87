"""What a person may not have meant, said before anything is trained: each of it may be meant, and is no error."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from jobs.axes import is_of_values
from jobs.shards import expected_index, image_counts
from jobs.sweep import Spec
from vitssl.config import SIZES, Loop, Run, active, classifies, dotted, nested, scaled_lr, size_of
from vitssl.config.evals import FIRST
from vitssl.config.methods import METHODS, flow
from vitssl.words import counted, listed

if TYPE_CHECKING:
    from jobs.graph import Cell

CONTRASTED = ("simclr", "dino")  # what tells an image's views from others': by their colours, where these are alike
COLOURS = "[{jitter: {prob: 0.8}}, {gray: {prob: 0.2}}]"
# the objectives that pretrain alone
ALONE = {name for method in METHODS if len(objectives := nested(method.fields).get("objectives") or {}) == 1 for name in objectives} - {
    "classify"
}
LEAST_GRID = 4  # patches on a side of an image, for a backbone's own to be worth a word
LONGER = 2  # times as many images in an epoch as have a label
LARGE_LR = 0.1  # of AdamW, before lr_rule
LARGER = 10  # times as many weights as the network's has a decoder that costs far more than it


def notes(spec: Spec, made: Sequence[Cell]) -> list[str]:
    """A line each, the same one once."""
    found = (
        *kept_patches(made),
        *_own_values(spec),
        *_draws(spec, made),
        *_other_data(spec),
        *_untested_folds(made),
        *_started(spec, made),
        *_beside(spec, made),
        *_longer_epochs(made),
        *_rates(made),
        *_coarse(made),
        *_never_within(made),
        *_weightless(made),
        *_alike_in_colours(made),
        *_large_decoders(made),
        *_always_right(spec, made),
    )
    return list(dict.fromkeys(found))


def here(spec: Spec, made: Sequence[Cell]) -> Iterator[str]:
    """What the command line asks for and this machine does not have."""
    asked = spec.overrides.resources.values()
    nodes = max((fields["nodes"] for fields in asked if isinstance(fields.get("nodes"), int)), default=1)
    if nodes > 1:
        yield f"resources.nodes={nodes} is of a cluster; this machine trains on one"
    cores = len(os.sched_getaffinity(0))
    threads = max((run.loop.threads for _, run in _places(made)), default=0)
    if threads > max(cores, Loop.threads):
        yield f"loop.threads={threads} are more than the {counted(cores, 'core')} of this machine, on which they wait for each other"


def kept_patches(made: Sequence[Cell]) -> Iterator[str]:
    """Where the command line names a backbone whose patches stay the file's: they go with the size of the images."""
    for run, cli_fields in ((stage.run, stage.cli_fields) for cell in made for stage in cell.stages):
        kept, own = run.backbone.patch_size, SIZES[run.backbone.name].patch_size
        fits = own is not None and run.data.image_size >= LEAST_GRID * own
        if fits and "backbone.name" in cli_fields and "backbone.patch_size" not in cli_fields and kept not in (None, own):
            advice = f"add backbone.patch_size={own} for its own, at {run.data.image_size} px"
            yield f"{run.backbone.name} keeps the file's backbone.patch_size={kept}; {advice}"


def _own_values(spec: Spec) -> Iterator[str]:
    """Stages that set the field of an axis themselves: their runs have the axis's value in their name alone."""
    for axis in (axis for axis in spec.axes if axis not in spec.added_axes and is_of_values(spec, axis)):
        own: dict[str, list[str]] = {}
        for arm, recipe in spec.arms.items():
            for stage, fields in recipe.stages.items():
                if (value := dotted(nested(fields)).get(axis)) is not None:
                    own.setdefault(flow(value), []).append(arm if len(recipe.stages) == 1 else f"{arm}.{stage}")
        for value, places in own.items():
            yield f"axes.{axis} does not reach {listed(places)}, {'which sets' if len(places) == 1 else 'which set'} {axis}={value} instead"


def _draws(spec: Spec, made: Sequence[Cell]) -> Iterator[str]:
    """Axes over draws of images, which are compared as settings are."""
    for axis in (axis for axis in spec.axes if axis in ("data.images.seed", "data.labels.seed")):
        field = axis.removesuffix(".seed")
        subsets = [getattr(run.data, field.removeprefix("data.")) for _, run in _places(made)]
        if all(subset is None or subset.redraw for subset in subsets):
            continue
        yield f"axes.{axis} compares draws as it does settings; {field}.redraw=true draws others with each seed, and averages over them"


def _other_data(spec: Spec) -> Iterator[str]:
    """Axes over the images or labels of a stage that some arms have not: these are compared with other data."""
    for axis, values in spec.axes.items():
        of_data = [s for chosen in values.values() for s in chosen if s.field.startswith(("data.images", "data.labels"))]
        stages, fields = {s.stage for s in of_data}, listed({f"axes.{s.field}": None for s in of_data})
        missed = [arm for arm, recipe in spec.arms.items() if recipe.stages and not stages & {None, *recipe.stages}]
        if of_data and len(values) > 1 and 0 < len(missed) < len(spec.arms):
            has = "has" if len(missed) == 1 else "have"
            keep = f"{listed(missed)}, without {listed(map(str, stages))}, {has} the same data at each value"
            yield f"axes.{axis} does not reach all arms: {keep}; {fields} would be of all stages that read it"


def _untested_folds(made: Sequence[Cell]) -> Iterator[str]:
    """Folds that no seed tests on."""
    tested: dict[int, set[int]] = {}
    for folds, seed in ((run.data.folds, run.seed) for _, run in _places(made)):
        if folds is not None:
            tested.setdefault(folds, set()).add(seed % folds)
    for folds, parts in tested.items():
        if len(parts) < folds:
            yield f"of data.folds={folds} the seeds test {len(parts)}; 'axes.seed=[{','.join(map(str, range(folds)))}]' tests all"


def _started(spec: Spec, made: Sequence[Cell]) -> Iterator[str]:
    """That the command line makes the baseline start from trained weights, whose training is no part of its cost."""
    for stage in (stage for cell in made if cell.arm == spec.baseline for stage in cell.stages):
        if "init_from" in stage.cli_fields and stage.run.init_from is not None:
            yield f"{spec.baseline}, the baseline, starts from {stage.run.init_from} too; what that cost is in no figure of this sweep"


def _beside(spec: Spec, made: Sequence[Cell]) -> Iterator[str]:
    """Methods of pretraining that the command line adds to Runs which classify: what was there stays."""
    for setting in (one for one in spec.overrides.settings if one.objective is None):
        typed = nested({setting.field: setting.value}).get("objectives") or {}
        for name in (name for name, value in typed.items() if name in ALONE and value is not None and "classify" not in typed):
            joint = dict.fromkeys(place for place, run in _places(made) if {name, "classify"} <= active(run.objectives).keys())
            if joint:
                before = f"to pretrain by {name} alone takes a stage before, as in sweeps/methods.yaml"
                yield f"{name} of {listed(joint)} is trained beside classify, in the same steps; {before}"


def _longer_epochs(made: Iterable[Cell]) -> Iterator[str]:
    """Objectives from the command line that make the epochs of a Run which classifies those of all images, with a label or without."""
    for cell in made:
        for stage in cell.stages:
            typed = any(field.startswith("objectives") for field in stage.cli_fields) and "loop.epochs" not in stage.cli_fields
            if not typed or "classify" not in active(stage.run.objectives) or expected_index(stage.run.data) is None:
                continue
            counts, loop = image_counts(stage.run), stage.run.loop
            everything, labelled = counts["train_images"], counts["labelled_images"]
            if everything >= LONGER * labelled > 0:
                others = listed(name for name in active(stage.run.objectives) if name != "classify")
                epochs, warmup = (round(n * labelled / everything) for n in (loop.epochs, loop.warmup_epochs))
                shorter = f"loop.epochs={max(1, epochs)} loop.warmup_epochs={warmup} train for as many steps as on those alone"
                sees = f"an epoch is of all {everything:,} images, of which {labelled:,} have a label"
                yield f"{others} of {cell.arm} needs no label: {sees}; {shorter}"


def _rates(made: Iterable[Cell]) -> Iterator[str]:
    """Learning rates at which nothing is learned, and schedules that do not fall."""
    for optim in (run.optim for _, run in _places(made)):
        if optim.lr == 0:
            yield "optim.lr=0 trains nothing"
        elif optim.name == "adamw" and optim.lr >= LARGE_LR:
            yield f"optim.lr={optim.lr:g} is far more than adamw trains a network with; 1e-3 and less are usual"
        peak = scaled_lr(optim, optim.lr)
        for name, what in (("warmup_lr", "begins there"), ("min_lr", "rises to it")):
            rate = getattr(optim, name)
            if (scaled_lr(optim, rate) if optim.scale_all_lrs else rate) > peak > 0:
                yield f"optim.{name}={rate:g} is more than the learning rate after the warm-up, {peak:g}: the rate {what}"


def _coarse(made: Iterable[Cell]) -> Iterator[str]:
    """Images that are shrunk to fewer pixels than the network sees."""
    for data in (run.data for _, run in _places(made)):
        if data.cache_px is not None and data.cache_px < data.image_size:
            yield f"data.cache_px={data.cache_px} shrinks images that are then enlarged to data.image_size={data.image_size} again"


def _never_within(made: Iterable[Cell]) -> Iterator[str]:
    """More epochs between evaluations than there are, where there is something to evaluate."""
    for loop in (run.loop for _, run in _places(made) if classifies(run) or run.evals):
        if loop.eval_every > loop.epochs:
            yield f"loop.eval_every={loop.eval_every} is more than the {counted(loop.epochs, 'epoch')}: there is one evaluation, at the end"


def _weightless(made: Iterable[Cell]) -> Iterator[str]:
    """Objectives that train nothing."""
    found: dict[str, list[str]] = {}
    for place, run in _places(made):
        for name in (name for name, objective in active(run.objectives).items() if not objective.weight):
            found.setdefault(name, []).append(place)
    for name, places in found.items():
        where = listed(dict.fromkeys(places))
        yield f"{name} of {where} has a weight of 0: it trains nothing, and costs as much; objectives.{name}=null switches it off"


def _places(made: Iterable[Cell]) -> Iterator[tuple[str, Run]]:
    """Every Run with the arm that it is of, and the stage where there are several."""
    for cell in made:
        for stage in cell.stages:
            yield cell.arm if len(cell.stages) == 1 else f"{cell.arm}.{stage.name}", stage.run


def _alike_in_colours(made: Iterable[Cell]) -> Iterator[str]:
    """SimCLR and DINO on coloured images in views of unchanged colours, by which an image's views are known without looking further."""
    found: dict[str, dict[str, Run]] = {}
    for place, run in _places(made):
        changed = any(view.color or view.auto_augment for view in run.data.views.enabled().values())
        for objective in (one for one in active(run.objectives) if one in CONTRASTED and not changed and _coloured(run)):
            found.setdefault(objective, {})[place] = run
    for objective, places in found.items():
        words = [f"arms.{place}.data.views.{view}.color={COLOURS}" for place, run in places.items() for view in run.data.views.enabled()]
        yield f"{objective} of {listed(places)} compares views of unchanged colours, which its paper changes: add {shlex.join(words)}"


def _coloured(run: Run) -> bool:
    """Are its images not grey? Of shards that are not built yet that is not known, and they are not called coloured."""
    index = expected_index(run.data)
    return index is not None and len(set(index.mean)) > 1


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


def _always_right(spec: Spec, made: Iterable[Cell]) -> Iterator[str]:
    """A metric of the first few classes where there are no more."""
    index = next((expected_index(stage.run.data) for cell in made for stage in cell.stages), None)
    if spec.metric.endswith("top5") and index is not None and len(index.classes) <= FIRST:
        always = f"of {len(index.classes)} classes the right one is always among the first {FIRST}"
        yield f"metric={spec.metric} is 100 % of whatever is trained: {always}"
