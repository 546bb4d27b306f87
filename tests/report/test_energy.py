"""What the numbers are based on: the data of every column, what was measured and what modelled, whose prices."""

from __future__ import annotations

import csv
import dataclasses
import json
from io import StringIO

import pytest

from vitssl import report
from vitssl.config import Site
from vitssl.costs import intensity
from vitssl.files import read_json
from vitssl.report.figures import pareto
from vitssl.report.findings.sentences import findings, sentences
from vitssl.report.pages import html, latex, markdown, sections, spreadsheet
from vitssl.report.pages.sections import Report
from vitssl.report.results import energy
from vitssl.report.results.collect import collect
from vitssl.report.results.energy import statement
from vitssl.report.results.grid import lay_out
from vitssl.report.table import DASH, Table
from vitssl.report.tables import details, main_table, settings, spending

pytestmark = pytest.mark.usefixtures("without_plots")


def rows(table: Table) -> list[dict[str, str]]:
    return [dict(zip(table.header, (entry.text for entry in row), strict=True)) for row in table.rows]


def test_the_data_of_every_column(sweep):
    make = {
        ("scratch", "svhn", 0): {
            "data": {
                "train_images": 500, "labelled_images": 500, "smallest_px": [20, 32], "largest_px": [300, 400],
                "built_from": "folder:svhn?test=0.2&seed=0",
            }
        }
    }  # fmt: skip
    laid_out = lay_out(collect(sweep({"scratch": 80.0}, {"data": ["cifar10", "svhn"], "seed": [0]}, make=make)))
    table = details.data(laid_out)
    assert table.caption.endswith("its first 12 digits. svhn was built from folder:svhn?test=0.2&seed=0.")
    assert rows(table) == [
        {
            "set": "cifar10", "data": "cifar10", "classes": "10", "training images": "2,000", "test images": "10,000",
            "px, stored": "32 x 32", "px, trained": "224", "sha256": "0123456789ab",
        },
        {
            "set": "svhn", "data": "svhn", "classes": "10", "training images": "500", "test images": "10,000",
            "px, stored": "20 x 32 to 300 x 400", "px, trained": "224", "sha256": "0123456789ab",
        },
    ]  # fmt: skip


def test_images_to_test_on_that_are_trained_on_are_warned_of(sweep):
    counts = {"cars": None, "cifar10": 247, "digits": 1, "svhn": 0}
    make = {("scratch", name, 0): {"data": {"near_duplicates": count}} for name, count in counts.items()}
    grid = lay_out(collect(sweep({"scratch": 80.0}, {"data": list(counts), "seed": [0]}, make=make)))
    alike = "of training images with labels"
    many = f"247 of the 10,000 test images of cifar10 look like near-duplicates {alike}"
    one = f"1 of the 10,000 test images of digits looks like a near-duplicate {alike}"
    names = "; `vitssl shards info` lists them."
    table = details.data(grid)
    assert table is not None and table.caption.endswith(f"its first 12 digits. {many}{names} {one}{names}")
    first = html.html(Report(grid, {}, {})).split("<main>")
    assert first[0].count('class="warning"') == 1, "one image of ten thousand misleads nobody"
    assert f'Warning: {many}: <a href="#data">details</a>.' in first[0] and 'id="data"' in first[1]
    text = markdown.markdown(Report(grid, {}, {}))
    assert text.index(f"**Warning:** {many}: see [Data](#data).") < text.index("## Comparison") < text.index("## Data\n")
    assert report.summary(grid.sweep.folder, 300).splitlines()[-1:] == [f"Warning: {many}."]


def test_trained_runs_without_a_record_of_energy_are_named_beside_the_sums(sweep):
    folder = sweep({"scratch": 80.0, "ssat": 81.0}, {"seed": [0, 1]}, columns=None)
    grid = lay_out(collect(folder))
    assert "Not counted" not in statement(grid.sweep) + " ".join(sentences(findings(grid)))
    for record in (folder / "scratch-train-0").glob("emissions-*.json"):
        record.unlink()
    (folder / "ssat-train-1" / "emissions-0-n1.json").write_text("{")
    grid, said = lay_out(collect(folder)), " Not counted: 2 further runs whose energy record is missing or unreadable."
    assert "2 training runs of " in statement(grid.sweep) and said in statement(grid.sweep)
    assert any(sentence.endswith(said) for sentence in sentences(findings(grid)))


