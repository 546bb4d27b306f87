"""Files of tensors are written whole or not at all, and what is none is refused in a line."""

from __future__ import annotations

import os

import pytest
import torch

from vitssl import model
from vitssl.checkpoints import tensor_files
from vitssl.config import ConfigError


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_a_checkpoint_that_is_cut_short_is_called_so(make_run, tmp_path, share):
    path = tmp_path / "last.pt"
    torch.save(model.build(make_run({"objectives.classify": {}}), 10).state_dict(), path)
    os.truncate(path, int(share * path.stat().st_size))
    with pytest.raises(ConfigError, match=r"last\.pt is not a checkpoint that can be read \(it is empty, cut short or damaged\)$"):
        tensor_files.read(path)


@pytest.mark.parametrize("content", [b"not weights", b"", b"\x00" * 8 + b"{broken", b"seed: 0\n"])
def test_what_is_no_checkpoint_is_one_line(tmp_path, content):
    (tmp_path / "x.pt").write_bytes(content)
    with pytest.raises(ConfigError, match=r"x\.pt is not a checkpoint that can be read"):
        tensor_files.read(tmp_path / "x.pt")


def test_a_failed_write_leaves_the_old_checkpoint(tmp_path):
    path = tmp_path / "last.pt"
    tensor_files.save(path, {"step": 1})
    with pytest.raises(AttributeError):
        tensor_files.save(path, {"step": 2, "bad": lambda: 0})
    assert tensor_files.read(path) == {"step": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]


def test_the_next_write_clears_away_what_a_kill_left_half_written(tmp_path):
    (tmp_path / ".last.pt.123").write_bytes(b"half")
    tensor_files.save(tmp_path / "last.pt", {"step": 1})
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]


def test_a_checkpoint_cannot_run_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("ran",))

    torch.save({"model": Evil()}, tmp_path / "last.pt")
    with pytest.raises(ConfigError, match=r"last\.pt is not a checkpoint"):
        tensor_files.read(tmp_path / "last.pt")
