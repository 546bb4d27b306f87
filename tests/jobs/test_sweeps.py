"""Every arm of every sweep of the project takes two real training steps, one evaluation, and makes one row of the report."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from jobs import folders, shards, smoke, sweep
from jobs.graph import cells, link
from vitssl import report, train
from vitssl.config import Site

ROOT = Path(__file__).resolve().parents[2]
SWEEPS = sorted((ROOT / "sweeps").glob("*.yaml"))


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_arm_trains_evaluates_and_is_reported(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = smoke.narrow(sweep.read(path, everything=True))
    planned = cells(spec)
    for cell in planned:
        for stage in cell.stages:
            stage.run = smoke.shrink(stage.run, spec, tmp_path, stage.where)
            stage.run.loop.threads, stage.run.loop.device, stage.run.data.cache_dir = 1, "cpu", str(tmp_path / "cache")
    shards.build(shards.prepare(stage for cell in planned for stage in cell.stages), Site())
    graph = link(spec, planned, tmp_path / spec.name, shards.fingerprint)
    launch = folders.Launch(tmp_path / spec.name, "local", Site(), ROOT, commit=(None, True))
    launch.sweep.mkdir()
    folders.write_sweep(spec, graph, launch)
    for job in graph.jobs:
        folders.write_run(job, launch)
        assert train.main([str(job.folder)]) == 0, job.name
    report.write(launch.sweep)
    with (launch.sweep / "report" / "table.csv").open() as file:
        rows = list(csv.reader(file))
    shown = {cell for row in rows for cell in row}
    assert {cell.arm for cell in planned} <= shown


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_cell_expands(path: Path) -> None:
    spec = sweep.read(path, everything=True)
    assert {cell.arm for cell in cells(spec)} == {name for name, arm in spec.arms.items() if arm.stages}


def test_table_3_is_six_rows_and_four_schedules_share_two_pretrainings(tmp_path: Path) -> None:
    spec = sweep.read(ROOT / "sweeps" / "ssat_vs_sslft.yaml")
    assert list(spec.arms) == ["scratch", "sslft_50_50", "sslft_50_100", "sslft_100_50", "sslft_100_100", "ssat"]
    graph = link(spec, cells(spec), tmp_path, lambda run, where: run.data.shards)
    assert len(graph.cells) == 6 * 2 * 3
    stages = [job.stage for job in graph.jobs]
    assert (stages.count("train"), stages.count("pretrain"), stages.count("finetune")) == (12, 12, 24)


def test_the_papers_cost_stands_beside_imagenet_only() -> None:
    path = ROOT / "sweeps" / "ssat_vs_sslft.yaml"
    assert folders._published_cost(sweep.read(path).arms["ssat"], sweep.read(path)) is None
    spec = sweep.read(path, sweep.parse_overrides(["axes.data=imagenet"]))
    assert folders._published_cost(spec.arms["ssat"], spec) == {"gmacs": "1.67", "gpu_hours": 78, "kg_co2e": 7.55, "column": "imagenet"}


def test_the_quickstart_compares_at_equal_epochs() -> None:
    planned = cells(sweep.read(ROOT / "sweeps" / "quickstart.yaml"))
    assert len({sum(stage.run.loop.epochs for stage in cell.stages) for cell in planned}) == 1
