from __future__ import annotations

import multiprocessing
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from vitssl.config import ConfigError, Data, Run
from vitssl.data.building.inspecting import verify
from vitssl.data.index import Index, load_index, write_index
from vitssl.data.loading import cache as cache_module
from vitssl.data.loading.cache import MARK_BYTES, decoded_bytes, folder_of, mark_of, open_cache
from vitssl.data.pixels.decode import decode, resize
from vitssl.training import train_state

NOBODY = 65534  # another user


@pytest.fixture
def data(tmp_path) -> Data:
    return Data(shards="unused", cache_dir=str(tmp_path / "cache"))


def pixels(index: Index, position: int) -> np.ndarray:
    """One image (H, W, 3), the slow way."""
    shard = (index.folder / index.shards[index.shard[position]]["name"]).read_bytes()
    start = int(index.offset[position])
    return decode(shard[start : start + int(index.size[position])], "x")


def stem(index: Index) -> str:
    """What the names of a data set's files begin with, where its images keep their size."""
    return mark_of(index, Data(shards="")).hex()[:20]


def files(data: Data, pattern: str = "*.u8") -> list[Path]:
    return sorted(folder_of(data).glob(pattern))


@pytest.mark.parametrize("ragged", [False, True])
def test_cache_holds_every_image_padded_with_zeros(make_shards, data, ragged):
    index = make_shards(ragged=ragged)
    cache = open_cache(index, data, progress=False)
    assert (cache.images_NCHW is None) == ragged
    positions = np.array([16, 0, 3, 3, 11])
    images_BCHW, sizes_B2 = cache.read(positions)
    assert images_BCHW.shape == (5, 3, *index.sizes_N2[positions].max(0)) and images_BCHW.dtype == np.uint8
    for image_CHW, (height, width), position in zip(images_BCHW, sizes_B2, positions, strict=True):
        assert np.array_equal(image_CHW[:, :height, :width].transpose(1, 2, 0), pixels(index, position))
        assert not image_CHW[:, height:].any() and not image_CHW[:, :, width:].any()


def test_read_into_used_memory(make_shards, data):
    index = make_shards()
    cache = open_cache(index, data, progress=False)
    memory = np.full(3 * 3 * 20 * 20, 255, np.uint8)
    assert np.array_equal(cache.read(np.array([1, 2, 5]), out=memory)[0], cache.read(np.array([1, 2, 5]))[0])
    assert np.shares_memory(cache.read(np.array([1]), out=memory)[0], memory)


def test_cache_px_resizes_the_short_side_once(make_shards, data):
    index = make_shards()
    data = replace(data, cache_px=5)
    images_BCHW, sizes_B2 = open_cache(index, data, progress=False).read(np.arange(len(index)))
    assert (sizes_B2.min(1) == 5).all()
    for position, (height, width) in enumerate(sizes_B2):
        expected = resize(pixels(index, position), height, width)
        assert np.array_equal(images_BCHW[position, :, :height, :width].transpose(1, 2, 0), expected)
    assert decoded_bytes(index, data) == sum(3 * h * w for h, w in sizes_B2) == files(data)[0].stat().st_size - MARK_BYTES


def test_second_opening_reads_what_the_first_wrote(make_shards, data, monkeypatch):
    index = make_shards()
    open_cache(index, data, progress=False).close()
    monkeypatch.setattr(cache_module, "_build", None)  # would fail if it were called
    open_cache(index, data, progress=False)
    with pytest.raises(TypeError):
        open_cache(index, replace(data, cache_px=6), progress=False)


def test_workers_write_the_same_file(make_shards, data, tmp_path, monkeypatch):
    index = make_shards()
    open_cache(index, data, progress=False)
    monkeypatch.setattr(cache_module, "POOL_FROM", 1)
    monkeypatch.setattr(cache_module.pool, "cpu_count", lambda: 3)
    other = replace(data, cache_dir=str(tmp_path / "parallel"))
    open_cache(index, other, progress=False)
    assert files(other)[0].read_bytes() == files(data)[0].read_bytes()


@pytest.mark.parametrize("size", [0, 100, 10**6])
def test_cache_file_of_wrong_size_is_built_again(make_shards, data, size):
    index = make_shards()
    open_cache(index, data, progress=False).close()
    whole = files(data)[0].read_bytes()
    os.truncate(files(data)[0], size)
    open_cache(index, data, progress=False)
    assert files(data)[0].read_bytes() == whole


