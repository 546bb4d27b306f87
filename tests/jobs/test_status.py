"""What jobs/status.py shows besides the time left: why runs wait, again and again, and what they print."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from jobs import logs, status
from jobs.display import states
from jobs.slurm import cluster
from tests.conftest import sweep_facts
from vitssl import sweep_folder
from vitssl.config import Run, merge, save
from vitssl.files import write_json

ROOT = Path(__file__).parents[2]
STAGES = ("pretrain", "finetune")


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two chains of two runs, `a` and `b`, that were submitted as the jobs 1 to 4, and have not begun."""
    cells = [{"arm": arm, "axes": {}, "stages": [{"stage": stage, "folder": f"{arm}-{stage}"} for stage in STAGES]} for arm in "ab"]
    write_json(tmp_path / "sweep.json", sweep_facts("ab", cells))
    for number, (arm, stage) in enumerate(((arm, stage) for arm in "ab" for stage in STAGES), start=1):
        folder = tmp_path / f"{arm}-{stage}"
        folder.mkdir()
        parents = [str(tmp_path / f"{arm}-pretrain")] if stage == "finetune" else []
        write_json(folder / "job.json", {"arm": arm, "stage": stage, "parents": parents, "executor": "slurm"})
        cluster.record(folder, str(number))
    return tmp_path


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> dict[str, cluster.Entry]:
    """SLURM's queue, to be filled."""
    entries: dict[str, cluster.Entry] = {}
    monkeypatch.setattr(cluster, "jobs", lambda _: entries)
    monkeypatch.setattr(cluster.shutil, "which", lambda name: name)
    return entries


def shown(sweep: Path, capsys) -> list[str]:
    status._draw(sweep, status.read_overview(sweep), Console(width=120))
    return capsys.readouterr().out.splitlines()


def finish(folder: Path) -> None:
    write_json(folder / "done.json", {"step": 1, "epochs": 1.0})


def test_why_runs_wait_and_when_they_may_begin(sweep: Path, queue, capsys) -> None:
    starts = {"1": "2026-11-23T19:00:00", "3": "2026-11-23T18:00:00"}
    queue |= {job: cluster.Entry("PENDING", "Priority" if job in starts else "Dependency", start=starts.get(job, "")) for job in "1234"}
    queue["4"].reason = "ReqNodeNotAvail, UnavailableNodes:a1,b1"
    assert shown(sweep, capsys)[-1] == (
        "Pending: 2 behind other jobs (Priority, from 2026-11-23 18:00:00 on), 1 for the runs they start from (Dependency), "
        "1 for nodes that are down, reserved or excluded (ReqNodeNotAvail, UnavailableNodes:a1,b1)"
    )
    limit = "by your account's or QOS's limit"
    for reason, words in {"QOSGrpGRES": limit, "AssocMaxJobsLimit": limit, "Cleaning": "for another reason"}.items():
        queue["4"].reason = reason
        assert shown(sweep, capsys)[-1].endswith(f", 1 {words} ({reason})")


def test_what_slurm_dropped_with_its_parent_is_cancelled_and_says_with_whom(sweep: Path, queue, capsys) -> None:
    write_json(sweep / "a-pretrain" / "error.json", {"message": "loss is not finite"})
    (sweep / "b-pretrain" / "cancelled").touch()
    lines = shown(sweep, capsys)
    assert [s.state for s in status.read_overview(sweep).statuses] == ["failed", "cancelled", "cancelled", "cancelled"]
    assert "a-finetune: cancelled: a-pretrain, which it starts from, failed" in lines
    assert "b-finetune: cancelled: b-pretrain, which it starts from, was cancelled" in lines


def test_a_report_whose_job_failed_is_told_and_how_to_make_it(sweep: Path, queue, capsys) -> None:
    cluster.record(sweep, "5")
    for folder in sweep.glob("*-*"):
        assert not any(line.startswith("Report") for line in shown(sweep, capsys)), "runs are left"
        finish(folder)
    told = f"Report: job 5 has ended without making it; `vitssl report {sweep}` makes it here"
    assert told in shown(sweep, capsys)
    (sweep / "report").mkdir()
    (sweep / "report" / "report.html").touch()
    os.utime(sweep / "report" / "report.html", (1, 1))
    assert told in shown(sweep, capsys), "it is older than the submission"
    (sweep / "report" / "report.html").touch()
    assert not any(line.startswith("Report") for line in shown(sweep, capsys))


