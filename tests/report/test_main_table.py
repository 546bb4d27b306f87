"""The first table of a report: names, columns on request, units that fit; and as LaTeX in a two-column paper."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from io import StringIO

import pytest

from tests.conftest import but_for_a_release
from vitssl import cli, report
from vitssl.config import ConfigError
from vitssl.report import units
from vitssl.report.pages import latex, render
from vitssl.report.pages.latex import tex
from vitssl.report.results.collect import collect
from vitssl.report.results.energy import statement
from vitssl.report.results.grid import lay_out
from vitssl.report.table import DASH, Entry, Table, figure, signed
from vitssl.report.tables import differences, main_table, spending

pytestmark = pytest.mark.usefixtures("without_plots")

ARTICLE = r"""\documentclass[twocolumn]{article}
\usepackage[utf8]{inputenc}
\usepackage{booktabs}
\begin{document}
\input{table}
\input{energy}
\end{document}
"""


def texts(table: Table) -> dict[str, list[str]]:
    return {row[0].text: [entry.text for entry in row[1:]] for row in table.rows}


def test_rows_are_called_as_in_the_paper_and_by_their_arm_where_that_says_nothing(sweep):
    arms = [{"name": "scratch", "row": "GMML (ours)"}, {"name": "scratch_long", "row": "GMML (ours)"}, {"name": "ssat", "row": "SSAT"}]
    laid_out = lay_out(collect(sweep({"scratch": 80.0, "scratch_long": 81.0, "ssat": 82.0}, {"seed": [0]}, columns=None, arms=arms)))
    assert list(texts(main_table.table(laid_out))) == ["GMML (ours) [scratch]", "GMML (ours) [scratch_long]", "SSAT"]
    assert laid_out.baselines() == "GMML (ours) [scratch]"
    assert laid_out.baseline(laid_out.rows[2]) is laid_out.rows[0]


def test_axes_go_by_the_last_part_of_their_field_where_that_is_enough(sweep):
    axes = {"optim.lr": [0.1, 0.2], "pretrain.loop.epochs": [1, 2], "finetune.loop.epochs": [3], "seed": [0]}
    laid_out = lay_out(collect(sweep({"ssat": 80.0}, axes, columns=None, baseline=None)))
    assert laid_out.label(laid_out.rows[0]) == "lr 0.1, pretrain.loop.epochs 1"


def test_one_column_of_the_sweep_shows_costs_and_several_what_differs(sweep, grid_3):
    alone = main_table.table(lay_out(collect(sweep({"scratch": 80.0, "ssat": 82.0}, {"seed": [0, 1]}, columns=None))))
    assert alone.header == ["arm", "top-1 %", "against scratch", "TMACs of training", "GPU-hours", "Wh", "g CO2e"]
    # 1,000 steps of 64 images x 3 x 1.258 GMACs, and 3 x 0.426 more
    assert texts(alone)["scratch"][2:] == ["242", "1.00", "250", "100"] and texts(alone)["ssat"][2] == "323"
    assert main_table.table(grid_3).header[-1] == "epochs"


def test_what_is_equal_in_all_columns_stands_once(grid_3):
    table = main_table.table(grid_3, ["accuracy", "gmacs", "kwh"])
    assert table.header == ["arm", "top-1 %", "top-1 %", "GMACs, training forward", "Wh"]
    assert table.groups == [("", 1), ("cifar10", 1), ("cifar100", 1), ("", 2)]
    assert texts(table)["(1) SSL+FT"][2:] == ["0.426 + 1.26", "250"]


def test_a_column_that_does_not_exist_is_refused_before_anything_is_read(tmp_path, capsys):
    assert cli.main(["report", str(tmp_path), "--columns", "accuracy,kWh"]) == 2
    error = capsys.readouterr().err
    assert (
        error.startswith("error: --columns: there is no column kWh (did you mean kwh?); the columns are accuracy, paper, ")
        and error.count("\n") == 1
    )
    with pytest.raises(ConfigError, match="there is no column a, b"):
        main_table.check(["a", "kwh", "b"])


def test_columns_are_chosen_on_the_command_line(sweep, capsys):
    folder = sweep({"scratch": 80.0, "ssat": 82.0}, {"seed": [0, 1]}, columns=None)
    assert cli.main(["report", str(folder), "--columns", "accuracy, params_train, money"]) == 0
    assert capsys.readouterr().out.split("\n")[2].split() == ["arm", "top-1", "%", "M", "parameters,", "training", "EUR"]
    for name in ("report.html", "report.md"):
        text = (folder / "report" / name).read_text().replace("\N{NO-BREAK SPACE}", " ")
        assert "M parameters, training" in text
    assert r"80.00 $\pm$ 0.00 & 5.53 & 0.500 \\" in (folder / "report" / "table.tex").read_text()


@pytest.mark.parametrize("name", main_table.COLUMNS)
def test_every_column_has_figures(grid_3, name):
    table = main_table.table(grid_3, [name])
    assert any(text != DASH for row in texts(table).values() for text in row), table.header


# ---------------------------------------------------------------------------------------------------------------- units


@pytest.mark.parametrize(
    ("value", "base", "text"),
    [
        (0.000135, "kg", "135 mg"), (0.0407, "kg", "40.7 g"), (12.0, "kg", "12.0 kg"), (3500.0, "kg", "3.50 t"),
        (0.0505, "hours", "3.03 minutes"), (0.002, "hours", "7.20 seconds"), (0.00110, "kWh", "1.10 Wh"), (1234.0, "kWh", "1.23 MWh"),
        (0.000158, "PMACs", "158 GMACs"), (0.0, "kWh", "0 mWh"),
    ],
)  # fmt: skip
def test_a_quantity_is_in_the_unit_that_fits(value, base, text):
    assert units.quantity(value, base) == text


def test_a_spread_has_the_digits_of_its_figure():
    """Of equal runs too; of a single run there is none."""
    shown = [figure(2.0, spread=0.0), figure(82.0, spread=2.828), figure(1234.0, spread=1000.4), figure(0.0123, spread=0.1), figure(2.0)]
    assert [entry.text for entry in shown] == ["2.00 ± 0.00", "82.0 ± 2.8", "1,230 ± 1,000", "0.0123 ± 0.1000", "2.00"]


def test_no_difference_of_zero_has_a_sign_of_its_own():
    assert [signed(value) for value in (-1e-15, 0.0, -0.006)] == ["+0.00", "+0.00", "\N{MINUS SIGN}0.01"]


def test_all_columns_of_one_unit_are_in_the_same():
    """The largest figure chooses; what a paper prints stays as it is printed."""
    table = Table("", ["arm", "kWh GPU", "kWh", "kg CO2e, paper", "kg CO2e"], [
        [Entry("a"), figure(0.0002), figure(0.3), Entry("5.96"), figure(0.01)],
        [Entry("b"), Entry(), figure(0.1, 0.02), Entry("5.46"), figure(0.02, spread=0.001)],
    ])  # fmt: skip
    fitted = units.fit(table)
    assert fitted.header == ["arm", "Wh GPU", "Wh", "kg CO2e, paper", "g CO2e"]
    assert texts(fitted) == {"a": ["0.200", "300", "5.96", "10.0"], "b": [DASH, "100 + 20.0", "5.46", "20.0 ± 1.0"]}
    assert units.fit(fitted) == fitted


def test_a_difference_has_no_unit_of_the_name_of_the_arm_that_it_is_against(sweep) -> None:
    arms = [{"name": "scratch", "row": "ViT-M"}, {"name": "ssat", "row": "ViT-M + MAE"}]
    folder = sweep({"scratch": 80.0, "ssat": lambda at: 80.4 + 0.1 * at["seed"]}, {"seed": [0, 1, 2]}, columns=None, arms=arms)
    table = main_table.table(lay_out(collect(folder)), ["accuracy", "baseline", "params"])
    assert units.fit(table).header[2] == "against ViT-M" and units.fit(table).rows[1][2] == table.rows[1][2]
    assert table.rows[1][2].text.startswith("+0.50 ")


def test_pages_have_three_digits_and_the_spreadsheet_base_units(sweep, emissions_record):
    """A quarter of a minute: 1.04 Wh, 417 mg."""
    make = {("scratch", 0): {"records": [emissions_record(hours=1 / 240)]}}
    folder = sweep({"scratch": 80.0}, {"seed": [0]}, columns=None, make=make)
    page = report.write(folder)
    for text in (page.read_text(), page.with_name("report.md").read_text(), report.summary(folder, width=100)):
        assert "GPU-seconds" in text and "15.0" in text and "1.04" in text and "417" in text and "0.000417" not in text
    (line,) = csv.DictReader(StringIO(page.with_name("table.csv").read_text()))
    assert float(line["gpu_hours"]) == 1 / 240 and float(line["kg_co2e_tracked"]) == pytest.approx(0.25 / 240 * 0.4)


# ------------------------------------------------------------------------------------------------------------- terminal


@pytest.mark.parametrize("width", [40, 60, 80, 130])
def test_no_line_is_wider_than_the_terminal(grid_3, width):
    shown = [main_table.table(grid_3), differences.differences(grid_3), spending.cost(grid_3)]
    text = render.terminal(shown, ["A sentence of many words that is longer than a narrow terminal is wide, so that it breaks."], width)
    lines = text.splitlines()
    assert all(len(line) <= width for line in lines)
    whole = main_table.table(grid_3)
    lacking = len(whole.header) - len(render.narrowed(whole, width).header)
    assert (f"Comparison of arms ({lacking} more columns in report.html)" if lacking > 1 else "Comparison of arms") in " ".join(
        text.split()
    )
    assert any("78.57 ± 0.10 (3)" in line for line in lines), "no figure is broken"


def test_without_a_terminal_there_are_eighty_columns(table_3, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert cli.main(["report", str(table_3())]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:-1])) <= 80 and lines[-1].startswith("report: ")


# ---------------------------------------------------------------------------------------------------------------- LaTeX


def test_a_caption_says_once_what_cells_would_repeat(sweep):
    folder = sweep({"scratch": 80.0, "ssat": 82.0}, {"seed": [0, 1, 2]}, columns=None)
    text = latex.paper(lay_out(collect(folder)))
    assert r"\caption{Top-1 \% on the 10,000 test images of cifar10: mean $\pm$ std over 3 seeds; bold: the best mean and" in text
    assert r"costs of training one model.}\label{tab:study}" in text
    assert r"ssat & \textbf{82.00 $\pm$ 0.00} & +2.00 in each seed & 323 & 1.00 & 250 & 100 \\" in text
    assert r"CO\textsubscript{2}e" in text and "resizebox" not in text


def test_bold_are_those_that_the_seeds_tell_from_the_others(sweep):
    """ssat and sslft lead scratch by 10 and are apart by 0, 1 and 2 points: mean 1, standard error 0.577, t(2) = 4.303."""
    top1 = {"scratch": 80.0, "sslft": 90.0, "ssat": lambda at: 90.0 + at["seed"]}
    grid = lay_out(collect(sweep(top1, {"seed": [0, 1, 2]}, columns=None)))
    assert {row for row, _ in main_table.table(grid).best} == {1, 2}
    caption = latex.for_paper(grid)[1]
    assert "over 3 seeds, in brackets 95 % intervals (paired over seeds, not corrected for multiple comparisons); bold: " in caption
    near = lay_out(collect(sweep({"sslft": 90.0, "ssat": top1["ssat"]}, {"seed": [0, 1, 2]}, columns=None, baseline="sslft", name="near")))
    assert main_table.table(near).best == set()


def test_seeds_that_differ_stay_in_their_cells(sweep):
    make = {("ssat", 1): {"state": "failed"}}
    text = latex.paper(lay_out(collect(sweep({"scratch": 80.0, "ssat": 82.0}, {"seed": [0, 1]}, columns=None, make=make))))
    assert "80.00 $\\pm$ 0.00 (2)" in text and "82.00 (1 of 2)" in text and "over the seeds (their number)" in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex here (Debian: texlive-latex-base and texlive-latex-recommended)")
@pytest.mark.parametrize("columns", but_for_a_release([None, ["accuracy", "gmacs", "kwh"], list(main_table.COLUMNS)], [None]))
@pytest.mark.parametrize("kind", ["paper", "alone", "domains"])
def test_tables_fit_the_columns_of_a_paper(sweep, grid_3, tmp_path, kind, columns):
    """LaTeX's own two-column article, the narrowest of the usual ones: no overfull box, and nothing shrunk as a picture."""
    rows = ["Scratch, 45 epochs & a row of 100 %", "SSL+FT_x < λ ≥ Ω → é", "中 | ½ š"]
    long = [{"name": name, "row": row} for name, row in zip(("scratch", "sslft", "ssat"), rows, strict=True)]
    top1 = {"scratch": 80.0, "sslft": lambda at: 81.0 + at["seed"], "ssat": 90.0}
    makers = {
        "alone": lambda: sweep(top1, {"optim.lr": [1e-4, 1e-3], "seed": [0, 1]}, columns=None, arms=long),
        "domains": lambda: sweep(top1, {"data": ["clipart", "infograph", "painting", "quickdraw", "real", "sketch"], "seed": [0, 1]}),
    }
    grid = grid_3 if kind == "paper" else lay_out(collect(makers[kind]()))
    for name, text in {"paper": ARTICLE, "table": latex.paper(grid, columns), "energy": tex(statement(grid.sweep))}.items():
        (tmp_path / f"{name}.tex").write_text(text)
    done = subprocess.run(["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"], cwd=tmp_path, capture_output=True)
    log = (tmp_path / "paper.log").read_text(errors="replace")
    assert done.returncode == 0, log[-2000:]
    assert not re.findall(r"Overfull \\hbox.*", log) and "resizebox" not in (tmp_path / "table.tex").read_text()