def test_altered_shard_is_refused_and_leaves_nothing(make_shards, data):
    index = make_shards()
    shard = index.folder / "train-000001.tar"
    content = bytearray(shard.read_bytes())
    content[600] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ConfigError, match=r"train-000001\.tar: altered"):
        open_cache(index, data, progress=False)
    assert files(data) == files(data, "*.tmp") == []


def _open(index: Index, data: Data, log: Path) -> None:
    build = cache_module._build

    def counted(*args):
        with open(log, "a") as stream:
            stream.write("built\n")
        time.sleep(0.2)
        build(*args)

    cache_module._build = counted
    assert np.array_equal(open_cache(index, data, progress=False).read(np.array([2]))[0][0].transpose(1, 2, 0), pixels(index, 2))


def _come_late(index, data):
    """See the cache as it was before another process finished it, and go on from there."""
    valid, seen = cache_module._valid, []
    cache_module._valid = lambda *args: valid(*args) if seen else bool(seen.append(1))
    open_cache(index, data, progress=False)


def test_who_comes_late_does_not_wait_for_who_keeps_it_open(make_shards, data):
    """A rank that waited here for another's end would wait for ever, as the other waits for it before the first step."""
    index = make_shards()
    kept = open_cache(index, data, progress=False)
    late = multiprocessing.get_context("fork").Process(target=_come_late, args=(index, data))
    late.start()
    late.join(20)
    stuck = late.is_alive()
    late.kill()
    assert not stuck and late.exitcode == 0
    del kept


def test_processes_at_once_build_it_once(make_shards, data, tmp_path):
    index, log = make_shards(), tmp_path / "log"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_open, args=(index, data, log)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert log.read_text() == "built\n"


def test_least_recently_opened_is_evicted_unless_in_use(make_shards, data, monkeypatch):
    """Three sets of 12 x 10 px; the folder's budget holds two."""
    sets = {n: make_shards(f"set{n}", ragged=False, train={"a": n}, test={"a": 1}) for n in (9, 10, 11)}
    budget = 2 * 3 * 120 * 12 + 1
    monkeypatch.setattr(cache_module, "FOLDER_BUDGET", budget / 1e9)
    data = replace(data, cache_gb=1.0)

    def opened(n: int):
        time.sleep(0.02)  # so that file times differ
        return open_cache(sets[n], data, progress=False)

    def present() -> list[int]:
        return sorted(n for n, index in sets.items() if any(f.name.startswith(stem(index)) for f in files(data)))

    opened(9).close()
    opened(10).close()
    opened(9).close()  # 10 is now the one that was opened longest ago
    opened(11).close()
    assert present() == [9, 11]
    held = opened(9)
    opened(11).close()
    opened(10).close()
    assert present() == [9, 10]  # 9 is older than 11, but in use
    assert held.read(np.array([0]))[0].any()


def test_left_overs_of_killed_builds_are_evicted_first(make_shards, data, monkeypatch):
    index = make_shards()
    left_over = folder_of(data) / "0123-full.tmp"
    left_over.parent.mkdir(0o700, parents=True)
    left_over.write_bytes(b"x" * 100)
    monkeypatch.setattr(cache_module, "FOLDER_BUDGET", decoded_bytes(index, data) / (data.cache_gb * 1e9))
    open_cache(index, data, progress=False)
    assert not left_over.exists() and len(files(data)) == 1


def test_full_disk_and_unwritable_folder_name_the_field(make_shards, data, tmp_path, monkeypatch):
    index = make_shards()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"data\.cache_dir: cannot write in .*/file"):
        open_cache(index, replace(data, cache_dir=str(tmp_path / "file")), progress=False)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ConfigError, match=r"data\.cache_dir: no room for .*No space left on device.*data\.cache_gb"):
        open_cache(index, data, progress=False)
    assert files(data, "*.tmp") == []


