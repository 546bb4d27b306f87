"""The page: what comes first, what failed, what training saw, links, and tables that can be sorted."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitssl import report
from vitssl.report.findings import sentences as findings
from vitssl.report.findings.sentences import further, headlines, sentences
from vitssl.report.pages import html, markdown, render
from vitssl.report.pages.sections import Drawn, Report
from vitssl.report.results import training_pictures
from vitssl.report.results.collect import collect
from vitssl.report.results.failures import failures
from vitssl.report.results.grid import lay_out
from vitssl.report.table import Entry, Table, figure

pytestmark = pytest.mark.usefixtures("without_plots")

ARMS = [{"name": "scratch", "row": "Scratch"}, {"name": "sslft", "row": "SSL+FT"}, {"name": "ssat", "row": "SSAT"}]
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture
def three(sweep):
    top1 = {"scratch": 80.0, "sslft": 81.0, "ssat": lambda at: 81.5 + at["seed"]}
    return lambda seeds=(0, 1), **kwargs: sweep(top1, {"seed": list(seeds)}, **{"columns": None, "arms": ARMS, **kwargs})


def made(folder: Path) -> Report:
    """Without plots, which take the longest."""
    return Report(lay_out(collect(folder)), {}, {})


def headings(text: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", text)


@pytest.mark.usefixtures("with_plots")
def test_first_comes_what_was_found_then_the_main_table_and_its_plot_then_details(three):
    text = report.write(three()).read_text()
    assert headings(text)[:3] == ["What was found", "Comparison of arms", "Accuracy against training cost"]
    assert headings(text)[-3:] == ["Runs", "Settings", "Provenance"]
    order = [text.index(part) for part in ("the best mean is that of SSAT", "against Scratch</th>", "accuracy_vs_macs-", 'class="more"')]
    assert order == sorted(order)
    assert "8 of 8 runs are done." in text.split("<main>")[0]


def test_tables_of_equal_epochs_and_equal_cost_stand_below_each_other(sweep):
    """In one place of the grid, in which several sections would cover each other."""
    equal = {"all": None, "axes": {"cost": {"equal MACs": {"quantity": "macs", "reference": "ssat"}}}}
    axes = {"cost": ["equal epochs", "equal MACs"], "seed": [0, 1]}
    text = html.html(made(sweep({"scratch": 80.0, "ssat": 82.0}, axes, columns=None, equal=equal)))
    assert text.count('class="main"') == 1
    assert headings(text)[1:3] == ["Comparison of arms at equal epochs", "Comparison of arms at equal MACs"]


def test_an_arm_that_is_only_quoted_stands_in_every_table_of_an_axis_of_costs(sweep):
    equal = {"all": None, "axes": {"cost": {"equal epochs": None, "equal MACs": {"quantity": "macs", "reference": "ssat"}}}}
    arms = [{"name": "ssat"}, {"name": "other", "quoted": True, "published": 70.0, "not_runnable": "quoted"}]
    axes = {"cost": ["equal epochs", "equal MACs"], "seed": [0, 1]}
    parts = lay_out(collect(sweep({"ssat": 82.0}, axes, columns=None, equal=equal, arms=arms))).parts
    assert [(part.part, [row.arm.name for row in part.rows]) for part in parts] == [(cost, ["ssat", "other"]) for cost in axes["cost"]]


def test_of_several_columns_costs_and_sizes_are_apart_and_fit_a_page(sweep):
    folder = sweep({"scratch": 80.0, "ssat": 82.0}, {"data": ["x", "y"], "seed": [0, 1]})
    section = html.html(made(folder)).split("<h2>Cost</h2>")[1].split("</section>")[0]
    heads = [re.findall(r'scope="col">(.*?)</th>', table.split("</thead>")[0]) for table in section.split("<table>")[1:]]
    assert [head[:2] for head in heads] == [["arm", "data"]] * 2
    assert heads[0][2:4] == ["TMACs of training", "against scratch"] and heads[1][2] == "M\N{NO-BREAK SPACE}parameters, training"


def test_what_no_room_is_for_at_first_stands_below(three, monkeypatch):
    grid = lay_out(collect(three()))
    everything = headlines(grid) | further(grid)
    assert sentences(everything) == sentences(findings.findings(grid))
    assert "Further findings" not in headings(html.html(made(three()))) or further(grid)
    monkeypatch.setattr(findings, "MOST_SUBJECTS", 2)
    assert headlines(grid) == dict(list(everything.items())[:2]) and "Further findings" in headings(html.html(made(three())))


@pytest.mark.usefixtures("with_plots")
def test_markdown_has_the_same_sections_with_the_same_tables_and_plots(three):
    folder = three()
    page = report.write(folder).read_text()
    text = (folder / "report" / "report.md").read_text()
    assert "8 of 8 runs are done." in text and "; the best mean is that of SSAT" in text
    assert re.findall("^## (.*)$", text, re.MULTILINE) == headings(page)
    titles = re.findall("^### (.*)$", text, re.MULTILINE)
    assert "Size and speed" in titles and [title for title in titles if "Settings" not in title] == re.findall("<h3>(.*?)</h3>", page)
    plots = [path.stem for path in (folder / "report").glob("*.svg")]
    assert len(plots) > 4 and all(f"({name}.svg)" in text and f'href="{name}.svg"' in page for name in plots)


def test_arms_go_by_their_rows_and_folders_by_their_links(three):
    folder = three()
    text = html.html(made(folder))
    tables = text.split("Runs</h2>")[0]
    assert "SSL+FT" in tables and "sslft" not in tables
    links = re.findall(r'<a href="(\.\./[^"]+/)">', text)
    assert len(links) == 8 and all((folder / "report" / link).resolve().is_dir() for link in links)


# ---------------------------------------------------------------------------------------------------------------- sorted


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        (Entry("80.00 ± 0.10 (3)"), 80.0), (Entry("\N{MINUS SIGN}2.15 [\N{MINUS SIGN}2.99, +1.30]"), -2.15), (Entry("4,000"), 4000.0),
        (figure(0.4256, 1.2582), 1.6838), (Entry("+0.50"), 0.5), (Entry(), None), (Entry("failed (2)"), None), (Entry("3.1e-05"), 3.1e-5),
    ],
)  # fmt: skip
def test_cells_are_sorted_by_their_number(entry, value):
    assert render.sorted_by(entry) == pytest.approx(value)


def test_numbers_have_their_value_and_names_have_none():
    text = render.html(Table("t", ["arm", "top-1 %"], [[Entry("7 layers"), Entry("80.25 ± 0.10 (3)")], [Entry("b"), Entry()]]))
    assert re.findall(r'data-value="([^"]+)"', text) == ["80.25"]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here to run the page's script")
def test_a_click_sorts_by_the_column_and_another_one_turns_it_round(three, tmp_path):
    """Largest first, and what has no number last."""
    text = html.html(made(three()))
    for clicks, expected in ((1, ["SSAT", "SSL+FT", "Scratch"]), (2, ["SSL+FT", "SSAT", "Scratch"])):
        click = "document.querySelectorAll('.main thead th')[%d].click();"
        columns = re.findall(r"<th[^>]*>(.*?)</th>", text.split('class="main"')[1].split("</thead>")[0])
        script = f"<script>{click % columns.index('against Scratch') * clicks}</script></body>"
        (tmp_path / "page.html").write_text(text.replace("</body>", script))
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
        dumped = subprocess.run([*command, (tmp_path / "page.html").as_uri()], capture_output=True, text=True, timeout=180).stdout
        body = dumped.split('class="main"')[1].split("<tbody>")[1].split("</tbody>")[0]
        assert re.findall(r'<th scope="row"[^>]*>(.*?)</th>', body) == expected
        assert f'aria-sort="{"descending" if clicks == 1 else "ascending"}"' in dumped


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here to run the page's script")
def test_a_table_that_is_wider_than_a_phone_says_that_it_scrolls(three, tmp_path):
    """The interval has a line of its own there, and rows keep their names in sight."""
    text = html.html(made(three(name="wide", seeds=[0, 1, 2])))
    assert '<span class="interval">[+0.' in text and "position: sticky" in text
    (tmp_path / "page.html").write_text(text)
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    for width, cut in ((420, True), (2000, False)):
        size = [f"--window-size={width},800", "--virtual-time-budget=500", (tmp_path / "page.html").as_uri()]
        dumped = subprocess.run([*command, *size], capture_output=True, text=True, timeout=180).stdout
        assert ('<figure class="cut">' in dumped.split('class="main"')[1].split("</table>")[0]) is cut


def layout(sweep, drawn: tuple[str, ...], **kwargs) -> str:
    """The classes of what comes first, with plots of these names."""
    report_of = Report(lay_out(collect(sweep(**kwargs))), {name: Drawn("words", '<svg width="300pt"></svg>') for name in drawn}, {})
    return re.search(r'<div class="first ?(.*?)">', html.html(report_of))[1]


def test_plots_stand_beside_a_table_that_leaves_room(sweep):
    plots, top1 = ("accuracy_vs_macs", "energy_by_component"), {"scratch": 80.0, "ssat": lambda at: 82.0 + at["seed"]}
    one = {"top1": top1, "axes": {"seed": [0, 1]}, "columns": None}
    assert layout(sweep, plots, **one) == "" and layout(sweep, (), **one) == "wide"
    assert layout(sweep, plots, top1=top1, axes={"data": ["x", "y"], "seed": [0, 1]}, name="two") == "wide"


# -------------------------------------------------------------------------------------------------------------- failures


def told(folder: Path) -> list[str]:
    return list(map(str, failures(collect(folder))))


def test_failed_runs_stand_with_their_first_error(three):
    folder = three(make={("ssat", 1): {"state": "failed"}})
    error = folder / "ssat-train-1" / "error.json"
    error.write_text(json.dumps({"message": "RuntimeError: <out of memory>", "time": 0.0, "details": 'File "train.py", line 3\n<boom>'}))
    text = html.html(made(folder))
    assert headings(text)[2] == "What failed"
    section = text.split("What failed</h2>")[1].split("</section>")[0]
    assert "RuntimeError: &lt;out of memory&gt;" in section and "&lt;boom&gt;" in section and 'href="../ssat-train-1/"' in section
    assert told(folder) == ["ssat-train-1: RuntimeError: <out of memory>"]
    assert "ssat-train-1: RuntimeError: <out of memory>" in markdown.markdown(made(folder))


def test_where_nothing_failed_nothing_is_said_of_it(three):
    assert "What failed" not in html.html(made(three()))


def test_of_several_attempts_the_first_error_is_shown_and_the_last_where_it_differs(sweep):
    folder = sweep({"ssat": 80.0}, {"seed": [0]}, columns=None, baseline=None, make={("ssat", 0): {"state": "failed"}})
    history = [{"message": "disk is full", "details": "File a.py"}, {"message": "loss is not finite at step 70 (optim.lr)"}]
    history = [failure | {"attempt": attempt} for attempt, failure in enumerate(history)]
    (folder / "ssat-train-0" / "errors.jsonl").write_text("".join(json.dumps(failure) + "\n" for failure in history))
    said = "ssat-train-0: disk is full; the last attempt: loss is not finite at step 70 (optim.lr)"
    assert told(folder) == [said]
    assert "File a.py" in html.html(made(folder))
    (folder / "ssat-train-0" / "errors.jsonl").write_text(json.dumps(history[1]) + "\n")
    assert told(folder) == ["ssat-train-0: loss is not finite at step 70 (optim.lr)"]


def test_ranks_that_fail_differently_are_one_attempt(sweep):
    """Of each attempt the first line is the error; the others may follow from it."""
    folder = sweep({"ssat": 80.0}, {"seed": [0]}, columns=None, baseline=None, make={("ssat", 0): {"state": "failed"}})
    run = folder / "ssat-train-0"

    def said(*history: tuple[int, str]) -> list[str]:
        lines = [json.dumps({"message": message, "attempt": attempt}) for attempt, message in history]
        (run / "errors.jsonl").write_text("".join(f"{line}\n" for line in lines))
        (run / "error.json").write_text(lines[-1])
        return told(folder)

    assert said((0, "disk is full"), (0, "connection closed")) == ["ssat-train-0: disk is full"]
    last = "ssat-train-0: disk is full; the last attempt: out of memory"
    assert said((0, "disk is full"), (1, "out of memory"), (1, "connection closed")) == [last]
    (run / "error.json").write_text(json.dumps({"message": "no space left", "attempt": 2}))  # nor was there for a line
    assert told(folder) == ["ssat-train-0: disk is full; the last attempt: no space left"]


# -------------------------------------------------------------------------------------------------------------- pictures


def picture(path: Path, value: int, px: int = 16, rows: int = 1) -> None:
    noise = np.random.default_rng(value).integers(0, 256, (rows * (px + 1), training_pictures.COUNT * (px + 1), 4), dtype=np.uint8)
    Image.fromarray(noise).save(path)


def test_runs_that_saw_the_same_share_one_picture(three):
    folder = three()
    for run, value in (("scratch-train-0", 1), ("sslft-pretrain-0", 2), ("sslft-finetune-0", 1), ("ssat-train-0", 1), ("ssat-train-1", 3)):
        picture(folder / run / "views-main.png", value)
    picture(folder / "ssat-train-0" / "views-local.png", 1)
    found = [view.caption for view in training_pictures.pictures(lay_out(collect(folder)), "views")]
    assert found == ["main: Scratch, SSL+FT: finetune and SSAT", "main: SSL+FT: pretrain", "local: SSAT"]
    text = html.html(made(folder))
    assert text.count("<img ") == 3 and text.count("data:image/png;base64,") == 3


def test_reconstructions_name_their_rows_and_large_pictures_are_packed(three):
    folder = three()
    picture(folder / "ssat-train-0" / "reconstructions-mae.png", 1, px=96, rows=3)
    (found,) = training_pictures.pictures(lay_out(collect(folder)), "reconstructions", training_pictures.ROWS)
    assert found.caption == "mae: SSAT" and found.rows == ("seen", "given back", "image")
    assert found.uri().startswith("data:image/webp;base64,") and len(found.uri()) < found.path.stat().st_size
    text = html.html(made(folder))
    assert "<span>given back</span>" in text and "Reconstructions" in headings(text)


def test_columns_are_named_where_there_are_several(sweep):
    folder = sweep({"ssat": 80.0}, {"data": ["x", "y"], "seed": [0]}, baseline=None)
    picture(folder / "ssat-train-x-0" / "views-main.png", 1)
    picture(folder / "ssat-train-y-0" / "views-main.png", 2)
    assert [view.caption for view in training_pictures.pictures(lay_out(collect(folder)), "views")] == [
        "main: ssat on x",
        "main: ssat on y",
    ]


def test_runs_of_before_there_were_pictures_have_a_report(three):
    text = html.html(made(three()))
    assert "What training saw" not in headings(text) and "<img " not in text
