"""An objective stands in every list that wants it: the files that vitssl/docs/contributing.md names."""

from __future__ import annotations

import dataclasses
import importlib
import math
import re
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from jobs.plan import sweep
from jobs.plan.cells import cells
from tests.objectives.conftest import NAMES, declared
from tests.shipped import SWEEPS
from tests.test_pairs import OBJECTIVES
from tests.training.test_train import CURVES
from vitssl import model
from vitssl.checkpoints import pretrained
from vitssl.config import ConfigError, ObjectiveConfig, Objectives, active, assign, check, dotted
from vitssl.config.base import parts_of
from vitssl.objectives.base import Objective
from vitssl.objectives.teacher import Distilled

ROOT = Path(__file__).resolve().parents[2]


@cache
def _of_sweeps() -> set[str]:
    """The objectives that the project's sweeps train."""
    specs = [sweep.read(path, everything=True) for path in SWEEPS]
    for spec in specs:
        spec.axes = {name: dict([next(iter(values.items()))]) for name, values in spec.axes.items()}
    return {name for spec in specs for cell in cells(spec) for stage in cell.stages for name in active(stage.run.objectives)}


@pytest.mark.parametrize("name", NAMES)
def test_an_objective_has_its_files_and_its_place_in_every_list(name: str) -> None:
    kind = parts_of(Objectives)[name]
    assert issubclass(kind, ObjectiveConfig) and kind.__module__ == f"vitssl.config.objectives.{name}"
    module = importlib.import_module(f"vitssl.objectives.{name}")
    objective = getattr(module, kind.__name__.removesuffix("Config"))
    assert issubclass(objective, Objective) and issubclass(objective, Distilled) == kind.has_teacher
    assert (ROOT / "tests" / "objectives" / f"test_{name}.py").is_file()
    assert any(name in objectives for objectives in OBJECTIVES.values()), "neither PAIRS of its test file nor tests/test_pairs.py trains it"
    assert (ROOT / "tests" / "golden" / f"{name}.json").is_file(), (
        f"pytest 'tests/training/test_train.py::test_golden_loss_curve[{name}]' writes it from CURVE of its test file"
    )
    assert isinstance(declared("OVER_RANKS").get(name) or {}, dict | str) and declared("OVER_RANKS").get(name) not in (None, ""), (
        "its test file says by OVER_RANKS whether its loss is over the images of all ranks (test_simclr.py)"
    )
    assert name in _of_sweeps(), "no sweep of the list in sweeps/README.md trains it"


def test_no_name_begins_with_anothers() -> None:
    """Whose term one is, is told by how its name begins."""
    assert not [(one, other) for one in NAMES for other in NAMES if one != other and other.startswith(one)]


@pytest.mark.parametrize("name", [name for name in NAMES if parts_of(Objectives)[name].has_teacher])
def test_a_teacher_that_follows_is_found_by_its_name(make_run, name: str) -> None:
    fields = next(fields for fields in OBJECTIVES.values() if name in fields)
    network = model.build(make_run({"data.views": {"second": {}, "local": {"size": 4}}, "objectives": fields}), 10)
    assert pretrained.chosen({"model": network.state_dict()}, "teacher").keys() == {
        f"backbone.{key}" for key in network.backbone.state_dict()
    }


def test_who_has_no_teacher_is_told_which_objectives_do() -> None:
    having = [f"objectives.{name}" for name in NAMES if parts_of(Objectives)[name].has_teacher]
    with pytest.raises(ConfigError, match=rf"^holds no teacher .*\({', '.join(having)}\)$"):
        pretrained.chosen({"model": {}}, "teacher")


@pytest.mark.parametrize("name", NAMES)
def test_its_smoke_size_is_of_its_own_fields(name: str) -> None:
    kind = parts_of(Objectives)[name]
    assert kind.smoke.keys() <= {f.name for f in dataclasses.fields(kind)}


@pytest.mark.parametrize("name", NAMES)
def test_no_number_of_it_may_be_negative(make_run, name: str) -> None:
    layers = CURVES.get(name) or {"objectives": next(fields for fields in OBJECTIVES.values() if name in fields)}
    fields = dotted(dataclasses.asdict(getattr(make_run(layers).objectives, name)))
    numbers = [field for field, value in fields.items() if isinstance(value, int | float) and not isinstance(value, bool)]
    assert "weight" in numbers
    for field in numbers:
        run = make_run(layers)
        assign(run, f"objectives.{name}.{field}", type(fields[field])(-1))
        with pytest.raises(ConfigError, match=rf"^objectives\.{name}\.{re.escape(field)}: "):
            check(run)


@pytest.mark.parametrize("name", CURVES)
def test_no_number_makes_the_checks_themselves_fail(make_run, name: str) -> None:
    """One check may divide by what another one refuses."""
    for field, value in dotted(dataclasses.asdict(make_run(CURVES[name]))).items():
        others = (-1, 0, 10**6) if type(value) is int else (-1.0, 0.0, 1e6, math.inf, math.nan) if type(value) is float else ()
        for other in others:
            run = make_run(CURVES[name])
            assign(run, field, other)
            with suppress(ConfigError):
                check(run)
