"""Suggestions of what was probably meant by a name that is not a field."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence

from vitssl.config.base import ConfigError, closest, unknown_error
from vitssl.config.data import View
from vitssl.config.fields import fields_of
from vitssl.config.methods import method
from vitssl.config.run import Run
from vitssl.config.site import Site
from vitssl.config.sweep import Arm, Resources, SweepFile

COLOR, COLORS = "data.views.main.color", "[{jitter: {strength: [0.4, 0.4, 0.2, 0.1]}}, {gray: {prob: 0.2}}, blur, solarize]"
# what other programs call a field
ALSO_CALLED = {
    "optim.lr": ("learning_rate", "base_lr", "blr"),
    "optim.batch_size": ("bs", "batch", "batchsize", "train_batch_size"),
    "optim.weight_decay": ("wd", "decay_rate"),
    "optim.name": ("optimizer", "optimiser", "opt"),
    "optim.clip": ("grad_clip", "clip_grad", "gradient_clipping"),
    "loop.epochs": ("epoch", "num_epochs", "n_epochs", "max_epochs", "training_epochs"),
    "loop.warmup_epochs": ("warmup", "warm_up"),
    "loop.max_steps": ("steps", "num_steps", "iterations"),
    "loop.micro_batch_size": ("accumulate", "accum_iter", "grad_accum", "gradient_accumulation_steps"),
    "optim.schedule": ("sched", "scheduler", "lr_schedule", "lr_scheduler", "lr_policy", "decay_schedule"),
    "loop.precision": ("amp", "fp16", "bf16", "mixed_precision"),
    "loop.ema_decay": ("ema", "model_ema"),
    "backbone.drop_path": ("dropout", "drop_rate", "drop_path_rate", "stochastic_depth"),
    "backbone.name": ("model", "model_name", "arch", "architecture", "network"),
    "backbone.patch_size": ("patch", "patchsize"),
    "data.shards": ("dataset", "data_set", "data_dir", "data_path", "path", "root"),
    "data.image_size": ("img_size", "imgsz", "input_size", "resolution", "px", "size"),
    "data.images.per_class": ("shots", "num_shots", "few_shot", "subset", "num_images"),
    "data.workers": ("num_workers",),
    "objectives.dino.teacher_momentum": ("momentum_teacher",),
    "data.views.local.count": ("local_crops_number", "num_local_crops"),
    "data.views.local.scale": ("local_crops_scale",),
    "data.views.main.scale": ("global_crops_scale",),
    "data.views.main.mixup_alpha": ("mixup",),
    "data.views.main.cutmix_alpha": ("cutmix",),
    "data.views.main.auto_augment": ("aa", "randaugment", "rand_augment", "autoaugment"),
    COLOR: (
        "color_jitter", "color_jitter_prob", "colorjitter", "grayscale", "grayscale_prob", "gaussian_blur", "blur_prob", "blur_sigma",
        "solarize_prob",
    ),
    "init_from": ("pretrained", "weights", "checkpoint", "resume", "finetune_from"),
    "resources.gpus_per_node": ("gpus", "num_gpus", "ngpus", "n_gpus", "devices"),
    "resources.nodes": ("num_nodes", "nnodes"),
    "resources.cpus_per_gpu": ("cpus", "num_cpus", "cpus_per_task"),
    "resources.mem_gb": ("mem", "memory"),
    "resources.hours": ("time", "time_limit", "walltime"),
    "evals.knn.k": ("neighbors", "neighbours", "n_neighbors", "num_neighbors"),
    "axes.seed": ("seeds",),
    "arms": ("arm", "methods"),
    "equalize": ("cost", "equal_cost"),  # the name of an axis in some sweeps
}  # fmt: skip
WHOLE = (SweepFile, Arm, Run, Resources, Site)
MOST = 3  # suggestions at most
# what other programs call the value of a field
VALUES_ALSO_CALLED = {
    "linear": "batch/256",
    "gpu": "cuda",
    "amp": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "bfloat16": "bf16",
}


def unknown_field_error(name: str, known: Iterable[str], field: str, schema: type | None = None) -> ConfigError:
    """Build the error for a name that is none of the ``known`` fields of ``schema``; it says what to type instead.

    Args:
        name: what was written.
        known: the names of the fields that exist.
        field: the dotted path that was written.
        schema: the dataclass that lacks the field; None on the command line.
    """
    if (paper_method := method(name)) is not None:
        return ConfigError(f"{name!r} is not a field; {paper_method.advice}", field)
    known = list(known)
    similar = closest(name, known) if schema else []
    if places := [] if f"{name}s" in known else suggest_fields(name if schema else field):
        # a name that looks similar by chance was not meant
        similar = [
            known_name
            for known_name in similar
            if (name in known_name or name.startswith(known_name)) and not any(place.endswith(f".{known_name}") for place in places)
        ]
    elif not similar and schema in (None, *WHOLE):  # for a part of a whole, the list of all its names says more
        places = suggest_similar_fields(name)
    if schema is View:  # the view may be another than the main one
        places = [place.replace("data.views.main.", field.removesuffix(name)) for place in places]
    elif schema is SweepFile:
        file_fields = {field.name for field in dataclasses.fields(SweepFile)}
        places = [place if place.split(".")[0] in file_fields else f"defaults.{place}" for place in places]
    elif schema is Arm:
        prefix = f"{field.removesuffix(name)}stages."
        places = [f"{prefix}STAGE.{place}" for place in suggest_fields(name)] or [f"{prefix}{name}"] * (not similar)
    elif schema is Run:  # perhaps the Run of one stage or of one arm
        places = [f"{field.removesuffix(name)}{place}" for place in places]
    if name in ALSO_CALLED[COLOR]:
        places = [f"{place}={COLORS}" for place in places]
    return unknown_error(name, known, field, also=list(dict.fromkeys([*similar, *places])))


def suggest_fields(key: str) -> list[str]:
    """Return the fields that end in ``key`` (such as ``lr``, ``mae.weight``), or that other programs call by its last part.

    Only those with the fewest dots are returned, at most ``MOST``.
    """
    last = key.rpartition(".")[2]
    called = [name for name, others in ALSO_CALLED.items() if last in others]
    places = [name for name in field_names() if name == key or name.endswith(f".{key}")]
    places = [*places, *called] or [name for name in field_names() if name.endswith(f".{last}")]
    least = min((place.count(".") for place in places), default=0)
    return [place for place in places if place.count(".") == least][:MOST]


def suggest_similar_fields(key: str, words: Sequence[str] = ()) -> list[str]:
    """Return the fields whose names, or names in other programs, look most like the last part of ``key``.

    If one of ``words`` looks most like it, return that word.
    """
    last_parts = [name.rpartition(".")[2] for name in field_names()]
    similar = closest(key.rpartition(".")[2], [*last_parts, *itertools.chain(*ALSO_CALLED.values()), *words])
    return suggest_fields(similar[0]) or similar if similar else []


@functools.cache
def field_names() -> tuple[str, ...]:
    """Return the dotted names of all fields of a Run, a job's resources and a site; of the views only those of main."""
    listed = [*fields_of(Run), *fields_of(Resources, "resources."), *fields_of(Site, "site.")]
    return tuple(field.name for field in listed if not field.name.startswith(("data.views.second.", "data.views.local.")))
