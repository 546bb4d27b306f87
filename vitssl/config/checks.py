"""The checks of a Run that span its fields, and those of one that is being planned."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import chain
from operator import attrgetter

from vitssl.config import bounds, evals
from vitssl.config.backbones import BackboneConfig, capabilities, stride_px
from vitssl.config.base import ConfigError, Problem, inactive_problems, less_than, raise_first
from vitssl.config.data import view_px
from vitssl.config.objectives import ObjectiveConfig, active
from vitssl.config.run import Run, active_views, inactive_fields, scaled_lr, slices

# why a backbone cannot serve an objective, whose path is to be filled in
LACKS = {
    "cls": ("has no class token", "set {path}.pool=mean"),
    "reg": ("has no registers", "set backbone.reg_tokens=1"),
    "keep": ("cannot drop hidden tokens", "set {path}.hide=mask"),
    "mask": ("has no mask token", "set {path}.hide=drop"),
    "masked_tokens": ("has no masked tokens", "set backbone.masked_tokens"),
}


def check(run: Run, where: str = "", to_train: bool = True) -> None:
    """Refuse impossible values and combinations.

    Args:
        run: what is checked.
        where: for the error's first words.
        to_train: it has something to train; an imported backbone has no objective.

    Raises:
        ConfigError: the first problem found, naming ``where`` and the field.
    """
    views = [(f"data.views.{name}", view_px(run.data, name)) for name in active_views(run)]
    # lazily: a later check may rely on an earlier one
    parts = (
        run.data.size_problems(),
        bounds.problems(run),
        _demands(run, to_train),
        run.backbone.problems("backbone", [*views, ("data.image_size", run.data.image_size)]),
        _objective_problems(run),
        _local_problems(run),
        run.data.problems(),
        run.optim.problems(),
        run.loop.problems(),
        evals.problems(run),
    )
    raise_first(chain(less_than(0, run, "", "seed"), _pattern_problems(run), *parts), where)


def check_slices(run: Run, processes: int) -> None:
    """Refuse slices that would be far smaller than ``loop.micro_batch_size``, or too small to mix images.

    Raises:
        ConfigError: with the batch that fits.
    """
    own, count = max(1, run.optim.batch_size // processes), slices(run, processes)
    largest = run.loop.micro_batch_size or own
    size, field_name = own // count, "optim.batch_size" if largest >= own else "loop.micro_batch_size"
    if count > 1 and 2 * size <= largest:
        whole = max(1, round(own / largest)) * largest * processes
        reason = (
            f"a process's {own} images per step can only be split into {count} equal slices of {size}; optim.batch_size={whole} would fit"
        )
        raise ConfigError(f"{largest}: {reason}", field_name)
    if size == 1 and any(view.mixup_alpha or view.cutmix_alpha for view in active_views(run).values()):
        raise ConfigError("mixup and cutmix need another image in each forward pass; raise it, or set their alphas to 0", field_name)


def refuse_rising_lr(run: Run) -> None:
    """Refuse a final learning rate above the peak, in a Run that is being planned; an existing one is read as it is.

    Raises:
        ConfigError: with the field to set.
    """
    optim = run.optim
    peak, low = scaled_lr(optim, optim.lr), scaled_lr(optim, optim.min_lr) if optim.scale_all_lrs else optim.min_lr
    if low > peak:
        reason = f"{low:g} is above the learning rate, which lr_rule: {optim.lr_rule} makes {peak:.3g}, so the rate would rise at the end"
        raise ConfigError(f"{reason}; type optim.min_lr=0", "optim.min_lr")


def refuse_inactive_fields(run: Run, cli_fields: Collection[str] = ()) -> None:
    """Refuse what is set and has no effect, in a Run that is being planned; an existing one is read as it is.

    A sweep may set a field of ``data`` for all of its arms although one of them does not read it, as it crops or mixes differently; for
    a field in ``cli_fields``, which the command line sets, that is refused too.

    Raises:
        ConfigError: the first such field, and what it belongs to.
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
    """What the objectives require of the backbone and of the data."""
    objectives, there = active(run.objectives), sorted(run.data.views.enabled())
    if to_train and not objectives:
        yield Problem("objectives", "no objective is on; set at least one, for example objectives.classify: {}")
    if to_train and objectives and not any(objective.weight for objective in objectives.values()):
        name = next(iter(objectives))
        yield Problem(f"objectives.{name}.weight", "the weights of all objectives are 0: nothing would be trained")
    for name, objective in objectives.items():
        for lacking in sorted(objective.requires() - capabilities(run.backbone)):
            yield Problem(f"objectives.{name}", lacks(run.backbone, lacking, f"objectives.{name}", objective))
        for view in objective.views():
            if view not in there:
                add = f"; add 'data.views.{view}={{}}'" if view in vars(run.data.views) else ""
                yield Problem(f"objectives.{name}", f"there is no data.views.{view}; the Run has {', '.join(there)}{add}")
        there = [*there, *objective.makes]


def _local_problems(run: Run) -> Iterator[Problem]:
    """Local views show a part of the image in fewer pixels; the papers' 96 of 224 are no size for small images."""
    size, whole = getattr(active_views(run).get("local"), "size", None), run.data.image_size
    if size is not None and size > whole:
        stride = stride_px(run.backbone)
        own = max(1, round(3 / 7 * whole / stride)) * stride  # 96 of 224
        reason = f"{size} is larger than data.image_size, {whole}, and local views are smaller"
        yield Problem("data.views.local.size", f"{reason}; add data.views.local.size={own}")


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
    """Why a backbone without a capability cannot serve the objective at ``path``, and what can be done."""
    if backbone.tokenizer == "shifted" and need in ("keep", "mask"):
        return "backbone.tokenizer=shifted lets every token see part of its neighbours, even hidden ones; set patches"
    if need in ("keep", "mask") and not {"keep", "mask"} & capabilities(backbone):
        return (
            f"backbone.name={backbone.name} cannot hide tokens, neither by dropping nor by masking; simclr and dino need no hidden tokens"
        )
    (what, advice), never = LACKS[need], backbone.inactive_fields()
    if {"reg": "reg_tokens", "masked_tokens": "masked_tokens"}.get(need) in never or (need == "cls" and not hasattr(objective, "pool")):
        advice = "take a ViT, such as vit_tiny"
    return f"backbone.name={backbone.name} {what}; {advice.format(path=path)}"
