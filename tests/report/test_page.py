"""The files of a report: complete, self-contained, and readable in any state of the sweep."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from vitssl import atomic, cli, report
from vitssl.report.figures import plots, style
from vitssl.report.pages.sections import compared_text
from vitssl.report.results.collect import collect
from vitssl.report.results.grid import lay_out
from vitssl.report.table import DASH
from vitssl.report.tables import details, evaluations, spending

ROOT = Path(__file__).parents[2]
VOID = {"input", "meta", "br", "path", "use", "wbr"}


class Balanced(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


def test_the_first_line_names_what_is_compared_and_no_axis_of_one_value(sweep):
    one = sweep({"ssat": 80.0}, {"size": ["pico"], "seed": [0]}, columns=None, name="one")
    assert compared_text(lay_out(collect(one))) == "1 arm (ssat)."
    axes = {"size": ["pico"], "cost": ["low", "high"], "seed": [0, 1]}
    several = sweep({"scratch": 80.0, "ssat": 80.0}, axes, columns=None, name="several")
    assert compared_text(lay_out(collect(several))) == "2 arms (scratch, ssat) over cost low, high; seeds 0, 1."
    change_command(several, "python jobs/submit.py sweeps/x.yaml 'arms=[scratch,ssat]' axes.seed=[0,1] length=0.1 site.gpu=L4 name=y")
    assert compared_text(lay_out(collect(several))).endswith("; seeds 0, 1. Given on the command line: arms, axes.seed and length.")


def change_command(folder: Path, command: str) -> None:
    path = folder / "sweep.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"command": command}))


@pytest.mark.usefixtures("all_files")
def test_a_report_has_every_file_and_needs_no_other(table_3):
    page = report.write(table_3(notes=["55 h where the other rows imply 52"]))
    names = {path.name for path in page.parent.iterdir()}
    plots = ("accuracy_vs_macs", "accuracy_vs_energy", "accuracy_vs_hours", "learning_curves", "energy_by_component")
    drawn = {f"{name}.{kind}" for name in plots for kind in ("svg", "png", "pdf")}
    assert (
        names == {"report.html", "report.md", "table.csv", "seeds.csv", "curves.csv", "differences.csv", "table.tex", "energy.tex"} | drawn
    )
    text = page.read_text()
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert text.count("<svg") == len(plots) and not re.search(r'src="(?!data:)', text)
    linked = set(re.findall(r'href="(?!#|https://arxiv)([^"]*)"', text))
    assert names - {"report.html"} <= linked and all((page.parent / link).exists() for link in linked)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', text)) <= set(ids)
    assert "55 h where the other rows imply 52" in text and "g CO2e estimate" in text


def test_writing_twice_gives_the_same(sweep):
    folder = sweep({"scratch": 80.0, "ssat": 90.0}, {"data": ["cifar10"], "seed": [0, 1]})
    first = {p.name: p.read_bytes() for p in report.write(folder).parent.iterdir()}
    second = {p.name: p.read_bytes() for p in report.write(folder).parent.iterdir()}
    assert first == second


def test_a_report_is_utf_8_whatever_the_locale(sweep):
    """Arms and figures have other characters than ASCII's; so has every spread over seeds (±)."""
    arms = [{"name": "scratch", "row": "Ohne Größe"}, {"name": "ssat", "row": "Größe"}]
    folder = sweep({"scratch": 80.0, "ssat": 90.0}, {"seed": [0, 1]}, columns=None, arms=arms)
    first = {path.name: path.read_bytes() for path in report.write(folder).parent.iterdir()}
    assert "±".encode() in first["report.md"] and "Größe".encode() in first["accuracy_vs_macs.svg"]
    writing = "from vitssl import report; from vitssl.report.figures import style; style.FILES = {}; report.write(sys.argv[1])"
    code = f"import locale, sys; assert 'ANSI' in locale.getpreferredencoding(False); {writing}"
    ascii_alone = {name: value for name, value in os.environ.items() if name not in ("LC_CTYPE", "PYTHONIOENCODING")}
    ascii_alone |= {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code, folder], env=ascii_alone, check=True)
    assert first == {path.name: path.read_bytes() for path in (folder / "report").iterdir()}


