"""The base class of the objectives' configs, and checks that they share."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from vitssl.config.base import Problem, inactive_problems, minimum_problems

if TYPE_CHECKING:
    from vitssl.config.run import Run

Pool = Literal["cls", "mean"]


def pool_requirements(pool: str) -> set[str]:
    """Return the capabilities of a backbone that a pooled output requires."""
    return {"cls"} if pool == "cls" else set()


def negatives_problems(name: str, run: Run) -> Iterator[Problem]:
    """Yield the problems of a loss at ``name`` that tells the images of a batch apart."""
    if run.optim.batch_size < 2:
        yield Problem(name, "a batch of one image has no negatives; set optim.batch_size")
    if run.loop.micro_batch_size is not None and run.loop.micro_batch_size < run.optim.batch_size:
        yield Problem(name, "loop.micro_batch_size may split the batch, whose other images serve as negatives; leave it out")


def two_views_problems(name: str, run: Run, views: Collection[str]) -> Iterator[Problem]:
    """Yield the problems of an objective at ``name`` that compares two views of an image: ``views``, or two copies of the only one."""
    copies = 3 - len(views)
    for view in views:
        if (count := getattr(run.data.views, view).count) != copies:
            yield Problem(name, f"data.views.{view}.count is {count}; two views are compared, so it must be {copies}")


def repeated_view_problems(name: str, views: list[str]) -> Iterator[Problem]:
    """Yield the problem of an objective at ``name`` that compares views of which two are the same."""
    if len(set(views)) < len(views):
        yield Problem(name, f"its views must all be different, not {', '.join(views)}")


@dataclass
class ObjectiveConfig:
    """The fields that every objective has, and what it requires of a Run."""

    classifies: ClassVar[bool] = False  # whether it predicts classes, so that the Run is evaluated on the test split
    needs_labels: ClassVar[bool] = False  # if all active objectives need them, unlabelled images are left out
    has_teacher: ClassVar[bool] = False  # a moving average of the backbone, which is ``teacher.backbone`` in its module
    # whether it tells the views of one image from others', by their colours if these stay unchanged
    needs_colours: ClassVar[bool] = False
    makes: ClassVar[tuple[str, ...]] = ()  # names of views that it makes, which objectives after it in `Objectives` may read
    smoke: ClassVar[dict[str, Any]] = {}  # fields of its tiny form that `jobs/submit.py --smoke` trains
    weight: float = 1.0  # factor on its loss in the sum over objectives
    view: str = "main"  # name of the view (in data.views) that it reads

    def requires(self) -> set[str]:
        """Return the capabilities that the objective requires of a backbone."""
        return set()

    def views(self) -> list[str]:
        """Return the names of the views that the objective reads."""
        return [self.view]

    def reads_output(self) -> bool:
        """Whether it reads the output of the backbone's final norm. If no objective does, the last layers would stay untrained."""
        return True

    def has_batch_norm(self) -> bool:
        """Whether its module has a batch norm, whose statistics are those of the images of one forward pass."""
        return False

    def inactive_fields(self) -> dict[str, str]:
        """Return {field that has no effect, given the others: the setting of another field that it belongs to}."""
        return {}

    def explicit_defaults(self) -> set[str]:
        """Return the fields whose value is the one that their default, null, stands for."""
        return set()

    def problems(self, name: str, run: Run) -> Iterator[Problem]:
        """Yield what is wrong with the fields for ``run``; ``name`` is the dotted path of the objective, such as objectives.mae."""
        yield from minimum_problems(0, self, name, "weight")
        yield from inactive_problems(self, name, self.inactive_fields())
