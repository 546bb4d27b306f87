"""What the launcher writes into run folders that were there before."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from jobs import command, folders
from jobs.plan.graph import Job
from jobs.plan.launch import Launch
from tests.jobs.conftest import write_index
from vitssl import config
from vitssl.config import ConfigError, Site
from vitssl.files import read_json, write_json
from vitssl.version import snapshots_of, sources_of


@pytest.fixture
def begun(expand, tmp_path: Path) -> Job:
    """A run that was begun by an older source, which knew no `init_weights` and no `evals`."""
    job = expand().jobs[0]
    source = job.folder.parent / "source" / "older"
    source.mkdir(parents=True)
    folders.write_run(job, Launch(job.folder.parent, "local", Site(), source, commit=("old", False)))
    content = config.read_yaml(job.folder / "run.yaml")
    write_json(job.folder / "run.yaml", {name: value for name, value in content.items() if name not in ("evals", "init_weights")})
    (job.folder / "last.pt").touch()
    return job


def launch(job: Job, name: str = "newer", **options) -> Launch:
    snapshot = job.folder.parent / "source" / name
    snapshot.mkdir()
    return Launch(job.folder.parent, "local", Site(name="elsewhere"), snapshot, commit=(f"commit of {name}", True), **options)


def trained_with(job: Job) -> list[tuple[str, str, bool]]:
    return [(Path(one["source"]).name, one["commit"], one["dirty"]) for one in sources_of(read_json(job.folder / "job.json"))]


def test_a_begun_run_goes_on_with_its_source_and_with_a_run_yaml_that_this_can_read(begun, tmp_path):
    job = dataclasses.replace(begun, run=begun.run)
    job.run.loop.threads = 7  # no part of the identity
    folders.write_run(job, launch(job))
    known = {name: value for name, value in vars(Site(name="elsewhere")).items() if name not in ("max_parallel", "mail_type", "exclude")}
    assert read_json(job.folder / "job.json")["site"].items() <= known.items()  # an older source refuses a field that it does not know
    content = config.read_yaml(job.folder / "run.yaml")
    assert "evals" not in content and "init_weights" not in content and content["loop"]["threads"] == 7
    assert read_json(job.folder / "job.json")["source"] == str(job.folder.parent / "source" / "older")
    assert trained_with(job) == [("older", "old", False)]  # not the commit of this submission, whose code it does not run


def test_of_a_begun_run_that_cannot_be_written_the_former_run_yaml_stays(begun, tmp_path, monkeypatch):
    before = (begun.folder / "run.yaml").read_text()

    write = Path.write_text

    def fail_at_its_end(path, content, **kwargs):
        write(path, content[:8], **kwargs)
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_text", fail_at_its_end)
    with pytest.raises(OSError, match="no space left"):
        folders.write_run(begun, launch(begun))
    assert (begun.folder / "run.yaml").read_text() == before


def test_what_a_begun_run_writes_is_never_what_its_source_cannot_read(begun, tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(folders, "save_fields", lambda fields, folder: written.append(fields))
    folders.write_run(begun, launch(begun))
    assert len(written) == 1 and "init_weights" not in written[0] and "seed" in written[0]


def test_without_its_source_it_goes_on_with_todays(begun, tmp_path):
    shutil.rmtree(begun.folder.parent / "source" / "older")
    folders.write_run(begun, launch(begun))
    assert "evals" in config.read_yaml(begun.folder / "run.yaml")
    assert read_json(begun.folder / "job.json")["source"] == str(begun.folder.parent / "source" / "newer")
    assert trained_with(begun) == [("older", "old", False), ("newer", "commit of newer", True)]


def test_what_todays_source_goes_on_with_is_recorded_beside_what_it_began_with(begun):
    folders.write_run(begun, launch(begun, use_current_source=True))
    both = [("older", "old", False), ("newer", "commit of newer", True)]
    assert trained_with(begun) == both
    folders.write_run(begun, launch(begun, "third"))  # it keeps the newer one
    assert trained_with(begun) == both
    folders.write_run(begun, launch(begun, "fourth", use_current_source=True))
    assert trained_with(begun) == [*both, ("fourth", "commit of fourth", True)]
    assert {path.name for path in snapshots_of(begun.folder, read_json(begun.folder / "job.json"))} == {"older", "newer", "fourth"}


def test_a_run_whose_sweep_was_moved_goes_on_with_its_source(begun, tmp_path):
    shutil.move(begun.folder.parent, tmp_path / "moved")
    moved = dataclasses.replace(begun, folder=tmp_path / "moved" / begun.folder.name)
    folders.write_run(moved, launch(moved))
    assert read_json(moved.folder / "job.json")["source"] == str(tmp_path / "moved" / "source" / "older")
    assert trained_with(moved) == [("older", "old", False)]


def test_a_trained_run_is_evaluated_by_todays_source_and_keeps_who_trained_it(begun, tmp_path):
    (begun.folder / "done.json").write_text('{"epochs": 1.0}')
    assert begun.is_trained and begun.is_done
    begun.run.evals = {"knn": {"type": "knn"}}
    assert begun.is_trained and not begun.is_done
    folders.write_run(begun, launch(begun))
    job, source = read_json(begun.folder / "job.json"), begun.folder.parent / "source"
    assert (job["source"], job["commit"], job["site"]["name"]) == (str(source / "older"), "old", "local")
    assert (job["evaluation"]["source"], job["evaluation"]["site"]["name"]) == (str(source / "newer"), "elsewhere")
    assert config.load(begun.folder).evals == {"knn": {"type": "knn"}}
    started = command.command(begun.folder, job | job["evaluation"], command.NodeInfo(), tmp_path / "stop")
    assert str(source / "newer") in command.environment(job | job["evaluation"], tmp_path / "stop")["PYTHONPATH"] and started[-1] == str(
        begun.folder
    )


def test_shards_of_an_evaluator_become_absolute_are_bound_and_have_to_be_there(expand, tmp_path):
    Path("shards/other").mkdir()
    write_index(Path("shards/other"), [("test", 20)])
    job = expand("arms=[scratch]", "evals.o={type: classification, shards: shards/other}").jobs[0]
    assert job.run.evals["o"]["shards"] == str(Path("shards/other").resolve())
    folders.write_run(job, Launch(job.folder.parent, "local", Site(), tmp_path, commit=("x", False)))
    assert job.run.evals["o"]["shards"] in read_json(job.folder / "job.json")["binds"]
    for override in ("evals.o={shards: shards/none}", "evals.o={shards: shards/other, split: nope}"):
        with pytest.raises(ConfigError, match=r"command line: evals\.o\.shards: "):
            expand("arms=[scratch]", override)


def test_of_two_folders_of_one_identity_the_finished_one_is_taken(expand):
    job = expand().jobs[0]
    for name in ("a", "b"):
        config.save(job.run, job.folder.with_name(f"{name}-0123456789ab"))
    (job.folder.with_name("b-0123456789ab") / "done.json").write_text('{"step": 0, "epochs": 0.0}')
    assert expand().jobs[0].folder.name == "b-0123456789ab"
