from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import webdataset
from PIL import Image

from vitssl import cli
from vitssl.config import ConfigError
from vitssl.data import shards
from vitssl.data.index import COLUMNS, _own_sha256, fingerprint, load_index, read_index
from vitssl.data.sources.opening import open_source
from vitssl.files import hash_file


def build(source: Path | str, out: Path, **options) -> shards.Index:
    return shards.build(str(source), out, **{"workers": 1, "images_per_shard": 4, "progress": False} | options)


def flip(path: Path, offset: int) -> None:
    """Change one byte."""
    with open(path, "r+b") as stream:
        stream.seek(offset)
        byte = stream.read(1)[0]
        stream.seek(offset)
        stream.write(bytes([byte ^ 0xFF]))


# --------------------------------------------------------------------------------------------------------------- build


def test_webdataset_reads_our_shards(make_shards, make_folder):
    index = make_shards()
    urls = [str(index.folder / shard["name"]) for shard in index.shards if shard["split"] == "train"]
    assert [Path(url).name for url in urls] == ["train-000000.tar", "train-000001.tar", "train-000002.tar"]
    read = webdataset.WebDataset(urls, shardshuffle=False).decode("rgb8").to_tuple("jpg;png", "cls")
    samples = open_source(str(index.folder.parent / "pets")).splits["train"]
    pairs = list(zip(read, samples, strict=True))
    assert len(pairs) == 12
    for (pixels, label), sample in pairs:
        assert label == sample.label
        assert np.array_equal(pixels, np.asarray(Image.open(sample.image).convert("RGB")))


def test_original_bytes_are_kept_and_offsets_point_at_them(make_shards):
    index = make_shards()
    samples = [sample for _, sample in open_source(str(index.folder.parent / "pets")).samples()]
    members = []
    for shard in index.shards:
        with tarfile.open(index.folder / shard["name"]) as tar:
            members += [m for m in tar.getmembers() if not m.name.endswith(".cls")]
            assert {(m.mtime, m.uid, m.uname) for m in tar.getmembers()} == {(0, 0, "")}
    assert [m.offset_data for m in members] == index.offset.tolist()
    for i, sample in enumerate(samples):
        shard = (index.folder / index.shards[index.shard[i]]["name"]).read_bytes()
        assert shard[index.offset[i] : index.offset[i] + index.size[i]] == Path(sample.image).read_bytes()
        assert (index.width[i], index.height[i]) == Image.open(sample.image).size


def test_arrays_are_stored_without_loss(digits):
    index = shards.load_index(digits)
    source = open_source("digits")
    urls = [str(digits / shard["name"]) for shard in index.shards if shard["split"] == "test"]
    read = list(webdataset.WebDataset(urls, shardshuffle=False).decode("l8").to_tuple("png", "cls"))
    assert [label for _, label in read] == [s.label for s in source.splits["test"]]
    assert all(np.array_equal(pixels, s.image) for (pixels, _), s in zip(read, source.splits["test"], strict=True))


def test_index_of_digits_by_hand(digits):
    index = shards.load_index(digits)
    assert len(index) == 1797 and index.splits == ["train", "test"] and index.classes == [str(k) for k in range(10)]
    assert [(s["name"], s["images"]) for s in index.shards] == [
        ("train-000000.tar", 1000),
        ("train-000001.tar", 347),
        ("test-000000.tar", 450),
    ]
    assert index.where("train").tolist() == list(range(1347)) and index.where("test").tolist() == list(range(1347, 1797))
    assert index.where("test+train").tolist() == list(range(1797))
    pixels = np.stack([s.image for s in open_source("digits").splits["train"]]) / 255
    np.testing.assert_allclose(index.mean, [pixels.mean()] * 3, rtol=1e-12)
    np.testing.assert_allclose(index.std, [pixels.std()] * 3, rtol=1e-12)
    with pytest.raises(ConfigError, match="there is no split 'val'; it has train, test"):
        index.where("train+val")


def test_statistics_are_of_the_train_split_per_channel(make_shards):
    index = make_shards()
    samples = open_source(str(index.folder.parent / "pets")).splits["train"]
    pixels = np.concatenate([np.asarray(Image.open(s.image)).reshape(-1, 3) for s in samples]) / 255
    np.testing.assert_allclose(index.mean, pixels.mean(0), rtol=1e-12)
    np.testing.assert_allclose(index.std, pixels.std(0), rtol=1e-12)


