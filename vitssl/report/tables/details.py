"""The tables of what was trained on, and of every run."""

from __future__ import annotations

from vitssl.config.evals import measured_by, metric_parts
from vitssl.report.results import energy
from vitssl.report.results.collect import RunFolder, Sweep
from vitssl.report.results.grid import Grid
from vitssl.report.table import BAD, DASH, MEASURED, NOTE, Entry, Table, figure
from vitssl.report.tables.settings import stages
from vitssl.report.units import fit
from vitssl.version import differing, snapshot_of
from vitssl.words import few

MANY = 0.01  # of the images to test on, from which on a report warns of near-duplicates before all else


def data(grid: Grid) -> Table | None:
    """The data set of every column: image counts after subsetting, sizes and hash; several lines where arms or stages differ."""
    rows = [row for column in grid.columns for row in _data_of(grid, grid.name(column))]
    if not rows:
        return None
    header = ["set", grid.axis_name, "used by", "classes", "training images", "labelled", "held out", "test images"]
    header += ["px, stored", "px, trained", "sha256"]
    caption = (
        "Training images: what is left after data.images, data.val_fraction and, where a stage needs labels, data.labels. "
        "Pixels are height x width as stored, and the side of the square that the model sees. sha256: its first 12 digits."
    )
    caption = " ".join([caption, *(f"{alike}; `vitssl shards info` lists them." for alike in _near_duplicates(grid))])
    table, (images, labels) = Table("Data", header, rows, caption, left=frozenset({0, 1, 2, len(header) - 1})), (4, 5)
    return table.trimmed().without(*(["labelled"] if all(row[images] == row[labels] for row in rows) else []))


def warnings(grid: Grid) -> dict[str, str]:
    """What a report begins with, and in which section there is more: of which sets so many images to test on are trained on that figures
    may mislead, and that runs were trained by different code."""
    alike = [text for text, share in _near_duplicates(grid).items() if share >= MANY]
    return dict.fromkeys(alike, "Data") | dict.fromkeys(_other_code(grid.sweep), "Provenance")


def _other_code(sweep: Sweep) -> list[str]:
    """That the snapshots differ which finished runs were trained with, of those that are still there."""
    finished = [run for run in sweep.runs.values() if run.status == "done"]
    files = differing({folder for run in finished if (folder := snapshot_of(run.path, run.job)) is not None})
    return [f"not all of these runs were trained by the same code: it differs in {few(files)}"] if files else []


def _near_duplicates(grid: Grid) -> dict[str, float]:
    """For each set of which images to test on look like images that are trained on: what is to be said, and which share of them do."""
    kinds = {"near_duplicates": "used with labels", "near_duplicates_unlabelled": "used without labels"}
    facts = [run.job["data"] for by_column in stages(grid).values() for run in by_column.values() if "data" in run.job]
    found = {(f["name"], f["test_images"], kind, count) for f in facts for kind in kinds if (count := f.get(kind))}
    are = {True: "looks like a near-duplicate", False: "look like near-duplicates"}
    return {
        f"{count:,} of the {test:,} test images of {name} {are[count == 1]} of training images {kinds[kind]}": count / test
        for name, test, kind, count in sorted(found)
    }


def _data_of(grid: Grid, column: str) -> list[list[Entry]]:
    users: dict[tuple[str, ...], list[str]] = {}
    for title, by_column in stages(grid).items():
        if column in by_column and "data" in by_column[column].job:
            users.setdefault(_data_facts(by_column[column]), []).append(title)
    alone = len(users) == 1
    return [
        [Entry(name), Entry(column if grid.axis else DASH), Entry(DASH if alone else ", ".join(titles), NOTE), *map(Entry, rest)]
        for (name, *rest), titles in users.items()
    ]


def _data_facts(run: RunFolder) -> tuple[str, ...]:
    facts = run.job["data"]
    low, high = (" x ".join(map(str, facts[name])) for name in ("smallest_px", "largest_px"))
    train, labelled, val = facts["train_images"], facts["labelled_images"], facts["val_images"]
    return (
        facts["name"], str(facts["classes"]), f"{train:,}", f"{labelled:,}", f"{val:,}" if val else DASH,
        f"{facts['test_images']:,}", low if low == high else f"{low} to {high}", str(run.run["data"]["image_size"]), facts["sha256"][:12],
    )  # fmt: skip


def runs(sweep: Sweep) -> Table:
    """Every run folder once, with how it ended and what all its attempts cost, and where if at several sites."""
    score = measured_by(sweep.facts["metric"]).title
    header = ["run", "of", "status", "attempts", score, sweep.hours_name, sweep.busy_name, "kWh", "kg CO2e", "site"]
    rows, caption = [_run(sweep, run) for run in sweep.runs.values()], "Each run folder once, even if several arms use it."
    table = Table("Runs", header, rows, caption, left=frozenset({0, 1, 2, 9}))
    return fit(table if energy.sites(sweep) else table.without("site")).trimmed()


def _run(sweep: Sweep, run: RunFolder) -> list[Entry]:
    users = [c for c in sweep.cells if any(r is run for _, r in c.stages)]
    points = [", ".join([c.arm, *(f"{axis} {value}" for axis, value in c.axes.items())]) for c in users]
    evaluator, metric = metric_parts(sweep.facts["metric"])
    score = run.metrics(evaluator).get(metric) if run.status == "done" else None
    busy = "gpu_busy_hours" if run.spent["gpu_hours"] else "cpu_hours"
    spent = [figure(run.spent[name] or None) for name in ("device_hours", busy, "energy_kwh", "co2e_kg")]
    site = Entry(energy.site_of(run) if run.emissions else DASH, NOTE)
    detail = f" at {run.progress}" if run.status != "done" and run.progress else ""
    detail = f": {run.error}" if run.status in ("failed", "unreadable") else detail
    status = Entry(run.status + detail, BAD if run.status in ("failed", "interrupted", "unreadable") else MEASURED)
    name = Entry(run.path.name, link=sweep.link(run))
    shown = Entry(DASH if score is None else f"{score:.2f}")
    return [name, Entry("; ".join(points), NOTE), status, Entry(str(run.attempts)), shown, *spent, site]
