"""`python -m tests.gpu` without a GPU, in few steps: that its pieces run, and that each measures what it says."""

from __future__ import annotations

import json
import warnings

import pytest
import torch

from tests import gpu


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "CURVES", {name: gpu.CURVES[name] for name in ("ssat", "gmml")})
    monkeypatch.setattr(torch, "compile", lambda network, **_: network)
    monkeypatch.setattr(gpu, "BATCHES", (2,))
    return gpu.Place(tmp_path, steps=2)


@pytest.mark.release
def test_waits_are_those_of_a_step_and_not_of_a_start(place, monkeypatch):
    """Three warnings at each start and two in each step."""
    trained = gpu.Place.train

    def warn(place, name, *layers):
        folder = trained(place, name, *layers)
        for _ in range(3 + 2 * int(name.split("_")[-1])):
            warnings.warn("called a synchronizing operation", stacklevel=1)
        return folder

    monkeypatch.setattr(gpu.Place, "train", warn)
    assert gpu.waits(place) == {f"{name}, {kind}": 2.0 for name in ("ssat", "gmml") for kind in ("bf16", "fp16")}


@pytest.mark.release
def test_losses_of_all_precisions_are_nearly_the_same_and_not_equal(place):
    found = gpu.precision(place)
    assert found.keys() == {"ssat", "gmml"}
    for ends in found.values():
        for kind in ("bf16", "fp16"):
            assert ends[f"{kind} / fp32"] == pytest.approx(1, abs=0.05) and ends[kind] != ends["fp32"]


@pytest.mark.release
def test_a_piece_is_written_with_where_it_ran(place, tmp_path, monkeypatch, capsys):
    assert gpu.main(["batches", "--out", str(tmp_path / "out"), "--steps", "1"]) == 0
    content = json.loads((tmp_path / "out" / "batches.json").read_text())
    assert json.loads(capsys.readouterr().out) == content
    assert len(content["found"]) == 4 and all(found["images/s"] > 0 for found in content["found"].values())
    assert content["where"]["device"] and content["where"]["versions"]["torch"] == torch.__version__.split("+")[0]


@pytest.mark.release
def test_the_largest_part_of_a_step_comes_first(place):
    found = gpu.profiled(place)
    for step in found.values():
        shares = [share for name, share in step.items() if name not in ("step_s", "busy", "kernels")]
        assert len(shares) == 12 and shares == sorted(shares, reverse=True) and shares[-1] > 0


@pytest.mark.release
def test_views_alone_have_a_speed(place):
    found = gpu.views(place)
    assert len(found) == 6 and all(speed["images/s"] > 0 for speed in found.values())