def test_unlabelled_images_have_label_minus_one(make_folder, tmp_path):
    source = make_folder(train={"cat": 3}, test={"cat": 1}, unlabeled={"any": 2})
    index = build(source, tmp_path / "out")
    assert index.label[index.where("unlabeled")].tolist() == [-1, -1]
    with tarfile.open(tmp_path / "out" / "unlabeled-000000.tar") as tar:
        assert tar.extractfile("00000000.cls").read() == b"-1"


def test_fingerprint_depends_on_content_alone(make_folder, tmp_path):
    source = make_folder()
    first = build(source, tmp_path / "one")
    shutil.copytree(source, tmp_path / "elsewhere" / "renamed")  # new path, name and times
    again = build(tmp_path / "elsewhere" / "renamed", tmp_path / "two", workers=2)
    assert again.sha256 == first.sha256 and again.name != first.name
    assert [s["sha256"] for s in again.shards] == [s["sha256"] for s in first.shards]

    image = next((source / "train" / "cat").glob("*.png"))
    pixels = np.array(Image.open(image))
    pixels[0, 0, 0] ^= 1
    Image.fromarray(pixels).save(image)
    assert build(source, tmp_path / "pixel").sha256 != first.sha256
    shutil.copytree(tmp_path / "elsewhere" / "renamed", tmp_path / "labels")
    for split in ("train", "test"):
        (tmp_path / "labels" / split / "dog").rename(tmp_path / "labels" / split / "wolf")
    assert build(tmp_path / "labels", tmp_path / "names").sha256 != first.sha256


def test_the_fingerprint_of_a_content_stays():
    """Runs state that of their shards: with another, none of the finished ones would be found again."""
    columns = {name: np.arange(1, 4) for name in COLUMNS} | {"label": np.array([0, 1, -1])}
    shard = {"name": "train-000000.tar", "split": "train", "images": 3, "bytes": 9, "sha256": "ab"}
    index = shards.Index(Path("x"), "pets", "of", "", ["cat", "dog"], [0.25] * 3, [0.5] * 3, [shard], **columns)
    assert fingerprint(index) == "c67b93ae609ab248f367289d5902081916d9ebaf32dea91ec36a44ff9678ebb7"


def test_undecodable_image_is_named_and_mending_it_goes_on(make_folder, tmp_path):
    source = make_folder()
    broken = source / "train" / "dog" / "004.png"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:100])
    with pytest.raises(ConfigError, match=r"train/dog/004\.png: cannot be decoded"):
        build(source, tmp_path / "out")
    first = tmp_path / "out" / "train-000000.tar"
    inode = first.stat().st_ino
    assert not (tmp_path / "out" / "index.json").exists()
    broken.unlink()  # the source shrinks: shards after the broken image change, those before it stay
    index = build(source, tmp_path / "out")
    assert first.stat().st_ino == inode
    assert index.sha256 == build(source, tmp_path / "undisturbed").sha256
    assert sorted(p.name for p in (tmp_path / "out").glob("*.tar")) == sorted(s["name"] for s in index.shards)


def test_second_build_does_nothing_and_another_source_is_refused(make_folder, tmp_path, capsys):
    source, out = make_folder(), tmp_path / "out"
    first = build(source, out)
    times = {p: p.stat().st_mtime_ns for p in out.glob("*.*")}
    assert build(source, out).sha256 == first.sha256
    assert "nothing to do" in capsys.readouterr().err
    assert {p: p.stat().st_mtime_ns for p in out.glob("*.*")} == times
    with pytest.raises(ConfigError, match="holds the shards of pets, which differ from digits"):
        build("digits", out)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "x.tar").touch()
    with pytest.raises(ConfigError, match=r"foreign: holds x\.tar, which is not of its shards; move it, or choose another folder"):
        build(source, tmp_path / "foreign")
    before = sorted(source.rglob("*"))
    with pytest.raises(ConfigError, match=r"holds test, which is not of its shards"):  # a folder of photos
        build("digits", source)
    assert sorted(source.rglob("*")) == before


