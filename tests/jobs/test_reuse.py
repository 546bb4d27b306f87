"""`--reuse` takes what another sweep of the same folder of runs has trained; the training is standin.py."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from jobs import local, submit
from tests.jobs.conftest import EXAMPLE, over, write_index
from vitssl import config, report
from vitssl.files import read_json

HERE = Path(__file__).parent
ONE = ["axes.data=[plain]", "axes.seed=[0]", "resources.gpus_per_node=1", "loop.max_steps=2", "--executor", "local"]
PARTS = [("train", 60), ("train", 40), ("test", 20)]
NOTE = "2 of 2 runs are done in example; --reuse takes them from there instead of training them again"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs where the chain of the sweep `example` is trained."""
    place = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("PYTHONPATH", str(HERE))
        write_index(make_shards(place), PARTS)
        Path("sweep.yaml").write_text(EXAMPLE)
        assert submit.main(["sweep.yaml", *ONE, "arms=[chain_short]"], module="standin") == 0
    return place / "runs"


def make_shards(place: Path) -> Path:
    folder = place / "shards" / "digits"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`run(*arguments)`: submit the example with the stand-in, beside that folder, without its report; gives the exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local, "report_command", lambda *_: ["true"])
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    shutil.copytree(trained, "runs")
    write_index(make_shards(tmp_path), PARTS)
    Path("sweep.yaml").write_text(EXAMPLE)
    return lambda *arguments: submit.main(["sweep.yaml", *over(ONE, arguments)], module="standin")


def folders(sweep: str) -> dict[str, Path]:
    return {read_json(path)["stage"]: path.parent for path in Path(f"runs/{sweep}").glob("*/job.json")}


def starts(folder: Path) -> int:
    return len((folder / "starts.txt").read_text().splitlines())


def test_what_another_sweep_has_trained_is_taken_and_not_trained_again(run, capfd) -> None:
    capfd.readouterr()
    assert run("name=other", "arms=[chain_short]", "--reuse") == 0
    shown = capfd.readouterr().out
    assert "2 of 2 runs are taken from example" in shown and shown.count("done before") == 2
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
    assert capfd.readouterr().out.startswith("other: 3 of 3 runs are to be done")
    assert run(*words, "--reuse") == 0
    shown = capfd.readouterr().out
    assert shown.startswith("2 of 3 runs would be taken from example\nother: 1 of 3 runs is to be done")
    assert not Path("runs/other").exists()


def test_a_new_run_starts_from_a_taken_one_in_its_own_sweep(run) -> None:
    assert run("name=other", "arms=[chain_short]", "finetune.optim.lr=0.5", "--reuse") == 0
    before, other = folders("example"), folders("other")
    assert before["finetune"].name != other["finetune"].name
    assert config.load(other["finetune"]).init_from == str(other["pretrain"].resolve())
    for folder in before.values():  # the first sweep may go
        for file in folder.iterdir():
            file.unlink()
    assert run("name=other", "arms=[chain_short]", "finetune.optim.lr=0.5") == 0


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


def test_a_run_that_has_begun_goes_on_here(run) -> None:
    assert run("name=other", "arms=[chain_short]", "--reuse", "--dry-run") == 0
    assert run("name=other", "arms=[chain_short]") == 0
    begun = folders("other")["finetune"]
    (begun / "done.json").unlink()
    (begun / "metrics.jsonl").touch()
    assert run("name=other", "arms=[chain_short]", "--reuse") == 0
    assert starts(begun) == 2


def test_a_damaged_record_elsewhere_is_no_reason_to_stop(run) -> None:
    (folders("example")["finetune"] / "job.json").write_text("{")
    assert run("name=other", "arms=[chain_short]", "--reuse") == 0
    assert {stage: "reused_from" in read_json(folder / "job.json") for stage, folder in folders("other").items()} == {
        "pretrain": True,
        "finetune": False,
    }


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
        }
        facts |= {"energy_kwh": 1.0, "co2e_kg": 0.4, "node_share": 1.0, "intensity_kg_per_kwh": 0.4, "country": "USA"}
        facts |= {"cpu_power_source": "tdp", "codecarbon": "3"}
        (folder / "emissions-0-n.json").write_text(json.dumps(facts))
    report.write(Path("runs/other"))
    assert "2 of these runs were trained for example, whose report counts them too." in Path("runs/other/report/report.html").read_text()
