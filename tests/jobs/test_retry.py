"""What failed is tried again without the sweep's file, on this machine; tests/slurm does it on a cluster."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from jobs import retry, submit
from jobs.plan import shards
from tests.conftest import sweep_facts
from tests.jobs.conftest import EXAMPLE, trained_by, write_index
from vitssl.config import load, read_yaml, save_fields
from vitssl.files import read_json, write_json

HERE = Path(__file__).parent
WORDS = ["axes.data=[plain]", "axes.seed=13", "resources={gpus_per_node: 1, hours: 3}", "loop.max_steps=1", "arms=[chain_short]"]


@pytest.fixture
def failed(place: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> Path:
    """A sweep of which the pretraining failed, and so its fine-tuning; its file is gone."""
    trained_by("standin", monkeypatch)
    Path("sweep.yaml").write_text(EXAMPLE)
    assert submit.main(["sweep.yaml", "--executor", "local", *WORDS]) == 1
    Path("sweep.yaml").unlink()
    capfd.readouterr()
    return place / "runs" / "example"


def unlucky(sweep: Path) -> list[Path]:
    return sorted(sweep.glob("chain_short-*-s13-*"))


def test_what_failed_is_tried_again_and_what_waited_for_it(failed: Path, capfd) -> None:
    before = {path: path.read_text() for path in failed.glob("*/run.yaml")}
    facts, resources = (failed / "sweep.json").read_text(), {"nodes": 1, "gpus_per_node": 1, "hours": 3}
    (failed / "lucky").touch()
    assert retry.main(["runs/example"]) == 0
    finetune, pretrain = unlucky(failed)
    told = capfd.readouterr().out
    assert f"Trying 2 runs again: {finetune.name} {pretrain.name}\n" in told and "report.html" in told
    assert all((folder / "done.json").exists() and not (folder / "error.json").exists() for folder in unlucky(failed))
    assert all(resources.items() <= read_json(folder / "job.json").items() for folder in unlucky(failed))
    assert {path: path.read_text() for path in failed.glob("*/run.yaml")} == before
    assert (failed / "sweep.json").read_text() == facts  # the report is of the whole sweep
    assert retry.main(["runs/example"]) == 0
    assert capfd.readouterr().out == f"{failed}: nothing that failed is left to do\n"
    shutil.rmtree(finetune)
    assert retry.main(["runs/example"]) == 2
    assert "left to do; to continue 1 other run (stopped, cancelled or not begun), repeat the command that" in capfd.readouterr().err


def test_in_a_copy_of_the_sweep_what_starts_from_a_run_starts_from_the_copys(failed: Path) -> None:
    copied = failed.with_name("copied")
    shutil.copytree(failed, copied)
    (copied / "lucky").touch()
    assert retry.main(["runs/copied"]) == 0
    finetune, pretrain = unlucky(copied)
    assert load(finetune).init_from == str(pretrain) and not list(failed.glob("*/done.json"))


def test_in_a_moved_sweep_runs_read_the_grid_that_was_moved_with_it(failed: Path) -> None:
    Path("sweep.yaml").write_text(EXAMPLE)
    Path("week.csv").write_text("time,g_per_kwh\nMon 0:00,300\nThu 12:00,200\n")
    assert submit.main(["sweep.yaml", "--executor", "local", *WORDS, "site.intensity_csv=week.csv"]) == 1
    moved = failed.rename(failed.with_name("moved"))
    (moved / "lucky").touch()
    assert retry.main(["runs/moved"]) == 0
    assert {read_json(folder / "job.json")["site"]["intensity_csv"] for folder in unlucky(moved)} == {str(moved / "grid.csv")}


def test_without_their_shards_runs_are_not_tried_and_with_other_images_neither(failed: Path, capfd) -> None:
    (failed / "lucky").touch()
    finetune, pretrain = unlucky(failed)
    moved = move_shards()
    assert retry.main(["runs/example"]) == 2 == retry.main(["runs/example", pretrain.name])
    gone = f"error: {pretrain}/run.yaml: data.shards: {Path('shards/digits').resolve()}/index.json does not exist: write the shards with "
    for line in (said := capfd.readouterr().err).splitlines():
        assert line.startswith(gone) and line.endswith("; or copy them there, or set data.shards in this file to where they are")
    assert said.count("\n") == 2

    Path("shards/others").mkdir()
    write_index(Path("shards/others"), [("train", 80), ("test", 20)])
    set_shards(pretrain, Path("shards/others"))
    assert retry.main(["runs/example"]) == 2
    assert capfd.readouterr().err.startswith(f"error: {pretrain}/run.yaml: data.sha256: the Run asks for ")

    set_shards(pretrain, moved)
    assert retry.main(["runs/example", pretrain.name]) == 2  # what starts from it needs them too
    set_shards(finetune, moved)
    assert retry.main(["runs/example"]) == 0


def test_the_shards_of_a_finished_run_may_be_gone(failed: Path) -> None:
    (failed / "lucky").touch()
    finetune, pretrain = unlucky(failed)
    assert retry.main(["runs/example", pretrain.name]) == 0
    (finetune / "done.json").unlink()
    set_shards(finetune, move_shards())
    assert retry.main(["runs/example", finetune.name]) == 0


def move_shards() -> Path:
    shards._COUNTED.clear()
    shards.index_of.cache_clear()
    return Path("shards/digits").rename("shards/moved")


def set_shards(folder: Path, place: Path) -> None:
    fields = read_yaml(folder / "run.yaml")
    fields["data"]["shards"] = str(place.resolve())
    save_fields(fields, folder)


@pytest.mark.parametrize("itself", [True, False])
def test_a_damaged_record_by_which_a_run_starts_from_itself_is_named(failed: Path, capfd, itself: bool) -> None:
    finetune, pretrain = unlucky(failed)
    child, parent = (finetune, finetune) if itself else (pretrain, finetune)
    write_json(child / "job.json", read_json(child / "job.json") | {"parents": [str(parent)]})
    assert retry.main(["runs/example"]) == 2
    said = capfd.readouterr().err
    assert "job.json: unexpected content (parents: the run starts from itself" in said and said.count("\n") == 1


def test_what_was_stopped_goes_on_by_name(failed: Path, capfd) -> None:
    (failed / "lucky").touch()
    for folder in unlucky(failed):
        (folder / "error.json").unlink()
    assert retry.main(["runs/example"]) == 2
    said = capfd.readouterr().err
    assert "to continue 2 other runs (stopped, cancelled or not begun), repeat the command that submitted the sweep" in said
    assert retry.main(["runs/example", "chain_short"]) == 0


def test_what_was_interrupted_before_its_turn_has_not_begun_and_its_command_starts_it(failed: Path, capfd) -> None:
    (failed / "lucky").touch()
    finetune, pretrain = unlucky(failed)
    shutil.rmtree(finetune)
    write_json(failed / "sweep.json", read_json(failed / "sweep.json") | {"command": "python jobs/submit.py sweep.yaml"})
    said = f"{finetune.name} has not begun; to start it, repeat the command that submitted the sweep: python jobs/submit.py sweep.yaml\n"
    assert retry.main(["runs/example", finetune.name]) == 2
    assert capfd.readouterr().err == f"error: {failed}: {said}"
    assert retry.main(["runs/example", "chain_short"]) == 0, "the run of the arm that has begun goes on"
    assert f"note: {said}" in capfd.readouterr().err and (pretrain / "done.json").exists()


@pytest.mark.release
def test_what_is_named_is_tried_with_what_it_starts_from(failed: Path, capfd) -> None:
    (failed / "lucky").touch()
    finetune, pretrain = unlucky(failed)
    (finetune / "error.json").unlink()
    assert retry.main(["runs/example", "chain_short-finetune-plain-s13"]) == 0
    assert (pretrain / "done.json").exists() and (finetune / "done.json").exists()
    assert retry.main(["runs/example", "chain_short"]) == 0
    assert capfd.readouterr().out.endswith("nothing of chain_short is left to do\n")


@pytest.mark.release
def test_what_was_on_slurm_is_not_trained_here(failed: Path, monkeypatch, capfd) -> None:
    monkeypatch.setattr(retry.cluster, "answers", lambda: False)
    for folder in unlucky(failed):
        (folder / "job.json").write_text(json.dumps(read_json(folder / "job.json") | {"executor": "slurm"}))
    assert retry.main(["runs/example"]) == 2
    assert "these runs were submitted to SLURM, and no cluster answers here" in capfd.readouterr().err


@pytest.mark.parametrize(("in_s", "kept"), [(-60.0, False), (3600.0, True)])
def test_the_greenest_time_is_kept_with_its_reason_while_it_is_to_come(tmp_path: Path, monkeypatch, in_s: float, kept: bool) -> None:
    monkeypatch.setattr(retry.cluster, "answers", lambda: True)
    start = {"asked": time.time() - 7200, "begin": time.time() + in_s, "at_once": 0.4, "then": 0.1}
    site = {"nice": 5, "additional": {"begin": "2026-11-24T20:00:00", "exclusive": "true"}}
    write_json(tmp_path / "sweep.json", sweep_facts(["a"], site=site, start=start))
    launch = retry._launch(tmp_path, {"slurm"})
    assert ("begin" in launch.site.additional, launch.start) == (kept, start if kept else None)
    assert launch.site.additional["exclusive"] == "true"
