from __future__ import annotations

import gzip
import io
import pickle
import struct
import urllib.error
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets

from vitssl.config import ConfigError
from vitssl.data.sources.arrays import read_idx
from vitssl.data.sources.opening import folder_notes, open_source


def image_bytes(value: int = 0, format: str = "JPEG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 6), (value % 256, 50, 100)).save(buffer, format)
    return buffer.getvalue()


def touch(path: Path, value: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(image_bytes(value))
    return path


def labels(samples) -> list[int]:
    return [sample.label for sample in samples]


# -------------------------------------------------------------------------------------------------------------- digits


def test_digits_split_is_fixed_stratified_and_complete():
    from sklearn.datasets import load_digits

    source, data = open_source("digits"), load_digits()
    train, test = source.splits["train"], source.splits["test"]
    assert (len(train), len(test)) == (1347, 450)
    assert source.classes == [str(k) for k in range(10)]
    assert sorted(int(s.name.split()[1]) for s in (*train, *test)) == list(range(1797))
    per_class = np.bincount(labels(test))
    assert np.abs(per_class - np.bincount(data.target) * 450 / 1797).max() < 1
    assert [s.name for s in test[:5]] == ["digits 21", "digits 24", "digits 28", "digits 34", "digits 35"]
    for sample in test[:20]:
        i = int(sample.name.split()[1])
        assert sample.label == data.target[i]
        assert np.abs(sample.image - data.images[i] * 255 / 16).max() <= 0.5


# -------------------------------------------------------------------------------------------------------------- folder


def test_folder_lists_nested_images_in_order(tmp_path):
    for name in ("train/b/2.jpg", "train/b/deep/er/1.PNG", "train/a/x.jpeg", "train/a/.hidden.jpg", "train/a/notes.txt", "val/a/1.jpg"):
        touch(tmp_path / name)
    touch(tmp_path / "val/b/1.jpg")
    for source in (open_source(str(tmp_path)), open_source(f"folder:{tmp_path}")):
        assert source.classes == ["a", "b"]
        assert [s.name for s in source.splits["train"]] == ["train/a/x.jpeg", "train/b/2.jpg", "train/b/deep/er/1.PNG"]
        assert labels(source.splits["train"]) == [0, 1, 1]
        assert [s.name for s in source.splits["test"]] == ["val/a/1.jpg", "val/b/1.jpg"]


def test_a_link_to_a_folder_above_it_has_no_end_and_is_left_out(tmp_path):
    for name in ("train/a/1.png", "train/a/deep/2.png", "train/b/3.png", "test/a/4.png", "test/b/5.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "train" / "a" / "deep" / "loop").symlink_to(tmp_path / "train" / "a")
    (tmp_path / "train" / "b" / "more").symlink_to(tmp_path / "train" / "a" / "deep")  # images are where the link leads
    names = [sample.name for sample in open_source(f"folder:{tmp_path}").splits["train"]]
    assert names == [
        "train/a/1.png", "train/a/deep/2.png", "train/b/3.png", "train/b/more/2.png", "train/b/more/loop/1.png",
    ]  # fmt: skip


def test_folder_with_test_and_val_and_unlabeled(tmp_path):
    for name in ("train/a/1.jpg", "test/a/1.jpg", "val/a/1.jpg", "unlabeled/1.jpg", "unlabeled/sub/2.jpg"):
        touch(tmp_path / name)
    source = open_source(str(tmp_path))
    assert {split: [s.name for s in samples] for split, samples in source.splits.items()} == {
        "train": ["train/a/1.jpg"],
        "test": ["test/a/1.jpg"],
        "val": ["val/a/1.jpg"],
        "unlabeled": ["unlabeled/1.jpg", "unlabeled/sub/2.jpg"],
    }
    assert labels(source.splits["unlabeled"]) == [-1, -1]


@pytest.mark.parametrize(
    ("files", "folders", "message"),
    [
        (["test/a/1.jpg"], [], r"there is no .*/train; expected"),
        (["1.jpg", "2.jpg"], [], r"there is no .*/train; .*; if no image has a label, .*: 'folder:.*\?unlabeled=\.'$"),
        (["train/a/1.jpg"], [], "no test split; expected .*/test/<class>"),
        (["train/1.jpg", "test/a/1.jpg"], [], "/train holds no class folders"),
        (["train/a/1.jpg", "test/a/1.jpg"], ["train/b"], "/train/b: no images for class 'b'"),
        (
            ["train/a/1.jpg", "train/b/index.json", "test/a/1.jpg"],
            [],
            "train/b: holds shards, and would be a class; move it out of .*/train$",
        ),
        (["train/a/1.jpg", "train/b/1.jpg", "test/a/1.jpg"], [], "/test: there is no folder b, which .*/train has; every class is in both"),
        (["train/a/1.jpg", "test/a/1.jpg", "test/z/1.jpg"], [], "/test/z: a class that .*/train does not have$"),
        (["train/severe/1.jpg", "test/sever/1.jpg"], [], r"/test/sever: a class that .*/train does not have \(did you mean severe\?\)$"),
    ],
)
def test_folder_errors_name_the_place(tmp_path, files, folders, message):
    for name in files:
        touch(tmp_path / name)
    for name in folders:
        (tmp_path / name).mkdir(parents=True)
    with pytest.raises(ConfigError, match=message) as error:
        open_source(str(tmp_path))
    assert "\n" not in str(error.value)


def test_images_without_labels_are_a_source_of_their_own(tmp_path):
    for name in ("flat/1.jpg", "flat/2019/2.jpg", "beside/unlabelled/1.jpg", "beside/unlabelled/sub/2.jpg"):
        touch(tmp_path / name)
    for text in (f"folder:{tmp_path}/flat?unlabeled=.", f"folder:{tmp_path}/flat?unlabeled={tmp_path}/flat", f"folder:{tmp_path}/beside"):
        source = open_source(text)
        assert source.classes == [] and source.splits.keys() == {"train"} and labels(source.splits["train"]) == [-1, -1]
        assert [Path(sample.image).name for sample in source.splits["train"]] == ["1.jpg", "2.jpg"]
    assert [*folder_notes(f"folder:{tmp_path}/flat?unlabeled=.")] == []
    (said,) = folder_notes(f"folder:{tmp_path}/flat")
    assert said.startswith("left out, in no class's folder: 1 image in ")
    for option in ("test=0.2", "classes=classes.txt"):
        with pytest.raises(ConfigError, match=f"{option}: no image has a label; leave it out$"):
            open_source(f"folder:{tmp_path}/flat?unlabeled=.&{option}")
    more = open_source(f"folder:{tmp_path}/beside?unlabeled={tmp_path}/flat/2019")
    assert [Path(sample.image).name for sample in more.splits["train"]] == ["1.jpg", "2.jpg", "2.jpg"]
    (tmp_path / "beside" / "unlabelled" / "1.jpg").rename(tmp_path / "beside" / "1.jpg")
    (tmp_path / "beside" / "unlabelled" / "sub" / "2.jpg").unlink()
    for options in ("", "?test=0.2&seed=0"):  # what it advises works
        with pytest.raises(ConfigError, match=r"there is no .*; if no image has a label, .*: 'folder:\S+/beside\?unlabeled=\.'$"):
            open_source(f"folder:{tmp_path}/beside{options}")
    touch(tmp_path / "a:b" / "1.jpg")
    assert [*folder_notes(f"{tmp_path}/a:b")] == [*folder_notes(f"folder:{tmp_path}/a:b")] != []
    assert f"{tmp_path}/beside/unlabelled holds no images" in [*folder_notes(f"folder:{tmp_path}/beside")]


def test_unknown_sources_are_refused():
    with pytest.raises(ConfigError, match="'cifar' is neither an existing folder nor one of digits, folder"):
        open_source("cifar")
    with pytest.raises(ConfigError, match="folder:/no/where: there is no such folder"):
        open_source("folder:/no/where")


# ----------------------------------------------------------------------------------------------------------- idx files


def idx_bytes(array: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(root: Path, zipped: bool = False, colour: bool = False) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    root.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for prefix, count in (("train", 12), ("t10k", 5)):
        shape = (count, 7, 6, 3) if colour else (count, 7, 6)
        arrays[f"{prefix}-images"] = rng.integers(0, 256, shape, dtype=np.uint8)
        arrays[f"{prefix}-labels"] = np.arange(count, dtype=np.uint8) % 4
    for name, array in arrays.items():
        file = root / f"{name}-idx{array.ndim}-ubyte{'.gz' if zipped else ''}"
        file.write_bytes(gzip.compress(idx_bytes(array)) if zipped else idx_bytes(array))
    return arrays


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("colour", [False, True])
def test_idx_files_are_read(tmp_path, zipped, colour):
    arrays = write_idx(tmp_path, zipped, colour)
    source = open_source(f"idx:{tmp_path}")
    assert source.classes == ["0", "1", "2", "3"]
    for split, prefix in (("train", "train"), ("test", "t10k")):
        assert labels(source.splits[split]) == arrays[f"{prefix}-labels"].tolist()
        assert np.array_equal([s.image for s in source.splits[split]], arrays[f"{prefix}-images"])


def test_folders_and_hidden_files_beside_idx_files_are_left_out(tmp_path):
    write_idx(tmp_path / "train-images-idx3-ubyte")  # in Kaggle's archive each file is in such a folder, and beside it
    for file in (tmp_path / "train-images-idx3-ubyte").iterdir():
        file.rename(tmp_path / file.name.replace("-idx", ".idx"))
    (tmp_path / "._train-labels-idx1-ubyte").write_bytes(b"what a Mac leaves in archives")
    assert len(open_source(f"idx:{tmp_path}").splits["train"]) == 12


def test_idx_and_torchvision_agree(tmp_path):
    write_idx(tmp_path / "FashionMNIST" / "raw")
    ours, theirs = open_source(f"idx:{tmp_path}/FashionMNIST/raw"), open_source(f"torchvision:FashionMNIST?root={tmp_path}")
    for split in ("train", "test"):
        assert labels(ours.splits[split]) == labels(theirs.splits[split])
        assert np.array_equal([s.image for s in ours.splits[split]], [s.image for s in theirs.splits[split]])
    assert theirs.classes[9] == "Ankle boot"


def test_idx_errors_name_the_file(tmp_path):
    write_idx(tmp_path)
    images = tmp_path / "train-images-idx3-ubyte"
    whole = images.read_bytes()
    images.write_bytes(whole[:-1])
    with pytest.raises(ConfigError, match=r"train-images-idx3-ubyte: .* truncated"):
        open_source(f"idx:{tmp_path}")
    images.write_bytes(b"\0\0\x0d" + whole[3:])
    with pytest.raises(ConfigError, match="train-images-idx3-ubyte: not an idx file of unsigned bytes"):
        open_source(f"idx:{tmp_path}")
    images.write_bytes(idx_bytes(np.zeros((11, 7, 6), np.uint8)))
    with pytest.raises(ConfigError, match="train-labels-idx1-ubyte: labels of shape"):
        open_source(f"idx:{tmp_path}")
    images.unlink()
    with pytest.raises(ConfigError, match="there is no train-images"):
        open_source(f"idx:{tmp_path}")


@pytest.mark.parametrize(
    "header",
    [
        b"\0\0\x08\x04" + b"\xff" * 16,  # a product that no int64 holds
        b"\0\0\x08\x04" + b"\x00\x01\x00\x00" * 4,  # and one that is 0 in 64 bits
        b"\0\0\x08\xff" + b"\0\0\0\1" * 255,
        b"\0\0\x08\x03\0\0",
    ],
)
def test_an_idx_header_that_cannot_be_is_one_line(tmp_path, header):
    file = tmp_path / "x-idx4-ubyte"
    file.write_bytes(header)
    with pytest.raises(ConfigError, match=r"x-idx4-ubyte: its bytes do not hold an array of shape"):
        read_idx(file)


def test_truncated_gzip_is_named(tmp_path):
    file = tmp_path / "x-idx1-ubyte.gz"
    file.write_bytes(gzip.compress(idx_bytes(np.zeros(1000, np.uint8)))[:-12])
    with pytest.raises(ConfigError, match=r"x-idx1-ubyte\.gz: cannot be read"):
        read_idx(file)


# ----------------------------------------------------------------------------------------------------------------- csv


def write_csv(root: Path, text: str) -> str:
    for name in ("a.jpg", "b.jpg", "sub/c.jpg"):
        touch(root / name)
    (root / "list.csv").write_text(text)
    return f"csv:{root}/list.csv"


def test_csv_with_splits_and_unlabelled(tmp_path):
    spec = write_csv(tmp_path, "path,label,split\na.jpg,10,train\nb.jpg,9,train\nsub/c.jpg,,unlabeled\na.jpg,9,test\n")
    source = open_source(spec)
    assert source.classes == ["9", "10"]  # by value, not by spelling
    assert {split: [(s.name, s.label) for s in samples] for split, samples in source.splits.items()} == {
        "train": [("a.jpg", 1), ("b.jpg", 0)],
        "unlabeled": [("sub/c.jpg", -1)],
        "test": [("a.jpg", 0)],
    }
    assert Path(source.splits["train"][0].image) == tmp_path / "a.jpg"


def test_tables_and_options_know_other_spellings_of_splits(tmp_path):
    spec = write_csv(tmp_path, "path,label,split\na.jpg,1,Train\nb.jpg,1,train\na.jpg,1,TEST\nsub/c.jpg,,Unlabelled\nb.jpg,1,Fold_1\n")
    counts = {split: len(samples) for split, samples in open_source(spec).splits.items()}
    assert counts == {"train": 2, "test": 1, "unlabeled": 1, "Fold_1": 1}
    (tmp_path / "list.txt").write_text("a.jpg 1\n")
    lists = open_source(f"list:{tmp_path}?Train=list.txt&Test=list.txt&unlabelled=list.txt")
    assert list(lists.splits) == ["train", "test", "unlabeled"]
    (tmp_path / "x.tar").touch()
    (tmp_path / "y.tar").touch()
    (tmp_path / "z.tar").touch()
    assert list(open_source(f"wds:{tmp_path}/x.tar?test=y.tar&unlabelled=z.tar").splits) == ["train", "test", "unlabeled"]


@pytest.mark.parametrize(
    "head", ["filename,class,set,id", "Image,Category,subset,n", "image_path,target,split,kind", "path,label,split,class"]
)
def test_a_table_may_name_its_columns_as_people_do(tmp_path, head):
    splits = open_source(write_csv(tmp_path, f"{head}\na.jpg,x,train,1\nb.jpg,x,test,2\n")).splits
    assert {split: len(samples) for split, samples in splits.items()} == {"train": 1, "test": 1}


def test_columns_of_a_table_may_be_chosen(tmp_path):
    spec = write_csv(tmp_path, "image;thumb;class;set\na.jpg;x;7;owl\nb.jpg;y;7;elk\n")
    assert open_source(f"{spec}?label=set").classes == ["elk", "owl"]  # which is then no split
    (tmp_path / "list.csv").write_text("cell\tprobability\nb.jpg\t0.3333\n")
    source = open_source(f"{spec}?path=cell&label=probability")
    assert source.classes == ["0.3333"] and [sample.name for sample in source.splits["train"]] == ["b.jpg"]
    with pytest.raises(ConfigError, match=r"list\.csv: label=kind: there is no such column; it has cell and probability$"):
        open_source(f"{spec}?path=cell&label=kind")
    with pytest.raises(ConfigError, match=r"label is there twice, as a and as b; leave out one$"):
        open_source(f"{spec}?label=a&label=b")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_table_may_be_separated_as_a_spreadsheet_does(tmp_path, separator):
    rows = [("path", "Label", "weight (a,b;c)", "split", ""), ("a.jpg", "x", "0,5", "train", ""), ("sub/c.jpg", "", "1;5", "test", "")]
    text = "\r\n".join(separator.join(f'"{value}"' for value in row) for row in rows)
    splits = open_source(write_csv(tmp_path, f"\ufeff{text}\r\n")).splits
    assert {split: [(s.name, s.label) for s in samples] for split, samples in splits.items()} == {
        "train": [("a.jpg", 0)],
        "test": [("sub/c.jpg", -1)],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,kind\na.jpg,x\n", "no column 'label'; expected path,label.*it has path and kind; choose one with label=COLUMN"),
        (
            "path,class,category\na.jpg,x,y\n",
            "class and category may each be the label; rename all but one, or choose with label=",
        ),
        ("path,label\na.jpg,x\nnone.jpg,x\n", r"list\.csv:3: there is no image .*none\.jpg$"),
        ("path,label\na.jpg,x\nnone.jpg,x\nnor.jpg,x\n", r"list\.csv:3: there is no image .*none\.jpg \(2 of 3 are missing\)$"),
        ("path,label,split\na.jpg,x,train\nb.jpg,y,test\n", r"list\.csv:3: class 'y' of split 'test' does not occur"),
        ("path,label,split\na.jpg,x,train\nb.jpg,x,te+st\n", r"'te\+st' is not a name for a split"),
        ("path,label,split\na.jpg,,test\n", "no images in split 'train'"),
        ("path,label,split\na.jpg,x,training\nb.jpg,x,test\n", "csv: no images in split 'train'; it has training, test$"),
        (
            "path,label\na.jpg,x\n\nb.jpg,x,\n",
            r"list\.csv:4: 3 values under a header of 2 columns; put a value that holds a comma in",
        ),
        ("path;label\na.jpg;x;y;z\n", r"list\.csv:2: 4 values under a header of 2 columns; put a value that holds a semicolon in quotes"),
        ("path,label\na.jpg\n", r"list\.csv:2: 1 value under a header of 2 columns; an empty value needs its comma too"),
        ("path,label,label\na.jpg,x,y\n", "the column 'label' is there twice; rename or delete one"),
        ("path,label,n,n\na.jpg,x,1,2\n", "the column 'n' is there twice"),
        ("path,label,split\na.jpg,x,train\nb.jpg,x,\n", r"list\.csv:3: no split; write train, test, val or unlabeled, or leave out the"),
        ("path,label,split\na.jpg,x,train\nb.jpg,x, \n", r"list\.csv:3: no split"),
        ("", "no column 'path'; expected path,label.* in the first line, which is taken as the header; it is empty"),
        (
            "images/cell0001.png  1.0   mono\n",
            "no column 'path'; .* first line, which is taken as the header; it has images/cell0001.png  1.0   mono; add a header, "
            r"separated by commas, semicolons or tabs; list:.*\?train=list.csv reads lines of path and label",
        ),
        ("a.jpg,cat\nb.jpg,dog\n", "it has a.jpg and cat; add a header"),
    ],
)
def test_csv_errors(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message) as error:
        open_source(write_csv(tmp_path, text))
    assert "\n" not in str(error.value)


# --------------------------------------------------------------------------------------------------------- torchvision


def no_checksums(monkeypatch) -> None:
    """Our own files do not have the originals' checksums."""
    for module in (datasets.cifar, datasets.stl10, datasets.flowers102):
        monkeypatch.setattr(module, "check_integrity", lambda path, md5=None: Path(path).is_file())


def test_cifar10_from_its_pickles(tmp_path, monkeypatch):
    no_checksums(monkeypatch)
    rng, root = np.random.default_rng(0), tmp_path / "cifar-10-batches-py"
    root.mkdir()
    pixels, truth = {}, {}
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        pixels[name], truth[name] = rng.integers(0, 256, (4, 3, 32, 32), dtype=np.uint8), rng.integers(0, 10, 4).tolist()
        (root / name).write_bytes(pickle.dumps({"data": pixels[name].reshape(4, 3072), "labels": truth[name]}))
    (root / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"class {k}" for k in range(10)]}))
    source = open_source(f"torchvision:CIFAR10?root={tmp_path}")
    assert source.classes[3] == "class 3"
    assert labels(source.splits["train"]) == [label for i in range(1, 6) for label in truth[f"data_batch_{i}"]]
    assert labels(source.splits["test"]) == truth["test_batch"]
    assert np.array_equal(source.splits["train"][5].image, pixels["data_batch_2"][1].transpose(1, 2, 0))


