"""Reading a sweep file: it is checked, and narrowed to what the command line asks for. `jobs.plan.cells` makes Runs of it."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, get_args

from jobs.plan.axes import added_axes, axis_label, axis_values, mapping
from jobs.plan.overrides import CLI, RUN_FIELDS, Overrides, Setting, check, settings
from vitssl.config import ConfigError, Run, fill, merge, read_yaml, unknown_error
from vitssl.config.sweep import Arm, Quantity, Resources, SweepFile
from vitssl.costs.emissions import visible_gpus
from vitssl.records import MOST
from vitssl.words import counted, note

NAME = r"\w[\w.-]{0,99}"  # of a sweep, an arm or a stage: it becomes part of folder names and batch scripts
MOST_LENGTH = 1000  # the largest factor of the epochs
AXIS_VALUE_KEYS = {"optional", "equalize", "equal_to"}  # keys of an axis value that are no fields of Runs


class Equal(NamedTuple):
    """The rule that arms cost as much as a reference arm, in one quantity."""

    quantity: Quantity
    reference: str  # the name of the arm


@dataclass
class Spec(SweepFile):
    """A sweep file, read and narrowed to what was asked for; its axes are {name: {label: settings}}."""

    file: str = ""
    overrides: Overrides = field(default_factory=Overrides)
    added_axes: list[str] = field(default_factory=list)  # axes that only the command line has
    left_out: list[str] = field(default_factory=list)  # arms of the file that do not run
    # {axis: {label: rule}} of the axis values that set `equalize`; None is off
    equal: dict[str, dict[Any, Equal | None]] = field(default_factory=dict)

    def equal_rule(self, labels: dict[str, Any]) -> Equal | None:
        """Return what the arms are to cost equally much of at these axis values, or None; the last axis that sets it wins."""
        rules = [self.equal[axis][label] for axis, label in labels.items() if label in self.equal.get(axis, {})]
        return rules[-1] if rules else _equal(self, vars(self), self.place("equalize"))

    @property
    def equal_facts(self) -> dict[str, Any]:
        """The facts for the report: what all arms cost equally much of, and the axis values with another rule, by axis and label."""
        default, axes = self.equal_rule({}), {axis: values for axis, values in self.equal.items() if values}
        return {
            "all": default and default._asdict(),
            "axes": {axis: {str(label): rule and rule._asdict() for label, rule in values.items()} for axis, values in axes.items()},
        }

    def place(self, key: str) -> str:
        """Return where a field of the sweep, or `axes.NAME`, was set: on the command line or in the file."""
        return CLI if key in (*self.overrides.sweep, *(f"axes.{name}" for name in self.overrides.axes)) else self.file


# --------------------------------------------------------------------------------------------------------------- read


def read(path: str | Path, overrides: Overrides | None = None, everything: bool = False) -> Spec:
    """Read, check and narrow a sweep file.

    Args:
        path: the file.
        overrides: the command line's settings.
        everything: include the optional arms and axis values.

    Raises:
        ConfigError: naming the file and the field.
    """
    path, cli, file = Path(path), overrides or Overrides(), str(path)
    content = read_yaml(path)
    if not content.get("arms"):  # for example a site profile, or another YAML file
        reason = "it has no arms, so it is not a sweep (a site profile goes to --site); sweeps/README.md has a complete example"
        raise ConfigError(reason, place=file)
    if isinstance(arms := content.get("arms"), dict):
        content["arms"] = {name: {} if arm is None else arm for name, arm in arms.items()}
    # taken out here, as their labels may have dots, which would nest them
    axes, published = content.pop("axes", None) or {}, _pop_published(content.get("arms"))
    fill(SweepFile, cli.sweep, where=CLI)
    for owner, fields in cli.resources.items():
        resources(CLI, f"arms.{owner}.resources" if owner else "resources", fields)
    filled = fill(SweepFile, content, cli.sweep, {"resources": cli.resources.get(None, {})}, where=file)
    spec = Spec(**vars(filled), file=file, overrides=cli)
    resources(file, "resources", vars(spec.resources))
    for name, value in published.items():
        spec.arms[name].published = value
    _check_arms(spec)
    stages = {name: list(arm.stages) for name, arm in spec.arms.items()}
    every_axis = {str(name): axis_values(name, values, file) for name, values in mapping(axes, "axes", file).items()}
    added = added_axes(cli.axes, every_axis, [stage for names in stages.values() for stage in names])
    every_axis, spec.added_axes = every_axis | added, list(added)
    _check_names(spec, every_axis)
    spec.axes = {name: _pick_values(name, values, spec, everything) for name, values in every_axis.items()}
    spec.arms = _pick_arms(spec, everything)
    spec.left_out = [name for name in stages if name not in spec.arms]
    check(cli, stages, spec.arms)
    _check_layers(spec, list(dict.fromkeys(stage for names in stages.values() for stage in names)))
    for name, arm in spec.arms.items():
        arm.resources |= cli.resources.get(None, {}) | cli.resources.get(name, {})
    return spec


def resources(where: str, path: str, *layers: dict[str, Any]) -> Resources:
    """Merge and check what a job asks for.

    Args:
        where: the place that an error names: the file or the command line.
        path: the field of the resources, below which an error names one.
        layers: fields of the resources; later layers win.

    Raises:
        ConfigError: a field is not known, or its value is too small or not finite.
    """
    merged = merge(Resources, *layers, where=where, field=path)
    # the least hours are a minute, as SLURM counts in minutes
    for name, low in (("nodes", 1), ("gpus_per_node", 0), ("cpus_per_gpu", 1), ("hours", 1 / 60), ("mem_gb", 1 / 1024)):
        value = getattr(merged, name)
        if value is not None and not low <= value < math.inf:
            raise ConfigError(f"{value:g} is {'not finite' if value >= low else f'less than {low:.2g}'}", f"{path}.{name}", where)
    return merged


def on_this_machine(spec: Spec) -> None:
    """Reduce what arms ask for to one node, and to at most one process per GPU of this machine, or per core without GPUs."""
    gpus = len(visible_gpus())
    most = gpus or len(os.sched_getaffinity(0))
    wanted = [(vars(spec.resources) | arm.resources)["gpus_per_node"] for arm in spec.arms.values()]
    reduced = any(isinstance(count, int) and count > most for count in wanted)
    for resources in (vars(spec.resources), *(arm.resources for arm in spec.arms.values())):
        if isinstance(nodes := resources.get("nodes"), int):
            resources["nodes"] = min(1, nodes)
        if isinstance(asked := resources.get("gpus_per_node"), int) and asked > most:
            # a divisor of the number asked for also divides the batches that were chosen for it
            resources["gpus_per_node"] = next(count for count in range(most, 0, -1) if asked % count == 0)
    if any((fields.get("nodes") or 1) > 1 for fields in spec.overrides.resources.values()):
        note("resources.nodes applies to clusters; this machine trains on one node")
    if reduced:
        devices = counted(gpus, "GPU") if gpus else f"no GPU and {counted(most, 'core')}"
        note(f"this machine has {devices}: fewer processes than resources.gpus_per_node share each batch")


def _pop_published(arms: Any) -> dict[str, Any]:
    """Remove the published numbers from the arms of a file's content, and return them by arm."""
    by_name = arms if isinstance(arms, dict) else {}
    return {str(name): arm.pop("published") for name, arm in by_name.items() if isinstance(arm, dict) and "published" in arm}


