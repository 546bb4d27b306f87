"""`vitssl predict`: images and folders of images in, lines or a CSV file out."""

from __future__ import annotations

import csv
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitssl
from tests.test_trained import save_run
from vitssl import cli, config
from vitssl.checkpoints import tensor_files
from vitssl.checkpoints.run_checkpoint import Progress
from vitssl.cli import predict
from vitssl.config import Objectives
from vitssl.config.objectives.classify import ClassifyConfig
from vitssl.config.objectives.mae import MaeConfig
from vitssl.run_folder import BEST, LAST


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    folder = save_run(tmp_path / "run", Objectives(classify=ClassifyConfig()))
    (folder / "done.json").write_text('{"step": 9, "epochs": 3.0, "test": {"top1": 61.5}}')
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Five images of four sizes in folders, and what is no image."""
    folder = tmp_path / "photos"
    for i, name in enumerate(["b.png", "a.JPG", "deep/er/c.png", "deep/d.png", "=1+cmd.png"]):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((20 + i // 2 * 9, 20), 90).save(folder / name)
    (folder / ".hidden").mkdir()
    for name in ("notes.txt", ".a.png", ".hidden/h.png"):
        (folder / name).write_text("no image")
    (folder / "deep" / "loop").symlink_to(folder)
    return folder


def read(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", errors="surrogateescape") as stream:
        return list(csv.DictReader(stream))


def test_a_folder_is_walked_and_every_image_is_a_row(trained, photos, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("vitssl.evaluators.base.EVALUATED_AT_ONCE", 2)  # batches of images of several sizes
    (photos / "deep" / "loop").unlink()
    out = tmp_path / "out.csv"
    assert cli.main(["predict", str(trained), str(photos / "deep"), str(photos / "b.png"), "--csv", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: 3 of 3 images\n"
    files = [photos / "deep/d.png", photos / "deep/er/c.png", photos / "b.png"]
    rows, network = read(out), vitssl.load(trained)
    assert [row["path"] for row in rows] == [str(file) for file in files]
    assert list(rows[0]) == ["path", "class", "probability", "a", "b"]
    for row, file in zip(rows, files, strict=True):
        expected = network.predict(file)[0]
        assert torch.allclose(torch.tensor([float(row["a"]), float(row["b"])]), expected, atol=1e-5)
        assert row["class"] == "ab"[int(expected.argmax())] and row["probability"] == row[row["class"]]


def test_another_checkpoint_is_taken_where_it_is_named(trained, photos, capsys) -> None:
    content = tensor_files.read(trained / LAST)
    tensor_files.save(trained / BEST, content | {"model": {name: value + 0.1 for name, value in content["model"].items()}})
    network = vitssl.load(trained, BEST)
    assert cli.main(["predict", str(trained), str(photos / "b.png"), "--checkpoint", "best.pt"]) == 0
    best, expected = capsys.readouterr().out.split()[1:3], network.predict(photos / "b.png")[0]
    assert best == ["ab"[int(expected.argmax())], f"{expected.max():.3f}"]
    assert not torch.allclose(expected, vitssl.load(trained).predict(photos / "b.png")[0], atol=1e-3)
    assert cli.main(["predict", str(trained), str(photos), "--checkpoint", "epoch-3.pt"]) == 2
    assert capsys.readouterr().err == f"error: {trained} has no epoch-3.pt; its checkpoints: best.pt, last.pt\n"


def test_hidden_files_other_files_and_links_upwards_are_left_out(trained, photos, tmp_path, capsys) -> None:
    out = tmp_path / "out.csv"
    (photos / "deep" / "IMG_0.HEIC").touch()
    assert cli.main(["predict", str(trained), str(photos), "--csv", str(out)]) == 0
    names = ["=1+cmd.png", "a.JPG", "b.png", "deep/d.png", "deep/er/c.png"]
    assert [row["path"] for row in read(out)] == [str(photos / name) for name in names]
    note = f"note: not all files in {photos} are read; those that end in .heic are photos: convert them to .jpg"
    assert note in capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("as_csv", [True, False])
def test_a_bad_image_is_named_and_the_others_have_their_rows(trained, photos, tmp_path, monkeypatch, capsys, as_csv) -> None:
    monkeypatch.setattr("vitssl.evaluators.base.EVALUATED_AT_ONCE", 2)
    (photos / "a.JPG").write_text("damaged")
    (photos / "deep" / "d.png").write_bytes((photos / "deep" / "d.png").read_bytes()[:60])
    out = tmp_path / "out.csv"
    assert cli.main(["predict", str(trained), str(photos), *(["--csv", str(out)] if as_csv else [])]) == 2
    printed = capsys.readouterr()
    shown = [row["path"] for row in read(out)] if as_csv else [line.split("  ")[0] for line in printed.out.splitlines()]
    assert shown == [str(photos / name) for name in ("=1+cmd.png", "b.png", "deep/er/c.png")]
    errors = printed.err.splitlines()
    assert len(errors) == 2
    for name, line in zip(("a.JPG", "deep/d.png"), errors, strict=True):
        assert line.startswith(f"error: {photos / name}: cannot be decoded as an image")
    assert not as_csv or printed.out == f"{out}: 3 of 5 images\n"


def test_a_file_beyond_all_memory_is_a_bad_image(trained, photos, tmp_path, capsys) -> None:
    with open(photos / "b.png", "wb") as stream:
        stream.truncate(10**12)
    assert cli.main(["predict", str(trained), str(photos), "--csv", str(tmp_path / "out.csv")]) == 2
    said = "not an image that can be read (it has 1,000,000,000,000 bytes, more than 1,073,741,824)"
    assert capsys.readouterr().err == f"error: {photos / 'b.png'}: {said}\n"
    assert len(read(tmp_path / "out.csv")) == 4


def test_what_is_interrupted_leaves_no_file_in_the_way(trained, photos, tmp_path, monkeypatch, capsys) -> None:
    out, command = tmp_path / "out.csv", ["predict", str(trained), str(photos), "--csv", str(tmp_path / "out.csv")]
    with monkeypatch.context() as patch:
        patch.setattr(predict, "as_cell", lambda text: os.kill(os.getpid(), signal.SIGINT) or text)
        assert cli.main(command) == 130
    assert not list(tmp_path.glob("*out.csv*"))
    assert cli.main(command) == 0 and len(read(out)) == 5


def test_names_of_files_do_nothing_to_a_terminal(trained, photos, capsys) -> None:
    (photos / "deep").rename(photos / "d\x1b]0;pwn\x07\n")
    (photos / "b.png").write_bytes(b"no image")
    (photos / "b.png").rename(photos / "\x1b[2J\nb.png")
    assert cli.main(["predict", str(trained), str(photos)]) == 2
    shown = capsys.readouterr()
    assert rf"{photos}/d\x1b]0;pwn\x07\n/d.png  " in shown.out and shown.out.count("\n") == 4
    assert rf"error: {photos}/\x1b[2J\nb.png: " in shown.err and shown.err.count("\n") == 1
    assert "\x1b" not in shown.out + shown.err


@pytest.mark.parametrize("name", ["\x1b[2J", "a\nb", "\ud800"])
def test_a_class_that_is_no_line_is_damage(trained, photos, capsys, name) -> None:
    content = tensor_files.read(trained / LAST)
    content["data"]["classes"] = [name, "b"]
    tensor_files.save(trained / LAST, content)
    assert cli.main(["predict", str(trained), str(photos)]) == 2
    shown = capsys.readouterr()
    assert "last.pt: data has unexpected content" in shown.err and shown.err.count("\n") == 1 and not shown.out


def test_images_are_read_batch_by_batch(trained, photos, monkeypatch) -> None:
    monkeypatch.setattr("vitssl.evaluators.base.EVALUATED_AT_ONCE", 2)
    opened: list[int] = []

    def files():
        for i in range(6):
            opened.append(i)
            yield photos / "b.png"

    results = vitssl.load(trained).predict_each(files())
    assert opened == []
    next(results)
    assert opened == [0, 1]


def test_a_spreadsheet_computes_nothing(trained, photos, tmp_path, monkeypatch) -> None:
    """Names of classes and of files may begin a formula."""
    content = tensor_files.read(trained / LAST)
    content["data"]["classes"] = ['=HYPERLINK("http://x")', "@SUM(1)"]
    tensor_files.save(trained / LAST, content)
    monkeypatch.chdir(photos)
    os.link("b.png", "-1+1.png")
    out = tmp_path / "out.csv"
    assert cli.main(["predict", "--csv", str(out), "--", str(trained), "=1+cmd.png", "b.png", "-1+1.png"]) == 0
    with out.open(newline="") as stream:
        cells = [cell for row in csv.reader(stream) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert cells[3:5] == ['\'=HYPERLINK("http://x")', "'@SUM(1)"]
    assert {"'=1+cmd.png", "'-1+1.png", "b.png"} < set(cells)


def test_names_that_are_no_text_are_written_as_they_are(trained, photos, tmp_path, capsys) -> None:
    odd = os.fsdecode(os.fsencode(photos) + b"/\xff.png")
    os.link(photos / "b.png", odd)
    out = tmp_path / "out.csv"
    assert cli.main(["predict", str(trained), odd, "--csv", str(out)]) == 0
    assert os.fsencode(odd) in out.read_bytes()
    assert cli.main(["predict", str(trained), odd]) == 0
    assert "�.png" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere does not exist; name images, or folders of images"),
        (["empty"], "empty holds no images: no file ends in .jpg"),
        (["photos", "--csv", "photos"], "photos is a folder; name a file, such as photos/predictions.csv"),
        (["photos", "--csv", "taken.csv"], "taken.csv exists; delete it, or choose another name"),
        (["photos/notes.txt"], "photos/notes.txt: cannot be decoded as an image"),
    ],
)
def test_mistakes_are_one_line_and_lose_nothing(trained, photos, tmp_path, monkeypatch, capsys, words, message) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("taken.csv").write_text("precious")
    assert cli.main(["predict", "run", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}") and error.count("\n") == 1
    assert Path("taken.csv").read_text() == "precious"


# ---------------------------------------------------------------------------------------------------------------- repr


def test_arrays_and_tensors_are_no_images(trained) -> None:
    for images in ([np.zeros((8, 8, 3), np.uint8)], torch.rand(2, 3, 8, 8)):
        with pytest.raises(TypeError, match=r"^an image is a path or a PIL image, not (ndarray|Tensor); PIL\.Image\.fromarray"):
            vitssl.load(trained).predict(images)


def test_a_run_says_what_it_is(trained, tmp_path) -> None:
    assert repr(vitssl.load(trained)) == f"<Trained {trained}: vit_pico for classify, 2 classes, top-1 61.50 %, 3 epochs>"
    (trained / "done.json").unlink()
    content = tensor_files.read(trained / LAST)
    tensor_files.save(trained / LAST, content | {"progress": vars(Progress(step=1200))})
    tensor_files.save(trained / BEST, content)
    assert repr(vitssl.load(trained)).endswith("2 classes, not finished, at step 1,200>")
    assert repr(vitssl.load(trained, BEST)).endswith("2 classes, best.pt>")
    pretrained = save_run(tmp_path / "pre", Objectives(mae=MaeConfig(decoder_dim=16, decoder_depth=1, decoder_heads=2)))
    (pretrained / "done.json").write_text('{"step": 9, "epochs": 20.0, "test": null}')
    assert repr(vitssl.load(pretrained)).endswith("vit_pico for mae, 2 classes, 20 epochs>")


# ------------------------------------------------------------------------------------------------------------- several


@pytest.fixture
def seeds(tmp_path: Path) -> list[Path]:
    """The folders of three runs of other weights, as a glob over seeds gives them."""
    folders = []
    for seed in range(3):
        folder = save_run(tmp_path / f"scratch-s{seed}", Objectives(classify=ClassifyConfig()))
        content = tensor_files.read(folder / LAST)
        content["model"] = {name: value + seed * 0.05 * torch.randn_like(value) for name, value in content["model"].items()}
        tensor_files.save(folder / LAST, content)
        (folder / "done.json").write_text('{"step": 9, "epochs": 3.0}')
        folders.append(folder)
    return folders


def test_several_runs_give_the_mean_of_their_probabilities(seeds, photos, tmp_path, monkeypatch, capsys) -> None:
    """And every file is decoded once for all of them."""
    (photos / "a.JPG").write_text("damaged")
    out, decoded, decode = tmp_path / "out.csv", [], vitssl.trained._decoded
    monkeypatch.setattr("vitssl.trained._decoded", lambda path: decoded.append(path) or decode(path))
    assert cli.main(["predict", *map(str, seeds), str(photos), "--csv", str(out)]) == 2
    assert len(decoded) == len(set(decoded)) == 5
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and errors[0].startswith(f"error: {photos / 'a.JPG'}: cannot be decoded")
    rows, file = {Path(row["path"]).name: row for row in read(out)}, photos / "b.png"
    each = [vitssl.load(folder).predict(file)[0] for folder in seeds]
    assert len(rows) == 4 and not torch.allclose(each[0], each[2], atol=1e-3)
    expected = sum(each) / 3
    assert torch.allclose(torch.tensor([float(rows["b.png"]["a"]), float(rows["b.png"]["b"])]), expected, atol=1e-5)
    assert rows["b.png"]["class"] == "ab"[int(expected.argmax())]


def test_the_pretraining_that_an_arm_s_name_stands_for_too_is_left_out(seeds, photos, tmp_path, capsys) -> None:
    pretrained = save_run(tmp_path / "scratch-pretrain-s0", Objectives(mae=MaeConfig(decoder_dim=16, decoder_depth=1, decoder_heads=2)))
    assert cli.main(["predict", *map(str, seeds), str(photos / "b.png")]) == 0
    alone = capsys.readouterr()
    assert cli.main(["predict", str(pretrained), *map(str, seeds), str(photos / "b.png")]) == 0
    both = capsys.readouterr()
    assert both.out == alone.out
    assert both.err == f"note: 1 run without a classifier is left out, such as {pretrained}\n"
    assert cli.main(["predict", str(pretrained), str(photos / "b.png")]) == 2
    assert f"predicts no classes; vitssl features {pretrained} SHARDS features.npz, or" in capsys.readouterr().err


def test_a_pattern_that_no_shell_has_written_out_says_so(seeds, photos, capsys) -> None:
    pattern = f"{seeds[0].parent}/scratch-*"
    assert cli.main(["predict", pattern, str(photos / "b.png")]) == 2
    assert f"{pattern} came here as it is; leave out its quotes, so that the shell writes out the 3 runs" in capsys.readouterr().err


def test_each_of_several_runs_may_be_named_by_a_beginning(seeds, photos, capsys) -> None:
    for seed, folder in enumerate(seeds):
        folder.rename(folder.with_name(f"scratch-equal_epochs-s{seed}-0123"))
    full = [str(folder.with_name(f"scratch-equal_epochs-s{seed}-0123")) for seed, folder in enumerate(seeds)]
    assert cli.main(["predict", *full, str(photos / "b.png")]) == 0
    expected = capsys.readouterr().out
    assert cli.main(["predict", *map(str, seeds), str(photos / "b.png")]) == 0
    assert capsys.readouterr().out == expected
    assert cli.main(["predict", str(seeds[0]), str(seeds[0].with_name("other-s0")), str(photos / "b.png")]) == 2
    assert "other-s0 does not exist; name images, or folders of images" in capsys.readouterr().err


def test_of_a_run_whose_weights_are_gone_it_says_how_to_train_them_anew(trained, photos, capsys) -> None:
    (trained / LAST).unlink()
    assert cli.main(["predict", str(trained), str(photos / "b.png")]) == 2
    assert f"its checkpoints: none; delete {trained}, and repeat the command of its sweep" in capsys.readouterr().err


def test_runs_that_have_no_mean_are_refused(seeds, photos, capsys) -> None:
    content = tensor_files.read(seeds[1] / LAST)
    content["data"]["classes"] = ["a", "c"]
    tensor_files.save(seeds[1] / LAST, content)
    first, second, _ = map(str, seeds)
    for words, message in (
        (
            [first, second, str(photos)],
            f"{second}: its classes are a and c, and those of {first} a and b, so their probabilities have no mean",
        ),
        ([first, second], f"{second} is a run; name images too, or folders of images"),
        ([first, first, str(photos)], f"{first} is named twice; each run counts once"),
        ([first, str(photos), second], f"{second} is a run; name runs first, then images, or folders of images"),
    ):
        assert cli.main(["predict", *words]) == 2
        assert capsys.readouterr().err == f"error: {message}\n"


def test_runs_of_two_kinds_are_averaged_with_a_note(seeds, photos, capsys) -> None:
    """A pattern such as own_images/ssat-* also matches the runs of an earlier number of epochs."""
    for seed, folder in enumerate(seeds):
        run = config.load(folder)
        run.seed = seed
        run.loop.epochs = 50 if seed < 2 else 100
        (folder / "run.yaml").unlink()
        config.save(run, folder)
    words = [str(seeds[0]), str(seeds[1]), str(photos / "b.png")]
    assert cli.main(["predict", *words]) == 0 and capsys.readouterr().err == ""
    assert cli.main(["predict", str(seeds[2]), *words]) == 0
    note = "note: averaging 3 runs that differ in loop.epochs (1 x 100, 2 x 50); name those of one kind alone\n"
    assert capsys.readouterr().err == note


def test_so_are_runs_that_start_from_trainings_of_two_kinds(seeds, photos, tmp_path, capsys) -> None:
    for number, (folder, epochs) in enumerate(zip(seeds[:2], (10, 20), strict=True)):
        start = save_run(tmp_path / f"pretrain-{number}", Objectives(mae=MaeConfig(decoder_dim=16, decoder_depth=1, decoder_heads=2)))
        for path, changed in ((start, {"loop.epochs": epochs}), (folder, {"init_from": str(start), "seed": 0})):
            run = config.load(path)
            for name, value in changed.items():
                config.assign(run, name, value)
            (path / "run.yaml").unlink()
            config.save(run, path)
    assert cli.main(["predict", *map(str, seeds[:2]), str(photos / "b.png")]) == 0
    note = "note: averaging 2 runs that differ in init_from.loop.epochs (1 x 10, 1 x 20); name those of one kind alone\n"
    assert capsys.readouterr().err == note
