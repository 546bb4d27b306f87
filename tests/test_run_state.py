"""The state of a run by its records, and that `status`, dry runs and reports name the same one."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from jobs.display import show, states
from jobs.plan.graph import Job
from jobs.slurm import cluster
from tests.conftest import sweep_facts
from tests.report.conftest import make_run, record
from vitssl import run_state, sweep_folder
from vitssl.config import Run
from vitssl.config.sweep import Resources
from vitssl.files import write_json
from vitssl.report.results.collect import collect

Change = Callable[[Path], None]


def begun(folder: Path, *, written_s: float | None = None, recorded_s: float | None = None, end: str | None = None) -> None:
    """Records of an attempt: a line that it wrote so long ago, energy that it recorded so long ago, and its end's reason."""
    if recorded_s is not None:
        write_json(folder / "emissions-0-n1.json", record(end=time.time() - recorded_s))
    lines: list[dict[str, Any]] = []
    if written_s is not None:
        lines.append({"event": "eval", "step": 5, "time": time.time() - written_s, "epoch": 1.0})
    if end is not None:
        lines.append({"event": "end", "step": 5, "time": time.time() - (written_s or 0), "attempt": 0, "reason": end})
    if lines:
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def new_attempt(folder: Path) -> None:
    """It has recorded energy, and not yet written an event."""
    write_json(folder / "emissions-1-n1.json", record(end=time.time() - FRESH, attempt=1))


def with_error(folder: Path) -> None:
    write_json(folder / "error.json", {"message": "no"})


def cancelled(folder: Path) -> None:
    (folder / "cancelled").touch()


def damaged(name: str, text: str = "{") -> Change:
    return lambda folder: (folder / name).write_text(text)


FRESH, OLD = 60.0, 3600.0
CASES: dict[str, tuple[run_state.State, str, list[Change]]] = {  # state, how `make_run` makes the folder, what is changed then
    "trained": ("done", "done", []),
    "trained, not evaluated": ("done", "done", [with_error]),
    "trained before it was cancelled": ("done", "done", [cancelled]),
    "stopped, then begun anew": ("running", "not begun", [lambda folder: begun(folder, written_s=OLD, end="stopped"), new_attempt]),
    "failed": ("failed", "failed", []),
    "failed at once": ("failed", "not begun", [with_error]),
    "failed before it was cancelled": ("failed", "failed", [cancelled]),
    "cancelled in the queue": ("cancelled", "not begun", [cancelled]),
    "cancelled in training": ("cancelled", "not begun", [lambda folder: begun(folder, recorded_s=FRESH, written_s=FRESH), cancelled]),
    "draws power": ("running", "not begun", [lambda folder: begun(folder, recorded_s=FRESH, written_s=OLD)]),
    "starts": ("running", "not begun", [lambda folder: begun(folder, recorded_s=FRESH)]),
    "writes": ("running", "not begun", [lambda folder: begun(folder, recorded_s=OLD, written_s=FRESH)]),
    "writes its results": ("running", "not begun", [lambda folder: begun(folder, written_s=FRESH, end="done")]),
    "asked to stop": ("stopped", "not begun", [lambda folder: begun(folder, recorded_s=FRESH, written_s=FRESH, end="stopped")]),
    "killed": ("stopped", "not begun", [lambda folder: begun(folder, recorded_s=OLD, written_s=OLD)]),
    "killed before it wrote": ("stopped", "not begun", [lambda folder: begun(folder, recorded_s=OLD)]),
    "killed in writing its results": ("stopped", "not begun", [lambda folder: begun(folder, written_s=OLD, end="done")]),
    "new": ("not begun", "not begun", []),
    "half a line": ("not begun", "not begun", [damaged("metrics.jsonl", '{"event": "sta')]),
    "error damaged": ("unreadable", "not begun", [damaged("error.json")]),
    "line damaged": ("unreadable", "running", [damaged("metrics.jsonl", "{\n{}\n")]),
    "energy damaged": ("unreadable", "running", [damaged("emissions-0-n1.json")]),
}


