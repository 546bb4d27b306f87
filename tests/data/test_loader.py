from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitssl.config import ConfigError, Data, Subset
from vitssl.data import shards
from vitssl.data.index import read_image
from vitssl.data.loading.cache import open_cache
from vitssl.data.loading.images import Cached, OnDevice, Streamed, open_images
from vitssl.data.loading.loader import EvalLoader, TrainLoader, prefetch
from vitssl.data.loading.order import Order
from vitssl.data.loading.subset import train_and_heldout
from vitssl.data.pixels.layout import shape_of, unbind_images

CPU = torch.device("cpu")


@pytest.fixture
def data(tmp_path) -> Data:
    return Data(shards="unused", cache_dir=str(tmp_path / "cache"))


def streaming(data: Data, workers: int) -> Data:
    return replace(data, cache_gb=0.0, workers=workers)


def loader(index, data: Data, **options) -> TrainLoader:
    options = {"seed": 3, "batch_size": 8} | options
    return TrainLoader(index, train_and_heldout(index, data, options.pop("need_labels", False)), data, **options)


def stream(batches) -> list[int]:
    return [i for slices in batches for batch in slices for i in batch.index_B.tolist()]


# --------------------------------------------------------------------------------------------------------------- order


def test_every_image_once_per_epoch_and_another_order_in_each():
    positions = np.array([3, 5, 8, 13, 21, 34, 55])
    order = Order(positions, seed=0)
    epochs = [order.slice(7 * e, 7 * (e + 1)).tolist() for e in range(4)]
    assert all(sorted(epoch) == positions.tolist() for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert order.slice(5, 30).tolist() == [i for epoch in epochs for i in epoch][5:28] + order.slice(28, 30).tolist()
    assert Order(positions, seed=1).slice(0, 7).tolist() != epochs[0]


def test_a_slice_may_span_many_epochs():
    order = Order(np.array([1, 2, 3]), seed=0)
    assert order.slice(1, 12).tolist() == [order.slice(i, i + 1)[0] for i in range(1, 12)]


def test_repeats_are_adjacent_copies_of_the_first_images_of_the_permutation():
    positions = np.arange(10)
    once, thrice = Order(positions, seed=0), Order(positions, seed=0, repeats=3)
    for epoch in range(3):
        first = once.slice(10 * epoch, 10 * epoch + 4)  # ceil(10 / 3)
        assert thrice.slice(10 * epoch, 10 * (epoch + 1)).tolist() == np.repeat(first, 3)[:10].tolist()


# -------------------------------------------------------------------------------------------------------- train loader


@pytest.mark.parametrize("mode", ["cached", "streamed", "streamed in this process"])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_share_each_epoch_and_the_order_is_one(make_shards, data, world_size, mode):
    """12 images, batches of 8: three steps are two epochs."""
    index = make_shards()
    reference = stream(loader(index, data).batches(0, 6))
    assert [sorted(reference[i : i + 12]) for i in range(0, 48, 12)] == [list(range(12))] * 4
    if mode != "cached":
        data = streaming(data, workers=2 if mode == "streamed" else 0)
    ranks = [loader(index, data, rank=rank, world_size=world_size).batches(0, 6) for rank in range(world_size)]
    assert stream(slices for step in zip(*ranks, strict=True) for slices in step) == reference


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("cache_px", [None, 5])
def test_cached_streamed_and_device_images_are_equal(make_shards, data, ragged, cache_px):
    index, data = make_shards(ragged=ragged), replace(data, cache_px=cache_px)
    chosen = [np.array([1, 9, 4]), np.array([0]), np.array([11, 11])]
    decoded = open_cache(index, data, progress=False)
    in_process, in_slots, too_large = (Streamed(index, replace(data, workers=n), CPU, batch) for n, batch in ((0, 3), (2, 3), (2, 1)))
    ways = [Cached(decoded, CPU), in_process, in_slots, too_large]
    if decoded.images_NCHW is not None:
        ways.append(OnDevice(decoded, np.array([0, 1, 4, 9, 11]), CPU))
    assert len(ways) == (4 if ragged else 5)
    results = [[(way.to_device(host), sizes) for host, sizes in way.host_batches(lambda: iter(chosen))] for way in ways]
    for result in results[1:]:
        for (images, sizes), (expected, expected_sizes) in zip(result, results[0], strict=True):
            assert torch.equal(images, expected) and torch.equal(sizes, expected_sizes)


def test_slots_are_given_out_again_only_when_they_were_read(make_shards, data):
    """Of 40 batches in five slots, read more slowly than they are decoded."""
    index, chosen = make_shards(ragged=False), [np.array([i % 12, (5 * i) % 12]) for i in range(40)]
    ways = [Streamed(index, replace(data, workers=n), CPU, 2) for n in (0, 2)]
    expected, found = ([], [])
    for way, seen in zip(ways, (expected, found), strict=True):
        for host, _ in way.host_batches(lambda: iter(chosen)):
            time.sleep(0.02 * way.workers)
            seen.append(host)
    assert len(found) == 40 and all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


def test_budgets_choose_the_way(make_shards, data):
    index = make_shards(ragged=False)
    positions = np.arange(3)
    assert isinstance(open_images(index, positions, data, CPU, None, 3), Cached)
    assert isinstance(open_images(index, positions, streaming(data, 1), CPU, None, 3), Streamed)


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("repeats", [1, 3])
def test_resume_from_any_step_equals_the_undisturbed_stream(make_shards, data, workers, repeats):
    index = make_shards()
    data = replace(data if workers is None else streaming(data, workers), repeats=repeats)
    whole = [step[0] for step in loader(index, data).batches(0, 7)]
    for start in (1, 4, 6):
        for batch, expected in zip((step[0] for step in loader(index, data).batches(start, 7)), whole[start:], strict=True):
            assert batch.step == expected.step
            for name in ("pixels", "sizes_B2", "labels_B", "index_B"):
                assert torch.equal(getattr(batch, name), getattr(expected, name))


def test_batches_say_what_they_are(make_shards, data):
    index = make_shards()
    data = replace(data, labels=Subset(per_class=2))
    split = train_and_heldout(index, data, need_labels=False)
    parts = [TrainLoader(index, split, data, seed=0, batch_size=8, rank=r, world_size=2, accumulate=2) for r in range(2)]
    assert parts[0].num_samples == 12 and parts[0].steps_per_epoch == 1.5
    for step, slices in enumerate(zip(*(part.batches(0, 3) for part in parts), strict=True)):
        batches = [batch for rank in slices for batch in rank]
        assert [batch.rows for batch in batches] == [slice(0, 2), slice(2, 4), slice(4, 6), slice(6, 8)]
        assert {(batch.step, batch.batch_size) for batch in batches} == {(step, 8)}
        for batch in batches:
            assert torch.equal(batch.labels_B, torch.from_numpy(split.labels)[batch.index_B])
            assert torch.equal(batch.sizes_B2, torch.from_numpy(index.sizes_N2)[batch.index_B])
            assert batch.pixels.shape[2:] == tuple(batch.sizes_B2.amax(0).tolist())
        labelled = sum(int((batch.labels_B >= 0).sum()) for batch in batches)
        assert {batch.labelled for batch in batches} == {labelled / 4}


@pytest.mark.parametrize("workers", [None, 2])
def test_ranks_share_the_labelled_part_of_each_batch(make_shards, data, workers):
    """5 of 12 images have labels, and 5 of a batch of 8, which 2 ranks with 2 slices each hold as 1, 1, 1 and 2."""
    index = make_shards()
    data = replace(data if workers is None else streaming(data, workers), labels=Subset(fraction=0.4, balanced=False))
    options = {"labelled_rows": 5}
    whole = list(loader(index, data, **options).batches(0, 6))
    parts = [loader(index, data, rank=rank, world_size=2, accumulate=2, **options) for rank in range(2)]
    assert parts[0].num_samples == 12
    ranks = [part.batches(2, 6) for part in parts]
    slices = [[batch for rank in step for batch in rank] for step in zip(*ranks, strict=True)]
    assert stream(slices) == stream(whole[2:]), "of any rank, from any step on"
    for step in slices:
        assert sorted(int((batch.labels_B >= 0).sum()) for batch in step) == [1, 1, 1, 2]
        assert {batch.labelled for batch in step} == {5 / 4}


def write_panoramas(folder: Path) -> None:
    """A wide and a high image among small ones."""
    generator = np.random.default_rng(0)
    for name, size in {"wide": (1, 60000), "high": (60000, 1)}.items():
        Image.fromarray(generator.integers(0, 256, (*size, 3), dtype=np.uint8)).save(folder / f"{name}.png")


@pytest.mark.parametrize("workers", [None, 0, 2])
def test_memory_of_a_batch_follows_its_images(make_folder, tmp_path, data, workers):
    """Padded to one size, of 60,000 x 60,000 pixels, a batch would take 151 GB."""
    source = make_folder()
    write_panoramas(source / "train" / "cat")
    index = shards.build(str(source), tmp_path / "out", workers=1, progress=False)
    train = loader(index, data if workers is None else streaming(data, workers), batch_size=14)
    assert isinstance(train.images, Cached if workers is None else Streamed)
    ((batch,),) = train.batches(0, 1)
    sizes_B2 = batch.sizes_B2.numpy()
    assert sorted(sizes_B2.max(axis=1))[-2:] == [60000, 60000]
    assert batch.pixels.numel() == 3 * sizes_B2.prod(axis=1).sum() < 500_000
    for image_CHW, position in zip(unbind_images(batch.pixels, sizes_B2), batch.index_B.tolist(), strict=True):
        with open(index.folder / index.shards[index.shard[position]]["name"], "rb") as shard:
            assert np.array_equal(image_CHW.permute(1, 2, 0), read_image(shard.fileno(), index, position))


def test_common_batches_are_padded():
    """So that they are copied and resized as one."""
    rng = np.random.default_rng(0)
    assert shape_of(np.full((256, 2), 2000)) == (256, 3, 2000, 2000)
    assert len(shape_of(rng.integers(300, 600, (256, 2)))) == 4 and len(shape_of(rng.integers(5, 500, (16, 2)))) == 4
    thumbnails = np.full((256, 2), 32)
    thumbnails[17] = 9000
    assert shape_of(thumbnails) == (3 * (9000**2 + 255 * 32**2),), "which would be 62 GB"


def test_batch_size_must_divide(make_shards, data):
    with pytest.raises(ConfigError, match=r"optim\.batch_size: 10 is not a multiple of 4 \(2 GPUs x 2 accumulated slices\)"):
        loader(make_shards(), data, batch_size=10, world_size=2, accumulate=2)


def test_caller_random_state_is_left_alone(make_shards, data):
    index = make_shards()
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    for ways in (data, streaming(data, 2)):
        list(loader(index, ways).batches(0, 2))
    assert torch.equal(torch.random.get_rng_state(), before)


# --------------------------------------------------------------------------------------------------------- eval loader


@pytest.mark.parametrize("workers", [None, 1])
@pytest.mark.parametrize("world_size", [1, 2, 4, 7])
def test_evaluation_sees_every_image_once(make_shards, data, world_size, workers):
    index = make_shards()
    data = data if workers is None else streaming(data, workers)
    positions = index.where("test")
    seen = []
    for rank in range(world_size):
        part = EvalLoader(index, positions, index.label, data, batch_size=2, rank=rank, world_size=world_size)
        batches = list(part)
        assert len(batches) == len(part)
        assert all(len(b.index_B) == 2 for b in batches[:-1])
        indices = [i for batch in batches for i in batch.index_B.tolist()]
        assert indices == positions[rank::world_size].tolist()
        assert [i for batch in part for i in batch.index_B.tolist()] == indices, "the next evaluation takes the same loader"
        assert all(b.labels_B.tolist() == index.label[b.index_B.numpy()].tolist() and b.labelled == len(b.index_B) for b in batches)
        seen += indices
    assert sorted(seen) == positions.tolist()


# ------------------------------------------------------------------------------------------------- threads and failures


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "vitssl-prefetch"]


