"""A Run's source and the shards that are there: what is built from it, what is refused, what is taken as it is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image

from jobs.inputs import prepare
from jobs.plan import shards
from tests.jobs.conftest import EXAMPLE, write_index
from vitssl.config import ConfigError, Data, Objectives, Run, Subset
from vitssl.config.objectives.mae import MaeConfig
from vitssl.data import index as data_index
from vitssl.data.building import findings
from vitssl.data.index import read_index
from vitssl.data.shards import build

WITH_SOURCE = EXAMPLE.replace("data: {shards: shards/digits", "data: {source: digits, shards: shards/digits")


def photos(root: Path, *names: str) -> Path:
    """An image folder with two classes, each with the named images in both splits."""
    for part in ("train/cat", "train/dog", "test/cat", "test/dog"):
        (root / part).mkdir(parents=True)
        for name in names:
            Image.linear_gradient("L").save(root / part / f"{name}.png")
    return root


def was_built_from(folder: Path, source: str) -> bool:
    prepare._was_built_from.cache_clear()
    return prepare._was_built_from(folder, source)


def test_shards_of_another_source_are_refused(expand, place: Path) -> None:
    expand("data.source=digits")
    with pytest.raises(ConfigError) as error:
        expand("data.source=torchvision:CIFAR10")
    assert str(error.value) == (
        f"command line: data.source: {place}/shards/digits was built from other data (digits) than "
        f"torchvision:CIFAR10 lists; `vitssl shards build torchvision:CIFAR10 {place}/shards/digits --rebuild` replaces the shards; "
        "or set data.shards to a new folder, or data.source=null to train on what is there "
        "(in sweep.yaml: arms.scratch.stages.train)"
    )
    with pytest.raises(ConfigError, match="was built from other data"):
        expand("data.source=torchvision:CIFAR10", "data.shards=shards/digits")
    with pytest.raises(ConfigError, match="was built from other data"):
        expand(text=WITH_SOURCE.replace("source: digits", "source: torchvision:CIFAR10"))


def test_shards_named_alone_are_taken_as_they_are(expand, place: Path) -> None:
    """`data.shards=OTHER` over a sweep with a source, on the command line, in an axis or for a stage: the source was for others."""
    (place / "shards" / "mine").mkdir()
    write_index(place / "shards" / "mine", [("train", 90), ("test", 20)], name="mine")
    axis = WITH_SOURCE.replace("flipped: {data.views.main.hflip: 0.0}", "flipped: {data: {shards: shards/mine}}")
    for words, text in (
        (["data.shards=shards/mine"], WITH_SOURCE),
        (["arms.scratch.data.shards=shards/mine"], WITH_SOURCE),
        (["finetune.data.shards=shards/mine"], WITH_SOURCE),
        ([], axis),
    ):
        data = [job.run.data for job in expand(*words, text=text).jobs]
        assert {(Path(d.shards).name, d.source) for d in data} <= {("mine", None), ("digits", "digits")}
        assert any(Path(d.shards).name == "mine" for d in data)


def test_a_mistyped_folder_is_not_filled_with_the_files_source(expand) -> None:
    with pytest.raises(ConfigError, match=r"shards/photo/index.json does not exist: write the shards with"):
        expand("data.shards=shards/photo", text=WITH_SOURCE)


def test_one_folder_is_not_built_from_two_sources(expand) -> None:
    text = EXAMPLE.replace("plain: {}", "plain: {data.shards: new, data.source: digits}")
    text = text.replace("flipped: {data.views.main.hflip: 0.0}", "flipped: {data.shards: new, data.source: torchvision:MNIST}")
    with pytest.raises(ConfigError, match=r"new is to be built from digits too; give each its own data.shards"):
        expand(text=text)


def test_a_source_is_the_same_wherever_it_lies(place: Path) -> None:
    first = photos(place / "a" / "images", "x", "y")
    build(f"folder:{first}", place / "shards" / "photos", workers=1, progress=False)
    folder = place / "shards" / "photos"
    assert was_built_from(folder, f"folder:{first}") and was_built_from(folder, str(first))
    moved = first.rename(place / "renamed")
    assert was_built_from(folder, f"folder:{moved}")
    # of the same name, and others
    assert not was_built_from(folder, f"folder:{photos(place / 'b' / 'images', 'x', 'z')}")
    # what is gone goes by its name
    shutil.rmtree(moved)
    assert was_built_from(folder, f"folder:{first}") and not was_built_from(folder, f"folder:{moved}")


@pytest.mark.parametrize(
    ("name", "source", "same"),
    [
        ("CIFAR10", "torchvision:CIFAR10", True),
        ("CIFAR10", "torchvision:CIFAR10?root=data", True),
        ("CIFAR10", "torchvision:CIFAR100?root=data", False),
        ("digits", "digits", True),
        ("photos", "digits", False),
        ("table", "csv:/gone/table.csv", True),
        ("domainnet/clipart_train", "list:/gone/domainnet?train=clipart_train.txt&test=clipart_test.txt", True),
        ("domainnet/clipart_train", "list:/gone/domainnet?train=sketch_train.txt&test=sketch_test.txt", False),
    ],
)
def test_what_is_not_here_goes_by_its_name(place: Path, name: str, source: str, same: bool) -> None:
    (place / "data").mkdir()
    write_index(place / "shards" / "digits", [("train", 10)], name=name)
    assert was_built_from(place / "shards" / "digits", source) is same


def test_a_source_that_cannot_be_listed_says_what_to_do(expand, place: Path) -> None:
    (place / "photos").mkdir()
    with pytest.raises(ConfigError, match=r"data.source: folder:.*photos.*expected.*; data.source=null uses the shards as they are"):
        expand("data.source=folder:photos")


def test_paths_of_sources_are_the_users(place: Path) -> None:
    assert shards.absolute_source("folder:photos") == f"folder:{place}/photos"
    assert shards.absolute_source("photos") == f"{place}/photos"
    assert shards.absolute_source("csv:/data/list.csv") == "csv:/data/list.csv"
    assert shards.absolute_source("folder:photos?classes=../few.txt") == f"folder:{place}/photos?classes=../few.txt"
    assert shards.absolute_source("torchvision:CIFAR10?root=data") == f"torchvision:CIFAR10?root={place}/data"
    assert [shards.absolute_source(source) for source in ("digits", "torchvision:CIFAR10")] == ["digits", "torchvision:CIFAR10"]


def test_neighbours_that_there_are_not_enough_of_are_refused_before_a_training(expand) -> None:
    words = ["arms=[scratch]", "axes.data=[plain]", "axes.seed=[0]", "evals.near.type=knn"]
    assert expand(*words, "evals.near.k=100").jobs
    with pytest.raises(ConfigError, match=r"evals.near.k: 101 is more than the 100 labelled training images"):
        expand(*words, "evals.near.k=101")


def test_a_dry_run_lists_the_files_that_shards_will_be_built_from(expand, place: Path) -> None:
    source = photos(place / "images", "x", "y")
    words = (f"data.source=folder:{source}", "data.shards=shards/new", "optim.batch_size=2", "data.image_size=16")
    job = expand(*words).jobs[0]
    assert job.run.data.sha256 is None and shards.num_images(job.run) == 4
    assert shards.describe(job.run) == (
        f"{place}/shards/new: to be made from folder:{source}, which also gives the runs their final names; "
        "expected: images (as listed), 2 classes, 4 train, 4 test images"
    )
    with pytest.raises(ConfigError, match=r"optim.batch_size: 8 is more than the 4 images to train on"):
        expand(*words[:2], words[3], "optim.batch_size=8")
    with pytest.raises(ConfigError, match=r"4 is more than the 2 images that data.labels leaves to train on; set it lower, such as 1"):
        expand("arms=[scratch]", *words[:2], words[3], "optim.batch_size=4", "data.labels.per_class=1")
    with pytest.raises(ConfigError, match=r"8 is more than the 4 images to train on; set it lower"):  # which needs no labels
        expand(
            "arms=[scratch]", "objectives={classify: null, mae: {}}", *words[:2], words[3], "optim.batch_size=8", "data.labels.per_class=1"
        )
    (source / "train" / "z").mkdir()
    shards._listed.cache_clear()
    with pytest.raises(ConfigError, match=r"data.source: .*train/z: no images for class 'z'"):
        expand(*words)
    job.run.data.source = f"folder:{place}/not/here"
    assert shards.expected_index(job.run.data) is None


def test_facts_are_after_subsets(place: Path) -> None:
    """100 training images of two classes, 7 of each taken, of which a classifier may see 3 labels each."""
    data = Data(shards=str(place / "shards" / "digits"), images=Subset(per_class=7), labels=Subset(per_class=3))
    facts = shards.facts(Run(data=data, objectives=Objectives(mae=MaeConfig())))
    assert (facts["train_images"], facts["labelled_images"], facts["val_images"], facts["test_images"]) == (14, 6, 0, 20)
    assert (facts["name"], facts["classes"], facts["smallest_px"], facts["largest_px"]) == ("digits", 2, [1, 1], [1, 1])
    assert facts["built_from"] == "folder:digits"


# ------------------------------------------------------------------------------------------------ images for shards, changes, copies


def test_shards_whose_build_was_interrupted_say_so(expand, place: Path) -> None:
    """As `vitssl shards info` does: the tars that are there are no source to build from."""
    (place / "shards" / "half" / ".build").mkdir(parents=True)
    (place / "shards" / "half" / "train-000.tar").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"half: holds an unfinished build; the same `vitssl shards build SOURCE .*half` goes on with it"):
        expand("data.shards=shards/half")


def test_a_folder_of_images_for_shards_says_what_to_type(expand, place: Path) -> None:
    photos(place / "photos", "x")
    with pytest.raises(ConfigError) as error:
        expand("data.shards=photos")
    assert str(error.value).startswith(
        f"command line: data.shards: {place}/photos: holds images and not their shards, which "
        "`vitssl shards build folder:photos shards/photos` writes"
    )
    for part in ("cat", "dog"):
        (place / "flat" / part).mkdir(parents=True)
        Image.linear_gradient("L").save(place / "flat" / part / "1.png")
    for words in (["data.shards=flat"], ["evals.more={type: knn, shards: flat}"]):
        with pytest.raises(ConfigError, match=r"`vitssl shards build 'folder:flat\?test=0\.2&seed=0' shards/flat`"):
            expand(*words)
    with pytest.raises(ConfigError, match=r"data\.source: .*'folder:.*/flat\?test=0\.2&seed=0' holds out a fifth of each class"):
        expand("data.source=folder:flat", "data.shards=shards/new")


def test_shards_of_a_changed_source_are_refused(expand, place: Path) -> None:
    source = photos(place / "photos", "x", "y")
    build(f"folder:{source}", place / "shards" / "photos", workers=1, progress=False)
    Image.linear_gradient("L").save(source / "train" / "dog" / "z.png")
    prepare._was_built_from.cache_clear()
    with pytest.raises(ConfigError) as error:
        expand("data.source=folder:photos", "data.shards=shards/photos")
    assert (
        f"{place}/shards/photos was built from other data (photos) than folder:{source} lists; "
        f"`vitssl shards build folder:{source} {place}/shards/photos --rebuild` replaces the shards; or set data.shards to a new folder"
    ) in str(error.value)


def test_a_source_that_is_gone_and_is_not_theirs_is_said_to_be(expand, place: Path) -> None:
    with pytest.raises(ConfigError, match=rf"data\.source: there is no {place}/photo; data\.source=null uses the shards as they are"):
        expand("data.source=folder:photo", "data.shards=shards/digits")


def test_how_to_get_a_test_split_is_said_where_there_is_none(expand, place: Path) -> None:
    (place / "shards" / "all").mkdir()
    write_index(place / "shards" / "all", [("train", 1000)])
    with pytest.raises(ConfigError, match=r"data\.test_split: .*'test' is not known .*; build with \?test=0\.2&seed=0, or cross-validate"):
        expand("data.source=null", "data.shards=shards/all")
    with pytest.raises(ConfigError, match=r"'tset' is not known \(did you mean test\?\) \(in") as error:
        expand("data.test_split=tset")
    assert "cross-validate" not in str(error.value)


def test_facts_count_images_to_test_on_that_are_trained_on(place: Path) -> None:
    folder = place / "shards" / "digits"
    run = Run(data=Data(shards=str(folder)), objectives=Objectives(mae=MaeConfig()))
    assert "near_duplicates" not in shards.facts(run), "not looked for"
    pairs = [("test", "1", "train"), ("test", "2", "train"), ("test", "2", "unlabeled"), ("test", "3", "unlabeled"), ("val", "4", "train")]
    findings.write(folder, findings.Findings({}, [], [[split, name, other, "x", 0.99] for split, name, other in pairs], []))
    assert shards.facts(run).items() >= {"near_duplicates": 2, "near_duplicates_unlabelled": 0}.items()
    run.data.train_split = "train+unlabeled"
    assert shards._near_duplicates(run, shards.index_of(folder)) == {"near_duplicates": 2, "near_duplicates_unlabelled": 1}


def test_a_split_with_a_question_mark_is_taken_where_it_is(expand, place: Path) -> None:
    """own_images learns from unlabelled images where a folder has some."""
    words = ["data.train_split=train+unlabeled?", "axes.seed=0", "axes.data=[plain]"]
    runs = [job.run for job in expand(*words).jobs]
    assert {shards.num_images(run) for run in runs} == {100} and shards.unread(runs) == []
    write_index(place / "shards" / "digits", [("train", 60), ("train", 40), ("test", 20), ("unlabeled", 30), ("val", 9)])
    runs = [job.run for job in expand(*words).jobs]
    assert {shards.num_images(run) for run in runs} == {130}
    (note,) = shards.unread(runs)
    assert note == f"note: no run reads the images of val in {place}/shards/digits (data.train_split, data.val_split)"
    with pytest.raises(ConfigError, match=r"data.train_split: .*'extra' is not known"):
        expand(*words[1:], "data.train_split=train+extra")


def test_how_many_images_are_held_out_is_told_once_for_each_folder(expand, place: Path) -> None:
    plain = [job.run for job in expand("axes.data=[plain]").jobs]
    held = [job.run for share in (0.2, 0.3, 0.2) for job in expand("axes.data=[plain]", f"data.val_fraction={share}").jobs]
    assert shards.held_out(plain) == []
    counts = sorted({shards.image_counts(run)["val_images"] for run in held})
    assert len(counts) == 2
    expected = f"{place}/shards/digits: {counts[0]} to {counts[1]} images held out of training (data.val_fraction)"
    assert shards.held_out([*plain, *held]) == [expected]


def test_folds_are_of_the_images_to_train_on(expand, place: Path) -> None:
    """Of those alone: a split for testing need not be there."""
    words = ["data.folds=3", "axes.seed=[0,1,2]", "axes.data=[plain]"]
    runs = [job.run for job in expand(*words).jobs]
    assert {tuple(shards.image_counts(run).values()) for run in runs} == {(67, 67, 0, 33), (66, 66, 0, 34)}
    (note,) = shards.unread(runs)
    assert note.startswith("note: no run reads the images of test in ") and note.endswith(
        "; folds of all images are 'data.train_split=train+test'"
    )
    write_index(place / "shards" / "digits", [("train", 100)])
    assert {run.data.folds for run in (job.run for job in expand(*words).jobs)} == {3}


def test_one_class_is_nothing_to_tell_apart(expand, place: Path) -> None:
    index = read_index(place / "shards" / "digits")
    index.classes, index.label = ["all"], 0 * index.label
    data_index.write_index(index)
    shards.index_of.cache_clear()
    with pytest.raises(ConfigError, match=r"data.shards: .*shards/digits has one class, 'all': there is nothing to classify"):
        expand("axes.seed=0")
    index.classes, index.label = [], 0 * index.label - 1
    data_index.write_index(index)
    shards.index_of.cache_clear()
    with pytest.raises(ConfigError, match=r"data.shards: .*shards/digits: no image has a label; these shards are for stages that do not"):
        expand("axes.seed=0")
