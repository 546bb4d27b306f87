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
from jobs.plan import overrides, sweep
from jobs.plan.cells import resources_of
from jobs.plan.launch import Launch
from tests.jobs.conftest import EXAMPLE, STAND_IN, over, trained_by
from tests.jobs.test_local import HERE, ONE, ROOT
from vitssl.config import ConfigError, Site
from vitssl.costs.emissions import Gpu

SHARED = [*ONE, "loop.threads=1"]
several = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a machine of one core trains one run at a time")


@pytest.fixture
def slots_of(expand, monkeypatch: pytest.MonkeyPatch):
    """`slots_of(*words, cores=..., most=...)`: the slots of the example on a machine of so many cores."""

    def make(*words: str, cores: int = 8, most: int | None = None, **env: str) -> list[slots.Slot]:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(10, 10 + cores)))
        graph = expand(*over(["arms=[scratch]", "axes.data=[plain]", "axes.seed=[0,1,2,3,4,5]", "resources.gpus_per_node=1"], words))
        return slots.slots(graph.jobs, Launch(Path("runs"), "local", Site(max_parallel=most, env=env), Path()))

    return make


def on_cores(*slots_cores: tuple[int, ...]) -> list[slots.Slot]:
    return [slots.Slot(cores) for cores in slots_cores]


def test_each_slot_has_cores_of_its_own(slots_of) -> None:
    assert slots_of("loop.threads=1") == on_cores((10,), (11,), (12,), (13,))  # four, where no other number is asked for
    assert slots_of("loop.threads=2", cores=5) == on_cores((10, 11), (12, 13))
    of_processes = slots_of("loop.threads=2", "resources.gpus_per_node=2")  # here on CPUs
    assert of_processes == on_cores((10, 11, 12, 13), (14, 15, 16, 17))
    assert len(slots_of("loop.threads=1", most=6)) == 6 and len(slots_of("loop.threads=1", "axes.seed=[0,1]")) == 2


@pytest.mark.parametrize(
    ("gpus", "cores", "asked", "given"), [(3, 16, 8, 2), (1, 16, 8, 1), (8, 16, 4, 4), (0, 2, 8, 2), (0, 64, 6, 6), (2, 4, 0, 0)]
)
def test_this_machine_gives_each_run_as_many_gpus_as_it_has(monkeypatch, capsys, gpus: int, cores: int, asked: int, given: int) -> None:
    monkeypatch.setattr(sweep, "visible_gpus", lambda: [Gpu(i, f"GPU-{i}", "A100") for i in range(gpus)])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    spec = sweep.read(Path(__file__).with_name("sweep.yaml"), overrides.parse([f"resources.gpus_per_node={asked}"]))
    sweep.on_this_machine(spec)
    assert {resources_of(spec, arm).gpus_per_node for arm in spec.arms} == {given}
    assert ("fewer processes than resources.gpus_per_node" in capsys.readouterr().err) == (given < asked)


def test_no_more_slots_than_runs_that_can_be_trained_at_once(slots_of) -> None:
    assert slots_of("loop.threads=1", "axes.seed=[0]", "arms=[chain_short]") == [slots.WHOLE], "the second waits for the first"
    assert len(slots_of("loop.threads=1", "axes.seed=[0,1]", "arms=[chain_short]")) == 2


def test_what_cannot_share_the_machine_has_it_whole(slots_of, monkeypatch) -> None:
    assert slots_of("loop.threads=5") == slots_of("loop.threads=1", most=1) == slots_of("loop.threads=1", cores=1) == [slots.WHOLE]


@pytest.fixture
def boards(monkeypatch: pytest.MonkeyPatch):
    """Makes it a machine of GPUs with these numbers."""

    def make(*numbers: int) -> None:
        found = [Gpu(number, f"GPU-{number}", "H100") for number in numbers]
        for module in ("jobs.plan.pace", "jobs.slots"):
            monkeypatch.setattr(f"{module}.visible_gpus", lambda: found)

    return make


def test_each_slot_has_gpus_of_its_own_and_its_share_of_the_cores(slots_of, boards) -> None:
    boards(0, 2, 3)  # of four, one hidden by CUDA_VISIBLE_DEVICES
    one_each = [slots.Slot((10, 11), (0,)), slots.Slot((12, 13), (2,)), slots.Slot((14, 15), (3,))]
    assert slots_of() == slots_of("resources.gpus_per_node=0") == one_each, "nothing hides the boards"
    assert [slot.variables["CUDA_VISIBLE_DEVICES"] for slot in slots_of()] == ["0", "2", "3"]
    assert slots_of(most=2) == [slots.Slot((10, 11, 12, 13), (0,)), slots.Slot((14, 15, 16, 17), (2,))]
    assert slots_of("resources.gpus_per_node=2") == slots_of("axes.seed=[0]") == slots_of(CUDA_VISIBLE_DEVICES="2") == [slots.WHOLE]
    assert len(slots_of("loop.threads=1", "loop.device=cpu")) == 4 and not slots_of("loop.device=cpu")[0].variables
    boards(*range(8))
    assert slots_of("resources.gpus_per_node=4") == [slots.Slot((10, 11, 12, 13), (0, 1, 2, 3)), slots.Slot((14, 15, 16, 17), (4, 5, 6, 7))]
    assert len(slots_of(cores=3)) == 3
    of_cpu = ["arms=[scratch,chain_short]", "arms.chain_short.loop.device=cpu", "arms.chain_short.resources.gpus_per_node=8"]
    assert [slot.gpus for slot in slots_of(*of_cpu)] == [(number,) for number in range(8)], "what trains on CPUs asks for none"
    boards(5)
    assert slots_of(most=4) == [slots.WHOLE]


@pytest.fixture
def submitted(place: Path, monkeypatch: pytest.MonkeyPatch):
    """`submitted(*words)`: run the example here with the stand-in, on two cores; gives the exit code and the cores that runs were given."""
    trained_by("standin", monkeypatch)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4, 7})
    Path("sweep.yaml").write_text(EXAMPLE)
    given: list[tuple[int, ...]] = []
    monkeypatch.setattr(local.os, "sched_setaffinity", lambda pid, cores: given.append(cores))

    def run(*words: str) -> tuple[int, list[tuple[int, ...]]]:
        return submit.main(["sweep.yaml", "--executor", "local", *over(SHARED, words)]), given

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


def test_runs_side_by_side_see_a_gpu_each(submitted, boards, monkeypatch, capfd) -> None:
    boards(1, 3)
    start, shown, cores = local.start, {}, {}  # by the run's process: each is started by a thread of its own

    def started(*words, **more):
        process = start(*words, **more)
        shown[process.pid] = words[3]["CUDA_VISIBLE_DEVICES"]
        return process

    monkeypatch.setattr(local, "start", started)
    monkeypatch.setattr(local.os, "sched_setaffinity", lambda pid, numbers: cores.update({pid: numbers}))
    code, _ = submitted("arms=[scratch]", "axes.seed=[0,1]", "loop.device=auto")
    assert code == 0 and sorted((shown[pid], cores[pid]) for pid in shown) == [("1", (4,)), ("3", (7,))]
    assert "2 runs side by side, on 1 GPU and 1 core each" in capfd.readouterr().out


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
    environment = os.environ | {"PYTHONPATH": f"{HERE}:{ROOT}"}
    process = subprocess.Popen([sys.executable, "-c", STAND_IN, *over(words, ["loop.max_steps=300"])], env=environment)
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
