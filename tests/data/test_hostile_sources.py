"""Lists, arrays and names of sources that somebody wrote who means harm, or that a disk damaged: one line, soon, without memory."""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from tests import fuzz
from vitssl.config import ConfigError
from vitssl.data.sources.opening import check_order, open_source

KINDS = ("", "folder:", "list:", "cub:", "npz:", "idx:", "csv:", "wds:", "torchvision:")


def refused(source: str) -> str:
    """The message; that of what waits or never ends is the outcome of the fuzzer."""
    assert (outcome := fuzz.outcome(lambda _: open_source(source), b"")) == "refused", outcome
    with pytest.raises(ConfigError) as error:
        open_source(source)
    return str(error.value)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("L", (4, 3)).save(tmp_path / name)
    return tmp_path


# --------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["x" * 5_000, "x/" * 3_000, "a\nb", "a\0b", "\x1b[2J"])
def test_a_name_that_no_file_can_have_is_one_line(kind, name, tmp_path):
    assert "\n" not in refused(f"{kind}{name}")
    check_order(f"{kind}{name}", tmp_path / "out")


@pytest.mark.parametrize("option", ["test", "val", "seed", "classes"])
@pytest.mark.parametrize("value", ["9" * 5_000, "0x" + "f" * 9_000, "1e" + "9" * 5_000, "x" * 5_000])
def test_options_of_any_length_are_one_line(place, option, value):
    assert place.name in refused(f"folder:{place}?{'test=0.5&' if option != 'test' else ''}{option}={value}")


@pytest.mark.parametrize("name", ["c\nd/1.png", "a/1\n.png", "a/x\ry/1.png"])
def test_a_line_break_in_the_name_of_a_file_is_one_line(place, name):
    (place / name).parent.mkdir(exist_ok=True)
    Image.new("L", (4, 3)).save(place / name, "PNG")
    assert "control character" in refused(f"folder:{place}?test=0.5")


# --------------------------------------------------------------------------------------------------------------- pipes


@pytest.mark.parametrize(
    "source",
    ["list:{}?train=pipe", "list:{}?train=pipe.json", "list:{}?train=pipe.mat", "list:{}?train=a:pipe", "csv:{}/pipe", "npz:{}/pipe",
     "npz:{}/pipe.npz", "idx:{}/idx", "folder:{}?test=0.5&classes=pipe", "cub:{}"],
)  # fmt: skip
def test_a_pipe_in_the_place_of_a_file_is_one_line(place, source):
    (place / "idx").mkdir()
    for name in ("pipe", "pipe.json", "pipe.mat", "pipe.npz", "idx/train-images-idx3-ubyte", "idx/train-labels-idx1-ubyte", "images.txt"):
        os.mkfifo(place / name)
    said = refused(source.format(place))
    assert "it is a pipe or a device" in said or "there is no such file" in said


def test_a_class_of_tars_that_is_no_line_is_refused(place):
    (place / "names").write_text("a\nb\x1b[2Jb\n")
    for tar in ("x.tar", "y.tar"):
        (place / tar).touch()
    said = r"'b\x1b[2Jb' holds a control character, and is not a name for a class; rename it"
    assert said in refused(f"wds:{place}/x.tar?test=y.tar&classes=names")


@pytest.mark.parametrize(
    "source", ["csv:{}/huge", "list:{}?train=huge.json", "list:{}?train=huge.mat", "wds:{}/x.tar?test=y.tar&classes=huge"]
)
def test_a_list_beyond_all_memory_is_one_line(place, source):
    for name in ("huge", "huge.json", "huge.mat", "x.tar", "y.tar"):
        with open(place / name, "wb") as stream:
            stream.truncate(10**11)
    said = "cannot be read (it has 100,000,000,000 bytes, more than 2,147,483,648)"
    assert said in refused(source.format(place))


# --------------------------------------------------------------------------------------------------------------- lists

ODD = [None, True, 1.5, [], {}, [1], {"a": 1}, "a\nb", "\0", "\ud800", "x" * 5_000]


@pytest.mark.parametrize("field", ["name", "label"])
@pytest.mark.parametrize("value", ODD, ids=lambda value: repr(value)[:9])
def test_json_lists_of_odd_values_are_one_line(place, field, value):
    entry = {"name": "a/1.png", "label": 0, field: value}
    (place / "x.json").write_text(json.dumps([{"name": "b/1.png", "label": 1}, entry]))
    assert "x.json" in refused(f"list:{place}?train=x.json")


@pytest.mark.parametrize("where", ["categories/0/name", "images/0/file_name", "images/0/id", "annotations/0/category_id"])
@pytest.mark.parametrize("value", ODD, ids=lambda value: repr(value)[:9])
def test_coco_of_odd_values_is_one_line(place, where, value):
    content = {
        "categories": [{"id": 1, "name": "a"}],
        "images": [{"id": 5, "file_name": "a/1.png"}],
        "annotations": [{"image_id": 5, "category_id": 1}],
    }  # fmt: skip
    part, number, field = where.split("/")
    content[part][int(number)][field] = value
    if where.endswith("category_id") and value is True:  # which is 1
        pytest.skip("another number")
    (place / "x.json").write_text(json.dumps(content))
    assert "x.json" in refused(f"list:{place}?train=x.json")