def test_a_job_that_outlives_its_run_is_named(sweep: Path, queue, capsys) -> None:
    folder = sweep / "a-pretrain"
    queue["1"] = cluster.Entry("RUNNING")
    fields = {"data": {"shards": "/shards"}, "objectives": {"classify": {}}}
    save(merge(Run, fields), folder)
    finish(folder)
    told = "a-pretrain: done, but its job has not ended: scancel 1"
    assert told not in shown(sweep, capsys), "it has a minute to end"
    os.utime(folder / "done.json", (1, 1))
    assert told in shown(sweep, capsys)
    save(merge(Run, fields | {"evals": {"knn": {"type": "knn"}}}), folder)
    assert told not in shown(sweep, capsys), "it is evaluated"


@pytest.mark.parametrize(("hashes", "width", "named"), [("ab", 50, False), ("ab", 100, True), ("aa", 50, True)])
def test_names_lose_their_hashes_before_a_table_loses_the_time_left(tmp_path: Path, capsys, hashes: str, width: int, named: bool) -> None:
    """Where two are then the same they keep them."""
    names = [f"an_arm_of_a_long_name-s{seed}-{letter * 12}" for seed, letter in enumerate(hashes)]
    if hashes == "aa":
        names[1] = names[0].replace("-aa", "-bb")
    cells = [{"arm": "x", "axes": {}, "stages": [{"stage": "train", "folder": name}]} for name in names]
    write_json(tmp_path / "sweep.json", sweep_facts("x", cells))
    for name in names:
        save(merge(Run, {"data.shards": "gone", "objectives.classify": {}, "loop.epochs": 2}), tmp_path / name)
        write_json(tmp_path / name / "job.json", {"arm": "x", "stage": "train", "parents": [], "executor": "local"})
        start = {
            "event": "start",
            "step": 0,
            "time": 1.0,
            "steps": 10,
            "steps_per_epoch": 5.0,
            "epochs": 2,
            "batch_size": 10,
            "attempt": 0,
            "world_size": 1,
            "accumulate": 1,
            "lost_steps": 0,
        }
        start |= {"device": "CPU", "host": "n1", "versions": {}}
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps(start) + "\n")
        write_json(tmp_path / name / "done.json", {"step": 10, "epochs": 2.0, "time_s": 1.0, "test": {"top1": 50.0}})
    status._draw(tmp_path, status.read_overview(tmp_path), Console(width=width))
    said = capsys.readouterr().out
    assert ((names[0] in said) == named) and names[0].rpartition("-")[0] in said and ("0.0 (0%)" in said) == (hashes == "ab")


def test_runs_are_scored_by_the_metric_of_the_sweep(sweep: Path, queue, capsys) -> None:
    """What is not measured before the end is told by another metric until then, with its name."""
    early = {"event": "eval", "step": 1, "time": 1.0, "epoch": 1.0, "test": {"top1": 61.0}}
    late = early | {"step": 2, "test": {"top1": 62.0, "balanced_accuracy": 55.5}}
    (sweep / "a-finetune" / "metrics.jsonl").write_text(f"{json.dumps(early)}\n{json.dumps(late)}\n")
    (sweep / "b-finetune" / "metrics.jsonl").write_text(f"{json.dumps(early)}\n")
    write_json(sweep / "b-finetune" / "evals.json", {"knn": {"config": {"type": "knn"}, "epoch": 2.0, "metrics": {"top1": 44.0}}})
    facts = json.loads((sweep / "sweep.json").read_text())
    for metric, title, scores in (
        ("top1", "top-1 %", ["62.00", "61.00"]),
        ("balanced_accuracy", "balanced accuracy %", ["55.50", "61.00 (top1)"]),
        ("knn/top1", "knn top-1 %", ["62.00 (test)", "44.00"]),
    ):
        write_json(sweep / "sweep.json", facts | {"metric": metric})
        assert title in "\n".join(shown(sweep, capsys))
        assert [s.score for s in status.read_overview(sweep).statuses if s.stage == "finetune"] == scores


