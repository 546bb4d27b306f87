"""How long arms train: `length` of a sweep, and `equalize: macs | gpu_hours | kwh` of it or of a value of one of its axes, with which every
arm trains for what one arm's training costs.

The epochs of the other arms are multiplied by one factor, warm-up and schedule too, so that the stages of a chain keep their shares; the
last stage takes up what rounding to whole epochs leaves, as far as a tenth of its epochs, or one if that is more. Epochs inside of
objectives (those of Drloc's warm-up, of DINO's frozen last layer) stay.
Multiply-adds are counted; hours and energy are those that finished runs of the same architecture in other sweeps measured.
"""

from __future__ import annotations

from jobs.plan.cells import Cell, Stage, resources_of
from jobs.plan.launch import Launch
from jobs.plan.pace import key_of, measured
from jobs.plan.predict import costs_of
from jobs.plan.shards import expected_index, num_images
from jobs.plan.sweep import Equal, Spec
from vitssl.config import ConfigError, Loop

MAKES_UP = 0.1  # of its epochs: how far a chain's last stage may go from its share, or one epoch if that is more
TOLERANCE = 0.05  # of the reference's cost: what whole epochs may miss it by


def apply(spec: Spec, planned: list[Cell], launch: Launch) -> None:
    """Set the epochs: of all cells as long as was asked for, and of those that are to cost as much as the reference arm's cell at the same
    values of the axes so many as do.

    Raises:
        ConfigError: the reference does not run, a cost is not known, or no whole number of epochs comes near enough.
    """
    _lengthen(spec, planned)
    todo = [(cell, rule, _reference(spec, planned, cell, rule)) for cell in planned if (rule := spec.equal_of(cell.axes))]
    for quantity in dict.fromkeys(rule.quantity for _, rule, _ in todo):
        equal = [each for each in todo if each[1].quantity == quantity]
        costs = _Costs(quantity, spec, [cell for cell, *_ in equal], launch)
        amounts = [costs.of(reference) for *_, reference in equal]
        for (cell, rule, reference), amount in zip(equal, amounts, strict=True):
            if cell is not reference:
                _fit(cell, rule, amount, costs)


def _lengthen(spec: Spec, planned: list[Cell]) -> None:
    """Train every stage ``length`` times as long, in whole epochs, with its warm-up and schedule.

    It is the epochs up to a stage's end that are rounded, so that arms of as many epochs stay so, however many stages they have.
    """
    for cell in planned if spec.length != 1 else ():
        asked = trained = 0
        for stage in cell.stages:
            _refuse_steps(stage, f"length={spec.length:g}")
            asked += stage.run.loop.epochs
            epochs = max(1, round(spec.length * asked) - trained)
            trained += epochs
            _stretch(stage.run.loop, epochs)


def _refuse_steps(stage: Stage, what: str) -> None:
    """It must be the epochs that end a run."""
    if stage.run.loop.max_steps is not None:
        with stage.error_location():
            raise ConfigError(f"it ends a run before the epochs that {what} sets; leave it out", "loop.max_steps")


def _stretch(loop: Loop, epochs: float) -> None:
    stretch = epochs / loop.epochs
    loop.epochs, loop.warmup_epochs = epochs, loop.warmup_epochs * stretch
    if loop.schedule_epochs is not None:
        loop.schedule_epochs = max(epochs, round(loop.schedule_epochs * stretch))


def _reference(spec: Spec, planned: list[Cell], cell: Cell, rule: Equal) -> Cell:
    for other in planned:
        if other.arm == rule.reference and other.axes == cell.axes:
            return other
    reason = f"{rule.reference}, whose cost the other arms are to match, is not selected; select it too, or set equal_to to another arm"
    raise ConfigError(reason, "equalize", spec.place("equalize"))


def _fit(cell: Cell, rule: Equal, amount: float, costs: _Costs) -> None:
    """Scale the epochs of a cell's stages so that they cost ``amount`` together."""
    factor, left = amount / costs.of(cell), amount
    for stage in cell.stages:
        loop, of_an_epoch = stage.run.loop, costs.of_an_epoch(cell.arm, stage)
        epochs = share = factor * loop.epochs
        if stage is cell.stages[-1]:  # where more than rounding to epochs is left, costs stay apart: shares come first
            slack = max(1.0, MAKES_UP * share)
            epochs = min(max(left / of_an_epoch, share - slack), share + slack)
        epochs = max(1, round(epochs))
        left -= epochs * of_an_epoch
        _stretch(loop, epochs)
    if abs(left) > TOLERANCE * amount:
        missed = f"rounding to whole epochs leaves the {rule.quantity} {abs(left) / amount:.0%} away from {rule.reference}'s"
        advice = "rounding matters less with more loop.epochs, or if equal_to names a costlier arm"
        raise ConfigError(f"{missed}; {advice}", "loop.epochs", stage.where)


class _Costs:
    """What training costs, in one quantity."""

    def __init__(self, quantity: str, spec: Spec, planned: list[Cell], launch: Launch):
        self.quantity, self.spec, self.launch = quantity, spec, launch
        runs = [_checked(stage).run for cell in planned for stage in cell.stages]
        counted = costs_of(runs, launch) if quantity == "macs" else []
        self._macs = {id(run): cost["macs_train_step"] for run, cost in zip(runs, counted, strict=bool(counted))}
        # not by the sweep's own runs: the same command again would plan other epochs
        self._paces = measured(launch.sweep.parent, but=launch.sweep) if quantity != "macs" else {}

    def of(self, cell: Cell) -> float:
        return sum(stage.run.loop.epochs * self.of_an_epoch(cell.arm, stage) for stage in cell.stages)

    def of_an_epoch(self, arm: str, stage: Stage) -> float:
        return num_images(stage.run) * (self._macs[id(stage.run)] if self.quantity == "macs" else self._measured(arm, stage))

    def _measured(self, arm: str, stage: Stage) -> float:
        pace = self._paces.get(key_of(stage.run, resources_of(self.spec, arm), self.launch))
        of_an_image = pace and (1 / pace.images_per_s if self.quantity == "gpu_hours" else pace.kwh_per_image)
        if of_an_image is None:
            unknown = f"no finished run of another sweep in {self.launch.sweep.parent} has measured the cost of this architecture"
            advice = "first run it without equalize under another name (equalize=null name=pace), or use macs"
            raise ConfigError(f"{unknown}; {advice}", "equalize", stage.where)
        return of_an_image


def _checked(stage: Stage) -> Stage:
    _refuse_steps(stage, "equalize")
    with stage.error_location():
        if expected_index(stage.run.data) is None:
            raise ConfigError("equalize needs its number of images; build it first (vitssl shards build)", "data.shards")
    return stage
