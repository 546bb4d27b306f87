"""How jobs start, stop and go on, on a real SLURM; training is a stand-in that counts steps (tests/jobs/standin.py)."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs import cancel, folders, status, submit
from jobs.slurm import cluster, limits
from tests.jobs.standin import HELD_AT
from tests.slurm.commands import goes_on, held, history, is_done, kill_task, run_folder, sh, starts, wait_for
from vitssl.files import read_json

Standin = Callable[..., Path]


def test_arrays_and_chains_run_in_order_and_equal_runs_once(standin: Standin) -> None:
    sweep = standin("axes.seed=[0,1,2]", "--wait")
    folders = sorted(path.parent for path in sweep.glob("*/run.yaml"))
    # 3 direct, 3 pretrained once for two chains, 6 fine-tuned
    assert len(folders) == 12
    assert all(starts(folder) == [0] and is_done(folder) for folder in folders)
    ids = {cluster.job_id(folder) for folder in folders}
    assert sorted(int(i.split("_")[1]) for i in ids) == [0] * 4 + [1] * 4 + [2] * 4  # four arrays of three
    assert (sweep / "report" / "report.html").exists()


@pytest.mark.release
def test_a_submitted_or_finished_run_is_not_submitted_again(standin: Standin, hold: Path, capsys) -> None:
    standin("arms=[direct]", "axes.seed=[0,1]")
    capsys.readouterr()
    sweep = standin("arms=[direct]", "axes.seed=[0,1]")
    assert "2 already in the queue, 0 submitted" in capsys.readouterr().out
    hold.unlink()
    wait_for(lambda: all(is_done(folder) for folder in sweep.glob("direct-*")))
    wait_for(lambda: not sh("squeue", "-h", "--me"))
    standin("arms=[direct]", "axes.seed=[0,1,2]", "--wait")
    assert "2 already done, 0 already in the queue, 1 submitted" in capsys.readouterr().out.replace("\n", " ")
    assert [starts(folder) for folder in sweep.glob("direct-*")] == [[0]] * 3


@pytest.mark.release
def test_what_another_sweep_has_trained_is_taken_but_not_in_place_of_a_queued_run(standin: Standin, hold: Path, capsys) -> None:
    standin("arms=[direct]", "axes.seed=[0,1]", "name=first", "--wait")
    sweep = standin("arms=[direct]", "axes.seed=[0]")
    capsys.readouterr()
    standin("arms=[direct]", "axes.seed=[0,1]", "--reuse")
    shown = " ".join(capsys.readouterr().out.split())
    assert "1 of 2 runs taken from first" in shown and "1 already done, 1 already in the queue, 0 submitted" in shown
    hold.unlink()
    wait_for(lambda: all(is_done(folder) for folder in sweep.glob("direct-*")))
    taken = [folder.name for folder in sweep.glob("direct-*") if "reused_from" in read_json(folder / "job.json")]
    assert len(taken) == 1 and [starts(folder) for folder in sweep.glob("direct-*")] == [[0]] * 2


CONTAINER = """#!/bin/bash
# as `apptainer exec` is called: BINDS, an image, python, its words
while [ "$1" = --bind ]; do echo "$2" >> "$0.binds"; shift 2; done
[ "${1##*/} $2" = "vitssl.sif python" ] || exit 9
exec %s "${@:3}"
"""


@pytest.mark.release
def test_runs_and_report_are_inside_the_sites_container_and_see_what_they_need(standin: Standin, place: Path) -> None:
    container, cache = place / "container", place / "node" / "cache"
    container.write_text(CONTAINER % sys.executable)
    container.chmod(0o755)
    image = place / "vitssl.sif"
    image.touch()
    Path("site.yaml").write_text(f"container: {container}\nimage: {image}\nenv: {{VITSSL_CACHE_DIR: {cache}}}\n")
    sweep = standin("arms=[direct,chain]", "--site", "site.yaml", "--wait")
    assert all(is_done(path.parent) for path in sweep.glob("*/run.yaml"))
    assert (sweep / "report" / "report.html").exists()
    bound = set((place / "container.binds").read_text().splitlines())
    pretrained = next(sweep.glob("chain-pretrain-*"))
    assert {str(path) for path in (sweep, place / "shards" / "digits", pretrained, cache)} <= bound


def test_what_slurm_refuses_leaves_nothing_queued(standin: Standin, capsys) -> None:
    words = [str(Path(__file__).with_name("standin.yaml")), "--executor", "slurm", "arms=[direct,too_large]", "loop.max_steps=5"]
    assert submit.main(words) == 2
    assert "standin.yaml: resources.mem_gb: 100000 (too_large train) is more than the 500 that " in capsys.readouterr().err
    assert not sh("squeue", "-h", "--me")
    # and the arm that can run is not taken for queued
    folder = run_folder(standin("arms=[direct]", "loop.max_steps=5"), "direct")
    wait_for(lambda: is_done(folder))


@pytest.mark.release
def test_a_second_submission_has_the_only_report_and_keeps_off_while_one_is_under_way(standin: Standin, hold: Path, capsys) -> None:
    sweep = standin("arms=[direct]")
    standin("arms=[direct]")
    assert sh("squeue", "-h", "--me", "-o", "%j").split("\n").count("standin-report") == 1
    words = [str(Path(__file__).with_name("standin.yaml")), "arms=[direct]"]
    with folders.locked(sweep):
        assert submit.main([*words, "--executor", "slurm"]) == 2
    assert submit.main([*words, "--executor", "local"]) == 2
    shown = capsys.readouterr().err
    assert "is being submitted by another process" in shown and "SLURM's queue holds 1 run of" in shown


@pytest.mark.release
def test_a_failed_parent_leaves_nobody_pending(standin: Standin) -> None:
    sweep = standin("arms=[chain]", "axes.seed=[13]")
    wait_for(lambda: not sh("squeue", "-h", "--me"))
    states = {s.stage: s for s in status.read_overview(sweep).statuses}
    assert states["pretrain"].state == "failed" and states["pretrain"].error == "thirteen is unlucky"
    assert history(run_folder(sweep, "chain-pretrain")) == ["FAILED"]
    assert history(run_folder(sweep, "chain-finetune"))[0].startswith("CANCELLED")
    assert starts(run_folder(sweep, "chain-finetune")) == []


@pytest.mark.release
def test_warned_before_the_time_limit_it_saves_and_goes_on(standin: Standin, hold: Path) -> None:
    sweep = standin("arms=[chain]")
    pretrain, finetune = run_folder(sweep, "chain-pretrain"), run_folder(sweep, "chain-finetune")
    wait_for(lambda: held(pretrain))
    # what SLURM sends before the time limit, and at preemption where the site asks for it
    sh("scancel", "--signal", "USR2", cluster.job_id(pretrain))
    goes_on(pretrain, hold)
    wait_for(lambda: is_done(finetune))
    assert starts(pretrain) == [0, HELD_AT]
    wait_for(lambda: history(pretrain) == ["REQUEUED", "COMPLETED"])


@pytest.mark.release
def test_requeued_by_an_administrator_it_goes_on(standin: Standin, hold: Path) -> None:
    folder = run_folder(standin("arms=[direct]"), "direct")
    wait_for(lambda: held(folder))
    sh("scontrol", "requeue", cluster.job_id(folder))
    goes_on(folder, hold)
    wait_for(lambda: is_done(folder))
    assert starts(folder)[0] == 0 and starts(folder)[-1] == HELD_AT
    wait_for(lambda: history(folder) == ["REQUEUED", "COMPLETED"])


@pytest.mark.release
def test_killed_outright_it_goes_on_and_its_child_waits(standin: Standin, hold: Path) -> None:
    sweep = standin("arms=[chain]", "axes.seed=[0,1]")
    victim = next(folder for folder in sweep.glob("chain-pretrain-*") if "-s1-" in folder.name)
    wait_for(lambda: held(victim))
    kill_task(victim)
    goes_on(victim, hold)
    wait_for(lambda: all(is_done(folder) for folder in sweep.glob("chain-finetune-*")))
    assert starts(victim)[:2] == [0, HELD_AT]
    wait_for(lambda: history(victim) == ["REQUEUED", "COMPLETED"])


@pytest.mark.release
def test_cancelled_it_stays_cancelled(standin: Standin, hold: Path, place: Path) -> None:
    others = place / "runs" / "other" / "hold"
    others.parent.mkdir()
    others.touch()
    sweep = standin("arms=[chain]", "axes.seed=[0,1]")
    standin("arms=[chain]", "axes.seed=[0]")  # which no longer speaks of the other seed
    other = standin("arms=[direct]", "name=other").parent / "other"
    folders = [run_folder(sweep, f"chain-pretrain-s{seed}") for seed in (0, 1)]
    wait_for(lambda: all(held(folder) for folder in folders))
    assert {Path(s.name).name for s in status.read_overview(sweep).statuses} >= {folder.name for folder in folders}
    cancel.cancel(sweep)
    time.sleep(8)  # KillWait and the hold of a requeued job
    assert [history(folder) for folder in folders] == [["CANCELLED by 0"]] * 2
    assert {s.state for s in status.read_overview(sweep).statuses} == {"cancelled"}
    others.unlink()
    wait_for(lambda: is_done(run_folder(other, "direct")))


@pytest.mark.release
def test_a_job_that_the_user_scancels_does_not_come_back(standin: Standin, hold: Path) -> None:
    folder = run_folder(standin("arms=[direct]"), "direct")
    wait_for(lambda: held(folder))
    sh("scancel", cluster.job_id(folder))
    time.sleep(8)
    assert history(folder) == ["CANCELLED by 0"] and starts(folder) == [0]


@pytest.fixture
def evaluated(standin: Standin) -> Path:
    """The folder of a trained run whose evaluation has one result of two, and waits as long as there is a file `hold`."""
    folder = run_folder(standin("arms=[direct]", "--wait"), "direct")
    (folder.parent / "hold").touch()
    standin("arms=[direct]", "evals.first={type: knn, k: 3}", "evals.second={type: knn, k: 5}")
    wait_for(lambda: results(folder))
    return folder


def results(folder: Path) -> set[str]:
    return set(read_json(folder / "evals.json"))


def evaluation_goes_on(folder: Path) -> None:
    """Once it is back, it does what is left, and nothing is trained again."""
    attempts = folder / "evaluations.txt"
    wait_for(lambda: len(attempts.read_text().splitlines()) > 1)
    (folder.parent / "hold").unlink()
    wait_for(lambda: history(folder) == ["REQUEUED", "COMPLETED"])
    assert attempts.read_text() == "first second\nfirst\n" and results(folder) == {"first", "second"}
    assert starts(folder) == [0]


@pytest.mark.release
def test_an_evaluation_that_is_warned_goes_on_with_what_is_left(evaluated: Path) -> None:
    sh("scancel", "--signal", "USR2", cluster.job_id(evaluated))
    evaluation_goes_on(evaluated)


@pytest.mark.release
def test_an_evaluation_that_is_killed_outright_goes_on_with_what_is_left(evaluated: Path) -> None:
    kill_task(evaluated)
    evaluation_goes_on(evaluated)


@pytest.mark.release
def test_an_evaluation_that_is_requeued_by_an_administrator_goes_on_with_what_is_left(evaluated: Path) -> None:
    sh("scontrol", "requeue", cluster.job_id(evaluated))
    evaluation_goes_on(evaluated)


def test_arrays_are_no_longer_than_the_cluster_allows(cluster: None) -> None:
    assert limits.max_array_size() == 1001
    assert json.dumps(sorted(limits.cluster.jobs([limits.cluster.me()]))) == "[]"
