"""Analyses against what can be counted by hand, and the files that they leave."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import vitssl
from vitssl import cli
from vitssl.analysis import KINDS, attention, selections
from vitssl.analysis.base import Sample
from vitssl.config import ConfigError
from vitssl.trained import Trained

MASKED = {"backbone.masked_tokens": {"count": 3, "blocks": 1}, "backbone.patch_size": 1}  # 64 patches of the 8-px digits


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
    sample = Sample(network, count=70)
    numbers = selections.measure(network, sample)
    assert numbers.facts["sizes"] == [22, 43, 64] == numbers.arrays["selected"].sum(-1)[0].tolist()
    assert numbers.arrays["selected"][:, -1].all() and numbers.facts["locality"][-1] == numbers.facts["locality_random"][-1] == 1
    assert np.allclose(np.diag(numbers.facts["iou"]), 1) and numbers.arrays["frequency"].sum(1) == pytest.approx([22, 43, 64])
    (first, *_), backbone = sample.batches(), network.model.backbone
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
        Sample(network)


def test_pictures_are_the_images_that_were_drawn(trained, digits) -> None:
    from vitssl.data.index import load_index, read_image

    network = trained()
    numbers = selections.measure(network, Sample(network, count=70, split="train", seed=3))
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
    facts = attention.to_masked_tokens(network, Sample(network, count=70)).facts
    assert facts["tokens"] == 2 + 64 + 3 and list(facts["blocks"]) == ["1", "2"]
    for block in facts["blocks"].values():
        assert list(block) == ["cls", "reg1"]
        for measured in block.values():
            assert measured["mean"] == pytest.approx([1 / 69] * 3) and measured["share"] == pytest.approx([1 / 3] * 3)
            assert measured["std"] == pytest.approx([0] * 3, abs=1e-7)


def test_means_and_deviations_are_those_of_all_images_at_once(trained) -> None:
    network = trained()
    sample = Sample(network, count=150)  # three passes
    (facts,) = attention.to_masked_tokens(network, sample).facts["blocks"].values()
    rows = []
    with attention.recorded(network.model.backbone, [1]) as maps, torch.no_grad():
        for batch in sample.batches():
            network.encode(batch.views["main"])
            rows.append(maps[1][:, :, 0, -3:])
    rows_ShJ = torch.cat(rows).double()
    assert facts["cls"]["mean"] == pytest.approx(rows_ShJ.mean((0, 1)).tolist())
    assert facts["cls"]["std"] == pytest.approx(rows_ShJ.mean(1).std(0).tolist(), rel=1e-4)
    assert facts["cls"]["share"] == pytest.approx((rows_ShJ / rows_ShJ.sum(-1, keepdim=True)).mean((0, 1)).tolist())


def test_a_sample_is_drawn_by_its_seed(trained) -> None:
    network = trained()
    one, again, other = (Sample(network, count=20, seed=seed).positions.tolist() for seed in (0, 0, 1))
    assert one == again != other and len(set(one)) == 20
    assert len(Sample(network, count=1000).positions) == 450
    seen = torch.cat([batch.index_B for batch in Sample(network, count=70).batches()])
    assert seen.tolist() == Sample(network, count=70).positions.tolist()


def test_of_a_run_with_folds_it_is_of_its_own_test_images(trained) -> None:
    network = trained({"data.folds": 5, "seed": 2})
    _, parts = network.data()
    sample = Sample(network, count=1000)
    assert sorted(sample.positions) == parts.test.tolist() and 0 < len(parts.test) < 450
    assert sample.facts()["split"] == "the run's fold"
    assert len(Sample(network, count=1000, split="test").positions) == 450


@pytest.mark.parametrize("name", KINDS)
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


def test_nothing_is_analysed_where_one_of_several_runs_cannot_be(untrained_run, tmp_path, capsys) -> None:
    untrained_run(MASKED).rename(tmp_path / "masked")
    assert cli.main(["analyze", str(tmp_path / "masked"), str(untrained_run()), "selections"]) == 2
    assert not (tmp_path / "masked" / "analysis").exists()


@pytest.mark.parametrize("words", [["--images", "0"], ["--images", "ten"], ["--seed", "-1"]])
def test_a_number_that_cannot_be_is_named(untrained_run, words: list[str], capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["analyze", "run", "selections", *words])
    assert f"{words[1]} is not a whole number of at least" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("layer", "words", "message"),
    [
        ({}, [], "run: backbone.masked_tokens: the run has no masked tokens to look at"),
        (MASKED, ["--split", "extra"], "there is no split 'extra'"),
        (MASKED, ["--weights", "teacher"], "holds no teacher"),
        (MASKED, ["--shards", "gone"], "gone/index.json does not exist"),
    ],
)
def test_mistakes_are_one_line(untrained_run, layer: dict, words: list[str], message: str, capsys) -> None:
    folder: Path = untrained_run(layer)
    assert cli.main(["analyze", str(folder), "selections", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("error: ") and error.count("\n") == 1
    assert not (folder / "analysis").exists()
