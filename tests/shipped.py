"""The sweeps of this repository: a person's own may stand beside them in the same folder."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "sweeps"
LISTED = (FOLDER / "README.md").read_text().split("## The sweeps here")[1]
SWEEPS = sorted(path for path in FOLDER.glob("*.yaml") if f"`{path.name}`" in LISTED)
