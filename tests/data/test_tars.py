"""Tars, and names of them, that a WebDataset cannot be read from: each is named in a line."""

from __future__ import annotations

import gzip
import os
import re
from pathlib import Path

import pytest

from tests.data.webdatasets import PNG, build, cut, encoded, members, pets, refused, write_members, write_set, write_tar
from vitssl import cli
from vitssl.data import shards
from vitssl.data.building import findings
from vitssl.data.sources.webdatasets import ENDINGS, name_of


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


def append(tar: Path) -> None:
    """As by cat: who reads it, webdataset too, stops at the end of the first."""
    tar.write_bytes(tar.read_bytes() + write_tar(tar.with_name("more.tar"), pets(2, 50)).read_bytes())


NO_TAR = {  # how a tar of six samples is spoilt, how many of them are read, and the line that is to be
    "truncated": (cut, 5, r"is cut short or damaged after pet/005\.cls \(pet/005\.png is not all there\)"),
    "truncated between two members": (
        cut_between_members,
        1,
        r"is cut short or damaged after pet/001\.png \(it does not end as a tar does\)",
    ),
    "a damaged header": (damage_a_header, 1, r"is cut short or damaged after pet/001\.png \(it does not end as a tar does\)"),
    "compressed": (zipped, 0, r"is compressed \(gzip\), so that no image can be read without all before it; uncompress it"),
    "a page": (a_page, 0, r"is not a tar, or damaged at its beginning \(.+\)"),
    "one behind the other": (append, 6, r"[\d,]+ bytes that follow its end are not read, as of tars that were put one behind the other"),
    "nothing": (lambda tar: tar.write_bytes(b""), 0, r"is not a tar, or damaged at its beginning \(empty file\)"),
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


BAD = {  # members of one tar beside good ones, and the line that is to be
    "no label": ([("a.png", PNG)], "a: has no member cls with its label, but png; label=... says which has"),
    "no image": ([("a.cls", b"0")], f"a: has no image ({', '.join(ENDINGS)}), but cls"),
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
        ("/data/zoo/train-000000.tar", "zoo"),
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
    "an option twice": ("train-*.tar?test=test-00.tar&label=cls&label=txt", "label is there twice, as cls and as txt; leave out one"),
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
