"""Submitting to a controller that is busy, slow or asked to stop, on a real SLURM: an sbatch before the real one, which misbehaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs import submit
from jobs.slurm import cluster
from tests.slurm.commands import TIMED_OUT, is_done, misbehaving_sbatch, sh, starts, wait_for

pytestmark = pytest.mark.release
SWEEP = str(Path(__file__).with_name("standin.yaml"))


@pytest.fixture
def sbatch(place: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`sbatch(lines)`: from now on these run before what is queued, and ``asked`` before what is only asked."""
    monkeypatch.setattr(cluster, "PAUSES_S", (1, 1))
    folder = place / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return lambda lines, asked="": misbehaving_sbatch(folder, lines, asked)


def names() -> list[str]:
    return sorted(sh("squeue", "-h", "--me", "-o", "%j").split())


QUEUED = ["standin-chain-finetune", "standin-chain-pretrain", "standin-report"]


def test_what_is_transient_is_tried_again(standin, hold: Path, sbatch, capsys) -> None:
    sbatch(f"[ $((n % 2)) = 0 ] || {{ {TIMED_OUT}; }}", asked=TIMED_OUT)
    standin("arms=[chain]")
    assert names() == QUEUED
    assert capsys.readouterr().err.count("Socket timed out on send/recv operation; trying again in 1 s\n") == 3


def test_what_was_queued_although_sbatch_failed_is_queued_once(standin, hold: Path, sbatch) -> None:
    sbatch(f'$real "$@" > /dev/null; {TIMED_OUT}')
    sweep = standin("arms=[chain]")
    assert names() == QUEUED
    hold.unlink()
    wait_for(lambda: all(is_done(path.parent) for path in sweep.glob("*/run.yaml")))


def test_an_sbatch_that_hangs_is_given_up_and_what_was_queued_is_taken_back(standin, hold: Path, sbatch, monkeypatch, capsys) -> None:
    monkeypatch.setattr(cluster, "ANSWER_S", 2)
    sbatch("[ $n = 1 ] || exec sleep 100")
    assert submit.main([SWEEP, "--executor", "slurm", "arms=[chain]"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: sbatch did not answer in 2 s; gave up after ")
    assert error.endswith("; nothing from this submission remains queued")
    wait_for(lambda: not names())
    assert not list(hold.parent.glob("*/slurm.json"))


def test_jobs_that_start_before_the_launcher_has_made_their_folders_run(standin, monkeypatch) -> None:
    """As on a busy login node, or where the file system is slow."""
    queue = cluster.submit
    monkeypatch.setattr(cluster, "submit", lambda script: (queue(script), time.sleep(4))[0])
    sweep = standin("arms=[direct]")
    folders = [path.parent for path in sweep.glob("*/run.yaml")]
    wait_for(lambda: all(is_done(folder) for folder in folders))
    assert {tuple(starts(folder)) for folder in folders} == {(0,)}


def test_500_runs_are_checked_and_submitted_in_seconds(standin) -> None:
    """In about 10 s of the launcher's CPU time; with work in the square of their number it would be minutes."""
    begun = time.process_time()  # ours: neither sbatch's nor the controller's
    standin("arms=[direct]", f"axes.seed=[{','.join(map(str, range(500)))}]", "site.additional={hold: true}")
    assert time.process_time() - begun < 40
    assert len(sh("squeue", "-h", "-r", "-n", "standin-direct-train").splitlines()) == 500


@pytest.fixture
def submitting(standin, hold: Path) -> Iterator[Callable[..., subprocess.Popen]]:
    """`submitting(*words)`: a submission in a process group of its own, which Ctrl-C can be sent to."""
    program = "import sys; from jobs import folders, submit; folders.TRAINING = 'standin'; sys.exit(submit.main(sys.argv[1:]))"
    path = os.pathsep.join([os.environ["PYTHONPATH"], str(Path(__file__).parents[2])])
    started = []

    def start(*words: str) -> subprocess.Popen:
        command = [sys.executable, "-c", program, SWEEP, "--executor", "slurm", "arms=[chain]", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}, text=True, process_group=0, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def interrupted(process: subprocess.Popen) -> str:
    os.killpg(process.pid, signal.SIGINT)
    error = process.communicate(timeout=30)[1]
    assert process.returncode == 130
    return error


def test_ctrl_c_takes_back_what_was_queued(submitting, sbatch, place: Path) -> None:
    sbatch('[ $n = 1 ] || { $real "$@"; exec sleep 100; }')
    process = submitting()
    wait_for(lambda: len(names()) == 2)
    assert interrupted(process) == "interrupted: nothing from this submission remains queued\n"
    wait_for(lambda: not names())
    assert not list(place.glob("runs/standin/*/slurm.json"))


def test_ctrl_c_while_waiting_leaves_the_jobs(submitting) -> None:
    process = submitting("--wait")
    assert any(line.startswith("Follow it with") for line in process.stdout)  # all are queued, and it waits
    wait_for(lambda: sh("squeue", "-h", "--me", "-t", "RUNNING", "-o", "%j"))
    error = interrupted(process)
    assert error.startswith("interrupted: the jobs keep running; follow them with: ") and error.count("\n") == 1
    assert names() == QUEUED
