"""What trainings need of the machine besides data, looked at before any of them begins."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

from jobs.graph import Stage
from jobs.node import cache_folder
from jobs.preflight import of_the_image
from vitssl.config import ConfigError, Site
from vitssl.emissions import visible_gpus
from vitssl.files import is_writable, nearest, of_this_user


def check(stages: Iterable[Stage], site: Site, here: bool) -> None:
    """Loggers, and where they train ``here``, on this machine, its GPU, the container and the folder for caches.

    Raises:
        ConfigError: naming what is not there, and the field that asks for it.
    """
    stages = list(stages)
    _check_loggers(stages, site)
    if here:
        _check_gpu(stages)
        _check_container(site)
        _check_cache(stages, site)


def _check_gpu(stages: list[Stage]) -> None:
    """A Run that asks for CUDA cannot train on this machine if that has no GPU."""
    asked = [stage for stage in stages if stage.run.loop.device == "cuda"]
    if asked and not visible_gpus():
        with asked[0].error_location():
            raise ConfigError("this machine has no NVIDIA GPU that is visible; write loop.device=auto, or cpu", "loop.device")


def _check_container(site: Site) -> None:
    """What enters an image has to be on this machine, and the image too."""
    if site.image is None:
        return
    if shutil.which(command := site.container.split()[0]) is None:
        reason = f"{command}, which enters it (site.container), is not on this machine; site.image=null trains without"
        raise ConfigError(reason, "site.image")
    for problem in of_the_image(site):
        raise ConfigError(problem.reason, problem.field)


def _check_cache(stages: list[Stage], site: Site) -> None:
    """What is decoded has to be written somewhere; a relative path is one in the folder of a run's source, which is still to be made."""
    for stage in stages:
        named_by, folder = cache_folder(stage.run.data.cache_dir, site)
        if folder is None or not Path(folder).is_absolute() or is_writable(nearest(Path(folder) / of_this_user())):
            continue
        with stage.error_location() if named_by == "data.cache_dir" else nullcontext():
            raise ConfigError(f"{folder} is not a folder that can be written to, for decoded images; name another", named_by)


def _check_loggers(stages: list[Stage], site: Site) -> None:
    """Without an image runs log with what is installed here."""
    packages = {name: stage for stage in stages for name in stage.run.loop.loggers if site.image is None}
    for name, stage in packages.items():
        found = find_spec(name)
        if found is None or found.origin is None:  # a folder of that name
            with stage.error_location():
                raise ConfigError(f"{name} is not installed; pip install '.[loggers]', or leave it out", "loop.loggers")