def made(folder: Path, case: str) -> Path:
    _, how, changes = CASES[case]
    make_run(folder, {"objectives.classify": {}}, state=how)
    for change in changes:
        change(folder)
    return folder


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A sweep with a run of each case."""
    names = {case: case.replace(" ", "_").replace(",", "") for case in CASES}
    cells = [{"arm": "x", "axes": {}, "stages": [{"stage": "train", "folder": name}]} for name in names.values()]
    write_json(tmp_path / "sweep.json", sweep_facts("x", cells))
    for case, name in names.items():
        made(tmp_path / name, case)
    return tmp_path


def statuses(sweep: Path) -> dict[str, str]:
    """The states that `status` names, by case."""
    return dict(zip(CASES, (status.state for status in states.read_overview(sweep).statuses), strict=True))


def by_case(change: Callable[[str], str]) -> dict[str, str]:
    return {case: change(state) for case, (state, *_) in CASES.items()}


def launched(sweep: Path, host: str) -> None:
    """A process of ``host`` runs the sweep."""
    write_json(sweep / "local.json", {"pid": os.getpid(), "host": host, "born": sweep_folder.born_at(os.getpid())})


def test_every_state_has_a_case() -> None:
    assert {state for state, *_ in CASES.values()} == {*get_args(run_state.State)}


@pytest.mark.parametrize("case", CASES)
def test_the_records_of_a_run_tell_its_state(tmp_path: Path, case: str) -> None:
    assert run_state.read_state(made(tmp_path / "run", case)) == CASES[case][0]


def test_a_folder_that_is_not_there_is_of_a_run_that_has_not_begun(tmp_path: Path) -> None:
    assert run_state.read_state(tmp_path / "run") == "not begun"


def test_status_dry_run_and_report_name_the_same_state(sweep: Path) -> None:
    """`status` knows no more than the records of a sweep that another machine runs."""
    launched(sweep, "another")
    told = by_case(str)
    assert statuses(sweep) == told
    report = {run.path: run.state for run in collect(sweep).runs.values()}
    assert dict(zip(CASES, report.values(), strict=True)) == told
    planned = {path: show.state(Job("0", Run(), path, "x", "train", {}, Resources(), [])) for path in report}
    assert dict(zip(CASES, planned.values(), strict=True)) == told


def test_where_nothing_runs_the_sweep_what_wrote_just_now_has_stopped(sweep: Path) -> None:
    assert statuses(sweep) == by_case(lambda state: "stopped" if state == "running" else state)


def test_what_the_launcher_will_still_run_waits(sweep: Path) -> None:
    launched(sweep, os.uname().nodename)
    assert statuses(sweep) == by_case(lambda state: "waiting" if state in ("not begun", "stopped") else state)


def test_status_and_report_count_the_same_attempts(sweep: Path) -> None:
    """An attempt counts that was killed before it began to train, too."""
    write_json(sweep / "killed" / "emissions-1-n1.json", record(attempt=1))
    told = {status.name: status.attempts for status in states.read_overview(sweep).statuses}
    assert told == {run.path.name: run.attempts for run in collect(sweep).runs.values()}
    assert told["killed"] == 2 and told["trained"] == 1 and told["new"] == 0


@pytest.mark.parametrize("has_queue", [True, False])
def test_the_queue_knows_what_runs(sweep: Path, monkeypatch: pytest.MonkeyPatch, has_queue: bool) -> None:
    queue: dict[str, cluster.Entry] = {}
    monkeypatch.setattr(cluster, "jobs", lambda _: queue)
    monkeypatch.setattr(cluster.shutil, "which", lambda name: name if has_queue else None)
    for number, stage in enumerate(cell["stages"][0] for cell in json.loads((sweep / "sweep.json").read_text())["cells"]):
        cluster.record(sweep / stage["folder"], str(number))
        queue[str(number)] = cluster.Entry("PENDING")
    assert statuses(sweep) == by_case(lambda state: "pending" if has_queue and state not in ("done", "unreadable") else state)
    queue.clear()
    assert statuses(sweep) == by_case(lambda state: "stopped" if has_queue and state == "running" else state)
