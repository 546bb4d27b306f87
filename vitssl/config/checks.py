"""The checks of a Run that span several fields, and further checks of a Run that is being planned."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import chain
from operator import attrgetter

from vitssl.config import bounds, evals
from vitssl.config.backbones import BackboneConfig, capabilities, stride_px
from vitssl.config.base import ConfigError, Problem, inactive_problems, minimum_problems, raise_first
from vitssl.config.data import view_px
from vitssl.config.objectives import ObjectiveConfig, active
from vitssl.config.run import Run, active_views, inactive_fields, labelled_rows, scaled_lr, slices
from vitssl.words import counted

# capability: what a backbone without it lacks, and what to do; {path} stands for the path of the objective that requires it
LACKS = {
    "cls": ("has no class token", "set {path}.pool=mean"),
    "reg": ("has no registers", "set backbone.reg_tokens=1"),
    "keep": ("cannot drop hidden tokens", "set {path}.hide=mask"),
    "mask": ("has no mask token", "set {path}.hide=drop"),
    "masked_tokens": ("has no masked tokens", "set backbone.masked_tokens"),
}


def check(run: Run, where: str = "", to_train: bool = True) -> None:
    """Refuse impossible values and combinations of fields.

    Args:
        run: the Run to check.
        where: the file or place that the error begins with.
        to_train: whether the Run must have something to train. An imported backbone has no objective.

    Raises:
        ConfigError: the first problem found, naming ``where`` and the field.
    """
    views = [(f"data.views.{name}", view_px(run.data, name)) for name in active_views(run)]
    # generators, run one after the other: a later check may rely on an earlier one
    parts = (
        run.data.size_problems(),
        bounds.problems(run),
        _demands(run, to_train),
        run.backbone.problems("backbone", [*views, ("data.image_size", run.data.image_size)]),
        _objective_problems(run),
        _local_problems(run),
        run.data.problems(),
        _labelled_problems(run),
        run.optim.problems(),
        run.loop.problems(),
        evals.problems(run),
    )
    raise_first(chain(minimum_problems(0, run, "", "seed"), _pattern_problems(run), *parts), where)


def check_slices(run: Run, processes: int) -> None:
    """Refuse slices of the batch that would be far smaller than ``loop.micro_batch_size``, or too small to mix images.

    Raises:
        ConfigError: names a batch size that would fit, or the field to raise.
    """
    local_batch, count = max(1, run.optim.batch_size // processes), slices(run, processes)
    largest = run.loop.micro_batch_size or local_batch
    size, field_name = local_batch // count, "optim.batch_size" if largest >= local_batch else "loop.micro_batch_size"
    if count > 1 and 2 * size <= largest:
        fitting_batch = max(1, round(local_batch / largest)) * largest * processes
        reason = (
            f"a process's {local_batch} images per step can only be split into {count} equal slices of {size};"
            f" optim.batch_size={fitting_batch} would fit"
        )
        raise ConfigError(f"{largest}: {reason}", field_name)
    if size == 1 and any(view.mixup_alpha or view.cutmix_alpha for view in active_views(run).values()):
        raise ConfigError("mixup and cutmix need another image in each forward pass; raise it, or set their alphas to 0", field_name)


def refuse_rising_lr(run: Run) -> None:
    """Refuse a final learning rate above the peak in a Run that is being planned. Existing Runs are read as they are.

    Raises:
        ConfigError: says which field to set.
    """
    optim = run.optim
    peak, low = scaled_lr(optim, optim.lr), scaled_lr(optim, optim.min_lr) if optim.scale_all_lrs else optim.min_lr
    if low > peak:
        reason = f"{low:g} is above the learning rate, which lr_rule: {optim.lr_rule} makes {peak:.3g}, so the rate would rise at the end"
        raise ConfigError(f"{reason}; type optim.min_lr=0", "optim.min_lr")


def refuse_inactive_fields(run: Run, cli_fields: Collection[str] = ()) -> None:
    """Refuse fields that are set and have no effect in a Run that is being planned. Existing Runs are read as they are.

    A sweep, or its command line, may set a field of ``data``, or ``optim.warmup_lr``, for all arms although one of them does not read it,
    for example because it crops or mixes differently. Such a field is refused only if it is in ``cli_fields``: those that the command line
    sets and that no stage reads.

    Raises:
        ConfigError: names the first such field and what it belongs to.
    """
    for path, owner in inactive_fields(run).items():
        shared = path.startswith("data.") or path == "optim.warmup_lr"
        *parents, name = path.split(".")
        part = attrgetter(".".join(parents))(run) if parents else run
        if not shared or path in cli_fields:
            raise_first(inactive_problems(part, ".".join(parents), {name: owner}))


def _pattern_problems(run: Run) -> Iterator[Problem]:
    for name, patterns in (("init_except", run.init_except), ("optim.no_decay", run.optim.no_decay), ("optim.decay", run.optim.decay)):
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                yield Problem(name, f"{pattern!r} is not a regular expression ({error})")


def _demands(run: Run, to_train: bool) -> Iterator[Problem]:
    """Yield what the objectives require and the backbone or the data lacks."""
    objectives, available = active(run.objectives), sorted(run.data.views.enabled())
    if to_train and not objectives:
        yield Problem("objectives", "no objective is on; set at least one, for example objectives.classify: {}")
    if to_train and objectives and not any(objective.weight for objective in objectives.values()):
        name = next(iter(objectives))
        yield Problem(f"objectives.{name}.weight", "the weights of all objectives are 0: nothing would be trained")
    for name, objective in objectives.items():
        for lacking in sorted(objective.requires() - capabilities(run.backbone)):
            yield Problem(f"objectives.{name}", lacks(run.backbone, lacking, f"objectives.{name}", objective))
        for view in objective.views():
            if view not in available:
                add = f"; add 'data.views.{view}={{}}'" if view in vars(run.data.views) else ""
                yield Problem(f"objectives.{name}", f"there is no data.views.{view}; the Run has {', '.join(available)}{add}")
        available = [*available, *objective.makes]


def _local_problems(run: Run) -> Iterator[Problem]:
    """Yield a problem if local views are larger than the image: the papers' 96 of 224 pixels do not suit small images."""
    local_px, image_px = getattr(active_views(run).get("local"), "size", None), run.data.image_size
    if local_px is not None and local_px > image_px:
        stride = stride_px(run.backbone)
        suggested_px = max(1, round(3 / 7 * image_px / stride)) * stride  # the papers' ratio, 96 of 224
        reason = f"{local_px} is larger than data.image_size, {image_px}, and local views are smaller"
        yield Problem("data.views.local.size", f"{reason}; add data.views.local.size={suggested_px}")


