"""The frame of an attempt at a run: its folder's lock, its number, its energy tracker, and the record of why it failed."""

from __future__ import annotations

import fcntl
import json
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from vitssl import __version__, config, dist
from vitssl.config import ConfigError, Run
from vitssl.costs import emissions
from vitssl.files import busy_file, flock, full_disk_error, open_lock, read_events, read_json, write_json
from vitssl.run_folder import ERROR, ERRORS, JOB
from vitssl.variables import STOP_FILE
from vitssl.words import listed

LEAVING_S = 20.0  # seconds to wait for the lock: a requeued job may start before the process of the previous attempt has ended


class Diverged(RuntimeError):
    """Raised when the loss or its gradient is not finite."""


class Busy(ConfigError):
    """Raised when another process already trains this run; this process must then leave nothing in the folder."""


def refuse_cpu(run: Run, job: dict[str, Any]) -> None:
    """Raise a ConfigError if training would take place on the CPU, for days, in a job that asked SLURM for GPUs."""
    gpus = job.get("gpus_per_node") if job.get("executor") == "slurm" else 0
    if gpus and run.loop.device == "auto" and dist.device("auto").type == "cpu":
        raise ConfigError(
            f"this job asked SLURM for {gpus} GPUs per node and torch sees none: a driver that is too old, or a container that is entered"
            " without --nv? With resources.gpus_per_node=0 jobs ask for none and train on CPUs",
            "loop.device",
        )


def refuse_other_image(job: dict[str, Any]) -> None:
    """Raise a ConfigError if the job's container image was built for another version of vitssl.

    The source comes from the run itself, but the packages that it imports come from the image.
    """
    image = job.get("site", {}).get("image")
    built = {package.version for package in metadata.distributions(name="vitssl")} if image else set()  # empty: an image without vitssl
    if built and __version__ not in built:
        raise ConfigError(
            f"{image} was built for vitssl {listed(sorted(built))}, and this run's source is {__version__}: build it anew (apptainer.def"
            " says how), or name the image that the run began with",
            "site.image",
        )


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Context that locks the run's folder, in which two processes would mix their checkpoints and records.

    Raises:
        Busy: another process holds the lock, and does not release it within ``LEAVING_S``.
    """
    started_s, announced = time.monotonic(), False
    with open_lock(folder / ".lock", str(folder)) as lock:
        while True:
            try:
                flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > started_s + LEAVING_S:
                    reason = f"another process is training this run; wait for it, or stop it (`fuser {lock.name}`)"
                    raise Busy(reason, place=str(folder)) from None
                if not announced:
                    print(
                        f"{folder.name}: another process is training this run; waiting up to {LEAVING_S:g} s for it to end", file=sys.stderr
                    )
                    announced = True
                time.sleep(0.5)
        yield


def tracker(folder: Path, run: Run, attempt: int) -> emissions.Tracker:
    """Return the node's only energy tracker, for the site (its prices and its grid) that the launcher wrote to ``job.json``."""
    job = read_json(folder / JOB)
    site = config.merge(config.Site, job.get("site", {}), where=str(folder / JOB))
    gpus = dist.local_world_size() if dist.device(run.loop.device).type == "cuda" else 0
    return emissions.Tracker(folder, attempt, site, gpus=gpus)


def number(folder: Path) -> int:
    """Return the number of this attempt, from 0, which is the same on all ranks.

    It is the highest number that any rank finds, since another node may see the newest record late. No rank writes a record before all
    ranks have looked.
    """
    return int(dist.all_max(torch.tensor([_next_number(folder)], dtype=torch.int32)))


def _next_number(folder: Path) -> int:
    """Return one more than the number of the last attempt that left an energy record or a failure; 0 if there is none."""
    recorded = [int(match[1]) for path in folder.glob("emissions-*.json") if (match := re.match(r"emissions-(\d{1,9})-", path.name))]
    failed = [failure["attempt"] for failure in read_events(folder / ERRORS)]
    return max([*recorded, *failed], default=-1) + 1


