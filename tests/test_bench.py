"""What `vitssl bench` refuses; its figures are no matter of tests."""

from __future__ import annotations

import pytest

from vitssl import bench
from vitssl.config import ConfigError


def test_a_folder_of_another_layout_is_refused_before_anything_is_measured(tmp_path, monkeypatch):
    measured = []
    monkeypatch.setattr(bench, "COMPARISONS", {"step": measured.append})
    (tmp_path / "cat").mkdir()
    with pytest.raises(ConfigError, match=r"there is no .*/train; expected .*/train/<class>/<image>"):
        bench.run(tmp_path, [], repeats=1)
    assert not measured


def test_an_unknown_comparison_is_refused():
    with pytest.raises(ConfigError, match="--only: speed is not one of"):
        bench.run(None, ["speed"], repeats=1)
