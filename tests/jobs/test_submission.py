"""What a submission asks SLURM for, with a stand-in for SLURM's commands; tests/slurm has the real ones."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from jobs import folders, node
from jobs.plan.graph import Graph
from jobs.plan.launch import Launch
from jobs.slurm import cluster, launcher, limits, waiting
from jobs.slurm.cluster import Entry
from jobs.slurm.launcher import Rest
from jobs.slurm.limits import Limit
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
            raise cluster.NoAnswer(f"{words[0]} failed: Unable to contact slurm controller")
        self.calls.append(words)
        return "MaxArraySize = 1001" if words[:2] == ("scontrol", "show") else "gpu*|infinite" if words[0] == "sinfo" else ""

    def submit(self, script: Path) -> str:
        if self.silent:
            raise cluster.NoAnswer("sbatch failed: Unable to contact slurm controller")
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
    monkeypatch.setattr(limits, "user_limits", lambda _: limits.UserLimits())
    monkeypatch.setattr(limits, "room", lambda *_: Limit("MaxJobCount", fake.room, 0))
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


def test_a_sweep_that_is_submitted_again_is_no_longer_marked_as_cancelled(expand, submit, slurm: Slurm, place: Path) -> None:
    """`vitssl prune` takes the mark for the end of all of its jobs, the report's too."""
    graph = expand(*WORDS)
    submit(graph)
    (mark := place / "runs" / "example" / "cancelled").touch()
    slurm.queue.clear()
    submit(graph)
    assert not mark.exists()


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


def test_a_parent_whose_end_is_seen_late_is_not_taken_for_one_that_failed(expand, submit, slurm: Slurm, monkeypatch) -> None:
    """Its job has left the queue, and NFS shows what it wrote a little later."""
    graph = expand(*WORDS)
    submit(graph)
    for job in (parents := [job for job in graph.jobs if not job.parents]):
        del slurm.queue[cluster.job_id(job.folder)]

    def show(_: float) -> None:
        for job in parents:
            (job.folder / "done.json").write_text('{"step": 0, "epochs": 0.0}')

    monkeypatch.setattr(node.time, "sleep", show)
    assert "2 already done, 2 already in the queue, 0 submitted" in submit(graph) and not slurm.asked("scancel", "1002_0")
    assert not any((job.folder / "error.json").exists() for job in graph.jobs)


def test_what_waits_for_a_job_that_outlives_its_run_is_let_go(expand, submit, slurm: Slurm) -> None:
    graph = expand(*WORDS)
    submit(graph)
    parents, children = ([job for job in graph.jobs if bool(job.parents) == child] for child in (False, True))
    for job in children:
        slurm.queue[cluster.job_id(job.folder)].reason = "Dependency"
    (parents[0].folder / "done.json").write_text('{"step": 0, "epochs": 0.0}')
    assert "0 submitted" in submit(graph)
    updates = [call for call in slurm.calls if call[:2] == ("scontrol", "update")]
    assert updates == [("scontrol", "update", f"jobid={cluster.job_id(children[0].folder)}", "dependency=")]


@pytest.mark.parametrize("records", [1, 4])
def test_a_disk_that_is_full_leaves_nothing_queued(expand, submit, slurm: Slurm, place: Path, monkeypatch, records: int) -> None:
    """Where the job of a run, or of the report, cannot be written down: nothing would know of it."""
    graph, record, written = expand(*WORDS), cluster.record, []

    def limited(folder: Path, job: str, **facts: int) -> None:
        if len(written) == records:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        written.append(folder)
        record(folder, job, **facts)

    monkeypatch.setattr(cluster, "record", limited)
    with pytest.raises(ConfigError, match=r"^/.*/runs/example: Disk quota exceeded; nothing from this submission remains queued$"):
        submit(graph)
    assert slurm.calls[-1] == ("scancel", *(str(1000 + job) for job in range(1, slurm.submitted + 1)))
    assert not list(place.glob("runs/example/*/slurm.json"))


def test_a_report_that_is_queued_when_slurm_falls_silent_is_taken_back_too(expand, submit, slurm: Slurm, place: Path, monkeypatch) -> None:
    def jobs(_: Any) -> dict[str, Entry]:
        if slurm.submitted == 3:  # two arrays and the report
            raise cluster.NoAnswer("squeue failed: Unable to contact slurm controller")
        return {}

    monkeypatch.setattr(cluster, "jobs", jobs)
    (place / "runs" / "example").mkdir(parents=True)
    cluster.record(place / "runs" / "example", "7")  # the report of an earlier submission, which is looked for
    with pytest.raises(cluster.NoAnswer, match=r"; nothing from this submission remains queued$"):
        submit(expand(*WORDS))
    assert slurm.calls[-1] == ("scancel", "1001", "1002", "1003")


