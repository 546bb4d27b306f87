"""Tables of the data that was trained on, and of every run."""

from __future__ import annotations

from vitssl.config.metrics import measured_by, metric_parts
from vitssl.report.results import energy
from vitssl.report.results.collect import RunFolder, Sweep
from vitssl.report.results.grid import Grid
from vitssl.report.table import BAD, DASH, MEASURED, NOTE, Entry, Table, figure
from vitssl.report.tables.settings import stages
from vitssl.report.units import fit
from vitssl.version import differing, snapshots_of, sources_of
from vitssl.words import few

MANY = 0.01  # a report begins with a warning if at least this share of the test images are near-duplicates


def data(grid: Grid) -> Table | None:
    """Return the data set of every column: numbers of images after subsetting, sizes in pixels, and hash.

    A column has several lines if its arms or stages differ in their data.
    """
    rows = [row for column in grid.columns for row in _data_of(grid, grid.name(column))]
    if not rows:
        return None
    header = ["set", grid.axis_name, "used by", "classes", "training images", "labelled", "held out", "test images"]
    header += ["px, stored", "px, trained", "sha256"]
    caption = (
        "Training images: what is left after data.images, data.val_fraction and, where a stage needs labels, data.labels. "
        "Pixels are height x width as stored, and the side of the square that the model sees. sha256: its first 12 digits."
    )
    caption = " ".join(
        [caption, *_sources(grid), *(f"{sentence}; `vitssl shards info` lists them." for sentence in _near_duplicates(grid))]
    )
    table, (images, labels) = Table("Data", header, rows, caption, left=frozenset({0, 1, 2, len(header) - 1})), (4, 5)
    return table.trimmed().without(*(["labelled"] if all(row[images] == row[labels] for row in rows) else []))


def warnings(grid: Grid) -> dict[str, str]:
    """Return the warnings that a report begins with, each with the section that tells more.

    They say that figures may mislead because many test images of a set look like training images, that runs were trained by different
    code, or that the ends of logs are lost.
    """
    duplicates = [text for text, share in _near_duplicates(grid).items() if share >= MANY]
    texts_by_section = {"Data": duplicates, "Provenance": _other_code(grid.sweep), "Runs": _cut_logs(grid.sweep)}
    return {text: section for section, texts in texts_by_section.items() for text in texts}


def _cut_logs(sweep: Sweep) -> list[str]:
    """Return a warning if the logs of trained runs end early."""
    texts = [f"{run.path.name} ({run.cut_log})" for run in sweep.runs.values() if run.cut_log]
    return [f"the end of a log is lost, so nothing is found from it; restore metrics.jsonl from a backup: {few(texts)}"] if texts else []


def _other_code(sweep: Sweep) -> list[str]:
    """Return a warning if finished runs were trained with snapshots that differ, or with other commits where a snapshot is gone."""
    finished = [run for run in sweep.runs.values() if run.state == "done"]
    snapshots = [folder for run in finished for folder in snapshots_of(run.path, run.job)]
    sources = [source for run in finished for source in sources_of(run.job)]
    if files := differing(set(snapshots)):
        return [f"not all of these runs were trained by the same code: it differs in {few(files)}"]
    if len(snapshots) < len(sources) and len({source.get("commit") for source in sources}) > 1:
        return ["not all of these runs were trained by the same commit, and a snapshot of the code is gone, so it cannot be compared"]
    return []


def _near_duplicates(grid: Grid) -> dict[str, float]:
    """Return, for each set with test images that look like training images, a sentence and their share of the test images."""
    kinds = {"near_duplicates": "of training images with labels", "near_duplicates_unlabelled": "of training images without labels"}
    labels: dict[tuple[str, int, str, int], set[int]] = {}  # how many labels the runs use
    subsets = set()  # of these, where that is not every label of the split
    for run in (run for by_column in stages(grid).values() for run in by_column.values() if "data" in run.job):
        facts, chosen = run.job["data"], run.config.data
        for kind in kinds:
            if count := facts.get(kind):
                key = (facts["name"], facts["test_images"], kind, count)
                labels.setdefault(key, set()).add(facts["labelled_images"])
                subsets |= {key} if kind == "near_duplicates" and (chosen.labels or chosen.images) else set()
    verbs = {True: "looks like a near-duplicate", False: "look like near-duplicates"}
    shares = {}
    for (name, test, kind, count), numbers in sorted(labels.items()):
        used = _used(numbers) if (name, test, kind, count) in subsets else ""
        shares[f"{count:,} of the {test:,} test images of {name} {verbs[count == 1]} {kinds[kind]}{used}"] = count / test
    return shares


def _sources(grid: Grid) -> list[str]:
    """Return a sentence for each set of shards on the source that it was built from, where that is known."""
    sets = [run.job["data"] for by_column in stages(grid).values() for run in by_column.values() if "data" in run.job]
    sources = dict.fromkeys((facts["name"], facts["sha256"][:12], facts["built_from"]) for facts in sets if facts.get("built_from"))
    names = [name for name, *_ in sources]
    return [f"{name}{f' ({sha256})' if names.count(name) > 1 else ''} was built from {source}." for name, sha256, source in sources]


def _used(labels: set[int]) -> str:
    """Return the words for how many labels the runs use: where these are few, so may be the near-duplicates among them."""
    numbers = " to ".join(f"{number:,}" for number in sorted({min(labels), max(labels)}))
    return f" (these runs use the labels of {numbers} training images)"


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
        f"{facts['test_images']:,}", low if low == high else f"{low} to {high}", str(run.config.data.image_size), facts["sha256"][:12],
    )  # fmt: skip


def runs(sweep: Sweep) -> Table:
    """Return every run folder once, with its state, what all its attempts cost, and its site if there are several."""
    score = measured_by(sweep.facts["metric"]).title
    header = ["run", "of", "state", "attempts", score, sweep.hours_name, sweep.busy_name, "kWh", "kg CO2e", "site"]
    rows, caption = [_run(sweep, run) for run in sweep.runs.values()], "Each run folder once, even if several arms use it."
    table = Table("Runs", header, rows, caption, left=frozenset({0, 1, 2, 9}))
    return fit(table if energy.sites(sweep) else table.without("site")).trimmed()


def _run(sweep: Sweep, run: RunFolder) -> list[Entry]:
    users = [c for c in sweep.cells if any(r is run for _, r in c.stages)]
    points = [", ".join([c.arm, *(f"{axis} {value}" for axis, value in c.axes.items())]) for c in users]
    evaluator, metric = metric_parts(sweep.facts["metric"])
    score = run.metrics(evaluator).get(metric) if run.state == "done" else None
    spent = [figure(run.spent[name] or None) for name in ("device_hours", sweep.busy_key, "energy_kwh", "co2e_kg")]
    site = Entry(energy.site_of(run) if run.emissions else DASH, NOTE)
    detail = f" at {run.progress}" if run.state != "done" and run.progress else ""
    detail = f" ({run.cut_log})" if run.cut_log else detail
    detail = f": {run.error}" if run.state in ("failed", "unreadable") else detail
    killed = " (killed)" if run.is_killed else ""
    state = Entry(run.state + killed + detail, BAD if killed or run.state in ("failed", "unreadable") else MEASURED)
    name = Entry(run.path.name, link=sweep.link(run))
    score_entry = Entry(DASH if score is None else f"{score:.2f}")
    attempts = Entry(DASH if run.state == "unreadable" else str(run.attempts))
    return [name, Entry("; ".join(points), NOTE), state, attempts, score_entry, *spent, site]