def start_build(source: Path, out: Path, workers: int) -> subprocess.Popen:
    """A build in its own process group that has finished a shard or more and is far from the last."""
    code = "import sys; from vitssl.data import shards; shards.build(*sys.argv[1:3], workers=int(sys.argv[3]), images_per_shard=1)"
    command = [sys.executable, "-c", code, str(source), str(out), str(workers)]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL, cwd=Path(__file__).parents[2])
    while len(list(out.glob("*.tar"))) < 1 + workers:
        assert process.poll() is None
        time.sleep(0.002)
    return process


ONCE, TWICE = ((signal.SIGINT,) * times for times in (1, 2))


@pytest.mark.parametrize("how", [(signal.SIGKILL,), *(pytest.param(how, marks=pytest.mark.release) for how in (ONCE, TWICE))])
def test_interrupted_build_goes_on(make_folder, tmp_path, how):
    source, out = make_folder(train={"cat": 150}, test={"cat": 1}), tmp_path / "out"
    process = start_build(source, out, workers=2)
    for number in how:
        process.send_signal(number)  # to the parent alone: its workers must end by themselves
        time.sleep(0.01)
    assert process.wait(20) != 0
    assert not (out / "index.json").exists()
    wait_for_group_to_end(process.pid)
    finished = {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in out.glob("*.tar") if (out / ".build" / f"{p.stem}.json").exists()}
    assert finished
    index = build(source, out, images_per_shard=1)
    assert {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in finished} == finished
    assert shards.verify(out, workers=1, progress=False) == []
    written = [".lock", "index.json", "samples.npy", "found.json", "listing.csv.gz", *(s["name"] for s in index.shards)]
    assert sorted(p.name for p in out.iterdir()) == sorted(written)
    with pytest.raises(ConfigError, match="holds the shards of pets"):
        build("digits", out)


