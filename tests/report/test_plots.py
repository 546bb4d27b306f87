"""Plots: one colour for an arm everywhere, the Pareto front, axes, wall time, and how they stand in a page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from tests.report.conftest import STAGES
from tests.report.test_analyses import leave_attention
from vitssl import report
from vitssl.report.figures import analyses, curves, pareto, plots, style
from vitssl.report.pages import css
from vitssl.report.results.collect import RunFolder, collect
from vitssl.report.results.grid import lay_out

COLOURS = dict(zip(("Scratch", "SSL+FT", "SSAT"), style.COLOURS, strict=False))
ARMS = [{"name": "scratch", "row": "Scratch"}, {"name": "sslft", "row": "SSL+FT"}, {"name": "ssat", "row": "SSAT"}]
TOP1 = {"scratch": 80.0, "sslft": 81.0, "ssat": 82.0}


def colours_by_label(figure: Figure) -> dict[str, set[str]]:
    """Of what a legend or an error bar names."""
    found: dict[str, set[str]] = {}
    for axis in figure.axes:
        for container in axis.containers:
            found.setdefault(container.get_label(), set()).add(to_hex(container.lines[0].get_color()))
    for legend in (*figure.legends, *(axis.get_legend() for axis in figure.axes if axis.get_legend())):
        for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
            if hasattr(handle, "get_color"):
                found.setdefault(text.get_text(), set()).add(to_hex(handle.get_color()))
    return found


@pytest.fixture
def unfinished(sweep):
    """Two columns; the second arm has no result, and no run at all in the second column."""
    make = {("sslft", "x", 0): {"state": "failed"}, ("sslft", "y", 0): {"skip": True}}
    return sweep(TOP1, {"data": ["x", "y"], "seed": [0]}, arms=ARMS, make=make)


def test_an_arm_has_one_colour_in_every_plot(unfinished):
    """That another arm is missing from a plot changes nothing; in analyses too."""
    leave_attention(unfinished / "ssat-train-x-0", [0.1, 0.3])
    grid = lay_out(collect(unfinished))
    drawn = plots.draw(grid) | analyses.draw(grid)
    for axis in drawn["accuracy_vs_macs"][1].axes:
        assert [to_hex(c.lines[0].get_color()) for c in axis.containers] == [COLOURS["Scratch"], COLOURS["SSAT"]]
    curves = colours_by_label(drawn["learning_curves"][1])
    assert curves == {name: {colour} for name, colour in COLOURS.items()}
    bars = {axis.get_title(): [to_hex(c[0].get_facecolor()) for c in axis.containers] for axis in drawn["energy_by_component"][1].axes}
    assert bars == {name: [*[COLOURS["Scratch"]] * 3, *[COLOURS["SSAT"]] * 3] for name in ("x", "y")}
    assert colours_by_label(drawn["mask-attention"][1])["SSAT, train, x"] == {COLOURS["SSAT"]}


def test_an_arms_further_values_keep_its_colour_and_differ_in_marker(sweep):
    grid = lay_out(collect(sweep({"scratch": 80.0, "ssat": 82.0}, {"loop.epochs": [1, 2, 3], "seed": [0]}, columns=None)))
    looks = [style.look(grid, row) for row in grid.rows]
    assert [look["color"] for look in looks] == [style.COLOURS[0]] * 3 + [style.COLOURS[1]] * 3
    assert len({look["marker"] for look in looks[:3]}) == 3 and [look["alpha"] for look in looks[:3]] == sorted(
        [look["alpha"] for look in looks[:3]], reverse=True
    )
    _, figure = plots.draw(grid)["accuracy_by_axis"]
    assert colours_by_label(figure) == {"scratch": {style.COLOURS[0]}, "ssat": {style.COLOURS[1]}}


def test_the_values_of_a_single_arm_have_colours_of_their_own(sweep):
    grid = lay_out(collect(sweep({"ssat": 82.0}, {"pretrain": ["a", "b"], "seed": [0]}, columns=None, baseline=None)))
    assert [style.look(grid, row)["color"] for row in grid.rows] == list(style.COLOURS[:2])


# --------------------------------------------------------------------------------------------------------------- Pareto


@pytest.mark.parametrize(
    ("centres", "lower", "expected"),
    [
        ([(1, 80), (2, 79), (3, 82), (2.5, 81)], False, [(1, 80), (2.5, 81), (3, 82)]),
        ([(1, 80), (1, 81), (2, 81)], False, [(1, 81)]),  # as dear and worse; dearer and as good
        ([(1, 0.9), (2, 0.5), (3, 0.6)], True, [(1, 0.9), (2, 0.5)]),
        ([(1, 80), (1.001, 82), (2, 82)], False, [(1.001, 82)]),  # of equal cost but for whole epochs
        ([], False, []),
    ],
)
def test_the_front_is_what_nothing_beats(centres, lower, expected):
    assert pareto.front(centres, lower) == expected


def test_the_front_is_joined_and_marked(sweep, emissions_record):
    """By MACs scratch is cheaper and worse than ssat; sslft of half the cost is the worst, and the cheapest. All are on the front."""
    _, figure = plots.draw(lay_out(collect(sweep({**TOP1, "sslft": 70.0}, {"seed": [0, 1]}, columns=None, arms=ARMS))))["accuracy_vs_macs"]
    (axis,) = figure.axes
    (rings,) = (line for line in axis.lines if line.get_label() == "Pareto front")
    forward = [0.5 * (1.258219584 + 0.4256), 1.258219584, 1.258219584 + 0.4256]
    cost = [3 * 1000 * 64 * gmacs for gmacs in forward]
    assert rings.get_xdata().tolist() == pytest.approx([gmacs / 1e3 for gmacs in cost])
    assert rings.get_ydata().tolist() == [70.0, 80.0, 82.0]
    assert axis.get_xlabel() == "TMACs of training" and set(colours_by_label(figure)) >= {"Scratch", "SSL+FT", "SSAT"}


def test_arms_of_a_single_seed_have_no_front(sweep):
    caption, figure = plots.draw(lay_out(collect(sweep(TOP1, {"seed": [0]}, columns=None))))["accuracy_vs_macs"]
    assert caption.endswith("The Pareto front is not marked, since a single seed does not tell arms apart.")
    assert "Pareto front" not in {line.get_label() for line in figure.axes[0].lines}


def test_measured_costs_that_may_not_be_believed_have_no_front(sweep, emissions_record):
    """Of two equal runs one took twice as long; the multiply-adds are exact all the same."""
    make = {("ssat", 1): {"records": [emissions_record(hours=2)]}}
    drawn = plots.draw(lay_out(collect(sweep({"scratch": 80.0, "ssat": 82.0}, {"seed": [0, 1]}, columns=None, make=make))))
    fronts = {name: "Pareto front" in {line.get_label() for line in drawn[name][1].axes[0].lines} for name in pareto.COSTS}
    assert fronts == {"accuracy_vs_macs": True, "accuracy_vs_energy": False, "accuracy_vs_hours": False}
    assert drawn["accuracy_vs_hours"][0].endswith("not marked, since one run of ssat took 2.0 times as long as an equal one.")


def test_costs_that_span_decades_are_drawn_over_a_logarithm(sweep, emissions_record):
    make = {("ssat", 0): {"records": [emissions_record(hours=40)]}, ("scratch", 0): {"records": [emissions_record(hours=0.5)]}}
    drawn = plots.draw(lay_out(collect(sweep({"scratch": 80.0, "ssat": 82.0}, {"seed": [0]}, columns=None, make=make))))
    assert drawn["accuracy_vs_energy"][1].axes[0].get_xscale() == "log"
    assert drawn["accuracy_vs_macs"][1].axes[0].get_xscale() == "linear"


@pytest.mark.parametrize(
    ("name", "values", "scale"),
    [("optim.lr", [1e-3, 2e-3], "log"), ("loop.epochs", [10, 20], "linear"), ("data.images", [100, 5000], "log")],
)
def test_learning_rates_and_wide_axes_are_logarithmic(sweep, name, values, scale):
    _, figure = plots.draw(lay_out(collect(sweep({"ssat": 80.0}, {name: values, "seed": [0]}, columns=None, baseline=None))))[
        "accuracy_by_axis"
    ]
    assert figure.axes[0].get_xscale() == scale and figure.axes[0].get_xlabel() == name.split(".")[-1]


@pytest.mark.parametrize(("without", "panels"), [("x", ["y"]), ("xy", None)])
def test_an_axis_has_lines_only_where_there_are_scores(sweep, without, panels):
    axes = {"data": ["x", "y"], "optim.lr": [1e-3, 2e-3], "seed": [0]}
    make = {("ssat", data, lr, 0): {"state": "failed"} for data in without for lr in axes["optim.lr"]}
    plot = plots.draw(lay_out(collect(sweep({"ssat": 80.0}, axes, baseline=None, make=make)))).get("accuracy_by_axis")
    assert (plot and [axis.get_title() for axis in plot[1].axes]) == panels


@pytest.mark.parametrize(("hours", "ticks"), [(0.05, {"0.05", "0.1", "0.2", "1"}), (0.001, {"0.001", "0.01", "0.1", "1"})])
def test_a_logarithm_has_plain_figures(sweep, emissions_record, tmp_path, hours, ticks):
    make = {("scratch", 0): {"records": [emissions_record(hours=hours)]}, ("ssat", 0): {"records": [emissions_record(hours=2)]}}
    drawn = plots.draw(lay_out(collect(sweep({"scratch": 80.0, "ssat": 82.0}, {"seed": [0]}, columns=None, make=make))))
    shown = set(re.findall(r">([^<>]+)</text>", style.save(drawn["accuracy_vs_hours"][1], tmp_path / "hours")))
    assert ticks <= shown and not any("$" in text for text in shown)


def test_names_are_no_formulas(sweep, tmp_path):
    """Two dollars would be one, and one that is no formula an error."""
    names = ["a$b$", "x_1^2", r"$\frac{$"]
    stages, top1 = {name.split("_")[0]: STAGES["scratch"] for name in names}, {name: 80.0 + i for i, name in enumerate(names)}
    folder = sweep(top1, {"seed": [0, 1]}, columns=None, baseline=None, stages=stages)
    drawn = plots.draw(lay_out(collect(folder)))
    for name in ("accuracy_vs_macs", "learning_curves", "energy_by_component"):
        shown = re.findall(r">([^<>]+)</text>", style.save(drawn[name][1], tmp_path / name))
        assert set(names) <= set(shown), name


# ------------------------------------------------------------------------------------------------------------ wall time


def timed(run: Path, attempts: list[tuple[float, list[int]]]) -> None:
    """Events of attempts that begin at a time and make an epoch every 60 s; 5 s pass before the first."""
    (start,) = [e for e in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if e["event"] == "start"][:1]
    events = []
    for number, (began, epochs) in enumerate(attempts):
        events.append(start | {"attempt": number, "time": began, "step": 10 * (epochs[0] - 1)})
        for i, epoch in enumerate(epochs, start=1):
            at = {"step": 10 * epoch, "epoch": epoch, "time": began + 5 + 60 * i}
            events += [
                {"event": "train", "terms": {"classify": 1.0 / epoch}, **at},
                {"event": "eval", "test": {"top1": 10.0 * epoch}, **at},
            ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def test_curves_over_wall_time_leave_out_what_lies_between_attempts(sweep):
    """Two epochs, a day in a queue, two more: 65, 125, then 5 + 60 and 5 + 120 s later, in minutes."""
    folder = sweep({"scratch": 80.0}, {"seed": [0]}, columns=None)
    timed(folder / "scratch-train-0", [(1000.0, [1, 2]), (87_400.0, [3, 4])])
    caption, figure = plots.draw(lay_out(collect(folder)))["learning_curves_time"]
    assert figure.axes[0].get_xlabel() == "minutes of training, over all stages" and "all attempts" in caption
    assert figure.axes[0].lines[0].get_xdata().tolist() == pytest.approx([65 / 60, 125 / 60, (125 + 65) / 60, (125 + 125) / 60])


def test_a_chains_stages_follow_each_other_in_time(sweep):
    folder = sweep({"sslft": 80.0}, {"seed": [0]}, columns=None, baseline=None)
    timed(folder / "sslft-pretrain-0", [(0.0, [1, 2])])
    timed(folder / "sslft-finetune-0", [(5000.0, [1])])
    _, figure = plots.draw(lay_out(collect(folder)))["learning_curves_time"]
    assert figure.axes[0].lines[-1].get_xdata().tolist() == pytest.approx([(125 + 65) / 60])


@pytest.mark.parametrize(("known", "drawn"), [(3, "macro F1, %"), (1, "top-1, %")])
def test_curves_are_of_the_sweeps_metric_where_it_is_known_of_the_epochs(known, drawn):
    """What takes all predictions is computed during training only where it chooses the epoch."""
    metrics = [{"top1": 50.0} | ({"macro_f1": 40.0} if i >= 3 - known else {}) for i in range(3)]
    run = RunFolder(Path(), "done", events=[{"event": "eval", "step": i, "test": found} for i, found in enumerate(metrics)])
    assert list(curves._curves_of([run], "macro_f1")) == [f"test {drawn}"]


def test_runs_without_times_have_no_curves_over_it(sweep):
    assert "learning_curves_time" not in plots.draw(lay_out(collect(sweep({"scratch": 80.0}, {"seed": [0]}, columns=None))))


# ----------------------------------------------------------------------------------------------------------- in the page


@pytest.mark.usefixtures("all_files")
def test_plots_take_the_pages_colours_and_files_stand_on_white(sweep):
    page = report.write(sweep(TOP1, {"seed": [0, 1]}, columns=None, arms=ARMS))
    inline = re.search(r"<svg.*?</svg>", page.read_text(), re.S)[0]
    assert "var(--arm-0)" in inline and "var(--ink)" in inline and "var(--sans)" in inline
    assert not any(colour in inline for colour in (*style.COLOURS, style.INK, style.PAPER))
    alone = (page.parent / "accuracy_vs_macs.svg").read_text()
    assert style.COLOURS[0] in alone and style.PAPER in alone and "var(" not in alone
    assert (page.parent / "accuracy_vs_macs.pdf").read_bytes().startswith(b"%PDF")
    assert len(inline) < 40_000


def test_every_colour_has_another_for_a_dark_page():
    dark = css.CSS.split("prefers-color-scheme: dark")[1]
    for i, (light, colour) in enumerate(zip(style.COLOURS, style.DARK_COLOURS, strict=True)):
        assert f"--arm-{i}: {light};" in css.CSS and f"--arm-{i}: {colour};" in dark
    assert len({*style.COLOURS, *style.DARK_COLOURS}) == 2 * len(style.COLOURS)
    used = set(style.THEME.values()) - {f"--arm-{i}" for i in range(len(style.COLOURS))}
    assert all(f"{name}:" in css.CSS and f"{name}:" in dark for name in used)


def test_curves_are_over_images_where_an_epoch_is_of_more_of_them_in_one_arm(sweep):
    """Sixty images an epoch against thirty: after all epochs both are at what they saw."""
    folder = sweep({"scratch": 80.0, "ssat": 82.0}, {"seed": [0]}, columns=None)
    assert curves.over_images(lay_out(collect(folder))) is None
    path = folder / "ssat-train-0" / "job.json"
    job = json.loads(path.read_text())
    path.write_text(json.dumps(job | {"data": job["data"] | {"train_images": 4000}}))
    grid = lay_out(collect(folder))
    made = curves.over_images(grid)
    assert made is not None and made[1].axes[0].get_xlabel() == "thousand images seen, over all stages"
    steps = {row.arm.name: [event["step"] for event in row.cells[0].last.events_of("train")] for row in grid.rows}
    batch = grid.rows[0].cells[0].last.run.optim.batch_size
    drawn = [list(line.get_xdata()) for axis in made[1].axes for line in axis.lines if len(line.get_xdata()) == len(steps["ssat"])]
    assert [step * batch / 1000 for step in steps["ssat"]] in drawn
