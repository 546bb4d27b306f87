"""WebDatasets that somebody else wrote, read in place."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import webdataset

from tests.data.webdatasets import build, cut, encoded, pets, refused, write_set, write_tar
from vitssl import config, train
from vitssl.config import ConfigError, Data
from vitssl.data import shards
from vitssl.data.building import findings, names
from vitssl.data.index import Index
from vitssl.data.loading.loader import EvalLoader
from vitssl.data.sources.opening import open_source

CLASSES = ["cat", "dog", "emu"]
COUNTS = {"train": {name: 4 for name in CLASSES}, "test": {name: 2 for name in CLASSES}}
WAYS = {  # how people write labels: the members beside the image, and the options that read them
    "numbers": (lambda k: {"cls": k}, ""),
    "numbers in JSON": (lambda k: {"json": {"label": k, "caption": "a pet"}}, "&label=json.label"),
    "names in JSON": (lambda k: {"meta.json": {"class": {"name": CLASSES[k]}}}, "&label=meta.json.class.name"),
    "names": (lambda k: {"txt": CLASSES[k] + "\n"}, "&label=txt"),
    "names and a file": (lambda k: {"txt": CLASSES[k]}, "&label=txt&classes=names.txt"),
    "numbers and a file": (lambda k: {"cls": k}, "&classes=names.txt"),
}


def from_folder(root: Path, way: str) -> str:
    """The images of PATH/<split>/<class> in tars, in their order, with labels written in a way."""
    beside, options = WAYS[way]
    for split, samples in open_source(str(root)).splits.items():
        listed = list(enumerate(samples))
        for number, part in enumerate((listed[:5], listed[5:])):
            named = ((i, Path(str(sample.image)), sample.label) for i, sample in part)
            written = [{"__key__": f"{i:04d}", path.suffix[1:]: path.read_bytes(), **beside(label)} for i, path, label in named]
            write_tar(root / f"{split}-{number}.tar", written)
    (root / "names.txt").write_text("".join(f"{name}\n" for name in CLASSES))
    return f"wds:{root}/train-{{0..1}}.tar?test=test-*.tar{options}"


def pixels_and_labels(index: Index, cache: Path, split: str, cache_gb: float = 1.0) -> list[np.ndarray]:
    positions, data = index.where(split), Data(shards="unused", cache_dir=str(cache), cache_gb=cache_gb, workers=0)
    (batch,) = EvalLoader(index, positions, index.label, data, batch_size=100)
    return [batch.pixels.numpy(), batch.sizes_B2.numpy(), batch.labels_B.numpy()]


# ------------------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("way", WAYS)
def test_tars_in_place_hold_what_a_folder_of_their_images_holds(make_folder, tmp_path, way):
    root = make_folder("pets [1]", **COUNTS)
    source = from_folder(root, way)
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in root.glob("*.tar")}
    folder, tars = build(str(root), tmp_path / "folder"), build(source, tmp_path / "tars", workers=2)
    assert tars.classes == (["0", "1", "2"] if way.startswith("numbers") and not way.endswith("file") else CLASSES)
    assert (tars.name, tars.mean, tars.std) == ("pets [1]", folder.mean, folder.std)
    for split in ("train", "test"):
        of_folder = pixels_and_labels(folder, tmp_path, split)
        for cache_gb in (1.0, 0.0):  # from the cache, and streamed
            of_tars = pixels_and_labels(tars, tmp_path, split, cache_gb)
            assert all(np.array_equal(a, b) for a, b in zip(of_folder, of_tars, strict=True))
    links = sorted((tmp_path / "tars").glob("*.tar"))
    assert [path.name for path in links] == ["test-000000.tar", "test-000001.tar", "train-000000.tar", "train-000001.tar"]
    assert [Path(os.readlink(path)) for path in links] == [
        root / name for name in ("test-0.tar", "test-1.tar", "train-0.tar", "train-1.tar")
    ]
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in root.glob("*.tar")} == before
    assert shards.verify(tmp_path / "tars", workers=1, progress=False) == []
    assert [row[1] for row in findings.read(tmp_path / "tars").near_duplicates] == []
    assert shards.info(tmp_path / "tars").startswith("pets [1]: 18 images, 3 classes, 4 shards")


def test_images_without_labels_have_tars_of_their_own(tmp_path):
    source = write_set(tmp_path)
    write_tar(tmp_path / "more.tar", [{"__key__": f"x{i}", "png": encoded(200 + i)} for i in range(4)])
    write_tar(tmp_path / "val.tar", pets(3, 300))
    index = build(f"{source}&unlabeled=more.tar&val={tmp_path}/val.tar", tmp_path / "out")
    assert index.splits == ["train", "test", "val", "unlabeled"]
    assert index.label[index.where("unlabeled")].tolist() == [-1] * 4
    assert index.label[index.where("val")].tolist() == [0, 1, 2]


def test_our_own_shards_are_a_webdataset_too(make_shards, tmp_path):
    written = make_shards()
    again = build(f"wds:{written.folder}/train-*.tar?test=test-*.tar", tmp_path / "out")
    assert again.mean == written.mean and again.crc32.tolist() == written.crc32.tolist() and again.label.tolist() == written.label.tolist()
    assert again.offset.tolist() == written.offset.tolist()
    assert names.of_images(again) is None and names.of_images(written) is not None


def test_a_copy_of_a_test_image_is_named_by_tar_and_member(tmp_path):
    source = write_set(tmp_path)
    write_tar(tmp_path / "test-00.tar", [{"__key__": "copy", "png": encoded(7), "cls": 1}, *pets(2, 100)])
    index = build(source, tmp_path / "out")
    assert [row[:4] for row in findings.read(index.folder).near_duplicates] == [
        ["test", "test-00.tar: copy.png", "train", "train-01.tar: pet/007.png"]
    ]


def test_what_webdataset_leaves_out_is_left_out(tmp_path):
    source = write_set(tmp_path)
    with tarfile.open(tmp_path / "train-00.tar", "a") as tar:
        for name in ("README", ".hidden/._x.png", "__meta__/info.json"):
            tar.addfile(tarfile.TarInfo(name))
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            member = tarfile.TarInfo("pet/900.png")
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
    assert len(build(source, tmp_path / "out")) == 15
    read = webdataset.WebDataset(str(tmp_path / "train-00.tar"), shardshuffle=False, empty_check=False)
    assert [sample["__key__"] for sample in read if "cls" in sample] == [f"pet/{i:03d}" for i in range(6)]


@pytest.mark.release
def test_a_member_beyond_all_memory_is_no_image(tmp_path):
    source = write_set(tmp_path)
    content = (tmp_path / "train-00.tar").read_bytes()
    huge = tarfile.TarInfo("pet/zzz.png")
    huge.size = 2_048_000_000  # a multiple of 512, on the disk a hole
    with open(tmp_path / "train-00.tar", "wb") as stream:
        stream.write(huge.tobuf())
        stream.seek(huge.size, 1)
        stream.write(label_of("pet/zzz") + content)
    with pytest.raises(ConfigError, match=r"train-00\.tar: pet/zzz\.png: 2,048,000,000 bytes, more than 1,073,741,824, are not an image"):
        build(source, tmp_path / "out")


def label_of(key: str) -> bytes:
    member = tarfile.TarInfo(f"{key}.cls")
    member.size = 1
    return member.tobuf() + b"0".ljust(512, b"\0")


def test_it_trains_in_place(make_run, tmp_path):
    build(write_set(tmp_path), tmp_path / "out")
    run = make_run({"objectives.classify": {}, "optim.batch_size": 4, "loop.epochs": 1}, shards=tmp_path / "out")
    config.save(run, tmp_path / "run")
    assert train.main([str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "done.json").exists()


# ------------------------------------------------------------------------------------------------- again, and afterwards


def test_a_build_continues_and_is_done_once(tmp_path, capsys):
    source = write_set(tmp_path)
    good = (tmp_path / "train-01.tar").read_bytes()
    cut(tmp_path / "train-01.tar")
    refused(source, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / ".build").glob("*.json")}
    (tmp_path / "train-01.tar").write_bytes(good)
    read = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards.finishing, "index_of", lambda *arguments: read.append(1) or 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build(source, tmp_path / "out")
    after = {path: path.stat().st_mtime_ns for path in before}
    assert [path.name for path in before if before[path] != after[path]] == ["train-000001.json"]
    index = build(source, tmp_path / "out")
    assert len(index) == 15 and not (tmp_path / "out" / ".build").exists()
    capsys.readouterr()
    assert build(source, tmp_path / "out").sha256 == index.sha256
    assert "nothing to do" in capsys.readouterr().err


def test_tars_that_have_changed_are_noticed_and_read_again(tmp_path):
    source = write_set(tmp_path)
    first = build(source, tmp_path / "out")
    size = (tmp_path / "train-01.tar").stat().st_size
    write_tar(tmp_path / "train-01.tar", [sample | {"cls": 0} for sample in pets(6, 6)])
    assert (tmp_path / "train-01.tar").stat().st_size == size
    os.utime(tmp_path / "train-01.tar", (1, 1))
    message = refused(source, tmp_path / "out")
    assert "1 tar with other content (train-01.tar); `vitssl shards build 'wds:" in message and message.endswith("choose another folder")
    second = build(source, tmp_path / "out", shards.rebuild)
    assert second.sha256 != first.sha256 and second.label[6:12].tolist() == [0] * 6
    (tmp_path / "names.txt").write_text("cat\ndog\nemu\n")
    assert "read with other options" in refused(f"{source}&image=png", tmp_path / "out")
    assert "classes added: cat, dog, emu" in refused(f"{source}&classes=names.txt", tmp_path / "out")


def test_tars_that_have_moved_are_missing_by_name_and_are_found_again(tmp_path):
    index = build(write_set(tmp_path / "a"), tmp_path / "out")
    shutil.copytree(tmp_path / "a", tmp_path / "b")  # with its times
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(ConfigError) as error:
        shards.load_index(tmp_path / "out")
    assert str(error.value) == (
        f"{tmp_path}/out/train-000000.tar: what it links to is gone, {tmp_path}/a/train-00.tar; put that back, "
        "or build from where it is now with --rebuild"
    )
    moved = build(f"wds:{tmp_path}/b/train-{{00..01}}.tar?test=test-{{00..00}}.tar", tmp_path / "out", shards.rebuild)
    assert (moved.sha256, moved.source) == (index.sha256, index.source)


def test_an_index_does_not_go_among_the_links_that_it_would_replace(tmp_path):
    build(write_set(tmp_path / "a"), tmp_path / "out")
    message = refused(f"wds:{tmp_path}/out/train-*.tar?test=test-*.tar", tmp_path / "out", call=shards.rebuild)
    assert "holds the images themselves" in message


def test_listing_reads_no_tar(tmp_path):
    """A set of millions of images is listed for each sweep."""
    source = write_set(tmp_path)
    for tar in tmp_path.glob("*.tar"):
        tar.write_bytes(b"no tar at all")
    opened = open_source(source)
    assert [sample.name for _, sample in opened.samples()] == ["train-00.tar", "train-01.tar", "test-00.tar"]
    assert json.dumps(opened.head) and opened.classes == []