def test_the_command_says_how_an_interrupted_build_goes_on(make_folder, tmp_path, monkeypatch, capsys):
    def stopped(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(shards, "build", stopped)
    assert cli.main(["shards", "build", f"folder:{make_folder()}", str(tmp_path / "out")]) == 130
    assert capsys.readouterr().err.endswith("interrupted: what is written is kept; the same command continues the build\n")


def test_a_set_of_one_class_has_a_note(make_folder, tmp_path, capsys):
    assert cli.main(["shards", "build", f"folder:{make_folder(train={'cat': 9}, test={'cat': 2})}", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().err.endswith("note: all images belong to one class, cat: there is nothing to classify\n")


def wait_for_group_to_end(group: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    raise AssertionError("the build's workers outlived it")


def test_another_source_does_not_continue_an_unfinished_build(make_folder, tmp_path):
    source = make_folder()
    (source / "train" / "dog" / "000.png").write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot be decoded"):
        build(source, tmp_path / "out")
    with pytest.raises(ConfigError, match="unfinished build of other data than digits"):
        build("digits", tmp_path / "out")
    with pytest.raises(ConfigError, match=r"out: holds an unfinished build; the same `vitssl shards build SOURCE .*` goes on with it$"):
        shards.info(tmp_path / "out")


def test_two_builds_at_once_write_one_set(make_folder, tmp_path):
    source = make_folder(train={"cat": 60}, test={"cat": 4})
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=build, args=(source, tmp_path / "out")) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert shards.verify(tmp_path / "out", workers=1, progress=False) == []


def test_building_needs_no_torch():
    code = "import sys; from vitssl.data import shards; from vitssl.data.loading import cache; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 0


# -------------------------------------------------------------------------------------------------- load, verify, info


def rewrite(folder: Path, change) -> None:
    """Change the content of an index, samples too, as one who knows how would: with all its sha256."""
    content = json.loads((folder / "index.json").read_text()) | {"samples": np.load(folder / "samples.npy")}
    change(content)
    restate(folder, content.pop("samples"), content)


def restate(folder: Path, rows: np.ndarray, content: dict | None = None) -> None:
    np.save(folder / "samples.npy", rows, allow_pickle=True)
    content = content or json.loads((folder / "index.json").read_text())
    content |= {"samples_sha256": hash_file(folder / "samples.npy")}
    (folder / "index.json").write_text(json.dumps(content | {"index_sha256": _own_sha256(content)}))


def test_index_survives_the_disk(make_shards):
    built = make_shards()
    read = shards.load_index(built.folder)
    assert (read.name, read.sha256, read.classes, read.mean, read.std, read.shards) == (
        built.name,
        built.sha256,
        built.classes,
        built.mean,
        built.std,
        built.shards,
    )
    for column in COLUMNS:
        assert np.array_equal(getattr(read, column), getattr(built, column))


def test_an_index_says_what_was_typed_but_for_what_is_no_text(make_folder, tmp_path):
    for name, known in [("photos", True), ("photos\udcff", False)]:
        source = f"folder:{make_folder(name)}"
        shards.build(source, tmp_path / "out" / name, workers=1, progress=False)
        assert shards.load_index(tmp_path / "out" / name).built_from == (source if known else "")
        assert (f"source   {source}" in shards.info(tmp_path / "out" / name)) == known


ALTERED = {
    "a name with ..": ("shards/0/name", "../train-000000.tar", r"shards\[0\]\.name: '\.\./train-000000\.tar' is not the name of a file"),
    "an absolute name": ("shards/0/name", "/etc/passwd", r"shards\[0\]\.name: '/etc/passwd' is not the name of a file"),
    "a shard that is text": ("shards/0", "train", r"shards\[0\]: 'train' is not a mapping of names"),
    "no split": ("shards/0/split", None, r"shards\[0\]\.split: null is not text"),
    "a negative count": ("shards/0/images", -1, r"shards\[0\]\.images: -1 is not from 0 to 1e\+12"),
    "another count": ("shards/0/images", 5, "samples.offset has 17 values, the shards hold 18 images"),
    "classes": ("classes", "cat", "classes: 'cat' is not a list"),
    "a class that moves the cursor": ("classes/0", "\x1b[2J", r"classes\[0\]: '\\x1b\[2J' holds a control character"),
    "a class that is no text": ("classes/0", "\ud800", r"classes\[0\]: '\\ud800' holds a control character"),
    "a name that sets a title": ("name", "\x1b]0;owned\x07", r"name: '\\x1b\]0;owned\\x07' holds a control character"),
    "a name of two lines": ("name", "a\nb", r"name: 'a\\nb' holds a control character"),
    "a name that is no text": ("name", "\ud800", r"name: '\\ud800' holds a control character"),
    "no name": ("name", None, "name: null is not text"),
    "a split of two lines": ("shards/0/split", "train\x1b[2J\nb", r"shards\[0\]\.split: 'train\\x1b\[2J\\nb' holds a control character"),
    "statistics": ("std", [0.1, float("nan"), 0.1], r"std\[1\]: NaN is not from 0 to 1"),
    "a huge mean": ("mean", [10**400, 0.5, 0.5], r"mean\[0\]: 10{59}\.\.\. is not from 0 to 1"),
    "two statistics": ("mean", [0.1, 0.5], "mean is not three numbers"),
    "huge bytes": ("shards/0/bytes", 10**30, r"shards\[0\]\.bytes: 10{30} is not from 0 to 1e\+12"),
    "more images than bytes": ("shards/0/images", 10**11, "samples.offset has 17 values, the shards hold 100,000,000,013 images"),
    "a label beyond": ("samples/label/3", 2, r"samples\.label\[3\] is 2, which cannot be"),
    "a label below": ("samples/label/3", -2, r"samples\.label\[3\] is -2, which cannot be"),
    "an offset beyond": ("samples/offset/0", 10**9, r"samples\.offset\[0\] is 1,000,000,000, which cannot be"),
    "a size beyond": ("samples/size/0", 10**9, r"samples\.size\[0\] is 1,000,000,000, which cannot be"),
    "a height": ("samples/height/16", 10**9, r"samples\.height\[16\] is 1,000,000,000, which cannot be"),
    "an area": ("samples/width/16", 10**8, r"samples\.width\[16\] is 100,000,000, which cannot be"),
    "no width": ("samples/width/16", 0, r"samples\.width\[16\] is 0, which cannot be"),
}


@pytest.mark.parametrize("case", ALTERED)
def test_an_index_that_cannot_be_is_one_line(make_shards, case):
    """Also with the sha256 of its content: it may come from elsewhere."""
    path, value, words = ALTERED[case]
    folder = make_shards().folder
    *outer, name = (int(key) if key.isdigit() else key for key in path.split("/"))

    def change(content: dict) -> None:
        part = content
        for key in outer:
            part = part[key]
        part[name] = value

    rewrite(folder, change)
    with pytest.raises(ConfigError, match=rf"index\.json: {words}; delete the folder and build the shards again$"):
        read_index(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:-1], "samples.offset has 16 values, the shards hold 17 images"),
        (lambda rows: rows["label"], "samples lacks one of offset, size"),
        (lambda rows: rows.reshape(1, -1), "samples.offset is not a list of whole numbers"),
        (lambda rows: rows.astype(object), "samples.npy: damaged "),
        (lambda rows: rows.astype([(name, "<f8") for name in COLUMNS]), "samples.offset is not a list of whole numbers"),
    ],
)
def test_samples_that_cannot_be_are_one_line(make_shards, change, message):
    folder = make_shards().folder
    restate(folder, change(np.load(folder / "samples.npy")))
    with pytest.raises(ConfigError, match=message) as error:
        read_index(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "index.json").unlink(), r"index\.json does not exist: name a folder that"),
        (lambda f: (f / "index.json").write_text("{"), r"index\.json: damaged"),
        (lambda f: (f / "index.json").write_text("[]"), r"index\.json: not an index of format 2; delete the folder and build the shards"),
        (lambda f: rewrite(f, lambda content: content.update(format=1)), r"index\.json: not an index of format 2; delete the folder and"),
        (lambda f: (f / "index.json").write_text((f / "index.json").read_text().replace('"cat"', '"cow"')), r"index\.json: altered"),
        (lambda f: (f / "samples.npy").unlink(), r"samples\.npy: missing; copy it too"),
        (lambda f: flip(f / "samples.npy", 300), r"^[^(]*samples\.npy: altered, its sha256 is not the one that index\.json states"),
        (lambda f: (f / "train-000001.tar").unlink(), r"train-000001\.tar: missing"),
        (lambda f: os.truncate(f / "train-000002.tar", 5000), r"train-000002\.tar: truncated .* 5,000 bytes instead of"),
    ],
)
def test_load_names_what_is_damaged(make_shards, damage, message):
    folder = make_shards().folder
    damage(folder)
    with pytest.raises(ConfigError, match=message) as error:
        shards.load_index(folder)
    assert "\n" not in str(error.value)


