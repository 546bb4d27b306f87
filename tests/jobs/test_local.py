"""The local executor runs the same graph; training is a stand-in (standin.py)."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from PIL import Image
from rich.console import Console

from jobs import cancel, command, folders, status, submit
from jobs import local as local_executor
from jobs.plan.graph import Graph
from jobs.plan.launch import Launch
from tests.conftest import TINY, but_for_a_release, sweep_facts
from tests.jobs.conftest import EXAMPLE, STAND_IN, over, trained_by
from vitssl import cli, config, sweep_folder, version
from vitssl.config import nested, read_yaml
from vitssl.config.merging import save_fields
from vitssl.files import read_json, write_json

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ONE = ["axes.data=[plain]", "axes.seed=[0]", "resources.gpus_per_node=1", "loop.max_steps=2"]


@pytest.fixture
def local(place: Path, monkeypatch: pytest.MonkeyPatch):
    """`local(*arguments)`: submit the example with the stand-in; gives the exit code."""
    trained_by("standin", monkeypatch)
    Path("sweep.yaml").write_text(EXAMPLE)

    def run(*arguments: str) -> int:
        return submit.main(["sweep.yaml", "--executor", "local", *over(ONE, arguments)])

    return run


def folder(stage: str) -> Path:
    (path,) = Path("runs/example").glob(f"*{stage}-*")
    return path


def test_a_chain_runs_in_order_and_leaves_folders_and_a_report(local, monkeypatch, capfd) -> None:
    monkeypatch.setattr(local_executor, "write_report", command.write_report)  # in a process of its own, as it is
    assert local("arms=[chain_short]") == 0
    parent, child = folder("pretrain"), folder("finetune")
    assert config.load(child).init_from == str(parent.resolve())
    job = json.loads((child / "job.json").read_text())
    assert job["parents"] == [str(parent.resolve())] and job["executor"] == "local" and job["arm"] == "chain_short"
    assert (parent / "done.json").stat().st_mtime <= (child / "starts.txt").stat().st_mtime
    sweep, whole = json.loads(Path("runs/example/sweep.json").read_text()), sweep_facts(["scratch"])
    assert sweep.keys() == whole.keys() and all(arm.keys() == whole["arms"][0].keys() for arm in sweep["arms"])
    assert sweep["cells"][0]["stages"] == [{"stage": "pretrain", "folder": parent.name}, {"stage": "finetune", "folder": child.name}]
    assert Path("runs/example/report/report.html").exists()
    assert "report.html" in capfd.readouterr().out.strip().split("\n")[-1]


def test_again_it_keeps_what_is_done(local, capfd) -> None:
    local("arms=[chain_short]")
    assert local("arms=[chain_short]", "axes.seed=[0,1]") == 0
    assert "already done" in capfd.readouterr().out
    starts = [path.read_text().count("\n") for path in Path("runs/example").glob("*/starts.txt")]
    assert starts == [1] * 4
    assert local("arms=[chain_short]", "axes.seed=[0,1]", "--dry-run") == 0
    assert capfd.readouterr().out.startswith("example: 0 of 4 runs to be done\n")


def test_a_failed_parent_fails_its_children_and_the_report_still_comes(local, capfd) -> None:
    assert local("arms=[scratch,chain_short]", "axes.seed=[13]") == 1
    shown = capfd.readouterr().out
    assert "failed: thirteen is unlucky" in shown
    advice = " ".join(shown.split())
    assert "2 of 3 runs not done; the reason is printed above" in advice
    typed = " ".join(shlex.join(sys.orig_argv).split())
    assert "jobs/status.py" in advice and f"the same command continues and keeps finished runs: {typed}" in advice
    assert "not run, because chain_short-pretrain" in shown
    assert not (folder("finetune") / "starts.txt").exists()
    assert (folder("scratch") / "done.json").exists()
    assert Path("runs/example/report/report.html").exists()
    assert {s.name.rsplit("-", 3)[0]: s.state for s in status.read_overview(Path("runs/example")).statuses} == {
        "scratch": "done",
        "chain_short-pretrain": "failed",
        "chain_short-finetune": "failed",
    }


def test_ctrl_c_saves_says_how_to_go_on_and_the_same_command_does(local, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [str(ROOT / "jobs/submit.py"), "sweep.yaml", "--executor", "local", *over(ONE, ["arms=[scratch]", "loop.max_steps=50"])]
    environment, pipes = os.environ | {"PYTHONPATH": f"{HERE}:{ROOT}"}, {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", STAND_IN, *words], env=environment, text=True, **pipes)
    checkpoint = _wait_for(lambda: next(Path("runs").glob("*/scratch-*/last.pt"), None))
    for executor in ("local", "slurm"):  # nobody else takes it up meanwhile
        with pytest.raises(config.ConfigError, match=f"process {process.pid} on this machine is running "):
            submit.refuse_two_at_once(Graph([], []), Launch(Path("runs/example"), executor, config.Site(), Path()))
    assert [s.state for s in status.read_overview(Path("runs/example")).statuses] == ["waiting"]  # the stand-in writes no metrics
    stop_file = Path(read_json(Path("runs/example/local.json"))["stop_file"])
    stop_file.touch()  # as the signal below does, which ends it too soon to look in between
    saving = f"process {process.pid} on this machine was asked to stop and is still saving; try again later"
    with monkeypatch.context() as patch, pytest.raises(config.ConfigError, match=saving):
        patch.setattr(local_executor, "SAVING_S", 0.3)
        local_executor.refuse_running(Path("runs/example"))
    process.send_signal(signal.SIGINT)
    local_executor.refuse_running(Path("runs/example"))  # waits until it has saved
    assert read_json(Path("runs/example/local.json")) == {}
    shown, told = process.communicate(timeout=30)
    assert process.returncode == 130 and told.count("stopping: saving takes some seconds") == 1
    assert "To continue: " in shown and "loop.max_steps=50" in shown and "'axes.data=[plain]'" in shown  # as a shell wants it
    assert 0 < int(checkpoint.read_text()) < 50
    assert local("arms=[scratch]", "loop.max_steps=50") == 0
    assert checkpoint.read_text() == "50"


@pytest.mark.release
def test_runs_save_and_stop_where_their_launcher_is_killed(local, place: Path, capfd) -> None:
    words = [str(ROOT / "jobs/submit.py"), "sweep.yaml", "--executor", "local", *over(ONE, ["arms=[scratch]", "loop.max_steps=50"])]
    process = subprocess.Popen([sys.executable, "-c", STAND_IN, *words], env=os.environ | {"PYTHONPATH": f"{HERE}:{ROOT}"})
    checkpoint = _wait_for(lambda: next(Path("runs").glob("*/scratch-*/last.pt"), None))
    runs = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    assert runs and not psutil.wait_procs(runs, timeout=10)[1]
    assert 0 < int(checkpoint.read_text()) < 50 and not (checkpoint.parent / "error.json").exists()
    capfd.readouterr()
    assert local("arms=[scratch]", "loop.max_steps=50") == 0
    assert checkpoint.read_text() == "50" and "another process" not in capfd.readouterr().err


def test_a_second_ctrl_c_kills_and_does_not_say_saved(local, place: Path) -> None:
    words = [str(ROOT / "jobs/submit.py"), "sweep.yaml", "--executor", "local", *over(ONE, ["arms=[scratch]", "loop.max_steps=50"])]
    # a run that hears no request: its stop file is another one
    program = STAND_IN.replace("'standin'", "'standin_deaf'")
    Path("standin_deaf.py").write_text(
        "import os, sys\nfrom pathlib import Path\nos.environ['VITSSL_STOP_FILE'] = '/nowhere'\nimport standin\n"
        "if __name__ == '__main__':\n    sys.exit(standin.main(Path(sys.argv[1])))\n"
    )
    environment = os.environ | {"PYTHONPATH": f"{place}:{HERE}:{ROOT}"}
    process = subprocess.Popen([sys.executable, "-c", program, *words], env=environment, stdout=subprocess.PIPE, text=True)
    checkpoint = _wait_for(lambda: next(Path("runs").glob("*/scratch-*/last.pt"), None))
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    shown, _ = process.communicate(timeout=30)
    assert process.returncode == 130 and "Killed; the last checkpoint is kept. To continue: " in shown and "saved" not in shown
    assert 0 < int(checkpoint.read_text()) < 50


def test_a_request_to_stop_before_a_run_begins_reaches_it(local, tmp_path: Path) -> None:
    local("arms=[scratch]")
    (folder("scratch") / "done.json").unlink()
    (folder("scratch") / "last.pt").unlink()
    stop_file = tmp_path / "stop"
    stop_file.touch()
    assert command.start(folder("scratch").resolve(), command.NodeInfo(), stop_file).wait(timeout=30) == 75
    assert stop_file.exists() and not (folder("scratch") / "last.pt").exists()


def test_a_site_s_setup_and_variables_reach_a_run_as_they_do_on_a_cluster(local, place: Path, monkeypatch) -> None:
    Path("standin_seen.py").write_text(
        "import json, os, sys\nfrom pathlib import Path\nimport standin\n"
        "if __name__ == '__main__':\n    Path(sys.argv[1], 'seen.json').write_text(json.dumps(dict(os.environ)))\n"
        "    sys.exit(standin.main(Path(sys.argv[1])))\n"
    )
    Path("sourced.sh").write_text('export ARGUMENTS="$*"\nset -- others\n')
    setup = ["export OF_SETUP='two words' OF_BOTH=setup CUDA_DEVICE_ORDER=FASTEST_FIRST", f"source {place}/sourced.sh"]
    site = [f"site.setup={json.dumps(setup)}", f"site.env={{OF_BOTH: env, VITSSL_SWEEP: site, PYTHONPATH: '{HERE}:{place}'}}"]
    trained_by("standin_seen", monkeypatch)
    monkeypatch.delenv("PYTHONPATH")
    words = ["sweep.yaml", "--executor", "local", *over(ONE, ["arms=[scratch]", *site])]
    assert submit.main(words) == 0
    seen, source = json.loads((folder("scratch") / "seen.json").read_text()), read_json(folder("scratch") / "job.json")["source"]
    assert (seen["OF_SETUP"], seen["OF_BOTH"], seen["ARGUMENTS"]) == ("two words", "env", "")
    assert seen["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID" and "position" in seen["VITSSL_SWEEP"]  # as the launcher says
    assert seen["PYTHONPATH"].split(os.pathsep) == [source, str(HERE), str(place)]


def test_where_training_cannot_start_no_other_run_is_begun(local, place: Path, monkeypatch, capfd) -> None:
    Path("standin_broken.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    trained_by("standin_broken", monkeypatch, place)
    words = ["sweep.yaml", "--executor", "local", *over(ONE, ["arms=[scratch]", "axes.seed=[0,1,2,3]", "site.max_parallel=1"])]
    assert submit.main(words) == 2
    errors = capfd.readouterr().err
    assert errors.count("Traceback") == 1 and errors.splitlines()[-1].startswith("error: training did not even start, as is said above")


def _wait_for(condition):
    end = time.monotonic() + 30
    while not (result := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return result


@pytest.mark.release
def test_a_begun_run_goes_on_with_its_own_source_unless_told_otherwise(local, monkeypatch) -> None:
    local("arms=[scratch]")
    run = folder("scratch")
    (run / "done.json").unlink()
    (own,) = Path("runs/example/source").iterdir()
    newer = Path("runs/example/source/newer").resolve()
    shutil.copytree(own, newer)
    monkeypatch.setattr(submit, "snapshot", lambda sweep: newer)  # the source changed
    local("arms=[scratch]")
    (run / "done.json").unlink()
    local("arms=[scratch]", "--use-current-source")
    used = [Path(line.split()[1]).name for line in (run / "starts.txt").read_text().splitlines()]
    assert used == [own.name, own.name, "newer"]


def test_a_mistake_is_exit_code_2_and_leaves_nothing(local, capsys) -> None:
    assert local("optim.lrr=1") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: command line: optim.lrr") and error.count("\n") == 1
    assert not Path("runs").exists()


def test_finished_runs_that_keep_another_grid_than_a_command_names_are_told(local, capfd) -> None:
    both = "arms=[scratch,chain_short]"
    assert local("arms=[scratch]") == local(both, "site.country=DEU") == local(both, "site.country=DEU") == 0
    assert "keep" not in capfd.readouterr().err, "a run whose command named none takes the new one, as in the report"
    words = "example: 2 finished runs keep the grid recorded with them, DEU; {} counts for what is still to be trained\n"
    for setting, grid in {"country=FRA": "FRA", "country=USA": "USA", "intensity_kg_per_kwh=0.1": "own figure (0.1 kg CO2e/kWh)"}.items():
        assert local(both, f"site.{setting}", "--dry-run") == 0
        assert f"note: {words.format(grid)}" in capfd.readouterr().err
    assert local(both, "--dry-run") == 0
    assert "keep the grid" not in capfd.readouterr().err


def test_a_country_without_a_figure_is_refused_before_anything_runs(local, capsys) -> None:
    assert local("site.country=XXX") == 2
    assert capsys.readouterr().err.startswith("error: command line: site.country: codecarbon knows no 'XXX'")
    assert not Path("runs").exists()
    assert local("arms=[scratch]", "site.country=XXX", "site.intensity_kg_per_kwh=0.1") == 0


def test_impossible_sites_are_refused(local, capsys) -> None:
    assert local("site.gpu_power_w=-4") == 2
    assert capsys.readouterr().err == "error: command line: site.gpu_power_w: -4 is not from 5 to 100000 W\n"
    for words, message in (
        ("site.gpu_tflops=0", "site.gpu_tflops: 0 is not from 0.001 to 1e+06"),
        ("site.env=[1]", "site.env: [1] is not a mapping"),
    ):
        assert local(words) == 2
        assert capsys.readouterr().err.startswith(f"error: command line: {message}")
    assert local("site.price_per_gpu_hour=nan") == 2
    assert capsys.readouterr().err == "error: command line: site.price_per_gpu_hour: nan is not from 0 to 1e+06 per GPU-hour\n"


def test_what_shards_hold_is_said(local, capfd) -> None:
    local("arms=[scratch]")
    assert "shards/digits: digits, 2 classes, 100 train, 20 test images" in capfd.readouterr().out


@pytest.mark.release
def test_an_arm_that_the_command_line_makes_learn_other_things_is_called_by_these(local) -> None:
    def arm(*words: str) -> tuple[str, bool]:
        assert local(*words) == 0
        (only,) = json.loads(Path("runs/example/sweep.json").read_text())["arms"]
        return only["row"], only["published"] is not None

    assert arm("arms=[scratch]", "objectives.classify.weight=0.5") == ("Scratch", True)
    assert arm("arms=[scratch]", "objectives={classify: {}, drloc: {}}") == ("Scratch (classify + drloc)", False)
    assert arm("arms=[chain_short]", "pretrain.objectives={mae: null, gmml: {}}")[0].endswith(" (gmml, then classify)")


def test_a_sweep_that_is_being_submitted_is_left_alone(tmp_path) -> None:
    refused = pytest.raises(config.ConfigError, match="is being submitted by another process")
    with folders.locked(tmp_path / "sweep"), refused, folders.locked(tmp_path / "sweep"):
        pass
    with folders.locked(tmp_path / "sweep"):
        pass


def test_what_git_does_not_know_matters_where_it_may_run(tmp_path, monkeypatch) -> None:
    """A user's own list, log or sweep is no change of the source; a new module is, and so is any change of a tracked file."""
    monkeypatch.setattr(version, "ROOT", tmp_path)
    for folder in ("sweeps", "vitssl"):
        (tmp_path / folder).mkdir()
    (tmp_path / "README.md").write_text("first")
    author = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    sha, dirty = version.commit()
    assert len(sha) == 40 and not dirty
    (tmp_path / "todo.txt").touch()
    assert version.commit() == (sha, False)
    (tmp_path / "sweeps" / "mine.yaml").touch()
    assert version.commit() == (sha, False)
    (tmp_path / "vitssl" / "mine.py").touch()
    assert version.commit() == (sha, True)
    (tmp_path / "vitssl" / "mine.py").unlink()
    (tmp_path / "README.md").write_text("second")
    assert version.commit() == (sha, True)
    shutil.rmtree(tmp_path / ".git")
    assert version.commit() == (None, True)
    monkeypatch.setenv("VITSSL_REVISION", sha)  # an image says what it was made from
    assert version.commit() == (sha, False)


