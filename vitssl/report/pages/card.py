"""A model card: the data and the recipe of a run's network, its results over the seeds of its sweep, and its cost."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from vitssl.config import Site, Views, active, scaled_lr
from vitssl.config.metrics import METRICS, measured_by, metric_of, metric_parts
from vitssl.report.results.collect import Cell, RunFolder, Sweep, collect, read_folder
from vitssl.report.results.energy import tracked
from vitssl.report.results.external_sources import origins
from vitssl.report.results.grid import SEED
from vitssl.report.results.rows import without
from vitssl.report.results.stats import plus_minus
from vitssl.report.results.sums import add
from vitssl.report.tables.evaluations import informative_metrics
from vitssl.report.units import quantity
from vitssl.run_folder import BEST, LAST
from vitssl.sweep_folder import is_sweep
from vitssl.words import counted, listed

# {(checkpoint, weights): (key of their test results in done.json, words for them)}
TEST_RESULTS = {
    (LAST, "model"): ("test", "after the last epoch"),
    (LAST, "ema"): ("test_ema", "averaged weights after the last epoch"),
    (BEST, "model"): ("selected", f"{BEST}, the epoch that was chosen on held-out images"),
}
TAGS = {True: "image-classification", False: "image-feature-extraction"}


def text(folder: Path, classifier: bool, checkpoint: str = LAST, weights: str = "model") -> str:
    """Return a model card in Markdown, with the metadata that model hubs read.

    Args:
        folder: the run folder; if it lies in its sweep's folder, the card also has the other seeds and the earlier stages.
        classifier: whether the exported network classifies.
        checkpoint, weights: the exported weights of the run, as `vitssl.load` takes them; results of others are not its own.
    """
    sweep = collect(folder.resolve().parent) if is_sweep(folder.resolve().parent) else None
    cell = _cell(sweep, folder.resolve()) if sweep else None
    alone = read_folder(folder, Site())
    stages = _chain(cell, folder) if cell else [(alone.job.get("stage", "train"), alone)]
    parts = [
        f"---\nlibrary_name: timm\npipeline_tag: {TAGS[classifier]}\ntags:\n- timm\n- vitssl\n---",
        f"# {folder.resolve().name}",
        _network(stages[-1][1], classifier),
        "## Data\n\n" + "\n".join(_data(stages)),
        "## Recipe\n\n" + "\n".join(_recipe(name, run) for name, run in stages),
        "## Results\n\n" + "\n".join(_results(stages[-1][1], sweep, cell, checkpoint, weights)),
        "## Cost\n\n" + "\n".join(_cost(stages, sweep)),
        _usage(stages[-1][1], classifier),
    ]
    return "\n\n".join(parts) + "\n"


def shrunk(cache_px: int | None) -> str:
    """Return what the run did to images before the transform that is exported; empty if that is nothing."""
    return f"images with a short side above {cache_px} px were first shrunk to that (data.cache_px)" if cache_px else ""


def _cell(sweep: Sweep, folder: Path) -> Cell | None:
    """Return the cell whose last stage is the run, or else the first one that has it as an earlier stage; None without one."""
    cells = [cell for cell in sweep.cells if any(run.path.resolve() == folder for _, run in cell.stages)]
    return next((cell for cell in cells if cell.last.path.resolve() == folder), cells[0] if cells else None)


def _chain(cell: Cell, folder: Path) -> list[tuple[str, RunFolder]]:
    """Return the stages of a cell up to the run in ``folder``, included."""
    place = next(i for i, (_, run) in enumerate(cell.stages) if run.path.resolve() == folder.resolve())
    return cell.stages[: place + 1]


def _network(run: RunFolder, classifier: bool) -> str:
    kind = "A classifier" if classifier else "A backbone without a classifier"
    cost = run.cost
    size = f"{kind}: {run.config.backbone.network} for images of {run.config.data.image_size} px"
    if cost:
        size += (
            f", {quantity(cost['params_inference'] / 1e6, 'M')} parameters and {quantity(cost['macs_inference'] / 1e9, 'GMACs')} an image"
        )
    return f"{size}. Trained and exported with vitssl."


def _data(stages: list[tuple[str, RunFolder]]) -> list[str]:
    lines = []
    for name, run in stages:
        if "data" in run.job:
            facts = run.job["data"]
            held_out = f", {facts['val_images']:,} held out" if facts["val_images"] else ""
            images = f"{facts['train_images']:,} training images ({facts['labelled_images']:,} labelled){held_out}"
            details = f"{facts['name']}, {counted(facts['classes'], 'class', 'classes')}, {images}, {facts['test_images']:,} test images"
            lines.append(f"- {name}: {details} (sha256 {facts['sha256'][:12]})")
        if names := origins(run):
            lines.append(f"- {name}: {'the weights of' if 'imported' in run.job else 'starts from'} {listed(names)}")
    return lines or ["Not recorded."]


def _recipe(name: str, run: RunFolder) -> str:
    if "imported" in run.job:
        return f"- {name}: none; the weights are as they were imported"
    if run.run is None:  # of an earlier stage, whose folder may be gone or have a damaged record
        return f"- {name}: not recorded"
    optim, loop, objectives = run.run.optim, run.run.loop, active(run.run.objectives)
    goals = " + ".join(f"{objective.weight:g} {key}" if len(objectives) > 1 else key for key, objective in objectives.items())
    rate = f"learning rate {scaled_lr(optim, optim.lr):.3g} after a warm-up of {counted(loop.warmup_epochs, 'epoch')}, {optim.schedule}"
    decay = f"weight decay {optim.weight_decay:g}" + (f" to {optim.weight_decay_end:g}" if optim.weight_decay_end is not None else "")
    steps = f"{counted(loop.epochs, 'epoch')} of batch {optim.batch_size}, {optim.name}, {rate}, {decay}, {loop.precision}"
    return f"- {name}: {goals}; {steps}; seed {run.run.seed}\n  - views: {_views(run.run.data.views)}"


def _views(views: Views) -> str:
    """Describe what each view does to an image, by the fields that are set."""
    shown = []
    for name, view in views.enabled().items():
        fields = asdict(view)
        set_fields = {key: value for key, value in fields.items() if key in ("scale", "hflip", "auto_augment", "color") and value}
        set_fields |= {key: fields[key] for key in ("erasing_prob", "mixup_alpha", "cutmix_alpha") if fields[key]}
        shown.append(f"{name} {view.crop} " + " ".join(f"{key}={json.dumps(value)}" for key, value in set_fields.items()))
    return "; ".join(shown)


def _results(run: RunFolder, sweep: Sweep | None, cell: Cell | None, checkpoint: str, weights: str) -> list[str]:
    lines = []
    recorded, when = TEST_RESULTS.get((checkpoint, weights), ("", ""))
    if test := run.done.get(recorded):
        compared = metric_parts(sweep.facts["metric"])[1] if sweep else "top1"
        metric, has_other = metric_of(compared), compared != "top1" and compared in test
        others = f", {metric.name} {test[compared]:.2f} {metric.unit}".rstrip() if has_other else ""
        lines.append(f"- this model, {when}: top-1 {test['top1']:.2f} % of {test.get('count', 0):,} test images{others}")
    evaluated_weights = {(LAST, weights): weights, (BEST, "model"): "best"}.get((checkpoint, weights))
    for name, entry in run.evals.items():
        if entry["config"].get("weights", "model") != evaluated_weights:
            continue
        metrics = informative_metrics(run, name, entry["metrics"])
        shown = ", ".join(f"{METRICS[key].title} {value:.2f}" for key, value in metrics.items() if key in METRICS)
        lines.append(f"- this model, evaluator {name}: {shown}")
    if not lines and (checkpoint, weights) != (LAST, "model"):
        lines.append(f"- this model ({checkpoint}, weights {weights}): not evaluated")
    if sweep and cell and cell.last is run:
        reading = sweep.facts["metric"]
        same_recipe = [c for c in sweep.cells if c.arm == cell.arm and without(c.axes, SEED) == without(cell.axes, SEED)]
        scores = [score for c in same_recipe if (score := c.result(*metric_parts(reading))) is not None]
        if len(scores) > 1:
            shown = f"{measured_by(reading).title} {plus_minus(scores)} (mean ± std)"
            when = "at the epoch that held-out images choose" if metric_parts(reading)[0] == "selected" else "after the last epoch"
            lines.append(f"- over {len(scores)} seeds of the same recipe, {when}: {shown}")
    return lines or ["Not evaluated."]


def _cost(stages: list[tuple[str, RunFolder]], sweep: Sweep | None) -> list[str]:
    lines = []
    for name, run in stages:
        if run.cost:
            forward = f"{quantity(run.cost['macs_train_forward'] / 1e9, 'GMACs')} an image in a training forward"
            lines.append(f"- {name}: {quantity(run.cost['params_train'] / 1e6, 'M')} parameters in training, {forward}")
    spent, lost = add(run.spent for _, run in stages), [name for name, run in stages if not run.recorded]
    if lost:
        lines.append(f"- what training of this model took is not known: the record of {listed(lost)} is lost")
    elif spent["device_hours"]:
        gpu = f", {quantity(spent['gpu_hours'], 'hours', 'GPU-hours')}" if spent["gpu_hours"] else ""
        used = f"{quantity(spent['device_hours'], 'hours', 'device-hours')}{gpu}, {quantity(spent['energy_kwh'], 'kWh')}"
        used += f", {quantity(spent['co2e_kg'], 'kg')} CO2e"
        lines.append(f"- training of this model, all stages and attempts: {used}")
    if any(origins(run) for _, run in stages):
        lines.append("- the cost of the weights that it started from is not known here")
    return lines + ([f"\n{tracked(sweep)}"] if sweep and tracked(sweep) else [])


def _usage(run: RunFolder, classifier: bool) -> str:
    px = run.config.data.image_size
    gives = "logits (B, K), whose classes are label_names of config.json" if classifier else "features"
    first = shrunk(run.config.data.cache_px)
    code = [
        "import timm, torch", "model = timm.create_model('local-dir:FOLDER', pretrained=True).eval()  # that of this card",
        "data = timm.data.resolve_model_data_config(model)",
        f"transform = timm.data.create_transform(**data, is_training=False){f'  # {first}' if first else ''}",
        f"model(torch.zeros(1, 3, {px}, {px}))  # {gives}",
    ]  # fmt: skip
    return "## Use\n\n```python\n" + "\n".join(code) + "\n```"
