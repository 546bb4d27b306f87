"""Fields that are set outside a Run's stage: by `key=value` on the command line, and by the values of a sweep's axes.

    [arms.ARM.][STAGE.]FIELD    a field of all Runs, of an arm, of a stage, or of a stage of an arm (in axes: of all, or of a stage)
    [arms.ARM.]resources.FIELD  what jobs ask for
    site.FIELD                  where they run
    axes.NAME=[...] arms=[...]  the part of the sweep that runs
    axes.FIELD=[...]            an additional axis of a field's values; axes.NAME={LABEL: {FIELD: value}} of sets of fields
    name columns baseline metric select length equalize equal_to
    budget.FIELD                what the sweep may cost

A key may also name a group of fields, and its value set several of them: `resources={nodes: 2, hours: 1}`,
`finetune={optim.lr: 1e-4}`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from vitssl.config import ConfigError, Run, active, dotted, fill, inactive_fields, nested, read_value, reads_labels, unknown_error
from vitssl.config.base import closest
from vitssl.config.suggestions import suggest_fields, unknown_field_error
from vitssl.words import listed

RUN_FIELDS = {f.name for f in dataclasses.fields(Run)}
SWEEP_KEYS = {"name", "columns", "baseline", "metric", "select", "length", "equalize", "equal_to"}
OTHER_KEYS = ("arms", "axes", "budget", "resources", "site", *sorted(SWEEP_KEYS))  # other first words of the command line's keys
CLI = "command line"  # what errors name as their place


class Setting(NamedTuple):
    """A field of Runs and its value, for all arms and stages or only for the named ones."""

    arm: str | None
    stage: str | None
    field: str
    value: Any

    @property
    def scope(self) -> str:
        """The arm and stage that the setting is for, such as arms.ssat.train; empty if it is for all Runs."""
        return ".".join(part for part in (self.arm and f"arms.{self.arm}", self.stage) if part)

    @property
    def prefix(self) -> str:
        """The arm and stage that the setting is for, with a dot behind them; empty if it is for all Runs."""
        return f"{self.scope}." if self.scope else ""

    @property
    def key(self) -> str:
        """The key of the setting, as written on the command line."""
        return f"{self.prefix}{self.field}".removesuffix(".")

    @property
    def leaves(self) -> dict[str, Any]:
        """{dotted field: value} of all single fields that the setting sets."""
        return dotted(nested({self.field: self.value})) if self.field else {}

    @property
    def objective(self) -> str | None:
        """The objective whose field the setting sets; None if it sets another field, or a whole objective."""
        head, *rest = self.field.split(".")
        return rest[0] if head == "objectives" and len(rest) > 1 else None

    @property
    def narrowness(self) -> tuple[bool, bool]:
        """A sort key for merging: settings of an arm win over settings of a stage, which win over settings for all Runs."""
        return self.arm is not None, self.stage is not None

    def reaches(self, arm: str, stage: str) -> bool:
        """Whether the setting is for this stage of this arm."""
        return self.arm in (None, arm) and self.stage in (None, stage)

    def sets(self, field: str) -> bool:
        """Whether the setting sets this dotted ``field``, or the whole part of a Run that holds it."""
        return any(field == name or (value != {} and field.startswith(f"{name}.")) for name, value in self.leaves.items())

    def applies_to(self, stage: str, run: Run) -> bool:
        """Whether the setting sets a field that the Run of this stage reads."""
        if self.stage not in (None, stage) or (self.objective is not None and self.objective not in active(run.objectives)):
            return False
        without_effect = inactive_fields(run)
        if self.leaves and all(name in without_effect for name in self.leaves):
            return False
        return reads_labels(run) or not all(name.startswith("data.labels") for name in self.leaves)

    def check(self, stages: Collection[str], where: str) -> None:
        """Check that the setting's stage and field exist, and that its value has the field's type.

        Args:
            stages: the names of the stages that may be meant.
            where: the file or command line that an error names.

        Raises:
            ConfigError: otherwise, with advice.
        """
        if self.stage in OTHER_KEYS and self.stage not in stages:
            raise ConfigError(f"{self.stage} is not a field of a run", self.key, where)
        if self.stage is not None and self.stage not in stages:
            known = [*sorted(RUN_FIELDS), *stages, *(OTHER_KEYS if where == CLI else ())]
            is_of_a_stage = self.field.partition(".")[0] in RUN_FIELDS  # what begins it was to be a stage
            similar = closest(self.stage, known)
            of_sweep = bool(similar) and similar[0] in OTHER_KEYS and not self.field and not suggest_fields(self.stage)
            error = (
                unknown_error(self.stage, stages, also=similar)
                if is_of_a_stage or of_sweep
                else unknown_field_error(self.stage, known, self.key)
            )
            raise ConfigError(error.reason, self.key, where)
        fill(Run, {self.field: self.value} if self.field else self.value, where=where, field=self.scope)


def settings(fields: dict[str, Any], arm: str | None = None) -> Iterator[Setting]:
    """Yield the settings of a mapping whose keys are `[STAGE.]FIELD`, for one ``arm`` or for all.

    The value `{}` of a stage sets nothing, but the stage has to exist.
    """
    for key, value in fields.items():
        head, _, rest = str(key).partition(".")
        if head in RUN_FIELDS:
            yield Setting(arm, None, str(key), value)
        elif isinstance(value, dict) and value and not rest:
            yield from (Setting(arm, head, str(name), part) for name, part in value.items())
        else:
            yield Setting(arm, head, rest, value)


def layer(chosen: Iterable[Setting], arm: str | None, stage: str | None, below: dict[str, Any] | None = None) -> dict[str, Any]:
    """Merge the settings for exactly this arm and stage into a layer of a Run.

    A field of an objective applies only if that objective is on after the layers ``below`` and the other settings; it does not switch the
    objective on, as `objectives.mae={}` does. Without ``below`` it always applies.
    """
    own = [s for s in chosen if (s.arm, s.stage) == (arm, stage) and s.field]
    if below is not None:
        merged = nested(below, *({s.field: s.value} for s in own if s.objective is None))
        switched_on = {name for name, value in (merged.get("objectives") or {}).items() if value is not None}
        own = [s for s in own if s.objective is None or s.objective in switched_on]
    return nested(*({s.field: s.value} for s in own))


@dataclass
class Overrides:
    """The command line's settings, grouped by what they set."""

    arms: list[str] | None = None
    axes: dict[str, list[Any] | dict[str, Any]] = field(default_factory=dict)
    resources: dict[str | None, dict[str, Any]] = field(default_factory=dict)  # arm, or None for all arms -> fields
    site: dict[str, Any] = field(default_factory=dict)
    sweep: dict[str, Any] = field(default_factory=dict)
    settings: list[Setting] = field(default_factory=list)


