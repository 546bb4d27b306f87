"""Folders of classes of which a share is held out, and the line that builds their shards."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from vitssl import cli
from vitssl.config import ConfigError
from vitssl.data import shards
from vitssl.data.sources.build_line import build_line
from vitssl.data.sources.folders import notes
from vitssl.data.sources.opening import Source, open_source


def flat(root: Path, **counts: int) -> Path:
    """ROOT/<class>/<number>.jpg, empty files."""
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for i in range(count):
            (root / name / f"{i:03d}.jpg").touch()
    return root


def names(source: Source) -> dict[str, list[str]]:
    return {split: [sample.name for sample in samples] for split, samples in source.splits.items()}


def per_class(source: Source, split: str) -> list[int]:
    return [sum(sample.label == k for sample in source.splits[split]) for k in range(len(source.classes))]


def test_the_shares_are_stratified_and_complete(tmp_path):
    root = flat(tmp_path / "photos", cat=50, dog=7, emu=2)
    source = open_source(f"folder:{root}?test=0.2&seed=0")
    assert source.name == "photos" and source.classes == ["cat", "dog", "emu"]
    assert list(source.splits) == ["train", "test"]
    assert per_class(source, "test") == [10, 1, 1] and per_class(source, "train") == [40, 6, 1]
    listed = names(source)
    assert sorted(listed["train"] + listed["test"]) == sorted(p.relative_to(root).as_posix() for p in root.rglob("*.jpg"))
    assert listed["train"] == sorted(listed["train"]) and listed["test"] == sorted(listed["test"])
    assert [s.label for s in source.splits["test"]] == [0] * 10 + [1, 2]
    assert per_class(open_source(f"folder:{root}?test=0.9"), "test") == [45, 6, 1]  # never all


def test_what_systems_leave_behind_is_no_class_and_no_image(tmp_path):
    root = flat(tmp_path / "photos", cat=5, dog=5)
    before = names(open_source(f"folder:{root}?test=0.2"))
    flat(root, **{"__MACOSX": 3, "@eaDir": 3, ".trash": 3, "cat/__MACOSX": 2, "cat/.thumbnails": 2})
    (root / "cat" / "._000.jpg").touch()
    assert names(open_source(f"folder:{root}?test=0.2")) == before


def test_the_shares_depend_on_names_and_seed_alone(tmp_path):
    first = names(open_source(f"folder:{flat(tmp_path / 'photos', cat=50, dog=20)}?test=0.2&val=0.1&seed=0"))
    assert {split: len(listed) for split, listed in first.items()} == {"train": 49, "test": 14, "val": 7}
    elsewhere = flat(tmp_path / "elsewhere", dog=20, cat=50)
    assert names(open_source(f"folder:{elsewhere}?test=0.2&val=0.1")) == first
    assert names(open_source(f"folder:{elsewhere}?test=0.2&val=0.1&seed=1")) != first
    # ten more cats move no image but those that the larger share takes
    for i in range(50, 60):
        (elsewhere / "cat" / f"{i:03d}.jpg").touch()
    grown = names(open_source(f"folder:{elsewhere}?test=0.2&val=0.1"))
    assert [name for name in grown["test"] if name.startswith("dog")] == [name for name in first["test"] if name.startswith("dog")]
    assert len(set(first["test"]) - set(grown["test"])) <= 3


def test_a_class_that_the_test_lacks_is_named(tmp_path):
    flat(tmp_path / "photos" / "train", cat=3, frog=3)
    flat(tmp_path / "photos" / "test", cat=3)
    with pytest.raises(ConfigError, match=r"photos/test: there is no folder frog, which .*photos/train has; every class is in both$"):
        open_source(f"folder:{tmp_path / 'photos'}")


def test_chosen_classes_and_unlabelled_images_beside_flat_ones(tmp_path):
    root = flat(tmp_path / "photos", cat=10, dog=10, emu=1, unlabeled=3)
    (root / "few.txt").write_text("dog\ncat\n")
    source = open_source(f"folder:{root}?test=0.2&seed=3&classes=few.txt")
    assert source.classes == ["cat", "dog"]
    assert names(source)["unlabeled"] == [f"unlabeled/{i:03d}.jpg" for i in range(3)]
    assert per_class(source, "test") == [2, 2] and per_class(source, "train") == [8, 8]


def test_images_without_labels_may_be_elsewhere(tmp_path):
    """Relative to the folder, as the file of classes is; whatever folders they are in say nothing."""
    root = flat(tmp_path / "photos", cat=10, dog=10, unlabeled=3)
    flat(tmp_path / "more", any=2, other=1)
    (tmp_path / "more" / "loose.jpg").touch()
    for path in ("../more", str(tmp_path / "more")):
        source = open_source(f"folder:{root}?test=0.2&unlabelled={path}")
        assert source.classes == ["cat", "dog"]
        further = [f"unlabeled/more/{name}.jpg" for name in ("any/000", "any/001", "other/000", "loose")]
        assert sorted(names(source)["unlabeled"]) == sorted([*(f"unlabeled/{i:03d}.jpg" for i in range(3)), *further])
    with pytest.raises(ConfigError, match=r"unlabeled=gone: .*/photos/gone: there is no such folder; the path is relative to "):
        open_source(f"folder:{root}?test=0.2&unlabeled=gone")
    (tmp_path / "none").mkdir()
    with pytest.raises(ConfigError, match=r"unlabeled=\.\./none: .*: no file in it ends in \.jpg"):
        open_source(f"folder:{root}?test=0.2&unlabeled=../none")


@pytest.mark.parametrize(
    ("query", "twice"),
    [
        ("photos?test=0.2&unlabeled=unlabeled", "photos/unlabeled"),
        ("photos?test=0.2&unlabeled=cat", "photos/cat"),
        ("photos?test=0.2&unlabeled=../more&unlabeled=../more/any", "more"),
        ("photos?unlabeled=.&unlabeled=cat", "photos"),
        ("whole?unlabeled=..", "whole/train/cat"),
    ],
)
def test_no_image_is_read_twice(tmp_path, query, twice):
    flat(tmp_path / "photos", cat=10, dog=10, unlabeled=3)
    flat(tmp_path / "more", any=2)
    for split in ("train", "test"):
        flat(tmp_path / "whole" / split, cat=1)
    with pytest.raises(
        ConfigError, match=rf"images in it are read already, from {tmp_path}/{twice}; (leave it out|name the folders.*)$"
    ) as refusal:
        open_source(f"folder:{tmp_path}/{query}")
    assert ("name the folders beside it instead" in str(refusal.value)) == (query == "whole?unlabeled=..")
    (tmp_path / "photos" / "cat" / "index.json").write_text("[]")  # a crawler's, beside its images
    (tmp_path / "cat.txt").write_text("cat")  # other classes are read without their labels
    source = open_source(f"folder:{tmp_path}/photos?test=0.2&classes=../cat.txt&unlabeled=dog")
    assert {split: len(samples) for split, samples in source.splits.items()} == {"train": 8, "test": 2, "unlabeled": 3 + 10}


def test_a_training_folder_is_split_where_there_is_no_other(tmp_path):
    flat(tmp_path / "photos" / "train", cat=10, dog=10)
    source = open_source(f"folder:{tmp_path}/photos?test=0.2")
    assert per_class(source, "test") == [2, 2] and names(source)["test"][0].startswith("train/cat/")
    flat(tmp_path / "photos" / "test", cat=2, dog=1)
    source = open_source(f"folder:{tmp_path}/photos?val=0.1")
    assert {split: per_class(source, split) for split in source.splits} == {"train": [9, 9], "val": [1, 1], "test": [2, 1]}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", r"there is no .*/photos/train; expected .*, found the folders cat, dog, emu; .*\?test=0\.2&seed=0. holds out a fifth"),
        ("?classes=few.txt", r".*photos\?classes=few\.txt&test=0\.2&seed=0. holds out a fifth of each class for testing"),
        ("?test=0.2", r"too few images in emu \(1\), for an image each for train and test; add some, or leave .* out \(classes=FILE\)"),
        ("?test=0.2&val=0.1", r"too few images in dog \(2\), emu \(1\), for an image each for train and test and val"),
        ("?test=20", "test=20 is not a share of the images; expected a number between 0 and 1, such as 0.2"),
        ("?test=a", "test=a is not a share"),
        ("?test=0.5&val=0.5", "test and val leave nothing to train on"),
        ("?test=0.2&seed=-1", "seed=-1 is not a whole number from 0"),
        ("?seed=1", "seed without test or val"),
        ("?tset=0.2", "unknown option 'tset'; known: classes, test, val, seed"),
    ],
)
def test_what_is_wrong_with_a_flat_folder_is_one_line(tmp_path, query, message):
    root = flat(tmp_path / "photos", cat=10, dog=2, emu=1)
    (root / "few.txt").write_text("cat")
    with pytest.raises(ConfigError, match=message) as error:
        open_source(f"folder:{root}{query}")
    assert "\n" not in str(error.value)


def test_a_split_is_not_drawn_where_there_is_one(tmp_path):
    flat(tmp_path / "train", cat=10)
    flat(tmp_path / "val", cat=2)
    with pytest.raises(ConfigError, match=r"/val is the test split already; leave out test=0\.2"):
        open_source(f"folder:{tmp_path}?test=0.2")
    with pytest.raises(ConfigError, match=r"'.*\?test=0.2' is neither an existing folder nor .*; write folder:.*\?test=0\.2"):
        open_source(f"{tmp_path}?test=0.2")


def test_a_class_that_reports_could_not_name_is_refused(tmp_path):
    flat(tmp_path, cat=10, **{os.fsdecode(b"caf\xe9"): 10})
    with pytest.raises(ConfigError, match=r"the name of the class folder b'caf\\xe9' is not UTF-8; rename it$"):
        open_source(f"folder:{tmp_path}?test=0.2")


# ------------------------------------------------------------------------------------------------------- what to type


def test_the_error_for_a_flat_folder_ends_in_the_line_to_type(make_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_folder("my photos", **{"": {"cat": 6, "dog": 7}})
    assert cli.main(["shards", "build", "my photos", "shards/pets"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and message.endswith(
        "found the folders cat, dog; to hold out a fifth of each class for testing, type "
        "`vitssl shards build 'folder:my photos?test=0.2&seed=0' shards/pets`\n"
    )
    assert cli.main(["shards", "build", "folder:my photos?test=0.2&seed=0", "shards/pets", "--workers", "1"]) == 0
    assert shards.load_index("shards/pets").splits == ["train", "test"]


def test_shards_that_are_asked_of_an_image_folder_name_the_line_that_builds_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flat(Path("photos"), cat=2, dog=2)
    assert build_line("photos") == "vitssl shards build 'folder:photos?test=0.2&seed=0' shards/photos"
    assert build_line(tmp_path / "photos") == build_line("photos")
    flat(Path("whole/train"), cat=2)
    assert build_line("whole") == "vitssl shards build 'folder:whole?test=0.2&seed=0' shards/whole"
    flat(Path("whole/val"), cat=2)
    assert build_line("whole") == "vitssl shards build folder:whole shards/whole"
    flat(Path("shards/mine"), cat=2)
    assert build_line("shards/mine") == "vitssl shards build 'folder:shards/mine?test=0.2&seed=0' shards/mine-shards"
    Path("tars").mkdir()
    for name in ("part-00", "part-01"):
        Path(f"tars/{name}.tar").touch()
    assert build_line("tars") == "vitssl shards build 'wds:tars/*.tar' shards/tars"
    (tmp_path / "empty" / "notes").mkdir(parents=True)
    assert [build_line(path) for path in ("empty", "nowhere", "photos/cat")] == [None] * 3
    with pytest.raises(ConfigError, match=r"^whole: holds images and not their shards, which `vitssl .* shards/whole` writes$"):
        shards.info("whole")


def test_a_build_says_which_files_it_takes_for_no_images(make_folder, tmp_path, capsys) -> None:
    """A phone's .heic files beside .jpg ones would otherwise be missed in silence."""
    root = make_folder()
    for name in ("train/cat/a.HEIC", "train/cat/b.heic", "notes.txt", ".hidden", "test/dog/README"):
        (root / name).write_bytes(b"x")
    for name in ("train/loose.jpg", "test/b.jpg", "test/a.jpg", "z.png"):
        (root / name).write_bytes(b"x")  # in no class's folder
    assert cli.main(["shards", "build", f"folder:{root}", str(tmp_path / "out"), "--workers", "1"]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert notes == [
        f"note: left out, in no class's folder: 1 image in {root} itself (z.png)",
        f"note: left out, in no class's folder: 1 image in {root}/train itself (loose.jpg)",
        f"note: left out, in no class's folder: 2 images in {root}/test itself (a.jpg, b.jpg)",
        "note: left out, as no images by their names: 4 files (2 .heic, 1 .txt, 1 README); "
        "those that end in .heic are photos: convert them to .jpg",
    ]


def test_common_names_of_splits_are_known_and_others_are_named(make_folder, tmp_path, capsys):
    root = make_folder(training={"cat": 3, "dog": 3}, validation={"cat": 2, "dog": 1}, testing={"cat": 1, "dog": 1}, holdout={"cat": 1})
    (root / "unlabeled").mkdir()
    shutil.copy(next((root / "holdout").rglob("*.*")), root / "unlabeled")
    assert cli.main(["shards", "build", str(root), str(tmp_path / "out"), "--workers", "1"]) == 0
    shown = capsys.readouterr()
    counts = {line.split()[0]: line.split()[1:3] for line in shown.out.splitlines()[-4:]}
    assert counts == {"train": ["6", "6"], "test": ["2", "2"], "val": ["3", "3"], "unlabeled": ["1", "0"]}
    (note,) = [line for line in shown.err.splitlines() if line.startswith("note: ")]
    assert note.startswith(f"note: left out, as no splits by their names: holdout in {root}; a split is called training, test or testing ")
    assert not [*notes(str(root), {"unlabeled": ["holdout"]})]
    assert open_source(str(make_folder("two", train={"cat": 1}, validation={"cat": 2}))).splits.keys() == {"train", "test"}


@pytest.mark.parametrize("folders", ["Train Test Val", "TRAIN TEST Validation", "Training Testing VALID", "train Test val"])
def test_splits_are_known_in_any_case(make_folder, tmp_path, monkeypatch, folders):
    """They are no classes called Test, Train and Val."""
    train, test, val = folders.split()
    root = make_folder(**{train: {"cat": 3, "dog": 3}, test: {"cat": 2, "dog": 2}, val: {"cat": 1, "dog": 1}})
    source = open_source(f"folder:{root}")
    assert source.classes == ["cat", "dog"]
    assert {split: per_class(source, split) for split in source.splits} == {"train": [3, 3], "test": [2, 2], "val": [1, 1]}
    with pytest.raises(ConfigError, match=f"{test} is the test split already; leave out test=0.2"):
        open_source(f"folder:{root}?test=0.2&seed=0")
    monkeypatch.chdir(tmp_path)
    assert build_line("pets") == "vitssl shards build folder:pets shards/pets"


@pytest.mark.parametrize("train", ["", "train"])
def test_a_class_that_is_called_almost_as_images_without_labels_is_named(tmp_path, train):
    flat(tmp_path / "photos" / train, cat=2, unlabeld=2, Unlabeled=2, labelled=2)
    said = [line for line in notes(str(tmp_path / "photos"), {}) if "class" in line]
    assert said == ["unlabeld is taken for a class; if its images have no labels, call it unlabeled"]


def test_splits_without_classes_are_not_taken_for_classes(tmp_path):
    root = flat(tmp_path / "photos", Train=10, Test=10)
    with pytest.raises(ConfigError, match="Train holds no class folders"):
        open_source(f"folder:{root}?val=0.2")


def test_a_class_may_be_called_as_a_split_is(tmp_path):
    root = flat(tmp_path / "vehicles", Bus=10, Train=10)
    assert open_source(f"folder:{root}?test=0.2").classes == ["Bus", "Train"]


@pytest.mark.parametrize("place", ["", "train/"])
def test_a_class_that_is_called_unlabelled_is_none(tmp_path, place):
    names = {f"{place}{name}": 3 for name in ("cat", "dog", "Unlabelled_photos")}
    root = flat(tmp_path / "photos", **names, **({f"test/{name}": 1 for name in ("cat", "dog")} if place else {}))
    with pytest.raises(ConfigError, match=r"Unlabelled_photos: it would be a class; a folder of images without labels is called unlabeled"):
        open_source(f"folder:{root}" + ("" if place else "?test=0.2"))


@pytest.mark.parametrize("name", ["unlabelled", "Unlabeled", "UNLABELLED"])
def test_both_spellings_of_unlabelled_are_known(tmp_path, make_folder, name, capsys):
    root = flat(tmp_path / "photos", **{"cat": 10, "dog": 10, name: 3})
    source = open_source(f"folder:{root}?test=0.2")
    assert source.classes == ["cat", "dog"] and names(source)["unlabeled"] == [f"{name}/{i:03d}.jpg" for i in range(3)]
    root = make_folder(train={"cat": 2, "dog": 2}, test={"cat": 1, "dog": 1}, **{name: {"any": 3}})
    assert cli.main(["shards", "build", str(root), str(tmp_path / "out"), "--workers", "1"]) == 0
    assert "note:" not in capsys.readouterr().err
    index = shards.load_index(tmp_path / "out")
    assert index.splits == ["train", "test", "unlabeled"]
    assert len(index.where("train+unlabelled?")) == len(index.where("Train+unlabelled")) == len(index.where("train+unlabeled")) == 7
