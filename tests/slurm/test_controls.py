"""What a person decides about the jobs of a sweep, on a real SLURM; training is a stand-in (tests/jobs/standin.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.slurm.commands import held, is_done, sh, wait_for

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
