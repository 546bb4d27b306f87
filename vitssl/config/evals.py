"""The fields of ``evals``: named evaluators of a Run's weights. They never change the weights, and are no part of the Run's identity.

To add an evaluator, declare its dataclass here, add it to `KINDS`, and write a class of the same name without ``Config`` in
`vitssl/evaluators/<type>.py`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Optional

from vitssl.config.backbones import capabilities, family, num_intermediates
from vitssl.config.base import (
    ConfigError,
    Problem,
    closest,
    did_you_mean,
    inactive_problems,
    interval_problems,
    minimum_problems,
    positive_problems,
)
from vitssl.config.methods import flow
from vitssl.config.objectives import active
from vitssl.config.run import Run, classifies
from vitssl.words import listed

OWN_EVALS = ("test", "val", "test_ema", "selected", "selected_val")  # evaluators that a classifying Run has without any in ``evals``
# names that evaluators cannot have: in metrics.jsonl and done.json they stand for a classifying Run's own evaluators and other fields
RESERVED = (*OWN_EVALS, "test_best", "self", "event", "step", "time", "epoch")
# own evaluators on test images: the evaluator on held-out images at the same epoch, which selects among Runs; None: there is none
VAL_COUNTERPARTS = {"test": "val", "test_ema": None, "selected": "selected_val"}


@dataclass
class EvalConfig:
    """The fields that every evaluator has."""

    classifies: ClassVar[bool] = False  # whether it uses the Run's classifier
    metrics: ClassVar[tuple[str, ...]] = ("top1", "top5")  # the keys of metrics.METRICS that it computes
    type: str = "classification"  # classification, robustness, knn or linear; left out: as it is named, or else classification
    shards: Optional[str] = None  # shards of other images, of the same classes or some of them; null: the Run's
    split: str = "test"  # train, val (held out) or test, as data defines them; or the name of a split of the shards
    # ema: those averaged by loop.ema_decay; teacher: those of an objective's teacher; best: those of best.pt, at the end
    weights: Literal["model", "ema", "teacher", "best"] = "model"
    every: Optional[int] = None  # epochs between evaluations; null: loop.eval_every; 0: at the end only

    def defining(self) -> dict[str, Any]:
        """Return the fields that define the result: all but how often it is computed."""
        return {name: value for name, value in vars(self).items() if name != "every"}

    def problems(self, name: str, run: Run) -> Iterator[Problem]:
        """Yield what is wrong with the fields for ``run``; ``name`` is the dotted path of the evaluator, such as evals.knn."""
        yield from minimum_problems(0, self, name, "every")
        if self.weights == "ema" and run.loop.ema_decay is None:
            yield Problem(f"{name}.weights", "the Run has no averaged weights; set loop.ema_decay")
        if self.weights == "best" and not may_hold_out(run):
            without = "data.val_fraction or data.val_split" if classifies(run) else "objectives.classify"
            advice = "" if classifies(run) else f"; for a stage without it write {name}.weights: model there"
            yield Problem(f"{name}.weights", f"the Run has no best.pt without {without}{advice}")
        if self.weights == "best" and self.every:
            yield Problem(f"{name}.every", "which weights are the best is known at the end; leave it out")
        if self.weights == "teacher" and not has_teacher(run):
            yield Problem(f"{name}.weights", "no objective of the Run has a teacher that follows it")
        if self.classifies and not classifies(run):
            advice = f"{listed(FEATURE_KINDS)} look at its features"
            yield Problem(f"{name}.type", f"the Run has no classify objective, so it predicts no classes; {advice}")
        if self.classifies and self.weights == "teacher":
            alternative = f"{listed(FEATURE_KINDS)} can look at a teacher's features"
            yield Problem(f"{name}.weights", f"the classifier belongs to the student; {alternative}")


@dataclass
class ClassificationConfig(EvalConfig):
    """The Run's classifier: top-1, top-5 and loss, and after the last epoch the metrics that need all predictions.

    The latter are computed after other epochs too if `data.val_metric` is one of them.
    """

    classifies: ClassVar[bool] = True
    metrics: ClassVar[tuple[str, ...]] = ("top1", "top5", "balanced_accuracy", "macro_f1", "auc", "ece", "loss")
    type: str = "classification"
    # which classes it chooses from: all of the Run's, or only those of `shards`, as is usual for ImageNet-A and ImageNet-R
    classes: Literal["run", "shards"] = "run"

    def problems(self, name: str, run: Run) -> Iterator[Problem]:
        yield from super().problems(name, run)
        yield from inactive_problems(self, name, {} if self.shards else {"classes": "other shards"})


@dataclass
class RobustnessConfig(ClassificationConfig):
    """The Run's classifier on images that are altered after the centre crop, each always in the same way.

    The altered images are those of SSAT's Table 2 (columns -p) and of LUT's Table 5 (column Cocc).
    """

    type: str = "robustness"
    # a random perspective, which moves each corner of the image inwards by up to this part of half its side, and leaves black outside
    # (torchvision's distortion_scale); at most 0.6; SSAT: 0.5
    perspective: float = 0.0
    occlusion: float = 0.0  # side of a centred square in the mean colour / side of the image; LUT does not print its own, sweeps take 0.5
    seed: int = 0  # random seed of the perspectives

    def problems(self, name: str, run: Run) -> Iterator[Problem]:
        yield from super().problems(name, run)
        yield from interval_problems("[0, 0.6]", self, name, "perspective")  # more would fold some images over
        yield from interval_problems("[0, 1]", self, name, "occlusion", share=True)
        yield from minimum_problems(0, self, name, "seed")
        yield from inactive_problems(self, name, {} if self.perspective else {"seed": "a perspective"})
        size_px = run.data.image_size
        for field, pixels in (("perspective", int(self.perspective * (size_px // 2))), ("occlusion", round(self.occlusion * size_px))):
            if getattr(self, field) and not pixels:
                yield Problem(f"{name}.{field}", f"{getattr(self, field):g} is less than a pixel of images of {size_px} px; raise it")
        if not self.perspective and not self.occlusion:
            yield Problem(f"{name}.type", "nothing alters the images; set perspective or occlusion, for example perspective: 0.5")


@dataclass
class FeaturesConfig(EvalConfig):
    """The fields that evaluators of features have: they learn from the Run's labelled training images, without augmentation.

    If the Run's shards have no labels, they learn from the split train of the shards that they name.
    """

    metrics: ClassVar[tuple[str, ...]] = ("top1", "top5", "balanced_accuracy", "macro_f1")
    pool: Optional[Literal["cls", "reg", "mean", "cls+reg", "cls+mean"]] = (
        None  # null: the class token if there is one, else the mean of the patch tokens
    )
    blocks: int = 1  # concatenate the features of this many last blocks

    def check_images(self, labelled: int, learnt: bool) -> None:
        """Refuse images that the evaluator cannot learn from or be tested on.

        Args:
            labelled: how many training images have a label.
            learnt: whether some of the images to test on are among them.

        Raises:
            ConfigError: no training image has a label, or an evaluator cannot be tested on images that it has learnt.
        """
        if not labelled:
            raise ConfigError("there is no labelled training image to learn from", "type")

    def pooled_by(self, run: Run) -> str:
        return self.pool or ("cls" if "cls" in capabilities(run.backbone) else "mean")

    def problems(self, name: str, run: Run) -> Iterator[Problem]:
        yield from super().problems(name, run)
        yield from minimum_problems(1, self, name, "blocks")
        staged = len(family(run.backbone).widths) > 1
        if self.blocks > (1 if staged else num_intermediates(run.backbone)):
            yield Problem(
                f"{name}.blocks", f"{self.blocks} is more than the blocks of equal width that backbone.name={run.backbone.name} has"
            )
        for token in {"cls", "reg"} & set((self.pool or "").split("+")) - capabilities(run.backbone):
            yield Problem(f"{name}.pool", f"backbone.name={run.backbone.name} has no {token} token")


OWN_NEIGHBOUR = "each training image would be its own nearest neighbour; take val or test"


@dataclass
class KnnConfig(FeaturesConfig):
    """Weighted nearest neighbours by cosine similarity (Wu et al. 2018, as in DINO's code)."""

    type: str = "knn"
    k: int = 20  # number of neighbours
    temperature: float = 0.07  # neighbours are weighted by exp(similarity / temperature)

    def check_images(self, labelled: int, learnt: bool) -> None:
        super().check_images(labelled, learnt)
        if learnt:
            raise ConfigError(OWN_NEIGHBOUR, "split")
        if self.k > labelled:
            raise ConfigError(f"{self.k} is more than the {labelled} labelled training images", "k")

    def problems(self, name: str, run: Run) -> Iterator[Problem]:
        yield from super().problems(name, run)
        yield from minimum_problems(1, self, name, "k")
        yield from positive_problems(self, name, "temperature")
        if self.split == "train" and self.shards is None:
            yield Problem(f"{name}.split", OWN_NEIGHBOUR)


@dataclass
class LinearConfig(FeaturesConfig):
    """Logistic regression on standardised features, to its optimum."""

    metrics: ClassVar[tuple[str, ...]] = (*FeaturesConfig.metrics, "loss")
    type: str = "linear"
    l2: float = 1e-3  # L2 penalty: l2 / 2 times the weights' squared norm, added to the mean cross-entropy
    max_iter: int = 200  # maximum number of L-BFGS iterations

    def problems(self, name: str, run: Run) -> Iterator[Problem]:
        yield from super().problems(name, run)
        yield from minimum_problems(0, self, name, "l2")
        yield from minimum_problems(1, self, name, "max_iter")


KINDS: dict[str, type[EvalConfig]] = {
    "classification": ClassificationConfig, "robustness": RobustnessConfig, "knn": KnnConfig, "linear": LinearConfig,
}  # fmt: skip
FEATURE_KINDS = [name for name, kind in KINDS.items() if not kind.classifies]


def parse(name: str, fields: dict[str, Any], overrides: Sequence[str] = ()) -> EvalConfig:
    """Build an evaluator from its fields.

    Args:
        name: the name of the evaluator. If it is that of a type, it is the default of ``type``.
        fields: its fields; ``type`` decides which others there are.
        overrides: further fields, as ``key=value``.

    Raises:
        ConfigError: there is no such type or field; the error names it.
    """
    from vitssl.config.merging import merge

    if not isinstance(fields, dict):
        raise ConfigError(f"{fields!r} is not a set of fields; write {{type: knn}}, or null for off", f"evals.{name}")
    if name in KINDS:
        fields = {"type": name} | fields
    kind, given_names = fields.get("type", "classification"), [*fields, *(word.partition("=")[0] for word in overrides)]
    intended_type = _other_type(set(given_names))
    if "type" not in fields and intended_type:
        with_type = flow({name: {"type": intended_type, **fields}})
        raise ConfigError(f"the type is missing; write {shlex.quote(f'evals={with_type}')}", f"evals.{name}.type")
    if not isinstance(kind, str) or kind not in KINDS:
        suggestion = did_you_mean(closest(str(kind), list(KINDS)))
        raise ConfigError(f"{kind!r} is none of {', '.join(KINDS)}{suggestion}", f"evals.{name}.type")
    if intended_type and (foreign := [field for field in given_names if field not in vars(KINDS[kind]())]):
        raise ConfigError(f"a field of type {intended_type}, and the type is {kind}", f"evals.{name}.{foreign[0]}")
    return merge(KINDS[kind], fields, list(overrides), field=f"evals.{name}")


def is_of_classifier(name: str, fields: Any) -> bool:
    """Whether the evaluator ``name`` with these fields uses the Run's classifier; False for one that is off or has no known type."""
    if not isinstance(fields, dict):
        return False
    kind = fields.get("type", name if name in KINDS else "classification")
    return isinstance(kind, str) and kind in KINDS and KINDS[kind].classifies


def _other_type(fields: set[str]) -> str | None:
    """Return the first type that has all of ``fields``, if the default type does not; None if the default has them, or no type does."""
    if fields <= vars(KINDS["classification"]()).keys():
        return None
    return next((kind for kind in KINDS if fields <= vars(KINDS[kind]()).keys()), None)


def evals_of(run: Run) -> dict[str, EvalConfig]:
    """Return the evaluators in ``run.evals`` that are on, by name."""
    return {name: parse(name, fields) for name, fields in run.evals.items() if fields is not None}


def own_evals(run: Run, heldout: bool) -> dict[str, EvalConfig]:
    """Return the evaluators that a classifying Run has without any in ``run.evals``.

    They measure its accuracy on the test split, on held-out images if there are any (``heldout``), with averaged weights, and with the
    weights that the held-out images chose.
    """
    if not classifies(run):
        return {}
    defaults: dict[str, EvalConfig] = {"test": ClassificationConfig()}
    defaults |= {"val": ClassificationConfig(split="val")} if heldout else {}
    defaults |= {"test_ema": ClassificationConfig(weights="ema")} if run.loop.ema_decay is not None else {}
    best = {"selected": ClassificationConfig(weights="best"), "selected_val": ClassificationConfig(weights="best", split="val")}
    return defaults | (best if heldout else {})


def may_hold_out(run: Run) -> bool:
    """Whether a Run classifies and asks for held-out images, which choose an epoch."""
    return classifies(run) and bool(run.data.val_split or run.data.val_fraction)


def has_teacher(run: Run) -> bool:
    """Whether an objective of the Run has a teacher that follows the backbone, whose weights can be used."""
    return any(objective.has_teacher for objective in active(run.objectives).values())


def pending(run: Run, recorded: dict[str, Any]) -> dict[str, EvalConfig]:
    """Return the evaluators of ``run`` without a result for their present fields in ``recorded``, the content of ``evals.json``."""
    evals = evals_of(run)
    configs = {name: entry["config"] for name, entry in recorded.items() if name in evals}
    # fields that later versions added have their defaults
    full = {name: KINDS[config["type"]]().defining() | config for name, config in configs.items()}
    return {name: cfg for name, cfg in evals.items() if full.get(name) != cfg.defining()}


def problems(run: Run) -> Iterator[Problem]:
    try:
        evals = evals_of(run)
    except ConfigError as error:
        yield Problem(error.field, error.reason)
        return
    for name, evaluator in evals.items():
        if name in RESERVED or not name.isidentifier():
            yield Problem(f"evals.{name}", "this name is reserved or not a plain word; choose another")
        yield from evaluator.problems(f"evals.{name}", run)
