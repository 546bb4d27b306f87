"""What goes of a folder of runs, and above all what stays."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.conftest import sweep_facts
from tests.report.conftest import make_run
from vitssl import cli, sweep_folder, train
from vitssl.checkpoints import run_checkpoint, tensor_files
from vitssl.checkpoints.run_checkpoint import Progress
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


def checkpoint_of(folder: Path, step: int = 3) -> dict[str, Any]:
    """Leave the checkpoint of a small network there, with AdamW's state: 2 moments of 11 weights, and 2 counts, each of 4 bytes."""
    network = nn.Linear(10, 1)
    optimizer = torch.optim.AdamW(network.parameters())
    network(torch.ones(2, 10)).sum().backward()
    optimizer.step()
    data = {"classes": ["a", "b"], "mean": [0.5] * 3, "std": [0.2] * 3}
    content = {"model": network.state_dict(), "ema": network.state_dict(), "data": data, "progress": vars(Progress(step=step)), "schema": 1}
    torch.save(content | {"optimizer": optimizer.state_dict(), "scaler": None, "identity": "0" * 12}, folder / "last.pt")
    return content


def test_of_a_run_that_is_done_the_optimizer_goes_and_all_else_of_its_checkpoint_stays(runs: Path, capsys) -> None:
    sweep = runs / "one"
    contents = {folder.name: checkpoint_of(folder) for folder in (sweep / "done", sweep / "evaluated", sweep / "running", sweep / "failed")}
    found_here = [left for left in prune.find_leftovers(sweep) if left.path.name == "last.pt"]
    assert [(left.path.parent.name, left.bytes) for left in found_here] == [("done", 4 * (2 * 11 + 2))]
    assert prune.remove(found_here) == (1, 96) and not [left for left in prune.find_leftovers(sweep) if left.path.name == "last.pt"]
    for name, content in contents.items():
        left = run_checkpoint.read_run(sweep / name / "last.pt")
        assert (left["optimizer"] is None) == (name == "done")
        assert left["progress"] == content["progress"] and left["data"] == content["data"]
        assert all(torch.equal(left[part][key], content[part][key]) for part in ("model", "ema") for key in content["model"])
    assert capsys.readouterr().err == ""


def test_a_checkpoint_that_is_named_as_a_file_or_is_damaged_stays_as_it_is(runs: Path, capsys) -> None:
    last = runs / "one" / "done" / "last.pt"
    checkpoint_of(last.parent)
    (waiting := runs / "two" / "waiting" / "run.yaml").write_text(
        f"{(before := waiting.read_text())}\n# init_from: /elsewhere/one/done/last.pt\n"
    )
    assert "one/done/last.pt" not in found(runs)  # its hash is part of that run's identity
    waiting.write_text(before)
    content = bytearray(last.read_bytes())
    place = content.index(torch.load(last)["model"]["weight"].numpy().tobytes())
    content[place] ^= 1
    last.write_bytes(content)
    left = [left for left in prune.find_leftovers(runs) if left.path == last]
    assert prune.remove(left) == (0, 0) and last.read_bytes() == content
    assert capsys.readouterr().err.startswith(
        f"note: {last} stays: it cannot be removed ({last} is not a checkpoint that can be read (damaged"
    )


def test_a_checkpoint_of_several_names_goes_with_them_or_stays(runs: Path, tmp_path: Path) -> None:
    """Written anew under one of them it would be twice on the disk."""
    last = runs / "one" / "done" / "last.pt"
    checkpoint_of(last.parent)
    for name, found_then in ((last.with_name("epoch-0002.pt"), True), (tmp_path / "another.pt", False)):
        name.unlink(missing_ok=True)
        os.link(last, name)
        found_now = {left.path: left.bytes for left in prune.find_leftovers(runs)}
        assert (last in found_now) == found_then and found_now[last.with_name("epoch-0002.pt")] == 0
    last.rename(tmp_path / "elsewhere.pt")
    last.symlink_to(tmp_path / "elsewhere.pt")
    (tmp_path / "another.pt").unlink()
    assert last not in [left.path for left in prune.find_leftovers(runs)]
    (tmp_path / "elsewhere.pt").rename(last)
    number, size = prune.remove(prune.find_leftovers(runs / "one"))
    assert last.stat().st_nlink == 1 and run_checkpoint.read_run(last)["optimizer"] is None
    assert (number, size) == (len(ALL) + 1, 14_000 + 96)


def test_on_a_full_disk_all_goes_that_needs_no_room(runs: Path, monkeypatch, capsys) -> None:
    last = runs / "one" / "done" / "last.pt"
    checkpoint_of(last.parent)
    content = last.read_bytes()

    def save(*_: Any) -> None:
        raise RuntimeError("unexpected pos 64 vs 0") from OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", save)
    assert prune.remove(prune.find_leftovers(runs / "one"))[0] == len(ALL)
    assert [left.path for left in prune.find_leftovers(runs / "one")] == [last] and last.read_bytes() == content
    assert capsys.readouterr().err == f"note: {last} stays: it cannot be removed (No space left on device)\n"


def test_a_launcher_without_torch_leaves_optimizer_states(runs: Path) -> None:
    checkpoint_of(runs / "one" / "done")
    code = "import sys; sys.modules['torch'] = None; from vitssl import cli; sys.exit(cli.main(['prune', sys.argv[1], '--yes']))"
    done = subprocess.run([sys.executable, "-c", code, str(runs / "one")], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "note: optimizer states are not looked for, since torch is not installed here\n")
    assert done.stdout.splitlines()[-1] == f"removed 15.0 kB in {len(ALL)} places" and found(runs / "one") == {"done/last.pt"}


def test_a_run_that_lost_its_records_after_that_is_finished_again(folder, tmp_path: Path) -> None:
    run = folder("run", SUPERVISED, {"loop": {"epochs": 1, "log_every": 1}})
    assert train.main([str(run)]) == 0
    before, done = run_checkpoint.read_run(run / "last.pt"), read_json(run / "done.json")
    run_checkpoint.drop_optimizer(run / "last.pt")
    (run / "done.json").unlink()
    assert train.main([str(run)]) == 0
    after = run_checkpoint.read_run(run / "last.pt")
    assert all(torch.equal(after["model"][name], value) for name, value in before["model"].items())
    assert read_json(run / "done.json") == done | {"time_s": after["progress"]["time_s"]}


def test_nothing_is_trained_further_without_the_optimizer(folder, capsys) -> None:
    run = folder("run", SUPERVISED, {"loop": {"max_steps": 2, "eval_every": 0}})
    assert train.main([str(run)]) == 0
    run_checkpoint.drop_optimizer(run / "last.pt")
    content = run_checkpoint.read_run(run / "last.pt")
    content["progress"]["step"] = 1
    tensor_files.save(run / "last.pt", content)
    (run / "done.json").unlink()
    assert train.main([str(run)]) == 2
    assert "last.pt: optimizer is missing, and training cannot go on from it; " in capsys.readouterr().err


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