def children() -> set[str]:
    return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())


@pytest.mark.parametrize("workers", [None, 2])
def test_leaving_early_ends_threads_and_processes(make_shards, data, workers):
    index = make_shards()
    before = children()
    batches = loader(index, data if workers is None else streaming(data, workers)).batches(0, 10**6)
    next(batches)
    assert threads()
    batches.close()
    assert not threads() and children() == before


@pytest.mark.parametrize("workers", [0, 2])
def test_altered_sample_is_named_in_the_main_process(make_shards, data, workers):
    index = make_shards()
    start = int(index.offset[5])
    with open(index.folder / "train-000001.tar", "r+b") as shard:
        shard.seek(start)
        shard.write(b"\0\0\0\0")
    with pytest.raises(ConfigError, match=rf"train-000001\.tar: image 5 at byte {start}: altered") as error:
        list(loader(index, streaming(data, workers)).batches(0, 3))
    assert "\n" not in str(error.value) and not threads()


def test_shard_that_vanishes_while_streaming_is_named(make_shards, data):
    index = make_shards()
    (index.folder / "train-000002.tar").unlink()
    with pytest.raises(ConfigError, match=r"train-000002\.tar"):
        list(loader(index, streaming(data, 1)).batches(0, 3))


def test_killed_worker_does_not_hang(make_shards, data, monkeypatch):
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2)  # seconds, instead of 5
    index = make_shards()
    before = children()
    batches = loader(index, streaming(data, 2)).batches(0, 10**6)
    next(batches)
    for pid in children() - before:
        os.kill(int(pid), signal.SIGKILL)
    with pytest.raises(RuntimeError, match="worker"):
        list(batches)
    batches.close()
    assert not threads()