def test_watching_ends_with_the_last_run(sweep: Path, queue, capsys) -> None:
    for job in "1234":
        queue[job] = cluster.Entry("RUNNING")
    for folder in sweep.glob("*-*"):
        save(merge(Run, {"data": {"shards": "/shards"}, "objectives": {"classify": {}}}), folder)

    def end() -> None:
        time.sleep(0.5)
        for folder in sweep.glob("*-*"):
            finish(folder)

    thread = threading.Thread(target=end)
    thread.start()
    status.watch(sweep, 0.6, Console(width=120))
    thread.join()
    out = capsys.readouterr().out
    assert out.count("┏") == 2 and out.count("running") == out.count("done") == 4
    status.watch(sweep, 1, Console(width=120, height=40, force_terminal=True))
    assert capsys.readouterr().out.startswith("\x1b[2J\x1b[H")  # in place


def test_ctrl_c_ends_watching_in_one_line(sweep: Path) -> None:
    for folder in sweep.glob("*-*/slurm.json"):  # or SLURM would be asked
        folder.unlink()
    write_json(sweep / "local.json", {"pid": os.getpid(), "host": os.uname().nodename, "born": sweep_folder.born_at(os.getpid())})
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    program = [sys.executable, str(ROOT / "jobs" / "status.py"), str(sweep), "--watch", "1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(program, env=environment, text=True, process_group=0, **pipes)
    assert process.stdout is not None
    assert re.fullmatch(r"\d\d:\d\d:\d\d\n", process.stdout.readline())
    assert any("waiting" in line for line in process.stdout), "it ended before it was asked to"
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=20)
    assert process.returncode == 130 and error == "interrupted\n"


def test_the_end_of_the_newest_log_is_found_by_a_part_of_the_name(sweep: Path, capsys) -> None:
    folder = sweep / "b-pretrain" / "log"
    folder.mkdir()
    for attempt in (0, 1):
        text = "".join(f"attempt {attempt} line {i}\n" for i in range(50)) + "100%\r\x1b[2J"
        (folder / f"train-7-{attempt}-n1.txt").write_text(text)
        os.utime(folder / f"train-7-{attempt}-n1.txt", (attempt, attempt))
    for named in ("b-pre", str(sweep / "b-pretrain"), "b-pretrain/"):
        assert status.main([str(sweep), "--log", named, "-n", "4"]) == 0
        out, error = capsys.readouterr()
        assert out == "attempt 1 line 48\nattempt 1 line 49\n100%\n\\x1b[2J"  # which does nothing to a terminal
        assert error == f"==> {folder / 'train-7-1-n1.txt'} <==\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--log", "pretrain"], "{}: pretrain stands for 2 runs: a-pretrain and b-pretrain; name one"),
        (["--log", "a-pretrian"], "{}: no run has 'a-pretrian' in its name (did you mean a-pretrain?)"),
        (["--log", "bb"], "{}: no run has 'bb' in its name (did you mean b?)"),
        (["--log", "a-pretrain"], "{}/a-pretrain: there is no log: the run is not begun"),
        (
            ["--follow"],
            "argument --follow: name a run with --log RUN; --watch follows the sweep; see jobs/status.py",
        ),
        (["--watch", "0"], "argument --watch: '0' is not a number of at least 1; name the sweep's folder first; see jobs/status.py"),
    ],
)
def test_what_cannot_be_shown_is_one_line(sweep: Path, queue, capsys, words: list[str], said: str) -> None:
    try:
        code = status.main([str(sweep), *words])
    except SystemExit as ended:  # argparse's
        code = ended.code
    out, error = capsys.readouterr()
    assert code == 2 and not out and error.count("\n") == 1
    assert error.startswith(f"error: {said.format(sweep)}")


def test_where_no_training_began_the_log_of_the_job_is_shown(sweep: Path, capsys) -> None:
    (sweep / "submitit" / "1").mkdir(parents=True)
    (sweep / "submitit" / "1_log.out").write_text("no such container\n")  # of the batch script, beside the folder of its tasks
    assert status.main([str(sweep), "--log", "a-pre"]) == 0
    assert capsys.readouterr().out == "no such container\n"


