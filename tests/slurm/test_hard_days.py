"""A cluster's hard days, on a real SLURM: what must neither be lost nor go on for ever; training is a stand-in (tests/jobs/standin.py)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rich.console import Console

from jobs import cancel, status, submit
from jobs.slurm import cluster
from tests.jobs.conftest import write_index
from tests.jobs.standin import HELD_AT
from tests.slurm.commands import (
    controller,
    goes_on,
    held,
    history,
    is_done,
    kill_task,
    read_only,
    run_folder,
    sh,
    starts,
    state_of,
    task_of,
    training_of,
    wait_for,
)
from vitssl.files import write_json

pytestmark = pytest.mark.release
Standin = Callable[..., Path]
SWEEP = str(Path(__file__).with_name("standin.yaml"))


@pytest.mark.parametrize("killed", ["task", "training"])
def test_killed_again_before_the_next_checkpoint_it_goes_on_from_the_last(standin: Standin, hold: Path, killed: str) -> None:
    folder = run_folder(standin("arms=[direct]"), "direct")
    wait_for(lambda: held(folder))
    for attempt in (1, 2):
        os.kill(task_of(folder) if killed == "task" else training_of(folder), signal.SIGKILL)
        wait_for(lambda begun=attempt: len(starts(folder)) > begun)
    hold.unlink()
    wait_for(lambda: is_done(folder))
    assert starts(folder) == [0, HELD_AT, HELD_AT] and not (folder / "error.json").exists()


def test_what_was_cancelled_although_its_parent_is_done_is_queued_again(standin: Standin, hold: Path, capsys) -> None:
    sweep = standin("arms=[chain]")
    pretrain, finetune = run_folder(sweep, "chain-pretrain"), run_folder(sweep, "chain-finetune")
    wait_for(lambda: held(pretrain))
    sh("scancel", job := cluster.job_id(finetune))
    assert state_of(finetune).error is None
    hold.unlink()
    wait_for(lambda: is_done(pretrain))
    assert state_of(finetune).error.startswith(f"job {job} was cancelled, but the run it starts from is done; repeat the command that ")
    standin("arms=[chain]", "--wait")
    assert is_done(finetune) and "1 already done, 0 already in the queue, 1 submitted" in " ".join(capsys.readouterr().out.split())


def test_what_waits_for_a_job_that_failed_waits_for_the_next(standin: Standin, hold: Path, capsys) -> None:
    sweep = standin("arms=[chain]", "axes.seed=[13]")  # its first pretraining fails
    pretrain, finetune = run_folder(sweep, "chain-pretrain"), run_folder(sweep, "chain-finetune")
    # SLURM cancels what waits for a job that failed, but not at once; with this it does not get there before the next command
    sh("scontrol", "update", f"jobid={(job := cluster.job_id(finetune))}", "starttime=now+1hour", "dependency=")
    wait_for(lambda: state_of(pretrain).state == "failed")
    wait_for(lambda: cluster.queued([pretrain, finetune]).keys() == {finetune})
    (sweep / "lucky").touch()
    hold.unlink()
    standin("arms=[chain]", "axes.seed=[13]", "--wait")
    assert is_done(finetune) and "0 already in the queue, 2 submitted" in " ".join(capsys.readouterr().out.split())
    assert cluster.job_id(finetune) != job


def test_a_sweep_waits_for_the_jobs_that_its_site_names(standin: Standin, place: Path) -> None:
    first = sh("sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap", "true")
    sweep = standin("arms=[chain]", f"site.after=[{first}]", f"site.additional={{dependency: 'after:{first}'}}")
    time.sleep(3)
    folders = [run_folder(sweep, "chain-pretrain"), run_folder(sweep, "chain-finetune")]
    assert [cluster.queued(folders)[folder].reason for folder in folders] == ["Dependency"] * 2
    sh("scontrol", "release", first)
    wait_for(lambda: (sweep / "report" / "report.html").exists())
    assert all(is_done(folder) for folder in folders)


def test_what_is_being_cancelled_is_waited_for_and_submitted_again(standin: Standin, hold: Path, capsys) -> None:
    folder = run_folder(standin("arms=[direct]"), "direct")
    wait_for(lambda: held(folder))
    os.kill(training_of(folder), signal.SIGSTOP)  # it hears of nothing, and SLURM's KillWait passes
    cancel.cancel(folder.parent)
    assert cluster.queued([folder])[folder].state == "COMPLETING"
    hold.unlink()
    standin("arms=[direct]")
    shown = capsys.readouterr()
    assert "note: waiting for 1 job that SLURM is ending" in shown.err and "0 already in the queue, 1 submitted" in shown.out
    wait_for(lambda: is_done(folder))
    assert starts(folder) == [0, HELD_AT]


@pytest.mark.parametrize("words", ["--batch --signal=USR2", "--batch --signal=TERM", "--full --signal=USR2", "--full --signal=TERM"])
def test_a_signal_to_the_batch_script_stops_the_run_and_it_goes_on(standin: Standin, hold: Path, words: str) -> None:
    folder = run_folder(standin("arms=[direct]"), "direct")
    wait_for(lambda: held(folder))
    sh("scancel", *words.split(), cluster.job_id(folder))
    goes_on(folder, hold)
    wait_for(lambda: history(folder) == ["REQUEUED", "COMPLETED"])
    assert starts(folder) == [0, HELD_AT]


def test_what_another_person_has_in_the_queue_is_neither_submitted_nor_cancelled(standin: Standin, hold: Path, capsys) -> None:
    folder = run_folder(standin("arms=[chain]"), "chain-pretrain")
    job = sh("sbatch", "--parsable", "--uid=nobody", "--chdir=/", "--output=/dev/null", "--hold", "--wrap", "true")
    sh("scancel", cluster.job_id(folder))
    write_json(folder / "slurm.json", {"job_id": job, "user": "nobody"})
    capsys.readouterr()
    for executor in ("slurm", "local"):
        assert submit.main([SWEEP, "--executor", executor, "arms=[chain]"]) == 2
        assert capsys.readouterr().err.startswith(f"error: {folder.name} is in SLURM's queue for nobody (job {job}); ")
    assert state_of(folder).state == "held"
    cancel.cancel(folder.parent)
    assert f"note: job {job} ({folder.name}) belongs to nobody and keeps running\n" in capsys.readouterr().err
    assert sh("squeue", "-h", "-u", "nobody", "-o", "%i %T") == f"{job} PENDING"
    sh("scancel", job)


def test_a_controller_that_is_silent_is_no_reason_to_train_here(place: Path, silent_controller: None, capsys) -> None:
    (place / "shards" / "digits").mkdir(parents=True)
    write_index(place / "shards" / "digits", [("train", 300), ("test", 10)])
    assert submit.main([SWEEP, "arms=[direct]"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: SLURM is set up on this machine, but no SLURM cluster answers here; ")
    assert error.endswith("train here with --executor local\n") and error.count("\n") == 1
    assert not Path("runs").exists()


@pytest.fixture
def silent_controller(cluster: None) -> Iterator[None]:
    """Whose daemon hangs: it accepts connections and does not answer."""
    pid = controller()
    os.kill(pid, signal.SIGSTOP)
    yield
    os.kill(pid, signal.SIGCONT)


def test_waiting_ends_where_only_held_jobs_are_left(standin: Standin, hold: Path) -> None:
    with ThreadPoolExecutor() as thread:
        waiting = thread.submit(submit.main, [SWEEP, "--executor", "slurm", "arms=[chain]", "--wait"])
        wait_for(lambda: any(held(path.parent) for path in hold.parent.glob("chain-pretrain-*/last.pt")))
        sh("scontrol", "requeuehold", cluster.job_id(run_folder(hold.parent, "chain-pretrain")))
        assert waiting.result(timeout=60) == 1


def test_a_report_that_cannot_run_is_made_by_who_waits(standin: Standin, hold: Path, capsys) -> None:
    words = [SWEEP, "--executor", "slurm", "arms=[direct]", "site.report={begin: now+1hour, time: 3}", "--wait"]
    with ThreadPoolExecutor() as thread:
        waiting = thread.submit(submit.main, words)
        wait_for(lambda: any(held(path.parent) for path in hold.parent.glob("direct-*/last.pt")))
        status.show(hold.parent, Console(width=200))
        job = cluster.job_id(hold.parent)
        assert f"Report: job {job}, pending\n" in capsys.readouterr().out
        assert sh("squeue", "-h", "-j", job, "-o", "%l") == "3:00"
        hold.unlink()
        assert waiting.result(timeout=60) == 0
    assert (hold.parent / "report" / "report.html").exists()
    wait_for(lambda: not sh("squeue", "-h", "--me"))


def test_what_cannot_be_written_is_cancelled_all_the_same(standin: Standin, hold: Path, capsys) -> None:
    folder = run_folder(standin("arms=[direct]"), "direct")
    wait_for(lambda: held(folder))
    with read_only(folder):
        cancel.cancel(folder.parent)
        wait_for(lambda: not sh("squeue", "-h", "--me"))
    shown = capsys.readouterr()
    assert "cancelled 2 jobs: " in shown.out
    assert f"note: could not record in its folder that {folder.name} was cancelled (Read-only file system)" in shown.err


def test_a_result_that_an_earlier_attempt_half_wrote_does_not_fail_a_run_that_is_done(standin: Standin, hold: Path) -> None:
    folder = run_folder(standin("arms=[direct]"), "direct")
    wait_for(lambda: held(folder))
    job = cluster.job_id(folder)
    (folder.parent / "submitit" / job / f"{job}_0_result.pkl.save_tmp").touch()  # as on a full disk
    kill_task(folder)
    goes_on(folder, hold)
    wait_for(lambda: history(folder) == ["REQUEUED", "COMPLETED"])
