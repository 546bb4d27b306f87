"""Weights from outside a sweep: named for people, found or refused before anything is queued."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs import weights
from jobs.graph import Stage
from vitssl.config import ConfigError, Site, save


@pytest.fixture
def stage(make_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda source: Stage("train", make_run({"objectives.classify": {}, "init_from": source}), "x.yaml: arms.a.stages.train", {})


def test_released_weights_stand_for_a_file_that_is_fetched_where_it_is_missing(stage, tmp_path):
    first, again = stage("timm:deit"), stage("timm:deit")
    file = tmp_path / "weights" / "deit.pt"
    assert weights.prepare([first, again]) == {str(file): "timm:deit"}
    assert first.run.init_from == again.run.init_from == str(file)
    file.parent.mkdir()
    file.touch()
    assert weights.prepare([stage("timm:deit")]) == {}


def test_a_file_that_is_not_there_is_refused_with_its_field(stage):
    with pytest.raises(ConfigError, match=r"x\.yaml: arms\.a\.stages\.train: init_from: there is no missing\.pt"):
        weights.prepare([stage("missing.pt")])


def test_a_run_that_goes_on_is_no_start(stage, make_run, tmp_path):
    save(make_run({"objectives.classify": {}}), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"stages\.train: init_from: run is not done; let it finish, or name the file .* run/last\.pt"):
        weights.prepare([stage("run")])
    (tmp_path / "run" / "done.json").write_text("{}")
    assert weights.prepare([stage("run")]) == {}


def test_weights_that_cannot_be_fetched_queue_nothing(tmp_path):
    with pytest.raises(ConfigError, match=r"timm:no_such_model could not be fetched; put its file at .*x\.pt"):
        weights.fetch({str(Path(tmp_path) / "weights" / "x.pt"): "timm:no_such_model"}, Site())
