"""The site profile of a submission: the fields of a file, overridden by the command line and checked before anything is queued."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from jobs.plan.overrides import CLI
from vitssl.config import ConfigError, Problem, Site, merge, read_yaml, unknown_error
from vitssl.costs.emissions import intensity_kg_per_kwh
from vitssl.costs.intensity import MOST_G

SITES = Path(__file__).resolve().parent / "sites"
MAIL_TYPES = (
    "NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "INVALID_DEPEND", "STAGE_OUT", "TIME_LIMIT", "TIME_LIMIT_90", "TIME_LIMIT_80",
    "TIME_LIMIT_50", "ARRAY_TASKS",
)  # fmt: skip
MOST_NICE = 2**31 - 3  # SLURM's bound
RESOURCE_OPTIONS = {  # {option of sbatch: the field of resources that sets it}
    "time": "hours", "nodes": "nodes", "gpus-per-node": "gpus_per_node", "cpus-per-task": "cpus_per_gpu", "mem": "mem_gb",
}  # fmt: skip
BOUNDS = {  # (least, most, unit) of what is possible, to find figures in another unit
    "gpu_power_w": (5.0, 1e5, "W"),
    "gpu_tflops": (1e-3, 1e6, "TFLOP/s"),
    "price_per_gpu_hour": (0.0, 1e6, "per GPU-hour"),
    "intensity_kg_per_kwh": (0.0, MOST_G / 1000, "kg CO2e/kWh"),
    "estimate_kg_per_kwh": (0.0, MOST_G / 1000, "kg CO2e/kWh"),
}


def read(named: str, overrides: dict[str, Any], where: str = CLI) -> Site:
    """Read a site profile and check it.

    Args:
        named: a YAML file, or the name of one in jobs/sites.
        overrides: the fields of the command line, which win over the file's.
        where: what named the profile, for errors.

    Raises:
        ConfigError: the file does not exist, or a field is wrong.
    """
    path, known = file_of(named), [p.stem for p in sorted(SITES.glob("*.yaml"))]
    if not path.exists() and path.parent != SITES:
        raise ConfigError(f"there is no file {named}; jobs/sites has {', '.join(known)}, to be given by name", "site", where)
    if not path.exists():
        raise unknown_error(named, known, "site", where)
    merge(Site, overrides, where=CLI, field="site")
    content = read_yaml(path)
    if "arms" in content:
        raise ConfigError(f"{named} is a sweep, not a site profile, which says where jobs run; jobs/sites has examples", "site", where)
    site = merge(Site, {"name": path.stem}, content, overrides, where=str(path))
    site.intensity_csv = site.intensity_csv and str(Path(site.intensity_csv).expanduser().resolve())
    if problem := next(_problems(site), None):
        name = problem.field.removeprefix("site.")
        raise ConfigError(problem.reason, *((problem.field, CLI) if is_set(name, overrides) else (name, str(path))))
    return site


def is_set(name: str, overrides: Iterable[str]) -> bool:
    """Whether the command line's dotted fields ``overrides`` set the field ``name``, a group that it belongs to, or a part of it."""
    return any(f"{key}.".startswith(f"{name}.") or f"{name}.".startswith(f"{key}.") for key in overrides)


def add_own(site: Site) -> None:
    """Fill fields that the profile leaves unset, such as partition and account, from the user's own ``SBATCH_*`` variables."""
    for name in ("partition", "account", "qos", "constraint", "reservation"):
        if getattr(site, name) is None:
            setattr(site, name, os.environ.get(f"SBATCH_{name.upper()}") or None)
    if wckey := os.environ.get("SBATCH_WCKEY"):
        for target in (site.additional, site.report):
            target.setdefault("wckey", wckey)


def file_of(named: str) -> Path:
    """Return the path of a site profile from its path, or from its name in jobs/sites."""
    return Path(named) if Path(named).suffix in (".yaml", ".yml") else SITES / f"{named}.yaml"


def _container_problems(site: Site) -> Iterator[Problem]:
    try:
        words = shlex.split(site.container)
    except ValueError as error:
        yield Problem("site.container", f"{site.container!r} is no command of a shell ({error})")
        return
    if site.image is not None and not words:
        yield Problem("site.container", "it is empty; name the command that runs site.image, for example apptainer exec --nv")