def parse(arguments: list[str]) -> Overrides:
    """Group the command line's `key=value` by what they set.

    Raises:
        ConfigError: a word is not `key=value`, or cannot be what its key asks for.
    """
    _refuse_twice(arguments)
    result = Overrides()
    for argument in arguments:
        key, equals, text = argument.partition("=")
        key = key.strip()
        if not equals or "" in key.split("."):
            raise ConfigError(f"{argument!r} is not key=value{_advice(argument)}", place=CLI)
        _add_override(result, key, read_value(text, key, CLI))
    return result


def _refuse_twice(arguments: list[str]) -> None:
    """Refuse a key that is given several values.

    For example, a shell turns ``axes.seed={0,1,2}`` without quotes into ``axes.seed=0 axes.seed=1 axes.seed=2``, which is refused.
    """
    values: dict[str, set[str]] = {}
    for key, _, text in (argument.partition("=") for argument in arguments if "=" in argument):
        values.setdefault(key.strip(), set()).add(text)
    for key, texts in values.items():
        if len(texts) > 1:
            advice = "" if key in OTHER_KEYS else f"; axes.{key.removeprefix('axes.')}=[A,B] makes a run with each"
            raise ConfigError(f"it is given as {listed(sorted(texts))}; leave out all but one, and put braces in quotes{advice}", key, CLI)


