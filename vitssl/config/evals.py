"""The fields of ``evals``: named evaluators of a Run's weights. They never change these, and are no part of its identity.

To add one: its dataclass here with a line in `KINDS`, and a class of the same name without ``Config`` in
`vitssl/evaluators/<type>.py`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Optional

from vitssl.config.backbones import capabilities, family, num_intermediates
from vitssl.config.base import ConfigError, Problem, closest, did_you_mean, less_than, not_positive
from vitssl.config.methods import flow
from vitssl.config.objectives import active
from vitssl.config.run import Run, classifies
from vitssl.words import listed

OWN = ("test", "val", "test_ema", "selected", "selected_val")  # what a classifying Run is evaluated by anyway
# in metrics.jsonl and done.json these names are taken, by what a classifying Run is evaluated by anyway and by other fields
RESERVED = (*OWN, "test_best", "self", "event", "step", "time", "epoch")
# of a classifying Run's own evaluators those that look at the test images, and which choose among Runs for each: at the same epoch
OF_TEST = {"test": "val", "test_ema": None, "selected": "selected_val"}


@dataclass(frozen=True)
class Metric:
    """A number that evaluators give: its name in reports, its unit, and which of two values is the better one."""

    name: str
    unit: str = "%"
    lower_is_better: bool = False

    @property
    def title(self) -> str:
        """Name and unit, and an arrow where lower is better."""
        return " ".join(filter(None, (self.name, self.unit, "↓" if self.lower_is_better else "")))


FIRST = 5  # classes among which top-5 looks for the right one
BINS = 15  # of confidence, over which the calibration error is averaged
METRICS = {
    "top1": Metric("top-1"),
    "top5": Metric("top-5"),
    "balanced_accuracy": Metric("balanced accuracy"),
    "macro_f1": Metric("macro F1"),
    "auc": Metric("AUC"),
    "ece": Metric("ECE", lower_is_better=True),
    "loss": Metric("NLL", unit="", lower_is_better=True),
}
EARLY = ("top1", "top5", "loss")  # those that a classifier is evaluated by during training too; the others need all predictions at once
METRICS_ALSO_CALLED = {"accuracy": "top1", "acc": "top1", "acc1": "top1", "acc5": "top5", "f1": "macro_f1", "auroc": "auc", "nll": "loss"}


def metric_of(key: str) -> Metric:
    """How a metric is shown, also one that another version gave."""
    return METRICS.get(key, Metric(key, unit=""))


@dataclass
class EvalConfig:
    """What every evaluator has."""

    classifies: ClassVar[bool] = False  # by the Run's classifier
    metrics: ClassVar[tuple[str, ...]] = ("top1", "top5")  # those of METRICS that it gives
    type: str = "classification"  # classification, knn or linear; left out: as it is named, or else classification
    shards: Optional[str] = None  # shards of other images, of the same classes or some of them; null: the Run's
    split: str = "test"  # train, val (held out) or test, as data defines them; or the name of a split of the shards
    # ema: those averaged by loop.ema_decay; teacher: those of an objective's teacher; best: those of best.pt, at the end
    weights: Literal["model", "ema", "teacher", "best"] = "model"
    every: Optional[int] = None  # epochs between evaluations; null: loop.eval_every; 0: at the end only

    def defining(self) -> dict[str, Any]:
        """The fields that define the result."""
        return {name: value for name, value in vars(self).items() if name != "every"}

    def problems(self, name: str, run: Run) -> Iterator[Problem]:
        """``name`` is the path of the field, such as evals.knn."""
        yield from less_than(0, self, name, "every")
        if self.weights == "ema" and run.loop.ema_decay is None:
            yield Problem(f"{name}.weights", "the Run has no averaged weights; set loop.ema_decay")
        if self.weights == "best" and not may_hold_out(run):
            yield Problem(
                f"{name}.weights", "the Run has no best.pt; it needs objectives.classify, and data.val_fraction or data.val_split"
            )
        if self.weights == "best" and self.every:
            yield Problem(f"{name}.every", "which weights are the best is known at the end; leave it out")
        if self.weights == "teacher" and not has_teacher(run):
            yield Problem(f"{name}.weights", "no objective of the Run has a teacher that follows it")
        if self.classifies and not classifies(run):
            advice = f"{listed(OF_FEATURES)} look at its features"
            yield Problem(f"{name}.type", f"the Run has no classify objective, so it predicts no classes; {advice}")
        if self.classifies and self.weights == "teacher":
            able = f"{listed(OF_FEATURES)} can look at a teacher's features"
            yield Problem(f"{name}.weights", f"the classifier belongs to the student; {able}")


@dataclass
class ClassificationConfig(EvalConfig):
    """The Run's classifier: top-1, top-5, loss, and after the last epoch, or where `data.val_metric` is one of them, the metrics that need
    all predictions."""

    classifies: ClassVar[bool] = True
    metrics: ClassVar[tuple[str, ...]] = ("top1", "top5", "balanced_accuracy", "macro_f1", "auc", "ece", "loss")
    type: str = "classification"


@dataclass
class FeaturesConfig(EvalConfig):
    """What evaluators of features have: they learn from the Run's labelled training images, without augmentation."""

    pool: Optional[Literal["cls", "reg", "mean", "cls+reg", "cls+mean"]] = (
        None  # null: the class token if there is one, else the mean of the patch tokens
    )
    blocks: int = 1  # concatenate the features of this many last blocks

    def check_images(self, labelled: int, learnt: bool) -> None:
        """Refuse images that it cannot learn from, or be tested on.

        Args:
            labelled: how many training images have a label.
            learnt: some of those that it is tested on are among them.

        Raises:
            ConfigError: none has one; or what follows from ``learnt`` for an evaluator.
        """
        if not labelled:
            raise ConfigError("there is no labelled training image to learn from", "type")

    def pooled_by(self, run: Run) -> str:
        return self.pool or ("cls" if "cls" in capabilities(run.backbone) else "mean")

    def problems(self, name: str, run: Run) -> Iterator[Problem]:
        yield from super().problems(name, run)
        yield from less_than(1, self, name, "blocks")
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
        yield from less_than(1, self, name, "k")
        yield from not_positive(self, name, "temperature")
        if self.split == "train" and self.shards is None:
            yield Problem(f"{name}.split", OWN_NEIGHBOUR)


