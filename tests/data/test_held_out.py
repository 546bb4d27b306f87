"""Shares of lists and tables that are held out, by image and by group; those of folders are in test_folders.py."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jobs.plan import shards as planned
from tests.data.test_lists import listed, refused, write
from vitssl import config
from vitssl.config import ConfigError
from vitssl.data import shards
from vitssl.data.sources.held_out import HoldOut, divided
from vitssl.data.sources.opening import open_source
from vitssl.data.sources.samples import Sample, group_numbers


def numbered(root: Path, **counts: int) -> list[tuple[str, str]]:
    """(path, class) of empty images <class>/<number>.png."""
    rows = [(f"{name}/{i:03d}.png", name) for name, count in counts.items() for i in range(count)]
    for path, _ in rows:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    return rows


def draw(root: Path) -> None:
    """Something to see in each of them."""
    for path in root.glob("*/*.png"):
        Image.effect_noise((8, 8), 90).save(path)


def test_lists_and_tables_hold_out_the_images_that_folders_do(tmp_path):
    """By class, seed and names, whatever the order of the rows."""
    rows = numbered(tmp_path / "x", cat=50, dog=7, emu=3)
    expected = listed(open_source(f"folder:{tmp_path}/x?test=0.2&val=0.1&seed=3"))
    (tmp_path / "x" / "all.txt").write_text("".join(f"{path} {name}\n" for path, name in reversed(rows)))
    (tmp_path / "x" / "all.csv").write_text("path,label\n" + "".join(f"{path},{name}\n" for path, name in reversed(rows)))
    for source in (f"list:{tmp_path}/x?train=all.txt&", f"csv:{tmp_path}/x/all.csv?"):
        opened = open_source(f"{source}test=0.2&val=0.1&seed=3")
        assert list(opened.splits) == ["train", "test", "val"] and opened.classes == ["cat", "dog", "emu"]
        assert {split: sorted(samples) for split, samples in listed(opened).items()} == expected
        assert listed(open_source(f"{source}test=0.2&val=0.1&seed=4"))["test"] != listed(opened)["test"]


def test_an_image_that_is_elsewhere_or_twice_is_on_one_side(tmp_path):
    """Pretraining would see the test image, without its label."""
    rows = numbered(tmp_path, cat=20, dog=20)
    (tmp_path / "all.txt").write_text("".join(f"{path} {name}\n" for path, name in rows + rows[:10]))
    (tmp_path / "some.txt").write_text("".join(f"{path} {name}\n" for path, name in rows[::2]))
    splits = listed(open_source(f"list:{tmp_path}?train=all.txt&unlabeled=some.txt&test=0.2"))
    assert not {name for name, _ in splits["test"]} & {name for name, _ in splits["train"] + splits["unlabeled"]}
    assert sum(label == 1 for _, label in splits["test"]) == 4
    (tmp_path / "some.txt").write_text("".join(f"{path} {name}\n" for path, name in rows[1:]))
    said = refused(f"list:{tmp_path}?train=all.txt&unlabeled=some.txt&test=0.2")
    assert (
        "too few images in dog (0) (without those that are in other splits too, or have an image without a label), for an image e" in said
    )


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("list:{root}?train=t.txt&test=20", "test=20 is not a share of the images; expected a number between 0 and 1, such as 0.2"),
        ("list:{root}?train=t.txt&test=20%", "test=20% is not a share of the images"),
        ("list:{root}?train=t.txt&test=0.2&test=t.txt", "test is there twice, as 0.2 and as t.txt; leave out one"),
        ("list:{root}?train=t.txt&testing=t.txt&test=0.2", "testing is the test split already; leave out test=0.2"),
        ("list:{root}?train=t.txt&test=t.txt&seed=0", "seed without test or val, which it draws; write test=0.2&seed=0"),
        (
            "list:{root}?train=t.txt&test=0.2",
            "too few images in b (1), for an image each for train and test; add some, or leave the images",
        ),
        ("csv:{root}/t.csv?test=0.2", "test is the test split already; leave out test=0.2"),
        ("csv:{root}/t.csv?val=0.5&seed=x", "seed=x is not a whole number"),
        ("csv:{root}/t.csv?seed=1", "seed without test or val"),
        (
            "csv:{root}/none.csv?test=0.5&val=0.1",
            "none.csv: no image has a label, and only labelled ones are held out; leave out test and val",
        ),
        ("csv:{root}/t.csv?val=0.5", "too few images in a (1), b (1), for an image each for train and val"),
    ],
)
def test_what_is_wrong_with_a_share_is_one_line(tmp_path, query, message):
    write(tmp_path, t__txt="a/1.png a\na/2.png a\nb/1.png b\n", t__csv="path,label,set\na/1.png,a,train\nb/1.png,b,train\na/2.png,a,Test\n")
    write(tmp_path, none__csv="path,label\na/1.png,\nb/1.png,\n")
    assert message in refused(query.format(root=tmp_path))


# -------------------------------------------------------------------------------------------------------------- groups


def patients(root: Path) -> str:
    """A table of the images of patients, who have one to nine, of one class."""
    rows = numbered(root, cat=150, dog=50)
    rng = np.random.default_rng(0)
    owners = {
        name: [f"{name[0]}{k}" for k in range(count) for _ in range(rng.integers(1, 10))] for name, count in (("cat", 60), ("dog", 20))
    }
    lines = [f"{path};{name};{owners[name].pop(0)}" for path, name in rows]
    (root / "t.csv").write_text("path;label;patient\n" + "\n".join(lines))
    return f"csv:{root}/t.csv"


def sides(source: str) -> tuple[dict[str, Counter[int]], dict[str, set[str]]]:
    """Images of each class, and patients, by split."""
    splits = listed(open_source(source))
    table = Path(source.partition("?")[0].removeprefix("csv:")).read_text().splitlines()[1:]
    patient = {path: name for path, _, name in (line.split(";") for line in table)}
    counts = {split: Counter(label for _, label in samples) for split, samples in splits.items()}
    return counts, {split: {patient[path] for path, _ in samples} for split, samples in splits.items()}


@pytest.mark.parametrize("seed", range(5))
def test_no_patient_is_on_two_sides(tmp_path, seed):
    source = f"{patients(tmp_path)}?test=0.2&val=0.1&seed={seed}&group=patient"
    images, of = sides(source)
    assert not of["train"] & of["test"] and not of["train"] & of["val"] and not of["test"] & of["val"]
    for split, share in (("test", 0.2), ("val", 0.1)):  # a patient has at most 9 images, and half of them may be too many
        assert abs(images[split][0] - share * 150) <= 5 and abs(images[split][1] - share * 50) <= 5
    assert sides(source) == (images, of)
    assert sides(source.replace(f"seed={seed}", "seed=9"))[1] != of


@pytest.mark.parametrize("seed", range(50))
def test_groups_of_several_classes_keep_to_their_sides_and_shares(seed):
    """Every class is on every side that it can be on, and the share is that asked for within the largest group."""
    rng = np.random.default_rng(seed)
    classes = [f"c{k}" for k in range(rng.integers(1, 5))]
    groups = [f"g{k}" for k in range(rng.integers(20, 60)) for _ in range(rng.integers(1, 12))]
    samples = [Sample(str(i), int(label), "") for i, label in enumerate(rng.integers(len(classes), size=len(groups)))]
    share = float(rng.choice([0.1, 0.2, 0.3, 0.5]))
    parts = divided(HoldOut("x", {"test": share}, seed, ""), classes, samples, groups)
    of = {part: {groups[int(sample.name)] for sample in chosen} for part, chosen in parts.items()}
    assert not of["train"] & of["test"] and len(parts["train"]) + len(parts["test"]) == len(samples)
    assert all({sample.label for sample in chosen} == set(range(len(classes))) for chosen in parts.values())
    assert abs(len(parts["test"]) - share * len(samples)) <= max(Counter(groups).values())


def test_a_class_of_large_groups_is_on_both_sides():
    """None of them brings it nearer to its share."""
    groups = [f"{label}{k}" for label in (0, 1) for k in range(3) for _ in range(10)]
    samples = [Sample(str(i), int(group[0]), "") for i, group in enumerate(groups)]
    parts = divided(HoldOut("x", {"test": 0.1, "val": 0.1}, 0, ""), ["a", "b"], samples, groups)
    assert {part: Counter(sample.label for sample in chosen) for part, chosen in parts.items()} == {part: {0: 10, 1: 10} for part in parts}


def test_groups_are_kept_with_the_shards_for_folds(tmp_path, capsys):
    """Of mixed shards too, and of fewer images than were listed; another column of patients makes other shards."""
    source = f"{patients(tmp_path)}?group=patient"
    listed = open_source(source)
    draw(tmp_path)
    (tmp_path / "cat" / "000.png").write_bytes(b"none")
    index = shards.build(source, tmp_path / "shards", workers=1, progress=False, skip_bad=True)
    groups = [sample.group for sample in listed.splits["train"] if sample.name != "cat/000.png"]
    same = {(a, b): a == b for a, b in itertools.product(groups, groups)}
    assert all((index.group[i] == index.group[j]) == same[groups[i], groups[j]] for i, j in itertools.combinations(range(len(groups)), 2))
    again = shards.load_index(tmp_path / "shards")
    assert np.array_equal(again.group, index.group) and not shards.verify(tmp_path / "shards", workers=1, progress=False)
    assert f"groups   {len(set(groups))} in train" in shards.info(tmp_path / "shards")
    facts = planned.facts(config.merge(config.Run, {"data.shards": str(tmp_path / "shards"), "data.folds": 2, "objectives.classify": {}}))
    assert facts["groups"] == len(set(groups))
    plain = shards.build(source.partition("?")[0], tmp_path / "plain", workers=1, progress=False, skip_bad=True)
    assert plain.group is None and plain.sha256 != index.sha256 and "\ngroups" not in shards.info(tmp_path / "plain")
    file = tmp_path / "t.csv"
    file.write_text(file.read_text().replace("cat/001.png;cat;c", "cat/001.png;cat;x"))
    with pytest.raises(ConfigError, match="the same images in another order or in other groups"):
        shards.build(source, tmp_path / "shards", workers=1, progress=False, skip_bad=True)


def test_a_tables_images_may_be_in_a_folder_of_their_own(tmp_path):
    numbered(tmp_path / "images", a=2)
    (tmp_path / "t.csv").write_text("path,label\n000.png,a\n001.png,b\n")
    (tmp_path / "images" / "a").rename(tmp_path / "all")
    for place in ("all", tmp_path / "all"):
        samples = open_source(f"csv:{tmp_path / 't.csv'}?images={place}").splits["train"]
        assert [Path(sample.image).resolve() for sample in samples] == [tmp_path / "all" / f"00{i}.png" for i in range(2)]
    assert refused(f"csv:{tmp_path / 't.csv'}?images=gone").endswith(
        f"t.csv:2: there is no image {tmp_path}/gone/000.png (2 of 2 are missing)"
    )


def test_numbers_of_groups_follow_their_names():
    """Whatever the order of the images, as of large splits that a build mixes."""
    samples = [Sample("", 0, "", group) for group in ("b", "", "a", "b", "")]
    assert group_numbers(samples).tolist() == [1, 2, 0, 1, 3] and group_numbers(samples[::-1]).tolist() == [2, 1, 0, 3, 1]


def test_groups_of_two_splits_are_told(tmp_path):
    rows = numbered(tmp_path, a=4)
    draw(tmp_path)
    table = "".join(f"{path},{name},{i % 3},{'test' if i > 1 else 'train'}\n" for i, (path, name) in enumerate(rows))
    (tmp_path / "t.csv").write_text(f"path,label,patient,split\n{table}")
    shards.build(f"csv:{tmp_path / 't.csv'}?group=patient", tmp_path / "shards", workers=1, progress=False)
    assert "groups   2 in train, 2 in test\nwarning: 1 group of train also in test\n" in shards.info(tmp_path / "shards")


def test_a_patient_with_an_unlabelled_image_stays_in_training(tmp_path):
    """Its other images would be in the test set."""
    source = patients(tmp_path)
    file = tmp_path / "t.csv"
    file.write_text(file.read_text().replace("cat/000.png;cat;c0", "cat/000.png;;c0").replace("cat/149.png;cat", "cat/149.png;"))
    for seed in range(8):
        images, of = sides(f"{source}?test=0.5&seed={seed}&group=patient")
        assert "c0" in of["train"] and -1 not in images["test"]


@pytest.mark.parametrize(
    ("table", "query", "message"),
    [
        ("a/1.png,a,1", "?test=0.2&group=person", "t.csv: group=person: there is no such column; it has path, label and patient"),
        (
            "a/1.png,a,1\nb/1.png,b, ",
            "?test=0.2&group=patient",
            "t.csv:3: no patient; write what the image belongs to, or a name of its own",
        ),
        (
            "a/1.png,a,1\na/2.png,a,1",
            "?test=0.2&group=patient",
            "too few values of patient in a (1), for one each for train and test; add some, or leave the images of such classes out",
        ),
        (
            "a/1.png,a,1\na/2.png,a,2\nb/1.png,b,1\nb/2.png,b,3\nc/1.png,c,2\nc/2.png,c,3",
            "?test=0.2&group=patient",
            "none of its values of patient can go to test and leave every class some for training; try another seed, add some, or",
        ),
    ],
)
def test_what_is_wrong_with_a_group_is_one_line(tmp_path, table, query, message):
    numbered(tmp_path, a=3, b=3, c=3)
    for path in tmp_path.glob("*/00?.png"):
        path.rename(path.with_name(f"{int(path.stem)}.png"))
    (tmp_path / "t.csv").write_text(f"path,label,patient\n{table}\n")
    assert message in refused(f"csv:{tmp_path}/t.csv{query}")
