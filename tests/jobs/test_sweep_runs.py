"""Which runs of a sweep a command line names."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs import cancel, status
from jobs.slurm import cluster
from jobs.sweep_runs import lineage_of, runs_named, shared_runs, waiting_for, yet_to_queue
from tests.conftest import sweep_facts
from vitssl import sweep_folder
from vitssl.config import ConfigError
from vitssl.files import write_json

RUNS = {"a": ["a-pretrain", "a-finetune"], "ab": ["a-pretrain", "ab-middle", "ab-finetune"]}  # of arms; one pretraining for both


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    cells = [
        {"arm": arm, "axes": {}, "stages": [{"stage": run.split("-")[1], "folder": run} for run in runs]} for arm, runs in RUNS.items()
    ]
    write_json(tmp_path / "sweep.json", sweep_facts(RUNS, cells))
    for runs in RUNS.values():
        for parent, run in zip([None, *runs], runs, strict=False):
            (tmp_path / run).mkdir(exist_ok=True)
            write_json(tmp_path / run / "job.json", {"arm": run.split("-")[0], "parents": [f"/moved/from/{parent}"] if parent else []})
    (tmp_path / "a-earlier").mkdir()
    write_json(tmp_path / "a-earlier" / "job.json", {"arm": "a"})
    return tmp_path


def names(folders) -> set[str]:
    return {folder.name for folder in folders}


def test_arms_and_runs_are_named(sweep: Path) -> None:
    assert names(runs_named(sweep, ["a"])) == {"a-pretrain", "a-finetune", "a-earlier"}  # an arm, and not a part of all names
    assert names(runs_named(sweep, ["ab-f", "a-pretrain", str(sweep / "ab-middle")])) == {"ab-finetune", "a-pretrain", "ab-middle"}


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("finetune", "finetune stands for 2 runs: a-finetune and ab-finetune; name one"),
        ("ab-fintune", "did you mean ab-finetune"),
        ("", "no run has '' in its name"),
    ],
)
def test_a_word_that_stands_for_several_runs_or_for_none_is_refused(sweep: Path, word: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        runs_named(sweep, [word])


def test_a_run_that_another_arm_needs_is_told_unless_it_is_named(sweep: Path) -> None:
    assert shared_runs(sweep, ["a"]) == {sweep / "a-pretrain": "ab"}
    assert shared_runs(sweep, ["a", "ab"]) == shared_runs(sweep, ["a", "a-pretrain"]) == shared_runs(sweep, ["a-finetune"]) == {}


def test_what_starts_from_a_run_waits_for_it_by_way_of_others_too(sweep: Path) -> None:
    folders = list(runs_named(sweep, RUNS))
    assert names(waiting_for([sweep / "a-pretrain"], folders)) == {"a-finetune", "ab-middle", "ab-finetune"}
    assert names(waiting_for([sweep / "ab-middle"], folders)) == {"ab-finetune"}


def test_a_lineage_ends_where_a_damaged_record_leads_back(sweep: Path) -> None:
    assert names(lineage_of(sweep / "ab-finetune")) == {"ab-finetune", "ab-middle", "a-pretrain"}
    write_json(sweep / "a-pretrain" / "job.json", {"arm": "a", "parents": ["ab-finetune"]})
    assert names(lineage_of(sweep / "ab-finetune")) == {"ab-finetune", "ab-middle", "a-pretrain"}


@pytest.mark.parametrize(
    ("error", "said"), [(PermissionError, "belongs to another user and keeps running"), (ProcessLookupError, "has just ended")]
)
def test_a_process_that_cannot_be_asked_to_stop_is_told(sweep: Path, monkeypatch, capsys, error, said) -> None:
    def kill(pid: int, number: int) -> None:
        raise error

    monkeypatch.setattr(sweep_folder, "launcher_pid", lambda _: 77)
    monkeypatch.setattr(cancel.os, "kill", kill)
    assert cancel.main([str(sweep)]) == 0
    out, err = capsys.readouterr()
    assert (out + err).count("\n") == 1 and said in out + err


def test_single_runs_of_this_machine_cannot_be_ended(sweep: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sweep_folder, "launcher_pid", lambda _: 77)
    assert cancel.main([str(sweep), "ab"]) == 2
    assert capsys.readouterr().err.startswith("error: process 77 on this machine trains ")


DAMAGED = ["a-finetune/slurm.json", "slurm.json", "a-earlier/slurm.json", "a-earlier/job.json", "a-finetune/job.json"]


@pytest.fixture
def queue(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The runs and the report are in SLURM's queue; what it is asked for."""
    jobs, asked = {folder: str(number) for number, folder in enumerate([*sorted(sweep.glob("a*")), sweep], start=7)}, []
    for folder, job in jobs.items():
        write_json(folder / "slurm.json", {"job_id": job})
    waits = cluster.Entry("PENDING", "Dependency", user=cluster.me())
    monkeypatch.setattr(cluster, "jobs", lambda _: dict.fromkeys(jobs.values(), waits))
    monkeypatch.setattr(cluster, "output", lambda *words: asked.append(words) or "")
    monkeypatch.setattr(cluster.shutil, "which", lambda name: name)
    return asked


@pytest.mark.parametrize("words", [[], ["a-pretrain"]])
@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_record_does_not_keep_the_others_from_being_cancelled(sweep: Path, queue, capsys, name, words) -> None:
    (sweep / name).write_text('{"job_id"')
    assert cancel.main([str(sweep), *words]) == 0
    assert [call[0] for call in queue] == ["scancel"] and "9" in queue[0]
    missing = {"slurm.json": "12", "a-finetune/slurm.json": "8", "a-earlier/slurm.json": "7"}.get(name)
    said = capsys.readouterr().err
    assert missing not in queue[0] and (missing is None or f"{sweep / name}: damaged" in said)
    assert words or len(queue[0]) == 7 - (missing is not None)


@pytest.mark.parametrize("name", DAMAGED)
def test_status_names_a_damaged_record_and_shows_the_others(sweep: Path, queue, capsys, name) -> None:
    (sweep / name).write_text('{"job_id"')
    assert status.main([str(sweep)]) == 0
    shown = capsys.readouterr()
    said = " ".join((shown.out + shown.err).split())
    assert str(sweep / name) in said and "is unknown" not in said and "Pending: " in said
    assert {s.name: s.state for s in status.read_overview(sweep).statuses}["a-pretrain"] == "pending"


@pytest.mark.parametrize("mine", [True, False])
def test_what_was_to_be_queued_later_is_cancelled_with_the_sweep(sweep: Path, queue, monkeypatch, capsys, mine) -> None:
    """Or whatever is tried again of the sweep would queue all of it; what another person's job is to queue stays."""
    later = {sweep / "ab-middle", sweep / "ab-finetune"}
    for folder in later:
        (folder / "slurm.json").unlink()
    cluster.record(sweep, "12", left=2)
    if not mine:
        monkeypatch.setattr(cluster, "jobs", lambda _: {"12": cluster.Entry("PENDING", user="another")})
    assert yet_to_queue(sweep, later) == later
    assert cancel.main([str(sweep)]) == 0
    assert yet_to_queue(sweep, later) == (set() if mine else later)
    assert ("2 runs that job 12 would have queued later" in capsys.readouterr().out) == mine
