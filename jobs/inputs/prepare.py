"""Preparations and checks before anything is queued: the shards of every stage, and what training needs from this machine."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

from jobs.command import cache_folder, cli_command
from jobs.plan.cells import Stage
from jobs.plan.shards import absolute_source, expected_index, fingerprint, index_of, is_here, split_source
from jobs.slurm.preflight import image_problems
from vitssl.config import ConfigError, Data, Run, Site, raise_first
from vitssl.costs.emissions import visible_gpus
from vitssl.data.building import listing
from vitssl.data.sources import webdatasets
from vitssl.data.sources.build_line import build_command
from vitssl.data.sources.opening import check_kind, names_a_source
from vitssl.files import is_writable, nearest_existing, user_cache_name
from vitssl.version import ROOT
from vitssl.words import note

CPU_INFO = Path("/proc/cpuinfo")
# flags of CPUs for which oneDNN has kernels of bf16: x86 with AVX-512 or AVX2-VNNI-2, and ARM
WITH_BF16 = ({"avx512bw", "avx512vl", "avx512dq"}, {"avx_ne_convert", "avx_vnni_int8"}, {"bf16"})


def shards(stages: Iterable[Stage], dry_run: bool = False) -> dict[str, str]:
    """Make the paths of every stage's data absolute, and return {missing folder of shards: source to build it from}.

    A dry run accepts shards that cannot be built, if the counts of their data set are published.

    Raises:
        ConfigError: shards are missing and cannot be built, or were built from another source than the Run's.
    """
    missing: dict[str, str] = {}
    for stage in stages:
        data = stage.run.data
        with stage.error_location():
            if names_a_source(data.shards) and not Path(data.shards).exists():
                fields = shlex.join([f"data.source={data.shards}", "data.shards=shards/NAME"])
                raise ConfigError(f"images come from there, and it is no folder of shards; write {fields}", "data.shards")
            data.shards = str(Path(data.shards).expanduser().resolve())
            built = (Path(data.shards) / "index.json").exists()
            if data.source is not None:
                try:
                    check_kind(data.source)
                except ConfigError as error:
                    raise ConfigError(error.reason, "data.source") from None
                data.source = absolute_source(data.source)
            if built:
                _refuse_other_source(data)
            elif data.source is None:
                if not (dry_run and expected_index(data) is not None):
                    index_of(Path(data.shards))  # raises an error that says what to do
            elif (other := missing.setdefault(data.shards, data.source)) != data.source:
                raise ConfigError(f"{data.shards} is to be built from {other} too; give each its own data.shards", "data.source")
            elif not (dry_run and expected_index(data) is not None) and (path := _absent(data.source)):
                raise ConfigError(f"there is no {path} to build the shards from", "data.source")
            _prepare_evals(stage.run)
    return missing


def check_images(stages: Iterable[Stage]) -> None:
    """Refuse Runs whose shards do not hold the images that they ask for, before any cost is computed from the number of images."""
    for stage in stages:
        with stage.error_location():
            fingerprint(stage.run)


def _absent(source: str) -> str:
    """Return the path of a ``source`` that is not on this machine; empty if it is, or if it would be downloaded."""
    return "" if source.startswith("torchvision:") or is_here(source) else split_source(source)[1]


def _prepare_evals(run: Run) -> None:
    """Make the paths of shards that evaluators name absolute, and check that they exist and have the evaluator's split."""
    for name, fields in run.evals.items():
        if fields and fields.get("shards"):
            fields["shards"] = str(Path(fields["shards"]).expanduser().resolve())
            try:
                index_of(Path(fields["shards"])).where(fields.get("split", "test"))
            except ConfigError as error:
                raise ConfigError(error.reason, f"evals.{name}.shards") from None


def _refuse_other_source(data: Data) -> None:
    """Refuse existing shards that were built from another source than ``data.source``."""
    if data.source is None:
        return
    try:
        same = _was_built_from(Path(data.shards), data.source)
    except ConfigError as error:
        raise ConfigError(f"{error}; data.source=null uses the shards as they are", "data.source") from None
    if not same and (path := _absent(data.source)):
        raise ConfigError(f"there is no {path}; data.source=null uses the shards as they are", "data.source")
    if not same:
        built_from, command = index_of(Path(data.shards)).name, build_command(data.source, data.shards)
        raise ConfigError(
            f"{data.shards} was built from other data ({built_from}) than {data.source} lists; `{command} --rebuild` replaces the shards; "
            "or set data.shards to a new folder, or data.source=null to train on what is there",
            "data.source",
        )