@dataclass
class LinearConfig(FeaturesConfig):
    """Logistic regression on standardised features, to its optimum."""

    metrics: ClassVar[tuple[str, ...]] = ("top1", "top5", "loss")
    type: str = "linear"
    l2: float = 1e-3  # L2 penalty: l2 / 2 times the weights' squared norm, added to the mean cross-entropy
    max_iter: int = 200  # maximum number of L-BFGS iterations

    def problems(self, name: str, run: Run) -> Iterator[Problem]:
        yield from super().problems(name, run)
        yield from less_than(0, self, name, "l2")
        yield from less_than(1, self, name, "max_iter")


KINDS: dict[str, type[EvalConfig]] = {"classification": ClassificationConfig, "knn": KnnConfig, "linear": LinearConfig}
OF_FEATURES = [name for name, kind in KINDS.items() if not kind.classifies]


def parse(name: str, fields: dict[str, Any], overrides: Sequence[str] = ()) -> EvalConfig:
    """An evaluator from its fields, of which ``type`` says which others there are, and from further ones as ``key=value``; one that is
    named as a type is of that type.

    Raises:
        ConfigError: no such type or field; naming it.
    """
    from vitssl.config.merging import merge

    if not isinstance(fields, dict):
        raise ConfigError(f"{fields!r} is not a set of fields; write {{type: knn}}, or null for off", f"evals.{name}")
    if name in KINDS:
        fields = {"type": name} | fields
    kind, typed = fields.get("type", "classification"), [*fields, *(word.partition("=")[0] for word in overrides)]
    other = _other_type(set(typed))
    if "type" not in fields and other:
        whole = flow({name: {"type": other, **fields}})
        raise ConfigError(f"the type is missing; write {shlex.quote(f'evals={whole}')}", f"evals.{name}.type")
    if not isinstance(kind, str) or kind not in KINDS:
        meant = did_you_mean(closest(str(kind), list(KINDS)))
        raise ConfigError(f"{kind!r} is none of {', '.join(KINDS)}{meant}", f"evals.{name}.type")
    if other and (odd := [field for field in typed if field not in vars(KINDS[kind]())]):
        raise ConfigError(f"a field of type {other}, and the type is {kind}", f"evals.{name}.{odd[0]}")
    return merge(KINDS[kind], fields, list(overrides), field=f"evals.{name}")


