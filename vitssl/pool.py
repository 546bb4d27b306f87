"""Run a function over many tasks in worker processes, with a progress bar."""

from __future__ import annotations

import contextlib
import errno
import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vitssl.config import ConfigError
from vitssl.terminal import console


def cpu_count() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def processes(wanted: int | None, tasks: Sized) -> int:
    """Return how many processes to use: as many as ``wanted``, or one per core if that is None, but not more than there are tasks."""
    return min(wanted or cpu_count(), len(tasks))


def run(function: Callable[[Any], Any], tasks: Iterable[Any], *, workers: int, advance: Callable[[Any], None]) -> None:
    """Call ``function`` on every task, in any order, and ``advance`` on each result in this process.

    With one worker everything happens in this process. The first exception stops the rest and is raised here; running tasks
    may finish, so that what they write is complete. At most twice as many tasks as workers are held at once.
    Only tasks and results are pickled: the objects that ``function`` is bound to reach the workers through the fork.

    Raises:
        ConfigError: /dev/shm is full.
    """
    if workers <= 1:
        for task in tasks:
            advance(function(task))
        return
    # Forked, so that a worker starts in milliseconds and does not import the caller's main module (and torch) again.
    context = multiprocessing.get_context("fork")
    with room_for_semaphores("or take one process"):
        pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=(function,))
    try:
        tasks = iter(tasks)
        pending = _submit(pool, itertools.islice(tasks, 2 * workers))
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                advance(future.result())
            pending |= _submit(pool, itertools.islice(tasks, len(done)))
    finally:
        with _without_ctrl_c():
            pool.shutdown(cancel_futures=True)


def _submit(pool: ProcessPoolExecutor, tasks: Iterable[Any]) -> set[Future]:
    with _without_ctrl_c():  # submitting starts workers
        return {pool.submit(_call, task) for task in tasks}


@contextlib.contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Delay Ctrl-C: while a worker starts or ends, it would leave one behind that this process then waits for without end."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread gets the signal
        yield
        return
    received: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if received and callable(handler):
        handler(signal.SIGINT, None)


@contextlib.contextmanager
def room_for_semaphores(otherwise: str, field: str = "") -> Iterator[None]:
    """Turn the error of a full /dev/shm into one for the user. Processes share semaphores, which on Linux are files in /dev/shm.

    Args:
        otherwise: how to do without worker processes, for the error.
        field: the setting at fault.

    Raises:
        ConfigError: /dev/shm is full.
    """
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        reason = "/dev/shm is full, which worker processes need a little of; delete what is left in it, make it larger"
        raise ConfigError(f"{reason} (of a container: --shm-size=1g), {otherwise}", field) from None


_function: Callable[[Any], Any]  # in a worker process, what it was started for


def _start(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    quiet_worker()


def _call(task: Any) -> Any:
    return _function(task)


def quiet_worker(*_: Any) -> None:
    """Make this worker process leave signals to its parent, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    # A parent that is killed by SIGKILL cannot tell its workers, which would wait for work indefinitely.
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextlib.contextmanager
def progress_bar(title: str, total: int, show: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar with the time left on stderr; yield the function that advances it."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), disable=not show) as progress:
        task = progress.add_task(title, total=total)
        yield lambda count: progress.advance(task, count)
