"""A generator whose items a thread produces ahead of time."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Generator
from typing import Any, TypeVar

T = TypeVar("T")


def prefetch(items: Generator[T, None, None], depth: int) -> Generator[T, None, None]:
    """Yield the items of a generator, produced by a background thread that is at most ``depth`` items ahead.

    Errors in the thread are raised here. Closing this generator ends the thread and closes ``items``.
    """
    results: queue.Queue[tuple[str, Any]] = queue.Queue(depth)
    stopped = threading.Event()
    thread = threading.Thread(target=_fill, args=(items, results, stopped), daemon=True, name="vitssl-prefetch")
    thread.start()
    try:
        while (result := results.get())[0] == "item":
            yield result[1]
        if result[0] == "error":
            raise result[1]
    finally:
        stopped.set()
        with contextlib.suppress(queue.Empty):  # the thread may be waiting for room
            while True:
                results.get_nowait()
        thread.join()


def _fill(items: Generator, results: queue.Queue, stopped: threading.Event) -> None:
    with contextlib.closing(items):
        try:
            for item in items:
                results.put(("item", item))
                if stopped.is_set():
                    return
            results.put(("end", None))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the main thread raises it
            results.put(("error", error))
