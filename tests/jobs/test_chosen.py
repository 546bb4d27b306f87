"""Which runs of a sweep a command line names."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs import cancel, local
from jobs.chosen import named, shared, waiting_for
from vitssl.config import ConfigError
from vitssl.files import write_json

RUNS = {"a": ["a-pretrain", "a-finetune"], "ab": ["a-pretrain", "ab-middle", "ab-finetune"]}  # of arms; one pretraining for both


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    cells = [
        {"arm": arm, "axes": {}, "stages": [{"stage": run.split("-")[1], "folder": run} for run in runs]} for arm, runs in RUNS.items()
    ]
    write_json(tmp_path / "sweep.json", {"name": "x", "arms": [{"name": arm} for arm in RUNS], "cells": cells})
    for runs in RUNS.values():
        for parent, run in zip([None, *runs], runs, strict=False):
            (tmp_path / run).mkdir(exist_ok=True)
            write_json(tmp_path / run / "job.json", {"arm": run.split("-")[0], "parents": [f"/moved/from/{parent}"] if parent else []})
    (tmp_path / "a-earlier").mkdir()
    write_json(tmp_path / "a-earlier" / "job.json", {"arm": "a"})
    return tmp_path


def names(folders) -> set[str]:
    return {folder.name for folder in folders}


def test_arms_and_runs_are_named(sweep: Path) -> None:
    assert names(named(sweep, ["a"])) == {"a-pretrain", "a-finetune", "a-earlier"}  # an arm, and not a part of all names
    assert names(named(sweep, ["ab-f", "a-pretrain", str(sweep / "ab-middle")])) == {"ab-finetune", "a-pretrain", "ab-middle"}
    for word, said in {"finetune": "2 runs have 'finetune' in their names", "ab-fintune": "did you mean ab-finetune", "": "no run"}.items():
        with pytest.raises(ConfigError, match=said):
            named(sweep, [word])


def test_a_run_that_another_arm_needs_is_told_unless_it_is_named(sweep: Path) -> None:
    assert shared(sweep, ["a"]) == {sweep / "a-pretrain": "ab"}
    assert shared(sweep, ["a", "ab"]) == shared(sweep, ["a", "a-pretrain"]) == shared(sweep, ["a-finetune"]) == {}


def test_what_starts_from_a_run_waits_for_it_by_way_of_others_too(sweep: Path) -> None:
    folders = list(named(sweep, RUNS))
    assert names(waiting_for([sweep / "a-pretrain"], folders)) == {"a-finetune", "ab-middle", "ab-finetune"}
    assert names(waiting_for([sweep / "ab-middle"], folders)) == {"ab-finetune"}


def test_single_runs_of_this_machine_cannot_be_ended(sweep: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(local, "running", lambda _: 77)
    assert cancel.main([str(sweep), "ab"]) == 2
    assert capsys.readouterr().err.startswith("error: process 77 of this machine trains ")