def test_what_a_part_of_a_sweep_keeps_from_being_queued_is_said(expand, submit, slurm: Slurm, monkeypatch) -> None:
    """The job that queues the rest of a large sweep follows one submission, the last."""
    notes: list[str] = []
    monkeypatch.setattr(launcher, "note", notes.append)
    slurm.room = 3
    submit(expand(*WORDS))
    assert not notes
    slurm.room = 100
    submit(expand(*WORDS[:2], "arms=[scratch]"))
    assert [note.partition(", as ")[0] for note in notes] == ["2 runs that job 1003 would have queued later will not be queued"]
    submit(expand(*WORDS))
    assert len(notes) == 1


def raising(error: Exception) -> Callable[..., None]:
    def raise_it(*_: Any) -> None:
        raise error

    return raise_it


def test_waiting_goes_on_as_long_as_runs_do_though_the_report_is_gone(expand, submit, slurm: Slurm, place: Path, monkeypatch) -> None:
    graph, sweep = expand(*WORDS), place / "runs" / "example"
    submit(graph)

    def going_on() -> bool:
        return waiting._waiting(graph, sweep)[0]

    report = slurm.queue.pop(cluster.job_id(sweep))
    assert going_on()
    for job in ("1001_0", "1001_1"):
        slurm.queue[job].state = "HELD"
        slurm.queue[job.replace("1001", "1002")].reason = "Dependency"
    assert not going_on(), "what is held, and what waits for it"
    report.state, report.reason = "PENDING", "Dependency"
    slurm.queue[cluster.job_id(sweep)] = report
    cluster.record(sweep, cluster.job_id(sweep), left=2)
    assert not going_on(), "what would queue the rest waits for what is held, too"
    report.reason = "Priority"
    assert going_on(), "it is about to queue the rest"
    del slurm.queue[cluster.job_id(sweep)]
    slurm.queue["1001_1"].state = "RUNNING"
    assert going_on()
    slurm.queue.clear()
    assert not going_on()
    with monkeypatch.context() as patched:
        patched.setattr(waiting.cluster, "queued", raising(cluster.NoAnswer("no answer")))
        assert going_on()
        patched.setattr(waiting.cluster, "queued", raising(ConfigError("unexpected content")))
        with pytest.raises(ConfigError, match="unexpected content"):
            going_on()
    slurm.queue[cluster.job_id(sweep)] = report
    report.state = "RUNNING"
    assert going_on()


@pytest.mark.parametrize("reported", [True, False])
def test_waiting_fails_if_the_report_does(expand, submit, slurm: Slurm, place: Path, monkeypatch, reported: bool) -> None:
    graph = expand(*WORDS)
    submit(graph)
    for job in graph.jobs:
        (job.folder / "done.json").write_text('{"step": 0, "epochs": 0.0}')
    slurm.queue.clear()
    monkeypatch.setattr(waiting, "write_report", lambda *_: reported)
    launch = Launch(place / "runs" / "example", "slurm", Site(), place / "source", commit=(None, True))
    assert waiting.wait_for(graph, launch, Console(width=500)) == (0 if reported else 1)


def test_waiting_asks_slurm_seldom(expand, submit, slurm: Slurm, place: Path, monkeypatch) -> None:
    asked: list[float] = []

    def jobs(_: Any) -> dict[str, Entry]:
        asked.append(time.monotonic())
        return slurm.queue if len(asked) < 4 else {}

    graph = expand(*WORDS)
    submit(graph)
    monkeypatch.setattr(cluster, "jobs", jobs)
    monkeypatch.setattr(cluster, "ASKED_EVERY_S", 0.1)
    monkeypatch.setattr(waiting, "WAIT_S", 0.01)
    waiting._wait(graph, place / "runs" / "example", Console())
    assert len(asked) == 4 and asked[-1] - asked[0] >= 3 * 0.1


# ---------------------------------------------------------------------------------------------------------------- the rest


