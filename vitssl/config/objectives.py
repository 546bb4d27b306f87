"""The fields of ``objectives``: one dataclass each, with what it asks of a Run.

An objective's class is named as its field, in `vitssl/objectives/<field>.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Optional

from vitssl.config.backbones import Backbone, family, size_of, stage_strides_px, stride_px
from vitssl.config.base import checkpoint, later, less_than, unread_problems
from vitssl.config.data import view_px

if TYPE_CHECKING:
    from vitssl.config.run import Run

Pool = Literal["cls", "mean"]


def _of_pool(pool: str) -> set[str]:
    return {"cls"} if pool == "cls" else set()


def horizon_epochs(run: Run) -> int:
    """Epochs over which schedules extend."""
    return run.loop.schedule_epochs or run.loop.epochs


@dataclass
class Objective:
    """What every objective has."""

    classifies: ClassVar[bool] = False  # predicts classes, so that the Run is evaluated on the test split
    needs_labels: ClassVar[bool] = False  # where no other objective is active, unlabelled images are left out
    weight: float = 1.0
    view: str = "main"

    def needs(self) -> set[str]:
        """What a backbone must offer."""
        return set()

    def views(self) -> list[str]:
        """The names of the views that it reads."""
        return [self.view]

    def reads_output(self) -> bool:
        """Does it read what comes out of the backbone's final norm? Where nothing does, the last layers would stay untrained."""
        return True

    def unread(self) -> dict[str, str]:
        """{field that nothing reads as the other fields are: the value of another field that it belongs to}."""
        return {}

    def problems(self, name: str, run: Run) -> Iterator[str]:
        """``name`` is the path of the field, such as objectives.mae."""
        yield from less_than(0, self, name, "weight")
        yield from unread_problems(self, name, self.unread())


@dataclass
class Classify(Objective):
    classifies: ClassVar[bool] = True
    needs_labels: ClassVar[bool] = True
    pool: Pool = "cls"
    label_smoothing: float = 0.0
    init_std: Optional[float] = None  # of the head's weights at the start: 0 (timm 0.4), 2e-5 (MAE), 0.01 (probes); None: as backbone.init

    def needs(self) -> set[str]:
        return _of_pool(self.pool)

    def problems(self, name: str, run: Run) -> Iterator[str]:
        yield from super().problems(name, run)
        if not 0 <= self.label_smoothing < 1:
            yield f"{name}.label_smoothing: {self.label_smoothing} is not in [0, 1)"
        yield from less_than(0, self, name, "init_std")


