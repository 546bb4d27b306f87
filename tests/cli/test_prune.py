"""What goes of a folder of runs, and above all what stays."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

import pytest

from tests.conftest import sweep_facts
from tests.report.conftest import make_run
from vitssl import cli, sweep_folder
from vitssl.cli import prune
from vitssl.files import read_json, write_json

SUPERVISED = {"objectives": {"classify": {}}}
CHECKPOINTS = (
    "last.pt",
    "best.pt",
    "epoch-0001.pt",
    "epoch-0002.pt",
    "diverged.pt",
    ".last.pt.77.tmp",
    ".done.json.77.tmp",
    "previous.pt",
    "damaged.pt",
)
OLD = "0" * 12  # a snapshot that no run names


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two sweeps of five runs each, with all that there may be: `done`, `failed`, `running`, `waiting`, and `evaluated`, whose evaluator is
    still to come."""
    for sweep in (tmp_path / "runs" / "one", tmp_path / "runs" / "two"):
        for name, state in {"done": "done", "failed": "failed", "running": "running", "waiting": "not begun"}.items():
            make_run(sweep / name, SUPERVISED, state=state)
        make_run(sweep / "evaluated", SUPERVISED | {"evals": {"knn": {"type": "knn"}}})
        for folder in sweep.glob("*"):
            for name in CHECKPOINTS:
                (folder / name).write_bytes(bytes(1000))
        for source in (OLD, "0123456789ab", f".{OLD}.5"):
            (sweep / "source" / source / "jobs").mkdir(parents=True)
            (sweep / "source" / source / "jobs" / "node.py").write_bytes(bytes(2500))
        write_json(sweep / "sweep.json", sweep_facts(name=sweep.name))
        (sweep / ".sweep.json.7.tmp").touch()
    return tmp_path / "runs"


def found(runs: Path) -> set[str]:
    return {str(left.path.relative_to(runs)) for left in prune.find_leftovers(runs)}


OF_DONE = {name for name in CHECKPOINTS if name not in ("last.pt", "best.pt")}
OF_FAILED = {"diverged.pt", ".last.pt.77.tmp", ".done.json.77.tmp"}
OF_SWEEP = {f"source/{OLD}", f"source/.{OLD}.5", ".sweep.json.7.tmp"}
ALL = {*(f"done/{name}" for name in OF_DONE), *(f"failed/{name}" for name in OF_FAILED), *OF_SWEEP}


def test_what_no_run_needs_is_found_and_the_rest_is_not(runs: Path) -> None:
    assert found(runs) == {f"{sweep}/{path}" for sweep in ("one", "two") for path in ALL}
    assert found(runs / "one") == {path for path in ALL}


def test_a_source_that_trained_part_of_a_run_stays(runs: Path) -> None:
    job = read_json(runs / "one" / "done" / "job.json")
    earlier = [{"source": f"/elsewhere/source/{OLD}", "commit": None, "dirty": True}]
    write_json(runs / "one" / "done" / "job.json", job | {"earlier_sources": earlier})
    assert f"source/{OLD}" in ALL and f"one/source/{OLD}" not in found(runs) and f"two/source/{OLD}" in found(runs)


@pytest.mark.parametrize("field", ["init_from", "objectives.locality.teacher"])
def test_a_checkpoint_that_another_run_starts_or_learns_from_stays(runs: Path, field: str) -> None:
    content = (runs / "two" / "waiting" / "run.yaml").read_text()
    (runs / "two" / "waiting" / "run.yaml").write_text(f"{content}\n# {field}: /elsewhere/runs/one/done/epoch-0001.pt\n")
    assert "one/done/epoch-0001.pt" not in found(runs) and "one/done/epoch-0002.pt" in found(runs)
    assert "done/epoch-0001.pt" not in found(runs / "one")  # though only this sweep is pruned