def test_stl10_has_unlabelled_images(tmp_path, monkeypatch):
    no_checksums(monkeypatch)
    rng, root = np.random.default_rng(0), tmp_path / "stl10_binary"
    root.mkdir()
    for name, count in (("train", 3), ("test", 2), ("unlabeled", 4)):
        (root / f"{name}_X.bin").write_bytes(rng.integers(0, 256, (count, 3, 96, 96), dtype=np.uint8).tobytes())
        (root / f"{name}_y.bin").write_bytes(bytes(range(1, count + 1)))
    (root / "class_names.txt").write_text("\n".join(f"class {k}" for k in range(10)))
    (root / "fold_indices.txt").write_text("0 1")
    source = open_source(f"torchvision:STL10?root={tmp_path}")
    assert {split: labels(samples) for split, samples in source.splits.items()} == {
        "train": [0, 1, 2],
        "test": [0, 1],
        "unlabeled": [-1, -1, -1, -1],
    }
    assert source.splits["unlabeled"][3].image.shape == (96, 96, 3)


def test_flowers102_trains_on_train_and_val_and_keeps_files(tmp_path, monkeypatch):
    from scipy.io import savemat

    no_checksums(monkeypatch)
    root = tmp_path / "flowers-102"
    for i in range(1, 8):
        touch(root / "jpg" / f"image_{i:05d}.jpg", i)
    savemat(root / "imagelabels.mat", {"labels": np.array([[1, 2, 3, 1, 2, 3, 1]])})
    savemat(root / "setid.mat", {"trnid": [[1, 2]], "valid": [[3, 4]], "tstid": [[5, 6, 7]]})
    source = open_source(f"torchvision:Flowers102?root={tmp_path}")
    train = source.splits["train"]
    assert labels(train) == [0, 1, 2, 0] and labels(source.splits["test"]) == [1, 2, 0]
    assert [s.image for s in train] == [str(root / "jpg" / f"image_{i:05d}.jpg") for i in range(1, 5)]
    with pytest.raises(IndexError):
        train[4]


