"""The features of a split in a file: those that the run gives image by image, with labels and places."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitssl
from vitssl import cli, config
from vitssl.cli.features import write
from vitssl.config import ConfigError
from vitssl.data.building import names
from vitssl.data.index import load_index, read_image
from vitssl.data.loading.subset import split_of


def image(digits: Path, position: int) -> Image.Image:
    index = load_index(digits)
    with (digits / index.shards[index.shard[position]]["name"]).open("rb") as shard:
        return Image.fromarray(read_image(shard.fileno(), index, position))


def test_the_file_has_what_the_run_gives_of_each_image(untrained_run, digits, tmp_path, capsys):
    folder, out = untrained_run(), tmp_path / "new" / "features.npz"
    assert cli.main(["features", str(folder), str(digits), str(out), "--blocks", "0", "-1", "--tokens"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{out}: cls (450, 32), mean (450, 32), tokens (450, 16, 32), cls_block0 (450, 32)")
    arrays, index = np.load(out), load_index(digits)
    assert np.array_equal(arrays["index"], index.where("test")) and np.array_equal(arrays["labels"], index.label[index.where("test")])
    assert arrays["classes"].tolist() == index.classes
    assert arrays["names"].tolist() == names.of_images(index)[index.where("test")].tolist()
    rows = [0, 7, 449]
    features = vitssl.load(folder).features([image(digits, int(arrays["index"][row])) for row in rows], blocks=[0, -1])
    for name, expected in {
        "cls": features.prefix_BPD[:, 0], "mean": features.tokens_BND.mean(1), "tokens": features.tokens_BND,
        "cls_block0": features.intermediates[0].prefix_BPD[:, 0], "tokens_block-1": features.intermediates[-1].tokens_BND,
    }.items():  # fmt: skip
        np.testing.assert_allclose(arrays[name][rows], np.asarray(expected), atol=1e-5)


def test_images_that_were_held_out_are_told_from_those_trained_on(untrained_run, digits, tmp_path, capsys):
    index = load_index(digits)
    folder = untrained_run({"data": {"val_fraction": 0.2, "images": {"per_class": 20, "seed": 0}, "sha256": index.sha256}})
    assert cli.main(["features", str(folder), str(digits), str(tmp_path / "x.npz"), "--split", "test+train"]) == 0
    arrays, split = np.load(tmp_path / "x.npz"), split_of(index, config.load(folder))
    for name, positions in {"train": split.train, "val": split.val, "test": split.test}.items():
        assert np.array_equal(arrays["index"][arrays["part"] == name], np.sort(positions)) and len(positions)
    unused = 1797 - len(split.train) - len(split.val) - 450
    assert (arrays["part"] == "").sum() == unused > 0
    counts = f"{unused:,} for nothing, 450 for test, {len(split.train)} for train and {len(split.val)} for val"
    assert f"of test+train the run had {counts}, as the array part says" in capsys.readouterr().err


def test_of_other_shards_no_part_is_told(untrained_run, digits, tmp_path):
    assert "part" not in write(vitssl.load(untrained_run({"data.sha256": "0" * 64})), digits, tmp_path / "x.npz")


def test_a_run_of_16_bits_sees_the_same_images(untrained_run, digits, tmp_path):
    trained = vitssl.load(untrained_run())
    expected = write(trained, digits, tmp_path / "exact.npz")["mean"]
    trained.run.loop.precision = "bf16"
    rounded = write(trained, digits, tmp_path / "rounded.npz")["mean"]
    assert rounded.dtype == np.float32 and not np.array_equal(rounded, expected)
    np.testing.assert_allclose(rounded, expected, atol=0.05 * float(expected.std()))


def test_a_blocks_features_are_those_before_the_final_norm(untrained_run):
    trained, picture = vitssl.load(untrained_run()), Image.effect_noise((20, 20), 90)
    features = trained.features(picture, blocks=[-1, 0])
    assert list(features.intermediates) == [-1, 0]
    normed = trained.model.backbone.norm(features.intermediates[-1].tokens_BND)
    assert torch.allclose(normed, features.tokens_BND, atol=1e-6)
    assert features.pooled("cls").shape == (1, 32) and isinstance(np.asarray(features.tokens_BND), np.ndarray)
    for wrong in (2, -3):
        with pytest.raises(ConfigError, match=f"blocks: there is no block {wrong}; vit_pico has -2 to 1"):
            trained.features(picture, blocks=[wrong])
    with pytest.raises(ConfigError, match=r"blocks: -1 is not a list of blocks; write \[-1\]"):
        trained.features(picture, blocks=-1)


def test_masked_tokens_come_with_the_weights_of_their_patches(untrained_run):
    trained = vitssl.load(untrained_run({"backbone.masked_tokens": {"count": 3, "blocks": 1}}))
    features = trained.features([Image.effect_noise((20, 20), spread) for spread in (30, 90)])
    assert features.extra_BJD.shape == (2, 3, 32)
    assert features.selection_BJN.shape == (2, 3, 16) and torch.allclose(features.selection_BJN.sum(-1), torch.ones(2, 3))


def test_a_backbone_without_a_class_token_gives_the_mean_alone(untrained_run, digits, tmp_path):
    bare = {f"backbone.{field}": None for field in ("embed_dim", "depth", "num_heads")}
    folder = untrained_run(
        {"objectives.classify.pool": "mean", "backbone.name": "resnet_pico", "backbone.patch_size": None, "data.image_size": 32}, bare
    )
    assert cli.main(["features", str(folder), str(digits), str(tmp_path / "x.npz"), "--split", "train+test"]) == 0
    arrays = np.load(tmp_path / "x.npz")
    assert "cls" not in arrays and arrays["mean"].shape == (1797, 256)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["SHARDS", "x.npz", "--split", "night"], "there is no split 'night'; it has train, test"),
        (["SHARDS", "x.npz", "--blocks", "9"], "blocks: there is no block 9"),
        (["gone", "x.npz"], "gone/index.json does not exist"),
        (["SHARDS", "."], ". is a folder; name a file, such as features.npz"),
        (["SHARDS", "x.npy"], "x.npy: several arrays are an .npz file; name x.npz"),
        (["x.npz", "SHARDS"], "the run comes first, then shards and the file to write: vitssl features RUN SHARDS features.npz"),
        (["SHARDS", "x"], "x: several arrays are an .npz file; name x.npz"),
        (["SHARDS", "x.npz", "--weights", "teacher"], "holds no teacher"),
        (["SHARDS", "there.npz"], "there.npz exists; delete it, or choose another name"),
        (["SHARDS", "there.npz/x.npz"], "there.npz is not a folder that can be written to; name another place for x.npz"),
        (["SHARDS", "/proc/x.npz"], "/proc is not a folder that can be written to; name another place for x.npz"),
    ],
)
def test_mistakes_are_one_line(untrained_run, digits, tmp_path, monkeypatch, capsys, words, message):
    folder = untrained_run()
    monkeypatch.chdir(tmp_path)
    Path("there.npz").touch()
    assert cli.main(["features", str(folder), *(word.replace("SHARDS", str(digits)) for word in words)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("error: ") and error.count("\n") == 1
    assert not Path("x.npz").exists()
