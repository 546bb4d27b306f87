"""Weights from outside a sweep: named for people, found or refused before anything is queued."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from jobs import submit
from jobs.inputs import weights
from jobs.plan import smoke
from jobs.plan.cells import Stage, cells
from jobs.plan.sweep import read
from tests.weights import releases
from vitssl import cli, config, model
from vitssl.config import ConfigError, Site, save


@pytest.fixture
def stage(make_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda source: Stage("train", make_run({"objectives.classify": {}, "init_from": source}), "x.yaml: arms.a.stages.train", {})


def test_released_weights_stand_for_a_file_that_is_fetched_where_it_is_missing(stage, tmp_path):
    first, again = stage("timm:deit"), stage("timm:deit")
    file = tmp_path / "weights" / "deit.pt"
    assert weights.prepare([first, again]) == {str(file): "timm:deit"}
    assert first.run.init_from == again.run.init_from == str(file)
    file.parent.mkdir()
    file.touch()
    assert weights.prepare([stage("timm:deit")]) == {}


def test_a_file_that_is_not_there_is_refused_with_its_field(stage):
    with pytest.raises(ConfigError, match=r"x\.yaml: arms\.a\.stages\.train: init_from: there is no missing\.pt"):
        weights.prepare([stage("missing.pt")])


def test_a_run_that_goes_on_is_no_start(stage, make_run, tmp_path):
    save(make_run({"objectives.classify": {}}), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"stages\.train: init_from: run is not finished; let it finish$"):
        weights.prepare([stage("run")])
    (tmp_path / "run" / "last.pt").touch()
    with pytest.raises(ConfigError, match=r"stages\.train: init_from: run is not finished; let it finish, or name one .* run/last\.pt"):
        weights.prepare([stage("run")])
    (tmp_path / "run" / "done.json").write_text('{"step": 0, "epochs": 0.0}')
    assert weights.prepare([stage("run")]) == {}


@pytest.mark.release
def test_of_files_the_first_that_fits_no_network_is_named_with_the_place_that_names_it(stage, digits, tmp_path, capfd):
    file = tmp_path / "weights.pth"  # `jobs.plan.cells` makes paths absolute
    torch.save(model.build(stage(str(file)).run, 10).backbone.state_dict(), file)
    stages = [stage(str(file)) for _ in range(3)]
    for one in stages:
        one.run.data.shards = str(digits)
    stages[1].run.backbone.depth = 1
    stages[2].run.backbone.embed_dim = 48  # comes later
    with pytest.raises(ConfigError, match=r"stages\.train: init_from: .*weights\.pth: backbone\.blocks\.1\..* not part of the network"):
        weights.check_networks(stages, Site())
    stages[1].run.init_except = ["blocks"]
    weights.check_networks(stages[:2], Site())
    save(stages[2].run, tmp_path / "run")
    capfd.readouterr()
    assert cli.main(["fits", "run"]) == 2
    assert capfd.readouterr().err.startswith(f"error: run: init_from: {file}: backbone.")
    save(stages[0].run, tmp_path / "run")
    assert cli.main(["fits", "run"]) == 0 and capfd.readouterr().out == f"run: {file} fits\n"


@pytest.mark.release
def test_networks_of_timm_are_made_before_anything_is_queued(make_run, digits):
    bare = {f"backbone.{name}": None for name in ("embed_dim", "depth", "num_heads", "patch_size")}
    shared = ({"objectives.classify.pool": "mean", "data.shards": str(digits), "data.image_size": 32, "init_from": "a stage"}, bare)
    stages = [
        Stage(name, make_run(*shared, {"backbone": {"name": "timm", "timm_model": f"test_{name}"}}), f"x.yaml: {name}", {})
        for name in ("convnext", "resnot")
    ]
    weights.check_networks(stages[:1], Site())
    with pytest.raises(ConfigError, match=r"^x\.yaml: resnot: backbone\.timm_model: 'test_resnot' is not known .did you mean test_resnet"):
        weights.check_networks(stages, Site())


@pytest.mark.release
def test_heads_to_start_from_are_checked_for_every_number_of_classes(stage, digits, tmp_path, monkeypatch):
    torch.save({"model": model.build(stage("x").run, 10).state_dict(), "data": {}}, tmp_path / "x.pt")
    stages = [stage(str(tmp_path / "x.pt")) for _ in range(2)]
    for one, name in zip(stages, ("ten", "hundred"), strict=True):
        one.run.data.shards, one.run.init_objectives, one.where = name, ["classify"], name
    counts = {"ten": ["0"] * 10, "hundred": ["0"] * 100}
    monkeypatch.setattr(weights, "expected_index", lambda data: SimpleNamespace(classes=counts[data.shards]))
    with pytest.raises(ConfigError, match=r"^hundred: init_from: .*objectives\.classify\.head.*has shape"):
        weights.check_networks(stages, Site())


def test_where_the_container_cannot_be_asked_runs_start_unchecked(make_run, digits, capfd):
    bare = {f"backbone.{name}": None for name in ("embed_dim", "depth", "num_heads", "patch_size")}
    of_timm = {"backbone": {"name": "timm", "timm_model": "test_resnot"}, "data.shards": str(digits)}
    one = Stage("train", make_run({"objectives.classify.pool": "mean", "data.image_size": 32}, bare, of_timm), "x.yaml", {})
    weights.check_networks([one], Site(image="/nowhere.sif", container="no-such-program exec"))
    assert "is seen when runs start: no-such-program: No such file or directory" in capfd.readouterr().err


@pytest.mark.release
def test_weights_that_cannot_be_fetched_queue_nothing(tmp_path):
    with pytest.raises(ConfigError, match=r"timm:no_such_model could not be fetched; put its file at .*x\.pt"):
        weights.fetch({str(Path(tmp_path) / "weights" / "x.pt"): "timm:no_such_model"}, Site())


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import:mae.pth", r"init_from: 'import:mae.pth' is not import:LAYOUT:FILE, for example import:mae:checkpoint.pth"),
        ("import:mea:file.pth", "init_from: 'mea' is not known .did you mean mae"),
        ("import:mae:gone.pth", "init_from: there is no file gone.pth"),
    ],
)
def test_an_import_that_cannot_be_is_one_line(stage, source, words):
    with pytest.raises(ConfigError, match=words):
        weights.prepare([stage(source)])


SWEEP = """
name: imported
defaults:
  data: {shards: DIGITS, image_size: 32, cache_dir: CACHE, normalize: imagenet, labels: {per_class: 2}}
  backbone: {name: vit_tiny, patch_size: 8, embed_dim: 64, depth: 3, num_heads: 1, positions: sincos}
  optim: {batch_size: 20, lr_rule: none}
  loop: {epochs: 1, warmup_epochs: 0, max_steps: 2, device: cpu, threads: 1}
  objectives.classify: {}
