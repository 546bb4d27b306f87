"""Sums over attempts and nodes, and what became of a run."""

from __future__ import annotations

import json
import time

import pytest

from vitssl.config import ConfigError, Site
from vitssl.report.results.collect import collect, read_folder
from vitssl.report.results.rows import cost_of

pytestmark = pytest.mark.usefixtures("without_plots")


def test_attempts_and_nodes_add_up(run_folder, emissions_record):
    """Two nodes of 2 GPUs for 1 h, then a second attempt of half an hour: 4 + 2 = 6 GPU-hours in all."""
    spec = [(0, 1.0, "n1"), (0, 1.0, "n2"), (1, 0.5, "n1"), (1, 0.5, "n2")]
    folder = run_folder(records=[emissions_record(attempt=a, hours=h, gpus=2, node=n) for a, h, n in spec])
    sums = read_folder(folder, Site()).spent
    assert sums["gpu_hours"] == sums["device_hours"] == pytest.approx(6.0)
    assert sums["gpu_kwh"] == pytest.approx(6 * 0.2)
    assert sums["cpu_kwh"] == pytest.approx(3 * 0.04) and sums["ram_kwh"] == pytest.approx(3 * 0.01)
    assert sums["energy_kwh"] == pytest.approx(1.2 + 0.12 + 0.03)
    assert sums["co2e_kg"] == pytest.approx(1.35 * 0.4)
    assert sums["money"] == pytest.approx(3.0)  # 0.5 a GPU-hour
    assert sums["estimate_kg"] == pytest.approx(6 * 0.230 * 0.432)
    assert read_folder(folder, Site()).attempts == 2


def test_the_estimate_is_the_sites(run_folder, emissions_record):
    sums = read_folder(run_folder(records=[emissions_record(hours=60)]), Site()).spent
    assert round(sums["estimate_kg"], 2) == 5.96 == round(Site(gpu_power_w=230.0).estimate_kg(60), 2)


def test_a_cpu_counts_device_hours_and_nothing_of_gpus(run_folder, emissions_record):
    sums = read_folder(run_folder(records=[emissions_record(hours=2, gpus=0)]), Site()).spent
    assert sums["device_hours"] == 2
    assert sums["gpu_hours"] == sums["gpu_kwh"] == sums["estimate_kg"] == sums["money"] == 0


def test_an_empty_folder_costs_nothing(tmp_path):
    assert set(read_folder(tmp_path, Site()).spent.values()) == {0.0}


@pytest.mark.parametrize("state", ["done", "failed", "not begun"])
def test_state(run_folder, state):
    run = read_folder(run_folder(state=state), Site())
    assert run.state == state
    assert run.error == ("loss is not finite at step 70 (optim.lr)" if state == "failed" else "")


def test_a_run_that_fell_silent_was_killed(run_folder, emissions_record):
    now = time.time()
    alive = read_folder(run_folder(state="running", records=[emissions_record(end=now - 60)]), Site())
    assert (alive.state, alive.is_killed, alive.progress) == ("running", False, "step 500 of 1000")
    silent = read_folder(run_folder(state="running", records=[emissions_record(end=now - 3600)]), Site())
    assert (silent.state, silent.is_killed) == ("stopped", True)


def test_a_run_that_was_asked_to_stop_was_not_killed(run_folder):
    folder = run_folder(state="running")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"event": "end", "attempt": 0, "step": 500, "time": 0.0, "reason": "stopped"}) + "\n")
    run = read_folder(folder, Site())
    assert (run.state, run.is_killed) == ("stopped", False)


def test_a_line_that_is_being_written_is_left_out(run_folder):
    folder = run_folder()
    events = read_folder(folder, Site()).events
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"event": "tra')
    assert read_folder(folder, Site()).events == events


def test_equal_runs_are_read_once_but_counted_for_every_arm(sweep):
    folder = sweep({"sslft_a": 80.0, "sslft_b": 90.0}, {"seed": [0]}, columns=None)
    facts = json.loads((folder / "sweep.json").read_text())
    facts["cells"][1]["stages"][0] = facts["cells"][0]["stages"][0]  # one pretraining feeds both
    (folder / "sweep.json").write_text(json.dumps(facts))
    collected = collect(folder)
    assert len(collected.cells) == 2 and len(collected.runs) == 3
    assert [cost_of(cell)["device_hours"] for cell in collected.cells] == pytest.approx([1.0, 1.0])  # 0.5 h a stage
    assert sum(run.spent["device_hours"] for run in collected.runs.values()) == pytest.approx(1.5)


def test_a_folder_without_sweep_json_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"sweep\.json does not exist"):
        collect(tmp_path)