@pytest.fixture
def rest(expand, submit, slurm: Slurm, place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rest]:
    """Of four runs two are queued; the job that is to queue the other two, and what follows, runs."""
    graph = expand(*WORDS)
    slurm.room = 3
    submit(graph)
    slurm.room = 100
    monkeypatch.setenv("SLURM_JOB_ID", cluster.job_id(place / "runs" / "example"))
    slurm.queue[cluster.job_id(place / "runs" / "example")].state = "RUNNING"
    monkeypatch.setattr(launcher.time, "sleep", lambda _: setattr(slurm, "silent", False))
    numbers = (signal.SIGUSR2, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    source = place / "source"
    yield Rest(graph, graph.jobs[2:], Launch(place / "runs" / "example", "slurm", Site(), source, commit=(None, True)))
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def queued_in_the_end(slurm: Slurm, rest: Rest) -> bool:
    return all(cluster.job_id(job.folder) in slurm.queue for job in rest.graph.jobs) and cluster.unqueued_count(rest.launch.sweep) == 0


def test_the_rest_is_queued_and_the_report_follows(rest: Rest, slurm: Slurm) -> None:
    before = slurm.submitted
    rest()
    assert slurm.submitted == before + 3 and queued_in_the_end(slurm, rest) and not slurm.asked("scontrol", "requeue")


def test_a_rest_that_is_started_again_halfway_queues_no_run_twice(rest: Rest, slurm: Slurm, monkeypatch) -> None:
    submit_last, before = launcher._submit_last, slurm.submitted
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(launcher, "_submit_last", lambda *_, **__: sys.exit(1))  # it is killed there
        rest()
    failed = rest.left[0].folder
    slurm.queue.pop(cluster.job_id(failed))
    assert launcher._submit_last is submit_last
    rest()
    assert slurm.submitted == before + 3 and cluster.unqueued_count(rest.launch.sweep) == 0, "two runs, none again, and the report"


def test_a_rest_that_gets_no_answer_goes_back_into_the_queue(rest: Rest, slurm: Slurm) -> None:
    slurm.silent = True
    rest()
    assert slurm.asked("scontrol", "requeue", cluster.job_id(rest.launch.sweep))
    rest()
    assert queued_in_the_end(slurm, rest)


def test_a_rest_that_meets_a_submission_goes_back_into_the_queue(rest: Rest, slurm: Slurm) -> None:
    with folders.locked(rest.launch.sweep):
        rest()
    assert slurm.asked("scontrol", "requeue", cluster.job_id(rest.launch.sweep))
    rest()
    assert queued_in_the_end(slurm, rest)


def test_a_rest_whose_sbatch_is_not_answered_takes_back_what_it_has_queued(rest: Rest, slurm: Slurm, monkeypatch) -> None:
    submit, taken_back, before = cluster.submit, launcher._taken_back, slurm.submitted

    def answered(call, *arguments):
        slurm.silent = False
        return call(*arguments)

    def once(script: Path) -> str:
        slurm.silent = slurm.submitted > before  # after the first
        return submit(script)

    with monkeypatch.context() as patch:
        patch.setattr(cluster, "submit", once)
        patch.setattr(launcher, "_taken_back", lambda arrays: answered(taken_back, arrays))
        rest()
    assert slurm.asked("scontrol", "requeue") and slurm.asked("scancel")
    rest()
    assert queued_in_the_end(slurm, rest)


def test_a_rest_that_is_warned_goes_back_into_the_queue(rest: Rest, slurm: Slurm, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "submit", lambda script: signal.raise_signal(signal.SIGUSR2))
        rest()
    assert slurm.asked("scontrol", "requeue", cluster.job_id(rest.launch.sweep))
    rest()
    assert queued_in_the_end(slurm, rest)


def test_a_report_is_not_ended_by_slurms_warning(rest: Rest, monkeypatch) -> None:
    said = []

    def run(*_, **__) -> None:
        signal.raise_signal(signal.SIGUSR2)
        said.append("made")

    signal.signal(signal.SIGUSR2, lambda *_: sys.exit("warned"))
    monkeypatch.setattr(node.subprocess, "run", run)
    node.Report(str(rest.launch.sweep), rest.launch.about() | {"source": str(rest.launch.source)})()
    assert said == ["made"]


def test_a_report_is_warned_shortly_before_its_end(rest: Rest) -> None:
    assert "#SBATCH --signal=USR2@10\n" in launcher.sbatch.report_executor(rest.launch, "report", None, 3, 3).script(1)
