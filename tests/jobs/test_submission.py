"""What a submission asks SLURM for, with a stand-in for SLURM's commands; tests/slurm has the real ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rich.console import Console

from jobs import cluster, launcher, limits
from jobs.cluster import Entry
from jobs.folders import Launch
from jobs.graph import Graph
from jobs.limits import Limit
from vitssl.config import ConfigError, Site

WORDS = ("axes.data=[plain]", "axes.seed=[0,1]", "arms=[chain_short]")


@dataclass
class Slurm:
    """Its queue, the room for more, and what it was asked for."""

    queue: dict[str, Entry] = field(default_factory=dict)
    room: int = 100
    calls: list[tuple[str, ...]] = field(default_factory=list)
    submitted: int = 0
    silent: bool = False

    def output(self, *words: str) -> str:
        if self.silent:
            raise cluster.Silent(f"{words[0]} failed: Unable to contact slurm controller")
        self.calls.append(words)
        return "MaxArraySize = 1001" if words[:2] == ("scontrol", "show") else "gpu*|infinite" if words[0] == "sinfo" else ""

    def submit(self, script: Path) -> str:
        if self.silent:
            raise cluster.Silent("sbatch failed: Unable to contact slurm controller")
        self.submitted += 1
        job, last = str(1000 + self.submitted), re.search(r"--array=0-(\d+)", script.read_text())
        ids = [f"{job}_{i}" for i in range(int(last[1]) + 1)] if last else [job]
        self.queue |= {one: Entry("PENDING", user=cluster.me()) for one in ids}
        return job

    def asked(self, *words: str) -> bool:
        return any(call[: len(words)] == words for call in self.calls)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    fake = Slurm()
    monkeypatch.setattr(cluster, "output", fake.output)
    monkeypatch.setattr(cluster, "submit", fake.submit)
    monkeypatch.setattr(cluster, "jobs", lambda users: dict(fake.queue))
    monkeypatch.setattr(cluster.shutil, "which", lambda name, *more: name)
    monkeypatch.setattr(limits, "room", lambda site: Limit("MaxJobCount", fake.room, 0))
    monkeypatch.setattr(launcher.preflight, "_problems", lambda *_: iter(()))
    monkeypatch.setattr(launcher.preflight, "_refusals", lambda *_: iter(()))
    return fake


@pytest.fixture
def submit(place: Path, capsys) -> Callable[[Graph], str]:
    """`submit(graph)`: what it says."""

    def made(graph: Graph) -> str:
        source = place / "source"
        source.mkdir(exist_ok=True)
        launcher.run(graph, Launch(place / "runs" / "example", "slurm", Site(), source, commit=(None, True)), Console(width=500))
        return capsys.readouterr().out

    return made


@pytest.mark.parametrize("room", [3, 100])
def test_held_runs_of_a_sweep_that_fills_the_queue_are_released(expand, submit, slurm: Slurm, room: int) -> None:
    """With a room of 3 two are queued, and a job that queues the other two; else all, and the report."""
    graph = expand(*WORDS)
    slurm.room = room
    submit(graph)
    held = cluster.job_id(graph.jobs[0].folder)
    slurm.queue[held] = Entry("HELD", comment="held: 3 restarts without progress", user=cluster.me())
    slurm.room, before = 0, slurm.submitted
    assert "of which 1 held: released, 0 submitted in 0 arrays" in submit(graph)
    assert slurm.asked("scontrol", "release", held) and slurm.submitted == before and not slurm.asked("scancel")


def test_without_room_nothing_new_is_taken_but_what_is_held_goes_on(expand, submit, slurm: Slurm) -> None:
    graph = expand(*WORDS)
    submit(graph)
    del slurm.queue["1002_0"], slurm.queue["1002_1"]
    slurm.queue["1001_0"] = Entry("HELD", user=cluster.me())
    slurm.room = 0
    with pytest.raises(ConfigError, match="MaxJobCount"):
        submit(graph)
    assert slurm.asked("scontrol", "release", "1001_0")
