"""Energy with the real codecarbon, on whatever this machine is."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from vitssl.config import ConfigError, Site
from vitssl.costs import emissions
from vitssl.costs.emissions import Gpu, Tracker, intensity_kg_per_kwh, select_gpus, share_of_node

RUN = """
import sys, time
from pathlib import Path
from vitssl.config import Site
from vitssl.costs.emissions import Tracker
with Tracker(Path(sys.argv[1]), 0, Site(), flush_s=0.2) as tracker:
    print(tracker.path, flush=True)
    time.sleep(float(sys.argv[2]))
"""


def track(folder: Path, attempt: int = 0, seconds: float = 0.3, **site) -> dict:
    with Tracker(folder, attempt, Site(**site), gpus=0) as tracker:
        time.sleep(seconds)
    return json.loads(tracker.path.read_text())


def start_process(folder: Path, seconds: float, **env: str) -> subprocess.Popen:
    path = os.pathsep.join((str(Path(emissions.__file__).parents[2]), os.environ.get("PYTHONPATH", "")))
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(folder), str(seconds)], cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": path} | env,
    )  # fmt: skip


@pytest.mark.parametrize("gpu_hours, kg", [(60, 5.96), (55, 5.46), (82, 8.15), (74, 7.35), (104, 10.33), (78, 7.75)])
def test_estimate_is_the_ssat_papers_table_3(gpu_hours, kg):
    """The paper's sixth row prints 7.55 beside its 78 hours; its own formula gives 7.75."""
    assert round(Site(gpu_power_w=230).estimate_kg(gpu_hours), 2) == kg


def test_a_short_job_has_energy_and_adds_up(tmp_path):
    record = track(tmp_path, country="SWE")
    assert record["ram_kwh"] > 0 and record["cpu_kwh"] > 0
    assert record["energy_kwh"] == pytest.approx(record["gpu_kwh"] + record["cpu_kwh"] + record["ram_kwh"])
    assert record["co2e_kg"] == pytest.approx(record["energy_kwh"] * 0.040695)  # Sweden, as codecarbon 3.3.2 bundles it
    assert 0.3 <= record["duration_s"] == pytest.approx(record["end"] - record["start"])
    assert record["gpus"] == 0 and record["gpu_kwh"] == 0


def test_the_time_that_cpus_worked_and_the_rest_of_the_machine_is_recorded(tmp_path):
    """A process computes for half a second, and as long one that it started and that goes on; one that is not its child computes too."""
    burn = "import time; end = time.process_time() + {}\nwhile time.process_time() < end: pass"
    (going_on := tmp_path / "going_on").touch()
    until = f"import os\nwhile os.path.exists({str(going_on)!r}): pass"
    other = subprocess.Popen(["setsid", "-f", sys.executable, "-c", until])
    try:
        with Tracker(tmp_path, 0, Site(), gpus=0) as tracker:
            end = time.process_time() + 0.5
            while time.process_time() < end:
                pass
            subprocess.run([sys.executable, "-c", burn.format(0.2)], check=True)
            waits = [sys.executable, "-c", burn.format(0.5) + "\nprint(flush=True)\ninput()"]
            child = subprocess.Popen(waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert child.stdout is not None and child.stdout.readline() == b"\n"
    finally:
        going_on.unlink()
    child.communicate(b"\n")
    other.wait()
    record = json.loads(tracker.path.read_text())
    assert 1.05 < record["cpu_time_s"] < 2.2  # codecarbon's own work too; without the child that goes on it would be 0.7 and that work
    assert record["other_cpu_time_s"] > 0.3 and record["cores"] == os.cpu_count()
    assert record["gpu_busy_s"] == 0


def test_two_jobs_share_one_node(tmp_path, monkeypatch):
    """codecarbon gives either job the whole node; half of each is the node, once."""
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "1")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    halves = [Tracker(tmp_path, i, Site(), gpus=0) for i in range(2)]
    with halves[0], halves[1]:
        time.sleep(1.0)
    first, second = (json.loads(h.path.read_text()) for h in halves)
    assert first["ram_kwh"] + second["ram_kwh"] == pytest.approx(first["node_ram_kwh"], rel=0.2)
    for record in (first, second):
        assert record["cpu_kwh"] == pytest.approx(record["node_cpu_kwh"] / 2)
        assert record["energy_kwh"] == pytest.approx((record["node_cpu_kwh"] + record["node_ram_kwh"]) / 2)