# ----------------------------------------------------------------------------------------------------------- left out


def test_what_chosen_columns_leave_out_has_tables_of_its_own(sweep):
    """The difference from the baseline and what a model cost; the caption tells of what is there alone."""
    folder = sweep({"scratch": 80.0, "ssat": lambda at: 82.0 + at["seed"]}, {"seed": [0, 1, 2]}, columns=None)
    grid = lay_out(collect(folder))
    chosen = ["accuracy", "gmacs", "kwh"]
    caption = main_table.table(grid, chosen).caption
    assert "Against scratch" not in caption and caption.endswith("Costs are per model, over all its stages.")
    assert " Bold: the best mean and" in caption
    assert main_table.table(grid, ["accuracy"]).caption.endswith("Objectives of scratch: classify; ssat: classify + mae.")
    assert main_table.differences(grid) is None, "the usual columns say it"
    assert texts(main_table.differences(grid, chosen))["ssat"][0] == "+3.00 [+0.52, +5.48]"
    said = report.summary(folder, 200, chosen)
    assert "Difference from scratch" in said and re.search(r"^Cost *$", said, re.MULTILINE)
    assert "Difference from scratch" not in report.summary(folder, 200)
    text = report.write(folder, chosen).read_text()
    assert "<h3>Difference from scratch</h3>" in text
    assert "\n### Difference from scratch" in (folder / "report" / "report.md").read_text()