def _check_arms(spec: Spec) -> None:
    """Check the sweep's name and paper, and each arm's name, stages and published numbers."""
    if not re.fullmatch(NAME, spec.name):
        reason = f"{spec.name!r} cannot be the folder of its runs; use letters, digits, dots, dashes and underscores, a hundred at most"
        raise ConfigError(reason if spec.name else "not set; it is the folder of the sweep's runs", "name", spec.place("name"))
    for name in ("title", "table") if spec.paper else ():
        if not getattr(spec.paper, name):
            raise ConfigError("it is empty; name what the sweep reproduces, or leave paper out", f"paper.{name}", spec.file)
    if spec.paper and spec.paper.url and not re.match(r"https?://", spec.paper.url):
        raise ConfigError(f"{spec.paper.url!r} is not a link to a page; it begins with https://", "paper.url", spec.file)
    for name, arm in spec.arms.items():
        path = f"arms.{name}.stages"
        _check_name("arm", str(name), "arms", spec.file)
        if not arm.stages and not (arm.quoted or arm.not_runnable):
            raise ConfigError("an arm needs a stage, for example {train: {objectives.classify: {}}}", path, spec.file)
        if arm.stages and arm.not_runnable:
            raise ConfigError(
                "it says why the arm cannot run, but the arm has stages; leave out one of the two", f"arms.{name}.not_runnable", spec.file
            )
        for stage in arm.stages:
            _check_name("stage", str(stage), path, spec.file)
            if stage in RUN_FIELDS:
                raise ConfigError("a stage cannot have the name of a field of a Run", f"{path}.{stage}", spec.file)
        _check_published(arm.published, f"arms.{name}.published", spec.file)
        _check_published(arm.published_cost, f"arms.{name}.published_cost", spec.file, also=str)