@pytest.mark.usefixtures("without_plots")
def test_of_a_folder_whose_name_is_not_utf_8_a_report_has_the_bytes(sweep):
    page = report.write(sweep({"scratch": 80.0}, {"seed": [0]}, columns=None, name=os.fsdecode(b"caf\xe9/study")))
    for name in ("report.html", "report.md"):
        assert b"/caf\xe9/study" in (page.parent / name).read_bytes()


def fill_disk(monkeypatch, name: str) -> None:
    """The disk is full when the file of this name is written, which is complete only once it has been moved to its place."""

    def move(temporary: Path, path: Path, move=atomic.move) -> None:
        if path.name == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        move(temporary, path)

    monkeypatch.setattr(atomic, "move", move)


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize(
    "name", ["report.html", "report.md", "table.csv", "seeds.csv", "curves.csv", "differences.csv", "table.tex", "energy.tex"]
)
def test_on_a_full_disk_the_former_file_of_a_report_is_left(sweep, monkeypatch, name):
    folder = sweep({"scratch": 80.0}, {"seed": [0]}, columns=None)
    path = report.write(folder).with_name(name)
    path.write_text("former")
    fill_disk(monkeypatch, name)
    with pytest.raises(OSError, match="No space left"):
        report.write(folder)
    assert path.read_text() == "former" and not list(path.parent.glob(".*"))


@pytest.mark.parametrize("kind", style.KINDS)
def test_on_a_full_disk_the_former_file_of_a_figure_is_left(tmp_path, figures_for_pages, monkeypatch, kind):
    monkeypatch.setattr(style, "FILES", figures_for_pages)
    path = tmp_path / f"plot.{kind}"
    path.write_text("former")
    fill_disk(monkeypatch, path.name)
    with pytest.raises(OSError, match="No space left"):
        style.save(Figure(), tmp_path / "plot")
    assert path.read_text() == "former" and not list(tmp_path.glob(".*"))


def test_names_are_escaped(sweep):
    page = report.write(sweep({"ssat": 80.0}, {"data": ["<b>&"], "seed": [0]}, notes=["a < b & c"]))
    assert "a &lt; b &amp; c" in page.read_text() and "<b>" not in page.read_text()


@pytest.mark.parametrize("state", ["not begun", "running", "failed"])
def test_a_sweep_without_a_result_has_a_report(sweep, state):
    make = {(arm, "cifar10", 0): {"state": state} for arm in ("scratch", "ssat")}
    page = report.write(sweep({"scratch": 1.0, "ssat": 2.0}, {"data": ["cifar10"], "seed": [0]}, make=make))
    assert "0 of 2 runs are done" in page.read_text()
    assert (page.parent / "learning_curves.svg").exists() == (state != "not begun")
    assert not (page.parent / "accuracy_vs_macs.svg").exists()


def test_on_a_cpu_hours_are_of_the_device_and_there_is_no_estimate(sweep, emissions_record):
    make = {("scratch", 0): {"records": [emissions_record(gpus=0)]}}
    text = report.write(sweep({"scratch": 80.0}, {"seed": [0]}, columns=None, make=make)).read_text()
    assert "device-hours" in text and "GPU-hours" not in text.split("<main>")[1]
    assert "kg CO2e estimate" not in text.split("Cost in detail")[0]


def test_beside_runs_on_gpus_one_on_a_cpu_was_busy_on_none(sweep, emissions_record):
    """Its CPU-hours would stand under the header of GPU-busy hours."""
    make = {("scratch", 0): {"records": [emissions_record(gpus=0)]}, ("ssat", 0): {"records": [emissions_record(gpu_busy_s=1800.0)]}}
    laid_out = lay_out(collect(sweep({"scratch": 80.0, "ssat": 82.0}, {"seed": [0]}, columns=None, make=make)))
    for table in (spending.cost(laid_out), details.runs(laid_out.sweep)):
        on_cpu, on_gpu = (row[table.header.index("of them GPU-busy hours")].text for row in table.rows)
        assert (on_cpu, on_gpu) == (DASH, "0.500")


