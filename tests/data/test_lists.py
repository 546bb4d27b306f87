from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from vitssl.config import ConfigError
from vitssl.data import shards
from vitssl.data.sources.lists import read_list
from vitssl.data.sources.opening import Source, open_source
from vitssl.data.sources.tables import read_csv


def write(root: Path, **files: str) -> None:
    """The images a/1.png, a/2.png, b/1.png and text files; "__" in a name stands for "."."""
    for name in ("a/1.png", "a/2.png", "b/1.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 3)).save(root / name)
    for name, content in files.items():
        (root / name.replace("__", ".")).write_text(content)


def listed(opened: Source) -> dict[str, list[tuple[str, int]]]:
    return {split: [(sample.name, sample.label) for sample in samples] for split, samples in opened.splits.items()}


def refused(source: str) -> str:
    with pytest.raises(ConfigError) as error:
        open_source(source)
    assert "\n" not in str(error.value)
    return str(error.value)


# ---------------------------------------------------------------------------------------------------------------- text


def test_classes_are_numbered_by_value_and_called_by_their_folders(tmp_path):
    write(tmp_path, train__txt="b/1.png 10\n\na/1.png\t9\r\n", test__csv="a/2.png,9\n")
    opened = open_source(f"list:{tmp_path}?train=train.txt&test=test.csv")
    assert opened.classes == ["a", "b"] and opened.name == f"{tmp_path.name}/train"
    assert listed(opened) == {"train": [("b/1.png", 1), ("a/1.png", 0)], "test": [("a/2.png", 0)]}


@pytest.mark.parametrize(
    ("train", "classes"),
    [
        ("a/1.png 3\na/2.png 4\n", ["3", "4"]),  # one folder, two classes
        ("a/1.png 3\nb/1.png 3\n", ["3"]),  # two folders, one class
        ("a/1.png owl\na/2.png cat\n", ["cat", "owl"]),
    ],
)
def test_labels_name_the_classes_where_folders_do_not(tmp_path, train, classes):
    write(tmp_path, train__txt=train, test__txt=train)
    assert open_source(f"list:{tmp_path}?train=train.txt&test=test.txt").classes == classes


def test_paths_with_spaces_several_lists_and_absolute_lists(tmp_path):
    write(tmp_path / "set", one__txt="a/1.png 0\n", test__txt="a/2.png 0\n")
    write(tmp_path)
    (tmp_path / "set" / "a" / "1.png").rename(tmp_path / "set" / "a" / "1 (copy), old.png")
    (tmp_path / "set" / "one.txt").write_text("a/1 (copy), old.png 0\n")
    (tmp_path / "two.txt").write_text("b/1.png 1\n")
    opened = open_source(f"list:{tmp_path}/set?train=one.txt&train={tmp_path}/two.txt&test=test.txt")
    assert listed(opened)["train"] == [("a/1 (copy), old.png", 0), ("b/1.png", 1)]


@pytest.mark.parametrize("line", ["a/1.png  1.0   mono", "a/1.png\t1.0\tmono crystal", "a/1.png, 1.0, mono"])
def test_the_column_of_the_labels_may_be_chosen(tmp_path, line):
    """As ELPV is published: path, probability, type of the cell."""
    write(tmp_path, labels__csv=f"{line}\n{line.replace('1.0', '0.333').replace('a/1', 'b/1')}\n")
    opened = open_source(f"list:{tmp_path}?train=labels.csv&label=2")
    assert opened.classes == ["0.333", "1.0"] and listed(opened) == {"train": [("a/1.png", 1), ("b/1.png", 0)]}
    assert open_source(f"list:{tmp_path}?train=labels.csv&label=3").classes == [re.split(r"1\.0,?", line)[1].strip()]


@pytest.mark.parametrize(
    ("line", "query", "message"),
    [
        (
            "a/1.png  1.0   mono",
            "",
            "t.txt:1: there is no image {root}/a/1.png  1.0; its last word, 'mono', is taken for the label, and ",
        ),
        ("a/1.png,polar bear", "", "{root}/a/1.png,polar; its last word, 'bear', is taken for the label, and all before it for the path"),
        ("a/one 9.png\t1", "", "t.txt:1: there is no image {root}/a/one 9.png"),
        ("a/9.png 1", "", "t.txt:1: there is no image {root}/a/9.png"),
        ("a/1.png 1", "&label=3", "t.txt:1: 2 columns, of which label=3 is none"),
        ("a/1.png,,x", "&label=2", "t.txt:1: expected an image's path in column 1 and its label in column 2, not 'a/1.png,,x'"),
        ("a/1.png 1", "&label=1", "label=1 is not the number of a column from 2 on; the path is column 1"),
        ("a/1.png 1", "&label=kind", "label=kind is not the number of a column"),
        ("a/1.png 1", "&label=2&label=3", "label is there twice, as 2 and as 3; leave out one"),
        ("a/1.png 1", "&label=2&test=a:t.txt", "label=2 beside a:t.txt, which lists images of one class and has no labels"),
        ("a/1.png 1", "&label=2&test=t.json", "t.json: label=2 is a column of lists of text, and this is none; leave it out"),
    ],
)
def test_what_is_wrong_with_columns_is_one_line(tmp_path, line, query, message):
    write(tmp_path, t__txt=f"{line}\n", t__json="[]")
    said = refused(f"list:{tmp_path}?train=t.txt{query}")
    assert message.format(root=tmp_path) in said and ("last word" in said) == ("last word" in message)


def test_a_list_may_hold_one_class(tmp_path):
    write(tmp_path / "images", x__txt="")
    (tmp_path / "b.txt").write_text("1.png\n")
    (tmp_path / "a.txt").write_text("1.png\n2.png\n")
    opened = open_source(f"list:{tmp_path}?images=images&train=b:b.txt&train=a:a.txt&test=a:a.txt")
    assert opened.classes == ["a", "b"]
    assert listed(opened) == {"train": [("b/1.png", 1), ("a/1.png", 0), ("a/2.png", 0)], "test": [("a/1.png", 0), ("a/2.png", 0)]}


@pytest.mark.parametrize("line", [" ," * 200_000 + "x" * 200_000 + ",", "x," * 200_000, "a" + ", " * 200_000 + "b,c" + ",d" * 99_999 + ","])
def test_a_long_line_takes_no_longer_than_its_length(tmp_path, line):
    """A pattern looked at it once for each of its characters: minutes."""
    file = tmp_path / "train.txt"
    file.write_text(f"a.png 0\n{line}\n")
    with pytest.raises(ConfigError, match=r"train\.txt:2: expected an image's path and its label, not '.{1,80}'$"):
        read_list(file)


def test_a_quotation_mark_that_nothing_closes_is_one_line(tmp_path):
    file = tmp_path / "all.csv"
    file.write_text('path,label\n"a.png,0\n' + "b.png,1\n" * 20_000)
    with pytest.raises(ConfigError, match=r"all\.csv: not a table of comma-separated values \(field larger"):
        read_csv(file)


def test_brackets_in_brackets_are_one_line(tmp_path):
    file = tmp_path / "train.json"
    file.write_text("[" * 100_000)
    with pytest.raises(ConfigError, match=r"train\.json: not JSON \("):
        read_list(file)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ("a/1.png 0\na/1.png\n", "", "train.txt:2: expected an image's path and its label, not 'a/1.png'"),
        ("a/1.png 0\nz.png 1\n", "", "train.txt:2: there is no image {root}/z.png"),
        ("a/1.png 0\n", "b/1.png 1\n", "test.txt:1: class '1' of split 'test' does not occur in the train split"),
        ("a/1.png 0\n", "\n", "no images in split 'test'"),
        ("", "a/1.png 0\n", "class '0' of split 'test' does not occur"),
    ],
)
def test_text_lists_are_refused_by_line(tmp_path, train, test, message):
    write(tmp_path, train__txt=train, test__txt=test or "a/1.png 0\n")
    assert message.format(root=tmp_path) in refused(f"list:{tmp_path}?train=train.txt&test=test.txt")