def test_share_of_the_node(monkeypatch):
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "1")
    assert share_of_node() == 1 / os.cpu_count()
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "64")
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    assert share_of_node() == len(os.sched_getaffinity(0)) / 128, "of an allotment that several runs of it share"
    monkeypatch.delenv("SLURM_CPUS_ON_NODE")
    assert share_of_node() == len(os.sched_getaffinity(0)) / os.cpu_count()


def test_a_process_that_is_bound_to_some_cpus_counts_those():
    """As by taskset, or a container's cpuset: several local sweeps side by side then share the node."""
    bound = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    code = f"{bound}; from vitssl.costs import emissions; print(emissions.share_of_node())"
    env = {name: value for name, value in os.environ.items() if name != "SLURM_CPUS_ON_NODE"}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert float(found.stdout) == 1 / os.cpu_count()


def test_a_killed_job_keeps_its_last_flush(tmp_path):
    job = start_process(tmp_path, 60)
    record = Path(job.stdout.readline().strip())
    first = json.loads(record.read_text())
    deadline = time.time() + 20
    while json.loads(record.read_text())["energy_kwh"] <= first["energy_kwh"] and time.time() < deadline:
        time.sleep(0.05)
    job.send_signal(signal.SIGKILL)
    job.communicate()
    kept = json.loads(record.read_text())
    assert kept["energy_kwh"] > first["energy_kwh"] and kept["duration_s"] > first["duration_s"]


def test_a_flush_comes_at_least_once_a_minute():
    assert emissions.FLUSH_S <= 10  # as vitssl/docs/costs.md says


def test_slurm_job_without_scontrol_is_measured_quietly(tmp_path):
    """In a container: codecarbon alone would swallow the missing scontrol and measure nothing."""
    job = start_process(tmp_path, 0.1, SLURM_JOB_ID="123", SLURM_CPUS_ON_NODE="1", SLURMD_NODENAME="n7", PATH="/usr/bin")
    out, err = job.communicate()
    assert job.returncode == 0 and err == ""
    record = json.loads(Path(out.strip()).read_text())
    assert Path(out.strip()).name == "emissions-0-n7.json" and record["ram_kwh"] > 0
    assert record["ram_kwh"] == pytest.approx(record["node_ram_kwh"] / os.cpu_count())
    assert [p.name for p in tmp_path.iterdir()] == ["emissions-0-n7.json"]  # no CSV, no lock


def test_signal_handlers_and_environment_stay(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "123")
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)]
    with Tracker(tmp_path, 0, Site()):
        assert os.environ["SLURM_JOB_ID"] == "123"
        assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)] == before


@pytest.mark.parametrize(
    ("country", "codes"),
    [
        ("us", "USA: United States"), ("Germany", "DEU: Germany"), ("CH", "CHE: Switzerland"), ("UK", "GBR: United Kingdom"),
        ("England", "GBR: United Kingdom"), ("SE", "SWE: Sweden"), ("usa", "USA: United States"),
        ("EU", "such as DEU: Germany"), ("XX", "such as DEU: Germany"),
    ],
)  # fmt: skip
def test_the_code_that_was_meant_is_named(tmp_path, country, codes):
    with pytest.raises(ConfigError, match=rf"alpha-3 code \({codes}\) or set"):
        Tracker(tmp_path, 0, Site(country=country))


@pytest.mark.parametrize("country", ["XXX", "us", "United States", "CAF"])
def test_a_country_without_a_figure_is_refused(tmp_path, country):
    with pytest.raises(ConfigError, match=r"^site\.country: .*site\.intensity_kg_per_kwh"):
        Tracker(tmp_path, 0, Site(country=country))
    assert not list(tmp_path.iterdir())


def test_the_sites_own_intensity_wins(tmp_path):
    record = track(tmp_path, country="XXX", intensity_kg_per_kwh=2.0)
    assert record["co2e_kg"] == pytest.approx(2 * record["energy_kwh"]) and record["country"] == "XXX"
    assert track(tmp_path, intensity_kg_per_kwh=2.0)["country"] == "own figure"
    assert intensity_kg_per_kwh(Site(country="USA")) == pytest.approx(0.369473)