def test_numbers_of_5000_digits_are_one_line(place):
    nines = "9" * 5_000
    (place / "x.json").write_text(f'[{{"name": "a/1.png", "label": {nines}}}]')
    (place / "x.txt").write_text(f"a/1.png {nines}\na/2.png 1\n")
    (place / "x.csv").write_text(f"path,label\na/1.png,{nines}\na/2.png,1\n")
    for source in (f"list:{place}?train=x.json", f"list:{place}?train=x.txt", f"csv:{place}/x.csv"):
        assert len(refused(source)) < 400


def mat(place: Path) -> bytearray:
    written = io.BytesIO()
    paths = np.array(["a/1.png", "a/2.png", "b/1.png", "b/2.png"], dtype=object)[:, None]
    savemat(written, {"file_list": paths, "labels": np.array([[1], [1], [2], [2]])})
    return bytearray(written.getvalue())


@pytest.mark.parametrize("changes", [{144: 5}, {505: 13}, {495: 255}], ids=["segmentation fault", "another", "memory"])
def test_a_mat_file_ends_no_process_but_its_own(place, changes):
    """scipy reads these beyond its memory, or asks for any amount of it."""
    content = mat(place)
    (place / "x.mat").write_bytes(content)
    assert open_source(f"list:{place}?train=x.mat").classes == ["a", "b"]
    for position, value in changes.items():
        content[position] = value
    (place / "x.mat").write_bytes(content)
    assert "x.mat: expected a MATLAB file with file_list and labels (" in refused(f"list:{place}?train=x.mat")


@pytest.mark.parametrize(
    "head", ["path\0,label", 'path,"la\nbel"', '"a\nb",c', "path;label\x1b[2J", "x" * 200_000, "," * 200_000, "a,b," * 50_000, '"']
)
def test_a_header_of_anything_is_one_line(place, head):
    (place / "x.csv").write_text(f"{head}\na/1.png,0,1\n")
    assert len(refused(f"csv:{place}/x.csv")) < 700
    assert "\n" not in refused(f"csv:{place}/x.csv?label=c&path=d")


@pytest.mark.parametrize("option", ["test", "val", "seed", "label", "path", "group"])
@pytest.mark.parametrize("value", ["9" * 5_000, "0x" + "f" * 9_000, "1e" + "9" * 5_000, "x" * 5_000, "\N{SUPERSCRIPT TWO}", "nan"])
def test_options_of_lists_and_tables_are_one_line(place, option, value):
    (place / "x.csv").write_text("path,label\na/1.png,0\na/2.png,0\nb/1.png,1\nb/2.png,1\n")
    share = "test=0.5&" if option != "test" else ""
    assert place.name in refused(f"csv:{place}/x.csv?{share}{option}={value}")
    assert place.name in refused(f"list:{place}?train=x.csv&{share}{option}={value}")


# -------------------------------------------------------------------------------------------------------------- arrays


def npz(place: Path, head: str, key: str = "train_images") -> str:
    """A file whose one array says in its head what it is, and has 100 bytes."""
    text = head.encode().ljust(117) + b"\n"
    part = b"\x93NUMPY\x01\0" + len(text).to_bytes(2, "little") + text + bytes(100)
    with zipfile.ZipFile(place / "x.npz", "w") as archive:
        archive.writestr(f"{key}.npy", part)
        archive.writestr("train_labels.npy", part)
    return f"npz:{place / 'x.npz'}"


@pytest.mark.parametrize(
    "head",
    [
        "{'descr': '|u1', 'fortran_order': False, 'shape': (10000000000000, )}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (10000000000, 100, 100)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 5)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (100, )}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1, )}",
        "{'descr': 'x', 'fortran_order': False, 'shape': (1, )}",
        "{'descr': [('a', '|u1')], 'fortran_order': False, 'shape': (100, )}",
        "{'descr': '|S1', 'fortran_order': False, 'shape': (100, )}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': ()}",
        "((((((((((((((((((",
        "'\\",
        "",
    ],
)
def test_an_array_that_is_not_as_its_head_says_is_one_line(place, head):
    assert "x.npz" in refused(npz(place, head))


def test_a_file_that_grows_a_thousandfold_takes_no_memory(place):
    """100 MB of nothing under a head of four bytes."""
    (place / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x04" + bytes(100_000_000), 1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (place / "train-labels-idx1-ubyte.gz").write_bytes(b"")
    assert "do not hold an array of shape (4,)" in refused(f"idx:{place}")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB


def test_a_label_beyond_all_classes_makes_no_names(place):
    labels = np.array([0, 2**62], np.uint64)
    images = np.zeros((2, 3, 3), np.uint8)
    np.savez(place / "x.npz", train_images=images, train_labels=labels)
    assert "4611686018427387904 is not a label; 1,000,000 classes are more than anybody has" in refused(f"npz:{place / 'x.npz'}")