def test_options_are_checked(tmp_path):
    write(tmp_path, train__txt="a/1.png 0\n")
    assert "no list for training; expected list:" in refused(f"list:{tmp_path}?trian=train.txt")
    assert "option 'test' has no value" in refused(f"list:{tmp_path}?train=train.txt&test=")
    assert "none.txt: cannot be read (No such file" in refused(f"list:{tmp_path}?train=none.txt")
    assert "unknown option 'split'; known: none" in refused(f"cub:{tmp_path}?split=1")
    assert "unknown option 'class'; known: classes" in refused(f"folder:{tmp_path}?class=a")
    assert f"list:{tmp_path}/none: there is no such folder" in refused(f"list:{tmp_path}/none?train=a")
    (tmp_path / "train.txt").write_bytes(b"\xff\xfe\x00")
    assert "train.txt: not a text file" in refused(f"list:{tmp_path}?train=train.txt")


def test_an_undecodable_image_is_named_when_shards_are_built(tmp_path):
    write(tmp_path, train__txt="a/1.png 0\na/2.png 0\n")
    (tmp_path / "a" / "2.png").write_bytes(b"no image")
    with pytest.raises(ConfigError, match=r"a/2\.png: cannot be decoded"):
        shards.build(f"list:{tmp_path}?train=train.txt&test=train.txt", tmp_path / "out", workers=1, progress=False)