def test_following_goes_on_with_the_next_attempt_and_ends_with_the_run(sweep: Path, queue, monkeypatch, capfd) -> None:
    monkeypatch.setattr(logs, "PAUSE_S", 0.05)
    queue["1"] = cluster.Entry("RUNNING")
    folder = sweep / "a-pretrain"
    save(merge(Run, {"data": {"shards": "/shards"}, "objectives": {"classify": {}}}), folder)
    (folder / "log").mkdir()
    (folder / "log" / "train-1-0-n1.txt").write_text("one\ntwo\nthree\n")
    following = threading.Thread(target=status.main, args=([str(sweep), "--log", "a-pre", "--follow", "-n", "2"],))
    following.start()
    time.sleep(0.3)
    with (folder / "log" / "train-1-0-n1.txt").open("a") as log:
        log.write("four\n")
    time.sleep(0.3)
    (folder / "log" / "train-1-1-n2.txt").write_text("five\n")
    time.sleep(0.3)
    finish(folder)
    following.join(timeout=20)
    out, error = capfd.readouterr()
    assert not following.is_alive() and out == "two\nthree\nfour\nfive\n"
    assert error.splitlines()[1:] == [f"==> {folder}/log/train-1-1-n2.txt <==", "a-pretrain: done"]


@pytest.mark.parametrize("cut", range(1, len("é…🙂\r\n.".encode())))
def test_what_one_reading_of_a_log_cuts_is_shown_whole(tmp_path: Path, capfd, cut: int) -> None:
    text, path = "é…🙂\r\n.".encode(), tmp_path / "train.txt"
    path.write_bytes(text[:cut])
    log = logs._Log(path)
    log.print_end(5, final=False)
    with path.open("ab") as stream:
        stream.write(text[cut:])
    log.print_new(final=True)
    assert capfd.readouterr().out == "é…🙂\n."


def test_a_log_that_ends_within_a_character_says_so(tmp_path: Path, capfd) -> None:
    path = tmp_path / "train.txt"
    path.write_bytes("ab é".encode()[:-1])
    log = logs._Log(path)
    log.print_end(5, final=False)
    assert capfd.readouterr().out == "ab "
    log.print_new(final=True)
    assert capfd.readouterr().out == "\ufffd"


@pytest.mark.parametrize(("reason", "over"), [("Dependency", True), ("Priority", False)])
def test_watching_goes_on_while_the_job_that_queues_the_rest_is_about_to(sweep, reason, over) -> None:
    statuses = [states.Status("a", "train", "held"), states.Status("b", "train", "not begun")]
    queue = {sweep / "a": cluster.Entry("HELD", "JobHeldUser"), sweep: cluster.Entry("PENDING", reason)}
    assert states.Overview(statuses, queue).has_ended(sweep) is over


def test_watching_goes_on_as_long_as_this_machine_works_on_the_sweep(sweep, monkeypatch) -> None:
    """It may evaluate runs that are trained, or make the report."""
    overview = states.Overview([states.Status("a", "train", "done")])
    save(merge(Run, {"data": {"shards": "/shards"}, "objectives": {"classify": {}}}), sweep / "a")
    finish(sweep / "a")
    assert overview.has_ended(sweep)
    monkeypatch.setattr(states.sweep_folder, "launcher_pid", lambda _: 7)
    assert not overview.has_ended(sweep)


@pytest.mark.parametrize(("state", "over"), [("HELD", True), ("RUNNING", False)])
def test_watching_goes_on_as_long_as_a_trained_run_is_evaluated(sweep, state, over) -> None:
    evaluated = {"data": {"shards": "/shards"}, "objectives": {"classify": {}}, "evals": {"knn": {"type": "knn"}}}
    save(merge(Run, evaluated), sweep / "b")
    finish(sweep / "b")
    statuses = [states.Status("a", "train", "held"), states.Status("b", "train", "done")]
    queue = {sweep / "a": cluster.Entry("HELD"), sweep / "b": cluster.Entry(state), sweep: cluster.Entry("PENDING", "Dependency")}
    assert states.Overview(statuses, queue).has_ended(sweep) is over


