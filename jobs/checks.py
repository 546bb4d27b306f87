"""What is checked of the Runs of a sweep: that the command line means what it says, and what the report is to compare them by."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jobs.overrides import CLI, Setting
from jobs.sweep import Spec
from vitssl.config import ConfigError, active, checkpoint_fields, classifies, dotted, nested
from vitssl.config import Run as RunConfig
from vitssl.config.evals import KINDS, evals_of, metric_parts, own_evals
from vitssl.config.methods import flow

if TYPE_CHECKING:
    from jobs.graph import Cell, Stage

SHOWN = 4  # stages that an error names
Place = tuple[str, str]  # an arm, and its stage


class Point(NamedTuple):
    """A Run as the file has it, at one value of every axis."""

    labels: dict[str, Any]
    fields: dict[str, Any]

    @property
    def kind(self) -> tuple[str, ...]:
        """The objectives that are on."""
        return tuple(name for name, value in (self.fields.get("objectives") or {}).items() if value is not None)


def check_objectives(spec: Spec, made: Sequence[Cell]) -> None:
    """A field of an objective that no Run uses is an error: setting one does not switch the objective on."""
    stages = [(cell.arm, stage) for cell in made for stage in cell.stages]
    on = {(arm, stage.name, name) for arm, stage in stages for name in active(stage.run.objectives)}
    on |= {(None, stage, name) for _, stage, name in on}
    on |= {(arm, None, name) for arm, _, name in on}
    # where not all arms run, the file's axes may be for the others
    of_file = [axis for axis in spec.axes if axis not in spec.added_axes and not spec.left_out]
    for setting, key in [*_asked(spec), *_of_axes(spec, of_file)]:
        name = setting.objective
        if name and (setting.arm, setting.stage, name) not in on:
            reason = f"objectives.{name} is on in none of these Runs; {_switch_on(setting, name, stages, spec)} switches it on"
            raise ConfigError(reason, key, spec.place(key) if key.startswith("axes.") else CLI)


def _switch_on(setting: Setting, name: str, stages: Iterable[tuple[str, Stage]], spec: Spec) -> str:
    """What to type for an objective where a field of it is set; in Runs of several kinds for those that look most like it."""
    points: dict[Place, list[Point]] = {}
    for arm, stage in stages:
        if _is_of(setting, arm, stage.name):
            fields = {"objectives": {key: {} for key in active(stage.run.objectives)}}
            points.setdefault((arm, stage.name), []).append(Point({}, fields))
    if len({point.kind for every in points.values() for point in every}) > 1:
        return f"for example {_in_one_kind({name: {}}, points, spec)}"
    return f"{setting.whose}{'.' if setting.whose else ''}objectives.{name}={{}}"


def check_chains(made: Iterable[Cell]) -> None:
    """A stage that only prepares another is one that another starts from."""
    for cell in made:
        followed = {stage for later in cell.stages for stage in later.pointers.values()}
        last = cell.stages[-1]
        for stage in cell.stages[:-1]:
            if stage.name not in followed and not classifies(stage.run):
                reason = f"nothing starts from {stage.name}; add init_from: {stage.name} to {last.name}, or leave {stage.name} out"
                with last.error_location():
                    raise ConfigError(reason, "init_from")


def _asked(spec: Spec) -> list[tuple[Setting, str]]:
    """What the command line sets, also by the axes that it adds, each with its key."""
    return [*((setting, setting.key) for setting in spec.overrides.settings), *_of_axes(spec, spec.added_axes)]


def _of_axes(spec: Spec, axes: Iterable[str]) -> list[tuple[Setting, str]]:
    return [(setting, f"axes.{axis}") for axis in axes for chosen in spec.axes[axis].values() for setting in chosen]


def check_whose(spec: Spec, of_file: Iterable[tuple[str, str, dict[str, Any], dict[str, Any]]]) -> None:
    """What makes a Run of one kind is not set in Runs of several kinds at once: a pretraining would become half a fine-tuning, a
    baseline the method, and a chain would start twice.

    Args:
        spec: the sweep.
        of_file: arm, stage, labels of the axes, and the fields of its Run without the command line's, of every cell.

    Raises:
        ConfigError: an objective that is switched on, or weights to start from, without the Runs that are meant; it says what to type.
    """
    asked = [(setting, key) for setting, key in _asked(spec) if _starts(setting) or _typed(setting)]
    points: dict[Place, list[Point]] = {}
    for arm, stage, labels, fields in of_file if asked else ():
        points.setdefault((arm, stage), []).append(Point(labels, fields))
    for setting, key in asked:
        mine = {(arm, stage): every for (arm, stage), every in points.items() if _is_of(setting, arm, stage)}
        _refuse_several_kinds(setting, key, mine, spec)
        _refuse_to_drop_nothing(setting, key, mine, spec, others=[one for one, _ in asked if one is not setting])
        if setting.stage is None:
            _refuse_broken_chain(setting, key, mine)


def _is_of(setting: Setting, arm: str, stage: str) -> bool:
    return setting.arm in (None, arm) and setting.stage in (None, stage)


def _typed(setting: Setting) -> dict[str, Any]:
    """{objective: its fields, or None} of the whole objectives that it sets."""
    return nested({setting.field: setting.value}).get("objectives") or {} if setting.objective is None else {}


def _refuse_several_kinds(setting: Setting, key: str, points: dict[Place, list[Point]], spec: Spec) -> None:
    typed = _typed(setting)
    asked = {name for name, value in typed.items() if value is not None}
    kinds = {place: list(dict.fromkeys(point.kind for point in every)) for place, every in points.items()}
    different = {frozenset(kind) for of_place in kinds.values() for kind in of_place}
    if len(different) < 2 or all(asked <= kind for kind in different):
        return
    named = {place: " or ".join(" + ".join(kind) or "none" for kind in of_place) for place, of_place in kinds.items()}
    listed = [f"{_place(spec, *place)}: {names}" for place, names in named.items()]
    unlike = ", ".join([*listed[:SHOWN], *(["..."] if len(listed) > SHOWN else [])])
    if len(typed) == 1 and any(asked <= kind for kind in different):
        advice = _as_fields(setting, key)
    else:
        advice = f"say in which, for example {_in_one_kind(typed, points, spec)}"
    raise ConfigError(f"it would be on in stages of several kinds ({unlike}); {advice}", key, CLI)


def _refuse_to_drop_nothing(setting: Setting, key: str, points: dict[Place, list[Point]], spec: Spec, others: list[Setting]) -> None:
    """An objective that is switched off is on somewhere: what was meant to be replaced by another would stay beside it."""
    typed = _typed(setting)
    kinds = {point.kind for every in points.values() for point in every}
    there = {name for kind in kinds for name in kind} | {name for one in others for name, value in _typed(one).items() if value is not None}
    for name in (name for name, value in typed.items() if value is None and name not in there):
        first = itertools.islice(points.items(), SHOWN)
        on = ", ".join(f"{_place(spec, *place)}: {' + '.join(every[0].kind) or 'none'}" for place, every in first)
        asked = {other: value for other, value in typed.items() if value is not None}
        advice = f"; write {_in_one_kind(asked, points, spec)}" if asked else "; leave it out"
        raise ConfigError(f"objectives.{name} is on in none of these Runs ({on}), so null drops nothing{advice}", key, CLI)


def _as_fields(setting: Setting, key: str) -> str:
    """What to do with an objective that some stages have: its fields apply where it is on, and switch it on nowhere."""
    fields = {name: value for name, value in setting.leaves.items() if name.count(".") > 1}
    if not fields:
        return "leave it out: where it is on it changes nothing"
    if key != setting.key:
        return f"for those that have it name its fields, {flow(fields)}"
    words = shlex.join(f"{setting.whose}{'.' if setting.whose else ''}{name}={flow(value)}" for name, value in fields.items())
    return f"for those that have it write {words}"


def _in_one_kind(typed: dict[str, Any], points: dict[Place, list[Point]], spec: Spec) -> str:
    """What to type for the Runs that look most like those meant: their stage, and the values of axes where they are of one kind."""
    asked = {name for name, value in typed.items() if value is not None}
    (arm, stage), chosen = min(
        ((place, point) for place, every in points.items() for point in every),
        key=lambda one: _unlikely(asked, one[1].kind, one[0][0] == spec.baseline),
    )
    replaced = [] if asked <= set(chosen.kind) else sorted(set(chosen.kind) - {"classify", *asked})
    words = [f"arms.{_place(spec, arm, stage)}.objectives={flow(dict.fromkeys(replaced) | typed)}"]
    for axis, label in chosen.labels.items():
        beside = [point for point in points[arm, stage] if {**point.labels, axis: label} == chosen.labels]
        alike = [point.labels[axis] for point in beside if set(point.kind) == set(chosen.kind)]
        if len(alike) < len(beside):
            words.append(f"axes.{axis}={flow(alike)}")
    return shlex.join(words)


def _unlikely(asked: Collection[str], kind: Collection[str], is_baseline: bool) -> tuple[bool, ...]:
    """How little a Run looks like the one that is meant, the largest difference first."""
    replaced = set(kind) - {"classify", *asked}
    return not set(asked) <= set(kind), ("classify" in asked) != ("classify" in kind), is_baseline, not replaced


def _place(spec: Spec, arm: str, stage: str) -> str:
    return arm if len(spec.arms[arm].stages) == 1 else f"{arm}.{stage}"


def _starts(setting: Setting) -> list[str]:
    """The fields of weights to start from that it sets."""
    return [field for field in checkpoint_fields(RunConfig) if field in setting.leaves]


def _refuse_broken_chain(setting: Setting, key: str, points: dict[Place, list[Point]]) -> None:
    stages_of: dict[str, list[str]] = {}
    for arm, name in points:
        stages_of.setdefault(arm, []).append(name)
    for (arm, name), field in itertools.product(points, _starts(setting)):
        value = setting.leaves[field]
        for parent in (dotted(point.fields).get(field) for point in points[arm, name]):
            if parent in stages_of[arm] and value != parent:
                words = " or ".join(f"arms.{arm}.{one}.{field}={flow(value)}" for one in (parent, name))
                raise ConfigError(f"{name} of {arm} starts from its stage {parent}; say which stage is meant, {words}", key, CLI)


def check_metric(spec: Spec, made: Sequence[Cell]) -> None:
    """The last stage of every arm has the evaluator that the sweep's metric names."""
    try:
        evaluator, metric = metric_parts(spec.metric)
    except ConfigError as error:
        raise ConfigError(error.reason, "metric", spec.place("metric")) from None
    for cell in made:
        run = cell.stages[-1].run
        known = own_evals(run, heldout=bool(run.data.val_split or run.data.val_fraction)) | evals_of(run)
        if evaluator == "test" and evaluator not in known:
            continue  # a pretraining alone has no accuracy
        if evaluator not in known:
            has = "its Run has no loop.ema_decay" if evaluator == "test_ema" else f"it has {', '.join(known) or 'none'}"
            add = f"; add 'evals={{{evaluator}: {{type: {evaluator}}}}}'" if evaluator in KINDS else ""
            raise ConfigError(f"{spec.metric}: {cell.arm} has no evaluator {evaluator}; {has}{add}", "metric", spec.place("metric"))
        if metric not in known[evaluator].metrics:
            has = ", ".join(known[evaluator].metrics)
            raise ConfigError(f"{spec.metric}: an evaluator of type {known[evaluator].type} gives {has}", "metric", spec.place("metric"))


def check_select(spec: Spec, made: Sequence[Cell]) -> None:
    """Where the sweep selects over axes, the metric is of test images, and the last stage of every arm has held-out ones to select by."""
    if not spec.select:
        return
    evaluator, metric = metric_parts(spec.metric)
    if evaluator != "test":
        reason = f"it is chosen by val/{metric}, of held-out images, which is not measured as {spec.metric} is; set metric: {metric}"
        raise ConfigError(reason, "select", spec.place("select"))
    chooses = f"select chooses {' and '.join(spec.select)} by"
    for stage in (cell.stages[-1] for cell in made):
        with stage.error_location():
            if not classifies(stage.run):
                raise ConfigError(f"{chooses} {spec.metric}, and this Run predicts no classes; add classify", "objectives")
            if not (stage.run.data.val_split or stage.run.data.val_fraction):
                reason = f"{chooses} held-out images, and this Run has none; set data.val_fraction or data.val_split"
                raise ConfigError(reason, "data.val_fraction")
