"""What `vitssl analyze` left in run folders, in a sweep's report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from matplotlib import colormaps

from vitssl import report
from vitssl.report.figures import analyses, masked_tokens, pictures, sheet
from vitssl.report.results.collect import collect
from vitssl.report.results.grid import lay_out

DIGITS = {"shards": "digits", "split": "test"}


def leave_attention(run: Path, means: list[float], tokens: tuple[str, ...] = ("cls",), size: int = 69) -> None:
    measured = {token: {"mean": means, "std": [0.001] * len(means), "share": means} for token in tokens}
    facts = {
        "images": 9,
        **DIGITS,
        "weights": "model",
        "checkpoint": "last.pt",
        "masked_tokens": len(means),
        "tokens": size,
        "blocks": {"1": {}, "12": measured, "9": {}},
    }
    (run / "analysis").mkdir(exist_ok=True)
    (run / "analysis" / "mask-attention.json").write_text(json.dumps(facts))


def leave_selections(run: Path, count: int) -> None:
    generator = np.random.default_rng(0)
    facts = {"images": 9, **DIGITS, "grid": [2, 2], "sizes": [4] * count, "locality": [1.0] * count, "locality_random": [0.5] * count}
    (run / "analysis").mkdir(exist_ok=True)
    facts |= {"selection": "soft", "weights": "teacher", "checkpoint": "last.pt", "iou": np.full((count, count), 0.25).tolist()}
    (run / "analysis" / "selections-teacher.json").write_text(json.dumps(facts))
    arrays = {"images": generator.integers(0, 256, (3, 8, 8, 3), dtype=np.uint8), "selected": np.ones((3, count, 4), dtype=bool)}
    np.savez_compressed(run / "analysis" / "selections-teacher.npz", **arrays, frequency=np.ones((count, 4)))


def leave_blocks(run: Path, by_block: list[float], place: str = "block", spectrum: tuple[float, ...] = (0.75, 0.25)) -> None:
    """What `attention` and `tokens` find; every number of a block is the same."""
    (run / "analysis").mkdir(exist_ok=True)
    facts = {"images": 9, **DIGITS, "weights": "model", "checkpoint": "last.pt"}
    heads = {str(i): {"distance": [x, x + 0.2], "entropy": [x, x], "received": [x, 2 - x]} for i, x in enumerate(by_block, 1)}
    (run / "analysis" / "attention.json").write_text(json.dumps(facts | {"distance_if_equal": 0.52, "blocks": heads}))
    blocks = {str(i): dict.fromkeys(("distance", "cosine_distance", "variance", "rank"), x) for i, x in enumerate(by_block, 1)}
    (run / "analysis" / "tokens.json").write_text(json.dumps(facts | {"place": place, "blocks": blocks, "spectrum": spectrum}))


def leave_pictures(run: Path, index: list[int], name: str, shards: str = "digits") -> None:
    """Of each image two maps that are compared with other arms' and one that is not."""
    (run / "analysis").mkdir(exist_ok=True)
    rows = [{"name": row, "said": [], "place": None, "compared": row != "head"} for row in ("class token", "patch", "head")]
    rows[1] |= {"place": [1, 0], "said": [f"seen {i}" for i in index]}
    facts = {
        "images": len(index),
        "weights": "model",
        "checkpoint": "last.pt",
        "shards": shards,
        "split": "test",
        "grid": [2, 3],
        "rows": rows,
    }
    facts |= {"index": index, "titles": [f"class {i}" for i in index]}
    (run / "analysis" / f"{name}.json").write_text(json.dumps(facts))
    maps_RSP = np.arange(3 * len(index) * 6, dtype=np.float32).reshape(3, len(index), 6)
    np.savez_compressed(run / "analysis" / f"{name}.npz", images=np.full((len(index), 4, 7, 3), 51, dtype=np.uint8), maps=maps_RSP)


@pytest.fixture
def masked(sweep):
    """Two arms, two columns and two seeds."""
    return lambda **more: sweep({"scratch": 80.0, "ssat": 81.0}, {"data": ["x", "y"], "seed": [0, 1]}, **more)


