"""Analyses against what can be counted by hand, and the files that they leave."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import vitssl
from tests.conftest import but_for_a_release
from vitssl import cli
from vitssl.analysis import KINDS, attention, selections, tokens
from vitssl.analysis.base import DrawnImages
from vitssl.config import ConfigError
from vitssl.trained import Trained

MASKED = {"backbone.masked_tokens": {"count": 3, "blocks": 1}, "backbone.patch_size": 1}  # 64 patches of the 8-px digits


BARE = {f"backbone.{name}": None for name in ("embed_dim", "depth", "num_heads", "patch_size")}
CONVOLUTIONS = BARE | {"backbone.name": "resnet8", "objectives.classify.pool": "mean"}


@pytest.fixture
def trained(untrained_run):
    """Loads a run with masked tokens and random weights."""
    return lambda *layers: vitssl.load(untrained_run(MASKED, *layers))


def images(trained: Trained, count: int = 3) -> Tensor:
    size = trained.run.data.image_size
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))


def as_sets(*rows: str) -> Tensor:
    """A set of the patches that are marked, (1, 1, N)."""
    return torch.tensor([[mark == "#" for row in rows for mark in row]])[None]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (("####", "####"), 1.0),
        (("#.#.", ".#.#"), 0.0),  # a corner is no neighbour
        (("#..#", "#..."), 2 / 3),
        (("...#", "#..."), 0.0),  # nor is the other end of the row before
    ],
)
def test_locality_by_hand(rows: tuple[str, ...], expected: float) -> None:
    assert selections.locality(as_sets(*rows), (2, 4)).item() == pytest.approx(expected)


def test_intersection_over_union_is_that_of_sets() -> None:
    selected_SJN = torch.rand(2, 3, 10, generator=torch.Generator().manual_seed(0)) < 0.5
    overlap_SJJ = selections.iou(selected_SJN)
    for s, i, j in itertools.product(range(2), range(3), range(3)):
        one, other = (set(selected_SJN[s, k].nonzero().flatten().tolist()) for k in (i, j))
        assert overlap_SJJ[s, i, j].item() == pytest.approx(len(one & other) / len(one | other))


@pytest.mark.parametrize("how", [{}, {"blocks": 2}, {"selection": "hard"}, {"scores": "normed", "later_blocks": "carry"}])
def test_the_patches_of_highest_score_are_shown(trained, digits, how: dict) -> None:
    network = trained({"backbone.masked_tokens": how})
    drawn = DrawnImages(network, count=70)
    numbers = selections.measure(network, drawn)
    assert numbers.facts["sizes"] == [22, 43, 64] == numbers.arrays["selected"].sum(-1)[0].tolist()
    assert numbers.arrays["selected"][:, -1].all() and numbers.facts["locality"][-1] == numbers.facts["locality_random"][-1] == 1
    assert np.allclose(np.diag(numbers.facts["iou"]), 1) and numbers.arrays["frequency"].sum(1) == pytest.approx([22, 43, 64])
    (first, *_), backbone = drawn.batches(), network.model.backbone
    if how.get("blocks") == 2:  # before the first block
        tokens_BND = backbone.embed(first.views["main"]).tokens
    else:
        tokens_BND = network.encode(first.views["main"], (0,)).intermediates[0].tokens_BND
    if "scores" in how:
        tokens_BND = torch.nn.functional.layer_norm(tokens_BND, (32,))
    query_JD = next(iter(backbone.inserted.values())).query_JD
    for image, j in itertools.product(range(3), range(3)):
        scores_N = tokens_BND[image] @ query_JD[j]
        highest = set(scores_N.argsort(descending=True)[: numbers.facts["sizes"][j]].tolist())
        assert set(numbers.arrays["selected"][image, j].nonzero()[0].tolist()) == highest


def test_shards_that_were_built_anew_are_refused(trained) -> None:
    network = trained()
    network.run.data.sha256 = "0" * 64
    with pytest.raises(ConfigError, match=r"is not what .* was trained on"):
        DrawnImages(network)


def test_pictures_are_the_images_that_were_drawn(trained, digits) -> None:
    from vitssl.data.index import load_index, read_image

    network = trained()
    numbers = selections.measure(network, DrawnImages(network, count=70, split="train", seed=3))
    index = load_index(digits)
    assert numbers.arrays["images"].shape == (10, 8, 8, 3) and len(set(numbers.arrays["index"])) == 10
    for picture, position in zip(numbers.arrays["images"], numbers.arrays["index"], strict=True):
        with (digits / index.shards[index.shard[position]]["name"]).open("rb") as shard:
            assert np.abs(picture.astype(int) - read_image(shard.fileno(), index, position)).max() <= 1


@pytest.mark.parametrize("backbone", [{}, {"backbone.attention": "local"}, {"backbone.reg_tokens": 1}])
def test_recorded_attention_is_the_softmax_of_queries_and_keys(trained, backbone: dict) -> None:
    network = trained(backbone)
    vit, images_BCHW = network.model.backbone, images(network)
    inputs: list[Tensor] = []
    handle = vit.blocks[1].attn.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    with attention.recorded(vit, [1]) as maps, torch.no_grad():
        features = network.encode(images_BCHW)
    handle.remove()
    attn = vit.blocks[1].attn
    q, k, _ = attn.qkv(inputs[0]).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
    logits_BhTT = (q * torch.as_tensor(attn.scale).reshape(-1, 1, 1)) @ k.transpose(-2, -1)
    if backbone.get("backbone.attention") == "local":
        logits_BhTT.diagonal(dim1=-2, dim2=-1).fill_(-torch.inf)
    torch.testing.assert_close(maps[1], logits_BhTT.softmax(-1), atol=1e-6, rtol=1e-4)
    assert list(maps) == [1] and all(part.fused_attn for part in vit.modules() if hasattr(part, "fused_attn"))
    with torch.no_grad():
        torch.testing.assert_close(network.encode(images_BCHW).prefix_BPD, features.prefix_BPD, atol=1e-5, rtol=1e-4)


def test_equal_attention_gives_every_masked_token_its_share(trained) -> None:
    """1 / (1 + N + J) over all tokens, 1 / J over the masked ones."""
    network = trained({"backbone.masked_tokens.blocks": 2, "backbone.reg_tokens": 1})
    for block in network.model.backbone.blocks:
        torch.nn.init.zeros_(block.attn.qkv.weight)
        torch.nn.init.zeros_(block.attn.qkv.bias)
    facts = attention.to_masked_tokens(network, DrawnImages(network, count=70)).facts
    assert facts["tokens"] == 2 + 64 + 3 and list(facts["blocks"]) == ["1", "2"]
    for block in facts["blocks"].values():
        assert list(block) == ["cls", "reg1"]
        for measured in block.values():
            assert measured["mean"] == pytest.approx([1 / 69] * 3) and measured["share"] == pytest.approx([1 / 3] * 3)
            assert measured["std"] == pytest.approx([0] * 3, abs=1e-7)


def test_means_and_deviations_are_those_of_all_images_at_once(trained) -> None:
    network = trained()
    drawn = DrawnImages(network, count=150)  # three passes
    (facts,) = attention.to_masked_tokens(network, drawn).facts["blocks"].values()
    rows = []
    with attention.recorded(network.model.backbone, [1]) as maps, torch.no_grad():
        for batch in drawn.batches():
            network.encode(batch.views["main"])
            rows.append(maps[1][:, :, 0, -3:])
    rows_ShJ = torch.cat(rows).double()
    assert facts["cls"]["mean"] == pytest.approx(rows_ShJ.mean((0, 1)).tolist())
    assert facts["cls"]["std"] == pytest.approx(rows_ShJ.mean(1).std(0).tolist(), rel=1e-4)
    assert facts["cls"]["share"] == pytest.approx((rows_ShJ / rows_ShJ.sum(-1, keepdim=True)).mean((0, 1)).tolist())


@pytest.mark.parametrize(("side", "expected"), [(14, 7.280764), (16, 8.326075), (8, 4.136483), (7, 3.609465), (2, (2 + 2**0.5) / 4)])
def test_equal_attention_has_the_mean_distance_of_a_grid(side: int, expected: float) -> None:
    """In patches; the class token's share, which is left out, changes nothing."""
    map_BhTT = torch.full((1, 2, side**2 + 1, side**2 + 1), 1 / (side**2 + 1))
    distance_Bh, entropy_Bh, received_BT = attention.summarize_map(map_BhTT, 1, attention.patch_distances((side, side)))
    assert (side * distance_Bh).tolist() == [pytest.approx([expected] * 2, rel=1e-5)]
    assert entropy_Bh.tolist() == [pytest.approx([1, 1])] and received_BT.tolist() == [pytest.approx([1.0] * (side**2 + 1))]


