"""How long arms train: a sweep's `length`, and `equalize: macs | gpu_hours | kwh`, with which all arms' trainings cost the same.

`equalize` is set for the whole sweep or by a value of one of its axes; one arm is the reference. The epochs of all stages of another arm
are multiplied by one factor, with warm-up and schedule, so that the stages of a chain keep their shares. The last stage makes up for what
rounding to whole epochs leaves, by at most a tenth of its epochs, or by one epoch if that is more. Epochs inside objectives (Drloc's
warm-up, DINO's frozen last layer) do not change. Multiply-adds are counted; hours and energy are what finished runs of the same
architecture in other sweeps measured.
"""

from __future__ import annotations

from jobs.plan.cells import Cell, Stage, resources_of
from jobs.plan.launch import Launch
from jobs.plan.pace import key_of, measured
from jobs.plan.predict import costs_of
from jobs.plan.shards import expected_index, num_images
from jobs.plan.sweep import Equal, Spec
from vitssl.config import ConfigError, Loop

MAKES_UP = 0.1  # how far a chain's last stage may go from its share of epochs, relative to it; or one epoch, if that is more
TOLERANCE = 0.05  # how far whole epochs may leave an arm's cost from the reference's, relative to it


def apply(spec: Spec, planned: list[Cell], launch: Launch) -> None:
    """Set the epochs of all cells: first ``length`` times as long, then as many as give an arm the cost of its reference.

    The reference of a cell is the reference arm's cell at the same values of the axes.

    Raises:
        ConfigError: the reference does not run, a cost is not known, or no whole number of epochs comes near enough.
    """
    _lengthen(spec, planned)
    matched = [(cell, rule, _reference(spec, planned, cell, rule)) for cell in planned if (rule := spec.equal_rule(cell.axes))]
    for quantity in dict.fromkeys(rule.quantity for _, rule, _ in matched):
        equal = [match for match in matched if match[1].quantity == quantity]
        costs = _Costs(quantity, spec, [cell for cell, *_ in equal], launch)
        amounts = [costs.total(reference) for *_, reference in equal]
        for (cell, rule, reference), amount in zip(equal, amounts, strict=True):
            if cell is not reference:
                _fit(cell, rule, amount, costs)


def _lengthen(spec: Spec, planned: list[Cell]) -> None:
    """Train every stage ``length`` times as long, in whole epochs, with its warm-up and schedule.

    The epochs up to the end of each stage are rounded, so that arms of equally many epochs stay equal, however many stages they have.
    """
    for cell in planned if spec.length != 1 else ():
        old_total = new_total = 0
        for stage in cell.stages:
            _refuse_steps(stage, f"length={spec.length:g}")
            old_total += stage.run.loop.epochs
            epochs = max(1, round(spec.length * old_total) - new_total)
            new_total += epochs
            _stretch(stage.run.loop, epochs)


def _refuse_steps(stage: Stage, what: str) -> None:
    """Refuse ``loop.max_steps``, which ends a run before the epochs that ``what`` sets."""
    if stage.run.loop.max_steps is not None:
        with stage.error_location():
            raise ConfigError(f"it ends a run before the epochs that {what} sets; leave it out", "loop.max_steps")


def _stretch(loop: Loop, epochs: int) -> None:
    """Set the epochs of a stage, and scale its warm-up and schedule in proportion."""
    stretch = epochs / loop.epochs
    loop.epochs, loop.warmup_epochs = epochs, loop.warmup_epochs * stretch
    if loop.schedule_epochs is not None:
        loop.schedule_epochs = max(epochs, round(loop.schedule_epochs * stretch))


def _reference(spec: Spec, planned: list[Cell], cell: Cell, rule: Equal) -> Cell:
    """Return the reference arm's cell at the values of the axes that ``cell`` has."""
    for other in planned:
        if other.arm == rule.reference and other.axes == cell.axes:
            return other
    reason = f"{rule.reference}, whose cost the other arms are to match, is not selected; select it too, or set equal_to to another arm"
    raise ConfigError(reason, "equalize", spec.place("equalize"))


def _fit(cell: Cell, rule: Equal, amount: float, costs: _Costs) -> None:
    """Scale the epochs of a cell's stages so that together they cost ``amount``."""
    factor, amount_left = amount / costs.total(cell), amount
    for stage in cell.stages:
        loop, epoch_cost = stage.run.loop, costs.per_epoch(cell.arm, stage)
        wanted = share = factor * loop.epochs
        if stage is cell.stages[-1]:  # makes up for rounding, but no more: keeping shares comes before equal cost
            slack = max(1.0, MAKES_UP * share)
            wanted = min(max(amount_left / epoch_cost, share - slack), share + slack)
        epochs = max(1, round(wanted))
        amount_left -= epochs * epoch_cost
        _stretch(loop, epochs)
    if abs(amount_left) > TOLERANCE * amount:
        reason = f"rounding to whole epochs leaves the {rule.quantity} {abs(amount_left) / amount:.0%} away from {rule.reference}'s"
        advice = "rounding matters less with more loop.epochs, or if equal_to names a costlier arm"
        raise ConfigError(f"{reason}; {advice}", "loop.epochs", stage.where)


class _Costs:
    """The cost of training, in one quantity."""

    def __init__(self, quantity: str, spec: Spec, planned: list[Cell], launch: Launch):
        self.quantity, self.spec, self.launch = quantity, spec, launch
        runs = [_checked(stage).run for cell in planned for stage in cell.stages]
        counted = costs_of(runs, launch) if quantity == "macs" else []
        self._macs = {id(run): cost["macs_train_step"] for run, cost in zip(runs, counted, strict=bool(counted))}
        # the sweep's own runs do not count, or repeating the command would plan other epochs
        self._paces = measured(launch.sweep.parent, except_sweep=launch.sweep) if quantity != "macs" else {}

    def total(self, cell: Cell) -> float:
        """Return the cost of training all stages of ``cell``."""
        return sum(stage.run.loop.epochs * self.per_epoch(cell.arm, stage) for stage in cell.stages)

    def per_epoch(self, arm: str, stage: Stage) -> float:
        """Return the cost of an epoch of ``stage``: its number of images times the cost per image."""
        return num_images(stage.run) * (self._macs[id(stage.run)] if self.quantity == "macs" else self._measured(arm, stage))

    def _measured(self, arm: str, stage: Stage) -> float:
        """Return the time or energy per image that runs of the stage's architecture in other sweeps measured."""
        pace = self._paces.get(key_of(stage.run, resources_of(self.spec, arm), self.launch))
        image_cost = None
        if pace is not None:
            image_cost = 1 / pace.images_per_s if self.quantity == "gpu_hours" else pace.kwh_per_image
        if image_cost is None:
            reason = f"no finished run of another sweep in {self.launch.sweep.parent} has measured the cost of this architecture"
            advice = "first run it without equalize under another name (equalize=null name=pace), or use macs"
            raise ConfigError(f"{reason}; {advice}", "equalize", stage.where)
        return image_cost


def _checked(stage: Stage) -> Stage:
    """Return ``stage`` if its epochs end the run and its number of images is known, and raise a ConfigError otherwise."""
    _refuse_steps(stage, "equalize")
    with stage.error_location():
        if expected_index(stage.run.data) is None:
            raise ConfigError("equalize needs its number of images; build it first (vitssl shards build)", "data.shards")
    return stage
