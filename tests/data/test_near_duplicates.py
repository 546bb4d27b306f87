"""Copies across splits are found, pictures that are merely alike are not."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance
from sklearn.datasets import load_sample_images

from vitssl.config import ConfigError
from vitssl.data import shards
from vitssl.data.building import findings, near_duplicates
from vitssl.data.building.near_duplicates import equal, find, pairs_of, signatures, thumbnail
from vitssl.data.sources.opening import open_source

SPLITS = {"train": {"cat": 30, "dog": 30}, "test": {"cat": 8, "dog": 8}}


def jpeg(image: Image.Image, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer)


def cropped(image: Image.Image, share: float) -> Image.Image:
    dx, dy = round(share * image.width), round(share * image.height)
    return image.crop((dx, dy, image.width - dx, image.height - dy))


COPIES = {
    "the same": lambda image: image,
    "saved again": lambda image: jpeg(image, 40),
    "halved": lambda image: image.resize((image.width // 2, image.height // 2)),
    "doubled and saved again": lambda image: jpeg(image.resize((image.width * 2, image.height * 2)), 75),
    "squeezed": lambda image: image.resize((image.width, image.width * 3 // 4)),
    "cropped by 1 % at each side": lambda image: cropped(image, 0.01),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.05),
}


@pytest.fixture(scope="module")
def photos() -> list[Image.Image]:
    """Different parts of two photographs, without the plain sky, of which a JPEG keeps little."""
    rng, parts = np.random.default_rng(0), []
    for picture in map(Image.fromarray, load_sample_images().images):
        for top in range(0, 420 - 60, 60):
            for left in range(0, 630 - 60, 60):
                side = int(rng.integers(60, 100))
                parts.append(picture.crop((left, top, left + side, min(427, top + side))))
    return [part for part in parts if np.asarray(part).std(axis=(0, 1)).max() > 10]


def signatures_of(images: list[Image.Image]) -> np.ndarray:
    return signatures([thumbnail(np.asarray(image.convert("RGB"))) for image in images])


@pytest.mark.parametrize("how", COPIES)
def test_copies_are_found_and_others_are_not(photos, how):
    train, test = photos[::2], photos[1::2]
    copies = [COPIES[how](image) for image in train[:20]]
    found = list(find({"train": signatures_of(train), "test": signatures_of([*test, *copies])}))
    assert [(pair.split, pair.of_split) for pair in found] == [("test", "train")] * len(found)
    pairs = {pair.position: pair.of_position for pair in found}
    right = [i for i in range(20) if pairs.get(len(test) + i) == i]
    assert len(right) == 20 and not any(position < len(test) for position in pairs)
    if how == "the same":
        assert all(pair.likeness > 0.9999 for pair in found if pair.position >= len(test))


def test_digits_are_alike_and_not_taken_for_copies():
    """Of 450 test digits 399 have one of likeness 0.9 in the training set: what is a copy depends on the set."""
    source = open_source("digits")
    thumbnails = {split: [thumbnail(np.repeat(s.image[:, :, None], 3, axis=2)) for s in source.splits[split]] for split in source.splits}
    by_split = {split: signatures(images) for split, images in thumbnails.items()}
    assert ((by_split["test"] @ by_split["train"].T).max(axis=1) > near_duplicates.LEAST).sum() > 350
    assert len(list(find(by_split))) <= 1
    copied = by_split | {"test": np.concatenate([by_split["test"], by_split["train"][::100]])}
    assert {(pair.position, pair.of_position) for pair in find(copied)} >= {(450 + i, 100 * i) for i in range(14)}


def test_images_of_one_colour_are_like_none():
    plain = [np.full((9, 9, 3), value, np.uint8) for value in (0, 0, 128, 255)]
    zeros = signatures([thumbnail(pixels) for pixels in plain])
    assert not zeros.any() and not list(find({"train": zeros, "test": zeros}))
    assert signatures([]).shape == (0, 96)


def test_which_splits_are_compared():
    assert pairs_of(["train", "test"]) == [("test", "train")]
    assert pairs_of(["test", "unlabeled", "train", "val"]) == [
        ("test", "unlabeled"),
        ("val", "unlabeled"),
        ("test", "train"),
        ("val", "train"),
        ("val", "test"),
    ]
    assert pairs_of(["train"]) == pairs_of(["train", "unlabeled"]) == []


def test_blocks_do_not_change_what_is_found(monkeypatch):
    rng = np.random.default_rng(0)
    train = signatures(list(rng.integers(0, 256, (100, 16, 16, 3), dtype=np.uint8)))
    by_split = {"train": train, "test": train[::-3].copy()}
    advanced: list[int] = []
    whole = list(find(by_split, advanced.append))
    assert [pair.of_position for pair in whole] == list(range(99, -1, -3)) and sum(advanced) == 34
    monkeypatch.setattr(near_duplicates, "BLOCK", (7, 9))
    assert list(find(by_split)) == whole


@pytest.mark.release
def test_cifars_size_takes_seconds():
    """50,000 x 10,000 images: under two seconds on two quiet cores."""
    rng = np.random.default_rng(0)
    train, test = (signatures(list(rng.integers(0, 256, (count, 16, 16, 3), dtype=np.uint8))) for count in (50_000, 10_000))
    start = time.monotonic()
    assert not list(find({"train": train, "test": test}))
    assert time.monotonic() - start < 30


# ------------------------------------------------------------------------------------------------------------- shards


def add_copies(folder: Path) -> None:
    image = Image.open(folder / "train" / "cat" / "002.png")
    image.resize((3 * image.width, 3 * image.height), Image.Resampling.NEAREST).save(folder / "test" / "dog" / "copy.png")
    Image.open(folder / "train" / "dog" / "005.jpg").save(folder / "test" / "dog" / "more.png")


def build(source: Path, out: Path, **options) -> shards.Index:
    return shards.build(str(source), out, **{"workers": 1, "images_per_shard": 4, "progress": False} | options)


def test_building_lists_copies_and_changes_nothing_else(make_folder, tmp_path):
    folder = make_folder(**SPLITS)
    build(folder, tmp_path / "clean")
    assert json.loads((tmp_path / "clean" / "found.json").read_text()) == {
        "scaled": {}, "left_out": [], "near_duplicates": [], "equal": []
    }  # fmt: skip
    assert "no near-duplicates across splits" in shards.info(tmp_path / "clean").splitlines()
    add_copies(folder)
    index = build(folder, tmp_path / "out", workers=2)
    found = json.loads((tmp_path / "out" / "found.json").read_text())["near_duplicates"]
    assert [row[:4] for row in found] == [
        ["test", "test/dog/copy.png", "train", "train/cat/002.png"],
        ["test", "test/dog/more.png", "train", "train/dog/005.jpg"],
    ]
    assert (
        "warning: 2 of 18 images of test look like one of train: test/dog/more.png ~ train/dog/005.jpg; "
        "test/dog/copy.png ~ train/cat/002.png"
    ) in shards.info(tmp_path / "out").splitlines()
    assert sorted(json.loads((tmp_path / "out" / "index.json").read_text())) == [
        "built_from", "classes", "format", "index_sha256", "mean", "name", "samples_sha256", "sha256", "shards", "source", "std"
    ]  # fmt: skip
    (tmp_path / "out" / "found.json").unlink()
    (tmp_path / "out" / "listing.csv.gz").unlink()
    assert shards.load_index(tmp_path / "out").sha256 == index.sha256
    lines = shards.info(tmp_path / "out").splitlines()
    assert f"near-duplicates across splits are not known: {tmp_path}/out/found.json is missing" in lines
    assert not any(line.startswith("warning") for line in lines)


def test_many_copies_are_counted_and_the_likest_named(make_folder, tmp_path):
    folder = make_folder(**SPLITS)
    for path in sorted((folder / "train" / "cat").iterdir())[:5]:
        (folder / "test" / "cat" / f"copy-{path.name}").write_bytes(path.read_bytes())
    build(folder, tmp_path / "out")
    (line,) = (line for line in shards.info(tmp_path / "out").splitlines() if line.startswith("warning"))
    assert line.startswith("warning: 5 of 21 images of test look like one of train: test/cat/copy-00")
    assert line.endswith(f"; all 5 in {tmp_path}/out/found.json") and line.count(" ~ ") == 3


def test_an_image_that_is_there_twice_is_named_and_one_of_two_classes_warned_of(make_folder, tmp_path):
    folder = make_folder(**SPLITS)
    (folder / "train" / "dog" / "x.jpg").write_bytes((folder / "train" / "cat" / "003.jpg").read_bytes())
    for name in ("y.jpg", "z.jpg"):
        (folder / "train" / "dog" / name).write_bytes((folder / "train" / "dog" / "001.jpg").read_bytes())
    build(folder, tmp_path / "out")  # in shards of four images: equal ones are found across them
    assert [line for line in shards.info(tmp_path / "out").splitlines() if " an earlier one" in line] == [
        "warning: 1 image of train equals an earlier one of another class, so that one label is wrong: train/dog/x.jpg = train/cat/003.jpg",
        "2 images of train equal an earlier one: train/dog/y.jpg = train/dog/001.jpg; train/dog/z.jpg = train/dog/001.jpg",
    ]


def test_equal_images_are_found_whatever_their_batch(photos):
    several, plain = [*photos[:50], photos[7]], Image.new("RGB", (64, 48), "white")
    assert list(equal(signatures_of(several))) == [(50, 7)]
    assert list(equal(np.concatenate([signatures_of(several[:8]), signatures_of(several[8:])]))) == [(50, 7)]
    assert list(equal(signatures_of([plain, plain, jpeg(photos[0], 40), photos[0]]))) == []


WHOLE = {"scaled": {"16 bits": 2}, "left_out": [["train", "a", "broken"]], "near_duplicates": [["train", "a", "test", "b", 0.9]]}
WHOLE |= {"equal": [["train", "b", "a", False]]}


@pytest.mark.parametrize("changed", [{"scaled": {"x": "y"}}, {"scaled": []}, {"left_out": [["a", "b"]]}, {"near_duplicates": 5},
                                     {"near_duplicates": [["a", "b", "c", "d", "e"]]}, {"left_out": None},
                                     {"equal": [["a", "b", "c", 1]]}])  # fmt: skip
def test_findings_that_are_damaged_are_one_line(make_shards, changed):
    index = make_shards()
    (index.folder / findings.FILE).write_text(json.dumps(WHOLE))
    assert len(findings.lines(index)) == 4
    (index.folder / findings.FILE).write_text(json.dumps(WHOLE | changed))
    with pytest.raises(ConfigError, match=rf"found\.json: {next(iter(changed))} has unexpected content: restore the file") as error:
        findings.lines(index)
    assert "\n" not in str(error.value)


def test_classes_that_may_be_one_are_told(make_folder, tmp_path):
    counts = {"Red fox": 2, "c": 2, "c+": 2, "red_fox": 2, "red  Fox": 2, "1_23": 2, "12_3": 2}
    folder = make_folder(train=counts, test=counts)
    build(folder, tmp_path / "out")
    twins = [line for line in shards.info(tmp_path / "out").splitlines() if "differ" in line]
    assert twins == ["warning: classes that differ only in case, spaces or underscores: 'Red fox' and 'red  Fox' and 'red_fox'"]
