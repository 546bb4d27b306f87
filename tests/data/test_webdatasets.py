"""WebDatasets that somebody else wrote, read in place."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import webdataset
from PIL import Image

from vitssl import cli, config, train
from vitssl.config import ConfigError, Data
from vitssl.data import findings, shards
from vitssl.data.index import Index
from vitssl.data.loader import EvalLoader
from vitssl.data.sources import open_source
from vitssl.data.webdatasets import name_of

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


def encoded(seed: int, kind: str = "PNG", mode: str = "RGB") -> bytes:
    """An image of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (12, 10, 3), dtype=np.uint8)
    image, buffer = Image.fromarray(pixels if mode == "RGB" else pixels[:, :, 0].astype(np.uint16) * 16), io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def write_tar(path: Path, samples: list[dict]) -> Path:
    """A tar as webdataset writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with webdataset.TarWriter(str(path)) as tar:
        for sample in samples:
            tar.write(sample)
    return path


def pets(count: int, first: int = 0) -> list[dict]:
    """Samples with numbers for labels, of three classes in turn."""
    return [{"__key__": f"pet/{first + i:03d}", "png": encoded(first + i), "cls": (first + i) % 3} for i in range(count)]


def write_set(root: Path) -> str:
    """Two training tars of six images and a test tar of three; what names them."""
    write_tar(root / "train-00.tar", pets(6))
    write_tar(root / "train-01.tar", pets(6, 6))
    write_tar(root / "test-00.tar", pets(3, 100))
    return f"wds:{root}/train-{{00..01}}.tar?test=test-{{00..00}}.tar"


def build(source: str, out: Path, call=shards.build, **options) -> Index:
    return call(source, out, **{"workers": 1, "progress": False} | options)


def refused(source: str, out: Path, **options) -> str:
    with pytest.raises(ConfigError) as error:
        build(source, out, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


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
    return [batch.images_BCHW.numpy(), batch.sizes_B2.numpy(), batch.labels_B.numpy()]


# ------------------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("way", WAYS)
def test_tars_in_place_hold_what_a_folder_of_their_images_holds(make_folder, tmp_path, way):
    root = make_folder("pets", **COUNTS)
    source = from_folder(root, way)
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in root.glob("*.tar")}
    folder, tars = build(str(root), tmp_path / "folder"), build(source, tmp_path / "tars", workers=2)
    assert tars.classes == (["0", "1", "2"] if way.startswith("numbers") and not way.endswith("file") else CLASSES)
    assert (tars.name, tars.mean, tars.std) == ("pets", folder.mean, folder.std)
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
    assert shards.info(tmp_path / "tars").startswith("pets: 18 images, 3 classes, 4 shards")


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


def test_it_trains_in_place(make_run, tmp_path):
    build(write_set(tmp_path), tmp_path / "out")
    run = make_run({"objectives.classify": {}, "optim.batch_size": 4, "loop.epochs": 1}, shards=tmp_path / "out")
    config.save(run, tmp_path / "run")
    assert train.main([str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "done.json").exists()


# ------------------------------------------------------------------------------------------------------ what goes wrong


def members(tar: Path) -> list[tarfile.TarInfo]:
    with tarfile.open(tar) as opened:
        return opened.getmembers()


def cut(tar: Path) -> None:
    os.truncate(tar, members(tar)[-1].offset_data + 9)


def cut_between_members(tar: Path) -> None:
    os.truncate(tar, members(tar)[4].offset)


def damage_a_header(tar: Path) -> None:
    start = members(tar)[4].offset
    with open(tar, "r+b") as stream:
        stream.seek(start + 100)
        stream.write(b"garbage")


def zipped(tar: Path) -> None:
    tar.write_bytes(gzip.compress(tar.read_bytes()))


def a_page(tar: Path) -> None:
    tar.write_bytes(b"<html>404 Not Found</html>" * 40)


NO_TAR = {  # how a tar of six samples is spoilt, how many of them are read, and the line that is to be
    "truncated": (cut, 5, r"is cut short or damaged after pet/005\.cls \(pet/005\.png is not all there\)"),
    "truncated between two members": (
        cut_between_members,
        1,
        r"is cut short or damaged after pet/001\.png \(it does not end as a tar does\)",
    ),
    "a damaged header": (damage_a_header, 1, r"is cut short or damaged after pet/001\.png \(it does not end as a tar does\)"),
    "compressed": (zipped, 0, r"is compressed \(gzip\), so that no image can be read without all before it; uncompress it"),
    "a page": (a_page, 0, r"is no tar, or damaged at its beginning \(.+\)"),
    "nothing": (lambda tar: tar.write_bytes(b""), 0, r"is no tar, or damaged at its beginning \(empty file\)"),
}


@pytest.mark.parametrize("case", NO_TAR)
def test_a_tar_that_is_none_is_named(tmp_path, case):
    source, (damage, before, message) = write_set(tmp_path), NO_TAR[case]
    damage(tmp_path / "train-00.tar")
    found = refused(source, tmp_path / "out")
    assert found.startswith(f"{tmp_path}/train-00.tar: ")
    assert re.search(message, found)
    kept = build(source, tmp_path / "out", skip_bad=True)  # what is before the damage, and the other tar
    (row,) = findings.read(kept.folder).left_out
    assert row[:2] == ["train", "train-00.tar"] and len(kept.where("train")) == 6 + before


PNG = encoded(999)
BAD = {  # members of one tar beside good ones, and the line that is to be
    "no label": ([("a.png", PNG)], "a: has no member cls with its label, but png; label=... says which has"),
    "no image": ([("a.cls", b"0")], "a: has no image (jpg, jpeg, png, bmp, gif, ppm, pgm, tif, tiff, webp, avif, jp2), but cls"),
    "two images": ([("a.png", PNG), ("a.JPG", PNG), ("a.cls", b"0")], "a: has several images, jpg and png; image=... says which is meant"),
    "a member twice": ([("a.png", PNG), ("a.cls", b"0"), ("a.cls", b"1")], "a: has two members cls"),
    "a sample twice": (
        [("pet/006.png", PNG), ("pet/006.cls", b"0")],
        "pet/006: occurs a second time; a sample's members stand next to each other, and its name is its own",
    ),
    "a name above": (
        [("../../a.png", PNG), ("../../a.cls", b"0")],
        "../../a: its name leads out of the folder that the tar is unpacked into",
    ),
    "an absolute name": (
        [("/etc/a.png", PNG), ("/etc/a.cls", b"0")],
        "/etc/a: its name leads out of the folder that the tar is unpacked into",
    ),
    "a name of control characters": ([("a\x1b[2J\nb.png", PNG)], r"a\x1b[2J\nb: has no member cls"),
    "a negative label": (
        [("a.png", PNG), ("a.cls", b"-1")],
        "a.cls: label -1 is negative; put images without a class into tars of their own",
    ),
    "an empty label": ([("a.png", PNG), ("a.cls", b" \n")], "a.cls: expected a number or a name in a line, not ''"),
    "a label of two lines": ([("a.png", PNG), ("a.cls", b"cat\ndog")], r"a.cls: expected a number or a name in a line, not 'cat\ndog'"),
    "a label that is no text": ([("a.png", PNG), ("a.cls", b"\xff\xfe")], "a.cls: is not text in UTF-8 ("),
    "a label beyond": (
        [("a.png", PNG), ("a.cls", b"9" * 30)],
        f"a.cls: {'9' * 30} as the number of a class would make more than 1,000,000",
    ),
    "a broken image": ([("a.png", PNG[:60]), ("a.cls", b"0")], "a.png: cannot be decoded as an image ("),
    "an image of 16 bits": (
        [("a.png", encoded(1, mode="I;16")), ("a.cls", b"0")],
        "which shards hold scaled to 8 bits; unpack the tars and build from list: or csv:",
    ),
}


def write_members(path: Path, members: list[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "a") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize("case", BAD)
def test_a_sample_that_cannot_be_used_is_named_and_may_be_left_out(tmp_path, case):
    source, (members, message) = write_set(tmp_path), BAD[case]
    write_members(tmp_path / "train-01.tar", [("pet/001.png", PNG), ("pet/001.cls", b"0"), *members])
    found = refused(source, tmp_path / "out")
    assert found.startswith(f"{tmp_path}/train-01.tar: ") and message in found
    index = build(source, tmp_path / "out", skip_bad=True)
    assert (len(index), index.classes) == (16, ["0", "1", "2"])
    assert len(findings.read(index.folder).left_out) == 1
    assert shards.verify(index.folder, workers=1, progress=False) == []


def test_all_bad_samples_are_listed_at_once(tmp_path, capsys):
    source = write_set(tmp_path)
    write_members(tmp_path / "train-00.tar", [("a.png", PNG), ("b.cls", b"0")])
    cut(tmp_path / "test-00.tar")
    assert cli.main(["shards", "build", source, str(tmp_path / "out"), "--workers", "2"]) == 2
    error = capsys.readouterr().err
    assert "error: 3 images cannot be used, listed in" in error
    assert [line.split(": ")[0] for line in (tmp_path / "out" / "bad_images.txt").read_text().splitlines()] == [
        f"{tmp_path}/train-00.tar", f"{tmp_path}/train-00.tar", f"{tmp_path}/test-00.tar",
    ]  # fmt: skip


JSON = {
    "no JSON": (b"{", "a.json: is not JSON ("),
    "deep JSON": (b"[" * 100_000, "a.json: is not JSON ("),
    "no field": (b'{"class": 1}', "a.json: has no field label"),
    "no object": (b"7", "a.json: has no field label"),
    "half a number": (b'{"label": 1.5}', "a.json: label is 1.5, neither a whole number nor a name"),
    "yes": (b'{"label": true}', "a.json: label is True, neither a whole number nor a name"),
    "a negative number": (b'{"label": -1}', "a.json: label -1 is negative"),
    "an unknown number": (b'{"label": 3}', "a.json: '3' is none of the 3 classes in the file, by name or by number from 0"),
    "an unknown name": (b'{"label": "gnu"}', "a.json: 'gnu' is none of the 3 classes in the file, by name or by number from 0"),
}


@pytest.mark.parametrize("case", JSON)
def test_a_label_in_json_that_is_none_is_named(tmp_path, case):
    content, message = JSON[case]
    for split in ("train", "test"):
        write_tar(
            tmp_path / f"{split}.tar",
            [{"__key__": f"{k}", "png": encoded(k + 9 * (split == "test")), "json": {"label": k}} for k in range(3)],
        )
    (tmp_path / "names.txt").write_text("cat\ndog\nemu\n")
    write_members(tmp_path / "train.tar", [("a.png", PNG), ("a.json", content)])
    source = f"wds:{tmp_path}/train.tar?test=test.tar&label=json.label&classes=names.txt"
    found = refused(source, tmp_path / "out")
    assert found.startswith(f"{tmp_path}/train.tar: {message}")
    assert len(build(source, tmp_path / "out", skip_bad=True)) == 6


def test_a_class_that_training_lacks_is_named(tmp_path):
    source = write_set(tmp_path)
    write_members(tmp_path / "test-00.tar", [("a.png", PNG), ("a.cls", b"7")])
    message = f"{tmp_path}/test-00.tar: a.png: class '7' of split 'test' does not occur in the train split"
    assert refused(source, tmp_path / "out") == refused(source, tmp_path / "out", skip_bad=True) == message
    (tmp_path / "names.txt").write_text("".join(f"{name}\n" for name in "abcdefgh"))
    assert build(f"{source}&classes=names.txt", tmp_path / "out").classes == [*"abcdefgh"]


@pytest.mark.parametrize(
    ("tars", "name"),
    [
        ("/data/imagenet-train-{0000..1281}.tar", "imagenet"),
        ("/data/zoo.tar", "zoo"),
        ("/data/zoo/train_*.tar", "zoo"),
        ("/data/zoo/train/{000..146}.tar", "zoo"),
        ("/data/restrain-{0..1}.tar", "restrain"),
        ("/{0..1}.tar", "wds"),
    ],
)
def test_a_set_is_called_by_its_tars_or_their_folder(tars, name):
    assert name_of(tars) == name


def test_a_split_of_which_nothing_is_left_is_refused(tmp_path):
    source = write_set(tmp_path / "pets")
    write_tar(tmp_path / "pets" / "test-00.tar", [])
    assert refused(source, tmp_path / "out").startswith(
        f"{tmp_path}/pets/test-00.tar: holds no files that belong to a sample, such as 000.jpg"
    )
    assert refused(source, tmp_path / "out", skip_bad=True) == "pets: no image of split 'test' can be used"


OPTIONS = {
    "no test tars": ("train-*.tar", "no test split; name the tars to test on, as in 'wds:{root}/train-*.tar?test=test-{{000..009}}.tar'"),
    "a share": ("train-*.tar?test=0.2", "test=0.2 would divide tars, which stay as they are; name the tars to test on, as in"),
    "no such tar": ("train-{{00..03}}.tar?test=test-00.tar", "there is no tar {root}/train-02.tar (and 1 more of 4)"),
    "nothing that matches": ("train-*.tar?test=val-*.tar", "{root}/val-*.tar: no tar matches {root}/val-*.tar"),
    "a folder": ("?test=test-00.tar", "there is no tar {root}"),
    "an open brace": ("train-{{00..01.tar?test=test-00.tar", "a brace is open; expected, for example, train-{{000..146}}.tar"),
    "numbers without end": ("train-{{0..99999999999}}.tar?test=test-00.tar", "{{0..99999999999}} are more than 1,000,000 tars"),
    "a tar in two splits": ("train-*.tar?test=train-01.tar", "{root}/train-01.tar is named twice; each tar belongs to one split"),
    "no field": (
        "train-*.tar?test=test-00.tar&label=json",
        "label=json does not say where in the JSON the label stands; write label=json.",
    ),
    "an unknown option": ("train-*.tar?labels=cls", "unknown option 'labels'; known: test, val, unlabeled, image, label, classes"),
    "no names": ("train-*.tar?test=test-00.tar&classes=none.txt", "none.txt: names no classes; expected one on each line"),
    "a name twice": ("train-*.tar?test=test-00.tar&classes=twice.txt", "twice.txt: names class 'cat' twice"),
    "years": ("train-*.tar?test=test-00.tar&classes=years.txt", "years.txt: calls class 0 '1', a number that a label may mean"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_what_names_no_tars_is_one_line(tmp_path, case):
    write_set(tmp_path)
    for name, content in {"none": "\n", "twice": "cat\ndog\ncat\n", "years": "1\n2\n3\n"}.items():
        (tmp_path / f"{name}.txt").write_text(content)
    typed, message = (text.format(root=tmp_path) for text in OPTIONS[case])
    assert message in refused(f"wds:{tmp_path}/{typed}", tmp_path / "out")
    assert not (tmp_path / "out").exists()


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