def _problems(site: Site) -> Iterator[Problem]:
    for name in site.env:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            yield Problem(f"site.env.{name}", f"{name!r} is not the name of a variable; use letters, digits and underscores")
    yield from _container_problems(site)
    for field, name in [*(("additional", name) for name in site.additional), *(("report", name) for name in site.report)]:
        if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
            yield Problem(f"site.{field}.{name}", f"{name!r} is not an option of sbatch; write it as in --mail-type, without the dashes")
        elif name == "array":  # with another one, some runs would have no job, or several
            yield Problem(f"site.{field}.array", "an array holds the runs of a stage; site.max_parallel says how many of them run at once")
    for option, name in RESOURCE_OPTIONS.items():
        is_all_memory = option == "mem" and site.additional.get(option) == "0"  # all of a node's, which mem_gb cannot express
        if option in site.additional and not is_all_memory:
            yield Problem(
                f"site.additional.{option}", f"what a job requests is the sweep's; set resources.{name}, which is checked and shown"
            )
    for job in site.after:
        if not re.fullmatch(r"[1-9][0-9]*(_[0-9]+)?", job):
            yield Problem("site.after", f"{job!r} is not an id of a SLURM job, such as 1234 or 1234_5")
    for field, options_set, jobs in (("additional", site.additional, "runs'"), ("report", site.report, "report's")):
        if "?" in options_set.get("dependency", ""):
            reason = f"sbatch cannot combine alternatives (?) with the {jobs} own dependencies; separate by commas"
            yield Problem(f"site.{field}.dependency", reason)
    yield from _job_problems(site)
    for name, (least, most, unit) in BOUNDS.items():
        value = getattr(site, name)
        if value is not None and not least <= value <= most:
            yield Problem(f"site.{name}", f"{value:g} is not from {least:g} to {most:g} {unit}")
    if site.intensity_csv is not None and site.intensity_kg_per_kwh is not None:
        yield Problem("site.intensity_csv", "site.intensity_kg_per_kwh is set too; keep one of the two")
    try:
        intensity_kg_per_kwh(site)
    except ConfigError as error:
        yield Problem(error.field, f"{error.place}: {error.reason}" if error.place else error.reason)


def options(site: Site) -> dict[str, str | int]:
    """Return {option of sbatch: value} that the site's fields set for the runs' jobs, but not for the report's."""
    mail: dict[str, str | int | None] = {"mail-type": site.mail_type, "mail-user": site.mail_user}
    fields = mail | {"nice": site.nice, "exclude": site.exclude, "reservation": site.reservation}
    return {option: value for option, value in fields.items() if value is not None}


def _job_problems(site: Site) -> Iterator[Problem]:
    """Yield the problems of the fields for the runs' jobs alone: values that SLURM would refuse, and options that are set twice."""
    for option in options(site):
        if option in site.additional:
            yield Problem(f"site.{option.replace('-', '_')}", f"site.additional sets {option} too; keep one of the two")
    if site.max_parallel is not None and site.max_parallel < 1:
        yield Problem("site.max_parallel", f"{site.max_parallel} would run no jobs; set 1 or more, or leave it out")
    for name in site.mail_type.split(",") if site.mail_type is not None else ():
        if name.upper() not in MAIL_TYPES:
            error = unknown_error(name, MAIL_TYPES)
            yield Problem("site.mail_type", error.reason)
    if site.mail_user is not None and site.mail_type is None and "mail-type" not in site.additional:
        yield Problem("site.mail_user", "SLURM sends no mail without site.mail_type; set it too, such as FAIL")
    if site.nice is not None and abs(site.nice) > MOST_NICE:
        yield Problem("site.nice", f"{site.nice} is not from {-MOST_NICE} to {MOST_NICE}")
    for name in ("mail_user", "exclude", "reservation"):
        if (value := getattr(site, name)) is not None and not re.fullmatch(r"[^\s'\"]+", value):
            yield Problem(f"site.{name}", f"{value!r} is not a name; separate several by commas, without spaces")
