"""What `vitssl bench` refuses; its figures are no matter of tests."""

from __future__ import annotations

import pytest
import torch

from vitssl import bench, cli
from vitssl.bench import data, sizes
from vitssl.bench.base import Bench, Comparison
from vitssl.config import ConfigError
from vitssl.training import train_state
from vitssl.views import pipeline


def test_a_folder_of_another_layout_is_refused_before_anything_is_measured(tmp_path, monkeypatch):
    measured = []
    monkeypatch.setattr(bench, "COMPARISONS", {"step": measured.append})
    (tmp_path / "cat").mkdir()
    with pytest.raises(ConfigError, match=r"there is no .*/train; expected .*/train/<class>/<image>"):
        bench.run(tmp_path, [], repeats=1)
    assert not measured


def test_an_unknown_comparison_is_refused(capsys):
    assert cli.main(["bench", "--only", "views, speed"]) == 2
    assert "--only: speed is not one of" in capsys.readouterr().err


@pytest.mark.release
def test_steps_as_a_gpu_trains_them_work_without_one(tmp_path, monkeypatch):
    """Compiled without its compiler, and small: what is asserted is that each of the two is what it is named."""
    built = []
    monkeypatch.setattr(sizes, "STEPS", 1)
    monkeypatch.setattr(train_state.torch, "compile", lambda network, **_: built.append(network) or network)
    here = Bench(tmp_path, tmp_path, torch.device("cpu"), repeats=1)
    for method, objectives in (("scratch", {"classify"}), ("ssat", {"classify", "mae"})):
        found = sizes.compiled(here, "vit_pico", method, batch_size=2)
        assert found.ours > 0 and "MFU" in found.note
        assert len(built) == 1 and set(built.pop().objectives) == objectives
    assert sizes.beside_timm(here, "vit_pico", batch_size=2).ratio > 0 and len(built) == 2


@pytest.mark.release
def test_training_from_the_loader_is_measured_as_training_makes_its_views(tmp_path, monkeypatch):
    made, make_batches = [], pipeline.TrainViews.make_batches
    monkeypatch.setattr(train_state.torch, "compile", lambda network, **_: network)
    monkeypatch.setitem(pipeline.MOST_AT_ONCE, "cpu", 4)
    monkeypatch.setitem(pipeline.CHUNK_FLOATS, "cpu", 10**9)
    monkeypatch.setattr(pipeline.TrainViews, "make_batches", lambda self, raws: made.append(len(raws)) or make_batches(self, raws))
    here = Bench(data.digits_as_jpeg(tmp_path / "images"), tmp_path, torch.device("cpu"), repeats=1)
    found = data.end_to_end(here, "vit_pico", "ssat", batch_size=1, view=data.RAND_AUGMENT, steps=4)
    assert found.ours > 0 and found.rival > 0 and set(made) == {4} and "vit_pico ssat bf16, compiled, batch 1" in found.note


@pytest.mark.release
def test_every_size_and_method_is_compiled_however_many_were_before(tmp_path, monkeypatch):
    """Torch leaves a ninth form of one function as it is, here a third one, and takes shapes that change for unknown ones."""
    graphs, compile_ = [], torch.compile
    limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
    monkeypatch.setattr(torch._dynamo.config, limit, 2)
    backend = lambda graph, _: graphs.append(graph) or graph  # noqa: E731
    monkeypatch.setattr(torch, "compile", lambda network, **how: compile_(network, backend=backend, **how))
    here = Bench(tmp_path, tmp_path, torch.device("cpu"), repeats=1)
    forms, steps = [(method, batch_size) for method in sizes.METHODS for batch_size in range(1, 4)], []
    for method, batch_size in forms:
        steps.append(sizes.training_step(here, "vit_pico", method, compiled=True, batch_size=batch_size))
        steps[-1]()
        steps[-1]()
        assert len(graphs) == len(steps)


def test_what_needs_a_gpu_is_not_offered_without_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"--only: compile_ssat_vit_base is not one of .* \(on this machine\)"):
        bench.run(None, ["compile_ssat_vit_base"], repeats=1)


def test_figures_are_under_the_names_that_they_are_asked_for_by(monkeypatch):
    def measure(b: Bench) -> Comparison:
        return b.compare("images/s", lambda: 3.0, lambda: 2.0, "three / two")

    monkeypatch.setattr(bench, "COMPARISONS", {"one": measure, "other": measure})
    figures = bench.run(None, ["other", "one"], repeats=1)
    assert [(c["name"], c["ratio"]) for c in figures["comparisons"]] == [("other", 1.5), ("one", 1.5)]
