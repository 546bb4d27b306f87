"""What is checked of the Runs of a sweep: that the command line means what it says, and what the report is to compare them by."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from jobs.plan.overrides import CLI, Setting
from jobs.plan.sweep import Spec
from vitssl.config import SIZES, BackboneConfig, ConfigError, active, checkpoint_fields, classifies, dotted, nested
from vitssl.config import Run as RunConfig
from vitssl.config.backbones import takes_any_patch
from vitssl.config.evals import KINDS, METRICS, OF_TEST, OWN, evals_of, may_hold_out, metric_parts, own_evals
from vitssl.config.methods import flow
from vitssl.words import note

if TYPE_CHECKING:
    from jobs.plan.cells import Cell

SHOWN = 4  # stages that an error names
NOTHING_HELD_OUT = "its Run holds out no images; set data.val_fraction or data.val_split"
OF_A_SIZE = ("embed_dim", "depth", "depths", "num_heads", "mlp_ratio", "qkv_bias")  # the fields that make a named network another one
USUAL = BackboneConfig()
Place = tuple[str, str]  # an arm, and its stage
Kind = tuple[str, ...]  # the objectives that are on


def take_named_backbones(made: Iterable[Cell]) -> None:
    """A backbone that the command line names is that one, and not the file's sizes of another under a new name: these are left out, as
    are fields of the file that the new one does not read, and that is said."""
    told = {}
    for stage in (stage for cell in made for stage in cell.stages):
        of_file, backbone = stage.of_file.get("backbone") or {}, stage.run.backbone
        former = of_file.get("name", USUAL.name)
        if "backbone.name" not in stage.cli_fields or backbone.name == former:
            continue
        foreign = {name: getattr(USUAL, name) for name in backbone.inactive_fields()}
        reset = {name: value for name, value in foreign.items() if value != getattr(backbone, name)}
        reset |= dict.fromkeys(kept_sizes(backbone, of_file))
        for name in sorted(reset):
            if not any(typed == f"backbone.{name}" or typed.startswith(f"backbone.{name}.") for typed in stage.cli_fields):
                setattr(backbone, name, reset[name])
                told.setdefault((backbone.name, former), {})[name] = True
    for (name, former), fields in told.items():
        note(f"with backbone.name={name} the file's {', '.join(fields)}, which are for {former}, are left out")


def kept_sizes(backbone: BackboneConfig, of_file: dict[str, Any]) -> list[str]:
    """The fields of the file's sizes of another name that the new one does not have itself."""
    own = SIZES[backbone.name]._asdict() | {"depths": list(SIZES[backbone.name].depths)}
    own["depth"] = own["depths"][0] if len(own["depths"]) == 1 else None
    names = OF_A_SIZE if takes_any_patch(backbone) else (*OF_A_SIZE, "patch_size")
    return [name for name in names if of_file.get(name) not in (None, own[name])]


def check_objectives(spec: Spec, made: Sequence[Cell]) -> None:
    """A field of an objective that no Run uses is an error: setting one does not switch the objective on."""
    stages = [(cell.arm, stage) for cell in made for stage in cell.stages]
    # where not all arms run, the file's axes may be for the others
    of_file = [axis for axis in spec.axes if axis not in spec.added_axes and not spec.left_out]
    for setting, key in [*_asked(spec), *_of_axes(spec, of_file)]:
        name = setting.objective
        if name and not any(name in active(stage.run.objectives) for arm, stage in stages if setting.reaches(arm, stage.name)):
            reason = f"objectives.{name} is off in all of these Runs; {setting.prefix}objectives.{name}={{}} switches it on"
            raise ConfigError(reason, key, spec.place(key) if key.startswith("axes.") else CLI)


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


def check_whose(spec: Spec, of_file: Iterable[tuple[str, str, dict[str, Any]]]) -> None:
    """What makes a Run of one kind is not set in Runs of several kinds at once: a pretraining would become half a fine-tuning, a
    baseline the method, and a chain would start twice.

    ``of_file`` has arm, stage and the fields of its Run without the command line's, of every cell.
    """
    asked = [(setting, key) for setting, key in _asked(spec) if _starts(setting) or _objectives(setting)]
    if not asked:
        return
    points: dict[Place, list[dict[str, Any]]] = {}
    for arm, stage, fields in of_file:
        points.setdefault((arm, stage), []).append(fields)
    switched_on = {name for setting, _ in asked for name, value in _objectives(setting).items() if value is not None}
    for setting, key in asked:
        mine = {place: fields for place, fields in points.items() if setting.reaches(*place)}
        kinds = {place: list(dict.fromkeys(map(_kind, fields))) for place, fields in mine.items()}
        _refuse_several_kinds(setting, key, kinds, spec)
        _refuse_to_drop_nothing(setting, key, kinds, spec, switched_on)
        if setting.stage is None:
            _refuse_broken_chain(setting, key, mine)


def _objectives(setting: Setting) -> dict[str, Any]:
    """{objective: its fields, or None} of the whole objectives that it sets."""
    return nested({setting.field: setting.value}).get("objectives") or {} if setting.objective is None else {}


def _kind(fields: dict[str, Any]) -> Kind:
    return tuple(name for name, value in (fields.get("objectives") or {}).items() if value is not None)