def test_pets_keep_their_files(tmp_path):
    root = tmp_path / "oxford-iiit-pet"
    (root / "annotations").mkdir(parents=True)
    for split, names in (("trainval", ["Abyssinian_1", "beagle_7"]), ("test", ["beagle_8", "Abyssinian_2"])):
        ids = {"Abyssinian": 1, "beagle": 2}
        (root / "annotations" / f"{split}.txt").write_text("".join(f"{n} {ids[n.split('_')[0]]} 1 1\n" for n in names))
        for name in names:
            touch(root / "images" / f"{name}.jpg")
    source = open_source(f"torchvision:OxfordIIITPet?root={tmp_path}")
    assert source.classes == ["Abyssinian", "Beagle"]
    assert labels(source.splits["test"]) == [1, 0]
    assert source.splits["train"][1].image == str(root / "images" / "beagle_7.jpg")


def test_missing_set_without_network_says_what_to_do(tmp_path, monkeypatch):
    def no_network(self):
        raise urllib.error.URLError("Network is unreachable")

    monkeypatch.setattr(datasets.CIFAR100, "download", no_network)
    with pytest.raises(ConfigError, match=r"CIFAR100: not in .*Network is unreachable.*CIFAR100\?root=PATH") as error:
        open_source(f"torchvision:CIFAR100?root={tmp_path}")
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match=r"ImageNet: not in .*cannot download it"):
        open_source(f"torchvision:ImageNet?root={tmp_path}")


def test_classes_of_one_name_have_their_wordnet_numbers(tmp_path):
    names = {"n01440764": ("tench", "Tinca tinca"), "n02012849": ("crane",), "n03126707": ("crane",)}
    for split in ("train", "val"):
        for wnid in names:
            (tmp_path / split / wnid).mkdir(parents=True)
            Image.new("RGB", (4, 4)).save(tmp_path / split / wnid / "1.JPEG")
    torch.save((names, [*names]), tmp_path / "meta.bin")  # what torchvision makes of the development kit
    source = open_source(f"torchvision:ImageNet?root={tmp_path}")
    assert source.classes == ["tench, Tinca tinca", "crane (n02012849)", "crane (n03126707)"]


def test_unknown_set_and_option_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="torchvision:CIFAR: not one of CIFAR10, "):
        open_source("torchvision:CIFAR")
    with pytest.raises(ConfigError, match="unknown option 'rot'"):
        open_source(f"torchvision:CIFAR10?rot={tmp_path}")
    with pytest.raises(ConfigError, match="torchvision:CIFAR10: root is there twice"):
        open_source(f"torchvision:CIFAR10?root={tmp_path}&root=elsewhere")