def test_attention_to_one_token_alone_by_hand() -> None:
    itself, neighbour, first = torch.eye(4), torch.eye(4)[[1, 0, 3, 2]], torch.eye(4)[[0] * 4]
    distance_Bh, entropy_Bh, received_BT = attention.summarize_map(
        torch.stack([itself, neighbour, first])[None], 0, attention.patch_distances((2, 2))
    )
    assert distance_Bh.tolist() == [pytest.approx([0, 0.5, (0 + 0.5 + 0.5 + 0.5**0.5) / 4])] and entropy_Bh.tolist() == [[0, 0, 0]]
    assert received_BT.tolist() == [pytest.approx([2, 2 / 3, 2 / 3, 2 / 3])]


@pytest.mark.parametrize("backbone", [{"masked_tokens": None}, {}, {"attention": "local", "reg_tokens": 1}])
def test_attention_is_that_of_slow_loops(trained, backbone: dict) -> None:
    """Of 70 images, in two passes."""
    network = trained({"backbone": backbone, "backbone.patch_size": 4})
    vit, drawn = network.model.backbone, DrawnImages(network, count=70)
    with attention.recorded(vit, [0, 1]) as maps, torch.no_grad():
        network.encode(torch.cat([batch.views["main"] for batch in drawn.batches()]))
    facts, places = attention.measure(network, drawn).facts, list(itertools.product((0, 0.5), (0, 0.5)))
    assert facts["distance_if_equal"] == pytest.approx((2 + 2**0.5) / 8)
    for i in range(2):
        rows, P = maps[i].double(), vit.num_prefix_tokens
        far, even = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
        for s, h, q in itertools.product(range(70), range(2), range(4)):
            weights = rows[s, h, P + q, P : P + 4] / rows[s, h, P + q, P : P + 4].sum()
            far[h] += sum(w * np.hypot(*np.subtract(places[q], places[k])) for k, w in enumerate(weights.tolist())) / 280
            even[h] -= sum(w * np.log(w) for w in weights.tolist() if w) / np.log(4) / 280
        assert facts["blocks"][str(i + 1)]["distance"] == pytest.approx(far.tolist(), rel=1e-4)
        assert facts["blocks"][str(i + 1)]["entropy"] == pytest.approx(even.tolist(), rel=1e-4)
        assert facts["blocks"][str(i + 1)]["received"] == pytest.approx(rows.sum(2).mean((0, 1)).tolist(), rel=1e-4)
        assert sum(facts["blocks"][str(i + 1)]["received"]) == pytest.approx(rows.shape[-1])


