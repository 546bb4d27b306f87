"""Builds that meet bad images, or a source that has changed."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitssl import cli, config
from vitssl.config import ConfigError
from vitssl.data import shards
from vitssl.data.building import findings
from vitssl.data.index import Index, load_index

COUNTS = {"train": {"cat": 30, "dog": 30}, "test": {"cat": 3, "dog": 3}}


def build(source: Path | str, out: Path, call=shards.build, **options) -> Index:
    return call(str(source), out, **{"workers": 1, "images_per_shard": 4, "progress": False} | options)


def spoil(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_bytes((folder / name).read_bytes()[:60])


def cut(source: Path) -> list[str]:
    """25 of 30 cats are cut short; their names."""
    cats = sorted(path.relative_to(source).as_posix() for path in (source / "train" / "cat").iterdir())[:25]
    spoil(source, *cats)
    return cats


def image(path: Path, seed: int = 0) -> None:
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (12, 10, 3), dtype=np.uint8)).save(path)


# ---------------------------------------------------------------------------------------------------------- bad images


def test_all_bad_images_are_listed_at_once(make_folder, tmp_path, capsys):
    source, out = make_folder(**COUNTS), tmp_path / "out"
    bad = cut(source)
    assert cli.main(["shards", "build", str(source), str(out), "--workers", "2"]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "shards of" not in line]
    assert len(lines) == 22 and lines[20] == "... and 5 more"
    assert [line.split(": cannot be decoded")[0] for line in lines[:20]] == [str(source / name) for name in bad[:20]]
    assert lines[21] == (
        f"error: 25 images cannot be used, listed in {out}/bad_images.txt; repair or delete them, or give `vitssl shards build` --skip-bad"
    )
    listed = (out / "bad_images.txt").read_text().splitlines()
    assert [line.split(": cannot be decoded")[0] for line in listed] == [str(source / name) for name in bad]
    assert not (out / "index.json").exists()


def test_names_that_are_not_utf_8_are_read_and_shown(make_folder, tmp_path, capsys):
    source = make_folder(**COUNTS)
    for name in (b"Stra\xdfe.png", b"gr\xfcn.png"):
        image(Path(os.fsdecode(os.fsencode(source / "train" / "cat") + b"/" + name)))
    spoil(source, os.fsdecode(b"train/cat/gr\xfcn.png"))
    assert cli.main(["shards", "build", str(source), str(tmp_path / "out"), "--workers", "1", "--skip-bad"]) == 0
    assert r"left out 1 image that cannot be used: train/cat/gr\udcfcn.png: cannot be decoded" in capsys.readouterr().out
    image(source / "train" / "cat" / "more.png")
    assert "1 image more (train/cat/more.png); `vitssl" in differing(source, tmp_path / "out")


def test_an_image_that_is_gone_is_a_bad_one(make_folder, tmp_path, capsys):
    source = make_folder()
    os.symlink(tmp_path / "nowhere", source / "train" / "cat" / "gone.jpg")
    with pytest.raises(ConfigError, match=r"train/cat/gone\.jpg: cannot be read \(No such file or directory\); repair or delete it, or"):
        build(source, tmp_path / "out")
    assert capsys.readouterr().err == ""


def test_a_pipe_among_the_images_is_a_bad_one_and_waits_for_nobody(make_folder, tmp_path):
    source = make_folder()
    os.mkfifo(source / "train" / "cat" / "pipe.jpg")
    with pytest.raises(ConfigError, match=r"train/cat/pipe\.jpg: cannot be read \(it is a pipe or a device\)"):
        build(source, tmp_path / "out")


@pytest.mark.parametrize("name", ["index.json", "samples.npy", "listing.csv.gz"])
def test_a_pipe_in_the_place_of_a_record_is_one_line_and_waits_for_nobody(make_folder, tmp_path, capsys, name):
    source, out = make_folder(), tmp_path / "out"
    build(source, out)
    (out / name).unlink()
    os.mkfifo(out / name)
    image(source / "train" / "cat" / "more.png")
    command = ["shards", "build", str(source), str(out)] if name == "listing.csv.gz" else ["shards", "info", str(out)]
    capsys.readouterr()
    assert cli.main(command) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {out / name}: ") and "it is a pipe or a device" in error and error.count("\n") == 1


def test_a_file_beyond_all_memory_is_a_bad_image(make_folder, tmp_path, capsys):
    source, out = make_folder(), tmp_path / "out"
    with open(source / "train" / "cat" / "z.jpg", "wb") as stream:
        stream.truncate(10**12)
    said = r"train/cat/z\.jpg: cannot be read \(it has 1,000,000,000,000 bytes, more than 1,073,741,824\)"
    with pytest.raises(ConfigError, match=said):
        build(source, out)
    assert len(build(source, out, skip_bad=True)) == 17
    assert "z.jpg" in findings.read(out).left_out[0][1]


def test_bad_images_are_left_out_and_recorded(make_folder, tmp_path):
    source, out = make_folder(**COUNTS), tmp_path / "out"
    bad = cut(source)
    with pytest.raises(ConfigError, match="25 images"):
        build(source, out)
    times = {path: path.stat().st_mtime_ns for path in out.glob("*.tar")}
    index = build(source, out, skip_bad=True)
    assert times and {path: path.stat().st_mtime_ns for path in times} == times  # nothing is written twice
    assert len(index) == 41 and len(index.where("train")) == 35
    assert not list(out.glob("bad_images.txt")) and not (out / ".build").exists()
    assert shards.verify(out, workers=1, progress=False) == []
    found = findings.read(out)
    assert [row[:2] for row in found.left_out] == [["train", name] for name in bad]
    (line,) = (line for line in shards.info(out).splitlines() if line.startswith("left out"))
    assert line.startswith(f"left out 25 images that cannot be used: {bad[0]}: cannot be decoded") and line.endswith(
        f"; all 25 in {out}/found.json"
    )
    # the listing is the source's: nothing is to be done, with or without the option
    assert build(source, out).sha256 == build(source, out, skip_bad=True).sha256 == index.sha256
    # and the content is that of a folder that never had them
    for name in bad:
        (source / name).unlink()
    clean = build(source, tmp_path / "clean")
    assert (clean.mean, clean.classes, np.sort(clean.crc32).tolist()) == (index.mean, index.classes, np.sort(index.crc32).tolist())


def test_a_build_without_the_option_does_not_keep_what_one_with_it_left_out(make_folder, tmp_path, monkeypatch):
    source, out = make_folder(**COUNTS), tmp_path / "out"
    spoil(source, "train/dog/004.png")
    with monkeypatch.context() as patch:
        patch.setattr(shards.findings, "write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            build(source, out, skip_bad=True)
    with pytest.raises(ConfigError, match=r"train/dog/004\.png: cannot be decoded"):
        build(source, out)
    assert len(build(source, out, skip_bad=True)) == 65


def interrupt(*_) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["test/cat/000.png", "test/cat/001.jpg"], "pets: no image of class 'cat' in split 'test' can be used"),
        (["test/cat/000.png", "test/cat/001.jpg", "test/dog/000.png", "test/dog/001.jpg", "test/dog/002.png"], "no image of split 'test'"),
    ],
)
def test_what_is_left_must_have_every_class(make_folder, tmp_path, names, message):
    source = make_folder()
    spoil(source, *names)
    with pytest.raises(ConfigError, match=message):
        build(source, tmp_path / "out", skip_bad=True)


def test_shards_of_an_earlier_version_go_on(make_folder, tmp_path):
    """What it had finished has no signatures and is written again, to the same bytes."""
    source, out = make_folder(), tmp_path / "out"
    expected = build(source, tmp_path / "undisturbed")
    spoil(source, "test/dog/002.png")
    with pytest.raises(ConfigError):
        build(source, out)
    for path in (out / ".build").glob("*.npy"):
        path.unlink()
    (source / "test" / "dog" / "002.png").unlink()
    index = build(source, out)
    assert [shard["sha256"] for shard in index.shards[:3]] == [shard["sha256"] for shard in expected.shards[:3]]


# ------------------------------------------------------------------------------------------------------- damaged files


def begun(source: Path, out: Path) -> None:
    """A build that stopped because of its last image, which is gone then."""
    spoil(source, "test/dog/002.png")
    with pytest.raises(ConfigError):
        build(source, out)
    (source / "test" / "dog" / "002.png").unlink()


DAMAGES = {
    "an empty record": ("train-000001.json", b"{}", "not as it was written"),
    "rows of text": ("train-000001.json", lambda record: record | {"rows": [list("abcdef")] * 4}, "not as it was written"),
    "a row too few": ("train-000001.json", lambda record: record | {"rows": record["rows"][1:]}, "not as it was written"),
    "a shard that is a name": ("train-000001.json", lambda record: record | {"shard": "train-000001.tar"}, "not as it was written"),
    "sums of text": ("train-000001.json", lambda record: record | {"totals": [["a"] * 3] * 3}, "not as it was written"),
    "no reasons": ("train-000001.json", lambda record: record | {"left_out": [[1]]}, "not as it was written"),
    "no JSON": ("train-000001.json", b"[", "Expecting value"),
    "a list": ("train-000001.json", b"[1]", "not as it was written"),
    "no text": ("train-000001.json", b"\x80x", "codec can't decode"),
    "no signatures": ("train-000001.npy", b"", "No data left in file"),
    "signatures that are cut": ("train-000001.npy", None, "mmap length is greater than file size"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_record_of_a_shard_is_written_again(make_folder, tmp_path, capsys, case):
    source, out = make_folder(), tmp_path / "out"
    begun(source, out)
    name, content, reason = DAMAGES[case]
    damaged = out / ".build" / name
    whole = damaged.read_bytes()
    if callable(content):
        content = json.dumps(content(json.loads(whole))).encode()
    damaged.write_bytes(whole[:-20] if content is None else content)
    capsys.readouterr()
    index = build(source, out)
    (note,) = capsys.readouterr().err.splitlines()
    assert note.startswith(f"note: {out}/.build/train-000001: the record of a shard is damaged (") and reason in note
    assert note.endswith("); it is written again")
    assert index.sha256 == build(source, tmp_path / "undisturbed").sha256


def test_a_shard_without_images_goes_on(make_folder, tmp_path, capsys):
    source, out = make_folder(**COUNTS), tmp_path / "out"
    cut(source)
    with pytest.raises(ConfigError):
        build(source, out)
    capsys.readouterr()
    assert len(build(source, out, skip_bad=True)) == len(build(source, tmp_path / "undisturbed", skip_bad=True)) == 41
    assert "damaged" not in capsys.readouterr().err


def test_a_damaged_plan_is_named(make_folder, tmp_path):
    source, out = make_folder(), tmp_path / "out"
    begun(source, out)
    (out / ".build" / "plan.json").write_text("[")
    with pytest.raises(ConfigError, match=rf"^{out}/\.build/plan\.json: damaged \(.*\), so that .* delete that folder and build again$"):
        build(source, out)


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"x\n",
        lambda whole: whole[:-30],
        lambda whole: b"",
        lambda whole: whole[:40] + b"x" * 90,
        lambda whole: gzip.compress(b"split,name\na,b\n"),
    ],
)
def test_a_damaged_listing_is_named(make_folder, tmp_path, damage):
    source, out = make_folder(), tmp_path / "out"
    build(source, out)
    image(source / "train" / "cat" / "new.png")
    path = out / "listing.csv.gz"
    path.write_bytes(damage(path.read_bytes()))
    assert differing(source, out).startswith(f"{path}: damaged (")
    path.unlink()
    assert "13 images in train instead of 12" in differing(source, out)


# ------------------------------------------------------------------------------------------------------ what differs


def differing(source: Path | str, out: Path) -> str:
    with pytest.raises(ConfigError) as error:
        build(source, out)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_changed_folder_is_told_apart(make_folder, tmp_path):
    source, out = make_folder(), tmp_path / "out"
    build(source, out)
    for i in range(4):
        image(source / "train" / "cat" / f"new{i}.png", i)
    (source / "train" / "dog" / "000.png").unlink()
    (source / "test" / "dog" / "002.png").rename(source / "test" / "cat" / "002.png")
    image(source / "train" / "dog" / "002.png", 9)
    (source / "train" / "emu").mkdir()
    image(source / "train" / "emu" / "1.png")
    (source / "test" / "emu").mkdir()
    image(source / "test" / "emu" / "1.png")
    assert differing(source, out) == (
        f"{out}: holds the shards of pets, which differ from {source}: classes added: emu; "
        "7 images more (train/cat/new0.png, train/cat/new1.png, train/cat/new2.png, ...); "
        "2 images fewer (train/dog/000.png, test/dog/002.png); 1 image with other content (train/dog/002.png); "
        f"`vitssl shards build {source} {out} --rebuild` replaces them, or choose another folder"
    )


def test_images_that_change_their_split_or_class_are_not_new(tmp_path):
    for i in range(12):
        image(tmp_path / f"{i}.png", i)
    rows = [(f"{i}.png", "ab"[i % 2], "test" if i > 7 else "train") for i in range(12)]

    def csv(name: str, listed: list[tuple[str, str, str]]) -> str:
        (tmp_path / name).write_text("path,label,split\n" + "".join(f"{','.join(row)}\n" for row in listed))
        return f"csv:{tmp_path / name}"

    out = tmp_path / "out"
    build(csv("x.csv", rows), out)
    moved = [(name, "b" if name == "2.png" else label, "test" if name == "3.png" else split) for name, label, split in rows]
    assert "x.csv: 1 image in another split (3.png); 1 image in another class (2.png); `vitssl" in differing(csv("x.csv", moved), out)
    assert "x.csv: the same images in another order; " in differing(csv("x.csv", rows[::-1]), out)
    (out / "listing.csv.gz").unlink()
    expected = "x.csv: 7 images in train instead of 8; 5 images in test instead of 4; "
    assert expected in differing(csv("x.csv", moved), out)
    assert "x.csv: as many images in each split, but others, or in another order" in differing(csv("x.csv", rows[::-1]), out)


# ------------------------------------------------------------------------------------------------------------- rebuild


def test_a_rebuild_replaces_the_shards(make_folder, tmp_path, capsys):
    source, out = make_folder(), tmp_path / "out"
    old = build(source, out)
    image(source / "train" / "cat" / "new.png")
    assert cli.main(["shards", "build", str(source), str(out), "--rebuild"]) == 0
    assert "pets: 18 images" in capsys.readouterr().out
    index = shards.load_index(out)
    assert len(index) == len(old) + 1 and shards.verify(out, workers=1, progress=False) == []
    assert build(source, tmp_path / "anew", images_per_shard=1000).sha256 == index.sha256
    assert {path.name for path in tmp_path.iterdir()} == {"pets", "out", "anew"}
    rebuilt = build(source, tmp_path / "fresh", call=shards.rebuild)  # nothing to replace
    assert len(rebuilt) == 18 and {path.name for path in tmp_path.iterdir()} == {"pets", "out", "anew", "fresh"}


def test_the_old_shards_stay_until_the_new_ones_are_whole(make_folder, tmp_path, monkeypatch):
    source, out = make_folder(**COUNTS), tmp_path / "out"
    old = build(source, out)
    image(source / "train" / "dog" / "new.png")
    spoil(source, "test/dog/002.png")
    with pytest.raises(ConfigError, match=r"test/dog/002\.png: cannot be decoded"):
        build(source, out, call=shards.rebuild)
    assert shards.load_index(out).sha256 == old.sha256 and shards.verify(out, workers=1, progress=False) == []
    first = tmp_path / ".out.rebuild" / "train-000000.tar"
    inode = first.stat().st_ino
    (source / "test" / "dog" / "002.png").unlink()
    with monkeypatch.context() as patch:  # killed when all is built
        patch.setattr(shards, "_exchange", interrupt)
        with pytest.raises(KeyboardInterrupt):
            build(source, out, call=shards.rebuild)
    assert first.stat().st_ino == inode, "the interrupted build went on"
    assert shards.load_index(out).sha256 == old.sha256
    index = build(source, out, call=shards.rebuild)
    assert len(index) == 66 and index.folder == out and not list(tmp_path.glob(".out*"))


def test_a_rebuild_that_was_killed_while_folders_were_exchanged_is_finished(make_folder, tmp_path, monkeypatch):
    source, out = make_folder(), tmp_path / "out"
    build(source, out)
    image(source / "train" / "cat" / "new.png")
    real = os.rename

    def killed(a: Path, b: Path) -> None:
        if b == out:
            raise KeyboardInterrupt
        real(a, b)

    with monkeypatch.context() as patch:
        patch.setattr(shards.os, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            build(source, out, call=shards.rebuild)
    assert not out.exists() and {path.name for path in tmp_path.iterdir()} == {"pets", ".out.replaced", ".out.rebuild"}
    assert len(build(source, out)) == 18, "there is nothing left to build"
    assert {path.name for path in tmp_path.iterdir()} == {"pets", "out", ".out.replaced"}
    assert len(build(source, out, call=shards.rebuild)) == 18
    assert {path.name for path in tmp_path.iterdir()} == {"pets", "out"}


@pytest.mark.parametrize("name", ["notes.txt", "imagenet-000000.tar"])
def test_a_rebuild_deletes_nothing_but_shards(make_folder, tmp_path, name):
    source, out = make_folder(), tmp_path / "out"
    build(source, out)
    (out / name).write_text("mine")
    with pytest.raises(ConfigError, match=rf"out: holds {re.escape(name)}, which is not of its shards; move it, or choose another folder"):
        build(source, out, call=shards.rebuild)
    assert (out / name).read_text() == "mine" and len(shards.load_index(out)) == 17
    with pytest.raises(ConfigError, match="holds the images themselves"):
        build(source, source, call=shards.rebuild)


def test_old_shards_that_were_deleted_in_part_are_deleted_for_good(make_folder, tmp_path, monkeypatch):
    source, out = make_folder(), tmp_path / "out"
    build(source, out)
    image(source / "train" / "cat" / "new.png")
    with monkeypatch.context() as patch:
        patch.setattr(shards.shutil, "rmtree", interrupt)
        with pytest.raises(KeyboardInterrupt):
            build(source, out, call=shards.rebuild)
    assert {path.name for path in tmp_path.iterdir()} == {"pets", "out", ".out.rebuild"}
    build(source, out, call=shards.rebuild)
    assert {path.name for path in tmp_path.iterdir()} == {"pets", "out"}


@pytest.mark.parametrize("name", ["my_backup.tar", "train-000099.tar"])
def test_a_build_that_goes_on_deletes_no_tar_but_its_own(make_folder, tmp_path, name):
    source, out = make_folder(), tmp_path / "out"
    spoil(source, "test/dog/002.png")
    with pytest.raises(ConfigError):
        build(source, out)
    (source / "test" / "dog" / "002.png").unlink()
    (out / name).write_text("mine")
    with pytest.raises(ConfigError, match=f"out: holds {name}, which is not of its shards; move it, or choose another folder"):
        build(source, out)
    assert (out / name).read_text() == "mine"
    (out / name).unlink()
    assert len(build(source, out)) == 16


def test_a_tar_that_was_put_there_during_the_build_stays(make_folder, tmp_path, monkeypatch):
    source, out = make_folder(), tmp_path / "out"
    find = shards.finishing.index_of

    def meanwhile(*arguments) -> Index:
        (out / "my_backup.tar").write_text("mine")
        return find(*arguments)

    monkeypatch.setattr(shards.finishing, "index_of", meanwhile)
    assert len(build(source, out)) == 17
    assert (out / "my_backup.tar").read_text() == "mine"


def test_a_link_to_shards_stays_one(make_folder, tmp_path):
    source = make_folder()
    build(source, tmp_path / "disk" / "pets-shards")
    (tmp_path / "shards").mkdir()
    os.symlink(tmp_path / "disk" / "pets-shards", tmp_path / "shards" / "pets")
    image(source / "train" / "cat" / "new.png")
    assert len(build(source, tmp_path / "shards" / "pets", call=shards.rebuild)) == 18
    assert (tmp_path / "shards" / "pets").is_symlink() and len(shards.load_index(tmp_path / "disk" / "pets-shards")) == 18


def test_who_waited_for_a_rebuild_takes_the_new_folder(tmp_path):
    """The lock that it waited for went with the old one."""
    (tmp_path / "out").mkdir()
    with shards._locked(tmp_path / "out"):
        shutil.rmtree(tmp_path / "out")
        with shards._locked(tmp_path / "out") as lock, open(tmp_path / "out" / ".lock") as other:
            assert os.path.samestat(os.fstat(lock.fileno()), os.fstat(other.fileno()))
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_where_there_are_no_shards_none_are_to_be_written_over_other_files(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("photos/train/a", "photos/test/a", "loose"):
        (tmp_path / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / name / "x.png")
    with pytest.raises(ConfigError, match=r"^photos: holds images and not their shards, which `vitssl shards build folder:photos shards/p"):
        load_index("photos")
    with pytest.raises(
        ConfigError, match=r"^loose/index.json does not exist: name a folder that `vitssl shards build SOURCE FOLDER` wrote$"
    ):
        load_index("loose")
    with pytest.raises(ConfigError, match=r"^gone/index.json does not exist: write the shards with `vitssl shards build SOURCE gone`$"):
        load_index("gone")


def test_a_channel_of_one_value_is_normalised_to_zero(tmp_path):
    """Microscopes write what they see in green, and nothing in red and blue."""
    for i in range(4):
        green = np.zeros((8, 8, 3), np.uint8)
        green[..., 1] = np.random.default_rng(i).integers(0, 256, (8, 8))
        path = tmp_path / "cells" / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(green).save(path)
    index = shards.build(f"folder:{tmp_path / 'cells'}?test=0.5&seed=0", tmp_path / "shards", workers=1, progress=False)
    assert index.mean[::2] == index.std[::2] == [0, 0]
    mean, std = config.statistics(config.Data(shards="x"), index.mean, index.std)
    assert mean == index.mean and std == [1.0, index.std[1], 1.0]