@functools.cache
def _was_built_from(folder: Path, source: str) -> bool:
    """Whether the shards in ``folder`` were built from ``source``.

    Files that exist are listed and compared, wherever they are now. A download, or a source whose files are gone, is compared by name.
    """
    index = index_of(folder)
    if is_here(source):
        return listing.fingerprint(source) == index.source
    # without opening the source: the names that shards built from it may have (`Source.name`)
    path, _, options = (source.partition(":")[2] or source).partition("?")
    if option := re.search(r"(?:^|&)train=([^&]*)", options):
        return index.name == f"{Path(path).name}/{Path(option[1]).stem}"
    return index.name in ([webdatasets.name_of(path)] if source.startswith("wds:") else [Path(path).name, Path(path).stem])


def build(missing: dict[str, str], site: Site) -> None:
    """Build the ``missing`` shards in the foreground, in the site's container if it has one.

    Args:
        missing: {folder to write: source}, as `shards` returns it.
        site: the site whose container is used.

    Raises:
        ConfigError: a build failed.
    """
    for folder, source in missing.items():
        print(f"{folder} does not exist yet: building it from {source}", flush=True)
        Path(folder).parent.mkdir(parents=True, exist_ok=True)
        source_path = split_source(source)[1]
        paths = [Path(folder).parent, *([nearest_existing(Path(source_path))] if source_path else [])]
        if subprocess.run(cli_command(site, paths, "shards", "build", source, folder), cwd=ROOT, check=False).returncode:
            raise ConfigError(f"building {folder} from {source} failed; nothing was queued", "data.source")


# -------------------------------------------------------------------------------------------------------------- machine


def check_machine(stages: Iterable[Stage], site: Site, here: bool) -> None:
    """Check that loggers are installed and, if runs train ``here``, that this machine has the GPU, compiler, container and cache needed."""
    stages = list(stages)
    _check_loggers(stages, site)
    if here:
        _check_gpu(stages)
        _note_slow_bf16(stages)
        _check_compiler(stages)
        _check_container(site)
        _check_cache(stages, site)


def _check_gpu(stages: list[Stage]) -> None:
    """Refuse Runs with ``loop.device: cuda`` on a machine without a visible NVIDIA GPU."""
    on_cuda = [stage for stage in stages if stage.run.loop.device == "cuda"]
    if on_cuda and not visible_gpus():
        with on_cuda[0].error_location():
            raise ConfigError("this machine has no visible NVIDIA GPU; set loop.device=auto or cpu", "loop.device")


def _note_slow_bf16(stages: list[Stage]) -> None:
    """Note that Runs are to train in bf16 on a CPU without it, which took 17 times as long as fp32 (vitssl/docs/speed.md)."""
    in_bf16 = [stage.run.loop for stage in stages if stage.run.loop.precision == "bf16"]
    if not in_bf16 or (all(loop.device != "cpu" for loop in in_bf16) and visible_gpus()):
        return
    flags = next((line.split() for line in CPU_INFO.read_text().splitlines() if line.startswith(("flags", "Features"))), [])
    if not any(kind <= {*flags} for kind in WITH_BF16):
        note("this machine's CPU has no native bf16, which makes it slow; use loop.precision=fp32")


def _check_compiler(stages: list[Stage]) -> None:
    """Refuse Runs with ``loop.compile`` on a machine without GPUs and C++ compiler: torch.compile generates C++ for CPUs."""
    compiled = [stage for stage in stages if stage.run.loop.compile]
    if compiled and not visible_gpus() and shutil.which(compiler := os.environ.get("CXX", "g++")) is None:
        with compiled[0].error_location():
            raise ConfigError(
                f"it needs a C++ compiler, and {compiler} is not on this machine; install it, or leave this out", "loop.compile"
            )


def _check_container(site: Site) -> None:
    """Check that the command that starts the site's container is on this machine, and that the image is too."""
    if site.image is None:
        return
    if shutil.which(command := shlex.split(site.container)[0]) is None:
        reason = f"{command}, which enters it (site.container), is not on this machine; site.image=null trains without"
        raise ConfigError(reason, "site.image")
    raise_first(image_problems(site))


def _check_cache(stages: list[Stage], site: Site) -> None:
    """Check that the folder for decoded images is writable for every stage.

    A relative path is not checked: it lies in the folder of the source that the run trains with, which does not exist yet.
    """
    for stage in stages:
        named_by, folder = cache_folder(stage.run.data.cache_dir, site)
        if folder is None or not Path(folder).is_absolute() or is_writable(nearest_existing(Path(folder) / user_cache_name())):
            continue
        with stage.error_location() if named_by == "data.cache_dir" else nullcontext():
            raise ConfigError(f"{folder} is not a folder that can be written to, for decoded images; name another", named_by)


def _check_loggers(stages: list[Stage], site: Site) -> None:
    """Check that the loggers of all Runs are installed here, unless the site has an image to train in."""
    packages = {name: stage for stage in stages for name in stage.run.loop.loggers if site.image is None}
    for name, stage in packages.items():
        module = find_spec(name)
        if module is None or module.origin is None:  # without an origin it is only a folder of that name
            with stage.error_location():
                raise ConfigError(f"{name} is not installed; pip install '.[loggers]', or leave it out", "loop.loggers")