@pytest.mark.parametrize("file", ["run.yaml", "done.json", "cost.json", "job.json", "metrics.jsonl"])
def test_the_energy_of_a_run_with_another_damaged_record_is_counted(sweep, file):
    folder = sweep({"scratch": 80.0, "ssat": 81.0}, {"seed": [0, 1]}, columns=None)
    sound = statement(collect(folder))
    (folder / "ssat-train-1" / file).write_text("[]\n")
    grid = lay_out(collect(folder))
    assert grid.sweep.runs[folder / "ssat-train-1"].state == "unreadable" and statement(grid.sweep) == sound
    (total,) = findings(grid)["In all"]
    assert "took 4.00 GPU-hours, 1.00 kWh and" in total and "not done" not in total and "Not counted" not in total
    assert next(row["attempts"] for row in rows(details.runs(grid.sweep)) if row["run"] == "ssat-train-1") == DASH, "not known"
    assert report.write(folder).exists()


def test_a_model_whose_record_is_lost_is_no_cheaper_one(sweep):
    folder = sweep({"scratch": 80.0, "sslft": 81.0}, {"seed": [0, 1, 2]}, columns=None)

    def shown() -> list[object]:
        grid = lay_out(collect(folder))
        tables = [rows(table) for table in (spending.cost(grid), spending.by_stage(grid), main_table.table(grid, ["kwh", "hours"]))]
        lines = csv.DictReader(StringIO(spreadsheet.numbers(grid)))
        centres = [model.centre[0] for model in pareto._models(grid, grid.columns[0], pareto.COSTS["accuracy_vs_energy"].per_model)]
        return [*tables, [line["kwh"] for line in lines], centres]

    complete = shown()
    for name in ("scratch-train-0", "sslft-pretrain-1"):
        for record in (folder / name).glob("emissions-*.json"):
            record.unlink()
    assert shown() == complete, "the mean of the others, which cost the same"
    grid = lay_out(collect(folder))
    said = "Energy records are missing, so measured costs are means over fewer seeds for scratch (2 of 3) and sslft (2 of 3)."
    assert all(said in table.caption for table in (spending.cost(grid), spending.by_stage(grid), main_table.table(grid, ["kwh"])))
    assert said not in main_table.table(grid, ["accuracy"]).caption and "over fewer seeds" in latex.for_paper(grid, ["kwh"])[1]
    for name in ("sslft-pretrain-0", "sslft-pretrain-2"):
        for record in (folder / name).glob("emissions-*.json"):
            record.unlink()
    cost, stages, main, kwh, centres = shown()
    assert [line["Wh"] for line in (*cost, *main)] == ["250 ± 0", DASH, "250", DASH] and kwh == ["0.25", ""] and len(centres) == 1
    assert [stage["Wh"] for stage in stages] == ["250", DASH, DASH, DASH], "a stage is of the same seeds as the whole"


def test_what_was_trained_elsewhere_is_named_wherever_a_cost_is(sweep):
    folder = sweep({"scratch": 80.0, "sslft": 81.0, "ssat": 82.0}, {"seed": [0]}, columns=None)
    assert "elsewhere" not in report.write(folder).read_text()  # a chain's own pretraining is counted
    for name, start in (("ssat-train-0", "/somewhere/runs/other/pretrain-s0"), ("sslft-finetune-0", str(folder / "sslft-pretrain-0"))):
        run = json.loads((folder / name / "run.yaml").read_text())
        (folder / name / "run.yaml").write_text(json.dumps(run | {"init_from": start}))
        job = json.loads((folder / name / "job.json").read_text())
        (folder / name / "job.json").write_text(json.dumps(job | {"parents": [str(folder / "sslft-pretrain-0")]}))
    grid = lay_out(collect(folder))
    said = " Not counted: the cost of weights trained elsewhere that runs started from (pretrain-s0)."
    table = settings.settings(grid)[0]
    assert markdown.markdown(Report(grid, {}, {})).count(said) == 3  # in all, below the table, and in the sentence for a paper
    assert said in statement(grid.sweep)
    assert rows(table)[0] == {
        "setting": "starts from", "scratch": DASH, "sslft: pretrain": DASH, "sslft: finetune": DASH, "ssat": "pretrain-s0"
    }  # fmt: skip


def test_a_run_of_elsewhere_is_named_with_the_images_that_it_learned_from(sweep, tmp_path):
    start = tmp_path / "other" / "pretrain-s0"
    start.mkdir(parents=True)
    folder = sweep({"scratch": 80.0}, {"seed": [0]}, columns=None)
    record = read_json(folder / "scratch-train-0" / "job.json")
    (start / "job.json").write_text(json.dumps(record | {"data": record["data"] | {"name": "photos", "train_images": 3000}}))
    run = folder / "scratch-train-0" / "run.yaml"
    run.write_text(json.dumps(json.loads(run.read_text()) | {"init_from": str(start)}))
    assert rows(settings.settings(lay_out(collect(folder)))[0])[0]["scratch"] == "pretrain-s0 (of 3,000 images of photos)"


