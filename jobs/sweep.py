"""A sweep file, read, checked and narrowed to what the command line asks for; `jobs.graph` makes Runs of it."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Optional

from jobs.overrides import RUN_FIELDS, Overrides, check
from vitssl.config import ConfigError, merge, read_yaml, unknown


@dataclass
class Paper:
    """What the sweep stands for."""

    title: str = ""
    table: str = ""
    url: str = ""


@dataclass
class Resources:
    """What one job asks for."""

    nodes: int = 1
    gpus_per_node: int = 1  # one process each; 0 is one process on the CPU
    cpus_per_gpu: int = 8
    mem_gb: Optional[float] = None  # per node; None takes the cluster's default
    hours: float = 12.0  # a job that needs longer is stopped, requeued and goes on


@dataclass
class Arm:
    """One row of the report: a chain of stages, or a row that the paper only quotes."""

    row: str = ""  # its name in the paper's table
    published: Any = None  # the paper's number, or one per value of the columns axis
    published_cost: Optional[dict[str, Any]] = None  # {gmacs, gpu_hours, kg_co2e}, or one such per value of the columns axis
    quoted: bool = False  # the paper took this number from elsewhere
    not_runnable: Optional[str] = None  # why not
    note: Optional[str] = None
    baseline: Optional[str] = None  # the arm that differences are taken against; None: the sweep's
    optional: bool = False  # runs only when asked for
    resources: dict[str, Any] = field(default_factory=dict)  # over the sweep's
    defaults: dict[str, Any] = field(default_factory=dict)  # over the sweep's, for every stage
    stages: dict[str, Optional[dict[str, Any]]] = field(default_factory=dict)  # name -> fields; the last one carries the accuracy


@dataclass
class Spec:
    """A sweep file, read and narrowed to what was asked for."""

    name: str
    file: str = ""
    paper: Optional[Paper] = None
    notes: list[str] = field(default_factory=list)
    columns: Optional[str] = None
    baseline: Optional[str] = None
    metric: Literal["top1", "top5", "top1_ema", "top5_ema"] = "top1"  # on the test set, after the last epoch
    site: Optional[str] = None
    resources: Resources = field(default_factory=Resources)
    defaults: dict[str, Any] = field(default_factory=dict)
    smoke: dict[str, Any] = field(default_factory=dict)  # further fields of a `--smoke` run
    arms: dict[str, Arm] = field(default_factory=dict)
    axes: Any = field(default_factory=dict)  # name -> {label: fields}
    overrides: dict[str, Any] = field(default_factory=dict)  # of Runs, from the command line
    arm_overrides: dict[str, Any] = field(default_factory=dict)  # arm -> such of that arm alone
    said: list[str] = field(default_factory=list)  # the command line's other keys: of the sweep, its axes and resources
    stages: list[str] = field(default_factory=list)  # of all arms of the file: an axis may set fields of one that does not run now

    def place(self, key: str) -> str:
        """Where a field of the sweep, an axis or a resource was set."""
        return "command line" if key in self.said else self.file

    def overridden(self) -> list[str]:
        """The fields of Runs that the command line sets, as it writes them."""
        return [*self.overrides, *(f"arms.{arm}.{key}" for arm, fields in self.arm_overrides.items() for key in fields)]


_NOT_OF_THE_FILE = {"file", "overrides", "arm_overrides", "said", "stages"}  # fields of a Spec that reading it fills in


# --------------------------------------------------------------------------------------------------------------- read


def read(path: str | Path, overrides: Overrides | None = None, everything: bool = False) -> Spec:
    """Read, check and narrow a sweep file.

    Args:
        path: the YAML file.
        overrides: the command line.
        everything: take the optional arms and axis values too.

    Raises:
        ConfigError: naming the file and the field.
    """
    overrides, where = overrides or Overrides(), str(path)
    content = read_yaml(path)
    axes, arms = content.pop("axes", None), content.get("arms")
    published = {name: arm.pop("published", None) for name, arm in _mapping(arms, f"{where}: arms").items() if isinstance(arm, dict)}
    for name in _NOT_OF_THE_FILE & content.keys():
        raise unknown(name, [f.name for f in dataclasses.fields(Spec) if f.name not in _NOT_OF_THE_FILE], where)
    if not isinstance(content.get("name"), str):
        raise ConfigError(f"{where}: name: a sweep needs a name; it is the folder of its runs")
    check_resources(merge(Resources, overrides.resources, where="command line: resources"), "command line: resources")
    merge(Spec, {"name": "any"}, overrides.sweep, where="command line")
    spec = merge(Spec, content, overrides.sweep, {"resources": overrides.resources}, where=where)
    check_resources(spec.resources, f"{where}: resources")
    spec.file, spec.overrides, spec.arm_overrides, spec.said = where, overrides.run, overrides.of_arm, overrides.of_the_sweep()
    if not re.fullmatch(r"\w[\w.-]{0,99}", spec.name):
        words = "cannot be the folder of its runs; use letters, digits, dots, dashes and underscores, a hundred at most"
        raise ConfigError(f"{spec.place('name')}: name: {spec.name!r} {words}")
    for name, value in published.items():
        spec.arms[name].published = value
    _check_arms(spec)
    every_axis = {str(name): _axis(name, values, where) for name, values in _mapping(axes or {}, f"{where}: axes").items()}
    _check_names(spec, every_axis)
    spec.axes = {name: _pick_values(name, values, overrides.axes.get(name), everything, where) for name, values in every_axis.items()}
    for name in overrides.axes:
        if name not in every_axis:
            raise unknown(name, every_axis, "command line: axes")
    stages = {name: list(arm.stages) for name, arm in spec.arms.items()}
    spec.stages = list(dict.fromkeys(stage for names in stages.values() for stage in names))
    spec.arms = _pick_arms(spec, overrides.arms, everything)
    check(overrides, stages, spec.arms)
    for name, arm in spec.arms.items():
        own = overrides.arm_resources.get(name, {})
        check_resources(merge(Resources, own, where=f"command line: arms.{name}.resources"), f"command line: arms.{name}.resources")
        arm.resources = {**arm.resources, **overrides.resources, **own}
    return spec


def check_resources(resources: Resources, where: str) -> None:
    """Refuse what no job can ask for.

    Raises:
        ConfigError: the first such field, behind ``where``.
    """
    # SLURM counts minutes
    for name, low in (("nodes", 1), ("gpus_per_node", 0), ("cpus_per_gpu", 1), ("hours", 1 / 60), ("mem_gb", 1 / 1024)):
        value = getattr(resources, name)
        if value is not None and not low <= value < math.inf:
            raise ConfigError(f"{where}.{name}: {value:g} is {'not finite' if value >= low else f'less than {low:.2g}'}")


def on_one_node(spec: Spec) -> None:
    """What asks for more nodes than this machine runs on one."""
    for resources in (vars(spec.resources), *(arm.resources for arm in spec.arms.values())):
        if isinstance(nodes := resources.get("nodes"), int):
            resources["nodes"] = min(1, nodes)


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or (not value and where.endswith("arms")):
        raise ConfigError(f"{where}: expected a mapping of names, found {value!r}")
    return value


def _check_arms(spec: Spec) -> None:
    for name, arm in spec.arms.items():
        where = f"{spec.file}: arms.{name}"
        if not arm.stages and not (arm.quoted or arm.not_runnable):
            raise ConfigError(f"{where}.stages: an arm needs a stage, for example {{train: {{objectives.classify: {{}}}}}}")
        for stage, fields in arm.stages.items():
            if stage in RUN_FIELDS:
                raise ConfigError(f"{where}.stages.{stage}: a stage cannot have the name of a field of a Run")
            arm.stages[stage] = fields or {}
        _check_published(arm.published, f"{where}.published")


def _check_published(value: Any, where: str) -> None:
    if isinstance(value, dict):
        for key, part in value.items():
            _check_published(part, f"{where}.{key}")
    elif value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ConfigError(f"{where}: {value!r} is not a number, nor a mapping of a column's values to numbers")


def _axis(name: str, values: Any, where: str) -> dict[Any, dict[str, Any]]:
    """{label: fields}: a list assigns each value to the field of the axis' name, a mapping names sets of fields."""
    if isinstance(values, list) and len({_label(value) for value in values}) < len(values):
        raise ConfigError(f"{where}: axes.{name}: {values} names a value twice")
    if isinstance(values, list) and values:
        return {_label(value): {name: value} for value in values}
    if isinstance(values, dict) and values:
        return {key: _mapping({} if fields is None else fields, f"{where}: axes.{name}.{key}") for key, fields in values.items()}
    raise ConfigError(f"{where}: axes.{name}: expected a list of values or a mapping of names to fields, found {values!r}")


