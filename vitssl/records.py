"""The JSON records of run and sweep folders: the fields that are read, and what each may hold.

A schema is one of:

- a type, a `Number` or a `Text`;
- a set of the allowed texts;
- a tuple of schemas, one of which must hold;
- ``[schema]``, a list, or ``[schema, ...]``, a list that is not empty;
- a dataclass, whose fields a record may have;
- a mapping of names to schemas. ``name?`` may be missing, and ``...`` stands for all names that the mapping does not list. Without
  ``...``, other names are not read and may hold anything: later versions write more.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, get_args

from vitssl.config import ConfigError, Problem, Site, fill, metrics
from vitssl.config.evals import KINDS, OWN_EVALS
from vitssl.config.sweep import Quantity
from vitssl.words import is_control

EXPECTED = {bool: "true or false", list: "a list", dict: "a mapping of names"}
MOST = 1e18  # no real figure is larger: a network of 10^12 multiply-adds that is run 10^6 times reaches it


@dataclass(frozen=True)
class Number:
    """A finite number in a range; with ``or_not_finite`` also infinity or NaN, which a network may have computed."""

    kind: type = float
    low: float = 0.0
    high: float = MOST
    or_not_finite: bool = False

    def problem(self, value: Any) -> str | None:
        kinds = (int,) if self.kind is int else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            return f"{_shown(value)} is not a {'whole ' if self.kind is int else ''}number"
        if self.or_not_finite and not (isinstance(value, int) or math.isfinite(value)):
            return None
        return None if self.low <= value <= self.high else f"{_shown(value)} is not from {self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Text:
    """A text that people read; by default, and for ``str`` in a schema, one line that does nothing to a terminal.

    Attributes:
        also: control characters that it may hold; None: all but NUL, as in an error message of another program.
        pattern: a regular expression that the whole text must match; empty: any text.
        what: what a text of this pattern is called.
    """

    also: str | None = ""
    pattern: str = ""
    what: str = ""

    def problem(self, value: Any) -> str | None:
        if not isinstance(value, str):
            return f"{_shown(value)} is not text"
        if not value.isprintable() and any(self._is_control(letter) for letter in value):
            return f"{_shown(value)} is not text" if "\0" in value or self.also is None else f"{_shown(value)} holds a control character"
        return f"{_shown(value)} is not {self.what}" if self.pattern and not re.fullmatch(self.pattern, value) else None

    def _is_control(self, letter: str) -> bool:
        if letter == "\0" or "\ud800" <= letter <= "\udfff":
            return True
        return self.also is not None and letter not in self.also and is_control(letter)


LINE, LINES, ANY_TEXT = Text(), Text("\n\t"), Text(None)
LINK = Text(pattern=r"(https?://\S+)?", what="an address")
COUNT, POSITIVE_COUNT, AMOUNT, SHARE = Number(int), Number(int, 1), Number(), Number(high=1.0)
METRIC = Number(low=-MOST, or_not_finite=True)
PERCENT = Number(high=100.001, or_not_finite=True)  # a mean of ones may be rounded up
TIME = Number(high=1e11)  # seconds since 1970
PROCESS = Number(int, 2, 2**31)  # an id; smaller numbers stand for several processes, or for the first one
NUMBER = Number(low=-MOST)
FINITE = Number(low=-1e300, high=1e300)
LABEL = (str, bool, FINITE, None)  # a value of an axis, or an evaluator's field: a seed may have 19 digits

METRICS = {...: METRIC} | {f"{name}?": PERCENT for name, metric in metrics.METRICS.items() if metric.unit == "%"}
FAILURE = {"message": ANY_TEXT, "attempt?": COUNT, "rank?": COUNT, "time?": TIME, "details?": ANY_TEXT}
MEASURED = {
    "params_train": COUNT, "params_inference": COUNT, "macs_train_forward": COUNT, "macs_train_step": COUNT,
    "macs_passes": {...: COUNT}, "macs_inference": COUNT, "activations_inference": COUNT, "precision": str,
}  # fmt: skip
# the speed of one process, the images trained on, and the device: metrics.jsonl says it too, but takes long to read
TRAINING = {"images_per_s": Number(low=1e-9), "images": COUNT, "device": str}
SPEED = {
    "inference_images_per_s": AMOUNT, "inference_spread?": AMOUNT, "inference_device": str, "inference_batch_size": POSITIVE_COUNT,
    "training?": TRAINING,
}  # fmt: skip
COST = MEASURED | SPEED  # of a trained run; an imported one has no speed
DATA = {
    "name": str, "built_from?": str, "classes": COUNT, "sha256": str, "train_images": POSITIVE_COUNT, "labelled_images": COUNT,
    "val_images": COUNT, "test_images": COUNT, "smallest_px": [COUNT], "largest_px": [COUNT], "near_duplicates?": (COUNT, None),
    "near_duplicates_unlabelled?": COUNT, "groups?": COUNT,
}  # fmt: skip
START = {"asked": TIME, "begin": TIME, "at_once": AMOUNT, "then": AMOUNT}  # of `--greenest-within`
JOB = {
    "site?": Site, "data?": DATA, "arm?": str, "stage?": str, "axes?": {...: LABEL}, "source?": str, "parents?": [str], "identity?": str,
    "schema?": Number(int),
    "architecture?": str, "executor?": str, "module?": str, "nodes?": POSITIVE_COUNT, "gpus_per_node?": COUNT, "hours?": AMOUNT,
    "binds?": [str], "cache_dir?": (str, None),
    "imported?": {"file": str, "layout": str, "sha256": str}, "start?": START, "reused_from?": str,
    "commit?": (str, None), "dirty?": bool, "earlier_sources?": [{"source": str, "commit?": (str, None), "dirty?": bool}],
}  # fmt: skip
EVALUATED = (*OWN_EVALS, "test_best")  # the results that done.json holds
DONE = {"step": COUNT, "epochs": AMOUNT, "time_s?": AMOUNT, **{f"{name}?": ({**METRICS, "top1": PERCENT}, None) for name in EVALUATED}}
EMISSIONS = {
    "attempt": COUNT, "node": str, "start": TIME, "end": TIME, "duration_s": AMOUNT, "gpus": COUNT, "gpu_kwh": AMOUNT, "cpu_kwh": AMOUNT,
    "ram_kwh": AMOUNT, "energy_kwh": AMOUNT, "co2e_kg": AMOUNT, "node_share": SHARE, "intensity_kg_per_kwh": AMOUNT, "country": str,
    "cpu_power_source": {"rapl", "tdp"}, "codecarbon": str, "gpu_busy_s": AMOUNT, "cpu_time_s": AMOUNT, "other_cpu_time_s": AMOUNT,
    "cores": POSITIVE_COUNT, "kwh_by_quarter_hour": {...: AMOUNT},
}  # fmt: skip
EVALS = {...: {"config": {"type": {*KINDS}, ...: LABEL}, "epoch": AMOUNT, "metrics": METRICS}}
EVENT = {"event": str, "step": COUNT, "time": TIME}
EVENTS: dict[str, dict[Any, Any]] = {  # by kind
    "start": EVENT | {
        "attempt": COUNT, "world_size": POSITIVE_COUNT, "steps": POSITIVE_COUNT, "device": str, "host": str, "versions": {...: str},
        "accumulate?": POSITIVE_COUNT, "batch_size?": POSITIVE_COUNT, "steps_per_epoch?": Number(low=1e-9), "epochs?": AMOUNT,
        "lost_steps": COUNT,
    },
    "train": EVENT | {"epoch": AMOUNT, "terms": {...: METRIC}, "images_per_s?": AMOUNT},
    "eval": {**EVENT, "epoch": AMOUNT, ...: METRICS},
}  # fmt: skip

PUBLISHED: dict[Any, Any] = {}
PUBLISHED[...] = (NUMBER, None, PUBLISHED)  # by the labels of one axis, or of several axes
ARM = {
    "name": str, "row": str, "published": PUBLISHED[...], "published_cost": ({...: (str, NUMBER, None)}, None), "quoted": bool,
    "not_runnable": (LINES, None), "note": (LINES, None), "baseline": (str, None),
}  # fmt: skip
STAGE = {"stage": str, "folder": str}
EQUAL = {"quantity": {*get_args(Quantity)}, "reference": str}
SWEEP = {
    "name": str, "arms": [ARM], "cells": [{"arm": str, "axes": {...: LABEL}, "stages": [STAGE, ...]}],
    "axes": {...: [LABEL]}, "columns": (str, None), "baseline": (str, None), "metric": str, "select": [str],
    "paper": ({"title": str, "table": str, "url": LINK}, None), "notes": [LINES], "overrides": [str],
    "equal": {"all": (EQUAL, None), "axes": {...: {...: (EQUAL, None)}}}, "work": {...: {"images": AMOUNT, "architecture": str}},
    "site": Site, "file": str, "command": LINES, "commit": (str, None), "dirty": bool, "created": str, "start?": START,
}  # fmt: skip
SCHEMAS: dict[str, Any] = {  # by the names of files
    "job.json": JOB | {"evaluation?": JOB}, "cost.json": MEASURED | {f"{name.rstrip('?')}?": kind for name, kind in SPEED.items()},
    "done.json": DONE, "evals.json": EVALS, "emissions-*.json": EMISSIONS, "error.json": FAILURE, "sweep.json": SWEEP,
    "loggers.json": {...: Text()},
    "slurm.json": {"job_id": str, "user?": str, "left?": int},
    "local.json": {"pid": PROCESS, "host": str, "born": (str, None), "stop_file?": str},
    ".cost/*.json": {"macs_train_step": Number(low=1.0), "macs_inference": AMOUNT},
}  # fmt: skip


def check(record: dict[str, Any], path: Path) -> None:
    """Refuse a record that does not match the schema for its file's name; files without a schema may hold anything.

    Raises:
        ConfigError: names the file and the field.
    """
    schema: Any = next((schema for name, schema in SCHEMAS.items() if path.match(name)), {})
    check_as(schema, record, path)
    if schema is SWEEP:
        check_sweep(record, path)


def check_sweep(facts: dict[str, Any], path: Path) -> None:
    """Refuse a sweep.json whose parts do not fit together.

    Raises:
        ConfigError: names the file and the field.
    """
    for axis in facts["select"]:
        if any(axis not in axes for axes in (facts["axes"], *(cell["axes"] for cell in facts["cells"]))):
            refuse(path, f"select: {_shown(axis)} is not an axis of all cells")


def check_lines(lines: list[dict[str, Any]], path: Path) -> None:
    """Refuse lines that do not match their file: events of metrics.jsonl, or failures of errors.jsonl.

    Raises:
        ConfigError: names the file and the field.
    """
    if path.name == "errors.jsonl":
        for line in lines:
            check_as(FAILURE | {"attempt": COUNT}, line, path)
        return
    for line in lines:
        kind = line.get("event")
        check_as(EVENTS.get(kind, EVENT) if isinstance(kind, str) else EVENT, line, path)


def check_as(schema: Any, record: Any, path: Path) -> None:
    """Refuse a record that does not match a schema.

    Raises:
        ConfigError: names the file and the field.
    """
    for field, problem in problems(schema, record):
        refuse(path, f"{field}: {problem}" if field else problem)


def refuse(path: Path, reason: str) -> NoReturn:
    """Raise a ConfigError about a file that a run or a sweep left."""
    raise ConfigError(f"unexpected content ({reason}): restore the file from a backup, or delete it", place=str(path))


def problems(schema: Any, value: Any, field: str = "") -> Iterator[Problem]:
    """Yield where and why ``value`` does not match ``schema``."""
    if schema is str:
        schema = LINE
    if isinstance(schema, Number | Text):
        if problem := schema.problem(value):
            yield Problem(field, problem)
    elif isinstance(schema, tuple):
        if all(any(problems(option, value)) for option in schema):
            nearest = next((option for option in schema if isinstance(option, dict | list) and type(option) is type(value)), schema[0])
            yield from problems(nearest, value, field)
    elif isinstance(schema, set | frozenset):
        if not isinstance(value, str) or value not in schema:
            yield Problem(field, f"{_shown(value)} is none of {', '.join(sorted(schema))}")
    elif dataclasses.is_dataclass(schema):
        yield from _of_dataclass(schema, value, field)
    elif isinstance(schema, list | dict):
        yield from _of_parts(schema, value, field)
    elif not (value is None if schema is None else isinstance(value, schema)):
        yield Problem(field, f"{_shown(value)} is not {EXPECTED.get(schema, 'null')}")


def _of_parts(schema: Any, value: Any, field: str) -> Iterator[Problem]:
    if type(value) is not type(schema):
        yield Problem(field, f"{_shown(value)} is not {EXPECTED[type(schema)]}")
    elif isinstance(value, list):
        if len(schema) > 1 and not value:
            yield Problem(field, "it is empty")
        for i, part in enumerate(value):
            yield from problems(schema[0], part, f"{field}[{i}]")
    else:
        dot, named = f"{field}." if field else "", {str(name).rstrip("?"): name for name in schema if name is not ...}
        for name, key in named.items():
            if name in value:
                yield from problems(schema[key], value[name], f"{dot}{name}")
            elif key == name:
                yield Problem(f"{dot}{name}", "it is missing")
        for name in value.keys() - named.keys() if ... in schema else ():
            yield from problems(str, name, field)
            yield from problems(schema[...], value[name], f"{dot}{name}")


def _of_dataclass(schema: Any, value: Any, field: str) -> Iterator[Problem]:
    if isinstance(value, dict):
        yield from problems({...: object}, value, field)
    try:
        filled = fill(schema, value, field=field)
    except ConfigError as error:
        yield Problem(error.field, error.reason)
        return
    for name, part in vars(filled).items():
        if isinstance(part, float | str):
            yield from problems(FINITE if isinstance(part, float) else LINE, part, f"{field}.{name}")


def _shown(value: Any) -> str:
    try:
        text = ascii(value) if isinstance(value, str) else json.dumps(value)
    except (TypeError, ValueError, RecursionError):  # what a checkpoint can hold and JSON cannot, such as a tensor, or a list of itself
        text = f"what Python calls {type(value).__name__}"
    return text if len(text) < 60 else f"{text[:60]}..."