@dataclass
class Mae(Objective):
    """MAE as released; with ``hide: mask``, ``decoder: pixel_shuffle`` and ``loss: l1`` SimMIM; with ``fuse`` ConvMAE."""

    mask_ratio: float = 0.75
    hide: Literal["drop", "mask"] = "drop"  # hidden tokens are dropped, or replaced by a learned one
    decoder: Literal["transformer", "pixel_shuffle"] = "transformer"
    decoder_dim: int = 512  # these three: of the transformer
    decoder_depth: int = 8
    decoder_heads: int = 16
    fuse: bool = False  # earlier stages' features join the last one's before the decoder (ConvMAE)
    loss: Literal["l2", "l1"] = "l2"
    normalize_targets: bool = False  # per-patch normalised pixels

    def needs(self) -> set[str]:
        return {"keep"} if self.hide == "drop" else {"mask"}

    def unread(self) -> dict[str, str]:
        decoder = ("decoder_dim", "decoder_depth", "decoder_heads")
        return dict.fromkeys(decoder, "decoder: transformer") if self.decoder == "pixel_shuffle" else {}

    def problems(self, name: str, run: Run) -> Iterator[str]:
        yield from super().problems(name, run)
        if not 0 < self.mask_ratio < 1:
            yield f"{name}.mask_ratio: {self.mask_ratio} is not between 0 and 1"
        tokens = (view_px(run.data, self.view) // stride_px(run.backbone)) ** 2
        if int(tokens * (1 - self.mask_ratio)) < 1:
            yield f"{name}.mask_ratio: {self.mask_ratio} keeps none of the {tokens} tokens; lower it or use smaller patches"
        if self.fuse and len(size_of(run.backbone).depths) < 2:
            yield f"{name}.fuse: {run.backbone.name} has no earlier stages to fuse"
        yield from self._decoder_problems(name)

    def _decoder_problems(self, name: str) -> Iterator[str]:
        if self.decoder == "pixel_shuffle":
            if self.hide == "drop":
                yield f"{name}.decoder: pixel_shuffle decodes every token, and hide=drop drops the hidden ones; set {name}.hide=mask"
            return
        yield from less_than(1, self, name, "decoder_dim", "decoder_depth", "decoder_heads")
        if self.decoder_dim % self.decoder_heads or self.decoder_dim % 4:
            yield f"{name}.decoder_dim: {self.decoder_dim} must be a multiple of decoder_heads={self.decoder_heads} and of 4"


@dataclass
class Drloc(Objective):
    """Dense relative localisation (Liu et al. 2021); the defaults are the paper's text."""

    pairs: int = 64  # per image
    hidden_dim: int = 512  # of the MLP
    loss: Literal["l1", "ce", "cbr"] = "l1"  # regression, classes, cycle-back regression
    target: Literal["normalized", "raw"] = "normalized"  # of l1: offsets divided by the grid's side (paper), or in tokens (code)
    signed: bool = False  # offsets keep their sign
    reduction: Literal["sum", "mean"] = "sum"  # of l1, over the two coordinates: Eq. 2, or the code
    pooling: Literal["none", "2x2", "3x3"] = "none"  # of the grid: the paper's, or the code's 3x3 with stride 2 and padding
    features: Literal["raw", "normed"] = "raw"  # the last block's output, before or after the final norm
    multi_scale: bool = False  # a head for the last block of every stage; the code reads after patch merging
    num_classes: Optional[int] = None  # per axis, for ce and cbr; None: what the grid needs
    warmup_epochs: float = 0.0  # the weight rises linearly from 0
    end_epoch: Optional[float] = None  # after the warm-up the weight falls linearly to 0 at this epoch; None: it stays

    def reads_output(self) -> bool:
        return self.features == "normed"

    def unread(self) -> dict[str, str]:
        if self.loss == "l1":
            return {"num_classes": "loss: ce or cbr"}
        return dict.fromkeys(("target", "reduction"), "loss: l1")

    def problems(self, name: str, run: Run) -> Iterator[str]:
        yield from super().problems(name, run)
        yield from less_than(1, self, name, "pairs", "hidden_dim", "num_classes")
        yield from less_than(0, self, name, "warmup_epochs")
        if self.end_epoch is not None and self.end_epoch <= self.warmup_epochs:
            yield f"{name}.end_epoch: {self.end_epoch:g} is not after warmup_epochs={self.warmup_epochs:g}"
        if self.multi_scale and len(size_of(run.backbone).depths) < 2:
            yield f"{name}.multi_scale: {run.backbone.name} has one stage only"
        if self.multi_scale and self.features == "normed":
            yield f"{name}.features: the final norm does not fit earlier stages; with multi_scale set raw"
        yield from self._grid_problems(name, run)

    def _grid_problems(self, name: str, run: Run) -> Iterator[str]:
        strides = stage_strides_px(run.backbone) if self.multi_scale else [stride_px(run.backbone)]
        for stride in strides:
            side = view_px(run.data, self.view) // stride
            if self.pooling == "2x2" and side % 2:
                yield f"{name}.pooling: 2x2 does not divide the {side} x {side} tokens"
            if self.pooled(side) < 2:
                yield f"{name}: a grid of one token has no pairs; {view_px(run.data, self.view)} px are {side} x {side} tokens"
            if self.num_classes is not None and self.num_classes < self.num_offsets(side):
                yield f"{name}.num_classes: {self.num_classes} is less than the {self.num_offsets(side)} offsets of the grid"

    def pooled(self, side: int) -> int:
        """The side of the grid after pooling."""
        return {"none": side, "2x2": side // 2, "3x3": (side + 1) // 2}[self.pooling]

    def num_offsets(self, side: int) -> int:
        """How many different offsets of an axis there are on a grid of that side before pooling."""
        return 2 * self.pooled(side) - 1 if self.signed else self.pooled(side)


@dataclass
class Simclr(Objective):
    """NT-Xent between two views of every image (Chen et al. 2020)."""

    second: str = "second"  # the other view; `view` itself where it has a count of 2
    pool: Pool = "cls"
    # The head. The paper: one hidden layer, as wide as its ResNet-50's output. Google's code: layers 3, hidden_dim the backbone's width,
    # last_batch_norm. These defaults, the paper's form with a batch norm after the hidden layer, are ours.
    hidden_dim: int = 2048
    out_dim: int = 128
    layers: int = 2
    batch_norm: bool = True  # after the hidden layers
    last_batch_norm: bool = later(False)  # after the last one too; neither has a bias
    temperature: float = 0.1

    def needs(self) -> set[str]:
        return _of_pool(self.pool)

    def views(self) -> list[str]:
        return list(dict.fromkeys([self.view, self.second]))

    def problems(self, name: str, run: Run) -> Iterator[str]:
        yield from super().problems(name, run)
        yield from less_than(1, self, name, "hidden_dim", "out_dim", "layers")
        if self.temperature <= 0:
            yield f"{name}.temperature: {self.temperature} is not positive"
        if run.optim.batch_size < 2:
            yield f"{name}: a batch of one image has no negatives; set optim.batch_size"
        copies = 2 if self.second == self.view else 1
        for view in self.views():
            if (count := getattr(run.data.views, view).count) != copies:
                yield f"{name}: data.views.{view}.count is {count}; two views are compared, so that it must be {copies}"
        if run.loop.micro_batch_size is not None and run.loop.micro_batch_size < run.optim.batch_size:
            yield f"{name}: loop.micro_batch_size may split the batch, whose images are the negatives; leave it out"


@dataclass
class Dino(Objective):
    """Self-distillation with multi-crop (Caron et al. 2021); the defaults are its ViT-S/16's."""

    second: str = "second"  # the other global view
    local: Optional[str] = "local"  # view of small crops, for the student only; null: none
    pool: Pool = "cls"
    hidden_dim: int = 2048
    bottleneck_dim: int = 256
    out_dim: int = 65536  # prototypes
    layers: int = 3
    batch_norm: bool = False  # of the head, over all crops together; the teacher takes running averages (the code: its batch's)
    norm_last_layer: bool = True  # the prototypes' lengths are fixed
    freeze_last_layer_epochs: float = 1.0
    student_temperature: float = 0.1
    teacher_temperature: float = 0.04
    warmup_teacher_temperature: float = 0.04
    warmup_teacher_temperature_epochs: float = 0.0
    center_momentum: float = 0.9
    teacher_momentum: float = 0.996  # rises to 1 by a cosine

    def needs(self) -> set[str]:
        return _of_pool(self.pool)

    def views(self) -> list[str]:
        return [self.view, self.second, *([self.local] if self.local else [])]

    def problems(self, name: str, run: Run) -> Iterator[str]:
        yield from super().problems(name, run)
        yield from less_than(1, self, name, "hidden_dim", "bottleneck_dim", "out_dim", "layers")
        yield from less_than(0, self, name, "freeze_last_layer_epochs", "warmup_teacher_temperature_epochs")
        for key in ("student_temperature", "teacher_temperature", "warmup_teacher_temperature"):
            if getattr(self, key) <= 0:
                yield f"{name}.{key}: {getattr(self, key)} is not positive"
        for key in ("center_momentum", "teacher_momentum"):
            if not 0 <= getattr(self, key) <= 1:
                yield f"{name}.{key}: {getattr(self, key)} is not in [0, 1]"
        if len(set(self.views())) < len(self.views()):
            yield f"{name}: its views must be different ones, not {', '.join(self.views())}"


@dataclass
class Locality(Objective):
    """Features follow those of a small convolutional teacher (Li et al. 2022, locality guidance)."""

    teacher: Optional[str] = checkpoint()
    teacher_backbone: Backbone = field(default_factory=lambda: Backbone(name="resnet56"))  # as in the teacher's own run
    teacher_px: int = 32  # the view is shrunk to this for the teacher
    blocks: list[int] = field(default_factory=lambda: [0, 6, 11])  # of the student, from 0
    stages: list[int] = field(default_factory=lambda: [0, 1, 2])  # of the teacher, one for each block

    def reads_output(self) -> bool:
        return False

    def problems(self, name: str, run: Run) -> Iterator[str]:
        yield from super().problems(name, run)
        if self.teacher is None:
            yield f"{name}.teacher: name the trained teacher: an earlier stage of the arm, a run folder"
        yield from less_than(1, self, name, "teacher_px")
        for problem in self.teacher_backbone.problems([(f"{name}.teacher_px", self.teacher_px)]):
            yield f"{name}.teacher_{problem}"
        if len(self.blocks) != len(self.stages) or not self.blocks:
            yield f"{name}.stages: {self.stages} are not as many as blocks={self.blocks}"
        for key, backbone in (("blocks", run.backbone), ("stages", self.teacher_backbone)):
            asked, ends = getattr(self, key), num_ends(backbone)
            if any(not 0 <= end < ends for end in asked):
                yield f"{name}.{key}: {asked} are not all in 0 to {ends - 1}, what {backbone.name} has"


def num_ends(backbone: Backbone) -> int:
    """How many places of a backbone give features: the blocks of a plain one, the stages of a staged one."""
    depths = size_of(backbone).depths
    return depths[0] if len(family(backbone).widths) == 1 else len(depths)


@dataclass
class Objectives:
    """One optional field per objective; null is off."""

    classify: Optional[Classify] = None
    mae: Optional[Mae] = None
    simclr: Optional[Simclr] = None
    dino: Optional[Dino] = None
    drloc: Optional[Drloc] = None
    locality: Optional[Locality] = None


def active(objectives: Objectives) -> dict[str, Any]:
    """The objectives that are on, by name, in the order of the fields."""
    return {f.name: v for f in dataclasses.fields(objectives) if (v := getattr(objectives, f.name)) is not None}
