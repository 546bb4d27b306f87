"""What waiting for a greener grid saved, by the hours in which energy was drawn."""

from __future__ import annotations

from pathlib import Path

from vitssl.files import read_json, write_json
from vitssl.report.findings.sentences import findings, sentences
from vitssl.report.results import energy
from vitssl.report.results.collect import collect
from vitssl.report.results.energy import statement
from vitssl.report.results.grid import lay_out

GRID = "time,g_per_kwh\n2026-11-23T00:00+00:00,400\n2026-11-23T12:00+00:00,100\n2026-11-24T00:00+00:00,300\n"
HOURS = {"2026-11-23T11:45": 0.5, "2026-11-23T12:00": 1.0, "2026-11-23T13:30": 0.5}  # kWh of a run
ASKED = 1_795_420_800.0  # 2026-11-23, 8:00 UTC


def waited(folder: Path, hours: float, by_hour: dict[str, float] = HOURS) -> Path:
    for job in folder.glob("*/job.json"):
        write_json(job, read_json(job) | {"start": {"asked": ASKED, "begin": ASKED + 3600 * hours, "at_once": 0.3, "then": 0.2}})
    for path in folder.glob("*/emissions-*.json"):
        record = read_json(path) | {"kwh_by_quarter_hour": by_hour, "country": "by the hour"}
        write_json(path, record | {"intensity_kg_per_kwh": record["intensity_kg_per_kwh"] + 0.1 * ("ssat" in str(path))})
    (folder / "grid.csv").write_text(GRID)
    return folder


def test_the_saving_is_told_against_beginning_at_once(sweep):
    """Of each run 0.5 kWh at 400 g and 1.5 at 100 g; three hours earlier all 2 kWh at 400 g."""
    folder = waited(sweep({"scratch": 80.0, "ssat": 82.0}, {"seed": [0]}, columns=None), hours=3.0)
    told = "2 runs waited up to 3.0 h for a greener grid and caused 700 g of CO2e instead of 1.60 kg had they begun at once, 56% less."
    assert energy.waited(collect(folder)) == told
    assert told in sentences(findings(lay_out(collect(folder))))
    assert "0.4 to 0.5 kg CO2e/kWh (by the hour)" in statement(collect(folder))


def test_a_forecast_that_was_wrong_is_told_too(sweep):
    """Four hours later than asked for, all at 100 g, but it was drawn at 400 g."""
    late = {"2026-11-24T01:15": 2.0}
    folder = waited(sweep({"scratch": 80.0}, {"seed": [0]}, columns=None), hours=4.0, by_hour=late)
    assert energy.waited(collect(folder)).endswith("caused 600 g of CO2e instead of 200 g had they begun at once, 200% more.")


def test_without_waiting_nothing_is_told(sweep):
    folder = waited(sweep({"scratch": 80.0}, {"seed": [0]}, columns=None), hours=0.0)
    assert energy.waited(collect(folder)) == ""


def test_a_file_that_is_gone_is_said(sweep):
    folder = waited(sweep({"scratch": 80.0}, {"seed": [0]}, columns=None), hours=3.0)
    (folder / "grid.csv").unlink()
    said = energy.waited(collect(folder))
    assert said.startswith("How much CO2e 1 run saved by waiting for a greener grid is unknown: ") and "grid.csv" in said
