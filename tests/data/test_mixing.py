"""Large splits are written in random order, so that training can read their shards one after the other."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from vitssl.config import ConfigError
from vitssl.data import shards
from vitssl.data.building import findings, inspecting, names, writing
from vitssl.data.index import read_image
from vitssl.data.loading import order

COUNTS = {"train": {"cat": 30, "dog": 30}, "test": {"cat": 3, "dog": 3}}


def build(source, out, **options):
    return shards.build(str(source), out, **{"workers": 1, "images_per_shard": 4, "progress": False} | options)


def pixels(index, split: str) -> dict[bytes, int]:
    """The images of a split, with their labels."""
    found = {}
    for number, shard in enumerate(index.shards):
        if shard["split"] == split:
            with open(index.folder / shard["name"], "rb") as stream:
                for position in np.flatnonzero(index.shard == number):
                    found[read_image(stream.fileno(), index, position).tobytes()] = int(index.label[position])
    return found


def test_a_large_split_is_mixed_and_a_small_one_as_it_is_listed(make_folder, tmp_path, monkeypatch, capsys):
    source = make_folder(**COUNTS)
    sorted_ = build(source, tmp_path / "sorted", images_per_shard=20)
    assert not order.is_mixed(sorted_, np.arange(60))
    monkeypatch.setattr(writing, "SHUFFLE_WINDOW", 59)
    monkeypatch.setattr(inspecting, "SHUFFLE_WINDOW", 59)
    mixed = build(source, tmp_path / "mixed", images_per_shard=20)
    assert order.is_mixed(mixed, np.arange(60))
    assert "order    sorted by class: where they are streamed, each image is read at random" in shards.info(sorted_.folder)
    assert "order  " not in shards.info(mixed.folder)
    assert pixels(mixed, "train") == pixels(sorted_, "train") and pixels(mixed, "test") == pixels(sorted_, "test")
    assert mixed.label[60:].tolist() == sorted_.label[60:].tolist() == [0, 0, 0, 1, 1, 1]
    assert not shards.verify(mixed.folder, workers=1, progress=False)
    assert build(source, tmp_path / "again", images_per_shard=20).sha256 == mixed.sha256 != sorted_.sha256
    assert build(source, tmp_path / "sorted", images_per_shard=20).sha256 == sorted_.sha256, "shards of before hold the same images"
    assert "already holds all shards" in capsys.readouterr().err


def test_what_is_found_in_mixed_shards_has_its_name(make_folder, tmp_path, monkeypatch):
    source = make_folder(**COUNTS)
    monkeypatch.setattr(writing, "SHUFFLE_WINDOW", 59)
    bad = source / "train" / "dog" / "007.jpg"
    bad.write_bytes(bad.read_bytes()[:60])
    (source / "test" / "cat" / "001.jpg").write_bytes((source / "train" / "cat" / "011.jpg").read_bytes())
    with pytest.raises(ConfigError, match=r"train/dog/007\.jpg: cannot be decoded"):
        build(source, tmp_path / "out")
    index = build(source, tmp_path / "out", skip_bad=True)
    found = findings.read(index.folder)
    assert [name for _, name, _ in found.left_out] == ["train/dog/007.jpg"] and len(index) == 65
    assert [pair[:4] for pair in found.near_duplicates] == [["test", "test/cat/001.jpg", "train", "train/cat/011.jpg"]]


def test_a_stopped_build_of_a_large_split_goes_on(make_folder, tmp_path, monkeypatch):
    source = make_folder(**COUNTS)
    monkeypatch.setattr(writing, "SHUFFLE_WINDOW", 59)
    whole = build(source, tmp_path / "whole")
    written, write = [], writing.write

    def stop_at_the_tenth(task):
        if len(written) == 10:
            raise KeyboardInterrupt
        written.append(task[0].tar.name)
        return write(task)

    monkeypatch.setattr(writing, "write", stop_at_the_tenth)
    with pytest.raises(KeyboardInterrupt):
        build(source, tmp_path / "out")
    monkeypatch.setattr(writing, "write", lambda task: (written.append(task[0].tar.name), write(task))[1])
    assert build(source, tmp_path / "out").sha256 == whole.sha256
    assert len(written) == len(set(written)) == 17, "none is written twice"


def test_each_image_has_the_name_of_its_file(make_folder, tmp_path, monkeypatch):
    source = make_folder(**COUNTS)
    bad = source / "train" / "dog" / "007.jpg"
    bad.write_bytes(bad.read_bytes()[:60])
    of_before = build(source, tmp_path / "sorted", skip_bad=True)
    for window in (59, 60):  # mixed, and as it is listed
        monkeypatch.setattr(writing, "SHUFFLE_WINDOW", window)
        index = build(source, tmp_path / str(window), skip_bad=True)
        found = names.of_images(index)
        assert len(set(found)) == len(index) == 65
        for position, name in enumerate(found):
            with open(index.folder / index.shards[index.shard[position]]["name"], "rb") as stream:
                image = Image.fromarray(read_image(stream.fileno(), index, position))
            assert np.array_equal(image, Image.open(source / name).convert("RGB")), name
    monkeypatch.setattr(writing, "SHUFFLE_WINDOW", 59)
    assert names.of_images(of_before) is None, "listed alike, but written in another order"
    (index.folder / "listing.csv.gz").unlink()
    assert names.of_images(index) is None