def test_a_log_that_is_no_log_is_named(sweep):
    folder = sweep({"scratch": 80.0}, {"seed": [0]}, columns=None)
    (folder / "scratch-train-0" / "metrics.jsonl").write_text("garbage")
    (run,) = collect(folder).runs.values()
    said = "metrics.jsonl: it has no complete line although the run is done; restore it from a backup"
    assert run.state == "unreadable" and run.error.endswith(said)


def test_those_without_a_label_are_told_apart(sweep):
    data = {"test_images": 72, "near_duplicates": 0, "near_duplicates_unlabelled": 3}
    grid = lay_out(collect(sweep({"scratch": 80.0}, {"data": ["photos"], "seed": [0]}, make={("scratch", "photos", 0): {"data": data}})))
    said = "3 of the 72 test images of photos look like near-duplicates of training images without labels"
    table = details.data(grid)
    assert table is not None and f"{said};" in table.caption and details.warnings(grid) == {said: "Data"}


def test_of_how_few_labels_are_used_is_said(sweep):
    """Most of them may be near-duplicates of images whose label these runs never see."""
    data = {"test_images": 525, "near_duplicates": 44, "near_duplicates_unlabelled": 30, "labelled_images": 80}
    few = [("train", {"objectives.classify": {}, "data.labels": {"per_class": 20}})]
    make = {(arm, "cells", 0): {"data": data | {"labelled_images": count}} for arm, count in (("scratch", 80), ("ssat", 160))}
    made = sweep({"scratch": 80.0, "ssat": 81.0}, {"data": ["cells"], "seed": [0]}, make=make, stages={"scratch": few, "ssat": few})
    grid = lay_out(collect(made))
    unlabelled, said = sorted(details.warnings(grid))
    assert unlabelled == "30 of the 525 test images of cells look like near-duplicates of training images without labels"
    assert said == (
        "44 of the 525 test images of cells look like near-duplicates of training images with labels (these runs use the labels of 80 to "
        "160 training images)"
    )


def test_images_that_are_all_different_need_no_warning(sweep):
    grid = lay_out(collect(sweep({"scratch": 80.0}, {"seed": [0]}, columns=None)))
    assert "Warning" not in html.html(Report(grid, {}, {})) and "Warning" not in report.summary(grid.sweep.folder)


def test_stages_that_see_other_images_have_lines_of_their_own(sweep):
    """Scarce labels: the pretraining sees all images, the fine-tuning those whose label it has."""
    folder = sweep({"scratch": 80.0, "sslft": 90.0}, {"seed": [0]}, columns=None)
    for name, count in (("scratch-train-0", 200), ("sslft-finetune-0", 200)):
        path = folder / name / "job.json"
        path.write_text(path.read_text().replace('_images": 2000', f'_images": {count}'))
    path = folder / "sslft-pretrain-0" / "job.json"
    path.write_text(path.read_text().replace('labelled_images": 2000', 'labelled_images": 200'))
    shown = [(row["used by"], row["training images"], row["labelled"]) for row in rows(details.data(lay_out(collect(folder))))]
    assert shown == [("scratch, sslft: finetune", "200", "200"), ("sslft: pretrain", "2,000", "200")]


def test_the_page_says_what_it_is_about_and_what_the_command_line_changed(table_3, tmp_path):
    changed = {"notes": ["All 50,000 images."], "overrides": ["data.shards", "data.workers"]}
    written = report.write(table_3(**changed))
    left_out = "the notes of sweeps/ssat_vs_sslft.yaml are left out, since they apply to its own settings"
    said = f"Set on the command line: data.shards, data.workers; {left_out}."
    for text in (written.read_text().replace("&#x27;", "'"), (written.parent / "report.md").read_text()):
        assert said in text and "All 50,000 images." not in text
        assert "0123456789ab" in text and "px, stored" in text
        assert "These runs use other images than the paper: the command line set data.shards." in text


LEFT_OUT = "the notes of sweeps/study.yaml are left out, since they apply to its own settings"


