"""What a person decides about the jobs of a sweep, on a real SLURM; training is a stand-in (tests/jobs/standin.py)."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rich.console import Console

from jobs import cancel, retry, status
from jobs.slurm import cluster
from tests.slurm.commands import held, is_done, run_folder, sh, starts, training_of, wait_for

pytestmark = pytest.mark.release
Standin = Callable[..., Path]


def test_no_more_of_an_array_run_at_once_than_was_said(standin: Standin, hold: Path) -> None:
    sweep = standin("arms=[direct]", "axes.seed=[0,1,2]", "--max-parallel", "1")
    wait_for(lambda: any(held(folder) for folder in sweep.glob("direct-*")))
    assert sorted(sh("squeue", "-h", "-r", "--me", "-n", "standin-direct-train", "-o", "%T %r").split("\n")) == [
        "PENDING JobArrayTaskLimit", "PENDING JobArrayTaskLimit", "RUNNING None",
    ]  # fmt: skip
    hold.unlink()
    wait_for(lambda: all(is_done(folder) for folder in sweep.glob("direct-*")))


def test_options_of_the_runs_alone_reach_slurm(standin: Standin, hold: Path) -> None:
    *others, last = sh("sinfo", "-h", "-N", "-p", "gpu", "-o", "%N").split()
    fields = [f"site.exclude='{','.join(others)}'", "site.nice=7", "site.mail_type=FAIL,TIME_LIMIT", "site.mail_user=nobody"]
    sweep = standin("arms=[direct]", *fields)
    folder = run_folder(sweep, "direct")
    wait_for(lambda: held(folder))
    shown, report = (sh("scontrol", "show", "job", cluster.job_id(path)) for path in (folder, sweep))
    for said in (f" NodeList={last}", " Nice=7 ", "MailUser=nobody MailType=FAIL,TIME_LIMIT"):
        assert said in shown and said not in report
    hold.unlink()


def test_why_runs_wait_and_what_they_print(standin: Standin, hold: Path, capfd) -> None:
    sweep = standin("arms=[chain]", "axes.seed=[0,1]", "--max-parallel", "1")
    wait_for(lambda: any(held(folder) for folder in sweep.glob("chain-pretrain-*")))
    capfd.readouterr()
    status.show(sweep, Console(width=200))
    throttled = r"1 for other jobs of their array \(max_parallel\) \(JobArrayTaskLimit(, from .*)?\)"
    assert re.search(rf"Pending: 2 for the runs they start from \(Dependency\), {throttled}\n", capfd.readouterr().out)
    with ThreadPoolExecutor() as thread:
        following = thread.submit(status.main, [str(sweep), "--log", "chain-finetune-s1", "--follow"])
        hold.unlink()
        assert following.result(timeout=60) == 0
    folder = run_folder(sweep, "chain-finetune-s1")
    # before the run writes one itself, its newest log may be that of SLURM's task
    assert capfd.readouterr().err.endswith(f"==> {next((folder / 'log').glob('*.txt'))} <==\n{folder.name}: done\n")


def test_cancelling_an_arm_or_a_run_ends_what_waits_for_it_and_nothing_else(standin: Standin, hold: Path, capsys) -> None:
    sweep = standin()
    pretrain, first, second = (run_folder(sweep, name) for name in ("chain-pretrain", "chain-finetune", "second_chain-finetune"))
    wait_for(lambda: held(pretrain) and held(run_folder(sweep, "direct")))
    capsys.readouterr()
    assert cancel.main([str(sweep), "chain"]) == 0
    shown = capsys.readouterr()
    assert shown.err == f"note: {pretrain.name} keeps running, since arm second_chain needs it too; name it to stop it\n"
    assert shown.out == f"cancelled 1 job: {cluster.job_id(first)}\n"
    assert cancel.main([str(sweep), "chain-pretrain"]) == 0
    assert capsys.readouterr().out == (
        f"cancelled 2 jobs: {cluster.job_id(pretrain)} {cluster.job_id(second)}\nof which 1 job waited for the others: {second.name}\n"
    )
    states = {s.name: s.state for s in status.read_overview(sweep).statuses}
    assert states.pop(run_folder(sweep, "direct").name) == "running" and set(states.values()) <= {"cancelled", "completing"}
    assert cancel.main([str(sweep), "second_chain"]) == 0
    hold.unlink()
    standin("--wait")
    assert all(is_done(folder) for folder in (pretrain, first, second))
    assert cancel.main([str(sweep), "direct", "second*"]) == 0
    assert capsys.readouterr().out.endswith(f"nothing of direct second* in {sweep} is running or queued\n")


def test_what_failed_is_tried_again_beside_what_is_in_the_queue(standin: Standin, hold: Path, capsys) -> None:
    sweep = standin("arms=[direct,chain]", "axes.seed=[0,13]", "site.nice=5")
    pretrain, finetune, other = (run_folder(sweep, name) for name in ("chain-pretrain-s13", "chain-finetune-s13", "direct-s0"))
    wait_for(lambda: (pretrain / "error.json").exists() and finetune not in cluster.queued([finetune]) and held(other))
    report = cluster.job_id(sweep)
    (sweep / "lucky").touch()
    capsys.readouterr()
    assert retry.main([str(sweep)]) == 0
    assert "0 already done, 4 already in the queue, 2 submitted in 2 arrays" in " ".join(capsys.readouterr().out.split())
    assert cluster.job_id(sweep) != report and report not in cluster.jobs([cluster.me()])  # there is one report, of all of them
    wait_for(lambda: held(pretrain))
    assert " Nice=5 " in sh("scontrol", "show", "job", cluster.job_id(pretrain)) and not (sweep / "report").exists()
    hold.unlink()
    wait_for(lambda: (sweep / "report" / "report.html").exists())
    assert all(is_done(path.parent) for path in sweep.glob("*/run.yaml"))


def test_a_run_that_is_killed_again_and_again_says_what_ended_it(standin: Standin, hold: Path) -> None:
    folder = run_folder(standin("arms=[direct]"), "direct")
    wait_for(lambda: held(folder))

    def state() -> status.Status:
        (found,) = status.read_overview(folder.parent).statuses
        return found

    for attempt in range(1, 6):  # after progress, three times without, and to be held
        wait_for(lambda begun=attempt: len(starts(folder)) == begun)
        os.kill(training_of(folder), signal.SIGKILL)
        wait_for(lambda: state().state != "running")
    wait_for(lambda: state().state == "held")
    assert re.fullmatch(
        r"held: 3 restarts without progress \(exit code 1\), see .*; a task was killed from outside \(signal 9\), probably for lack of "
        r"memory: raise resources.mem_gb, or lower data.workers",
        state().error or "",
    )
    hold.unlink()
    assert retry.main([str(folder.parent)]) == 0
    wait_for(lambda: is_done(folder))
