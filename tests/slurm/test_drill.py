"""One trial of the quickest faults of the drill (drill.py), on one node: minutes, and only where VITSSL_DRILL=1 asks for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.slurm import drill


@pytest.mark.release
@pytest.mark.skipif("VITSSL_DRILL" not in os.environ, reason="VITSSL_DRILL=1 runs it, for some minutes")
def test_what_the_quickest_faults_of_the_drill_hit_ends_equal_to_an_undisturbed_run(place: Path, monkeypatch) -> None:
    monkeypatch.setenv("VITSSL_CACHE_DIR", str(place / "cache"))
    assert drill.drill(place, ["usr2", "worker", "truncated", "sbatch-third", "sbatch-hangs", "sbatch-lost"], trials=1, seed=0, nodes=1)
