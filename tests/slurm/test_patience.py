"""What takes minutes on a real SLURM: restarts without progress, a parent that is not done, a step that SLURM has lost sight of."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs import submit
from jobs.slurm import cluster
from tests.jobs.standin import HELD_AT
from tests.slurm.commands import held, history, is_done, kill_task, read_only, restarts, run_folder, sh, starts, state_of, wait_for

pytestmark = pytest.mark.release
Standin = Callable[..., Path]
SWEEP = str(Path(__file__).with_name("standin.yaml"))


def test_a_job_that_cannot_get_on_is_held_with_a_reason_and_goes_on_when_that_is_repaired(standin: Standin, hold: Path, capsys) -> None:
    folder = run_folder(standin("arms=[chain]"), "chain-pretrain")
    wait_for(lambda: held(folder))
    with read_only(folder):
        kill_task(folder)
        wait_for(lambda: state_of(folder).state == "held", timeout_s=120)
        assert restarts(folder) == 5  # after progress, three times without, and to be held
        assert state_of(folder).error.startswith("held: 3 restarts without progress (exit code 1), see ")
        assert state_of(folder).error.endswith("; where it writes is read-only")
        capsys.readouterr()
        words = [SWEEP, "--executor", "slurm", "arms=[chain]"]
    hold.unlink()
    assert submit.main([*words, "--wait"]) == 0
    assert "2 already in the queue, of which 1 held: released, 0 submitted" in " ".join(capsys.readouterr().out.split())
    assert starts(folder) == [0, HELD_AT] and is_done(run_folder(folder.parent, "chain-finetune"))


def test_a_run_whose_parent_is_not_done_does_not_start_and_names_it(standin: Standin, hold: Path) -> None:
    sweep = standin("arms=[chain]")
    pretrain, finetune = run_folder(sweep, "chain-pretrain"), run_folder(sweep, "chain-finetune")
    wait_for(lambda: held(pretrain))
    sh("scontrol", "update", f"jobid={cluster.job_id(finetune)}", "dependency=")
    wait_for(lambda: state_of(finetune).state == "failed", timeout_s=120)
    assert state_of(finetune).error == f"not started: {pretrain.name}, which it starts from, is not done"
    assert starts(finetune) == []


def test_a_run_that_is_done_ends_although_its_slurmstepd_was_killed(standin: Standin, hold: Path) -> None:
    sweep = standin("arms=[chain]")
    pretrain, finetune = run_folder(sweep, "chain-pretrain"), run_folder(sweep, "chain-finetune")
    wait_for(lambda: held(pretrain))
    os.kill(int(sh("pgrep", "-f", rf"^slurmstepd: \[{cluster.job_id(pretrain)}\.0\]")), signal.SIGKILL)
    hold.unlink()
    wait_for(lambda: is_done(finetune), timeout_s=120)
    assert history(pretrain) == ["COMPLETED"] and starts(pretrain) == [0]