# ------------------------------------------------------------------------------------------------------- json and .mat


def coco(categories: list[int], names: tuple[str, ...] = ("x", "y")) -> dict:
    """Two images, with annotations of these categories for image 0."""
    annotations = [{"image_id": 0, "category_id": k} for k in categories] + [{"image_id": 1, "category_id": 20}]
    return {
        "images": [{"id": 0, "file_name": "a/1.png"}, {"id": 1, "file_name": "a/2.png"}],
        "annotations": annotations,
        "categories": [{"id": 20, "name": names[0]}, {"id": 3, "name": names[1]}],
    }


@pytest.mark.parametrize(("names", "classes"), [(("x", "y"), ["y", "x"]), (("x", "x"), ["3", "20"])])
def test_coco_categories_are_ordered_by_id(tmp_path, names, classes):
    write(tmp_path, t__json=json.dumps(coco([3], names)))
    opened = open_source(f"list:{tmp_path}?train=t.json&test=t.json")
    assert opened.classes == classes and listed(opened)["test"] == [("a/1.png", 0), ("a/2.png", 1)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (coco([]), "t.json: image 0: expected one annotation with a known category, found the categories []"),
        (coco([3, 20]), "found the categories [3, 20]"),
        (coco([4]), "found the categories [4]"),
        ({"images": []}, "t.json: expected a list of {name, label}, or COCO's"),
        ([{"name": "a/1.png"}], "t.json: expected a list of {name, label}, or COCO's"),
        ([1, 2], "t.json: expected a list of {name, label}, or COCO's"),
        ([{"name": "z.png", "label": 0}], "t.json: entry 0: there is no image"),
    ],
)
def test_json_lists_are_refused(tmp_path, content, message):
    write(tmp_path, t__json=json.dumps(content))
    assert message in refused(f"list:{tmp_path}?train=t.json&test=t.json")


def test_broken_json_and_mat_files_are_named(tmp_path):
    write(tmp_path, t__json="[1", t__mat="no MATLAB file" * 20, empty__mat="")
    assert "t.json: not JSON" in refused(f"list:{tmp_path}?train=t.json")
    assert "t.mat: expected a MATLAB file with file_list and labels" in refused(f"list:{tmp_path}?train=t.mat")
    assert "empty.mat: expected a MATLAB file with file_list and labels" in refused(f"list:{tmp_path}?train=empty.mat")
    assert "none.mat: cannot be read" in refused(f"list:{tmp_path}?train=none.mat")
    savemat(tmp_path / "t.mat", {"file_list": np.array([["a/1.png"]], object), "labels": [[1], [2]]})
    assert "t.mat: 1 entries in file_list but 2 in labels" in refused(f"list:{tmp_path}?train=t.mat")


# ----------------------------------------------------------------------------------------------------------------- CUB


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("image_class_labels.txt", "1 1\n", "image_class_labels.txt: no line for image 2"),
        ("classes.txt", "2 x\n", "classes.txt: no line for class 1"),
        ("train_test_split.txt", "1 1\n2 yes\n", "train_test_split.txt: image 2: expected 1 (training) or 0, not 'yes'"),
        ("images.txt", "1 a/1.png\n2 z.png\n", "images.txt: image 2: there is no image"),
        ("train_test_split.txt", "1 1\n2 1\n", "no images in split 'test'"),
    ],
)
def test_cub_errors_name_the_file_and_the_image(tmp_path, file, content, message):
    write(tmp_path / "images")
    files = {"images.txt": "1 a/1.png\n2 b/1.png\n", "image_class_labels.txt": "1 1\n2 1\n", "classes.txt": "1 x\n"}
    for name, text in (files | {"train_test_split.txt": "1 1\n2 0\n"} | {file: content}).items():
        (tmp_path / name).write_text(text)
    assert message in refused(f"cub:{tmp_path}")