def _label(value: Any) -> Any:
    return value if isinstance(value, (int, float, str, bool)) else str(value)


def _check_names(spec: Spec, axes: dict[str, dict[Any, Any]]) -> None:
    if spec.columns is not None and spec.columns not in axes:
        raise unknown(spec.columns, axes, f"{spec.place('columns')}: columns")
    if spec.baseline is not None and spec.baseline not in spec.arms:
        raise unknown(spec.baseline, spec.arms, f"{spec.place('baseline')}: baseline")
    columns = [str(label) for label in axes.get(spec.columns or "", {})]
    for name, arm in spec.arms.items():
        if arm.baseline is not None and arm.baseline not in spec.arms:
            raise unknown(arm.baseline, spec.arms, f"{spec.file}: arms.{name}.baseline")
        if isinstance(arm.published, dict):
            arm.published = {str(key): value for key, value in arm.published.items()}
            for key in arm.published:
                if key not in columns:
                    raise unknown(key, columns, f"{spec.file}: arms.{name}.published")


def _pick_values(name: str, values: dict[Any, dict], asked: list[Any] | None, everything: bool, where: str) -> dict[Any, dict[str, Any]]:
    if asked is not None and all(fields == {name: label} for label, fields in values.items()):
        return _axis(name, asked, where)
    by_text = {str(label): label for label in values}
    for label in asked or ():
        if str(label) not in by_text:
            raise unknown(label, by_text, f"command line: axes.{name}")
    labels = [by_text[str(label)] for label in asked or ()]
    if asked is None:
        labels = [label for label, fields in values.items() if everything or not fields.get("optional", False)]
    if not labels:
        raise ConfigError(f"{where}: axes.{name}: every value is optional; choose with axes.{name}=[...]")
    return {label: {k: v for k, v in values[label].items() if k != "optional"} for label in labels}


def _pick_arms(spec: Spec, asked: list[str] | None, everything: bool) -> dict[str, Arm]:
    for name in asked or ():
        if name not in spec.arms:
            raise unknown(name, spec.arms, "command line: arms")
    if asked is not None:
        return {str(name): spec.arms[name] for name in asked}
    return {name: arm for name, arm in spec.arms.items() if everything or not arm.optional}