def _check_name(kind: str, name: str, path: str, file: str) -> None:
    """Check that ``name`` can be used in folders and batch scripts."""
    if not re.fullmatch(NAME, name):
        reason = f"{name[:80]!r} cannot be the name of this {kind}; use letters, digits, dashes, underscores"
        raise ConfigError(reason, path, file)


def _check_published(value: Any, path: str, file: str, also: type | tuple[()] = ()) -> None:
    """Check that ``value`` is a number, a mapping of labels to numbers, null, or of the type ``also``, such as the text 0.43+1.26."""
    if isinstance(value, dict):
        for key, part in value.items():
            _check_published(part, f"{path}.{key}", file, also)
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MOST
    if not (value is None or is_number or isinstance(value, also)):
        raise ConfigError(f"{value!r} is not a number, nor a mapping of a column's values to numbers", path, file)


def _check_layers(spec: Spec, stages: list[str]) -> None:
    """Check each layer of the file by itself, so that an error names its place instead of the first cell that uses it."""
    layers = {"defaults": spec.defaults, "smoke": spec.smoke}
    for name, arm in spec.arms.items():
        layers[f"arms.{name}.defaults"] = arm.defaults
        layers |= {f"arms.{name}.stages.{stage}": arm.fields_of(stage) for stage in arm.stages}
    for path, fields in layers.items():
        fill(Run, fields, where=f"{spec.file}: {path}")
    for axis, values in spec.axes.items():
        for label, setting in ((label, setting) for label, chosen in values.items() for setting in chosen):
            setting.check(stages, f"{spec.place(f'axes.{axis}')}: axes.{axis}.{label}")