def _labelled_problems(run: Run) -> Iterator[Problem]:
    """Yield a problem if the labelled part of a batch leaves no room for an image without a label."""
    if (rows := labelled_rows(run)) is not None and rows >= run.optim.batch_size:
        reason = f"of a batch of {counted(run.optim.batch_size, 'image')} it leaves none without a label; set it lower"
        yield Problem("data.labelled_batch_fraction", f"{run.data.labelled_batch_fraction}: {reason}")


def _objective_problems(run: Run) -> Iterator[Problem]:
    objectives = active(run.objectives)
    for name, objective in objectives.items():
        yield from objective.problems(f"objectives.{name}", run)
    if objectives and not any(objective.reads_output() for objective in objectives.values()):
        reason = "nothing reads the backbone's output, and its last layers would stay untrained; add an objective that does"
        yield Problem("objectives", f"{reason}, such as objectives.classify (drloc does with features: normed)")
    if run.backbone.frozen and set(objectives) != {"classify"}:
        yield Problem("backbone.frozen", "only a classify Run (a probe) can train on a frozen backbone")
    for name in run.init_objectives:
        if name not in objectives:
            yield Problem("init_objectives", f"{name} is not an active objective; the Run has {', '.join(objectives)}")


def lacks(backbone: BackboneConfig, need: str, path: str, objective: ObjectiveConfig) -> str:
    """Return why a backbone without the capability ``need`` cannot serve the objective at ``path``, and what to do."""
    if backbone.tokenizer == "shifted" and need in ("keep", "mask"):
        return "backbone.tokenizer=shifted lets every token see part of its neighbours, even hidden ones; set patches"
    if need in ("keep", "mask") and backbone.name == "timm":
        return (
            "backbone.name=timm cannot hide tokens: networks of timm are taken as they are; a ViT of this project's can, such as vit_tiny"
        )
    if need in ("keep", "mask") and not {"keep", "mask"} & capabilities(backbone):
        return f"backbone.name={backbone.name} cannot hide tokens, neither by dropping nor by masking; simclr, for example, hides none"
    (lack, advice), inactive = LACKS[need], backbone.inactive_fields()
    if {"reg": "reg_tokens", "masked_tokens": "masked_tokens"}.get(need) in inactive or (need == "cls" and not hasattr(objective, "pool")):
        advice = "take a ViT, such as vit_tiny"
    return f"backbone.name={backbone.name} {lack}; {advice.format(path=path)}"
