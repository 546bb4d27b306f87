"""What a person decides about the jobs of a sweep, on a real SLURM; training is a stand-in (tests/jobs/standin.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jobs import cluster
from tests.slurm.commands import held, is_done, run_folder, sh, wait_for

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