def lines(folder: Path) -> list[dict[str, list[float]]]:
    """By number of masked tokens and label; the shares are as the attention, which is how they were made up."""
    _, figure = analyses.draw(lay_out(collect(folder)))["mask-attention"]
    panels = [{c.get_label(): c.lines[0].get_ydata().tolist() for c in axis.containers} for axis in figure.axes]
    assert panels[: len(panels) // 2] == panels[len(panels) // 2 :]
    return panels[: len(panels) // 2]


def test_a_sweep_without_analyses_has_no_figures_of_them(masked):
    assert analyses.draw(lay_out(collect(masked()))) == {}


def test_seeds_are_averaged_and_numbers_of_masked_tokens_have_panels_of_their_own(masked):
    folder = masked()
    leave_attention(folder / "scratch-train-x-0", [0.1, 0.3])
    leave_attention(folder / "scratch-train-x-1", [0.3, 0.5])
    leave_attention(folder / "scratch-train-y-0", [0.7, 0.9])
    leave_attention(folder / "ssat-train-x-0", [0.1, 0.2, 0.3], ("cls", "reg1"))
    two, three = lines(folder)
    assert two == {"scratch, train, x": pytest.approx([0.2, 0.4]), "scratch, train, y": [0.7, 0.9]}
    assert three == {"ssat, train, x, cls": [0.1, 0.2, 0.3], "ssat, train, x, reg1": [0.1, 0.2, 0.3]}


def test_equal_attention_is_drawn_for_every_length_of_the_sequence(masked):
    folder = masked()
    leave_attention(folder / "scratch-train-x-0", [0.1, 0.3], size=200)
    leave_attention(folder / "ssat-train-y-0", [0.1, 0.3], size=100)
    _, figure = analyses.draw(lay_out(collect(folder)))["mask-attention"]
    drawn = [{line.get_label(): line.get_ydata()[0] for line in axis.lines if line.get_label().startswith("equal")} for axis in figure.axes]
    assert drawn == [{"equal attention to all 100 tokens": 0.01, "equal attention to all 200 tokens": 0.005}, {"equal shares": 0.5}]


def lines_of(figure, panel: int) -> dict[str, tuple[list[float], list[float]]]:
    """By label: where a panel's lines are."""
    data = {c.get_label(): c.lines[0] for c in figure.axes[panel].containers}
    return {label: (line.get_xdata().tolist(), pytest.approx(line.get_ydata().tolist())) for label, line in data.items()}


def test_lines_over_blocks_are_means_of_heads_and_of_seeds(masked):
    folder = masked()
    leave_blocks(folder / "scratch-train-x-0", [0.1, 0.2, 0.3])
    leave_blocks(folder / "scratch-train-x-1", [0.3, 0.4])  # what both have is drawn
    leave_blocks(folder / "ssat-train-x-0", [0.5] * 12)
    drawn = analyses.draw(lay_out(collect(folder)))
    scratch, ssat = "scratch, train, x", "ssat, train, x"
    attention, tokens = drawn["attention"][1], drawn["tokens"][1]
    assert lines_of(attention, 0) == {scratch: ([1, 2], [0.3, 0.4]), ssat: (list(range(1, 13)), [0.6] * 12)}
    bars = next(c for c in attention.axes[1].containers if c.get_label() == scratch).lines[2][0].get_segments()
    assert [float(np.ptp(bar[:, 1])) for bar in bars] == pytest.approx([2 * 0.2 / 2**0.5] * 2), "twice the deviation of two seeds"
    assert lines_of(attention, 1)[scratch] == ([1, 2], [0.2, 0.3])
    firsts, last = (lines_of(attention, panel)[scratch] for panel in (2, 4))
    assert firsts == ([0, 1], [0.2, 1.8]) and last == ([0, 1], [0.35, 1.65])  # the last of each: 0.3 and 0.4
    assert all(lines_of(tokens, panel)[scratch] == ([1, 2], [0.2, 0.3]) for panel in range(4))
    assert lines_of(tokens, 4)[ssat] == ([1, 2], [0.75, 0.25])
    assert drawn["tokens"][0].endswith("(fewer than images). Means over 1 or 2 seeds ± standard deviation.")
    for figure in (attention, tokens):
        (legend,) = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == [scratch, ssat]


def test_seeds_that_were_analysed_on_other_images_are_no_mean(masked):
    folder = masked()
    for seed, split in ((0, "test"), (1, "train")):
        leave_blocks(folder / f"scratch-train-x-{seed}", [0.2 + seed])
        for path in (folder / f"scratch-train-x-{seed}" / "analysis").glob("*.json"):
            path.write_text(json.dumps(json.loads(path.read_text()) | {"shards": "digits", "split": split}))
    tokens = analyses.draw(lay_out(collect(folder)))["tokens"][1]
    assert lines_of(tokens, 0) == {f"scratch, train, x, digits {split}": ([1], [y]) for split, y in (("test", 0.2), ("train", 1.2))}


def test_a_spectrum_that_is_not_finite_or_wide_is_drawn(masked):
    folder = masked()
    leave_blocks(folder / "scratch-train-x-0", [float("nan")], "stage", spectrum=(float("nan"),))
    leave_blocks(folder / "ssat-train-x-0", [0.5], "block", spectrum=(0.99, 0.009, 0.001, 1e-12))
    caption, figure = analyses.draw(lay_out(collect(folder)))["tokens"]
    assert lines_of(figure, 4)["ssat, train, x"][0] == [1, 2, 3] and figure.axes[4].get_yscale() == "log"
    assert caption.startswith("Patch tokens after each block or stage, ")


def test_a_run_that_several_rows_share_is_not_named_after_the_first(sweep):
    folder = sweep({"ssat": 80.0}, {"data": ["x", "y"], "masked_tokens": [1, 4], "seed": [0]})
    description = json.loads((folder / "sweep.json").read_text())
    for cell in description["cells"]:
        cell["stages"].insert(0, {"stage": "pretrain", "folder": "ssat-train-x-1-0"})
    (folder / "sweep.json").write_text(json.dumps(description))
    leave_attention(folder / "ssat-train-x-1-0", [0.1, 0.2])
    leave_attention(folder / "ssat-train-y-4-0", [0.3, 0.2])
    assert sorted(lines(folder)[0]) == ["ssat, masked_tokens 4, train, y", "ssat, pretrain"]


def test_a_run_that_several_columns_share_is_one_line_without_their_name(masked):
    folder = masked()
    description = json.loads((folder / "sweep.json").read_text())
    for cell in description["cells"]:
        cell["stages"].insert(0, {"stage": "pretrain", "folder": f"{cell['arm']}-train-x-0"})
    (folder / "sweep.json").write_text(json.dumps(description))
    leave_attention(folder / "ssat-train-x-0", [0.1, 0.2])
    assert list(lines(folder)[0]) == ["ssat, pretrain"]


def test_of_many_selections_the_first_are_shown(masked):
    folder = masked()
    leave_selections(folder / "scratch-train-x-0", 28)
    _, figure = analyses.draw(lay_out(collect(folder)))["selections-1"]
    assert len(figure.axes[0].images) == 1 + masked_tokens.MOST_ROWS + 1


def words(figure) -> list[str]:
    return [text.get_text().replace("\n", " ") for text in figure.axes[0].texts]


@pytest.mark.parametrize("name", ["maps", "grad-cam"])
def test_arms_that_saw_the_same_images_are_drawn_below_these(masked, name: str) -> None:
    folder = masked()
    for run in ("scratch-train-x-0", "scratch-train-x-1", "ssat-train-x-0"):
        leave_pictures(folder / run, [3, 1], name)
    leave_pictures(folder / "scratch-train-y-0", [3, 1], name, "others")
    leave_pictures(folder / "ssat-train-y-0", [3, 2], name)
    drawn = analyses.draw(lay_out(collect(folder)))
    assert list(drawn) == [f"{name}-1", f"{name}-2", f"{name}-3"]
    caption, both = drawn[f"{name}-1"]
    assert (
        "Images of digits, test. Networks of each arm's first seed." in caption
        and len(both.axes[0].images) == 1 + 2 + 2
        and len(both.axes[0].patches) == 2 * 2
    )
    of_arms = ["scratch, train, x: class token", "scratch, train, x: patch", "seen 3", "seen 1", "ssat, train, x: class token"]
    assert words(both) == ["image", "class 3", "class 1", *of_arms, "ssat, train, x: patch", "seen 3", "seen 1"]
    caption, alone = drawn[f"{name}-3"]
    assert caption.startswith("ssat, train, y. ") and len(alone.axes[0].images) == 1 + 3
    assert [word for word in words(alone) if " " not in word] == ["image", "patch", "head"]


def test_other_weights_are_lines_and_rows_of_their_own(masked) -> None:
    """Not seeds of the last ones."""
    folder = masked()
    leave_blocks(folder / "ssat-train-x-0", [0.1])
    leave_pictures(folder / "ssat-train-x-0", [3, 1], "maps")
    for name in ("tokens", "maps"):
        file = folder / "ssat-train-x-0" / "analysis" / f"{name}.json"
        (file.parent / f"{name}-best.json").write_text(json.dumps(json.loads(file.read_text()) | {"checkpoint": "best.pt"}))
    shutil.copy(folder / "ssat-train-x-0" / "analysis" / "maps.npz", folder / "ssat-train-x-0" / "analysis" / "maps-best.npz")
    drawn = analyses.draw(lay_out(collect(folder)))
    assert sorted(lines_of(drawn["tokens"][1], 0)) == ["ssat, train, x", "ssat, train, x, best.pt"]
    assert {word for word in words(drawn["maps-1"][1]) if word.endswith("token")} == {
        "ssat, train, x: class token", "ssat, train, x, best.pt: class token",
    }  # fmt: skip


def test_a_row_is_its_pictures_side_by_side() -> None:
    """Small ones as they are, large ones averaged; between them nothing."""
    small_HWC = np.arange(2 * 2 * 3, dtype=np.uint8).reshape(2, 2, 3)
    large_HWC = np.tile([[0.2], [0.6]], (160, 320))[..., None].repeat(3, axis=2)  # lines that an inch does not show
    drawn_HW4 = sheet._joined([small_HWC, large_HWC])
    assert drawn_HW4.shape == (160, 2 * 168, 4)
    assert (drawn_HW4[:, :160, :3] == small_HWC.repeat(80, axis=0).repeat(80, axis=1)).all()
    assert np.abs(drawn_HW4[:, 168:328, :3].astype(int) - round(255 * 0.4)).max() <= 1
    assert (drawn_HW4[:, 160:168] == 0).all() and (drawn_HW4[:, :160, 3] == 255).all()


def test_a_map_lies_over_the_grey_image_as_a_share_of_its_largest_value() -> None:
    """Also on a grid that does not divide the image."""
    image_HWC, map_hw = np.full((4, 7, 3), 51, dtype=np.uint8), np.array([[0.0, 1.0, 2.0], [0.5, 4.0, 0.0]])
    drawn = pictures.over(image_HWC, map_hw)
    for y, x in np.ndindex(4, 7):
        share = map_hw[y * 2 // 4, x * 3 // 7] / 4
        assert drawn[y, x] == pytest.approx(0.4 * 0.2 + 0.6 * np.array(colormaps["inferno"](share)[:3]))
    assert pictures.over(image_HWC, 0 * map_hw) == pytest.approx(np.full((4, 7, 3), 0.08) + 0.6 * np.array(colormaps["inferno"](0.0)[:3]))


@pytest.mark.release
@pytest.mark.usefixtures("all_files")
def test_selections_are_pictures_of_the_first_seed_of_every_arm(masked):
    folder = masked()
    for run in ("scratch-train-x-0", "scratch-train-x-1", "ssat-train-y-0"):
        leave_selections(folder / run, 4)
    drawn = analyses.draw(lay_out(collect(folder)))
    assert list(drawn) == ["selections-1", "selections-2"]
    caption, figure = drawn["selections-2"]
    assert caption.startswith("ssat, train, y, teacher: ") and "1.00 (0.50)" in caption and "next row's: 0.25" in caption
    assert len(figure.axes[0].images) == 1 + 4 + 1
    page = report.write(folder).read_text()
    assert (folder / "report" / "selections-2.png").is_file() and page.count("colour of the first token") == 4  # label and caption
    (folder / "ssat-train-y-0" / "analysis" / "selections-teacher.json").unlink()
    report.write(folder)
    assert not (folder / "report" / "selections-2.png").exists() and (folder / "report" / "selections-1.svg").is_file()
