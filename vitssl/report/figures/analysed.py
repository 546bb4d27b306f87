"""What ``vitssl analyze`` left in a run folder, as figures take it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitssl.files import read_json
from vitssl.run_folder import LAST


@dataclass
class Analysed:
    """What an analysis of one run wrote, and what the run is called in a figure."""

    label: str
    facts: dict[str, Any]
    arrays: Path
    look: dict[str, Any]  # its arm's colour and marker

    @classmethod
    def read(cls, path: Path, label: str, look: dict[str, Any]) -> Analysed:
        """Of the JSON file; of other weights than the model's last ones the label says which."""
        facts = read_json(path)
        others = [facts[name] for name, usual in (("weights", "model"), ("checkpoint", LAST)) if facts[name] != usual]
        return cls(", ".join([label, *others]), facts, path.with_suffix(".npz"), look)


def by_label(runs: list[Analysed]) -> Iterator[tuple[str, int, list[Analysed]]]:
    """What has a name, its place among the names of its arm, which look alike, counted from the last one, and its runs, the seeds."""
    for label in dict.fromkeys(run.label for run in runs):
        seeds = [run for run in runs if run.label == label]
        alike = list(dict.fromkeys(run.label for run in reversed(runs) if run.look == seeds[0].look))
        yield label, alike.index(label), seeds


def images_of(runs: list[Analysed]) -> str:
    """How many images were looked at."""
    return ", ".join(map(str, sorted({run.facts["images"] for run in runs})))
