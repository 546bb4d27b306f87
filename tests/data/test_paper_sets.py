"""The docs' table of the papers' data sets: its numbers, and each of its lines on small files made up in the official layout."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from torchvision import datasets

from vitssl import cli
from vitssl.data.building import paper_counts
from vitssl.data.index import load_index

PAGE = (Path(__file__).parents[2] / "vitssl" / "docs" / "data.md").read_text()
SECTION = PAGE.partition("## Data sets of the papers")[2].partition("\n## ")[0]
RNG = np.random.default_rng(0)


def rows() -> dict[str, list[str]]:
    """Cells of each row of the table, by the set's name."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in SECTION.splitlines() if line.startswith("| `")]
    return {name.strip("`"): rest for name, *rest in cells}


def source(name: str) -> str:
    """The source of a row; COVID-CT's is in the text below the table, and bash is to tell what it says."""
    found = rows()[name][-1].strip("`")
    if found != "below":
        return found
    command = SECTION.partition("```sh\n")[2].partition("```")[0]
    echo = subprocess.run(["bash", "-c", f'vitssl() {{ printf "%s\\n" "$@"; }}\n{command}'], capture_output=True, text=True, check=True)
    verb, action, found, folder = echo.stdout.splitlines()
    assert (verb, action, folder) == ("shards", "build", f"shards/{name}")
    return found


# ------------------------------------------------------------------------------------------ official layouts, made up


def pixels(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def images(folder: str, *names: str) -> None:
    for name in names:
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(9, 8, 3)).save(path)


def text(file: str, *lines: str) -> None:
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_text("".join(f"{line}\n" for line in lines))


def cifar10() -> None:
    root = Path("data/cifar-10-batches-py")
    root.mkdir(parents=True)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (root / name).write_bytes(pickle.dumps({"data": pixels(2, 3072), "labels": [0, 1]}))
    (root / "batches.meta").write_bytes(pickle.dumps({"label_names": ["cat", "dog"]}))


def cifar100() -> None:
    root = Path("data/cifar-100-python")
    root.mkdir(parents=True)
    for name in ("train", "test"):
        (root / name).write_bytes(pickle.dumps({"data": pixels(2, 3072), "fine_labels": [0, 1]}))
    (root / "meta").write_bytes(pickle.dumps({"fine_label_names": ["apple", "bee"]}))


def svhn() -> None:
    Path("data").mkdir()
    for split in ("train", "test"):
        savemat(f"data/{split}_32x32.mat", {"X": pixels(32, 32, 3, 2), "y": [[1], [10]]})  # 10 stands for the digit 0


def flowers102() -> None:
    images("data/flowers-102/jpg", *(f"image_{i:05d}.jpg" for i in range(1, 7)))
    savemat("data/flowers-102/imagelabels.mat", {"labels": [[1, 2, 1, 2, 1, 2]]})
    savemat("data/flowers-102/setid.mat", {"trnid": [[1, 2]], "valid": [[3, 4]], "tstid": [[5, 6]]})


def stl10() -> None:
    root = Path("data/stl10_binary")
    root.mkdir(parents=True)
    for name, count in (("train", 2), ("test", 2), ("unlabeled", 3)):
        (root / f"{name}_X.bin").write_bytes(pixels(count, 3, 96, 96).tobytes())
        (root / f"{name}_y.bin").write_bytes(bytes(range(1, count + 1)))
    text(f"{root}/class_names.txt", "airplane", "bird")
    text(f"{root}/fold_indices.txt", "0 1")


