"""A trained run as an object that predicts, and what is said where something else than a run is named."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitssl
from vitssl import cli, config, model
from vitssl.checkpoints import tensor_files
from vitssl.config import ConfigError, Objectives, Run
from vitssl.config.objectives.classify import ClassifyConfig
from vitssl.config.objectives.mae import MaeConfig
from vitssl.data import shards
from vitssl.data.building.writing import stored
from vitssl.data.index import load_index
from vitssl.data.loading.batch import Batch
from vitssl.data.loading.subset import evaluation_images
from vitssl.data.pixels.decode import decode, resize, resized_sizes
from vitssl.data.sources.samples import Sample
from vitssl.run_folder import LAST


def save_run(folder: Path, objectives: Objectives, **backbone: object) -> Path:
    """The folder of a run with a checkpoint of random weights for two classes."""
    run = config.merge(Run, {"data": {"shards": "gone", "image_size": 16}, "backbone": {"name": "vit_pico", "patch_size": 8, **backbone}})
    run.objectives = objectives
    config.save(run, folder)
    torch.manual_seed(0)
    content = {"model": model.build(run, 2).state_dict(), "data": {"classes": ["a", "b"], "mean": [0.5] * 3, "std": [0.5] * 3}}
    tensor_files.save(folder / LAST, content)
    return folder


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """The folder of a run in a sweep's folder, which classifies."""
    (tmp_path / "sweep.json").write_text("{}")
    return save_run(tmp_path / "scratch-s0", Objectives(classify=ClassifyConfig()))


@pytest.fixture
def pretrained(tmp_path: Path) -> Path:
    return save_run(tmp_path / "pretrain-s0", Objectives(mae=MaeConfig(decoder_dim=16, decoder_depth=1, decoder_heads=2)))


def test_one_image_is_a_batch_of_one(trained: Path) -> None:
    file = trained / "one.png"
    Image.effect_noise((20, 20), 90).save(file)
    run = vitssl.load(trained)
    expected = run.predict([file])
    assert expected.shape == (1, 2)
    for single in (str(file), file, Image.open(file)):
        assert torch.equal(run.predict(single), expected)
    assert torch.allclose(run.predict(path for path in (file, file)), expected.repeat(2, 1), atol=1e-6)


@pytest.mark.parametrize("cache_px", [None, 12])
def test_images_are_decoded_as_for_training(trained: Path, cache_px: int | None) -> None:
    """Upright, 12 bits and floats scaled as in shards, shrunk as in the cache."""
    run = config.load(trained)
    run.data.cache_px = cache_px
    config.save(run, trained)
    values = np.random.default_rng(0).random((30, 20), dtype=np.float32)
    Image.fromarray((values * 4095).astype(np.uint16)).save(trained / "deep.png")
    Image.fromarray(values).save(trained / "float.tif")
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.effect_noise((40, 24), 90).save(trained / "turned.jpg", exif=turned)
    network = vitssl.load(trained)
    for name in ("deep.png", "float.tif", "turned.jpg"):
        file = trained / name
        array = decode(stored(Sample(name, 0, str(file))).encoded, name)
        assert array.max() > 200
        height, width = resized_sizes(np.array([array.shape[:2]]), cache_px)[0]
        as_trained = Image.fromarray(resize(array, height, width))
        network.run.data.cache_px = None
        expected = network.predict(as_trained)
        network.run.data.cache_px = cache_px
        assert torch.equal(network.predict(file), expected)
        assert torch.equal(network.predict(Image.open(file)), expected)
    assert array.shape == (40, 24, 3)