def test_names_that_are_odd_and_can_be_printed_are_kept(make_folder, tmp_path):
    names = ["[bold]", ":smile:", "été 猫 \U0001f600", "a\u200bb", "=1+1", "-x"]
    source = make_folder(**{split: dict.fromkeys(names, 2) for split in ("train", "test")})
    index = shards.build(str(source), tmp_path / "out", workers=1, progress=False)
    assert index.classes == sorted(names)


def test_a_folder_whose_name_is_no_line_is_called_as_it_is_written(make_folder, tmp_path, monkeypatch, capsys):
    odd = tmp_path / os.fsdecode(b"a\nb\x1b\xff")
    make_folder().rename(odd)
    monkeypatch.chdir(odd)
    assert cli.main(["shards", "build", "folder:.", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.startswith(r"a\nb\x1b\udcff: 17 images")


def test_what_findings_name_does_nothing_to_a_terminal(make_shards, capsys):
    folder = make_shards().folder
    (folder / "found.json").write_text(
        json.dumps({"scaled": {"\x1b[2J": 1}, "left_out": [["train", "a\nb", "\x1b]0;x\x07"]], "near_duplicates": [], "equal": []})
    )
    assert cli.main(["shards", "info", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert r"a\nb: \x1b]0;x\x07" in shown and "\x1b" not in shown


def test_verify_names_every_problem(make_shards):
    index = make_shards()
    assert shards.verify(index.folder, workers=2, progress=False) == []
    (index.folder / "train-000000.tar").unlink()
    os.truncate(index.folder / "train-000001.tar", 3000)
    flip(index.folder / "test-000000.tar", int(index.offset[12]) + 30)
    problems = shards.verify(index.folder, workers=1, progress=False)
    patterns = ("test-000000.tar: altered, its sha256", "test-000000.tar: image 12 at byte 512: altered")
    assert [any(p in problem for problem in problems) for p in patterns] == [True, True]
    assert any("train-000000.tar: missing" in p for p in problems)
    assert any("train-000001.tar: truncated" in p for p in problems)
    assert len(problems) == 4


def test_ranks_share_the_check_that_all_shards_are_there(make_shards):
    folder = make_shards().folder
    (folder / "train-000001.tar").unlink()
    assert load_index(folder, rank=0, world_size=2)
    with pytest.raises(ConfigError, match=r"train-000001\.tar: missing"):
        load_index(folder, rank=1, world_size=2)


def test_verify_finds_images_that_were_written_broken(make_shards):
    index = make_shards()
    tar = index.folder / "train-000000.tar"
    start, size = int(index.offset[1]), int(index.size[1])
    with open(tar, "r+b") as stream:
        stream.seek(start)
        stream.write(b"x" * size)

    def cover_up(content):
        content["samples"]["crc32"][1] = zlib.crc32(b"x" * size)
        content["shards"][0]["sha256"] = hash_file(tar)

    rewrite(index.folder, cover_up)
    covered = fingerprint(read_index(index.folder))
    assert covered != index.sha256
    rewrite(index.folder, lambda content: content.update(sha256=covered))
    problems = shards.verify(index.folder, workers=1, progress=False)
    assert len(problems) == 1 and f"train-000000.tar: image 1 at byte {start}: cannot be decoded" in problems[0]


def test_info_counts(make_folder, tmp_path):
    build(make_folder(ragged=False, train={"cat": 7, "dog": 5}, test={"cat": 2, "dog": 2}), tmp_path / "out")
    text = shards.info(tmp_path / "out").splitlines()
    assert text[0] == "pets: 16 images, 2 classes, 4 shards"
    assert text[-2].split() == ["train", "12", "12", "5-7", "12", "x", "10", text[-2].split()[-1]]
    assert text[-1].split()[:4] == ["test", "4", "4", "2"]
    assert not any(line.startswith("warning") for line in text)


def test_classes_of_next_to_no_training_image_are_said(make_folder, tmp_path):
    build(make_folder(train={"cat": 3, "dog": 1}, test={"cat": 1, "dog": 1}), tmp_path / "out")
    assert "warning: classes with fewer than two labelled training images: dog 1" in shards.info(tmp_path / "out").splitlines()
    unequal = "classes are unequal (dog 1, cat 3 training images): metric=balanced_accuracy and "
    assert [unequal in line for line in shards.info(tmp_path / "out").splitlines()].count(True) == 1


def test_a_set_without_a_test_split_is_said_to_be_one(make_folder, tmp_path):
    images = sorted(make_folder().rglob("*.png"))[:3]
    (tmp_path / "a.csv").write_text("path,label\n" + "".join(f"{path},pet\n" for path in images))
    build(f"csv:{tmp_path / 'a.csv'}", tmp_path / "out")
    (line,) = [line for line in shards.info(tmp_path / "out").splitlines() if line.startswith("warning: there is no split called test")]
    assert "?test=0.2&seed=0" in line and "data.folds=5" in line


def test_a_set_without_labels_is_said_to_be_for_pretraining_and_not_to_lack_a_test_split(make_folder, tmp_path):
    build(f"folder:{make_folder()}?unlabeled=.", tmp_path / "out")
    shown = shards.info(tmp_path / "out")
    assert "classes  none, since no image has a label" in shown and "no split called test" not in shown


def test_the_classes_are_named(make_folder, tmp_path):
    build(make_folder(train={"cat": 2, "dog": 2}, test={"cat": 1, "dog": 1}), tmp_path / "out")
    assert "classes  cat, dog" in shards.info(tmp_path / "out").splitlines()


def test_shards_do_not_go_among_the_images(make_folder, tmp_path):
    source = make_folder()
    before = sorted(source.rglob("*"))
    for out in (source, source / "train", tmp_path / "way" / ".." / source.name):
        with pytest.raises(ConfigError, match="holds the images themselves; choose another folder for their shards"):
            build(source, out)
    assert sorted(source.rglob("*")) == before