@pytest.mark.parametrize(
    ("facts", "notes"),
    [
        ({}, []),
        ({"overrides": ["optim.lr"]}, ["Set on the command line: optim.lr."]),
        (
            {"overrides": ["data.workers", "finetune.loop.threads"], "notes": ["x"]},
            ["x", "Set on the command line: data.workers, finetune.loop.threads."],
        ),
        ({"overrides": ["equalize"], "notes": ["x"]}, [f"Set on the command line: equalize; {LEFT_OUT}."]),
        ({"overrides": [], "notes": ["x"]}, ["x"]),
    ],
)
def test_what_the_command_line_changed(sweep, facts, notes):
    assert sections.notes(lay_out(collect(sweep({"scratch": 80.0}, {"seed": [0]}, columns=None, **facts)))) == notes


@pytest.mark.parametrize(
    ("gpus", "source", "text"),
    [
        (
            1,
            "tdp",
            "codecarbon 3.3.2: GPU power was measured with NVML, CPU power was modelled from its TDP and load (no meter) and memory",
        ),
        (0, "rapl", "codecarbon 3.3.2: CPU power was measured by RAPL and memory"),
    ],
)
def test_what_was_measured_and_what_modelled(sweep, emissions_record, gpus, source, text):
    make = {("scratch", 0): {"records": [emissions_record(gpus=gpus, cpu_power_source=source)]}}
    laid_out = lay_out(collect(sweep({"scratch": 80.0}, {"seed": [0]}, columns=None, make=make)))
    caption = spending.cost(laid_out).caption
    assert text in caption and "memory power was modelled from its size (" in caption
    assert ("NVML" in caption) == bool(gpus)
    assert "g CO2e tracked" in spending.cost(laid_out).header and "measured" not in " ".join(spending.cost(laid_out).header)


def two_sites(sweep, emissions_record, currency: str = "EUR"):
    """Two seeds of an hour on one GPU: one at 0.4 kg/kWh and 0.5 EUR, one at 0.05 kg/kWh and 2 of some currency."""
    sites = [Site(name="here", price_per_gpu_hour=0.5, currency="EUR"), Site(name="there", price_per_gpu_hour=2.0, currency=currency)]
    records = [emissions_record(), emissions_record(intensity_kg_per_kwh=0.05)]
    make = {("scratch", seed): {"site": dataclasses.asdict(sites[seed]), "records": [records[seed]]} for seed in (0, 1)}
    return lay_out(collect(sweep({"scratch": 80.0}, {"seed": [0, 1]}, columns=None, make=make)))


def test_runs_of_two_sites_say_so(sweep, emissions_record):
    laid_out = two_sites(sweep, emissions_record)
    said = (
        "The runs come from 2 sites, each with its carbon intensity and price: "
        "here (0.4 kg CO2e/kWh, 0.5 EUR per GPU-hour): 1 run; there (0.05 kg CO2e/kWh, 2 EUR per GPU-hour): 1 run."
    )
    assert spending.cost(laid_out).caption.endswith(said)
    assert said in report.summary(laid_out.sweep.folder, width=200)
    lines = rows(details.runs(laid_out.sweep))
    assert [row["site"].split()[0] for row in lines] == ["here", "there"]
    # 0.25 kWh each
    assert [row["g CO2e"] for row in lines] == ["100", "12.5"]
    assert rows(spending.cost(laid_out))[0]["EUR"] == "1.25 ± 1.06"


def test_one_site_needs_no_words(sweep):
    laid_out = lay_out(collect(sweep({"scratch": 80.0}, {"seed": [0, 1]}, columns=None)))
    assert energy.sites(laid_out.sweep) == "" and "site" not in details.runs(laid_out.sweep).header


def test_an_intensity_by_the_hour_makes_one_site(sweep, emissions_record):
    kg = {0: 0.3, 1: 0.4}
    make = {("scratch", s): {"records": [emissions_record(country=intensity.BY_HOUR, intensity_kg_per_kwh=kg[s])]} for s in kg}
    assert energy.sites(collect(sweep({"scratch": 80.0}, {"seed": [0, 1]}, columns=None, make=make))) == ""


def test_a_damaged_record_outside_of_the_sweep_stops_no_report(sweep, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "job.json").write_text("{")
    stages = {"scratch": [("train", {"objectives.classify": {}, "init_from": str(tmp_path / "outside")})]}
    folder = sweep({"scratch": 80.0}, {"seed": [0, 1]}, columns=None, stages=stages)
    assert "outside (its job.json is damaged)" in report.write(folder).read_text()


def test_currencies_are_not_added_up(sweep, emissions_record):
    laid_out = two_sites(sweep, emissions_record, currency="USD")
    assert not {"EUR", "USD", "money"} & set(spending.cost(laid_out).header)
    assert "EUR" not in sentences(findings(laid_out))[-1] and ",money" in spreadsheet.numbers(laid_out)
    assert energy.sites(laid_out.sweep).endswith("Money is left out, since the currencies differ.")