def _refuse_several_kinds(setting: Setting, key: str, kinds: dict[Place, list[Kind]], spec: Spec) -> None:
    typed = _objectives(setting)
    asked = {name for name, value in typed.items() if value is not None}
    different = {frozenset(kind) for of_place in kinds.values() for kind in of_place}
    if len(different) < 2 or all(asked <= kind for kind in different):
        return
    if len(typed) == 1 and any(asked <= kind for kind in different):
        advice = _as_fields(setting)
    else:
        place = min(kinds, key=lambda place: (*_unlikely(kinds[place][0], asked), place[0] == spec.baseline))
        advice = f"say which is meant, for example {shlex.quote(_in_place_of(kinds[place][0], typed, _named(spec, place)))}"
    raise ConfigError(f"this would switch it on in different kinds of stage ({_shown(kinds, spec)}); {advice}", key, CLI)


def _unlikely(kind: Kind, asked: set[str]) -> tuple[bool, bool]:
    """How little a Run looks like the one that is meant: it has not the objectives, or classifies where the other does not."""
    return not asked <= {*kind}, ("classify" in kind) != ("classify" in asked)


def _as_fields(setting: Setting) -> str:
    """What to type for an objective that some of the Runs have: its fields apply where it is on, and switch it on nowhere."""
    fields = {name: value for name, value in setting.leaves.items() if name.count(".") > 1}
    words = shlex.join(f"{setting.prefix}{name}={flow(value)}" for name, value in fields.items())
    return f"to change it where it is on, write {words}" if fields else "leave it out: it has no effect where the objective is on"


def _in_place_of(kind: Kind, typed: dict[str, Any], place: str) -> str:
    """What to type for objectives in one place, where others than classify are on."""
    asked = {name for name, value in typed.items() if value is not None}
    replaced = [] if asked <= {*kind} else sorted({*kind} - {"classify", *asked})
    return f"arms.{place}.objectives={flow(dict.fromkeys(replaced) | typed)}"


def _refuse_to_drop_nothing(setting: Setting, key: str, kinds: dict[Place, list[Kind]], spec: Spec, switched_on: set[str]) -> None:
    """An objective that is switched off is on somewhere: what was meant to be replaced by another would stay beside it."""
    there = {name for of_place in kinds.values() for kind in of_place for name in kind}
    for name in (name for name, value in _objectives(setting).items() if value is None and name not in there | switched_on):
        on = f"objectives.{name} is off in all of these Runs ({_shown(kinds, spec)})"
        raise ConfigError(f"{on}, so null has no effect; name one that is on, or leave it out", key, CLI)


def _shown(kinds: dict[Place, list[Kind]], spec: Spec) -> str:
    """Such as: scratch: classify, sslft.pretrain: mae, ..."""
    shown = [f"{_named(spec, place)}: {' or '.join(' + '.join(kind) or 'none' for kind in of_place)}" for place, of_place in kinds.items()]
    return ", ".join([*shown[:SHOWN], *(["..."] if len(shown) > SHOWN else [])])


def _named(spec: Spec, place: Place) -> str:
    arm, stage = place
    return arm if len(spec.arms[arm].stages) == 1 else f"{arm}.{stage}"


def _starts(setting: Setting) -> list[str]:
    """The fields of weights to start from that it sets."""
    return [field for field in checkpoint_fields(RunConfig) if field in setting.leaves]


def _refuse_broken_chain(setting: Setting, key: str, points: dict[Place, list[dict[str, Any]]]) -> None:
    stages_of: dict[str, list[str]] = {}
    for arm, name in points:
        stages_of.setdefault(arm, []).append(name)
    for (arm, name), field in itertools.product(points, _starts(setting)):
        value = setting.leaves[field]
        for parent in (dotted(fields).get(field) for fields in points[arm, name]):
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
        known = own_evals(run, may_hold_out(run)) | evals_of(run)
        if evaluator == "test" and evaluator not in known:
            continue  # a pretraining alone has no accuracy
        if evaluator not in known:
            lacks = dict.fromkeys(OWN, NOTHING_HELD_OUT if classifies(run) else "its Run has no objectives.classify")
            lacks |= {"test_ema": "its Run has no loop.ema_decay"} if classifies(run) else {}
            has = lacks.get(evaluator, f"it has {', '.join(known) or 'none'}")
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
    if OF_TEST.get(evaluator) is None:
        reason = f"it is chosen by val/{metric}, of a classifier on held-out images, which is not measured as {spec.metric} is"
        able = all(classifies(cell.stages[-1].run) for cell in made) and metric in METRICS
        reason += f"; set metric: {metric}" if able else "; arms that end without objectives.classify have none: leave select out"
        raise ConfigError(reason, "select", spec.place("select"))
    chooses = f"select chooses {' and '.join(spec.select)} by"
    for stage in (cell.stages[-1] for cell in made):
        with stage.error_location():
            if not classifies(stage.run):
                raise ConfigError(f"{chooses} {spec.metric}, and this Run predicts no classes; add classify", "objectives")
            if not (stage.run.data.val_split or stage.run.data.val_fraction):
                reason = f"{chooses} held-out images, and this Run has none; set data.val_fraction or data.val_split"
                raise ConfigError(reason, "data.val_fraction")