def test_a_numeric_axis_becomes_a_line(sweep):
    """Two arms over a column axis, each seed's points averaged."""
    axes = {"labels": [0.01, 0.1, 1.0], "seed": [0, 1]}
    laid_out = lay_out(collect(sweep({"scratch": lambda at: 50 + at["labels"] + at["seed"], "ssat": 60.0}, axes, columns="labels")))
    _, figure = plots.draw(laid_out)["accuracy_by_axis"]
    axis = figure.axes[0]
    assert axis.get_xscale() == "log" and axis.get_xlabel() == "labels"
    drawn = {c.get_label(): c.lines[0].get_xydata().tolist() for c in axis.containers}
    assert [x for x, _ in drawn["scratch"]] == [0.01, 0.1, 1.0]
    assert [y for _, y in drawn["scratch"]] == pytest.approx([50.51, 50.6, 51.5])
    assert [y for _, y in drawn["ssat"]] == [60.0] * 3


def test_a_numeric_row_axis_becomes_a_line_in_every_column(sweep):
    axes = {"data": ["x", "y"], "epochs": [10, 20], "seed": [0]}
    laid_out = lay_out(collect(sweep({"ssat": lambda at: at["epochs"] + 5.0 * (at["data"] == "y")}, axes)))
    _, figure = plots.draw(laid_out)["accuracy_by_axis"]
    lines = [axis.containers[0].lines[0].get_xydata().tolist() for axis in figure.axes]
    assert lines == [[[10, 10], [20, 20]], [[10, 15], [20, 25]]]


def test_an_axis_of_many_whole_numbers_has_whole_ticks(sweep):
    values = [1, 2, *range(3, 40, 3)]
    laid_out = lay_out(collect(sweep({"ssat": 80.0}, {"epochs": [*values, 19], "seed": [0]}, columns="epochs")))
    axis = plots.draw(laid_out)["accuracy_by_axis"][1].axes[0]
    low, high = axis.get_xlim()
    assert all(tick == int(tick) for tick in axis.get_xticks() if low <= tick <= high)


def test_panels_of_one_curve_have_the_same_limits_where_all_columns_are_of_one_set(sweep):
    folder = sweep({"ssat": lambda at: 20.0 * at["depth"]}, {"depth": [1, 4], "seed": [0]}, columns="depth")
    first, second = plots.draw(lay_out(collect(folder)))["learning_curves"][1].axes[:4:3] or [None, None]
    assert first.get_ylabel() == second.get_ylabel() == "test top-1, %" and first.get_ylim() == second.get_ylim()
    assert first.get_ylim()[1] > 79


def test_curves_are_means_over_seeds_as_far_as_all_have_come(sweep):
    make = {("scratch", "cifar10", 1): {"state": "running"}}
    laid_out = lay_out(collect(sweep({"scratch": lambda at: 80.0 + 2 * at["seed"]}, {"data": ["cifar10"], "seed": [0, 1]}, make=make)))
    _, figure = plots.draw(laid_out)["learning_curves"]
    curve = next(line for line in figure.axes[0].lines if len(line.get_xdata()))
    first = laid_out.rows[0].cells[0].last.events_of("eval")[0]["test"]["top1"]
    assert len(curve.get_xdata()) == 50  # the running seed is at half of its 100 epochs
    assert curve.get_ydata()[0] == pytest.approx(first * 81 / 80)


def test_epochs_of_accuracy_and_loss_stand_above_each_other(sweep):
    """A chain has a loss from epoch 1 of its 100, an accuracy from 51."""
    laid_out = lay_out(collect(sweep({"sslft": 80.0}, {"seed": [0]}, columns=None, baseline=None)))
    _, figure = plots.draw(laid_out)["learning_curves"]
    top, *losses = figure.axes
    assert top.lines[-1].get_xdata()[0] == 51 and top.get_xlim()[0] < 1
    assert all(axis.get_xlim() == top.get_xlim() for axis in losses)