@pytest.mark.parametrize("method", ["predict", "features"])
def test_no_image_is_said(trained: Path, method: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{method}: there are no images; give at least one file or PIL image$"):
        getattr(vitssl.load(trained), method)([])


def test_a_run_of_16_bits_predicts_as_it_was_evaluated(trained: Path) -> None:
    run = config.load(trained)
    run.loop.precision = "bf16"
    config.save(run, trained)
    images = [Image.effect_noise((16, 16), 90) for _ in range(3)]
    network = vitssl.load(trained)
    probabilities, features = network.predict(images), network.features(images, blocks=[0])
    seen = torch.cat(list(network._seen(images)))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        in_16_bits = network.model.predict(Batch.of_images(seen)).float().softmax(-1)
    in_32_bits = network.model.predict(Batch.of_images(seen)).softmax(-1)
    assert torch.equal(probabilities, in_16_bits) and not torch.equal(probabilities, in_32_bits)
    network.run.loop.precision = "fp32"
    whole = network.features(images, blocks=[0])
    for mixed, exact in ((features, whole), (features.intermediates[0], whole.intermediates[0])):
        assert np.asarray(mixed.tokens_BND).dtype == np.float32 and not torch.equal(mixed.tokens_BND, exact.tokens_BND)
        torch.testing.assert_close(mixed.tokens_BND, exact.tokens_BND, atol=0.05, rtol=0.05)


def test_features_are_what_the_head_reads(trained: Path, monkeypatch) -> None:
    images = [Image.effect_noise(size, 90) for size in ((20, 20), (31, 18), (16, 40))]
    run = vitssl.load(trained)
    features = run.features(images)
    width = run.model.backbone.embed_dim
    assert (features.prefix_BPD.shape, features.tokens_BND.shape, features.grid) == ((3, 1, width), (3, 4, width), (2, 2))
    head = run.model.objectives["classify"].head
    logits_BK = torch.nn.functional.linear(features.prefix_BPD[:, 0], head.weight, head.bias)
    assert torch.allclose(logits_BK.softmax(-1), run.predict(images), atol=1e-6)
    assert torch.allclose(run.features(images[1]).tokens_BND, features.tokens_BND[1:2], atol=1e-6)
    monkeypatch.setattr("vitssl.evaluators.base.EVALUATED_AT_ONCE", 2)
    in_batches = run.features(images, blocks=[0])
    assert torch.allclose(in_batches.tokens_BND, features.tokens_BND, atol=1e-6)
    alone = run.features(images[2], blocks=[0]).intermediates[0]
    assert torch.allclose(in_batches.intermediates[0].tokens_BND[2:], alone.tokens_BND, atol=1e-6)


def test_a_pretraining_run_gives_features_and_no_classes(pretrained: Path) -> None:
    image = Image.effect_noise((20, 20), 90)
    run = vitssl.load(pretrained)
    assert run.features(image).tokens_BND.shape == (1, 4, run.model.backbone.embed_dim)
    with pytest.raises(ConfigError) as error:
        run.predict(image)
    advice = "so it predicts no classes; vitssl.load(RUN).features(images) gives its features"
    assert str(error.value) == f"{pretrained}: this run has no classify objective, {advice}"


def test_a_backbone_without_a_class_token_has_no_prefix(tmp_path: Path) -> None:
    folder = save_run(tmp_path / "swin-s0", Objectives(classify=ClassifyConfig(pool="mean")), name="swin_pico", patch_size=2, window_size=2)
    features = vitssl.load(folder).features(Image.effect_noise((20, 20), 90))
    assert features.prefix_BPD.shape == (1, 0, features.tokens_BND.shape[-1]) and features.grid == (1, 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [(["predict", "one.png"], "this run has no classify"), (["evaluate"], "--type: the Run has no classify")],
)
def test_the_commands_refuse_a_pretraining_run(
    pretrained: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (pretrained / "done.json").write_text('{"step": 0, "epochs": 0.0}')
    command, *files = words
    Image.effect_noise((20, 20), 90).save(pretrained / "one.png")
    assert cli.main([command, str(pretrained), *(str(pretrained / file) for file in files)]) == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"error: {pretrained}: {message}") and output.err.count("\n") == 1
    assert not output.out


@pytest.mark.parametrize("command", ["cost", "evaluate"])
def test_a_sweeps_folder_is_no_run(trained: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, str(trained.parent)]) == 2
    message = f"error: {trained.parent} is the folder of a whole sweep; name one of its runs, for example {trained}\n"
    assert capsys.readouterr().err == message


