"""Whether pretraining has made features that tell classes apart, if an evaluator of features has looked at them."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from vitssl.config.evals import FEATURE_KINDS
from vitssl.report.results.collect import RunFolder
from vitssl.report.results.grid import Grid
from vitssl.words import few

HARDLY = 0.1  # of the way from chance to every image right; below that, and below twice chance, features tell next to nothing


def sentence(grid: Grid) -> str:
    """Return a sentence that lists the pretrained features that are hardly better than chance; empty if there are none."""
    poor = []
    for row, column, done in grid.models():
        for i, (stage, _) in enumerate(done[0].stages[:-1]):
            found = [pair for cell in done for pair in _found(cell.stages[i][1])]
            for name in dict.fromkeys(name for name, _, _ in found):
                scores = [(top1, chance) for other, top1, chance in found if other == name]
                top1, chance = mean(top1 for top1, _ in scores), mean(chance for _, chance in scores)
                if top1 - chance < min(chance, HARDLY * (100 - chance)):
                    poor.append(f"{grid.model_name(row, column)} ({stage}: {name} {top1:.2f} %, chance {chance:.2f} %)")
    advice = "Such a pretraining may have collapsed: look at its loss and learning rate before you compare it."
    return f"Features hardly better than chance (of classes of equal size) were pretrained: {few(poor)}. {advice}" if poor else ""


def _found(run: RunFolder) -> Iterator[tuple[str, float, float]]:
    """Yield the name, the top-1 and the top-1 by chance, both in %, of every evaluator of a run's features."""
    classes = run.job.get("data", {}).get("classes")
    for name, entry in run.evals.items():
        if classes and entry["config"]["type"] in FEATURE_KINDS and "top1" in (metrics := run.metrics(name)):
            yield name, metrics["top1"], 100 / classes