def test_each_objective_has_a_panel_of_its_own_loss(sweep):
    """A classifier's loss is beside a classifier's and a reconstruction's beside a reconstruction's, before weights."""
    top1 = {"scratch": 80.0, "sslft": 70.0, "ssat": 90.0}
    laid_out = lay_out(collect(sweep(top1, {"data": ["x", "y"], "seed": [0]})))
    _, figure = plots.draw(laid_out)["learning_curves"]
    drawn = {}
    for axis in figure.axes[:3]:  # of the first column
        drawn[axis.get_ylabel()] = [(line.get_linestyle(), line.get_xdata()[0], round(line.get_ydata()[0], 2)) for line in axis.lines]
    assert list(drawn) == ["test top-1, %", "training loss: classify", "training loss: mae"]
    full, half = 2.3 - 1.9 * (1 - math.exp(-5 / 100)), 2.3 - 1.9 * (1 - math.exp(-5 / 50))
    classify = [("-", 1, full), ("-", 51, half), ("-", 1, full)]  # scratch, the fine-tuning, ssat
    assert drawn["training loss: classify"] == [(style, x, round(y, 2)) for style, x, y in classify]
    assert drawn["training loss: mae"] == [("--", 1, round(half, 2)), ("-", 1, round(full, 2))]


def share_pretraining(folder: Path) -> None:
    """Both columns' chains begin with the pretraining of the first."""
    facts = json.loads((folder / "sweep.json").read_text())
    for cell in facts["cells"]:
        for stage in cell["stages"]:
            if stage["stage"] == "pretrain":
                stage["folder"] = stage["folder"].replace("-y-", "-x-")
    (folder / "sweep.json").write_text(json.dumps(facts))


def test_what_columns_share_is_listed_once(sweep):
    scores = {"done": {"val": {"top1": 50.0, "macro_f1": 40.0}}}
    make = {("sslft", column, seed): scores for column in "xy" for seed in (0, 1)}
    folder = sweep({"scratch": 80.0, "sslft": 70.0}, {"data": ["x", "y"], "seed": [0, 1]}, make=make)
    share_pretraining(folder)
    table = evaluations.table(lay_out(collect(folder)))
    pretrainings = [[entry.text for entry in row[:3]] for row in table.rows if row[2].text == "pretrain"]
    assert pretrainings == [["sslft", "all", "pretrain"]]
    assert [row[1].text for row in table.rows if row[2].text == "finetune" and row[3].text == "val"] == ["x", "y"]


def test_epochs_have_whole_ticks_and_the_axis_ends_where_the_curves_do(sweep):
    short = {"scratch": [("train", {"objectives.classify": {}, "loop.epochs": 3, "loop.warmup_epochs": 1})]}
    laid_out = lay_out(collect(sweep({"scratch": 80.0}, {"seed": [0, 1]}, columns=None, stages=short)))
    axis = plots.draw(laid_out)["learning_curves"][1].axes[0]
    low, high = axis.get_xlim()
    assert [tick for tick in axis.get_xticks() if low <= tick <= high] == [0, 1, 2, 3]
    assert (low, high) == pytest.approx((0, 3.04))