def test_with_a_file_of_intensities_emissions_are_of_the_hour(tmp_path):
    """1 kg/kWh in this hour and 2 kg/kWh in all others."""
    now = datetime.now().replace(minute=0, second=0, microsecond=0)
    times = [now - timedelta(hours=2), now, now + timedelta(hours=1), now + timedelta(hours=2)]
    lines = [f"{time.isoformat()},{grams}" for time, grams in zip(times, (2000, 1000, 2000, 2000), strict=True)]
    (tmp_path / "grid.csv").write_text("\n".join(["time,g_per_kwh", *lines]))
    record = track(tmp_path, intensity_csv=str(tmp_path / "grid.csv"))
    assert sum(record["kwh_by_quarter_hour"].values()) == pytest.approx(record["energy_kwh"])
    if datetime.now().hour == now.hour:
        assert record["co2e_kg"] == pytest.approx(record["energy_kwh"]) and record["intensity_kg_per_kwh"] == pytest.approx(1.0)
    assert record["country"] == "by the hour"


def test_two_threads_that_write_do_not_share_out_the_same_energy(tmp_path, monkeypatch):
    add, tracker = emissions.intensity.ByQuarterHour.add, Tracker(tmp_path, 0, Site(), gpus=0)

    def alone(self, *reading) -> None:
        assert tracker._lock.locked()
        add(self, *reading)

    monkeypatch.setattr(emissions.intensity.ByQuarterHour, "add", alone)
    with tracker:
        time.sleep(0.2)
    record = json.loads(tracker.path.read_text())
    assert sum(record["kwh_by_quarter_hour"].values()) == pytest.approx(record["energy_kwh"])


def test_codecarbon_that_measures_nothing_is_an_error_with_its_reason(tmp_path):
    tracker, before = Tracker(tmp_path / "gone", 0, Site()), set(threading.enumerate())
    with pytest.raises(RuntimeError, match=r"measured nothing .*FileNotFoundError: .*gone"):
        tracker.__enter__()
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
        assert not thread.is_alive()  # its timers are stopped


def test_gpus_by_index_and_by_uuid():
    boards = [Gpu(i, f"GPU-{i}{i}aa-bb", "H200") for i in range(4)]
    assert select_gpus(boards, None) == boards
    assert select_gpus(boards, "2,0") == [boards[2], boards[0]]
    assert select_gpus(boards, "GPU-33aa, GPU-1") == [boards[3], boards[1]]
    assert select_gpus(boards, "1,-1,2") == [boards[1]]
    assert select_gpus(boards, "") == select_gpus(boards, "7") == select_gpus(boards, "GPU-") == []
    with pytest.raises(ConfigError, match="MIG-1"):
        select_gpus(boards, "MIG-1")


def test_user_configuration_of_codecarbon_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("CODECARBON_PUE", "1000")
    monkeypatch.setenv("CODECARBON_FORCE_RAM_POWER", "100000")
    record = track(tmp_path)
    assert record["node_ram_kwh"] * 3.6e6 / record["duration_s"] < 10_000  # watts


def test_a_record_that_cannot_be_finished_warns(tmp_path):
    with pytest.warns(UserWarning, match=r"lacks the last seconds .*IsADirectoryError"), Tracker(tmp_path, 0, Site()) as tracker:
        tracker.path.unlink()
        tracker.path.mkdir()


def test_a_record_of_a_removed_folder_is_left_to_the_line_that_says_so(tmp_path, recwarn):
    folder = tmp_path / "run"
    folder.mkdir()
    with Tracker(folder, 0, Site()):
        shutil.rmtree(folder)
    assert not [warning for warning in recwarn if "lacks the last seconds" in str(warning.message)]


def test_gpus_that_nvml_does_not_show_are_not_taken_for_none(tmp_path, monkeypatch):
    monkeypatch.setattr(emissions, "visible_gpus", lambda: [emissions.Gpu(0, "GPU-0", "H100")])
    with pytest.raises(ConfigError, match="shows 1 of this job's 4 GPUs"):
        emissions.Tracker(tmp_path, 0, Site(), gpus=4)