def _other_type(fields: set[str]) -> str | None:
    """The type that was meant where fields are not those of the default: one that has them."""
    if fields <= vars(KINDS["classification"]()).keys():
        return None
    return next((kind for kind in KINDS if fields <= vars(KINDS[kind]()).keys()), None)


def evals_of(run: Run) -> dict[str, EvalConfig]:
    """The evaluators that are on, by name."""
    return {name: parse(name, fields) for name, fields in run.evals.items() if fields is not None}


def own_evals(run: Run, heldout: bool) -> dict[str, EvalConfig]:
    """What a classifying Run is evaluated by anyway: its accuracy on the test split, on held-out images, of averaged weights, and of those
    that held-out images chose."""
    if not classifies(run):
        return {}
    defaults: dict[str, EvalConfig] = {"test": ClassificationConfig()}
    defaults |= {"val": ClassificationConfig(split="val")} if heldout else {}
    defaults |= {"test_ema": ClassificationConfig(weights="ema")} if run.loop.ema_decay is not None else {}
    best = {"selected": ClassificationConfig(weights="best"), "selected_val": ClassificationConfig(weights="best", split="val")}
    return defaults | (best if heldout else {})


def may_hold_out(run: Run) -> bool:
    """Are there held-out images that choose an epoch?"""
    return classifies(run) and bool(run.data.val_split or run.data.val_fraction)


def has_teacher(run: Run) -> bool:
    """Does a teacher follow the backbone, so that its weights can be taken?"""
    return any(objective.has_teacher for objective in active(run.objectives).values())


def pending(run: Run, recorded: dict[str, Any]) -> dict[str, EvalConfig]:
    """The configured evaluators whose results are not in a run folder's ``evals.json``, or are of other fields there."""
    evals = evals_of(run)
    configs = {name: entry["config"] for name, entry in recorded.items() if name in evals}
    full = {name: KINDS[config["type"]]().defining() | config for name, config in configs.items()}  # fields that came later: the defaults
    return {name: cfg for name, cfg in evals.items() if full.get(name) != cfg.defining()}


def metric_parts(metric: str) -> tuple[str, str]:
    """Evaluator and metric of ``knn/top1``; ``top1`` stands for test/top1, ``top1_ema`` for test_ema/top1; ``selected/top1`` is of the
    epoch that held-out images choose.

    Raises:
        ConfigError: no evaluator has such a metric.
    """
    evaluator, _, name = metric.rpartition("/")
    if not evaluator:
        evaluator, name = ("test_ema", name.removesuffix("_ema")) if name.endswith("_ema") else ("test", name)
    if name not in METRICS:
        near = [METRICS_ALSO_CALLED[name.lower()]] if name.lower() in METRICS_ALSO_CALLED else closest(name, list(METRICS))
        others = "nor top1_ema, nor an evaluator's, such as selected/top1 or knn/top1"
        raise ConfigError(f"{metric!r} is none of {', '.join(METRICS)}, {others}{did_you_mean(near)}")
    return evaluator, name


def measured_by(metric: str) -> Metric:
    """What ``knn/top1`` measures, named after its evaluator too where that is not the accuracy on the test split."""
    evaluator, key = metric_parts(metric)
    return METRICS[key] if evaluator == "test" else replace(METRICS[key], name=f"{evaluator} {METRICS[key].name}")


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