def test_what_a_report_needs_of_the_data_is_in_the_run_folder(local) -> None:
    local("arms=[scratch]", "optim.lr=0.1", "arms.scratch.loop.threads=1")
    data = json.loads((folder("scratch") / "job.json").read_text())["data"]
    assert (data["name"], data["classes"], data["train_images"], data["test_images"]) == ("digits", 2, 100, 20)
    assert json.loads(Path("runs/example/sweep.json").read_text())["overrides"] == [
        "loop.max_steps",
        "optim.lr",
        "arms.scratch.loop.threads",
    ]


def test_states_are_told_where_slurm_was_and_is_no_more(local, monkeypatch) -> None:
    local("arms=[scratch]")
    (folder("scratch") / "slurm.json").write_text('{"job_id": "7"}')
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert [s.state for s in status.read_overview(Path("runs/example")).statuses] == ["done"]


def test_what_folders_tell_is_shown_where_slurm_does_not_answer(local, tmp_path, monkeypatch, capsys) -> None:
    local("arms=[scratch,chain_short]")
    for run in Path("runs/example").glob("*-*/job.json"):
        (run.parent / "slurm.json").write_text('{"job_id": "7"}')
    (folder("finetune") / "done.json").unlink()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "squeue").write_text("#!/bin/sh\necho 'no controller' >&2\nexit 1\n")
    (tmp_path / "bin" / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    capsys.readouterr()
    status.show(Path("runs/example"), Console())
    assert sorted(s.state for s in status.read_overview(Path("runs/example")).statuses) == ["done", "done", "unknown"]
    assert capsys.readouterr().err == "note: squeue failed: no controller; which runs are in SLURM's queue is unknown\n"


DAMAGED = [("error.json", "{"), ("metrics.jsonl", '{"event": "start"\n{}\n'), ("job.json", "")]


@pytest.mark.parametrize(("file", "text"), but_for_a_release(DAMAGED, DAMAGED[1:2]))
def test_a_damaged_record_is_said_and_the_others_are_shown(local, capsys, file, text) -> None:
    local("arms=[scratch,chain_short]")
    (folder("scratch") / file).write_text(text)
    capsys.readouterr()
    assert status.main(["runs/example"]) == 0
    shown = capsys.readouterr().out
    assert f"{file}: damaged, not JSON" in shown and "unreadable" in shown and "done" in shown
    assert cli.main(["report", "runs/example"]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("note: ") and said.err.count("\n") == 1 and f"{file}: damaged, not JSON" in said.err
    assert "2 of 3 runs are done; 1 unreadable." in said.out
    page = Path("runs/example/report/report.html").read_text()
    assert f"{file}: damaged, not JSON" in page and "Its results are not in this report" in page


def test_a_full_disk_is_one_line(local, capsys, monkeypatch) -> None:
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "runs/example/sweep.json")

    monkeypatch.setattr(folders, "write_sweep", refuse)
    assert local("arms=[scratch]") == 2
    assert capsys.readouterr().err.startswith(
        "error: runs/example/sweep.json: No space left on device; choose writable folders for --runs, data.shards"
    )


@pytest.mark.release
def test_a_dry_run_shows_every_run_its_script_and_cost_and_writes_no_run(local, capfd) -> None:
    build = [sys.executable, "-m", "vitssl", "shards", "build", "digits", "shards/real"]
    subprocess.run(build, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    words = ["sweep.yaml", *ONE, "arms=[chain_short]", "data.shards=shards/real", "site.price_per_gpu_hour=2"]
    words += ["--dry-run", "--executor", "slurm"]
    capfd.readouterr()
    assert submit.main(words) == 0
    shown = capfd.readouterr().out
    assert "#!/bin/bash" not in shown and "every run: " not in shown
    (header,) = [line for line in shown.splitlines() if "objectives" in line]
    assert "USD" in header
    assert ", to step 2" in shown  # ONE cuts the runs
    assert shown.splitlines()[-1].endswith("--all-jobs prints every run, with its fields and sbatch scripts")
    assert submit.main([*words, "--all-jobs"]) == 0
    shown = capfd.readouterr().out
    assert shown.count("#!/bin/bash") == 3 and "--dependency=afterok:JOB1" in shown  # the report has a job too
    assert "every run: " in shown and "optim.batch_size=16" in shown and "objectives.mae.mask_ratio=0.75" in shown
    assert "assumed: 20 TFLOP/s" in shown and "2 USD per GPU-hour" in shown
    first = shown.splitlines()
    assert first[0].startswith("example: 2 of 2 runs to be done; predicted for 2: ") and first[0].endswith(" USD")
    assert first[1].startswith("At most 1 GPU at once; ") and "for the longest run" in first[1]
    assert not list(Path("runs").glob("example/*"))


@pytest.mark.release
def test_a_pipe_does_not_break_the_names_of_runs(local, capfd) -> None:
    arm = "an_arm_whose_name_alone_leaves_no_room_in_eighty_columns_for_what_stands_beside_it"
    Path("sweep.yaml").write_text(EXAMPLE.replace("chain_short:", f"{arm}:"))
    assert local(f"arms=[{arm}]") == 0
    assert status.main(["runs/example"]) == 0
    shown = capfd.readouterr().out
    names = [folder.name.rpartition("-")[0] for folder in Path("runs/example").glob(f"{arm}-*")]  # without their hashes, for want of room
    assert len(names) == 2
    assert all(name in shown.split("report.html")[-1] for name in names)
    assert all(f"{arm} {stage} " in shown.split("[1/2]")[0] for stage in ("pretrain", "finetune"))


def test_cancel_without_jobs_says_so(local, capsys) -> None:
    local("arms=[scratch]")
    capsys.readouterr()
    cancel.cancel(Path("runs/example"))
    assert "nothing of runs/example is running or queued" in capsys.readouterr().out


def test_a_launcher_that_saves_is_not_asked_again_which_would_kill(local, place, monkeypatch, capsys) -> None:
    local("arms=[scratch]")
    (place / "stop").touch()
    launcher = {"pid": os.getpid(), "host": socket.gethostname(), "born": sweep_folder.born_at(os.getpid())}
    write_json(Path("runs/example/local.json"), launcher | {"stop_file": str(place / "stop")})
    sent: list[int] = []
    monkeypatch.setattr(cancel.os, "kill", lambda pid, number: sent.append(number))
    capsys.readouterr()
    cancel.cancel(Path("runs/example"))
    assert capsys.readouterr().out == f"process {os.getpid()} has already been asked to save and stop, and is still doing so\n" and not sent
    (place / "stop").unlink()
    cancel.cancel(Path("runs/example"))
    assert sent == [signal.SIGTERM]


@pytest.mark.release
def test_a_launcher_of_another_machine_is_named(local, capsys) -> None:
    local("arms=[scratch]")
    record = Path("runs/example/local.json")
    write_json(record, {"pid": 7, "host": "login2", "born": "then", "stop_file": "/nowhere"})
    capsys.readouterr()
    cancel.cancel(Path("runs/example"))
    said = capsys.readouterr()
    assert said.err == "note: process 7 of login2 may still run it; cancel it there\n" and not said.out
    assert local("arms=[scratch]") == 0
    assert "note: process 7 of login2 was running" in capsys.readouterr().err and not record.exists()


def test_a_launcher_is_told_from_another_process_with_its_id(local) -> None:
    local("arms=[scratch]")
    launcher = {"pid": os.getpid(), "host": socket.gethostname(), "born": sweep_folder.born_at(os.getpid())}
    write_json(Path("runs/example/local.json"), launcher)
    assert sweep_folder.launcher_pid(Path("runs/example")) == os.getpid()
    child = subprocess.Popen(["sleep", "60"])
    write_json(Path("runs/example/local.json"), launcher | {"pid": child.pid})
    assert sweep_folder.launcher_pid(Path("runs/example")) is None
    write_json(Path("runs/example/local.json"), launcher | {"pid": child.pid, "born": sweep_folder.born_at(child.pid)})
    assert sweep_folder.launcher_pid(Path("runs/example")) == child.pid
    child.kill()
    child.wait()
    assert sweep_folder.launcher_pid(Path("runs/example")) is None


@pytest.mark.release
def test_what_an_earlier_try_left_is_gone_while_it_is_tried_again(local, monkeypatch) -> None:
    assert local("arms=[chain_short]", "axes.seed=[13]") == 1
    run = folder("pretrain")
    (run / "cancelled").touch()
    (run.parent / "lucky").touch()
    seen: list[bool] = []
    start = local_executor.start

    def looked(*args, **more):
        seen.extend((run / name).exists() for name in ("error.json", "cancelled"))
        return start(*args, **more)

    monkeypatch.setattr(local_executor, "start", looked)
    assert local("arms=[chain_short]", "axes.seed=[13]") == 0 and seen == [False] * 4


@pytest.mark.release
def test_a_lost_terminal_is_no_failure(place: Path, digits: Path) -> None:
    """It hangs up while a run trains: what was trained is saved, and nothing is called failed."""
    arm = {"stages": {"train": {"objectives.classify": {}, "loop.max_steps": 100_000}}}
    write_json(Path("sweep.yaml"), {"name": "example", "defaults": nested(TINY, {"data.shards": str(digits)}), "arms": {"scratch": arm}})
    words = [str(ROOT / "jobs/submit.py"), "sweep.yaml", "--executor", "local", "resources.gpus_per_node=1"]
    terminal, inside = os.openpty()
    screen = dict.fromkeys(("stdin", "stdout", "stderr"), inside)
    process = subprocess.Popen([sys.executable, *words], env=os.environ | {"PYTHONPATH": str(ROOT)}, start_new_session=True, **screen)
    os.close(inside)
    shown = b""
    try:
        end = time.monotonic() + 90
        while not any('"train"' in path.read_text() for path in Path("runs").glob("*/*/metrics.jsonl")):
            assert time.monotonic() < end and process.poll() is None, shown.decode()
            if select.select([terminal], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):
                    shown += os.read(terminal, 65536)
        os.close(terminal)
        process.send_signal(signal.SIGHUP)
        process.wait(timeout=60)
    finally:
        process.kill()
    (run,) = Path("runs/example").glob("scratch-*")
    assert (run / "last.pt").exists() and not (run / "error.json").exists(), (run / "error.json").read_text()


@pytest.mark.release
def test_images_without_labels_or_a_test_split_are_enough_to_pretrain_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for i in range(12):
        Image.effect_noise((8, 8), 50 + i).save(f"{i}.png")
    Path("list.csv").write_text("path,label\n" + "".join(f"{i}.png,\n" for i in range(12)))
    assert cli.main(["shards", "build", "csv:list.csv", "shards/u", "--workers", "1"]) == 0
    assert "no classes" in capsys.readouterr().out
    tiny = "backbone: {name: vit_pico, patch_size: 4}, optim.batch_size: 4, loop: {epochs: 1, warmup_epochs: 0, threads: 1, device: cpu}"
    mae = "{objectives.mae: {decoder_dim: 16, decoder_depth: 1, decoder_heads: 2}}"
    text = f"name: u\ndefaults: {{data: {{shards: shards/u, image_size: 8}}, {tiny}}}\narms: {{mae: {{stages: {{pretrain: {mae}}}}}}}\n"
    Path("u.yaml").write_text(text)
    assert submit.main(["u.yaml", "--executor", "local", "--dry-run"]) == 0  # counts MACs of a network without classes
    assert submit.main(["u.yaml", "--executor", "local"]) == 0
    Path("u.yaml").write_text(text.replace("objectives.mae", "objectives.classify: {}, objectives.mae"))
    assert submit.main(["u.yaml", "--executor", "local"]) == 2
    assert "shards/u: no image has a label; these shards are for stages that do not classify" in capsys.readouterr().err
    assert submit.main(["u.yaml", "--executor", "local", "data.images.per_class=2", "objectives.classify=null"]) == 2
    assert "images.per_class: no image has a label, so none are of a class; take a fraction" in capsys.readouterr().err


@pytest.mark.release
def test_an_evaluator_added_to_a_finished_sweep_is_run_and_nothing_is_trained(tmp_path, monkeypatch, capfd, digits):
    monkeypatch.chdir(tmp_path)
    data = f"data: {{shards: {digits}, image_size: 8, images: {{per_class: 4}}}}"
    tiny = "backbone: {name: vit_pico, patch_size: 4}, optim.batch_size: 8, loop: {epochs: 1, warmup_epochs: 0, threads: 1, device: cpu}"
    mae = "{objectives.mae: {decoder_dim: 16, decoder_depth: 1, decoder_heads: 2}}"
    text = f"name: e\ndefaults: {{{data}, {tiny}}}\narms: {{mae: {{stages: {{pretrain: {mae}}}}}}}\n"
    Path("e.yaml").write_text(text)
    assert submit.main(["e.yaml", "--executor", "local"]) == 0
    (folder,) = Path("runs/e").glob("mae-*")
    trained = (folder / "last.pt").read_bytes()
    Path("e.yaml").write_text(text + "metric: knn/top1\n")
    capfd.readouterr()
    assert submit.main(["e.yaml", "evals.knn={type: knn, k: 3}", "--executor", "local"]) == 0
    shown = capfd.readouterr().out
    assert "already trained; evaluating it" in shown and "knn top-1 %" in shown and "to evaluate" in shown
    assert (folder / "last.pt").read_bytes() == trained and [path.name for path in Path("runs/e").glob("mae-*")] == [folder.name]
    assert submit.main(["e.yaml", "evals.knn={type: knn, k: 3}", "--executor", "local"]) == 0
    assert "already done" in capfd.readouterr().out
    # what an attempt leaves that was stopped before it had evaluated
    fields = read_yaml(folder / "run.yaml")
    save_fields(fields | {"evals": {"knn": {"type": "knn", "k": 4}}}, folder)
    write_json(folder / "error.json", {"message": "stopped", "time": 0.0})
    assert submit.main(["e.yaml", "evals.knn={type: knn, k: 3}", "--executor", "local"]) == 0
    assert read_yaml(folder / "run.yaml") == fields and not (folder / "error.json").exists()
    assert "knn, k 3" in capfd.readouterr().out


def test_a_copied_folder_goes_on_with_the_copy_of_its_sweep_file(local, capsys):
    assert local("arms=[scratch]") == 0
    Path("runs").rename("copied")
    Path("sweep.yaml").unlink()
    again = ["--runs", "copied", "--executor", "local", *over(ONE, ("arms=[scratch]",))]
    assert submit.main(["copied/example/sweep.yaml", *again]) == 0
    assert "already done" in capsys.readouterr().out
    Path("another.yaml").write_text(EXAMPLE.replace("chain_short", "chain_shorter"))
    assert submit.main(["another.yaml", *again]) == 2
    assert "copied/example holds the runs of copied/example/sweep.yaml; give this one a name" in capsys.readouterr().err
    Path("original.yaml").write_text(EXAMPLE)
    assert submit.main(["original.yaml", *again]) == 0
    assert submit.main(["copied/example/sweep.yaml", *again, "--dry-run"]) == 0


def test_a_folder_that_cannot_be_is_said_in_one_line(local, place, capsys):
    (place / "taken").write_text("")
    assert local("--runs", "taken/runs") == 2
    (error,) = [line for line in capsys.readouterr().err.splitlines(keepends=True) if not line.startswith("note: ")]
    assert "--runs: " in error and "taken/runs/example is not a folder; name another" in error and error.count("\n") == 1


@pytest.mark.release
def test_a_run_whose_folder_is_removed_while_it_trains_is_said_to_and_begins_anew(local, capsys) -> None:
    def remove() -> None:
        checkpoint = _wait_for(lambda: next(Path("runs").glob("*/scratch-*/last.pt"), None))
        shutil.rmtree(checkpoint.parent)

    removing = threading.Thread(target=remove)
    removing.start()
    assert local("arms=[scratch]", "loop.max_steps=40") == 1
    removing.join()
    assert "failed: its folder is gone; the same command starts it anew (" in capsys.readouterr().out
    assert local("arms=[scratch]", "loop.max_steps=4") == 0


@pytest.mark.release
def test_a_sweep_whose_folder_is_removed_while_it_trains_is_said_to_be(local, capsys) -> None:
    def remove() -> None:
        sweep = _wait_for(lambda: next(Path("runs").glob("*/scratch-*/last.pt"), None)).parents[1]
        while sweep.exists():  # what trains writes meanwhile
            shutil.rmtree(sweep, ignore_errors=True)

    removing = threading.Thread(target=remove)
    removing.start()
    assert local("arms=[scratch]", "axes.seed=[0,1]", "loop.max_steps=40") == 2
    removing.join()
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert errors == [f"error: {Path('runs/example').resolve()} was removed during training; the same command starts it anew"]
    assert local("arms=[scratch]", "loop.max_steps=4") == 0
