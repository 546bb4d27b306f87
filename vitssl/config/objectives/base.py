"""What every objective's config has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from vitssl.config.base import Problem, inactive_problems, less_than

if TYPE_CHECKING:
    from vitssl.config.run import Run

Pool = Literal["cls", "mean"]


def of_pool(pool: str) -> set[str]:
    """What it requires of a backbone."""
    return {"cls"} if pool == "cls" else set()


def negatives_problems(name: str, run: Run) -> Iterator[Problem]:
    """Of a loss that tells images of the batch apart."""
    if run.optim.batch_size < 2:
        yield Problem(name, "a batch of one image has no negatives; set optim.batch_size")
    if run.loop.micro_batch_size is not None and run.loop.micro_batch_size < run.optim.batch_size:
        yield Problem(name, "loop.micro_batch_size may split the batch, whose other images serve as negatives; leave it out")


@dataclass
class ObjectiveConfig:
    """What every objective has."""

    classifies: ClassVar[bool] = False  # predicts classes, so that the Run is evaluated on the test split
    needs_labels: ClassVar[bool] = False  # where no other objective is active, unlabelled images are left out
    has_teacher: ClassVar[bool] = False  # a moving average of the backbone, which is ``teacher.backbone`` in its module
    makes: ClassVar[tuple[str, ...]] = ()  # names of views that it makes, which the objectives behind it in the table may read
    smoke: ClassVar[dict[str, Any]] = {}  # fields of its tiny form, which `jobs/submit.py --smoke` trains
    weight: float = 1.0  # factor on its loss in the sum over objectives
    view: str = "main"  # name of the view (in data.views) that it reads

    def requires(self) -> set[str]:
        """The capabilities that it requires of a backbone."""
        return set()

    def views(self) -> list[str]:
        """The names of the views that it reads."""
        return [self.view]

    def reads_output(self) -> bool:
        """Does it read what comes out of the backbone's final norm? Where nothing does, the last layers would stay untrained."""
        return True

    def has_batch_norm(self) -> bool:
        """Has its module a batch norm, which is trained by the images of a forward pass?"""
        return False

    def inactive_fields(self) -> dict[str, str]:
        """{field that has no effect, given the others: the value of another field that it belongs to}."""
        return {}

    def written_out(self) -> set[str]:
        """The fields whose value is what their default, null, stands for."""
        return set()

    def problems(self, name: str, run: Run) -> Iterator[Problem]:
        """``name`` is the path of the field, such as objectives.mae."""
        yield from less_than(0, self, name, "weight")
        yield from inactive_problems(self, name, self.inactive_fields())
