"""Shares of lists and tables that are held out, by image and by group; those of folders are in test_folders.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.test_lists import listed, refused, write
from vitssl.data.sources import open_source


def numbered(root: Path, **counts: int) -> list[tuple[str, str]]:
    """(path, class) of empty images <class>/<number>.png."""
    rows = [(f"{name}/{i:03d}.png", name) for name, count in counts.items() for i in range(count)]
    for path, _ in rows:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    return rows


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
        ("csv:{root}/t.csv?val=0.5", "too few images in a (1), b (1), for an image each for train and val"),
    ],
)
def test_what_is_wrong_with_a_share_is_one_line(tmp_path, query, message):
    write(tmp_path, t__txt="a/1.png a\na/2.png a\nb/1.png b\n", t__csv="path,label,set\na/1.png,a,train\nb/1.png,b,train\na/2.png,a,Test\n")
    assert message in refused(query.format(root=tmp_path))