def test_distances_of_a_grid_that_is_no_square() -> None:
    assert attention.patch_distances((1, 4))[0].tolist() == [0, 0.25, 0.5, 0.75] and attention.patch_distances((2, 4))[0, 4].item() == 0.5


def test_tokens_are_measured_as_by_slow_loops() -> None:
    tokens_BND = torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(0))
    measured_3B = tokens.token_distances(tokens_BND)
    for b in range(3):
        pairs = list(itertools.combinations(tokens_BND[b].double(), 2))
        distance = np.mean([(one - other).norm().item() for one, other in pairs])
        cosine = np.mean([1 - (one @ other / one.norm() / other.norm()).item() for one, other in pairs])
        variance = np.mean([np.var(channel, ddof=1) for channel in tokens_BND[b].double().T.tolist()])
        assert measured_3B[:, b].tolist() == pytest.approx([distance, cosine, variance], rel=1e-5)
        squares = np.mean([(one - other).square().sum().item() for one, other in pairs])
        assert squares == pytest.approx(2 * 5 * variance), "of squares the distance is the variance"


def test_closed_forms_of_tokens() -> None:
    """Normal vectors of width 192 are 2 Gamma(193 / 2) / Gamma(96) apart; equal ones 0, wherever they are."""
    drawn_BND = torch.randn(20, 64, 192, generator=torch.Generator().manual_seed(0))
    assert tokens.token_distances(drawn_BND).mean(1).tolist() == pytest.approx([19.5704, 1, 1], rel=0.01)
    assert tokens.token_distances(drawn_BND[:, :1].expand(-1, 64, -1)).tolist() == [pytest.approx([0.0] * 20, abs=1e-6)] * 3
    assert tokens.token_distances(3 * drawn_BND)[2].tolist() == pytest.approx((9 * tokens.token_distances(drawn_BND)[2]).tolist())


