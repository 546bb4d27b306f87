"""What surrounds an attempt at a run in its folder: a lock, the attempt's number, its energy tracker, why it failed."""

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
from vitssl.files import busy_file, flock, no_room, open_lock, read_events, read_json, write_json
from vitssl.run_folder import ERROR
from vitssl.words import listed

LEAVING_S = 20.0  # a requeued job may start while the last attempt's process is on its way out


class Diverged(RuntimeError):
    """The loss is not finite."""


class Busy(ConfigError):
    """Another process trains this run; this one must leave nothing in the folder."""


def refuse_cpu(run: Run, job: dict[str, Any]) -> None:
    """Refuse to train for days on CPUs in a job that SLURM gave GPUs to."""
    gpus = job.get("gpus_per_node") if job.get("executor") == "slurm" else 0
    if gpus and run.loop.device == "auto" and dist.device("auto").type == "cpu":
        raise ConfigError(
            f"this job asked SLURM for {gpus} GPUs per node and torch sees none: a driver that is too old, or a container that is entered"
            " without --nv? With resources.gpus_per_node=0 jobs ask for none and train on CPUs",
            "loop.device",
        )


def refuse_other_image(job: dict[str, Any]) -> None:
    """Refuse a container that was built for another version: the source is the run's own, what it imports is the image's."""
    image = job.get("site", {}).get("image")
    built = {found.version for found in metadata.distributions(name="vitssl")} if image else set()  # none: an image of packages alone
    if built and __version__ not in built:
        raise ConfigError(
            f"{image} was built for vitssl {listed(sorted(built))}, and this run's source is {__version__}: build it anew (apptainer.def"
            " says how), or name the image that the run began with",
            "site.image",
        )


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the run's folder, in which two processes would mix their checkpoints and records.

    Raises:
        Busy: another process holds it, and did not leave within ``LEAVING_S``.
    """
    begun, told = time.monotonic(), False
    with open_lock(folder / ".lock", str(folder)) as lock:
        while True:
            try:
                flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > begun + LEAVING_S:
                    reason = f"another process is training this run; wait for it, or stop it (`fuser {lock.name}`)"
                    raise Busy(reason, place=str(folder)) from None
                if not told:
                    print(
                        f"{folder.name}: another process is training this run; waiting up to {LEAVING_S:g} s for it to end", file=sys.stderr
                    )
                    told = True
                time.sleep(0.5)
        yield


def tracker(folder: Path, run: Run, attempt: int) -> emissions.Tracker:
    """The node's one energy tracker, at the prices and on the grid that the launcher wrote down."""
    job = read_json(folder / "job.json")
    site = config.merge(config.Site, job.get("site", {}), where=str(folder / "job.json"))
    gpus = dist.local_world_size() if dist.device(run.loop.device).type == "cuda" else 0
    return emissions.Tracker(folder, attempt, site, gpus=gpus)


def number(folder: Path) -> int:
    """The attempt's number from 0: on all ranks the highest that one of them finds, since another node may see the newest record late.

    None of them writes a record before all have looked.
    """
    return int(dist.all_max(torch.tensor([_next(folder)], dtype=torch.int32)))


def _next(folder: Path) -> int:
    """One more than the last that left an energy record or a failure."""
    recorded = [int(found[1]) for path in folder.glob("emissions-*.json") if (found := re.match(r"emissions-(\d{1,9})-", path.name))]
    failed = [failure["attempt"] for failure in read_events(folder / "errors.jsonl")]
    return max([*recorded, *failed], default=-1) + 1


@contextmanager
def told_once_if_removed(folder: Path) -> Iterator[None]:
    """A thread's failure to write in a folder of the run's that has gone, such as TensorBoard's, is left to the line that says so. All of
    the run's folder may not have gone yet; where it never does, training fails for the same and says it."""
    before = threading.excepthook

    def hook(failed: threading.ExceptHookArgs) -> None:
        error = failed.exc_value
        named = isinstance(error, FileNotFoundError) and isinstance(error.filename, str | bytes)
        missing = Path(os.fsdecode(error.filename)) if named else None  # TensorBoard opens files by bytes
        if missing is None or not missing.is_relative_to(folder) or missing.parent.is_dir():
            before(failed)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = before


class ErrorFile:
    """Leaves the last attempt's failure, in one line, where the report and the status command look for it, and adds it to errors.jsonl:
    what a later attempt fails for often follows from the first failure. Ranks of one attempt add a line each, with its number."""

    def __init__(self, folder: Path):
        self._path, self._all = folder / ERROR, folder / "errors.jsonl"

    def __enter__(self) -> None:
        self._attempt = _next(self._path.parent)
        if dist.is_main():
            self._path.unlink(missing_ok=True)
            _cut_last_line(self._all)

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        if error is None or not isinstance(error, Exception) or not self._path.parent.is_dir():
            return
        if isinstance(error, Busy):
            if stop_file := os.environ.get("VITSSL_STOP_FILE"):
                busy_file(Path(stop_file)).touch()
            return
        if dist.lost_peer(error):
            return  # the rank that failed writes its error; one that was killed cannot, and the launcher continues from the checkpoint
        text = str(error).strip().split("\n")[0]
        if full := no_room(error):
            message = full_disk(full)
        else:
            message = text if isinstance(error, ConfigError | Diverged) else f"{type(error).__name__}: {text}{_advice(error)}"
        details = "".join(traceback.format_exception(error))
        self._write({"message": message, "attempt": self._attempt, "rank": dist.rank(), "time": time.time(), "details": details})

    def _write(self, failure: dict[str, Any]) -> None:
        """Where that fails too, on a full disk, the failure itself is still the error that is raised."""
        try:
            if not self._is_recorded():
                write_json(self._path, failure)
            with self._all.open("a") as lines:
                lines.write(json.dumps(failure) + "\n")
        except OSError as error:
            print(f"{self._path.parent}: the failure below could not be recorded there ({error.strerror})", file=sys.stderr)

    def _is_recorded(self) -> bool:
        """Has another rank failed before, in this attempt? What others then fail for often follows from that."""
        return self._path.exists() and read_json(self._path).get("attempt") == self._attempt


def full_disk(error: OSError) -> str:
    """What to do about a disk, or a quota, that ran full."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror}: make room (`vitssl prune` lists what no run needs any more); the same command then goes on"


def _advice(error: BaseException) -> str:
    """What to do about a failure that settings, or room, can prevent; empty where nothing is known."""
    # out of memory while a step is recorded, the end of the recording fails in its place
    if isinstance(error.__context__ or error, torch.OutOfMemoryError) or "CUBLAS_STATUS_ALLOC_FAILED" in str(error):
        return "; lower loop.micro_batch_size (images per GPU and forward pass; gradients are accumulated over the batch)"
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return "; lower loop.micro_batch_size, or ask for more by resources.mem_gb"
    if "captur" in str(error):
        return "; nothing may wait for the GPU while a step is recorded, and loop.cuda_graph=false trains without"
    return ""


def _cut_last_line(path: Path) -> None:
    """Drop a line that a full disk cut off, which the next one would be added to."""
    content = path.read_bytes() if path.exists() else b""
    if (whole := content.rfind(b"\n") + 1) < len(content):
        os.truncate(path, whole)
