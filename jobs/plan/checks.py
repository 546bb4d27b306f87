"""Checks of all Runs of a sweep: the command line must be unambiguous, and the report must find what it compares.

The examples of what is refused are command lines for `sweeps/own_images.yaml`. Its arms are scratch (classify), ssat (classify and mae),
and sslft (pretrain with mae, then finetune with classify).
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from jobs.plan.overrides import CLI, Setting
from jobs.plan.shards import expected_index, image_counts
from jobs.plan.sweep import Spec
from vitssl.config import SIZES, BackboneConfig, ConfigError, active, checkpoint_fields, classifies, dotted, nested
from vitssl.config import Run as RunConfig
from vitssl.config.backbones import is_vit
from vitssl.config.evals import KINDS, OWN_EVALS, VAL_COUNTERPARTS, evals_of, may_hold_out, own_evals
from vitssl.config.methods import flow
from vitssl.config.metrics import METRICS, metric_parts
from vitssl.words import note

if TYPE_CHECKING:
    from jobs.plan.cells import Cell

SHOWN = 4  # the most stages that an error names
SIZE_FIELDS = ("embed_dim", "depth", "depths", "num_heads", "mlp_ratio", "qkv_bias")  # fields that turn a named network into another one
DEFAULT_BACKBONE = BackboneConfig()
Place = tuple[str, str]  # an arm, and its stage
Kind = tuple[str, ...]  # the objectives that are on


def take_named_backbones(made: Iterable[Cell]) -> None:
    """Let a ``backbone.name`` of the command line mean the network of that name, not one with the sizes of the file's backbone.

    Sizes that the file sets for its own backbone are left out, as are fields of the file that the new backbone does not read, and a note
    names them. For example, ``backbone.name=vit_tiny`` drops the embed_dim, depth and num_heads that the file gives to vit_pico.
    """
    left_out: dict[tuple[str, str], dict[str, bool]] = {}
    for stage in (stage for cell in made for stage in cell.stages):
        file_fields, backbone = stage.file_fields.get("backbone") or {}, stage.run.backbone
        former = file_fields.get("name", DEFAULT_BACKBONE.name)
        if "backbone.name" not in stage.cli_fields or backbone.name == former:
            continue
        foreign = {name: getattr(DEFAULT_BACKBONE, name) for name in backbone.inactive_fields()}
        reset = {name: value for name, value in foreign.items() if value != getattr(backbone, name)}
        reset |= dict.fromkeys(kept_sizes(backbone, file_fields))
        for name in sorted(reset):
            if not any(typed == f"backbone.{name}" or typed.startswith(f"backbone.{name}.") for typed in stage.cli_fields):
                setattr(backbone, name, reset[name])
                left_out.setdefault((backbone.name, former), {})[name] = True
    for (name, former), fields in left_out.items():
        note(f"with backbone.name={name} the file's {', '.join(fields)}, which are for {former}, are left out")


def kept_sizes(backbone: BackboneConfig, file_fields: dict[str, Any]) -> list[str]:
    """List the size fields that ``file_fields`` sets for another backbone and that differ from the sizes of the new ``backbone``."""
    own = SIZES[backbone.name]._asdict() | {"depths": list(SIZES[backbone.name].depths)}
    own["depth"] = own["depths"][0] if len(own["depths"]) == 1 else None
    names = SIZE_FIELDS if is_vit(backbone) else (*SIZE_FIELDS, "patch_size")
    return [name for name in names if file_fields.get(name) not in (None, own[name])]


def check_objectives(spec: Spec, made: Sequence[Cell]) -> None:
    """Refuse a field of an objective that is off in every Run, since setting a field does not switch its objective on.

    For example, ``objectives.drloc.weight=0.5`` is refused, as no arm has drloc. ``arms.scratch.objectives.drloc={}`` switches it on.
    """
    stages = [(cell.arm, stage) for cell in made for stage in cell.stages]
    # if some arms are left out, the file's axes may be for them
    file_axes = [axis for axis in spec.axes if axis not in spec.added_axes and not spec.left_out]
    for setting, key in [*_cli_settings(spec), *_axis_settings(spec, file_axes)]:
        objective = setting.objective
        if objective and not any(objective in active(stage.run.objectives) for arm, stage in stages if setting.reaches(arm, stage.name)):
            reason = f"objectives.{objective} is off in all of these Runs; {setting.prefix}objectives.{objective}={{}} switches it on"
            raise ConfigError(reason, key, spec.place(key) if key.startswith("axes.") else CLI)


def check_chains(made: Iterable[Cell]) -> None:
    """Refuse an arm with a stage that does not classify and that no later stage starts from.

    For example, ``finetune.init_from=null`` is refused: sslft's pretrain would be trained for nothing.
    """
    for cell in made:
        parents = {stage for later in cell.stages for stage in later.pointers.values()}
        last = cell.stages[-1]
        for stage in cell.stages[:-1]:
            if stage.name not in parents and not classifies(stage.run):
                reason = f"nothing starts from {stage.name}; add init_from: {stage.name} to {last.name}, or leave {stage.name} out"
                with last.error_location():
                    raise ConfigError(reason, "init_from")


def _cli_settings(spec: Spec) -> list[tuple[Setting, str]]:
    """List the settings of the command line and of the axes that it adds, each with its key."""
    return [*((setting, setting.key) for setting in spec.overrides.settings), *_axis_settings(spec, spec.added_axes)]


def _axis_settings(spec: Spec, axes: Iterable[str]) -> list[tuple[Setting, str]]:
    """List the settings of all values of ``axes``, each with the key of its axis."""
    return [(setting, f"axes.{axis}") for axis in axes for chosen in spec.axes[axis].values() for setting in chosen]


def refuse_ambiguous_settings(spec: Spec, stage_fields: Iterable[tuple[str, str, dict[str, Any]]]) -> None:
    """Refuse settings of the command line that decide what kind of Run a stage is, if they reach stages of several kinds.

    Such settings switch objectives on or off, or name weights to start from. In several kinds of Run at once they would make a pretraining
    half a fine-tuning, turn a baseline into the method, or start a chain twice. For example, ``objectives.gmml={}`` is refused, as it
    reaches stages that classify, that train mae, and that do both; ``arms.scratch.objectives.gmml={}`` says which stage is meant.

    Args:
        spec: the sweep.
        stage_fields: (arm, stage, fields of its Run without the command line's) of every stage of every cell.
    """
    deciding = [(setting, key) for setting, key in _cli_settings(spec) if _checkpoint_fields_of(setting) or _objectives(setting)]
    if not deciding:
        return
    points: dict[Place, list[dict[str, Any]]] = {}
    for arm, stage, fields in stage_fields:
        points.setdefault((arm, stage), []).append(fields)
    switched_on = {name for setting, _ in deciding for name, value in _objectives(setting).items() if value is not None}
    for setting, key in deciding:
        reached = {place: fields for place, fields in points.items() if setting.reaches(*place)}
        kinds = {place: list(dict.fromkeys(map(_kind, fields))) for place, fields in reached.items()}
        _refuse_several_kinds(setting, key, kinds, spec)
        _refuse_to_drop_nothing(setting, key, kinds, spec, switched_on)
        if setting.stage is None:
            _refuse_broken_chain(setting, key, reached)


def _objectives(setting: Setting) -> dict[str, Any]:
    """Return {objective: its fields, or None for off} of the whole objectives that a setting sets."""
    return nested({setting.field: setting.value}).get("objectives") or {} if setting.objective is None else {}


def _kind(fields: dict[str, Any]) -> Kind:
    """Return the objectives that are on in the ``fields`` of a Run."""
    return tuple(name for name, value in (fields.get("objectives") or {}).items() if value is not None)


def _refuse_several_kinds(setting: Setting, key: str, kinds: dict[Place, list[Kind]], spec: Spec) -> None:
    """Refuse to switch an objective on in Runs of several kinds, unless all of them have it anyway.

    For example, ``objectives.gmml={}`` is refused, and the error suggests one stage to set it in. ``objectives.mae={mask_ratio: 0.6}`` is
    refused too, as only some stages have mae; the error suggests ``objectives.mae.mask_ratio=0.6``, which applies where mae is on.
    """
    typed = _objectives(setting)
    switched_on = {name for name, value in typed.items() if value is not None}
    distinct = {frozenset(kind) for place_kinds in kinds.values() for kind in place_kinds}
    if len(distinct) < 2 or all(switched_on <= kind for kind in distinct):
        return
    if len(typed) == 1 and any(switched_on <= kind for kind in distinct):
        advice = _fields_advice(setting)
    else:
        place = min(kinds, key=lambda place: (*_mismatch(kinds[place][0], switched_on), place[0] == spec.baseline))
        advice = f"say which is meant, for example {shlex.quote(_replacement_text(kinds[place][0], typed, _place_name(spec, place)))}"
    raise ConfigError(f"this would switch it on in different kinds of stage ({_kinds_text(kinds, spec)}); {advice}", key, CLI)


def _mismatch(kind: Kind, asked: set[str]) -> tuple[bool, bool]:
    """Return a sort key that ranks the likeliest ``kind`` first: it has the ``asked`` objectives, and classifies if they do."""
    return not asked <= {*kind}, ("classify" in kind) != ("classify" in asked)


def _fields_advice(setting: Setting) -> str:
    """Advise to set an objective's fields one by one, which apply where the objective is on and switch it on nowhere."""
    fields = {name: value for name, value in setting.leaves.items() if name.count(".") > 1}
    words = shlex.join(f"{setting.prefix}{name}={flow(value)}" for name, value in fields.items())
    return f"to change it where it is on, write {words}" if fields else "leave it out: it has no effect where the objective is on"


def _replacement_text(kind: Kind, typed: dict[str, Any], place: str) -> str:
    """Return what to type to set the ``typed`` objectives at one ``place``, switching off the others there except classify."""
    asked = {name for name, value in typed.items() if value is not None}
    replaced = [] if asked <= {*kind} else sorted({*kind} - {"classify", *asked})
    return f"arms.{place}.objectives={flow(dict.fromkeys(replaced) | typed)}"


def _refuse_to_drop_nothing(setting: Setting, key: str, kinds: dict[Place, list[Kind]], spec: Spec, switched_on: set[str]) -> None:
    """Refuse to switch off an objective that is off anyway, as the one that it was mistaken for would stay on.

    For example, ``arms.sslft.pretrain.objectives={simclr: null, gmml: {}}`` is refused: mae, which that stage trains, would stay.
    """
    on_in_file = {name for place_kinds in kinds.values() for kind in place_kinds for name in kind}
    for name in (name for name, value in _objectives(setting).items() if value is None and name not in on_in_file | switched_on):
        reason = f"objectives.{name} is off in all of these Runs ({_kinds_text(kinds, spec)})"
        raise ConfigError(f"{reason}, so null has no effect; name one that is on, or leave it out", key, CLI)


def _kinds_text(kinds: dict[Place, list[Kind]], spec: Spec) -> str:
    """Describe the objectives at each place, for example "scratch: classify, sslft.pretrain: mae, ..."."""
    shown = [
        f"{_place_name(spec, place)}: {' or '.join(' + '.join(kind) or 'none' for kind in options)}" for place, options in kinds.items()
    ]
    return ", ".join([*shown[:SHOWN], *(["..."] if len(shown) > SHOWN else [])])


def _place_name(spec: Spec, place: Place) -> str:
    """Return ARM, or ARM.STAGE if the arm has several stages."""
    arm, stage = place
    return arm if len(spec.arms[arm].stages) == 1 else f"{arm}.{stage}"


def _checkpoint_fields_of(setting: Setting) -> list[str]:
    """List the fields that a setting sets and that name weights to start from."""
    return [field for field in checkpoint_fields(RunConfig) if field in setting.leaves]


def _refuse_broken_chain(setting: Setting, key: str, points: dict[Place, list[dict[str, Any]]]) -> None:
    """Refuse weights to start from for a stage that the file starts from another stage of its arm, as they may be meant for either.

    For example, ``init_from=weights.pt`` is refused: sslft's finetune starts from pretrain. ``arms.sslft.pretrain.init_from=weights.pt``
    or ``arms.sslft.finetune.init_from=weights.pt`` says which stage is meant.
    """
    stages_of: dict[str, list[str]] = {}
    for arm, name in points:
        stages_of.setdefault(arm, []).append(name)
    for (arm, name), field in itertools.product(points, _checkpoint_fields_of(setting)):
        value = setting.leaves[field]
        for parent in (dotted(fields).get(field) for fields in points[arm, name]):
            if parent in stages_of[arm] and value != parent:
                choices = " or ".join(f"arms.{arm}.{stage}.{field}={flow(value)}" for stage in (parent, name))
                raise ConfigError(f"{name} of {arm} starts from its stage {parent}; say which stage is meant, {choices}", key, CLI)


def check_metric(spec: Spec, made: Sequence[Cell]) -> None:
    """Refuse a sweep whose metric the last stage of an arm does not measure.

    For example, ``metric=knn/top1`` is refused without an evaluator knn, and ``metric=top1_ema`` without ``loop.ema_decay``.
    """
    try:
        evaluator, metric = metric_parts(spec.metric)
    except ConfigError as error:
        raise ConfigError(error.reason, "metric", spec.place("metric")) from None
    for cell in made:
        run = cell.stages[-1].run
        with cell.stages[-1].error_location():
            known = own_evals(run, evaluator in OWN_EVALS and _holds_out(run)) | evals_of(run)
        if evaluator == "test" and evaluator not in known:
            continue  # a pretraining alone has no accuracy
        if evaluator not in known:
            why_missing = dict.fromkeys(OWN_EVALS, f"its Run {_why_none(run)}" if classifies(run) else "its Run has no objectives.classify")
            why_missing |= {"test_ema": "its Run has no loop.ema_decay"} if classifies(run) else {}
            facts = why_missing.get(evaluator, f"it has {', '.join(known) or 'none'}")
            advice = f"; add 'evals={{{evaluator}: {{type: {evaluator}}}}}'" if evaluator in KINDS else ""
            raise ConfigError(f"{spec.metric}: {cell.arm} has no evaluator {evaluator}; {facts}{advice}", "metric", spec.place("metric"))
        if metric not in known[evaluator].metrics:
            facts = ", ".join(known[evaluator].metrics)
            raise ConfigError(f"{spec.metric}: an evaluator of type {known[evaluator].type} gives {facts}", "metric", spec.place("metric"))


def _holds_out(run: RunConfig) -> bool:
    """Whether a Run that classifies holds out images, as far as is known: a ``data.val_split`` with ``?`` may be in no shards."""
    if not may_hold_out(run) or "?" not in (run.data.val_split or "") or expected_index(run.data) is None:
        return may_hold_out(run)
    return image_counts(run)["val_images"] > 0


def _why_none(run: RunConfig) -> str:
    """Return why a Run holds out no images, and what to set."""
    if run.data.val_split:
        return f"has none, as its shards have no split {run.data.val_split.replace('?', '')}; set data.val_split=null data.val_fraction=0.1"
    return "holds out no images; set data.val_fraction or data.val_split"


def check_select(spec: Spec, made: Sequence[Cell]) -> None:
    """Refuse a sweep that selects over axes without held-out images to select by, or for a metric that they cannot stand for.

    For example, ``select=size`` is refused if a last stage has neither ``data.val_fraction`` nor ``data.val_split``, or does not classify.
    With ``metric=knn/top1`` it is refused too: held-out images would choose by the classifier's top-1, which is measured differently.
    """
    if not spec.select:
        return
    evaluator, metric = metric_parts(spec.metric)
    if VAL_COUNTERPARTS.get(evaluator) is None:
        reason = f"it is chosen by val/{metric}, of a classifier on held-out images, which is not measured as {spec.metric} is"
        can_select = all(classifies(cell.stages[-1].run) for cell in made) and metric in METRICS
        reason += f"; set metric: {metric}" if can_select else "; arms that end without objectives.classify have none: leave select out"
        raise ConfigError(reason, "select", spec.place("select"))
    chooses = f"select chooses {' and '.join(spec.select)} by"
    for stage in (cell.stages[-1] for cell in made):
        with stage.error_location():
            if not classifies(stage.run):
                raise ConfigError(f"{chooses} {spec.metric}, and this Run predicts no classes; add classify", "objectives")
            if not _holds_out(stage.run):
                raise ConfigError(f"{chooses} held-out images, and this Run {_why_none(stage.run)}", "data.val_fraction")