def test_of_all_that_a_sweeps_folder_holds_the_runs_that_classify_are_evaluated(trained: Path, pretrained: Path, capsys) -> None:
    everything = [str(path) for path in sorted(trained.parent.iterdir())]
    assert cli.main(["evaluate", *everything]) == 2
    shown = capsys.readouterr().err
    assert f"note: 1 run without a classifier is left out, such as {pretrained}\n" in shown
    moved = (
        f"error: gone, the shards of {trained}, do not exist; if they are elsewhere now, set data.shards in {trained}/run.yaml; or build"
    )
    assert moved in shown
    assert cli.main(["cost", "--json", "--classes", "2", str(trained.parent / "sweep.json"), str(trained)]) == 0


def test_a_run_is_named_by_its_folder_or_its_yaml(trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    assert cli.main(["cost", str(trained / "run.yaml"), "--classes", "2"]) == 0
    first = capsys.readouterr().out
    assert cli.main(["cost", "--classes", "2", str(trained)]) == 0
    assert capsys.readouterr().out == first
    facts = {"name": "photos", "classes": 2, "sha256": "", "train_images": 8, "labelled_images": 8, "val_images": 0, "test_images": 4}
    (trained / "job.json").write_text(json.dumps({"data": facts | {"smallest_px": [8, 8], "largest_px": [8, 8]}}))
    assert cli.main(["cost", str(trained)]) == 0  # its launcher recorded the number, and its shards are gone
    assert capsys.readouterr().out == first
    with pytest.raises(ConfigError, match=r"sweep.json is not a run; name a run folder \(runs/<sweep>/<run>\), or the run.yaml in it"):
        vitssl.load(trained.parent / "sweep.json")
    monkeypatch.chdir(trained)  # without a runs/ of somebody's
    with pytest.raises(ConfigError, match=r"elsewhere/run.yaml does not exist: this is not a run folder"):
        vitssl.load(trained / "elsewhere")


@pytest.mark.release
def test_runs_are_counted_side_by_side_each_for_its_classes(trained: Path) -> None:
    # in a process of its own: of several it makes forks, which torch's autograd takes only from a process that has not used it
    words = [sys.executable, "-m", "vitssl", "cost", str(trained), str(trained), "--json", "--classes", "2,3"]
    two, three = map(json.loads, subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines())
    assert three["params_train"] - two["params_train"] == vitssl.load(trained).model.backbone.embed_dim + 1


def test_a_run_is_named_by_the_beginning_of_its_name_where_no_other_has_it(trained: Path) -> None:
    for name in ("ssat-s0-0123", "ssat-s10-4567"):
        shutil.copytree(trained, trained.parent / name)
    for begun in ("ssat-s0", "ssat-s0-*", "ssat-s0*", "ssat-s0-01"):
        assert vitssl.load(trained.parent / begun).folder.name == "ssat-s0-0123"
    with pytest.raises(ConfigError, match=r"ssat stands for 2 runs: ssat-s0-0123 and ssat-s10-4567; name one, or .* .*/ssat-\*$"):
        vitssl.load(trained.parent / "ssat")
    shutil.copytree(trained, trained.parent / "mae-equal_epochs-s2-89ab")
    for words in ("mae-s2", "mae-s2-*", "mae-s2-89ab"):  # without the values of axes between them
        assert vitssl.load(trained.parent / words).folder.name == "mae-equal_epochs-s2-89ab"
    for wrong in ("mae-s3", "mae-s2-equal_epochs", "ssat-s2"):
        near = "mae-equal_epochs-s2-89ab" if wrong.startswith("mae") else "ssat-s"
        with pytest.raises(ConfigError, match=rf"there is no folder .*{wrong}; name a run, such as .*/{near}"):
            vitssl.load(trained.parent / wrong)
    with pytest.raises(ConfigError, match="ssat-s1"):  # not of seed 10
        vitssl.load(trained.parent / "ssat-s1")


def test_an_unfinished_run_is_said_to_be_one(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = trained / "one.png"
    Image.effect_noise((20, 20), 90).save(file)
    note = f"note: {trained} is not finished; using the weights of its newest checkpoint\n"
    assert cli.main(["predict", str(trained), str(file)]) == 0
    assert capsys.readouterr().err == note
    (trained / "done.json").write_text('{"step": 0, "epochs": 0.0}')
    assert cli.main(["predict", str(trained), str(file)]) == 0
    assert capsys.readouterr().err == ""


def test_a_teacher_s_backbone_is_not_classified_with_the_student_s_head(trained: Path) -> None:
    run = vitssl.load(trained)
    run.weights = "teacher"
    with pytest.raises(
        ConfigError, match=r"the classifier belongs to the student; with a teacher's weights only features\(\) is available"
    ):
        run.predict(Image.effect_noise((20, 20), 90))


def build_photos(place: Path, **counts: int) -> Path:
    """Shards of noise, of the classes a and b, with so many images each by split."""
    for name, count in counts.items():
        for label in "ab":
            (folder := place / "photos" / name / label).mkdir(parents=True)
            for number in range(count):
                Image.effect_noise((20, 20), 90).save(folder / f"{number}.png")
    shards.build(f"folder:{place / 'photos'}", place / "shards", workers=1, progress=False)
    return place / "shards"


def test_a_split_of_the_shards_that_no_training_saw_needs_no_holding_out(trained: Path, tmp_path: Path) -> None:
    """The shards have `val`, and the Run neither trained on it nor chose by it."""
    photos = build_photos(tmp_path, train=4, val=3, test=2)

    def images(train_split: str) -> int:
        run = config.load(trained)
        run.data.shards, run.data.train_split = str(photos), train_split
        config.save(run, trained)
        loaded = vitssl.load(trained)
        return len(evaluation_images(*loaded.data(), "val", loaded.classes)[0])

    assert images("train") == 6
    with pytest.raises(ConfigError, match="there are no such images"):
        images("train+val")


def test_shards_that_were_built_anew_are_refused_unless_named(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their test split may hold what was trained on."""
    photos, run = build_photos(tmp_path, train=2, test=2), config.load(trained)
    for sha256, code in ((load_index(photos).sha256, 0), ("of the shards before", 2)):
        run.data.shards, run.data.sha256 = str(photos), sha256
        config.save(run, trained)
        assert cli.main(["evaluate", str(trained)]) == code
    assert "shards is not what " in (error := capsys.readouterr().err) and "name the images to test on by --shards" in error
    assert cli.main(["evaluate", str(trained), "--shards", str(photos)]) == 0


def test_shards_of_other_classes_are_refused_with_both(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards.build("digits", tmp_path / "digits")
    assert cli.main(["evaluate", str(trained), "--shards", str(tmp_path / "digits")]) == 2
    error = capsys.readouterr().err
    assert "digits: it has classes such as 0, and this run was trained on a and b\n" in error


def test_shards_of_some_of_the_classes_are_evaluated_by_their_names(trained: Path, tmp_path: Path, capsys) -> None:
    """Class b is the first one there."""
    for number in range(9):
        (tmp_path / "photos" / "b").mkdir(parents=True, exist_ok=True)
        Image.effect_noise((20, 20), 20 * number).save(tmp_path / "photos" / "b" / f"{number}.png")
    shards.build(f"folder:{tmp_path / 'photos'}?test=0.9", tmp_path / "shards", workers=1, progress=False)
    assert cli.main(["evaluate", str(trained), "--shards", str(tmp_path / "shards"), "--split", "train+test"]) == 0
    found = json.loads(capsys.readouterr().out)
    of_b = (vitssl.load(trained).predict(sorted((tmp_path / "photos" / "b").iterdir())).argmax(1) == 1).float().mean().item()
    assert found["count"] == 9 and found["top1"] == pytest.approx(100 * of_b) == pytest.approx(found["balanced_accuracy"])