def test_sources_stay_where_something_may_be_queued_or_begin(runs: Path) -> None:
    sweep = runs / "one"

    def goes() -> bool:
        of_sweep = OF_SWEEP & found(sweep)
        assert of_sweep in (OF_SWEEP, set())
        return bool(of_sweep)

    assert goes()
    for name in ("done", "failed"):
        write_json(sweep / name / "slurm.json", {"job_id": "7"})
    assert goes()
    write_json(sweep / "waiting" / "slurm.json", {"job_id": "8"})
    assert not goes()
    (sweep / "waiting" / "cancelled").touch()
    assert goes()
    write_json(sweep / "slurm.json", {"job_id": "9"})  # the report's
    assert not goes()
    (sweep / "report").mkdir()
    (sweep / "report" / "report.html").touch()
    assert goes()
    here, born = socket.gethostname(), sweep_folder.born_at(os.getpid())
    for pid, then, there in ((os.getpid(), born, False), (os.getpid(), "when another process had its id", True), (2**22 + 1, born, True)):
        write_json(sweep / "local.json", {"pid": pid, "host": here, "born": then})
        assert goes() == there
    write_json(sweep / "local.json", {"pid": 7, "host": "another", "born": None})
    assert not goes()


def test_a_link_in_the_place_of_a_snapshot_goes_and_what_it_leads_to_stays(runs: Path, tmp_path: Path, capsys) -> None:
    sweep, mine = runs / "one", tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_bytes(bytes(7000))
    (sweep / "source" / ("1" * 12)).symlink_to(mine)
    (sweep / "source" / ("2" * 12)).symlink_to(tmp_path / "nowhere")
    number, size = prune.remove(prune.find_leftovers(sweep))
    assert number == len(ALL) + 2 and 15_000 <= size < 16_000
    assert (mine / "thesis.tex").stat().st_size == 7000 and found(sweep) == set() and "note" not in capsys.readouterr().err
    assert {path.name for path in (sweep / "source").iterdir()} == {"0123456789ab"}


def test_what_is_asked_for_is_removed_and_counted(runs: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(runs.parent)
    before = {path for path in runs.rglob("*") if path.is_file()}
    assert cli.main(["prune", "one", "--yes"]) == 0  # by its name in runs/, as everywhere
    out = capsys.readouterr().out.splitlines()
    assert len(out) == len(ALL) + 2 and out[-2] == "  15.0 kB  in 13 places" and out[-1] == "removed 15.0 kB in 13 places"
    gone = before - {path for path in runs.rglob("*") if path.is_file()}
    assert {str(path.relative_to(runs / "one")).removesuffix("/jobs/node.py") for path in gone} == ALL
    assert cli.main(["prune", str(runs / "one")]) == 0
    assert capsys.readouterr().out == f"{runs / 'one'}: nothing to remove\n"


def test_it_asks_and_without_a_terminal_removes_nothing(runs: Path, monkeypatch, capsys) -> None:
    before = sorted(runs.rglob("*"))
    assert cli.main(["prune", str(runs)]) == 2
    assert capsys.readouterr().err == "error: Remove all of it? There is no terminal to ask at; add --yes to agree\n"
    answers = {"n": "nothing was removed", "": "nothing was removed", "yes": "removed 30.0 kB in 26 places"}
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer, said in answers.items():
        assert sorted(runs.rglob("*")) == before
        monkeypatch.setattr("builtins.input", lambda _, answer=answer: answer)
        assert cli.main(["prune", str(runs)]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == said
    assert not found(runs)


def test_a_run_or_sweep_that_was_taken_up_meanwhile_stays(runs: Path, capsys) -> None:
    leftovers = prune.find_leftovers(runs / "one")
    with (runs / "one" / "done" / ".lock").open("w") as training, (runs / "one" / ".submitting").open("w") as submitting:
        fcntl.flock(training, fcntl.LOCK_EX)
        fcntl.flock(submitting, fcntl.LOCK_EX)
        (runs / "one" / "failed" / "error.json").unlink()  # as a submission does
        assert prune.remove(leftovers) == (0, 0)
    assert capsys.readouterr().err.count(" goes on, or another run names it\n") == len(ALL)


def test_a_pipe_in_the_place_of_a_run_is_one_line_and_waits_for_nobody(runs: Path, capsys) -> None:
    (runs / "one" / "done" / "run.yaml").unlink()
    os.mkfifo(runs / "one" / "done" / "run.yaml")
    assert cli.main(["prune", str(runs), "--yes"]) == 2
    error = capsys.readouterr().err
    assert "run.yaml: cannot be read (it is a pipe or a device)" in error and error.count("\n") == 1


def test_a_folder_without_sweeps_is_refused(tmp_path: Path, capsys) -> None:
    assert cli.main(["prune", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}: there are no sweeps in it; name ")