@contextmanager
def silence_removal_errors(folder: Path) -> Iterator[None]:
    """Context in which threads do not report the removal of the run's folder, which training reports once itself.

    A thread such as TensorBoard's fails to write when a folder inside the run's folder has gone. The rest of the run's folder may still be
    there at that moment; if it stays, training fails for the same reason and reports it.
    """
    previous_hook = threading.excepthook

    def hook(failed: threading.ExceptHookArgs) -> None:
        error, missing = failed.exc_value, None
        if isinstance(error, FileNotFoundError) and isinstance(error.filename, str | bytes):
            missing = Path(os.fsdecode(error.filename))  # TensorBoard's file names are bytes
        if missing is None or not missing.is_relative_to(folder) or missing.parent.is_dir():
            previous_hook(failed)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = previous_hook


class ErrorFile:
    """Context that records a failure of the attempt, with its message in one line, where the report and the status command look for it.

    ``error.json`` holds the failure of the last attempt. Every failure is added to ``errors.jsonl``, since a later attempt often fails
    because of the first failure. Each rank that fails adds a line, with the number of the attempt.
    """

    def __init__(self, folder: Path):
        self._path, self._all = folder / ERROR, folder / ERRORS

    def __enter__(self) -> None:
        self._attempt = _next_number(self._path.parent)
        if dist.is_main():
            self._path.unlink(missing_ok=True)
            _cut_last_line(self._all)

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        if error is None or not isinstance(error, Exception) or not self._path.parent.is_dir():
            return
        if isinstance(error, Busy):
            if stop_file := os.environ.get(STOP_FILE):
                busy_file(Path(stop_file)).touch()
            return
        if dist.lost_peer(error):
            return  # the rank that failed records its error; a rank that was killed cannot, and the launcher continues from the checkpoint
        text = str(error).strip().split("\n")[0]
        if disk_error := full_disk_error(error):
            message = full_disk(disk_error)
        else:
            message = text if isinstance(error, ConfigError | Diverged) else f"{type(error).__name__}: {text}{_advice(error)}"
        details = "".join(traceback.format_exception(error))
        self._write({"message": message, "attempt": self._attempt, "rank": dist.rank(), "time": time.time(), "details": details})

    def _write(self, failure: dict[str, Any]) -> None:
        """Add ``failure`` to ``errors.jsonl``, and write it to ``error.json`` unless another rank of this attempt has.

        If that fails too, for example on a full disk, print a message only: the original error is the one that is raised.
        """
        try:
            if not self._is_recorded():
                write_json(self._path, failure)
            with self._all.open("a") as lines:
                lines.write(json.dumps(failure) + "\n")
        except OSError as error:
            print(f"{self._path.parent}: the failure below could not be recorded there ({error.strerror})", file=sys.stderr)

    def _is_recorded(self) -> bool:
        """Whether another rank has already recorded a failure of this attempt, from which the later failures of others often follow."""
        return self._path.exists() and read_json(self._path).get("attempt") == self._attempt


def full_disk(error: OSError) -> str:
    """Return a message that says what to do about a full disk or quota."""
    place = f"{error.filename}: " if error.filename else ""
    return f"{place}{error.strerror}: make room (`vitssl prune` lists what no run needs any more); the same command then goes on"


def _advice(error: BaseException) -> str:
    """Return what to do about a failure that a setting, or more memory, can prevent; empty if nothing is known."""
    # if memory runs out while a step is recorded, the end of the recording raises an error of its own, with this one as its context
    if isinstance(error.__context__ or error, torch.OutOfMemoryError) or "CUBLAS_STATUS_ALLOC_FAILED" in str(error):
        return "; lower loop.micro_batch_size (images per GPU and forward pass; gradients are accumulated over the batch)"
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return "; lower loop.micro_batch_size, or ask for more by resources.mem_gb"
    if "captur" in str(error):
        return "; nothing may wait for the GPU while a step is recorded, and loop.cuda_graph=false trains without"
    return ""


def _cut_last_line(path: Path) -> None:
    """Remove an incomplete last line, which a full disk left, since the next line would be appended to it."""
    content = path.read_bytes() if path.exists() else b""
    if (complete := content.rfind(b"\n") + 1) < len(content):
        os.truncate(path, complete)