def test_the_spectrum_is_that_of_the_covariance() -> None:
    vectors_SD = 5 + torch.randn(50, 8, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 9)
    moments = tokens.Moments(8)
    for part in vectors_SD.split(20):
        moments.add(part)
    values_D = np.linalg.eigvalsh(np.cov(vectors_SD.double().numpy().T))[::-1]
    assert moments.spectrum().tolist() == pytest.approx((values_D / values_D.sum()).tolist())
    assert tokens.effective_rank(torch.tensor([0.25] * 4 + [0.0])) == pytest.approx(4)
    same = tokens.Moments(192)  # up to the rounding of a network's float32
    same.add(3 + 1e-6 * torch.randn(1000, 192))
    assert tokens.effective_rank(same.spectrum()) == 0 and not same.spectrum().any()
    one = tokens.Moments(8)
    one.add(torch.randn(30, 1) * torch.arange(8))
    assert tokens.effective_rank(one.spectrum()) == pytest.approx(1, abs=1e-6)
    drawn = tokens.Moments(192)
    drawn.add(torch.randn(5000, 192, generator=torch.Generator().manual_seed(0)))
    assert tokens.effective_rank(drawn.spectrum()) == pytest.approx(188.3, rel=0.005)


@pytest.mark.parametrize(("layer", "place", "widths"), [(MASKED, "block", [32, 32]), (CONVOLUTIONS, "stage", [16, 32, 64])])
def test_tokens_of_every_place_that_has_several(untrained_run, layer: dict, place: str, widths: list[int]) -> None:
    network = vitssl.load(untrained_run(layer))
    drawn = DrawnImages(network, count=70)
    facts = tokens.measure(network, drawn).facts
    assert facts["place"] == place and list(facts["blocks"]) == ["1", "2", "3"][: len(widths)]
    with torch.no_grad():
        found = network.encode(torch.cat([batch.views["main"] for batch in drawn.batches()]), tuple(range(len(widths)))).intermediates
    for i, width in enumerate(widths):
        tokens_BND = found[i].tokens_BND
        assert tokens_BND.shape[::2] == (70, width)
        measured = dict(zip(tokens.NAMES, tokens.token_distances(tokens_BND).mean(1).tolist(), strict=True))
        values_D = np.linalg.eigvalsh(np.cov(tokens_BND.mean(1).double().numpy().T)).clip(0)
        shares_D = values_D[values_D > 0] / values_D.sum()
        assert facts["blocks"][str(i + 1)] == pytest.approx(measured | {"rank": np.exp(-(shares_D * np.log(shares_D)).sum())}, rel=1e-3)
    assert facts["spectrum"][:3] == pytest.approx(values_D[::-1][:3] / values_D.sum(), rel=1e-3)


@pytest.mark.parametrize("name", ["attention", "tokens"])
def test_a_network_that_diverged_is_one_line(untrained_run, name: str, capsys) -> None:
    folder = untrained_run(MASKED)
    saved = torch.load(folder / "last.pt")
    saved["model"]["backbone.blocks.0.mlp.fc1.weight"].mul_(1e30)
    torch.save(saved, folder / "last.pt")
    assert cli.main(["analyze", str(folder), name, "--images", "5"]) == 2
    assert re.search(r"(?m)^error: .*/run: the (features|attention weights) of block \d are not finite\n$", capsys.readouterr().err)


def test_a_sample_is_drawn_by_its_seed(trained) -> None:
    network = trained()
    one, again, other = (DrawnImages(network, count=20, seed=seed).positions.tolist() for seed in (0, 0, 1))
    assert one == again != other and len(set(one)) == 20
    assert len(DrawnImages(network, count=1000).positions) == 450
    seen = torch.cat([batch.index_B for batch in DrawnImages(network, count=70).batches()])
    assert seen.tolist() == DrawnImages(network, count=70).positions.tolist()


def test_of_a_run_with_folds_it_is_of_its_own_test_images(trained) -> None:
    network = trained({"data.folds": 5, "seed": 2})
    _, parts = network.data()
    drawn = DrawnImages(network, count=1000)
    assert sorted(drawn.positions) == parts.test.tolist() and 0 < len(parts.test) < 450
    assert drawn.facts()["split"] == "the run's fold"
    assert len(DrawnImages(network, count=1000, split="test").positions) == 450


