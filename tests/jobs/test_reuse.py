"""`--reuse` takes what another sweep of the same folder of runs has trained; the training is standin.py."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from jobs import local, submit
from jobs.inputs import reuse
from tests.jobs.conftest import EXAMPLE, over, trained_by, write_index
from vitssl import config, report
from vitssl.files import read_json, try_lock
from vitssl.version import ROOT

HERE = Path(__file__).parent
ONE = ["axes.data=[plain]", "axes.seed=[0]", "resources.gpus_per_node=1", "loop.max_steps=2", "--executor", "local"]
PARTS = [("train", 60), ("train", 40), ("test", 20)]
NOTE = "2 of 2 runs done in example; --reuse takes them from there instead of training them again"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs where the chain of the sweep `example` is trained."""
    place = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        trained_by("standin", patch)
        write_index(make_shards(place), PARTS)
        Path("sweep.yaml").write_text(EXAMPLE)
        assert submit.main(["sweep.yaml", *ONE, "name=other", "--dry-run"]) == 0  # which keeps what it has counted
        assert submit.main(["sweep.yaml", *ONE, "arms=[chain_short]"]) == 0
    return place / "runs"


def make_shards(place: Path) -> Path:
    folder = place / "shards" / "digits"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`run(*arguments)`: submit the example with the stand-in, beside that folder, without its report; gives the exit code."""
    monkeypatch.chdir(tmp_path)
    trained_by("standin", monkeypatch)
    monkeypatch.setattr(local, "write_report", lambda *_: True)
    shutil.copytree(trained, "runs")
    write_index(make_shards(tmp_path), PARTS)
    Path("sweep.yaml").write_text(EXAMPLE)
    return lambda *arguments: submit.main(["sweep.yaml", *over(ONE, arguments)])


def folders(sweep: str) -> dict[str, Path]:
    return {read_json(path)["stage"]: path.parent for path in Path(f"runs/{sweep}").glob("*/job.json")}


def starts(folder: Path) -> int:
    return len((folder / "starts.txt").read_text().splitlines())


def test_what_another_sweep_has_trained_is_taken_and_not_trained_again(run, capfd) -> None:
    capfd.readouterr()
    assert run("name=other", "arms=[chain_short]", "--reuse") == 0
    shown = capfd.readouterr().out
    assert "2 of 2 runs taken from example" in shown and shown.count("already done") == 2
    before, taken = folders("example"), folders("other")
    assert {stage: starts(folder) for stage, folder in taken.items()} == {"pretrain": 1, "finetune": 1}
    assert os.path.samefile(before["pretrain"] / "last.pt", taken["pretrain"] / "last.pt")
    assert config.load(taken["finetune"]).init_from == str(taken["pretrain"].resolve())
    job = read_json(taken["finetune"] / "job.json")
    assert job["parents"] == [str(taken["pretrain"].resolve())] and job["reused_from"] == str(before["finetune"].resolve())


def test_it_is_a_note_where_nobody_asked_and_both_are_trained_again(run, capfd) -> None:
    capfd.readouterr()
    assert run("name=other", "arms=[chain_short]") == 0
    assert NOTE in " ".join(capfd.readouterr().err.split())
    assert all("reused_from" not in read_json(folder / "job.json") for folder in folders("other").values())
    assert run("name=other", "arms=[chain_short]") == 0
    assert "--reuse" not in capfd.readouterr().err  # it has them now


def test_a_dry_run_counts_them_as_done_and_writes_nothing(run, capfd) -> None:
    capfd.readouterr()
    words = ["name=other", "arms=[scratch,chain_short]", "--dry-run"]
    assert run(*words) == 0
    assert capfd.readouterr().out.startswith("other: 3 of 3 runs to be done")
    assert run(*words, "--reuse") == 0
    shown = capfd.readouterr().out
    assert shown.startswith("2 of 3 runs taken from example\nother: 1 of 3 runs to be done")
    assert not Path("runs/other").exists()


def test_a_new_run_starts_from_a_taken_one_and_the_first_sweep_may_go(run) -> None:
    assert run("name=other", "arms=[chain_short]", "axes.seed=[0]", "--reuse") == 0
    shutil.rmtree("runs/example")
    assert run("name=other", "arms=[chain_short]", "finetune.optim.lr=0.5") == 0  # the stand-in asserts that what it starts from is done
    (new,) = (path.parent for path in Path("runs/other").glob("*/job.json") if "reused_from" not in path.read_text())
    pretrain = folders("other")["pretrain"]
    assert config.load(new).init_from == str(pretrain.resolve()) and (pretrain / "last.pt").read_text() == "2"
    snapshot = Path(read_json(pretrain / "job.json")["source"])
    assert (snapshot / "vitssl" / "train.py").exists() and snapshot.is_relative_to(Path("runs/other").resolve())


def test_taken_from_a_third_it_names_where_it_was_trained(run) -> None:
    first = folders("example")["pretrain"].resolve()
    assert run("name=b", "arms=[chain_short]", "--reuse") == 0
    for path in Path("runs/example").glob("*/done.json"):
        path.unlink()
    assert run("name=c", "arms=[chain_short]", "--reuse") == 0
    assert read_json(folders("c")["pretrain"] / "job.json")["reused_from"] == str(first)


def test_another_seed_an_unfinished_run_or_other_images_are_trained(run, tmp_path, capfd) -> None:
    def to_do(*words: str) -> str:
        capfd.readouterr()
        assert run("name=other", "arms=[chain_short]", "--reuse", "--dry-run", *words) == 0
        return re.findall(r"other: (\d of \d) runs", capfd.readouterr().out)[0]

    assert to_do() == "0 of 2"
    assert to_do("axes.seed=[1]") == "2 of 2"
    (folders("example")["finetune"] / "done.json").unlink()
    assert to_do() == "1 of 2"
    write_index(tmp_path / "shards" / "digits", [("train", 60), ("train", 41), ("test", 20)])
    assert to_do() == "2 of 2"


def test_a_run_that_has_begun_goes_on_here_and_so_does_what_starts_from_it(run, capfd) -> None:
    assert run("name=other", "arms=[chain_short]") == 0
    pretrain, finetune = (folders("other")[stage] for stage in ("pretrain", "finetune"))
    (pretrain / "done.json").unlink()
    (pretrain / "metrics.jsonl").touch()
    shutil.rmtree(finetune)
    capfd.readouterr()
    assert run("name=other", "arms=[chain_short]", "--reuse") == 0
    said = "0 of 2 runs taken from another sweep; 2 more continue here, where they or the runs they start from have begun\n"
    assert capfd.readouterr().out.startswith(said)
    assert starts(pretrain) == 2 and starts(finetune) == 1 and "reused_from" not in read_json(finetune / "job.json")


def test_it_says_what_goes_on_here_although_it_is_done_elsewhere(run, capfd) -> None:
    assert run("name=other", "arms=[scratch]") == 0
    assert run("name=third", "arms=[scratch]") == 0
    begun = folders("third")["train"]
    (begun / "done.json").unlink()
    (begun / "metrics.jsonl").touch()
    capfd.readouterr()
    assert run("name=third", "arms=[scratch,chain_short]", "--reuse", "--dry-run") == 0
    shown = capfd.readouterr().out
    assert shown.startswith("2 of 3 runs taken from example; 1 more continue here, where they or the runs they start from have begun\n")


def test_what_a_submission_left_whose_run_never_began_makes_room(run, tmp_path, monkeypatch) -> None:
    squeue = tmp_path / "bin" / "squeue"  # a SLURM that does not know the job any more
    squeue.parent.mkdir()
    squeue.write_text("#!/bin/sh\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{squeue.parent}:{os.environ['PATH']}")
    assert run("name=other", "arms=[chain_short]", "finetune.optim.batch_size=10") == 0
    taken = folders("other")["pretrain"]
    for name in ("done.json", "starts.txt", "last.pt"):
        (taken / name).unlink()
    (taken / "error.json").write_text('{"message": "not run"}')
    (taken / "slurm.json").write_text('{"job_id": "1"}')
    assert run("name=other", "arms=[chain_short]", "finetune.optim.batch_size=10", "--reuse") == 0
    assert {"reused_from"} < read_json(taken / "job.json").keys() and starts(taken) == 1
    assert not {"error.json", "slurm.json", ".lock"} & {path.name for path in taken.iterdir()}


def test_nothing_is_put_where_a_training_has_just_started(run, capfd) -> None:
    (name,) = (path.parent.name for path in Path("runs/example").glob("*finetune*/job.json"))
    folder = Path("runs/other") / name
    with try_lock(folder / ".lock", ""):
        assert run("name=other", "arms=[chain_short]", "--reuse") == 2
        assert [path.name for path in folder.iterdir()] == [".lock"]
    assert "another process is training this run; wait for it" in capfd.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device", "x")])
def test_a_copy_that_is_broken_off_leaves_nothing(run, monkeypatch, error) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(reuse, "write_json", Mock(side_effect=error))
        assert run("name=other", "arms=[chain_short]", "--reuse") in (2, 130)
    assert not list(Path("runs/other").glob("*/run.yaml")) and not Path("runs/other/.reuse").exists()
    assert run("name=other", "arms=[chain_short]", "--reuse") == 0
    assert all(starts(folder) == 1 for folder in folders("other").values())


def test_a_refused_submission_copies_nothing(run, capfd) -> None:
    assert run("name=other", "arms=[scratch,chain_short]", "--reuse", "budget.kwh=1e-9") == 2
    assert "budget.kwh" in capfd.readouterr().err and not Path("runs/other").exists()


@pytest.mark.parametrize("name", ["job.json", "done.json", "evals.json", "run.yaml", "last.pt"])
def test_a_damaged_record_elsewhere_is_no_reason_to_stop(run, name, capfd) -> None:
    (folders("example")["finetune"] / name).write_text("PK" if name == "last.pt" else "seed: 0\ndata:" if name == "run.yaml" else "{")
    assert run("name=other", "arms=[chain_short]", "--reuse", "--dry-run") == 0
    assert capfd.readouterr().out.startswith("1 of 2 runs taken from example")


def test_folders_of_other_people_are_passed_over(run, monkeypatch, capfd) -> None:
    monkeypatch.setattr(reuse, "read_json", Mock(side_effect=PermissionError(13, "Permission denied", "x")))
    assert run("name=other", "arms=[chain_short]", "--dry-run") == 0
    monkeypatch.setattr(Path, "iterdir", Mock(side_effect=PermissionError(13, "Permission denied", "x")))
    assert run("name=other", "arms=[chain_short]", "--dry-run") == 0
    assert "--reuse" not in capfd.readouterr().err


def test_links_are_followed_and_permissions_are_this_persons(run) -> None:
    pretrain = folders("example")["pretrain"]
    (pretrain / "last.pt").rename("kept.pt")
    (pretrain / "last.pt").symlink_to(os.path.relpath("kept.pt", pretrain))
    (pretrain / "analysis").mkdir()
    (pretrain / "analysis" / "gone.png").symlink_to("nowhere")
    (pretrain / "analysis" / "selections.json").write_text("{}")
    (pretrain / "analysis" / "selections.json").chmod(0o444)
    (pretrain / "analysis").chmod(0o555)
    assert run("name=other", "arms=[chain_short]", "--reuse") == 0
    taken = folders("other")["pretrain"]
    assert (taken / "last.pt").read_text() == "2" and not (taken / "last.pt").is_symlink()
    assert [path.name for path in (taken / "analysis").iterdir()] == ["selections.json"]
    assert all(path.stat().st_mode & 0o200 for path in (taken / "analysis", taken / "analysis" / "selections.json"))


def test_an_evaluator_that_is_new_is_evaluated_and_nothing_trained(run) -> None:
    assert run("name=other", "arms=[chain_short]", "--reuse", "evals.knn={type: knn}") == 0
    for folder in folders("other").values():
        assert starts(folder) == 1 and (folder / "evaluations.txt").read_text() == "knn\n"
    assert all(not (folder / "evals.json").exists() for folder in folders("example").values())


def test_the_report_says_whose_energy_it_counts_too(run) -> None:
    assert run("name=other", "arms=[chain_short]", "--reuse") == 0
    for folder in Path("runs/other").glob("*-*"):
        facts = {
            "attempt": 0,
            "node": "n",
            "start": 0.0,
            "end": 9.0,
            "duration_s": 9.0,
            "gpus": 0,
            "gpu_kwh": 0.0,
            "cpu_kwh": 1.0,
            "ram_kwh": 0.0,
            "gpu_busy_s": 0.0,
            "cpu_time_s": 9.0,
            "other_cpu_time_s": 0.0,
            "cores": 2,
            "kwh_by_quarter_hour": {},
        }
        facts |= {"energy_kwh": 1.0, "co2e_kg": 0.4, "node_share": 1.0, "intensity_kg_per_kwh": 0.4, "country": "USA"}
        facts |= {"cpu_power_source": "tdp", "codecarbon": "3"}
        (folder / "emissions-0-n.json").write_text(json.dumps(facts))
    report.write(Path("runs/other"))
    assert (
        "2 of these runs were trained for the sweep example, whose report counts them too."
        in Path("runs/other/report/report.html").read_text()
    )


@pytest.mark.release
def test_what_an_earlier_submission_of_this_sweep_trained_otherwise_is_said_to_be_left_out(run, capfd) -> None:
    assert run("arms=[chain_short]", "--dry-run") == 0
    assert "trained run" not in capfd.readouterr().err
    assert run("arms=[chain_short]", "loop.max_steps=3", "finetune.optim.lr=0.125", "--dry-run") == 0
    left = "2 trained runs of example differ from these in loop.max_steps (2, now 3) and optim.lr (0.001, now 0.125): kept, but not in "
    assert left in capfd.readouterr().err
    more = ["finetune.objectives.classify.label_smoothing=0.1", "pretrain.objectives.simclr={}", "pretrain.data.views.second={}"]
    assert run("arms=[chain_short]", *more, "--dry-run") == 0
    fields = "objectives.classify.label_smoothing (0.0, now 0.1), data.views.second (null, now on) and objectives.simclr (null, now on)"
    assert f"2 trained runs of example differ from these in {fields}: kept" in capfd.readouterr().err
    assert run("arms=[chain_short]", "finetune.objectives.classify.norm=batch", "finetune.loop.micro_batch_size=4", "--dry-run") == 0
    assert "1 trained run of example differs from these in objectives.classify.norm (none, now batch): kept" in capfd.readouterr().err
    assert run("arms=[chain_short]", "loop.max_steps=3", "axes.seed=[1]", "--dry-run") == 0
    assert "trained run" not in capfd.readouterr().err  # of another seed: nothing takes its place
    shutil.copytree(pretraining := folders("example")["pretrain"], "runs/elsewhere/mine")
    elsewhere = read_json(pretraining / "job.json") | {"identity": "another"}
    Path("runs/elsewhere/mine/job.json").write_text(json.dumps(elsewhere))
    tail = "chain_short:\n    stages: {finetune: {objectives.classify: {}, init_from: runs/elsewhere/mine}}\n"
    Path("sweep.yaml").write_text(f"{EXAMPLE.partition('  chain_short')[0]}  {tail}")
    assert run("arms=[chain_short]", "--dry-run") == 0
    assert "1 trained run of example differs from these in what they start from: kept" in capfd.readouterr().err
    Path("sweep.yaml").write_text(EXAMPLE)
    (folders("example")["finetune"] / "done.json").unlink()
    assert run("arms=[chain_short]", "loop.max_steps=3", "--dry-run") == 0
    left = "1 trained run and 1 unfinished run of example differ from these in loop.max_steps (2, now 3): kept, but not in the report"
    assert left in capfd.readouterr().err
    for damaged in Path("runs/example").glob("*/run.yaml"):
        damaged.write_text("{")
    assert run("arms=[chain_short]", "loop.max_steps=3", "--dry-run") == 0
    assert "trained run" not in capfd.readouterr().err


def test_runs_that_other_code_trained_are_named_with_what_has_changed(run, capfd) -> None:
    (source,) = Path("runs/example/source").iterdir()
    for unimportant in ("vitssl/report/units.py", "vitssl/words.py", "jobs/submit.py"):
        (source / unimportant).write_text("")
    assert run("arms=[chain_short]", "--dry-run") == 0 and "other code" not in capfd.readouterr().err
    (source / "vitssl/objectives/mae.py").write_text("")
    (source / "vitssl/objectives/mine.py").write_text("")
    assert run("arms=[chain_short]", "--dry-run") == 0
    files = "vitssl/objectives/mae.py and vitssl/objectives/mine.py"
    said = rf"example: other code trained \S+ and \S+ \([^(]*{files} changed since\): kept, and named by the report; to train one anew"
    assert re.search(said, capfd.readouterr().err)
    assert run("name=another", "arms=[chain_short]", "--dry-run", "--reuse") == 0
    assert re.search(said.replace("example", "another"), capfd.readouterr().err)
    done = folders("example")["finetune"] / "done.json"
    done.rename("done.json")
    goes_on = r"example: other code began \S*finetune\S* \([^(]* changed since\): going on with it; --use-current-source takes today's"
    assert run("arms=[chain_short]", "--dry-run") == 0 and re.search(goes_on, capfd.readouterr().err)
    assert run("arms=[chain_short]", "--dry-run", "--use-current-source") == 0
    assert "going on with today's, as the report will say" in capfd.readouterr().err
    record = folders("example")["finetune"] / "job.json"
    job = record.read_text()
    shutil.copytree(ROOT / "vitssl", "runs/example/source/today/vitssl")
    earlier = [{"source": str(source), "commit": "0123456789", "dirty": False}]
    record.write_text(json.dumps(json.loads(job) | {"source": "/elsewhere/today", "earlier_sources": earlier}))
    assert run("arms=[chain_short]", "--dry-run") == 0 and "going on" not in capfd.readouterr().err  # what it began with is over
    record.write_text(json.dumps(json.loads(job) | {"source": "/elsewhere/gone"}))
    assert run("arms=[chain_short]", "--dry-run") == 0
    gone = r"the code that began \S*finetune\S* is not in \S*source any more: going on with today's"
    assert re.search(gone, capfd.readouterr().err)
    record.write_text(job)
    shutil.rmtree("runs/example/source/today")
    Path("done.json").rename(done)
    for more in ("a", "b", "c"):
        (source / f"vitssl/objectives/{more}.py").write_text("")
    assert run("arms=[chain_short]", "--dry-run") == 0 and re.search(r"other code .*5 files changed since", capfd.readouterr().err)
    for record in Path("runs/example").glob("*/job.json"):
        record.write_text("{")
    assert run("arms=[chain_short]", "--dry-run") == 0 and "other code" not in capfd.readouterr().err
    shutil.rmtree(source)
    assert run("arms=[chain_short]", "--dry-run") == 0 and "other code" not in capfd.readouterr().err