def test_prefetch_stays_within_its_depth_and_raises_what_happened():
    made = []

    def items():
        for i in range(10):
            made.append(i)
            yield i
        raise OSError("gone")

    ahead = prefetch(items(), depth=2)
    assert next(ahead) == 0
    time.sleep(0.2)
    assert len(made) <= 4  # one taken, two waiting, one in the thread's hand
    taken = []
    with pytest.raises(OSError, match="gone"):
        for item in ahead:
            taken.append(item)
    assert taken == list(range(1, 10)) and not threads()


ENDLESS = """
import sys
from vitssl.config import Data
from vitssl.data import shards
from vitssl.data.loading.loader import TrainLoader
from vitssl.data.loading.subset import train_and_heldout
index = shards.load_index(sys.argv[1])
data = Data(shards=sys.argv[1], cache_dir=sys.argv[2], cache_gb=float(sys.argv[3]), workers=2)
loader = TrainLoader(index, train_and_heldout(index, data, True), data, seed=0, batch_size=8)
for slices in loader.batches(0, 10**9):
    print("going", flush=True)
"""


def test_streaming_does_not_depend_on_how_python_starts_processes(make_shards, tmp_path):
    """Python 3.14 starts them by a forkserver unless told otherwise."""
    code = "import multiprocessing; multiprocessing.set_start_method('forkserver')" + ENDLESS.replace("10**9", "3")
    command = [sys.executable, "-c", code, str(make_shards().folder), str(tmp_path / "cache"), "0.0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stdout) == (0, 3 * "going\n"), done.stderr


@pytest.mark.parametrize("cache_gb", [1.0, 0.0])
def test_ctrl_c_ends_the_process(make_shards, tmp_path, cache_gb):
    command = [sys.executable, "-c", ENDLESS, str(make_shards().folder), str(tmp_path / "cache"), str(cache_gb)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, cwd=Path(__file__).parents[2]
    )
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT or process.returncode == 130
    assert errors.decode().strip().splitlines()[-1] == "KeyboardInterrupt"


# ----------------------------------------------------------------------------------------------------------------- GPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("ragged", [False, True])
def test_gpu_batches_equal_those_on_the_cpu(make_shards, data, ragged):
    index = make_shards(ragged=ragged)
    reference = [step[0] for step in loader(index, data).batches(0, 6)]
    for gigabytes in (0.0, 1.0):
        on_gpu = loader(index, replace(data, device_cache_gb=gigabytes), device="cuda")
        assert isinstance(on_gpu.images, OnDevice) == (gigabytes > 0 and not ragged)
        for (batch,), expected in zip(on_gpu.batches(0, 6), reference, strict=True):
            assert batch.pixels.is_cuda and batch.labels_B.is_cuda and batch.index_B.is_cuda and not batch.sizes_B2.is_cuda
            assert torch.equal(batch.pixels.cpu(), expected.pixels)
            assert torch.equal(batch.labels_B.cpu(), expected.labels_B)