@pytest.mark.parametrize("name", but_for_a_release(KINDS, ("attention", "grad-cam")))
def test_the_command_leaves_numbers_and_figures(untrained_run, name: str, capsys) -> None:
    folder = untrained_run(MASKED)
    for _ in range(2):  # a second run replaces the first one's
        assert cli.main(["analyze", str(folder), name, "--images", "12"]) == 0
        assert capsys.readouterr().out == f"{folder}/analysis/{name}.png\n"
    assert json.loads((folder / "analysis" / f"{name}.json").read_text())["images"] == 12
    assert (folder / "analysis" / f"{name}.svg").read_text().startswith("<svg")


def test_a_teachers_analysis_stands_beside_the_models(untrained_run, capsys) -> None:
    folder = untrained_run(MASKED, {"objectives": {"classify": None, "dino": {"local": None, "out_dim": 8}}, "data.views.second": {}})
    for weights in ("teacher", "model"):
        assert cli.main(["analyze", str(folder), "mask-attention", "--images", "5", "--weights", weights]) == 0
    facts = {path.stem: json.loads(path.read_text())["weights"] for path in (folder / "analysis").glob("*.json")}
    assert facts == {"mask-attention": "model", "mask-attention-teacher": "teacher"}


def test_a_checkpoints_analysis_stands_beside_the_last_ones(untrained_run, capsys) -> None:
    folder = untrained_run(MASKED)
    shutil.copy(folder / "last.pt", folder / "best.pt")
    for words in ([], ["--checkpoint", "best.pt"]):
        assert cli.main(["analyze", str(folder), "maps", "--images", "2", *words]) == 0
    facts = {path.stem: json.loads(path.read_text())["checkpoint"] for path in (folder / "analysis").glob("*.json")}
    assert facts == {"maps": "last.pt", "maps-best": "best.pt"}


def test_of_a_sweeps_folder_the_runs_that_have_it_are_analysed(untrained_run, tmp_path, capsys) -> None:
    """As `runs/NAME/*` names them, beside the report and the source."""
    untrained_run(MASKED).rename(tmp_path / "masked")
    untrained_run()
    (tmp_path / "sweep.json").write_text("{}")
    (tmp_path / "report").mkdir()
    (tmp_path / "submitit").mkdir()
    new = shutil.copytree(tmp_path / "run", tmp_path / "unstarted")
    (new / "last.pt").unlink()
    assert cli.main(["analyze", *map(str, sorted(tmp_path.iterdir())), "selections", "--images", "5"]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{tmp_path}/masked/analysis/selections.png\n" and not (tmp_path / "run" / "analysis").exists()
    assert f"note: 1 run without last.pt is left out, such as {new}\n" in shown.err
    assert f"note: 1 run in which there is nothing of the kind is left out, such as {tmp_path}/run\n" in shown.err


@pytest.mark.parametrize("words", [["--images", "0"], ["--images", "ten"], ["--seed", "-1"]])
def test_a_number_that_cannot_be_is_named(untrained_run, words: list[str], capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["analyze", "run", "selections", *words])
    assert f"{words[1]} is not a whole number of at least" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("layer", "words", "message"),
    [
        ({}, ["selections"], "run: backbone.masked_tokens: the run has no masked tokens to look at"),
        (MASKED, ["selections", "--split", "extra"], "there is no split 'extra'"),
        (MASKED, ["selections", "--weights", "teacher"], "holds no teacher"),
        (MASKED, ["selections", "--shards", "gone"], "gone/index.json does not exist"),
        (
            CONVOLUTIONS,
            ["attention"],
            "resnet8: attention is looked at in ViTs and T2T-ViTs alone; `vitssl analyze RUN tokens` takes any",
        ),
        ({"backbone.patch_size": 8}, ["attention"], "vit_pico makes a single patch of an image of 8 px"),
        ({"backbone.patch_size": 8}, ["tokens"], "vit_pico makes a single token of an image of 8 px"),
        ({}, ["tokens", "--images", "1"], "--images: a covariance needs two images at least"),
        ({}, ["maps", "--images", "51"], "--images: a figure shows at most 50 images, not 51"),
        ({}, ["grad-cam", "--images", "51"], "--images: a figure shows at most 50 images, not 51"),
        (CONVOLUTIONS, ["maps"], "resnet8: attention is looked at in ViTs and T2T-ViTs alone"),
        ({"objectives": {"classify": None, "mae": {}}}, ["grad-cam"], "this run has no classify objective"),
    ],
)
def test_mistakes_are_one_line(untrained_run, layer: dict, words: list[str], message: str, capsys) -> None:
    folder: Path = untrained_run(layer)
    assert cli.main(["analyze", str(folder), *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("error: ") and error.count("\n") == 1
    assert not (folder / "analysis").exists()
