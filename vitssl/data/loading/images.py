"""Three ways to read the pixels of a data set: from device memory, from the node's cache, or decoded as they are needed.

All give the same images for the same positions. What `host_batches` returns is iterated in a background thread. `to_device` is called in
the thread that makes views: the main thread, except in training on a GPU.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from vitssl import pool
from vitssl.config import ConfigError, Data
from vitssl.data.index import Index, read_image
from vitssl.data.loading.cache import Cache, decoded_bytes, open_cache
from vitssl.data.loading.read_ahead import Ahead, open_shard
from vitssl.data.pixels.decode import resize, resized_sizes
from vitssl.data.pixels.layout import ALWAYS_PADDED, MOST_PADDED, clear_padding, shape_of, unbind_images

PREFETCHED = 2  # batches per worker process that are decoded or asked for ahead
Positions = Callable[[], Iterator[np.ndarray]]
HostBatches = Generator[tuple[Tensor, Tensor], None, None]


class Images(Protocol):
    """A way to read the pixels of a data set."""

    def host_batches(self, positions: Positions) -> HostBatches:
        """Yield for each array of positions what `to_device` needs, and the sizes (B, 2) of the images. The generator is to be closed."""
        ...

    def to_device(self, host: Tensor) -> Tensor:
        """Return the images uint8 on the device, in the shape of `layout.shape_of`."""
        ...


def open_images(
    index: Index,
    positions: np.ndarray,
    data: Data,
    device: torch.device,
    window: int | None,
    batch_size: int,
    windowed: np.ndarray | None = None,
) -> Images:
    """Open the fastest way that the budgets of `data` allow to read the images at ``positions``.

    Args:
        window: the next image may be any of this many images, in the order of their shards; None if images come at random.
        batch_size: how many images are asked for at once, at most.
        windowed: rising positions of the images that come nearly in the order of their shards; None for all.
    """
    size = decoded_bytes(index, data)
    if size > data.cache_gb * 1e9:
        read_ahead = positions if windowed is None else windowed
        return Streamed(index, data, device, batch_size, None if window is None else Ahead(index, read_ahead, window))
    decoded = open_cache(index, data)
    if device.type == "cuda" and size <= data.device_cache_gb * 1e9 and decoded.images_NCHW is not None:
        return OnDevice(decoded, positions, device)
    return Cached(decoded, device)


class OnDevice:
    """Images held in device memory, where batches are gathered."""

    def __init__(self, decoded: Cache, positions: np.ndarray, device: torch.device):
        assert decoded.images_NCHW is not None
        self.decoded = decoded  # as long as it is held, no other job evicts it
        self.device = device
        self.images_NCHW = torch.from_numpy(decoded.images_NCHW[positions]).to(device)
        self.size = torch.from_numpy(decoded.sizes_N2[0])
        self.rows = np.full(len(decoded.sizes_N2), -1, dtype=np.int64)
        self.rows[positions] = np.arange(len(positions))

    def host_batches(self, positions: Positions) -> HostBatches:
        for chosen in positions():
            yield pinned(torch.from_numpy(self.rows[chosen]), self.device), self.size.expand(len(chosen), 2)

    def to_device(self, host: Tensor) -> Tensor:
        return self.images_NCHW[host.to(self.device, non_blocking=True)]


class Cached:
    """Images in the node's cache, which batches are copied from."""

    def __init__(self, decoded: Cache, device: torch.device):
        self.decoded, self.device = decoded, device

    def host_batches(self, positions: Positions) -> HostBatches:
        for chosen in positions():
            shape = shape_of(self.decoded.sizes_N2[chosen])
            pixels = torch.empty(shape, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
            _, sizes_B2 = self.decoded.read(chosen, out=pixels.numpy().reshape(-1))
            yield pixels, torch.from_numpy(sizes_B2)

    def to_device(self, host: Tensor) -> Tensor:
        return host.to(self.device, non_blocking=True)


class Streamed:
    """Images read from the shards and decoded by `data.workers` processes, for data above the cache's budget.

    Args:
        batch_size: how many images are asked for at once, at most.
        ahead: reads the shards ahead, if images come nearly in their order.
    """

    def __init__(self, index: Index, data: Data, device: torch.device, batch_size: int, ahead: Ahead | None = None):
        self.index, self.device, self.workers, self.batch_size, self.ahead = index, device, data.workers, batch_size, ahead
        self.sizes_N2 = resized_sizes(index.sizes_N2, data.cache_px)

    def host_batches(self, positions: Positions) -> HostBatches:
        if self.ahead is not None:
            positions = partial(self.ahead.read, positions)
        # one for each batch that a worker may have decoded or been asked for, and one for the batch being read
        slots = open_slots(self.sizes_N2, self.batch_size, PREFETCHED * self.workers + 1) if self.workers else []
        loader: torch.utils.data.DataLoader[Any] = torch.utils.data.DataLoader(
            _Decoder(self.index, self.sizes_N2, slots),  # type: ignore[arg-type]
            sampler=_Lazy(positions, len(slots)),
            batch_size=None,
            num_workers=self.workers,
            prefetch_factor=PREFETCHED if self.workers else None,
            # forked, as in `pool`: the decoder is not pickled, and shares its slots; torch takes a context only with workers
            multiprocessing_context="fork" if self.workers else None,
            collate_fn=lambda batch: batch,
            worker_init_fn=pool.quiet_worker,
            generator=torch.Generator(),  # a separate one, so that the caller's random state does not change
        )
        # The processes start here, in the thread that asks for batches. In the main thread torch notices at once if one dies, else in 5 s.
        with pool.room_for_semaphores("or set it to 0, which decodes in the training process", "data.workers"):
            decoded = iter(loader)
        return self._checked(decoded, slots)

    def _checked(self, decoded: Iterator[Decoded], slots: list[np.ndarray]) -> HostBatches:
        try:
            for pixels, sizes_B2, problem in decoded:
                if problem is not None:
                    raise ConfigError(problem)
                if isinstance(pixels, np.ndarray):
                    host = pinned(torch.from_numpy(pixels), self.device)
                else:  # copied before the next batch is asked for, which reuses the slot
                    host = torch.empty(pixels.shape, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
                    host.copy_(torch.from_numpy(_array(slots[pixels.slot], pixels.shape)))
                yield host, torch.from_numpy(sizes_B2)
        finally:
            del decoded  # ends the processes, even while an exception's traceback keeps this frame

    def to_device(self, host: Tensor) -> Tensor:
        return host.to(self.device, non_blocking=True)


def open_slots(sizes_N2: np.ndarray, batch_size: int, count: int) -> list[np.ndarray]:
    """Return ``count`` slots, each for a batch of images of ``sizes_N2``. A batch that is larger than nearly all others does not fit in.

    Slots are memory that worker processes write batches into and this process reads. Through a pipe, pixels are pickled, written and read
    once more. The memory is anonymous and reaches the workers by the fork, so that it needs no /dev/shm, of which containers have 64 MB.
    Its pages take up memory once something is written to them, so that a slot takes as much as the largest batch that it has held.

    Raises:
        ConfigError: the system does not give that much address space.
    """
    images, side = 3 * float(sizes_N2.prod(axis=1, dtype=np.int64).mean()), sizes_N2.max(axis=0).tolist()
    size = min(max(ALWAYS_PADDED, int(MOST_PADDED * batch_size * images)), 3 * batch_size * math.prod(side))
    try:
        return [np.frombuffer(mmap.mmap(-1, size), np.uint8) for _ in range(count)]
    except OSError as error:
        reason = f"no room for {count} batches of up to {size / 1e9:.2g} GB that workers decode ahead ({error.strerror})"
        raise ConfigError(f"{reason}; set it lower, or a smaller data.cache_px", "data.workers") from None


class InSlot(NamedTuple):
    """Where the pixels of a batch are: in which slot, and in which shape."""

    slot: int
    shape: tuple[int, ...]


Decoded = tuple[np.ndarray | InSlot, np.ndarray, str | None]


class _Lazy(torch.utils.data.Sampler):
    """Arrays of positions, each with a slot; the slots take turns."""

    def __init__(self, positions: Positions, slots: int):
        self.positions, self.slots = positions, slots

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        return ((i % self.slots if self.slots else 0, chosen) for i, chosen in enumerate(self.positions()))


class _Decoder:
    """The work of a worker process: from positions to a batch in its slot. A batch that is too large for its slot goes through the pipe."""

    def __init__(self, index: Index, sizes_N2: np.ndarray, slots: list[np.ndarray]):
        self.index, self.sizes_N2, self.slots = index, sizes_N2, slots

    def __getitem__(self, wanted: tuple[int, np.ndarray]) -> Decoded:
        """Return images in the shape of `layout.shape_of`, sizes (B, 2), and an error of one line, or None; the main process raises it."""
        slot, positions = wanted
        sizes_B2 = self.sizes_N2[positions]
        shape = shape_of(sizes_B2)
        fits = bool(self.slots) and math.prod(shape) <= len(self.slots[slot])
        pixels = _array(self.slots[slot], shape) if fits else np.empty(shape, np.uint8)
        clear_padding(pixels, sizes_B2)
        try:
            for image_CHW, position, size in zip(unbind_images(pixels, sizes_B2), positions, sizes_B2, strict=True):
                shard = open_shard(self.index, int(self.index.shard[position]))
                image_CHW[:] = resize(read_image(shard.descriptor, self.index, position), *size).transpose(2, 0, 1)
        except (ConfigError, OSError) as error:
            return pixels[:0].copy(), sizes_B2[:0], str(error)
        return InSlot(slot, shape) if fits else pixels, sizes_B2, None


def _array(slot: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return slot[: math.prod(shape)].reshape(shape)


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """Return ``tensor`` in pinned memory if ``device`` is a GPU, otherwise as it is."""
    return tensor.pin_memory() if device.type == "cuda" else tensor


def resolved(device: torch.device | str) -> torch.device:
    """Return the device with its number: plain "cuda" means the current GPU of the calling thread, and threads may differ in it."""
    device = torch.device(device)
    return torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" and device.index is None else device
