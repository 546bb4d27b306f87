"""A Run, the one typed description of a training job, and what follows from its fields. Its checks are in `checks.py`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Optional

from vitssl.config.backbones import BackboneConfig
from vitssl.config.base import Problem, checkpoint, interval_problems, minimum_problems, runtime_field, teachers
from vitssl.config.data import Data, View
from vitssl.config.objectives import Objectives, active
from vitssl.words import counted

FALLING = "schedule: cosine or linear"


@dataclass
class Optim:
    name: Literal["adamw", "sgd", "lars"] = "adamw"  # the optimiser
    batch_size: int = 256  # images per optimiser step, summed over all GPUs
    lr: float = 1e-3  # learning rate after the warm-up, before lr_rule
    # factor on lr for the global batch size B: batch/256 is B/256, sqrt_batch is sqrt(B)/4, sqrt_batch/8 is sqrt(B)/8
    lr_rule: Literal["none", "batch/256", "batch/512", "sqrt_batch", "sqrt_batch/8"] = "batch/256"
    schedule: Literal["cosine", "linear", "constant"] = "cosine"  # how lr falls to min_lr after the warm-up; constant: not at all
    min_lr: float = 1e-6  # learning rate at the end of the schedule
    warmup_lr: float = 0.0  # learning rate at the start of the linear warm-up
    scale_all_lrs: bool = False  # lr_rule scales min_lr and warmup_lr too
    # AdamW's decay rates: of the mean gradient, and of the mean squared gradient
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    momentum: float = 0.9  # momentum of sgd and lars
    nesterov: bool = False  # use Nesterov momentum (sgd and lars)
    weight_decay: float = 0.05  # for matrices, tokens and learned positions, but not for other vectors and biases
    weight_decay_end: Optional[float] = None  # weight_decay changes to this value along a cosine; null: it stays constant
    no_decay: list[str] = field(default_factory=list)  # name patterns of parameters to exempt from weight decay, besides vectors and biases
    decay: list[str] = field(default_factory=list)  # name patterns of vectors and biases to apply weight decay to
    layer_decay: float = 1.0  # each layer's learning rate is this fraction of that of the layer above (MAE's ViT-B: 0.65); 1: all equal
    clip: Literal["none", "global", "tensor"] = "none"  # clip gradients: global by their joint norm, tensor each by its own (DINO, GMML)
    clip_norm: float = 1.0  # largest gradient norm after clipping

    def inactive_fields(self) -> dict[str, str]:
        """Return {field that has no effect, given the others: the setting that it belongs to}."""
        owners = dict.fromkeys(("momentum", "nesterov"), "name: sgd or lars") if self.name == "adamw" else {"betas": "name: adamw"}
        if self.clip == "none":
            owners["clip_norm"] = "clip: global or tensor"
        if self.schedule == "constant":
            owners["min_lr"] = FALLING
        return owners

    def problems(self) -> Iterator[Problem]:
        yield from minimum_problems(1, self, "optim", "batch_size")
        yield from minimum_problems(0, self, "optim", "lr", "weight_decay", "weight_decay_end", "min_lr", "warmup_lr")
        yield from interval_problems("[0, 1)", self, "optim", "momentum")
        if self.nesterov and not self.momentum:
            yield Problem("optim.nesterov", "there is no momentum; set optim.momentum")
        yield from interval_problems("(0, 1]", self, "optim", "layer_decay")
        if self.clip != "none" and not 0 < self.clip_norm < math.inf:
            yield Problem("optim.clip_norm", f"{self.clip_norm} is not positive")
        if len(self.betas) != 2 or not all(0 <= b < 1 for b in self.betas):
            yield Problem("optim.betas", f"{self.betas} is not a pair in [0, 1)")


@dataclass
class Loop:
    epochs: int = 100  # passes over the training images: over all, or over those with labels if every objective needs labels
    schedule_epochs: Optional[int] = None  # length of all schedules (the learning rate's, a teacher's), in epochs; null: `epochs`
    warmup_epochs: float = 5.0  # epochs in which the learning rate rises linearly
    # true: the schedule begins after the warm-up (MAE); false: at the first step, and the warm-up replaces its first part (timm's default)
    warmup_prefix: bool = True
    max_steps: Optional[int] = None  # stop after this many optimiser steps; schedules are not shortened
    # most images per GPU in one forward pass; larger batches are split, and gradients accumulated. Where a batch norm is trained, whose
    # statistics are those of a forward pass, it is part of what identifies a run; elsewhere it changes only what a forward pass draws, such
    # as masks
    micro_batch_size: Optional[int] = runtime_field(None)
    # of matrix products and convolutions; weights stay fp32. fp16, with loss scaling, is for GPUs without bf16 (before Ampere)
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    compile: bool = runtime_field(False)  # use torch.compile: takes about a minute at the start, then steps are faster
    # record a step as a CUDA graph and replay it (on one GPU, without gradient accumulation); false for an objective that copies values to
    # the CPU
    cuda_graph: bool = runtime_field(True)
    ema_decay: Optional[float] = None  # decay of a moving average of the weights, which is evaluated too; null: none
    device: Literal["auto", "cpu", "cuda"] = runtime_field("auto")  # auto: a GPU if there is one
    threads: int = runtime_field(2)  # CPU threads per process; results are equal bit for bit only with the same number
    eval_every: int = runtime_field(1)  # epochs between evaluations; 0: at the end only
    log_every: int = runtime_field(10)  # optimiser steps between lines of metrics.jsonl
    # where scalars are logged besides metrics.jsonl and TensorBoard; needs pip install 'vitssl[loggers]'
    loggers: list[Literal["wandb", "mlflow"]] = field(default_factory=list, metadata={"identity": False})
    checkpoint_minutes: float = runtime_field(5.0)  # minutes between checkpoints; a killed run loses about this much
    keep_every: int = runtime_field(0)  # epochs between checkpoints that are kept; 0: only the last is kept

    @property
    def horizon(self) -> int:
        """The number of epochs over which schedules extend."""
        return self.schedule_epochs or self.epochs

    def problems(self) -> Iterator[Problem]:
        yield from minimum_problems(0, self, "loop", "checkpoint_minutes", "warmup_epochs", "eval_every", "keep_every")
        yield from minimum_problems(1, self, "loop", "epochs", "threads", "log_every", "max_steps", "micro_batch_size")
        if len(set(self.loggers)) < len(self.loggers):
            yield Problem("loop.loggers", "a logger is named twice; name it once")
        if self.horizon < self.epochs:
            yield Problem("loop.schedule_epochs", f"{self.schedule_epochs} is shorter than loop.epochs={self.epochs}")
        if self.warmup_epochs >= self.horizon:
            reason = f"{self.warmup_epochs:g} leaves none of the {counted(self.horizon, 'epoch')} after the warm-up"
            yield Problem("loop.warmup_epochs", f"{reason}; type loop.warmup_epochs={min(self.horizon - 1, max(1, self.horizon // 10)):g}")
        yield from interval_problems("(0, 1)", self, "loop", "ema_decay")


@dataclass
class Run:
    seed: int = 0  # random seed of the weights, image order, crops, masks and everything else drawn in training
    data: Data = field(default_factory=Data)  # which images, how many of them, and their augmented views
    backbone: BackboneConfig = field(default_factory=BackboneConfig)  # the network
    objectives: Objectives = field(default_factory=Objectives)  # what it is trained for; the losses of several are summed
    optim: Optim = field(default_factory=Optim)  # the optimiser and its learning rate
    loop: Loop = field(default_factory=Loop)  # length and precision of training, and how often it evaluates and saves
    # name -> fields of an evaluator, such as {knn: {type: knn, k: 20}}; evaluators never change the weights
    evals: dict[str, Any] = runtime_field({})  # noqa: RUF009 - a new mapping each time
    init_from: Optional[str] = checkpoint()  # initial weights: a run folder, a file, timm:NAME, import:LAYOUT:FILE, an earlier stage
    # which of that run's weights; ema: those averaged by loop.ema_decay; teacher: its teacher's
    init_weights: Literal["model", "ema", "teacher"] = "model"
    init_objectives: list[str] = field(default_factory=list)  # objectives whose weights are loaded from there too, besides the backbone's
    init_except: list[str] = field(default_factory=list)  # name patterns of weights that may be missing, unexpected or of another shape


def active_views(run: Run) -> dict[str, View]:
    """Return the views that the active objectives read, by name, in the order of the fields.

    A view that no objective reads is not computed.
    """
    names = {view for objective in active(run.objectives).values() for view in objective.views()}
    return {name: view for name, view in run.data.views.enabled().items() if name in names}


def classifies(run: Run) -> bool:
    """Whether this Run predicts classes, so that it is evaluated."""
    return any(objective.classifies for objective in active(run.objectives).values())


def needs_labels(run: Run) -> bool:
    """Whether an image without a label is of no use to this Run."""
    return all(objective.needs_labels for objective in active(run.objectives).values())


def label_objectives(run: Run) -> tuple[str, ...]:
    """Return the names of the objectives whose losses need labels; the names of their loss terms begin with these names."""
    return tuple(name for name, objective in active(run.objectives).items() if objective.needs_labels)


def labels_part_of_batches(run: Run) -> bool:
    """Whether this Run learns from labels, and from images without a label too."""
    return reads_labels(run) and not needs_labels(run)


def labelled_rows(run: Run) -> int | None:
    """Return how many images of a global batch are at least to have labels.

    None if that is left to chance, or if all images need labels, or none does.
    """
    fraction = run.data.labelled_batch_fraction
    if fraction is None or not labels_part_of_batches(run):
        return None
    return math.ceil(round(fraction * run.optim.batch_size, 6))


def reads_labels(run: Run) -> bool:
    """Whether the training of this Run reads labels. If not, it makes no difference to hide some of them."""
    return bool(label_objectives(run))


def scaled_lr(optim: Optim, lr: float) -> float:
    """Return ``lr`` scaled by the rule for the global batch size B.

    The factors are B/256 (MAE), B/512 (DeiT), and those of LUT's code: sqrt(B)/4 in pretraining (``sqrt_batch``) and sqrt(B)/8 in
    fine-tuning (``sqrt_batch/8``).
    """
    size, root = optim.batch_size, optim.batch_size**0.5
    factors = {"none": 1.0, "batch/256": size / 256, "batch/512": size / 512, "sqrt_batch": root / 4, "sqrt_batch/8": root / 8}
    return lr * factors[optim.lr_rule]


def total_steps(run: Run, images: int) -> int:
    """Return the number of optimiser steps of a run: enough to train on each of ``images`` images ``epochs`` times, or ``max_steps``."""
    steps = math.ceil(round(run.loop.epochs * images / run.optim.batch_size, 6))
    return min(steps, run.loop.max_steps or steps)


def slices(run: Run, processes: int) -> int:
    """Return into how many equal slices a process splits its part of the batch, for one forward pass each.

    It is the fewest slices that are no larger than ``loop.micro_batch_size``.
    """
    local_batch = max(1, run.optim.batch_size // processes)
    largest = run.loop.micro_batch_size or local_batch
    return next(parts for parts in range(1, local_batch + 1) if local_batch % parts == 0 and local_batch // parts <= largest)


def uses_cuda_graph(run: Run, processes: int) -> bool:
    """Whether the passes of this Run on a GPU are recorded as a CUDA graph.

    This needs steps of one pass in one process, as the gradients of a graph are not added to others.
    """
    return run.loop.cuda_graph and processes == 1 and slices(run, processes) == 1


def inactive_fields(run: Run) -> dict[str, str]:
    """Return {dotted path of a field that has no effect in this Run: the setting that it belongs to}."""
    start = {} if run.init_from else dict.fromkeys(("init_weights", "init_objectives", "init_except"), "init_from")
    warmup = {} if run.loop.warmup_epochs else {"warmup_lr": "loop.warmup_epochs"}
    loop = {"warmup_prefix": f"optim.{FALLING}"} if run.optim.schedule == "constant" else {}
    data = run.data.inactive_fields() | ({} if classifies(run) else {"val_metric": "objectives.classify"})
    if not labels_part_of_batches(run):
        data["labelled_batch_fraction"] = "an objective that reads labels beside one that needs none"
    parts = {"": start, "optim.": run.optim.inactive_fields() | warmup, "loop.": loop, "data.": data}
    parts |= {f"data.views.{name}.": view.inactive_fields() for name, view in run.data.views.enabled().items()}
    parts |= {f"objectives.{name}.": objective.inactive_fields() for name, objective in active(run.objectives).items()}
    parts |= {f"{path}.": backbone.inactive_fields() for path, backbone in {"backbone": run.backbone, **teachers(run)}.items()}
    return {f"{prefix}{name}": owner for prefix, owners in parts.items() for name, owner in owners.items()}