def test_an_interval_that_cannot_be_is_not_promised(sweep):
    """Of two seeds; and where an arm's seeds agree."""
    top1 = {"scratch": lambda at: 50.0 + 20 * at["seed"], "ssat": 50.0, "ssat_too": lambda at: 50.0 + 20 * at["seed"]}
    made = main_table.table(lay_out(collect(sweep(top1, {"seed": [0, 1]}, columns=None))))
    assert texts(made)["ssat"][1] == "\N{MINUS SIGN}10.00" and texts(made)["ssat_too"][1] == "same in each seed"
    assert render.sorted_by(made.rows[2][2]) == 0
    assert "Against scratch: the difference (2 seeds are too few for an interval)." in made.caption


def test_a_column_that_no_row_fills_is_said_to_be_left_out(sweep, capsys):
    """Such as the difference from a paper's numbers, where there is no paper: it is not the one from the baseline."""
    folder = sweep({"scratch": 80.0, "ssat": 82.0}, {"seed": [0]}, columns=None)
    report.write(folder, ["accuracy", "difference", "baseline", "paper"])
    notes = capsys.readouterr().err.splitlines()
    assert [re.match(r"note: --columns: (\w+) is left out, since no row has a figure for it", line)[1] for line in notes] == [
        "difference", "paper",
    ]  # fmt: skip
    assert notes[0].endswith("that from the baseline is called baseline)") and notes[1].endswith("for it")
