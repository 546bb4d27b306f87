"""The sweeps of this repository: a person's own may stand beside them in the same folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "sweeps"
LISTED = (FOLDER / "README.md").read_text().split("## The sweeps here")[1]
SWEEPS = sorted(path for path in FOLDER.glob("*.yaml") if f"`{path.name}`" in LISTED)
# ablations of fields, and methods, that other tests have
LONG = {
    "drloc_ablation", "drloc_variants", "drloc_finetune", "drloc_in100_epochs", "drloc_scratch", "gmml_ablation", "lut_ablation",
    "lut_ablation axes.protocol=probe", "lut_transfer", "lut_weight", "mt_granularity", "mt_stl10", "mt_transfer", "cifar10_masked_tokens",
    "cifar10_scarce_pretraining", "gmml_longer", "gmml_transfer", "gmml_vs_mae", "ssat_backbones", "ssat_decoder", "ssat_domainnet",
}  # fmt: skip


def skip_long(name: str) -> None:
    """Skip the test of such a sweep, but for who asks for all."""
    if name in LONG and "VITSSL_LONG" not in os.environ:
        pytest.skip("VITSSL_LONG=1 runs it; that it can be planned is tested in any case")