# ------------------------------------------------------------------------------------------------- a subset of a folder


def test_a_file_chooses_classes(make_folder):
    folder = make_folder(train={"ant": 1, "bee": 2, "cow": 3}, test={"ant": 1, "cow": 1})
    (folder / "some.txt").write_text("cow 4 legs\n\nant\n")
    opened = open_source(f"folder:{folder}?classes=some.txt")
    assert opened.classes == ["ant", "cow"]
    assert [label for _, label in listed(opened)["train"]] == [0, 1, 1, 1]
    assert len(opened.splits["test"]) == 2  # that bee has no test images does not matter here
    (folder / "train" / "cow 4 legs").mkdir()  # another class, whose name begins like that of the first one
    for split in ("train", "test"):
        shutil.copytree(folder / split / "cow", folder / split / "cow 4 legs", dirs_exist_ok=True)
    assert open_source(f"folder:{folder}?classes=some.txt").classes == ["ant", "cow 4 legs"]
    (folder / "some.txt").write_text("cow\nelk\n")
    assert f"some.txt: class 'elk' has no folder {folder}/train/elk" in refused(f"folder:{folder}?classes=some.txt")
    (folder / "some.txt").write_text("\n")
    assert "some.txt: names no classes" in refused(f"folder:{folder}?classes=some.txt")


# ----------------------------------------------------------------------------------------------------------------- npz


def npz(path: Path, **changes) -> str:
    parts = {f"{split}_images": np.zeros((2, 5, 4), np.uint8) for split in ("train", "test")}
    parts |= {f"{split}_labels": np.array([[1], [0]]) for split in ("train", "test")}
    np.savez(path, **{key: array for key, array in (parts | changes).items() if array is not None})
    return f"npz:{path}"


def test_npz_keeps_pixels_and_labels(tmp_path):
    images = np.arange(2 * 5 * 4 * 3, dtype=np.uint8).reshape(2, 5, 4, 3)
    opened = open_source(npz(tmp_path / "x.npz", val_images=images, val_labels=np.array([0, 1])))
    assert opened.name == "x" and list(opened.splits) == ["train", "test", "val"] and opened.classes == ["0", "1"]
    assert listed(opened)["train"] == [("train_images 0", 1), ("train_images 1", 0)]
    assert np.array_equal([sample.image for sample in opened.splits["val"]], images)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_images": None}, "test_images, ...; it holds"),
        ({"test_labels": None}, "not MedMNIST's npz of train_images, train_labels, test_images, ..."),
        ({"test_labels": np.array([[0], [2]])}, "class 2 of split 'test' does not occur in the train split"),
        ({"test_labels": np.array([[0], [-1]])}, "test_labels: -1 is not a label"),
        ({"train_labels": np.zeros((2, 14), int)}, "train_labels: labels of shape (2, 14) (int64) do not fit train_images"),
        ({"train_labels": np.zeros((3, 1), int)}, "train_labels: labels of shape (3, 1)"),
        ({"train_labels": np.zeros((2, 1))}, "train_labels: labels of shape (2,) (float64)"),
        ({"train_images": np.zeros((2, 5, 4), "datetime64[D]")}, "do not fit train_images, of shape (2, 5, 4) (datetime64[D])"),
        ({"train_labels": np.array([["cat"], [None]], dtype=object)}, "(train_labels holds Python objects, not numbers)"),
        ({"train_images": np.zeros((2, 5), np.uint8)}, "do not fit train_images, of shape (2, 5)"),
    ],
)
def test_npz_arrays_are_checked(tmp_path, changes, message):
    assert message in refused(npz(tmp_path / "x.npz", **changes))


def test_files_that_are_no_npz_are_named(tmp_path):
    whole = io.BytesIO()
    np.savez(whole, train_images=np.zeros((2, 5, 4), np.uint8), train_labels=np.zeros(2, int))
    array = io.BytesIO()
    np.save(array, np.zeros(3))
    damaged = bytearray(whole.getvalue())
    damaged[150] ^= 0xFF  # within the first array
    for content in (b"", b"text", whole.getvalue()[:-30], bytes(damaged), array.getvalue()):
        (tmp_path / "x.npz").write_bytes(content)
        reason = refused(f"npz:{tmp_path}/x.npz")
        assert reason.startswith(f"{tmp_path}/x.npz: not MedMNIST's npz") and "pickle" not in reason
    assert refused(f"npz:{tmp_path}/none.npz") == f"{tmp_path}/none.npz: there is no such file"