def mnist() -> None:
    root = Path("data/MNIST/raw")
    root.mkdir(parents=True)
    for prefix in ("train", "t10k"):
        (root / f"{prefix}-images-idx3-ubyte").write_bytes(
            b"\0\0\x08\x03" + np.array([2, 28, 28], ">u4").tobytes() + pixels(2, 28, 28).tobytes()
        )
        (root / f"{prefix}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + np.array([2], ">u4").tobytes() + b"\0\1")


def pets() -> None:
    root = "data/oxford-iiit-pet"
    for split, i in (("trainval", 1), ("test", 2)):
        text(f"{root}/annotations/{split}.txt", f"Abyssinian_{i} 1 1 1", f"beagle_{i} 2 2 1")
        images(f"{root}/images", f"Abyssinian_{i}.jpg", f"beagle_{i}.jpg")


def aircraft() -> None:
    root = "data/fgvc-aircraft-2013b/data"
    text(f"{root}/variants.txt", "707-320", "A300B4")
    for split, i in (("trainval", 1), ("test", 2)):
        text(f"{root}/images_variant_{split}.txt", f"000000{i} 707-320", f"100000{i} A300B4")
        images(f"{root}/images", f"000000{i}.jpg", f"100000{i}.jpg")


def cars() -> None:
    root = "data/stanford_cars"
    annotations = np.array([("1.jpg", 1), ("2.jpg", 2)], dtype=[("fname", object), ("class", np.uint8)])
    for folder in ("cars_train", "cars_test"):
        images(f"{root}/{folder}", "1.jpg", "2.jpg")
    Path(root, "devkit").mkdir()
    savemat(f"{root}/devkit/cars_meta.mat", {"class_names": np.array(["AM General Hummer", "Acura RL"], object)})
    savemat(f"{root}/devkit/cars_train_annos.mat", {"annotations": annotations})
    savemat(f"{root}/cars_test_annos_withlabels.mat", {"annotations": annotations})


def cub(root: str = "data/CUB_200_2011", ids: tuple[str, ...] = ("1", "2", "3", "4"), classes: tuple[str, str] = ("1", "2")) -> None:
    paths = [f"{i % 2}/{name}.jpg" for i, name in enumerate(ids)]
    images(f"{root}/images", *paths)
    text(f"{root}/images.txt", *(f"{i} {path}" for i, path in zip(ids, paths, strict=True)))
    text(f"{root}/image_class_labels.txt", *(f"{name} {classes[i % 2]}" for i, name in enumerate(ids)))
    text(f"{root}/train_test_split.txt", *(f"{name} {int(i < 2)}" for i, name in enumerate(ids)))
    text(f"{root}/classes.txt", f"{classes[0]} Black Duck (Adult)", f"{classes[1]} Grackle", "999 Birds")


def nabirds() -> None:  # ids are UUIDs, classes are leaves of a tree
    cub("data/nabirds", ("0000139e-21dc", "00083a21-0acf", "000afa71-1aa6", "001df4d5-37d8"), ("817", "860"))


def dogs() -> None:
    paths = ["n02085620-Chihuahua/n02085620_5927.jpg", "n02085782-Japanese_spaniel/n02085782_1058.jpg"]
    images("data/dogs/Images", *paths)
    for split in ("train", "test"):  # a cell array of strings, counted from 1
        savemat(f"data/dogs/{split}_list.mat", {"file_list": np.array([[path] for path in paths], object), "labels": [[1], [2]]})


def inat(root: str, **files: str) -> None:
    categories = [{"id": 0, "name": "Bucephala clangula"}, {"id": 1, "name": "Rana sylvatica"}]
    for i, (file, folder) in enumerate(files.items()):
        paths = [f"{folder}/Aves/2761/{i}.jpg", f"{folder}/Amphibia/153/{i}.jpg"]
        images(f"data/{root}", *paths)
        listed = [{"id": 7 * i + k, "file_name": path} for k, path in enumerate(paths)]
        annotations = [{"id": k, "image_id": 7 * i + k, "category_id": k} for k in (1, 0)]
        text(f"data/{root}/{file}.json", json.dumps({"images": listed, "annotations": annotations, "categories": categories}))


def imagenet() -> None:
    for folder in ("train", "val"):
        images(f"data/imagenet/{folder}", "n01440764/1.JPEG", "n01443537/1.JPEG", "n02869837/1.JPEG")
    names = {"n01440764": ("tench", "Tinca tinca"), "n01443537": ("goldfish",), "n02869837": ("bonnet",)}
    torch.save((names, ["n01440764"]), "data/imagenet/meta.bin")  # what torchvision makes of the development kit


def imagenet100() -> None:
    imagenet()
    text("data/imagenet/imagenet-100.lst", "n02869837", "n01440764")


def domainnet(domain: str) -> None:
    paths = [f"{domain}/{name}/{domain}_00{i}_000001.jpg" for i in (0, 1) for name in ("aircraft_carrier", "The_Eiffel_Tower")]
    images("data/domainnet", *paths)
    text(f"data/domainnet/{domain}_train.txt", f"{paths[0]} 0", f"{paths[1]} 10")
    text(f"data/domainnet/{domain}_test.txt", f"{paths[2]} 0", f"{paths[3]} 10")


def chaoyang() -> None:
    for split in ("train", "test"):
        names = [f"{split}/535462-IMG018x002-{i}.JPG" for i in (0, 1)]
        images("data/chaoyang", *names)
        records = [{"name": name, "label": label, "label_A": 0, "label_B": 1, "label_C": 1} for label, name in enumerate(names)]
        text(f"data/chaoyang/{split}.json", json.dumps(records))


def pathmnist() -> None:
    Path("data").mkdir()
    parts = {f"{split}_images": pixels(2, 28, 28, 3) for split in ("train", "val", "test")}
    np.savez("data/pathmnist.npz", **parts, **{key.replace("images", "labels"): np.array([[0], [1]], np.uint8) for key in parts})


def covid_ct() -> None:
    for split in ("train", "val", "test"):
        for name in ("COVID", "NonCOVID"):
            file = f"2020.02.{name} {split}-p27%1.png"
            images(f"data/COVID-CT/Images-processed/CT_{name}", file)
            text(f"data/COVID-CT/Data-split/{name}/{split}CT_{name}.txt", file)


def ultra_fine(folder: str) -> None:
    for split in ("train", "test"):
        images(f"data/{folder}/images", f"{split}_1_1.png", f"{split}_2_1.png")
        text(f"data/{folder}/anno/{split}.txt", f"{split}_1_1.png 1", f"{split}_2_1.png 2")


BIRDS, SPECIES = ["Black Duck (Adult)", "Grackle"], ["Bucephala clangula", "Rana sylvatica"]
TWO = {"train": [0, 1], "test": [0, 1]}
DOMAIN = ["aircraft_carrier", "The_Eiffel_Tower"]
# set -> what writes its files, the classes to be found there, and the labels of each split
LAYOUTS = {
    "cifar10": (cifar10, ["cat", "dog"], {"train": [0, 1] * 5, "test": [0, 1]}),
    "cifar100": (cifar100, ["apple", "bee"], TWO),
    "svhn": (svhn, ["0", "1"], {"train": [1, 0], "test": [1, 0]}),
    "flowers102": (flowers102, None, {"train": [0, 1, 0, 1], "test": [0, 1]}),
    "stl10": (stl10, ["airplane", "bird"], TWO | {"unlabeled": [-1, -1, -1]}),
    "mnist": (mnist, None, TWO),
    "pets": (pets, ["Abyssinian", "Beagle"], TWO),
    "aircraft": (aircraft, ["707-320", "A300B4"], TWO),
    "cars": (cars, ["AM General Hummer", "Acura RL"], TWO),
    "cub": (cub, BIRDS, TWO),
    "nabirds": (nabirds, BIRDS, TWO),
    "dogs": (dogs, ["n02085620-Chihuahua", "n02085782-Japanese_spaniel"], TWO),
    "inat2018": (lambda: inat("inat2018", train2018="train_val2018", val2018="train_val2018"), SPECIES, TWO),
    "inat2019": (lambda: inat("inat2019", train2019="train_val2019", val2019="train_val2019"), SPECIES, TWO),
    "inat2021_mini": (lambda: inat("inat2021", train_mini="train_mini", val="val"), SPECIES, TWO),
    "imagenet": (imagenet, ["tench, Tinca tinca", "goldfish", "bonnet"], {"train": [0, 1, 2], "test": [0, 1, 2]}),
    "imagenet100": (imagenet100, ["n01440764", "n02869837"], TWO),
    **{
        f"domainnet_{domain}": (lambda domain=domain: domainnet(domain), DOMAIN, TWO)
        for domain in ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
    },
    "chaoyang": (chaoyang, ["0", "1"], TWO),
    "pathmnist": (pathmnist, ["0", "1"], {"train": [0, 1], "val": [0, 1], "test": [0, 1]}),
    "covid_ct": (covid_ct, ["CT_COVID", "CT_NonCOVID"], {"train": [0, 1], "val": [0, 1], "test": [0, 1]}),
    "soybean_local": (lambda: ultra_fine("soybean200"), ["1", "2"], TWO),
    "cotton80": (lambda: ultra_fine("COTTON"), ["1", "2"], TWO),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_line_of_the_table_builds_shards(name, tmp_path, monkeypatch, capsys):
    for module in (datasets.cifar, datasets.svhn, datasets.stl10, datasets.flowers102):  # ours have not the originals' checksums
        monkeypatch.setattr(module, "check_integrity", lambda path, md5=None: Path(path).is_file())
    write, classes, labels = LAYOUTS[name]
    monkeypatch.chdir(tmp_path)
    write()
    assert cli.main(["shards", "build", source(name), f"shards/{name}", "--workers", "1"]) == 0
    index = load_index(f"shards/{name}")
    assert {split: index.label[index.where(split)].tolist() for split in index.splits} == labels
    assert classes is None or index.classes == classes
    assert "counts   warning: not as printed; train: " in capsys.readouterr().out


# --------------------------------------------------------------------------------------------------------- the numbers


def test_the_table_says_what_shards_are_compared_with():
    papers = {paper_counts.DRLOC: "Drloc", paper_counts.GMML: "GMML", paper_counts.MASKED_TOKENS: "masked tokens"}
    assert list(rows()) == list(paper_counts.PRINTED) and set(LAYOUTS) == set(paper_counts.PRINTED)
    for name, printed in paper_counts.PRINTED.items():
        numbers = [(int(number.replace(",", "")), star) for number, star in re.findall(r"([\d,]+)(\*?)", rows()[name][0])]
        for (number, star), what in zip(numbers, ("train", "test", "classes"), strict=True):
            by = [who for who, found in printed.items() if what in found]
            assert {found[what] for found in printed.values() if what in found} == {number}, (name, what)
            assert (by == [paper_counts.OWN]) == (star == "*"), (name, what)
        assert rows()[name][1] == ", ".join(papers[who] for who in printed if who != paper_counts.OWN), name
        index = paper_counts.expected(f"shards/{name}")
        assert paper_counts.comparison(index).startswith("as printed in"), name
        assert set(index.label[index.where("train")]) == set(range(len(index.classes))), name
        others = [number for found in printed.values() for what, number in found.items() if what not in ("train", "test", "classes")]
        assert all(f"{number:,} more" in rows()[name][2] for number in others), name


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ({"A": {"train": 12, "test": 5, "classes": 2}}, "as printed in A"),
        ({"A": {"train": 12}, "B": {"test": 5}}, "as printed in A and B"),
        (
            {"A": {"train": 1200}, "B": {"classes": 3}},
            "warning: not as printed; train: 12 here, 1,200 in A; classes: 2 here, 3 in B",
        ),
        ({"A": {"unlabeled": 9}}, "warning: not as printed; unlabeled: 0 here, 9 in A"),
    ],
)
def test_comparison_names_what_differs(make_shards, monkeypatch, printed, said):
    index = make_shards("pets_2")  # 12 and 5 images of two classes, in a folder of shards named pets_2-shards
    assert paper_counts.comparison(index) is None
    monkeypatch.setitem(paper_counts.PRINTED, "pets2shards", printed)
    assert paper_counts.comparison(index) == said
    (index.folder.parent / "cifar-10").symlink_to(index.folder)
    assert paper_counts.comparison(load_index(index.folder.parent / "cifar-10")).startswith(
        "warning: not as printed; train: 12 here, 50,000 in"
    )
