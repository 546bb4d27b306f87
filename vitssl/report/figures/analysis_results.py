"""The results of ``vitssl analyze`` in a run folder, as figures take them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitssl.report.results import analyses
from vitssl.run_folder import LAST


@dataclass
class Analysed:
    """The results of an analysis of one run, with the label and the look of the run in a figure."""

    label: str
    facts: dict[str, Any]
    arrays: Path
    look: dict[str, Any]  # its arm's colour and marker

    @property
    def images_from(self) -> str:
        """The data set and the split of its images."""
        return f"{self.facts['shards']} {self.facts['split']}"

    @classmethod
    def read(cls, path: Path, label: str, look: dict[str, Any]) -> Analysed:
        """Read the JSON file ``path``; the label also names the weights and the checkpoint unless they are the model's last ones."""
        facts = analyses.read(path)
        unusual = [facts[name] for name, usual in (("weights", "model"), ("checkpoint", LAST)) if facts[name] != usual]
        return cls(", ".join([label, *unusual]), facts, path.with_suffix(".npz"), look)


def by_label(runs: list[Analysed]) -> Iterator[tuple[str, int, list[Analysed]]]:
    """Yield each label, its position among the labels with the same look, counted from the last one, and its runs (the seeds)."""
    for label in dict.fromkeys(run.label for run in runs):
        seeds = [run for run in runs if run.label == label]
        alike = list(dict.fromkeys(run.label for run in reversed(runs) if run.look == seeds[0].look))
        yield label, alike.index(label), seeds


def images_of(runs: list[Analysed]) -> str:
    """Return the numbers of images that the runs were analysed on, as text."""
    return ", ".join(map(str, sorted({run.facts["images"] for run in runs})))
