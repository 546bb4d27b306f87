"""`--greenest-within`: SLURM's begin of all runs, what it is said to save, and what is refused."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from jobs import submit
from jobs.folders import keep_grid
from jobs.plan.launch import Launch
from jobs.plan.predict import Prediction
from jobs.slurm import greenest
from vitssl.config import ConfigError, Site
from vitssl.files import read_json

NOON = datetime(2026, 11, 23, 12)
DAY = {0: 400, 4: 300, 8: 100, 10: 350, 20: 200}  # hours after noon: g/kWh


@pytest.fixture
def launch(place, monkeypatch) -> Launch:
    lines = [f"{NOON + timedelta(hours=hours):%Y-%m-%dT%H:%M},{grams}" for hours, grams in DAY.items()]
    (place / "forecast.csv").write_text("\n".join(["time,g_per_kwh", *lines]))
    monkeypatch.setattr(greenest.time, "time", NOON.timestamp)
    return Launch(place / "runs" / "example", "slurm", Site(partition="gpu", intensity_csv=str(place / "forecast.csv")), Path())


def found(expand, launch: Launch, within: str, hours: float) -> greenest.Start:
    graph = expand("arms=[scratch]")
    predictions = [Prediction(job.name, 1.0, 100, hours, hours, 1.0, 0.3, 0.0, "") for job in graph.jobs]
    return greenest.find(greenest.seconds(within), graph, predictions, launch)


@pytest.mark.parametrize(
    ("within", "hours", "begins", "said"),
    [
        (
            "24h",
            2.0,
            8.0,
            "Starts at 20:00, in 8.0 h, when the grid is greenest: 100 instead of 400 g/kWh on average, 75 % less CO2e than starting now",
        ),
        (
            "24h",
            4.0,
            6.0,
            "Starts at 18:00, in 6.0 h, when the grid is greenest: 200 instead of 400 g/kWh on average, 50 % less CO2e than starting now",
        ),
        ("300m", 2.0, 4.0, "Starts at 16:00, in 4.0 h, "),
        ("0.5d", 2.0, 8.0, "Starts at 20:00"),
        ("1h", 2.0, 0.0, "Now is the greenest time to start: 400 g CO2e/kWh on average while it runs"),
        ("20h", 12.0, 18.0, "Starts at 2026-11-24 06:00, in 18 h, "),  # 2 h of 350, 10 of 200, which is when the forecast ends
    ],
)
def test_the_runs_begin_when_the_grid_is_greenest(expand, launch, within, hours, begins, said):
    start = found(expand, launch, within, hours)
    assert start.begin == (NOON + timedelta(hours=begins)).timestamp() and str(start).startswith(said)
    greenest.apply(start, launch)
    expected = {"begin": f"{NOON + timedelta(hours=begins):%Y-%m-%dT%H:%M:%S}"} if begins else {}
    assert launch.site.additional == expected and launch.about()["start"]["begin"] == start.begin


@pytest.mark.parametrize(
    ("change", "said"),
    [({"executor": "local"}, "local runs start at once; only SLURM can wait"), ({"site": Site()}, r"it needs site\.intensity_csv")],
)
def test_what_it_cannot_do_is_one_line(expand, launch, change, said):
    for name, value in change.items():
        setattr(launch, name, value)
    with pytest.raises(ConfigError, match=said) as error:
        found(expand, launch, "24h", 1.0)
    assert str(error.value).startswith("command line: --greenest-within: ")


def test_two_beginnings_are_refused(expand, launch):
    launch.site.additional["begin"] = "now+1hour"
    with pytest.raises(ConfigError, match=r"site\.additional sets begin too"):
        found(expand, launch, "24h", 1.0)


def test_the_file_is_kept_beside_the_runs(launch):
    launch.sweep.mkdir(parents=True)
    written = Path(launch.site.intensity_csv).read_text()
    for _ in range(2):
        keep_grid(launch)
        assert launch.site.intensity_csv == str(launch.sweep / "grid.csv") and (launch.sweep / "grid.csv").read_text() == written


@pytest.mark.release
def test_a_dry_run_says_it_and_shows_it_in_the_scripts(expand, launch, capsys, monkeypatch):
    monkeypatch.setattr(submit.cluster, "answers", lambda: False)
    expand("arms=[scratch]")
    Path("big.yaml").write_text("name: big\npartition: gpu\nintensity_csv: forecast.csv\ngpu_tflops: 1\n")
    words = ["sweep.yaml", "arms=[scratch]", "--dry-run", "--executor", "slurm", "--site", "big.yaml", "--all-jobs"]
    assert submit.main([*words, "--greenest-within", "24h"]) == 0
    shown = capsys.readouterr().out
    assert "Starts at 20:00, in 8.0 h, when the grid is greenest: 100 instead of 400 g/kWh" in shown
    assert "#SBATCH --begin=2026-11-23T20:00:00" in shown
    assert not Path("runs/example/grid.csv").exists() and read_json(Path("runs/example/sweep.json")) == {}


def test_a_file_of_the_profile_that_is_wrong_is_named(expand, capsys, monkeypatch):
    expand()
    monkeypatch.setattr(submit.cluster, "answers", lambda: False)
    Path("big.yaml").write_text("name: big\npartition: gpu\nintensity_csv: forecast.csv\n")
    Path("forecast.csv").write_text("time,g_per_kwh\nMon 10:00,3\nlater,4\n")
    assert submit.main(["sweep.yaml", "--dry-run", "--site", "big.yaml"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: big.yaml: intensity_csv: ") and "line 3: 'later,4' is not a time and figure" in error
