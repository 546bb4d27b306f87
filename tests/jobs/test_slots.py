"""Runs side by side on one machine: how many, on which cores, after which others, and stopped together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobs import local, slots, submit
from jobs.folders import Launch
from tests.jobs.conftest import EXAMPLE, over
from tests.jobs.test_local import HERE, ONE, ROOT
from vitssl.config import ConfigError, Site

SHARED = [*ONE, "loop.threads=1"]
several = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a machine of one core trains one run at a time")


@pytest.fixture
def slots_of(expand, monkeypatch: pytest.MonkeyPatch):
    """`slots_of(*words, cores=..., most=...)`: the slots of the example on a machine of so many cores."""

    def make(*words: str, cores: int = 8, most: int | None = None) -> list[slots.Slot]:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(10, 10 + cores)))
        graph = expand(*over(["arms=[scratch]", "axes.data=[plain]", "axes.seed=[0,1,2,3,4,5]", "resources.gpus_per_node=1"], words))
        return slots.slots(graph.jobs, Launch(Path("runs"), "local", Site(max_parallel=most), Path()))

    return make


def test_each_slot_has_cores_of_its_own(slots_of) -> None:
    assert slots_of("loop.threads=1") == [(10,), (11,), (12,), (13,)]  # four, where no other number is asked for
    assert slots_of("loop.threads=2", cores=5) == [(10, 11), (12, 13)]
    assert slots_of("loop.threads=2", "resources.gpus_per_node=2") == [(10, 11, 12, 13), (14, 15, 16, 17)]  # processes, here on CPUs
    assert len(slots_of("loop.threads=1", most=6)) == 6 and len(slots_of("loop.threads=1", "axes.seed=[0,1]")) == 2


def test_no_more_slots_than_runs_that_can_be_trained_at_once(slots_of) -> None:
    assert slots_of("loop.threads=1", "axes.seed=[0]", "arms=[chain_short]") == [()], "the second waits for the first"
    assert len(slots_of("loop.threads=1", "axes.seed=[0,1]", "arms=[chain_short]")) == 2


def test_what_cannot_share_the_machine_has_it_whole(slots_of, monkeypatch) -> None:
    assert slots_of("loop.threads=5") == slots_of("loop.threads=1", most=1) == slots_of("loop.threads=1", cores=1) == [()]
    monkeypatch.setattr("jobs.pace.visible_gpus", lambda: ["a board"])
    assert slots_of("loop.threads=1") == slots_of("loop.threads=1", "resources.gpus_per_node=0") == [()], "nothing hides the board"
    assert len(slots_of("loop.threads=1", "loop.device=cpu")) == 4
    with pytest.raises(ConfigError, match=r"^site.max_parallel: scratch-\S+ trains on a GPU; on this machine such runs go one"):
        slots_of("loop.threads=1", most=2)


@pytest.fixture
def submitted(place: Path, monkeypatch: pytest.MonkeyPatch):
    """`submitted(*words)`: run the example here with the stand-in, on two cores; gives the exit code and the cores that runs were given."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4, 7})
    Path("sweep.yaml").write_text(EXAMPLE)
    given: list[slots.Slot] = []
    monkeypatch.setattr(local.os, "sched_setaffinity", lambda pid, cores: given.append(cores))

    def run(*words: str) -> tuple[int, list[slots.Slot]]:
        return submit.main(["sweep.yaml", "--executor", "local", *over(SHARED, words)], module="standin"), given

    return run


def times(name: str) -> tuple[float, float]:
    """When a run of the stand-in began and ended."""
    (folder,) = Path("runs/example").glob(f"{name}-*")
    return (folder / "starts.txt").stat().st_mtime, (folder / "done.json").stat().st_mtime


def test_two_runs_train_at_once_and_a_child_after_its_parent(submitted, capfd) -> None:
    code, given = submitted("arms=[scratch,chain_short]", "loop.max_steps=10")
    assert code == 0 and sorted(given[:2]) == [(4,), (7,)] and len(given) == 3
    scratch, parent, child = (times(name) for name in ("scratch", "chain_short-pretrain", "chain_short-finetune"))
    assert scratch[0] < parent[1] and parent[0] < scratch[1], "one after the other"
    assert child[0] >= parent[1]
    shown = capfd.readouterr().out
    assert "2 runs side by side, on 1 core each" in shown and Path("runs/example/report/report.html").exists()


def test_what_starts_from_a_failed_run_is_not_run_and_the_others_are(submitted, capfd) -> None:
    code, _ = submitted("arms=[scratch,chain_short]", "axes.seed=[13,0]")
    shown = capfd.readouterr().out
    assert code == 1 and "failed: thirteen is unlucky" in shown and "not run, because chain_short-pretrain-plain-s13" in shown
    assert len(list(Path("runs/example").glob("*/done.json"))) == 4


def test_a_folder_that_cannot_be_written_stops_the_others_too(submitted, monkeypatch) -> None:
    write = local.write_run

    def failing(job, launch):
        if "s1" in job.name:
            raise ConfigError("no room", "runs")
        write(job, launch)

    monkeypatch.setattr(local, "write_run", failing)
    begun = time.monotonic()
    code, _ = submitted("arms=[scratch]", "axes.seed=[0,1]", "loop.max_steps=600")  # a minute
    assert code == 2 and time.monotonic() - begun < 30
    assert not list(Path("runs/example").glob("*/done.json"))


@several
def test_one_ctrl_c_stops_all_with_what_they_trained(place: Path) -> None:
    Path("sweep.yaml").write_text(EXAMPLE)
    words = [str(ROOT / "jobs/submit.py"), "sweep.yaml", "--executor", "local", *over(SHARED, ["arms=[scratch]", "axes.seed=[0,1]"])]
    program = "import sys; sys.argv[0] = sys.argv.pop(1); from jobs import submit; sys.exit(submit.main(module='standin'))"
    environment = os.environ | {"PYTHONPATH": f"{HERE}:{ROOT}"}
    process = subprocess.Popen([sys.executable, "-c", program, *over(words, ["loop.max_steps=300"])], env=environment)
    try:
        end = time.monotonic() + 60
        while len(list(Path("runs/example").glob("*/last.pt"))) < 2:
            assert time.monotonic() < end
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
    finally:
        process.kill()
    steps = [int(path.read_text()) for path in Path("runs/example").glob("*/last.pt")]
    assert len(steps) == 2 and all(0 < step < 300 for step in steps)
    assert not list(Path("runs/example").glob("*/error.json"))
