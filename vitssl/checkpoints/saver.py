"""A run's checkpoints on disk: the last two, written while training continues, and the newest of them that can be read."""

from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vitssl import dist
from vitssl.atomic import replacing
from vitssl.checkpoints import run_checkpoint, tensor_files
from vitssl.config import ConfigError
from vitssl.run_folder import BEST, LAST

PREVIOUS = "previous.pt"  # the former last.pt; removed when the run is done
DAMAGED = "damaged.pt"  # a last.pt that could not be read


class Saver:
    """Writes the checkpoints of a run (main rank), one at a time, while training continues.

    The content is copied first, so that checkpoints are as exact as if training waited. As a context it waits for the last one at its end.
    """

    def __init__(self, folder: Path):
        self._folder, self._thread = folder, ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self.slowest_s = 0.0  # longest time that a checkpoint took, from its copy to the disk

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind: type | None, *_: Any) -> None:
        self._thread.shutdown()
        if kind is None:  # otherwise the error of the context is the one to report
            self.wait()

    def check_room(self, model: nn.Module) -> None:
        """Refuse to train if the disk has no room for three checkpoints: the newest, the one before it, and one half written.

        Raises:
            ConfigError: there is less room than the weights and AdamW's two moments take; quotas are not seen.
        """
        parameters = list(model.parameters())
        size_bytes = sum(p.nbytes * (3 if p.requires_grad else 1) for p in parameters)
        needed = size_bytes * (3 - sum((self._folder / name).exists() for name in (LAST, PREVIOUS)))
        if (free := shutil.disk_usage(self._folder).free) < needed:
            reason = f"no space for its checkpoints, which need {needed / 1e6:,.3g} MB, and {free / 1e6:,.3g} MB are free"
            raise ConfigError(f"{reason}; make room there, or name a folder elsewhere: --runs", place=str(self._folder))

    def save(self, content: dict[str, Any], *names: str, best: bool = False) -> None:
        """Begin to write ``last.pt``, files ``names`` and, if ``best``, ``best.pt``, after waiting for the write before."""
        self.wait()
        self._writing = self._thread.submit(self._write, time.monotonic(), copy_to_cpu(content), names, best)

    def _write(self, began: float, content: dict[str, Any], names: tuple[str, ...], best: bool) -> None:
        tensor_files.save(self._folder / LAST, content, former=self._folder / PREVIOUS)
        for name in names:
            with replacing(self._folder / name) as temporary:
                _link(self._folder / LAST, temporary)
        if best:
            self.write_best(content)
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def write_best(self, content: dict[str, Any]) -> None:
        """Write the weights alone to ``best.pt``.

        This follows ``last.pt``: otherwise, if the process is killed in between, training would continue from a ``last.pt`` whose best
        weights are already overwritten.
        """
        tensor_files.save(self._folder / BEST, {name: content[name] for name in ("model", "data")})

    def check_write(self) -> None:
        """Raise the error of `wait` if the write that was begun has failed by now."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the checkpoint that was begun is on the disk.

        Raises:
            OSError, RuntimeError: it could not be written.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def finish(self) -> None:
        """Wait for the last checkpoint, and remove the one before it, which a finished run does not need."""
        self.wait()
        (self._folder / PREVIOUS).unlink(missing_ok=True)


def _link(path: Path, link: Path) -> None:
    """Give a file a second name, which stays when the first is replaced; copy it if the file system has no links."""
    link.unlink(missing_ok=True)
    try:
        os.link(path, link)
    except OSError:
        if not (link.exists() and link.samefile(path)):  # NFS may make the link and report an error
            shutil.copyfile(path, link)


def copy_to_cpu(value: Any) -> Any:
    """Return nested dictionaries and lists with a copy of every tensor on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: copy_to_cpu(part) for key, part in value.items()}
    return type(value)(copy_to_cpu(part) for part in value) if isinstance(value, list | tuple) else value


def newest(folder: Path) -> dict[str, Any] | None:
    """Return the content of the checkpoint that a run continues from, ``last.pt``; None if there is none.

    If it is damaged on any rank, or was never moved into place, the checkpoint before it takes its place, and a message says so.

    Raises:
        ConfigError: no existing checkpoint can be read.
    """
    last, previous = folder / LAST, folder / PREVIOUS
    content, problem = _read(last)
    if not dist.any_rank(content is None)[0]:
        return content
    previous_content, previous_problem = _read(previous)
    if not dist.any_rank(previous_content is None)[0]:
        if dist.is_main():
            _put_in_place(last, previous, problem)
        return previous_content
    if problem := problem or previous_problem:
        advice = "" if run_checkpoint.ADVICE in str(problem) else f"; {run_checkpoint.ADVICE}"
        raise ConfigError(f"{problem}{advice}")
    if dist.any_rank(content is not None or previous_content is not None)[0]:
        raise ConfigError("not all ranks can read it", place=str(last))
    return None


def _read(path: Path) -> tuple[dict[str, Any] | None, ConfigError | None]:
    """Return a checkpoint, or what is wrong with it; neither if the file does not exist."""
    try:
        return (run_checkpoint.read_run(path) if path.exists() else None), None
    except ConfigError as error:
        return None, error


def _put_in_place(last: Path, previous: Path, problem: ConfigError | None) -> None:
    """Put the previous checkpoint in place of ``last``, and say why."""
    if last.exists():
        last.replace(last.with_name(DAMAGED))
    previous.replace(last)
    reason = f"{problem} (kept as {DAMAGED})" if problem else f"{last} was missing"
    print(f"{reason}: training continues from the checkpoint before it", flush=True)