def _advice(argument: str) -> str:
    """Advise what to write instead of a word that is not `key=value`."""
    if Path(argument).suffix in (".yaml", ".yml"):
        return "; one sweep file at a time, before all key=value"
    if argument.endswith(":") and re.fullmatch(r"\w+(\.\w+)*:", argument):
        return f"; write {argument[:-1]}=VALUE"
    return f"; write {argument}=VALUE" if re.fullmatch(r"\w+(\.\w+)+", argument) else "; put a value with spaces in quotes"


def _add_override(result: Overrides, key: str, value: Any) -> None:
    """Add the ``value`` of a ``key`` to the group of ``result`` that it belongs to, taking mappings without a field's name apart."""
    arm, name = None, key
    if key.startswith("arms."):
        arm, _, name = key.removeprefix("arms.").partition(".")
        name = name.removeprefix("stages.")  # as the sweep file spells it: arms.ARM.stages.STAGE
    head, _, rest = name.partition(".")
    examples = {"": f"{key}.optim.lr=1e-3", "axes": "axes.seed=[0,1]", "resources": f"{key}.nodes=2", "site": "site.gpu=H200"}
    examples["budget"] = "budget.gpu_hours=100"
    if isinstance(value, dict) and value and not rest and head not in RUN_FIELDS | SWEEP_KEYS:
        for inner, part in value.items():
            _add_override(result, f"{key}.{inner}", part)
    elif head in examples and not rest:
        raise ConfigError(f"name a field, for example {examples[head]}", key, CLI)
    elif head == "resources":
        result.resources.setdefault(arm, {})[rest] = value
    elif arm is not None:
        result.settings += settings({name: value}, arm)
    elif (key == "arms" or head == "axes") and isinstance(value, str) and "," in value:
        raise ConfigError(f"{value!r} is one name; write {key}=[{value}]", key, CLI)
    elif key == "arms":
        result.arms = _as_list(value)
    elif head == "axes":
        result.axes[rest] = value if isinstance(value, dict) else _as_list(value)
    elif head == "site":
        result.site[rest] = value
    elif key in SWEEP_KEYS or head == "budget":
        result.sweep[key] = _as_list(value) if key == "select" else value
    else:
        result.settings += settings({name: value})


def _as_list(value: Any) -> list[Any]:
    """Return a single value as a list of one, and null as an empty list."""
    return [] if value is None else value if isinstance(value, list) else [value]


def check(asked: Overrides, stages: dict[str, list[str]], chosen: Collection[str]) -> None:
    """Check that every field that the command line sets belongs to a Run of an arm that runs.

    Args:
        asked: the command line's settings.
        stages: the stages of every arm of the sweep.
        chosen: the arms that run.

    Raises:
        ConfigError: an arm, a stage or a field is not known or does not run, or a value has the wrong type.
    """
    for arm in (*asked.resources, *(setting.arm for setting in asked.settings)):
        if arm is not None and arm not in stages:
            raise ConfigError(f"{unknown_error(arm, stages).reason}; a new arm is written into the sweep file", f"arms.{arm}", CLI)
        if arm is not None and arm not in chosen:
            raise ConfigError(f"this arm is not selected; add it with arms=[{arm}], or leave out the field", f"arms.{arm}", CLI)
    running = list(dict.fromkeys(stage for arm in chosen for stage in stages[arm]))
    for setting in asked.settings:
        name, known = setting.stage, running if setting.arm is None else stages[setting.arm]
        if name not in known and setting.arm is None and name in stages:
            reason = f"{name} is an arm; write arms.{name}.{setting.field or 'FIELD'}=... for this arm alone"
            raise ConfigError(reason, setting.key, CLI)
        if name not in known and setting.arm is None and any(name in names for names in stages.values()):
            raise ConfigError(f"{name} is not a stage of any selected arm ({', '.join(chosen)})", setting.key, CLI)
        setting.check(known, CLI)
