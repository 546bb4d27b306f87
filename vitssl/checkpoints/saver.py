"""A run's checkpoints on disk: the last two, written while training goes on, and the newest of them that can be read."""

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

PREVIOUS = "previous.pt"  # what last.pt was before; gone when the run is done
DAMAGED = "damaged.pt"  # a last.pt that could not be read


class Saver:
    """Writes the checkpoints of a run (main rank), one at a time, beside training: what they hold is copied first, so that they are as
    exact as if training waited. As a context it waits for the last one at its end."""

    def __init__(self, folder: Path):
        self._folder, self._thread = folder, ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self.slowest_s = 0.0  # that a checkpoint took, from its copy to the disk

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind: type | None, *_: Any) -> None:
        self._thread.shutdown()
        if kind is None:  # else that is the error to be told
            self.wait()

    def check_room(self, model: nn.Module) -> None:
        """Refuse to train a network whose checkpoints the disk has no room for: the newest, the one before it, and one half written.

        Raises:
            ConfigError: there is less than their weights and AdamW's two moments take; quotas are not seen.
        """
        parameters = list(model.parameters())
        size_bytes = sum(p.nbytes * (3 if p.requires_grad else 1) for p in parameters)
        needed = size_bytes * (3 - sum((self._folder / name).exists() for name in (LAST, PREVIOUS)))
        if (free := shutil.disk_usage(self._folder).free) < needed:
            reason = f"no space for its checkpoints, which need {needed / 1e6:,.3g} MB, and {free / 1e6:,.3g} MB are free"
            raise ConfigError(f"{reason}; make room there, or name a folder elsewhere: --runs", place=str(self._folder))

    def save(self, content: dict[str, Any], *names: str, best: bool = False) -> None:
        """Begin to write ``last.pt``, files of further names, and ``best.pt`` if it is that, when the ones before are written."""
        self.wait()
        self._writing = self._thread.submit(self._write, time.monotonic(), copied(content), names, best)

    def _write(self, began: float, content: dict[str, Any], names: tuple[str, ...], best: bool) -> None:
        tensor_files.save(self._folder / LAST, content, former=self._folder / PREVIOUS)
        for name in names:
            with replacing(self._folder / name) as temporary:
                _same(self._folder / LAST, temporary)
        if best:
            self.write_best(content)
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def write_best(self, content: dict[str, Any]) -> None:
        """The weights alone. After ``last.pt``, as training goes on from that, and must not have lost what is the best by its record."""
        tensor_files.save(self._folder / BEST, {name: content[name] for name in ("model", "data")})

    def check(self) -> None:
        """Whether what was begun has failed by now; raises as `wait`."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Until what was begun is on the disk.

        Raises:
            OSError, RuntimeError: it is not.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def finish(self) -> None:
        """A run that is done goes on from nothing."""
        self.wait()
        (self._folder / PREVIOUS).unlink(missing_ok=True)


def _same(path: Path, as_well: Path) -> None:
    """The file under a second name, which stays when the first is replaced; a copy where the file system has no links."""
    as_well.unlink(missing_ok=True)
    try:
        os.link(path, as_well)
    except OSError:
        if not (as_well.exists() and as_well.samefile(path)):  # NFS may make the link and call it an error
            shutil.copyfile(path, as_well)


def copied(value: Any) -> Any:
    """Nested dictionaries and lists with every tensor in memory of its own, on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    return type(value)(copied(part) for part in value) if isinstance(value, list | tuple) else value


def newest(folder: Path) -> dict[str, Any] | None:
    """The content of the checkpoint that a run goes on from, ``last.pt``; None where there is none. Where that is damaged on any rank, or
    was never moved into place, the one before takes its place, which is said.

    Raises:
        ConfigError: no checkpoint that is there can be read.
    """
    last, previous = folder / LAST, folder / PREVIOUS
    content, problem = _read(last)
    if not dist.anywhere(content is None)[0]:
        return content
    before, problem_before = _read(previous)
    if not dist.anywhere(before is None)[0]:
        if dist.is_main():
            _put_in_place(last, previous, problem)
        return before
    if problem := problem or problem_before:
        advice = "" if run_checkpoint.ADVICE in str(problem) else f"; {run_checkpoint.ADVICE}"
        raise ConfigError(f"{problem}{advice}")
    if dist.anywhere(content is not None or before is not None)[0]:
        raise ConfigError("not all ranks can read it", place=str(last))
    return None


def _read(path: Path) -> tuple[dict[str, Any] | None, ConfigError | None]:
    """A checkpoint, or what is wrong with it; neither where there is none."""
    try:
        return (run_checkpoint.read_run(path) if path.exists() else None), None
    except ConfigError as error:
        return None, error


def _put_in_place(last: Path, previous: Path, problem: ConfigError | None) -> None:
    if last.exists():
        last.replace(last.with_name(DAMAGED))
    previous.replace(last)
    why = f"{problem} (kept as {DAMAGED})" if problem else f"{last} was missing"
    print(f"{why}: training continues from the checkpoint before it", flush=True)