arms:
  scratch: {stages: {train: {}}}
  tuned: {stages: {finetune: {init_from: "import:mae:mae.pth"}}}
  probed: {stages: {probe: {init_from: "import:mae:mae.pth", backbone.frozen: true, objectives.classify.norm: batch}}}
"""


@pytest.fixture
def sweep(tmp_path, digits, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(releases.mae_encoder().content, "mae.pth")
    Path("sweep.yaml").write_text(SWEEP.replace("DIGITS", str(digits)).replace("CACHE", str(tmp_path / "cache")))
    return lambda *words: submit.main(["sweep.yaml", "--executor", "local", *words])


@pytest.mark.release
def test_a_sweep_starts_from_an_import_that_is_made_once(sweep, capfd):
    assert sweep("--dry-run") == 0
    assert "would be fetched from import:mae:mae.pth first" in capfd.readouterr().out and not Path("weights").exists()
    assert sweep("arms=[tuned,probed]") == 0
    (folder,) = Path("weights").iterdir()
    assert folder.name.startswith("mae-mae-") and (folder / "done.json").exists()
    shown = capfd.readouterr().out
    assert shown.count("importing import:mae:mae.pth") == 1 and "importing" not in shown.split("report:")[-1]
    for run in (Path("runs/imported").glob("tuned-*"), Path("runs/imported").glob("probed-*")):
        (run,) = run
        assert config.load(run).init_from == str(folder.resolve())
        assert json.loads((run / "done.json").read_text())["test"]["top1"] >= 0
    (probe,) = Path("runs/imported").glob("probed-*")
    theirs, ours = (torch.load(place / "last.pt", weights_only=True)["model"] for place in (folder, probe))
    assert all(torch.equal(ours[name], value) for name, value in theirs.items() if name.startswith("backbone.blocks"))
    page = Path("runs/imported/report/report.md").read_text()
    assert "tuned" in page and "probed" in page
    assert sweep("--dry-run") == 0
    assert "fetched" not in capfd.readouterr().out
    torch.save(releases.mae_encoder().content, "mae.pth")  # another file under the same name is another run
    assert sweep("arms=[tuned]", "--dry-run") == 0
    assert "would be fetched from import:mae:mae.pth first" in capfd.readouterr().out


@pytest.mark.release
def test_an_import_of_another_size_is_refused_before_anything_is_queued(sweep, capfd):
    assert sweep("backbone.depth=2") == 2
    error = capfd.readouterr().err
    assert "init_from: those weights are from a backbone with depths (3,), but this one has (2,)" in error
    assert not list(Path("runs").glob("imported/*/run.yaml"))


@pytest.mark.release
def test_a_file_that_is_no_such_release_is_refused_before_anything_is_queued(sweep, capfd):
    torch.save({"model": {"weight": torch.ones(2)}}, "mae.pth")
    assert sweep() == 2
    error = capfd.readouterr().err
    assert "mae.pth: patch_embed.proj.weight is missing, so it is not a network of this layout" in error
    assert "import:mae:mae.pth could not be imported; import it by hand" in error


def test_a_smoke_run_leaves_imports_out(sweep, tmp_path):
    spec = smoke.narrow(read("sweep.yaml"))
    stages = {cell.arm: stage for cell in cells(spec) for stage in cell.stages}
    assert stages["tuned"].run.init_from == "import:mae:mae.pth"
    assert smoke.shrink(stages["tuned"].run, spec, tmp_path, "tuned", on_cpus=True).init_from is None
