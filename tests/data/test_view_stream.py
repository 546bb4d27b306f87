"""The thread that makes views ahead, without a GPU: streams that only keep what they are told. `tests/test_gpu.py` has real ones."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator

import pytest
import torch

from vitssl.data.loading.batch import Batch
from vitssl.data.loading.view_stream import AHEAD, on_own_stream, slice_groups

CUDA = torch.device("cuda", 0)


class Stream:
    def __init__(self, *_: object):
        self.waited: list[object] = []

    def wait_stream(self, other: object) -> None:
        self.waited.append(other)

    wait_event = wait_stream

    def record_event(self) -> object:
        return object()


class Tensor:
    """What a batch holds; who else reads it must be told, or its memory is given out again."""

    def __init__(self) -> None:
        self.read_by: list[object] = []

    def record_stream(self, stream: object) -> None:
        self.read_by.append(stream)


class Made:
    """A batch, of which weak references can be kept."""

    tensors = Batch.tensors

    def __init__(self, number: int):
        self.number, self.views, self.targets, self.index_B = number, {"main": Tensor(), "local": Tensor()}, {"main": Tensor()}, Tensor()


@pytest.fixture
def main_stream(monkeypatch) -> Stream:
    stream = Stream()
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "default_stream", lambda _: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    return stream


class Source:
    """Batches, two at a time, and how many of them there were at once."""

    def __init__(self, fail_at: int | None = None):
        self.alive, self.most, self.closed, self.fail_at = weakref.WeakSet[Made](), 0, False, fail_at

    def batches(self) -> Iterator[list[Made]]:
        try:
            for i in range(0, 50, 2):
                if i == self.fail_at:
                    raise ValueError(f"batch {i}")
                group = [Made(i), Made(i + 1)]
                self.alive.update(group)
                self.most = max(self.most, len(self.alive))
                yield group
                del group
        finally:
            self.closed = True


def test_each_batch_comes_in_order_once_its_views_are_there_and_few_are_alive(main_stream):
    source, last = Source(), lambda: None
    for number, batch in enumerate(on_own_stream(source.batches(), CUDA)):
        assert last() is None, "a batch that was trained on is still held"
        last = weakref.ref(batch)
        assert batch.number == number and len(main_stream.waited) == number // 2 + 1
        assert all(tensor.read_by == [main_stream] for tensor in (*batch.views.values(), *batch.targets.values(), batch.index_B))
        del batch
    assert number == 49 and source.most <= 2 * (AHEAD + 2) and source.closed


@pytest.mark.parametrize("after", [0, 3])
def test_whoever_stops_early_leaves_no_thread_and_no_batch(main_stream, after):
    source, before = Source(), threading.active_count()
    with contextlib.closing(on_own_stream(source.batches(), CUDA)) as batches:
        for _ in range(after):
            next(batches)
    assert threading.active_count() == before and not source.alive and source.closed == bool(after)


def test_what_goes_wrong_there_is_raised_here(main_stream):
    source, before = Source(fail_at=6), threading.active_count()
    seen = []
    with pytest.raises(ValueError, match="batch 6"):
        seen.extend(batch.number for batch in on_own_stream(source.batches(), CUDA))
    assert seen == [0, 1, 2, 3, 4, 5] and threading.active_count() == before and source.closed


def test_on_a_cpu_nothing_is_made_ahead(main_stream):
    source = Source()
    batches = on_own_stream(source.batches(), torch.device("cpu"))
    for number in range(50):
        batch = next(batches)
        assert batch.number == number and len(source.alive) == 2 - number % 2 and not main_stream.waited
        del batch
        assert len(source.alive) == 1 - number % 2


@pytest.mark.parametrize("start", range(7))
def test_groups_are_cut_where_a_run_that_was_not_stopped_cuts_them(start):
    whole = list(slice_groups(range(20), 4, 0))
    assert whole == [[4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3] for i in range(5)]
    resumed = list(slice_groups(range(start, 20), 4, start))
    assert [number for group in resumed for number in group] == list(range(start, 20)) and resumed[1:] == whole[
        len(whole) - len(resumed) + 1 :
    ]
    assert list(slice_groups(iter("ab"), 1, start)) == [["a"], ["b"]]
