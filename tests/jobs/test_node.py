"""How the task of a run ends, by how training did (jobs/node.py); tests/slurm has real ones."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import submitit

from jobs import command, node
from vitssl.files import read_json, write_json

TORCHRUN = "  exitcode  : -9 (pid: 77)\n  error_file: <N/A>\n  traceback : Signal 9 (SIGKILL) received by PID 77"


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """`task(line)`: run the task of a run in whose place a shell runs this line; it raises what the task does."""
    folder = tmp_path / "run"
    folder.mkdir()
    write_json(folder / "job.json", {"parents": [], "hours": 1})
    paths = SimpleNamespace(result_pickle=tmp_path / "result.pkl")
    environment = SimpleNamespace(paths=paths, node=0, hostnames=["n1"], raw_job_id="7")
    monkeypatch.setattr(node.submitit, "JobEnvironment", lambda: environment)
    monkeypatch.setattr(node, "_ends_at", lambda _: None)
    numbers = (signal.SIGUSR2, signal.SIGTERM, signal.SIGALRM)
    before = [signal.getsignal(number) for number in numbers]

    def run(line: str) -> None:
        monkeypatch.setattr(node, "start", lambda *_, **options: subprocess.Popen(["bash", "-c", line], cwd=folder, **options))
        node.Node(str(folder))()

    yield run
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_the_last_element_of_an_array_learns_when_its_own_job_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its SLURM_JOB_ID is the array's, under which squeue lists every element."""
    squeue = tmp_path / "squeue"
    squeue.write_text(
        "#!/bin/sh\ncase $3 in 70_4) echo 2026-11-25T04:00:00;; *) printf '2026-11-25T02:00:00\\n2026-11-25T04:00:00\\n';; esac\n"
    )
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name, value in {"SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_ID": "70", "SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "4"}.items():
        monkeypatch.setenv(name, value)
    assert node._ends_at(submitit.JobEnvironment()) == datetime(2026, 11, 25, 4).timestamp()


@pytest.mark.parametrize("line", ["kill -9 $$", "exit 137", f"printf '%s\n' '{TORCHRUN}'; exit 1"])
def test_killed_before_its_first_step_a_run_is_started_again(task, tmp_path: Path, line: str) -> None:
    with pytest.raises(RuntimeError, match="run failed: exit code"):
        task(line)
    assert not (tmp_path / "run" / "error.json").exists(), "batch.sh restarts it"


@pytest.mark.parametrize("line", ["exit 1", "echo 'FATAL: could not open image'; exit 255", "exit 127"])
def test_what_does_not_start_at_all_is_not_started_again(task, tmp_path: Path, line: str) -> None:
    with pytest.raises(SystemExit, match=str(node.FAILED)):
        task(line)
    assert read_json(tmp_path / "run" / "error.json")["message"].startswith("exit code ")


def test_a_task_that_knows_why_its_run_failed_says_so_by_its_exit_code(task, capsys) -> None:
    """On the node of `batch.sh` NFS may show the error late; srun's code is the highest of its tasks'."""
    with pytest.raises(SystemExit, match=str(node.FAILED)):
        task("""echo '{"message": "loss is not finite", "time": 1}' > error.json; touch last.pt; exit 1""")
    assert capsys.readouterr().err == "run failed: loss is not finite\n" and node.FAILED > node.STOPPED


@pytest.mark.parametrize(
    "own, there", [({}, {"GOMP_SPINCOUNT": "3000"}), ({"OMP_WAIT_POLICY": "passive"}, {}), ({"GOMP_SPINCOUNT": "7"}, {})]
)
def test_threads_wait_shortly_where_nobody_said_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own, there) -> None:
    """Said by the shell, or by the site's profile."""
    for name in command.WAITS:
        monkeypatch.delenv(name, raising=False)
    job = {"source": str(tmp_path), "site": {"env": own}}
    made = command.environment(job, tmp_path / "stop")
    assert {name: made[name] for name in command.WAITS & made.keys()} == own | there
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    made = command.environment(job | {"site": {}}, tmp_path / "stop")
    assert {name: made[name] for name in command.WAITS & made.keys()} == own | there