@pytest.mark.parametrize(("record", "last"), [("error.json", "failed: no"), ("done.json", "done")])
def test_following_what_has_not_ended_asks_slurm_seldom_and_looks_at_one_run(sweep, queue, monkeypatch, capfd, record, last) -> None:
    """A run that failed, whose job is ending, and one that is trained, and is evaluated now."""
    folder, asked, seen = sweep / "a-finetune", [], set()
    save(merge(Run, {"data": {"shards": "/shards"}, "objectives": {"classify": {}}, "evals": {"knn": {"type": "knn"}}}), folder)
    write_json(folder / record, {"message": "no"} if record == "error.json" else {"step": 1, "epochs": 1.0})

    def jobs(_) -> dict[str, cluster.Entry]:
        asked.append(time.monotonic())
        return queue if len(asked) < 4 else {}

    def read(folder: Path, *more) -> status.Status:
        seen.add(folder.name)
        return readable(folder, *more)

    queue |= {"1": cluster.Entry("RUNNING"), "2": cluster.Entry("RUNNING"), "3": cluster.Entry("RUNNING")}
    readable = states._readable
    monkeypatch.setattr(cluster, "jobs", jobs)
    monkeypatch.setattr(states, "_readable", read)
    monkeypatch.setattr(cluster, "ASKED_EVERY_S", 0.15)
    monkeypatch.setattr(logs, "PAUSE_S", 0.01)
    assert status.main([str(sweep), "--log", "a-finetune", "--follow"]) == 0
    assert len(asked) == 4 and asked[-1] - asked[0] > 3 * 0.15 and seen == {"a-pretrain", "a-finetune"}
    assert capfd.readouterr().err == f"a-finetune: {last}\n"


def ended(sweep: Path, name: str) -> str | None:
    return next(s.error for s in status.read_overview(sweep).statuses if s.name == name)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.0", "the job's memory was used up: raise resources.mem_gb"),
        ("traceback: Signal 9 (SIGKILL) received by PID 7", "a task was killed from outside (signal 9), probably for lack of memory"),
        ("OSError: [Errno 28] No space left on device: 'x'", "no disk space is left where it writes: free some"),
        ("slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026 DUE TO TIME LIMIT ***", "its time ran out before it had saved"),
        ("slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026 DUE TO NODE FAILURE ***", "its node failed"),
    ],
)
def test_the_cause_of_an_end_without_a_reason_is_looked_for_in_logs(sweep: Path, queue, said: str, meant: str) -> None:
    (sweep / "submitit" / "1").mkdir(parents=True)
    (sweep / "submitit" / "1" / "1_0_log.out").write_text(f"{said}\nlast words\n")
    queue["1"] = cluster.Entry("HELD", comment="held: 3 restarts without progress (exit code 1), see log")
    assert ended(sweep, "a-pretrain").startswith(f"held: 3 restarts without progress (exit code 1), see log; {meant}")
    queue.clear()
    assert ended(sweep, "a-pretrain") is None  # not begun, and not known to have ended
    (sweep / "a-pretrain" / "metrics.jsonl").write_text('{"event": "eval", "step": 1, "time": 1.0, "epoch": 1.0}\n')
    assert ended(sweep, "a-pretrain").startswith(meant)
    write_json(sweep / "a-pretrain" / "error.json", {"message": "exit code -9, see log"})
    assert ended(sweep, "a-pretrain").startswith(f"exit code -9, see log; {meant}")
    write_json(sweep / "a-pretrain" / "error.json", {"message": "loss is not finite"})
    assert ended(sweep, "a-pretrain") == "loss is not finite"


def test_restarts_without_progress_are_told_and_others_are_not(sweep: Path, queue) -> None:
    queue |= {"1": cluster.Entry("RUNNING", comment="restart 2 of 3 without progress (exit code 1)")}
    queue |= {"3": cluster.Entry("RUNNING", comment="restarted after progress")}
    assert ended(sweep, "a-pretrain") == "restart 2 of 3 without progress (exit code 1)"
    assert ended(sweep, "b-pretrain") is None


def test_the_log_of_what_failed_ends_with_the_first_ranks_traceback(sweep: Path, queue, capsys) -> None:
    folder = sweep / "a-pretrain"
    (folder / "log").mkdir()
    (folder / "log" / "train-1-0-n1.txt").write_text("forty tracebacks\n")
    write_json(folder / "error.json", {"message": "no", "rank": 3, "details": "Traceback of rank 3\n"})
    assert status.main([str(sweep), "--log", "a-pre"]) == 0
    out, error = capsys.readouterr()
    assert out == "forty tracebacks\nTraceback of rank 3\n" and error.endswith("a-pretrain: failed: no\n")


def test_a_job_that_slurm_held_says_why(sweep, queue, capsys) -> None:
    """After a node was lost and came back, say; `batch.sh` has nothing to do with it."""
    queue["1"] = cluster.Entry("HELD", "launch failed requeued held")
    assert any("held by SLURM or a person (launch failed requeued held); the command" in line for line in shown(sweep, capsys))