def test_folder_is_named_by_field_then_environment_then_tmpdir(monkeypatch, tmp_path):
    monkeypatch.delenv("VITSSL_CACHE_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    name = f"vitssl-cache-{os.getuid()}"
    assert folder_of(Data(shards="x")) == tmp_path / name
    monkeypatch.setenv("VITSSL_CACHE_DIR", "/scratch/a")
    assert folder_of(Data(shards="x")) == Path("/scratch/a") / name
    assert folder_of(Data(shards="x", cache_dir="/b")) == Path("/b") / name


# ----------------------------------------------------------------------------------------- other users of the node's folder


def test_images_are_this_users_alone(make_shards, data):
    open_cache(make_shards(), data, progress=False)
    assert stat.S_IMODE(folder_of(data).stat().st_mode) == 0o700 and stat.S_IMODE(files(data)[0].stat().st_mode) == 0o600


def test_a_planted_cache_of_the_right_size_is_built_again(make_shards, data):
    """Also one of other images, or of before the mark was written."""
    index = make_shards()
    open_cache(index, data, progress=False).close()
    whole = files(data)[0].read_bytes()
    files(data)[0].write_bytes(bytes(len(whole)))
    open_cache(index, data, progress=False)
    assert files(data)[0].read_bytes() == whole


@pytest.mark.parametrize("planted", ["writable", "link", "file"])
def test_a_folder_that_others_could_have_filled_is_refused(make_shards, data, tmp_path, planted):
    folder = folder_of(data)
    folder.parent.mkdir()
    if planted == "link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "theirs")
    elif planted == "file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod(0o770)
    with pytest.raises(ConfigError, match=r"data\.cache_dir: .*vitssl-cache-\d+"):
        open_cache(make_shards(), data, progress=False)
    assert not list((tmp_path / "theirs").glob("*"))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can leave a file to another user")
@pytest.mark.parametrize("theirs", ["cache", "unfinished"])
def test_what_another_user_put_in_its_place_is_not_opened(make_shards, data, monkeypatch, theirs):
    """Where everybody may rename the folders in it, such as a /scratch that is not sticky, the folder may be another than was looked at."""
    index = make_shards()
    open_cache(index, data, progress=False).close()
    (file,) = files(data)
    if theirs == "cache":
        os.chown(file, 65534, 65534)
    else:
        file.unlink()
        reserve = cache_module._reserve
        monkeypatch.setattr(cache_module, "_reserve", lambda path, size: (reserve(path, size), os.chown(path, 65534, 65534)))
    with pytest.raises(ConfigError, match=r"^data\.cache_dir: .* is not a file of the cache \(another user's\)"):
        open_cache(index, data, progress=False)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can leave a folder to another user")
def test_another_users_folder_is_refused(make_shards, data):
    folder_of(data).mkdir(0o700, parents=True)
    os.chown(folder_of(data), 65534, 65534)
    with pytest.raises(ConfigError, match=r"data\.cache_dir: .* is not a folder that this user alone can write to"):
        open_cache(make_shards(), data, progress=False)


def test_a_set_that_calls_itself_another_has_a_cache_of_its_own(make_shards, data):
    index, other = (make_shards(name, ragged=False, train={"a": count}, test={"a": 6 - count}) for name, count in (("a", 3), ("b", 2)))
    theirs = open_cache(other, data, progress=False).read(np.arange(len(other)))[0]
    assert index.sha256 != other.sha256
    index.sha256 = other.sha256
    write_index(index)
    restated = load_index(index.folder)
    assert restated.sha256 == other.sha256 and any("sha256 that it states" in line for line in verify(index.folder))
    ours = open_cache(restated, data, progress=False).read(np.arange(len(index)))[0]
    assert ours.shape != theirs.shape or (ours != theirs).any()


@pytest.mark.parametrize("mode", [0o755, 0o711])
def test_nobody_else_can_hold_a_lock(make_shards, shared, mode):
    (data, _), index = shared, make_shards()
    folder_of(data).mkdir()
    folder_of(data).chmod(mode)
    open_cache(index, data, progress=False).close()
    (lock,) = folder_of(data).glob("*.lock")
    assert not _as_nobody(lambda: lock.open())


def test_a_lock_that_is_a_link_truncates_nothing(make_shards, data, tmp_path):
    index, victim = make_shards(), tmp_path / "thesis.tex"
    victim.write_text("years of work")
    folder_of(data).mkdir(0o700, parents=True)
    (folder_of(data) / f"{stem(index)}-full.lock").symlink_to(victim)
    with pytest.raises(ConfigError, match=r"data\.cache_dir: cannot write in"):
        open_cache(index, data, progress=False)
    (folder_of(data) / f"{stem(index)}-full.lock").unlink()
    (folder_of(data) / f"{stem(index)}-full.tmp").symlink_to(victim)
    open_cache(index, data, progress=False)
    assert victim.read_text() == "years of work"


def _as_nobody(act: Callable[[], None]) -> bool:
    """Let another user do something; could they?"""

    def attempt() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        act()

    other = multiprocessing.get_context("fork").Process(target=attempt)
    other.start()
    other.join()
    return other.exitcode == 0


@pytest.fixture
def shared(data) -> Iterator[tuple[Data, Path]]:
    """A temporary folder that everybody may write in, and a file of this user's outside of it."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="vitssl-shared-") as folder:
        Path(folder).chmod(0o1777)
        victim = Path(folder) / "thesis.tex"
        victim.write_text("years of work")
        victim.chmod(0o600)
        yield replace(data, cache_dir=folder), victim


@pytest.mark.parametrize("planted", ["lock", "tmp", "u8"])
def test_another_user_who_comes_first_gets_nothing(make_shards, shared, planted):
    """A folder of their own under the predictable name: with links to a file of this user's, or a cache of the right size and mark."""
    (data, victim), index = shared, make_shards()

    path, mark = folder_of(data) / f"{stem(index)}-full.{planted}", mark_of(index, data)

    def plant() -> None:
        path.parent.mkdir()
        path.parent.chmod(0o777)
        if planted == "u8":
            path.write_bytes(bytes(decoded_bytes(index, data)) + mark)
        else:
            path.symlink_to(victim)

    assert _as_nobody(plant)
    with pytest.raises(ConfigError, match=r"data\.cache_dir: .* is not a folder that this user alone can write to"):
        open_cache(index, data, progress=False)
    assert victim.read_text() == "years of work"


def test_another_user_who_comes_later_can_neither_read_nor_plant(make_shards, shared):
    (data, victim), index = shared, make_shards()
    open_cache(index, data, progress=False).close()
    (file,), folder = files(data), folder_of(data)
    whole = file.read_bytes()
    assert _as_nobody(lambda: (victim.parent / "theirs").touch()), "they may write in the folder around it"
    attacks = {
        "read": lambda: file.read_bytes(), "list": lambda: next(folder.iterdir()),
        "replace": lambda: folder.rename(victim.parent / "moved"), "link": lambda: (folder / "x.tmp").symlink_to(victim),
        "lock": lambda: file.with_suffix(".lock").write_bytes(b""),
        "plant": lambda: file.write_bytes(bytes(len(whole))), "delete": file.unlink,
    }  # fmt: skip
    assert [name for name, attack in attacks.items() if _as_nobody(attack)] == []
    assert file.read_bytes() == whole and victim.read_text() == "years of work"


@pytest.mark.parametrize("planted", ["link", "folder", "pipe"])
def test_what_is_no_file_is_a_line_or_built_again(make_shards, data, tmp_path, planted):
    index = make_shards()
    open_cache(index, data, progress=False)
    (path,) = files(data)
    path.unlink()
    if planted == "pipe":
        os.mkfifo(path)
        assert np.array_equal(open_cache(index, data, progress=False).read(np.array([0]))[0][0].transpose(1, 2, 0), pixels(index, 0))
        return
    path.symlink_to(tmp_path / "elsewhere") if planted == "link" else path.mkdir()
    with pytest.raises(ConfigError, match=r"data\.cache_dir: .*\.u8 is not a file of the cache \(.*\); delete it$"):
        open_cache(index, data, progress=False)


def test_what_torch_compiles_is_kept_there_too(data, monkeypatch):
    """Its own default is a folder of a shared temporary directory, from which it loads code."""
    monkeypatch.setattr(torch, "compile", lambda network, **_: network)
    monkeypatch.setenv("TRITON_CACHE_DIR", "/of/the/user")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    run = Run(data=data)
    assert train_state.compiled(torch.nn.Identity(), run) is not None
    assert os.environ["TRITON_CACHE_DIR"] == "/of/the/user"
    assert Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).parent == folder_of(data) and folder_of(data).stat().st_mode & 0o077 == 0


def test_a_folder_in_the_way_of_a_cache_is_named(make_shards, data):
    index = make_shards()
    folder = folder_of(data)
    in_the_way = folder / f"{stem(index)}-full.tmp"
    in_the_way.mkdir(mode=0o700, parents=True)
    folder.chmod(0o700)
    with pytest.raises(ConfigError, match=r"^data\.cache_dir: .*-full\.tmp is not a file of the cache \(Is a directory\); delete it$"):
        open_cache(index, data, progress=False)
    in_the_way.rmdir()
    (folder / "other.tmp").mkdir()  # is nobody's cache, and evicted by nobody
    (folder / "old.u8").mkdir()
    cache_gb = 1.5 * decoded_bytes(index, data) / cache_module.FOLDER_BUDGET / 1e9
    (folder / "older.u8").write_bytes(bytes(decoded_bytes(index, data)))
    open_cache(index, replace(data, cache_gb=cache_gb), progress=False).close()
    assert {path.name for path in folder.iterdir() if path.suffix != ".lock"} == {"other.tmp", "old.u8", f"{in_the_way.stem}.u8"}