def _check_names(spec: Spec, axes: dict[str, dict[Any, Any]]) -> None:
    """Check `length`, that the axes and arms that other fields name exist, and that published numbers say which column they are for."""
    references: list[tuple[str, str | None, Collection[str]]] = [("columns", spec.columns, axes)]
    references += [("baseline", spec.baseline, spec.arms), ("equal_to", spec.equal_to, spec.arms)]
    references += [("select", axis, axes) for axis in spec.select]
    for key, name, known in references:
        if name is not None and name not in known:
            added = f"; 'axes.{name}=[A,B]' adds an axis of it" if "." in name else ""
            raise ConfigError(f"{unknown_error(name, known).reason}{added}", key, spec.place(key))
    if not 0 < spec.length <= MOST_LENGTH:
        reason = f"{spec.length:g} is not above 0 and at most {MOST_LENGTH}; 0.5 trains half as long as in the file"
        raise ConfigError(reason, "length", spec.place("length"))
    if spec.equal_to is not None and not (spec.equalize or any("equalize" in fields for axis in axes.values() for fields in axis.values())):
        reason = "nothing is equalized; add equalize=macs (or gpu_hours, kwh), or leave this out"
        raise ConfigError(reason, "equal_to", spec.place("equal_to"))
    for axis in spec.select:
        if axis in ("seed", spec.columns):
            reason = f"{axis}: seeds are averaged and columns shown side by side; select over other axes"
            raise ConfigError(reason, "select", spec.place("select"))
    columns = [str(label) for label in axes.get(spec.columns or "", {})]
    for name, arm in spec.arms.items():
        if arm.baseline is not None and arm.baseline not in spec.arms:
            raise unknown_error(arm.baseline, spec.arms, f"arms.{name}.baseline", spec.file)
        if isinstance(arm.published, int | float) and columns and spec.place("columns") != CLI:
            reason = f"one number for {counted(len(columns), 'column')}; say which it is for: {{{columns[0]}: {arm.published:g}}}"
            raise ConfigError(reason, f"arms.{name}.published", spec.file)
        if isinstance(arm.published, dict):
            arm.published = {str(key): value for key, value in arm.published.items()}
            if spec.place("columns") == CLI:  # the paper has other columns
                arm.published = {key: value for key, value in arm.published.items() if key in columns} or None
            for key in arm.published or ():
                if key not in columns:
                    raise unknown_error(key, columns, f"arms.{name}.published", spec.file)


def _pick_values(name: str, values: dict[Any, dict], spec: Spec, everything: bool) -> dict[Any, list[Setting]]:
    """Return {label: settings} of the values of an axis that run, and keep the rules of those that set `equalize`."""
    requested = None if name in spec.added_axes else spec.overrides.axes.get(name)
    if requested is not None and all(fields == {name: label} for label, fields in values.items()):
        values = axis_values(name, requested, CLI)
        requested = list(values)
    by_text = {str(axis_label(label)): label for label in values}
    for label in requested or ():
        if str(axis_label(label)) not in by_text:
            raise unknown_error(label, by_text, f"axes.{name}", CLI)
    labels = [by_text[str(axis_label(label))] for label in requested or ()]
    where = f"{spec.place(f'axes.{name}')}: axes.{name}"
    spec.equal[name] = {label: _equal(spec, fields, f"{where}.{label}") for label, fields in values.items() if "equalize" in fields}
    if requested is None:
        labels = [label for label, fields in values.items() if everything or not fields.get("optional", False)]
    if not labels:
        raise ConfigError(f"no value is chosen; choose with axes.{name}=[...]", f"axes.{name}", spec.place(f"axes.{name}"))
    return {label: list(settings({k: v for k, v in values[label].items() if k not in AXIS_VALUE_KEYS})) for label in labels}


def _equal(spec: SweepFile, fields: dict[str, Any], where: str) -> Equal | None:
    """Return what `equalize` and `equal_to` of a sweep or of an axis value ask for, or None if `equalize` is null."""
    if (quantity := fields["equalize"]) is None:
        return None
    if quantity not in get_args(Quantity):
        raise ConfigError(f"{quantity!r} is none of {', '.join(get_args(Quantity))}", "equalize", where)
    reference = fields.get("equal_to") or spec.equal_to or spec.baseline
    if reference is None:
        raise ConfigError("name the arm whose cost the others are to match", "equal_to", where)
    return Equal(quantity, reference)


def _pick_arms(spec: Spec, everything: bool) -> dict[str, Arm]:
    """Return the arms that were asked for, or by default all that are not optional."""
    requested = spec.overrides.arms
    for name in requested or ():
        if name not in spec.arms:
            raise unknown_error(name, spec.arms, "arms", CLI)
    if requested is None:
        requested = [name for name, arm in spec.arms.items() if everything or not arm.optional]
    if not any(spec.arms[name].stages for name in requested):
        reason = f"none of {', '.join(requested)} can run" if requested else f"name some of {', '.join(spec.arms)}"
        raise ConfigError(reason, "arms", spec.file if spec.overrides.arms is None else CLI)
    return {name: spec.arms[name] for name in requested}
