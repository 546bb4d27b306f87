"""How a batch script ends (jobs/batch.sh), with stand-ins for SLURM's commands; tests/slurm/test_hard_days.py has the real ones."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.node import FAILED

BATCH = Path(__file__).resolve().parents[2] / "jobs" / "batch.sh"
# a file `deaf` has a line for each call that the controller does not answer
DEAF = '#!/bin/sh\n[ ! -s deaf ] || { sed -i 1d deaf; echo "$0 $1" >> refused; echo "Unable to contact slurm controller" >&2; exit 1; }\n'
SQUEUE = f'{DEAF}[ "$5" = %T ] && exec cat state\necho "$(cat state) $(cat comment)"\n'
SCONTROL = f'{DEAF}echo "$1" >> calls\ncase "$3" in comment=*) printf %s "${{3#comment=}}" > comment ;; esac\n'


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """`job(*lines)`: what the batch script of a job with these lines in the place of srun, and the site's set-up, calls scontrol for."""
    monkeypatch.chdir(tmp_path)
    for name, text in {"squeue": SQUEUE, "scontrol": SCONTROL}.items():
        Path(name).write_text(text)
        Path(name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    Path("run").mkdir()
    Path("state").write_text("RUNNING")
    Path("comment").write_text("(null)")

    def call(*lines: str, setup: str = "") -> list[str]:
        Path("calls").write_text("")
        script = [setup, f"run={shlex.quote(str(tmp_path / 'run'))}; job=5_1", f". {shlex.quote(str(BATCH))}", *lines]
        subprocess.run(["bash"], input="\n".join(script), text=True, check=False)
        return Path("calls").read_text().split()

    return call


def test_without_progress_it_restarts_three_times_and_is_held(job) -> None:
    Path("run/last.pt").touch()
    assert [job("exit 7")[-1] for _ in range(4)] == ["requeue", "requeue", "requeue", "requeuehold"]
    assert Path("comment").read_text().startswith("held: 3 restarts without progress (exit code 7), see ")


@pytest.mark.parametrize("name", ["last.pt", "evals.json"])
def test_after_progress_the_restarts_are_counted_anew(job, name) -> None:
    saves = f"touch partial; mv partial run/{name}"
    Path(f"run/{name}").touch()
    for _ in range(3):
        assert job("exit 7")[-1] == "requeue"
    assert job(saves, "exit 7") == ["update", "requeue"]
    assert [job("exit 7")[-1] for _ in range(4)] == ["requeue", "requeue", "requeue", "requeuehold"]
    assert job("exit 7")[-1] == "requeue", "released"


def test_what_is_done_or_failed_or_cancelled_is_not_restarted(job) -> None:
    assert job("exit 0") == job(f"exit {FAILED}") == []
    Path("state").write_text("COMPLETING")
    assert job("exit 7") == []
    Path("state").write_text("RUNNING")
    Path("run/error.json").touch()
    assert job("exit 7") == []


@pytest.mark.parametrize("setup", ["set -e", "set -u", "set -euo pipefail"])
def test_a_set_up_that_ends_scripts_at_a_failure_ends_no_job(job, setup) -> None:
    for text, asked_for in {"exit 7": ["update", "requeue"], "touch run/done.json": []}.items():
        Path("srun").write_text(f"#!/bin/sh\n{text}\n")
        Path("srun").chmod(0o755)
        assert job("srun training", setup=setup) == asked_for


@pytest.fixture
def quick() -> None:
    """Pauses take no time, and are written down."""
    Path("sleep").write_text('#!/bin/sh\necho "$1" >> pauses\n')
    Path("sleep").chmod(0o755)


def pauses() -> list[int]:
    return [int(line) for line in Path("pauses").read_text().split()]


@pytest.mark.parametrize("unanswered", [1, 12])
def test_a_controller_that_is_away_is_asked_again(job, quick, unanswered) -> None:
    Path("deaf").write_text("\n" * unanswered)
    assert job("exit 7")[-1] == "requeue"
    assert len(pauses()) == unanswered and pauses() == sorted(pauses())


def test_a_persons_own_ways_of_looking_at_the_queue_do_not_hide_the_job(job, monkeypatch) -> None:
    monkeypatch.setenv("SQUEUE_STATES", "PENDING")
    Path("squeue").write_text(SQUEUE.replace("[ ", '[ -z "$SQUEUE_STATES" ] || exit 0\n[ ', 1))
    assert job("exit 7")[-1] == "requeue"


def test_a_requeue_that_is_refused_is_asked_for_again(job, quick) -> None:
    Path("scontrol").write_text(SCONTROL.replace("case", '[ "$1" = update ] || [ -e once ] || { touch once; exit 1; }\ncase'))
    assert job("exit 7") == ["update", "requeue", "requeue"]


def test_a_controller_that_never_answers_is_given_up_after_ten_minutes(job, quick) -> None:
    Path("deaf").write_text("\n" * 1000)
    assert job("exit 7") == []
    assert sum(pauses()) == 600


def test_where_slurm_takes_no_comment_restarts_are_bounded_all_the_same(job, quick, monkeypatch) -> None:
    Path("scontrol").write_text(SCONTROL.replace("case", '[ "$1" != update ] || exit 1\ncase'))
    ends = []
    for count in range(5):
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(count))
        ends.append(job("exit 7")[-1])
    assert ends == ["requeue", "requeue", "requeue", "requeuehold", "requeuehold"]


def test_a_comment_that_gets_no_answer_is_written_again(job, quick) -> None:
    Path("scontrol").write_text(SCONTROL.replace("case", '[ "$1" != update ] || [ -e once ] || { touch once; exit 1; }\ncase'))
    assert job("exit 7") == ["update", "update", "requeue"]
    assert Path("comment").read_text().startswith("restart 1 of 3 ")


def test_a_job_that_may_not_be_requeued_ends_at_once(job, quick) -> None:
    refusal = "echo 'Requested operation is presently disabled for job 5' >&2; exit 1"
    Path("scontrol").write_text(SCONTROL.replace("case", f'[ "$1" = update ] || {{ {refusal}; }}\ncase'))
    assert job("exit 7") == ["update", "requeue"] and not Path("pauses").exists()


def test_it_leaves_a_step_that_never_ends_once_the_run_is_done(job) -> None:
    for name, text in {"srun": "touch run/done.json; exec /bin/sleep 3", "sleep": "exec /bin/sleep 0.2"}.items():
        Path(name).write_text(f"#!/bin/sh\n{text}\n")
        Path(name).chmod(0o755)
    begun = time.monotonic()
    assert job("srun training", 'echo "$?" > code') == []
    assert time.monotonic() - begun < 2.5 and Path("code").read_text() == "0\n"
    assert job("srun evaluation", 'echo "$?" > code') == [] and time.monotonic() - begun > 3, "of a trained run the step is what counts"