def test_a_single_evaluation_is_a_dot(sweep):
    folder = sweep({"scratch": lambda at: 80.0 + 2 * at["seed"]}, {"data": ["cifar10"], "seed": [0, 1]})
    for path in folder.glob("*/metrics.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        kept = [line for line in lines if '"eval"' not in line]
        path.write_text("".join([*kept, next(line for line in reversed(lines) if '"eval"' in line)]))
    _, figure = plots.draw(lay_out(collect(folder)))["learning_curves"]
    (dot,) = figure.axes[0].containers
    assert dot.lines[0].get_marker() == "o" and dot.lines[0].get_xdata().tolist() == [100]
    assert dot.has_yerr
    low, high = figure.axes[0].get_xlim()  # of a single epoch, too, from which no curve has a width
    assert low == 0 and all(tick % 1 == 0 for tick in figure.axes[0].get_xticks() if low <= tick <= high)


def test_what_was_trained_alone_has_no_panel_for_accuracy(sweep):
    stages = {"mae": [("pretrain", {"objectives.mae": {}})]}
    laid_out = lay_out(collect(sweep({"mae": None}, {"seed": [0]}, columns=None, baseline=None, stages=stages)))
    _, figure = plots.draw(laid_out)["learning_curves"]
    assert [axis.get_ylabel() for axis in figure.axes] == ["training loss: mae"]


def test_energy_is_drawn_for_every_column(sweep, emissions_record):
    """1 h is 0.2 + 0.04 + 0.01 kWh; the bars of one column hold nothing of the other."""
    hours = {("scratch", "x"): 1, ("ssat", "x"): 2, ("scratch", "y"): 60}
    make = {(*place, 0): {"records": [emissions_record(hours=h)]} for place, h in hours.items()}
    make["ssat", "y", 0] = {"state": "not begun"}
    laid_out = lay_out(collect(sweep({"scratch": 80.0, "ssat": 90.0}, {"data": ["x", "y"], "seed": [0]}, make=make)))
    _, figure = plots.draw(laid_out)["energy_by_component"]
    drawn = [{(c.get_label(), round(bar.get_y() + 0.31)): bar.get_width() for c in axis.containers for bar in c} for axis in figure.axes]
    assert [axis.get_title() for axis in figure.axes] == ["x", "y"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["scratch", "ssat"]
    first = {("GPU", 0): 0.2, ("CPU", 0): 0.04, ("RAM", 0): 0.01, ("GPU", 1): 0.4, ("CPU", 1): 0.08, ("RAM", 1): 0.02}
    assert drawn[0] == pytest.approx(first)
    assert drawn[1] == pytest.approx({("GPU", 0): 12.0, ("CPU", 0): 2.4, ("RAM", 0): 0.6})


def test_summary_is_for_the_terminal(table_3):
    for width in (60, 80, 120):
        text = report.summary(table_3(), width=width)
        assert "78.57 ± 0.10 (3)" in text and "GPU-hours" in text and "best arm by top-1 is Ours" in " ".join(text.split())
        assert all(len(line) <= width for line in text.splitlines())
        assert ("more columns in report.html" in text) is (width < 120)
    assert "more columns in report.html" not in report.summary(table_3(), width=300)


def test_a_report_needs_no_torch():
    code = "import sys, vitssl.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=report.__path__[0] + "/../..").returncode == 0


@pytest.mark.usefixtures("all_files")
def test_of_the_report_s_folder_only_figures_of_an_earlier_one_go(sweep):
    folder = sweep({"scratch": 80.0}, {"seed": [0]}, columns=None)
    (folder / "report").mkdir()
    files = [folder / "report" / name for name in ("my_poster.pdf", "selections-7.png", "learning_curves_images.svg")]
    for file in files:
        file.touch()
    report.write(folder)
    assert [file.exists() for file in files] == [True, False, False]


@pytest.mark.usefixtures("without_plots")
def test_a_report_may_lie_elsewhere(sweep, tmp_path, capsys):
    folder = sweep({"scratch": 80.0}, {"seed": [0]}, columns=None)
    shutil.rmtree(folder / "report", ignore_errors=True)
    before, out = sorted(folder.rglob("*")), tmp_path / "reports" / "mine"
    for _ in range(2):
        assert cli.main(["report", str(folder), "--out", str(out)]) == 0
    assert capsys.readouterr().out.endswith(f"report: {out / 'report.html'}\n") and sorted(folder.rglob("*")) == before
    (target,) = set(re.findall(r'href="([^"]*scratch-[^"]*)"', (out / "report.html").read_text()))
    assert (out / target).resolve().parent == folder.resolve()
    (out / "report.html").unlink()
    for words, reason in (([], "holds files and no report.html"), ([str(folder)], "one folder for the reports of 2 sweeps")):
        assert cli.main(["report", str(folder), *words, "--out", str(out)]) == 2
        assert f"error: --out: {reason if words else f'{out} {reason}'}" in capsys.readouterr().err


def test_several_sweeps_are_reported_one_after_the_other_or_none_of_them(sweep, tmp_path, capsys):
    folder = sweep({"ssat": 80.0}, {"seed": [0]})
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    assert cli.main(["report", str(folder), str(other), str(tmp_path / "gone")]) == 2
    assert not (folder / "report").exists() and "gone/sweep.json does not exist" in capsys.readouterr().err
    assert cli.main(["report", str(folder), str(other)]) == 0
    pages = [line for line in capsys.readouterr().out.splitlines() if line.startswith("report: ")]
    assert pages == [f"report: {of}/report/report.html" for of in (folder, other)] and (other / "report" / "table.csv").is_file()
