"""The time left for a sweep, and tables that fit the terminal."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from jobs import local, status, submit
from jobs.display import show, tables
from jobs.local import Place
from jobs.plan import overrides, predict
from jobs.plan.launch import Launch
from jobs.plan.predict import START_S
from jobs.plan.sweep import read
from jobs.plan.time_left import MeasuredTimes, Work, measured_times, remaining, work
from jobs.slots import Slot
from jobs.slurm import launcher
from jobs.slurm.cluster import Entry
from tests.conftest import sweep_facts
from tests.jobs.conftest import EXAMPLE, trained_by
from vitssl import sweep_folder
from vitssl.config import Site
from vitssl.files import read_json, write_json

FEW = ("axes.data=[plain]", "arms=[scratch,chain_short]")


def test_a_run_takes_its_architectures_pace_and_others_the_mean() -> None:
    seen = MeasuredTimes()
    assert seen.total_s([Work(100, "a")]) is None and seen.time_s(Work(100, "a")) is None
    seen.add(Work(100, "a"), 10.0)
    seen.add(Work(100, "b"), 30.0)
    seen.add(Work(0, "c"), 5.0)
    assert seen.time_s(Work(50, "a").without_start) == 5.0 and seen.time_s(Work(1, "c")) is None
    assert seen.total_s([Work(50, name).without_start for name in ("a", "b", "new")]) == 5.0 + 15.0 + 10.0
    assert seen.total_s([Work(100, "a").part(0.25).without_start]) == 2.5


def test_a_start_costs_a_long_run_as_much_as_a_short_one() -> None:
    """The first run of a sweep may train on 40 images, and those after it on 4,000: its start is no part of its pace."""
    seen = MeasuredTimes()
    seen.add(Work(40, "a"), 1.0)
    assert seen.time_s(Work(4000, "a")) == START_S + 100.0 and seen.total_s([Work(4000, "a"), Work(40, "new")]) == 2 * START_S + 101.0
    seen.add_start(4.0)
    seen.add_start(6.0)
    assert seen.time_s(Work(4000, "a")) == 105.0 and seen.time_s(Work(4000, "a").without_start) == 100.0


def test_work_is_images_over_all_epochs_or_steps_and_those_evaluated(expand) -> None:
    job = expand("arms=[scratch]", "axes.data=[plain]").jobs[0]
    assert work(job.run) == Work(63 * 16 + 10 * 20 / 3, work(job.run).architecture)  # 10 epochs of 100 images are 62.5 batches
    job.run.loop.max_steps, job.run.loop.eval_every = 3, 0
    assert work(job.run).images == 3 * 16 + 20 / 3


def test_the_launcher_tells_the_run_what_is_left(expand) -> None:
    graph = expand(*FEW)  # two of each: scratch, pretraining, fine-tuning
    scratch, second, *chain = graph.jobs
    scratch.folder.mkdir(parents=True)
    write_json(scratch.folder / "done.json", {"step": 63, "epochs": 1.0, "time_s": 105.0})
    seen = measured_times(graph.jobs)
    place = Place("[2/6]", second, [], [work(job.run) for job in chain], seen)
    # the fine-tunings have scratch's architecture and its 63 batches, the pretrainings half the epochs: 31.25 batches, and so 32; these
    # have no evaluations, of which scratch has 10 of 20 images
    pretrainings = 2 * 32 * 16 / (63 * 16 + 10 * 20 / 3)
    told = json.loads(place.variables["VITSSL_SWEEP"])
    assert told == {
        "position": "[2/6]",
        "side_by_side": 1,
        "seconds": 2 * 105.0 + 4 * START_S,
        "times_this": pytest.approx(pretrainings),
        "longest": 0.0,
    }


def test_what_runs_beside_a_run_have_done_is_not_left(expand) -> None:
    scratch, second, *_ = (job for job in expand(*FEW).jobs if not job.parents)
    scratch.folder.mkdir(parents=True)
    write_json(scratch.folder / "done.json", {"step": 63, "epochs": 1.0, "time_s": 600.0})
    seen, whole = measured_times([scratch]), work(second.run)
    assert remaining(second) == whole
    second.folder.mkdir()
    events = [
        {"event": "start", "attempt": 0, "steps": 40, "step": 0, "time": 0.0, "world_size": 1}
        | {"device": "", "host": "", "versions": {}, "lost_steps": 0},
        {"event": "train", "step": 10, "time": 1.0, "epoch": 1.0, "terms": {}},
    ]
    (second.folder / "metrics.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    assert remaining(second) == whole.part(0.75)

    def told(*others: Work) -> float:
        return json.loads(Place("[2/9]", scratch, list(others), [], seen, 2).variables["VITSSL_SWEEP"])["longest"]

    assert told(whole.part(0.25).without_start) == 150.0 and told(whole.part(1.5).without_start) == pytest.approx(900.0)


def test_a_new_run_beside_those_that_are_done_is_told_nothing_of_them(place, monkeypatch, expand) -> None:
    """The first is done before, and the launcher comes to both in one moment."""
    first, second = expand("arms=[scratch]", "axes.data=[plain]", "resources.gpus_per_node=1").jobs
    first.folder.mkdir(parents=True)
    write_json(first.folder / "done.json", {"step": 63, "epochs": 1.0, "time_s": 600.0})
    given: list[Place] = []
    monkeypatch.setattr(local, "slots", lambda *_: [Slot((0,)), Slot((1,))])
    monkeypatch.setattr(local, "_run_job", lambda at, *_: given.append(at))
    local._run_all([first, second], Launch(Path("runs"), "local", Site(), Path()), local.Stopper(place / "stop"), Console(quiet=True))
    (at,) = (one for one in given if one.job is second)
    assert at.beside == at.after == []


def test_a_run_gets_the_variable_and_the_pace_grows(place, monkeypatch, capfd) -> None:
    trained_by("standin", monkeypatch)
    Path("sweep.yaml").write_text(EXAMPLE)
    given = []
    start = local.start
    monkeypatch.setattr(local, "start", lambda *args, **more: given.append(json.loads(args[3]["VITSSL_SWEEP"])) or start(*args, **more))
    words = [
        "sweep.yaml",
        "--executor",
        "local",
        *FEW,
        "axes.seed=0",
        "resources.gpus_per_node=1",
        "loop.max_steps=2",
        "site.max_parallel=1",
    ]
    assert submit.main(words) == 0
    assert [one["position"] for one in given] == ["[1/3]", "[2/3]", "[3/3]"]
    assert given[0] == {
        "position": "[1/3]",
        "side_by_side": 1,
        "seconds": 2 * START_S,
        "times_this": pytest.approx(2, rel=0.3),
        "longest": 0.0,
    }
    assert given[1]["seconds"] > 0 and given[1]["times_this"] == 0 and given[2]["seconds"] == 0


# -------------------------------------------------------------------------------------------------------------- status


@pytest.fixture
def sweep(tmp_path: Path):
    """`sweep(*runs)`: the folder of a sweep of runs of 1,000 images: done after so many seconds, or so far in so many."""

    def made(*runs: dict) -> Path:
        names = [f"run-{i}" for i in range(len(runs))]
        stages = [{"stage": "train", "folder": name} for name in names]
        works = {name: {"images": 1000.0, "architecture": "a"} for name in names}
        cells = [{"arm": "x", "axes": {}, "stages": stages}]
        write_json(tmp_path / "sweep.json", sweep_facts("x", cells, work=works))
        for name, run in zip(names, runs, strict=True):
            folder = tmp_path / name
            folder.mkdir()
            if "done" in run:
                write_json(folder / "done.json", {"step": 100, "epochs": 2.0, "time_s": run["done"]})
            if "step" in run:
                begun_s = time.time() - run["after_s"]
                start = {"event": "start", "step": 0, "time": begun_s, "steps": 100, "steps_per_epoch": 42.0, "epochs": 2}
                start |= {"attempt": 0, "lost_steps": 0, "world_size": 1, "device": "CPU", "host": "n1", "versions": {}}
                now = {"event": "train", "step": run["step"], "time": time.time(), "epoch": 1.0, "terms": {}}
                (folder / "metrics.jsonl").write_text(f"{json.dumps(start)}\n{json.dumps(now)}\n")
            if "job" in run:
                write_json(folder / "slurm.json", {"job_id": run["job"]})
        return tmp_path

    return made


def last_line(folder: Path, capsys) -> str:
    status.show(folder, Console(width=80))
    return capsys.readouterr().out.splitlines()[-1]


def test_on_this_machine_the_times_of_the_runs_are_summed(sweep, monkeypatch, capsys) -> None:
    folder = sweep({"done": 600.0}, {"step": 50, "after_s": 300.0}, {}, {})
    monkeypatch.setattr(sweep_folder, "launcher_pid", lambda _: 1)
    assert last_line(folder, capsys) == "about 26 min left for the sweep: 3 runs remaining"  # two starts too
    three = [status.Status(name, "train", state) for name, state in (("a", "running"), ("b", "running"), ("c", "not begun"))]
    assert status._time_left_text(three, 3600.0, 1200.0, here=True, advice="") == "about 30 min left for the sweep: 3 runs remaining"
    assert status._time_left_text(three, 3600.0, 3000.0, here=True, advice="").startswith("about 50 min left")


def test_on_slurm_no_more_is_said_than_is_known(sweep, monkeypatch, capsys) -> None:
    folder = sweep({"done": 600.0}, {"step": 50, "after_s": 300.0, "job": "7"}, {"step": 80, "after_s": 480.0, "job": "8"}, {"job": "9"})
    queue = {job: Entry(state) for job, state in {"7": "RUNNING", "8": "RUNNING", "9": "PENDING"}.items()}
    monkeypatch.setattr(status.cluster, "jobs", lambda _: queue)
    monkeypatch.setattr(status.cluster.shutil, "which", lambda _: "squeue")
    assert last_line(folder, capsys) == ("about 17 min of computing left in 3 runs, 2 of them running; SLURM decides when the others start")
    write_json(folder / "run-3" / "done.json", {"step": 100, "epochs": 2.0, "time_s": 500.0})
    assert last_line(folder, capsys) == "about 5 min left for the sweep: 2 runs remaining"
    monkeypatch.setattr(status.cluster, "jobs", lambda _: {})
    for name in ("run-1", "run-2"):
        (folder / name / "slurm.json").unlink()
    left = "about 7 min of computing left in 2 runs, none of which is running or queued"
    repeat = "repeat the command that submitted the sweep"
    assert last_line(folder, capsys) == f"{left}; to continue, {repeat}"
    write_json(folder / "run-1" / "job.json", {"arm": "x"})
    for command, shown in {"python jobs/submit.py x.yaml": ": python jobs/submit.py x.yaml", "python x.py " + 99 * "arms=[x] ": ""}.items():
        write_json(folder / "sweep.json", read_json(folder / "sweep.json") | {"command": command})
        begun = f"`python jobs/retry.py {folder} RUN` continues one that has begun; to continue all"
        assert last_line(folder, capsys) == f"{left}; {begun}, {repeat}{shown}"


@pytest.mark.parametrize("runs", [[{}, {}], [{"done": 60.0}, {"done": 60.0}]])
def test_where_nothing_was_seen_or_nothing_is_left_nothing_is_said(sweep, capsys, runs) -> None:
    assert "left" not in last_line(sweep(*runs), capsys)


def test_the_last_batch_begins_no_epoch(sweep) -> None:
    """100 steps of 42 an epoch are 2.4 epochs of a Run of 2."""
    assert status.read_overview(sweep({"step": 100, "after_s": 9.0})).statuses[0].epoch == 2


# -------------------------------------------------------------------------------------------------------------- tables


def printed(width: int, capsys, drop: tuple[str, ...] = ("stage", "job")) -> list[str]:
    table = Table(title="A sweep", title_justify="left")
    for column in ("run", "stage", "state", "nothing", "job"):
        table.add_column(column)
    for i in range(2):
        table.add_row(f"a_run_with_a_long_name-{i}-0123456789ab", "pretrain", "running", "", "123456_7")
    tables.print_table(table, Console(width=width), drop=drop)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_a_table_leaves_out_what_does_not_fit(capsys) -> None:
    wide = printed(120, capsys)
    assert all(word in wide[2] for word in ("run", "stage", "state", "job")) and "nothing" not in wide[2]
    narrow = printed(66, capsys)
    assert max(map(len, narrow)) <= 66 and "stage" not in narrow[2] and "job" in narrow[2]
    assert narrow[-1] == "left out at 66 columns: stage"
    narrower = printed(50, capsys)
    assert "job" not in narrower[2] and "state" in narrower[2] and narrower[-1] == "left out at 50 columns: stage and job"


def test_names_of_runs_are_never_broken(capsys) -> None:
    lines = printed(20, capsys)
    assert sum("a_run_with_a_long_name-0-0123456789ab" in line for line in lines) == 1


def listed(expand, capsys, *words: str, all_jobs: bool = False) -> list[str]:
    """The table of the example sweep, as it is printed at 80 columns."""
    graph, spec = expand(*words), read("sweep.yaml", overrides.parse(list(words)))
    show.jobs(graph, spec, Console(width=80), (), Site(), all_jobs)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    return [line for line in lines if line.startswith(("│", "..."))]


@pytest.mark.parametrize("words", [FEW, ("axes.data=[plain]",)])
@pytest.mark.parametrize("all_jobs", [False, True])
def test_the_launchers_table_fits_eighty_columns(expand, capsys, words, all_jobs) -> None:
    assert listed(expand, capsys, *words, all_jobs=all_jobs)


def test_seeds_share_a_line_and_axes_of_one_value_go_without_saying(expand, capsys) -> None:
    table = listed(expand, capsys, "axes.data=[plain]", "axes.seed=[0,1,2]", "arms=[scratch,chain_short]")
    assert [line.split()[1:-1] for line in table] == [
        ["scratch", "│", "classify", "│", "3", "│", "10", "│"],
        ["chain_short", "pretrain", "│", "mae", "│", "3", "│", "5", "│"],
        ["chain_short", "finetune", "│", "classify", "│", "3", "│", "10", "│", "pretrain"],
    ]
    two = listed(expand, capsys, "axes.seed=[0,1,2]", "arms=[scratch]", "axes.optim.lr=[0.1,0.2]")
    assert [" ".join(line.split()[1:4]) for line in two] == [f"scratch {data} lr{lr}" for data in ("plain", "flipped") for lr in (0.1, 0.2)]


def test_what_has_begun_is_said_of_the_runs_of_a_line(expand, capsys) -> None:
    words = ("axes.data=[plain]", "axes.seed=[0,1,2]", "arms=[scratch]")
    first = expand(*words).jobs[0].folder
    first.mkdir(parents=True)
    write_json(first / "done.json", {})
    (line,) = listed(expand, capsys, *words)
    assert line.rstrip(" │").endswith("1 done, 2 not begun")


def test_a_large_sweep_is_cut_to_one_screen_and_says_what_is_left_out(expand, capsys) -> None:
    rates = ",".join(f"{i}e-4" for i in range(1, 41))
    words = ("axes.data=[plain]", "axes.seed=[0,1,2]", "arms=[scratch]", f"axes.optim.lr=[{rates}]")
    table = listed(expand, capsys, *words)
    assert len(table) == show.MOST_LINES + 1 and table[-1] == "... 10 more lines (30 runs); --all-jobs prints every run"
    assert len(listed(expand, capsys, *words, all_jobs=True)) == 120


def test_what_is_not_run_says_why(expand, capsys) -> None:
    graph, spec = expand(), read("sweep.yaml", overrides.parse([]))
    for all_jobs in (False, True):
        show.jobs(graph, spec, Console(width=80), (), Site(), all_jobs)
        assert capsys.readouterr().out.splitlines()[-2:] == [
            "not run: other_paper (numbers that the paper quotes)",
            "not run: video (no video here)",
        ]


def test_the_short_plan_says_what_a_job_takes_and_what_was_set(place: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    Path("sweep.yaml").write_text(EXAMPLE)
    monkeypatch.setattr(predict, "predict_runs", lambda *_: [])
    words = ["axes.data=[plain]", "optim.lr=0.001", "resources.hours=1"]

    def printed(*more: str) -> list[str]:
        assert submit.main(["sweep.yaml", *words, *more, "--dry-run"]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith(("A job takes", "Set on"))]

    assert printed("--executor", "slurm") == [
        "A job takes at most 1 hour on 2 GPUs",
        "Set on the command line: 'axes.data=[plain]' optim.lr=0.001 resources.hours=1",
    ]
    assert printed("--executor", "local") == ["Set on the command line: 'axes.data=[plain]' optim.lr=0.001 resources.hours=1"]
    unlike = ["arms.scratch.resources={nodes: 2, hours: 2.5}", "arms.chain_short.resources.gpus_per_node=0"]
    assert printed("--executor", "slurm", *unlike)[0] == (
        "A job takes at most 2.50 hours on 2 nodes of 2 GPUs (scratch); 1 hour on 1 CPU (chain_short); 1 hour on 2 GPUs (chain_long)"
    )


@pytest.mark.parametrize(
    ("limit", "report", "asks"), [(None, "{}", "10 min"), (3, "{}", "3 min"), (3, "{partition: cpu, time: 1}", "1 min, partition=cpu")]
)
def test_the_short_plan_says_what_the_report_takes(place: Path, monkeypatch: pytest.MonkeyPatch, capsys, limit, report, asks) -> None:
    Path("sweep.yaml").write_text(EXAMPLE)
    monkeypatch.setattr(predict, "predict_runs", lambda *_: [])
    monkeypatch.setattr(show.cluster, "answers", lambda: limit is not None)
    monkeypatch.setattr(show.limits, "report_limit_min", lambda _: limit)
    monkeypatch.setattr(launcher, "check", lambda *_: None)
    assert submit.main(["sweep.yaml", "axes.data=[plain]", "--dry-run", "--executor", "slurm", f"site.report={report}"]) == 0
    assert f"A job of 1 CPU and at most {asks} makes the report when all others have ended\n" in capsys.readouterr().out
