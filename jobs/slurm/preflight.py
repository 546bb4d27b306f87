"""Checks before anything is queued: requests that SLURM would refuse or leave pending for ever, missing containers, full disks."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path

from jobs.plan import predict
from jobs.plan.graph import Job
from jobs.plan.launch import Launch
from jobs.plan.overrides import CLI
from jobs.plan.sweep import Spec
from jobs.site_profile import is_set
from jobs.slurm import cluster, limits, sbatch
from jobs.slurm.limits import NodeKind, Partition, UserLimits
from vitssl.config import ConfigError, Problem, Run, Site, raise_first
from vitssl.config.sweep import Resources
from vitssl.files import nearest_existing
from vitssl.run_folder import LAST
from vitssl.words import counted

FILES_A_RUN = 60  # in its folder and of its jobs' logs; a run that restarts often leaves more
CLOSED = ("INACTIVE", "DRAIN")  # states of a partition that takes no jobs. A DOWN one takes jobs, and `status` says what they wait for
# {words in sbatch's refusal of a job: the field to change}; the first match counts
REFUSALS = {
    "account": "site.account", "qos": "site.qos", "feature": "site.constraint", "partition": "site.partition",
    "time limit": "resources.hours", "memory": "resources.mem_gb", "gres": "resources.gpus_per_node",
}  # fmt: skip


def check(todo: list[Job], launch: Launch) -> int:
    """Return how many runs may be queued now, in addition to the job that follows them.

    Raises:
        ConfigError: SLURM or the disk has no room for a run; the message names the limit and the field.
    """
    distinct = list({astuple(job.resources): job for job in reversed(todo)}.values())
    user = limits.user_limits(launch.site)
    raise_first(_problems(todo, distinct, launch, user))
    tightest = limits.room(launch.site, user)
    if tightest.room < 1:  # not even for the last job, which queues runs once there is room for them, or makes the report
        advice = "submit again when some have ended (squeue --me), or end some (scancel)"
        raise ConfigError(f"SLURM can take no more jobs now: {tightest}; {advice}")
    raise_first(_refusals(distinct, len(todo), launch))
    return tightest.room - 1


def check_disk(todo: Iterable[Job], launch: Launch) -> None:
    """Raise a ConfigError if the disk of the runs folder has no room for the checkpoints or files of the runs in ``todo``."""
    raise_first(_disk_problems(todo, launch))


@contextmanager
def error_location(spec: Spec, site_file: Path) -> Iterator[None]:
    """Add the place of its field to a ConfigError of `check` raised inside: the site's file, the sweep's file or the command line."""
    try:
        yield
    except ConfigError as error:
        head, _, name = error.field.partition(".")
        cli = spec.overrides.site if head == "site" else {key for fields in spec.overrides.resources.values() for key in fields}
        if error.place or head not in ("site", "resources"):
            raise
        file = str(site_file) if head == "site" else spec.file
        raise ConfigError(error.reason, error.field, CLI if is_set(name, cli) else file) from None


def _problems(todo: list[Job], distinct: list[Job], launch: Launch, user: UserLimits) -> Iterator[Problem]:
    """Yield the problems that are found without sbatch; ``distinct`` holds one job for each distinct request of resources."""
    yield from image_problems(launch.site)
    yield from _disk_problems(todo, launch)
    partitions = limits.partitions(launch.site)
    for job in distinct:
        yield from _problems_of_all(partitions, job, launch.site)
        if user.minutes is not None and job.resources.hours * 60 > user.minutes:
            yield _too_long(job, user.minutes, f"MaxWall of {user.owner}")


def _problems_of_all(open_to: list[Partition], job: Job, site: Site) -> Iterator[Problem]:
    """Yield the first partition's problem, if no partition can take the job."""
    problems = [next(_partition_problems(partition, job, site), None) for partition in open_to]
    if problems[0] is not None and None not in problems:
        yield problems[0]


def _partition_problems(partition: Partition, job: Job, site: Site) -> Iterator[Problem]:
    request, place = job.resources, f"partition {partition.name}"
    if partition.state in CLOSED:
        yield Problem("site.partition", f"{place} is {partition.state} and takes no jobs (sinfo); name another, or wait until it does")
    if partition.minutes is not None and request.hours * 60 > partition.minutes:
        yield _too_long(job, partition.minutes, f"MaxTime of {place}")
    if request.nodes > partition.nodes:
        reason = f"{request.nodes} ({_arm_and_stage(job)}) are more than the {partition.nodes} that a job may have in {place}"
        yield Problem("resources.nodes", f"{reason}; type resources.nodes={partition.nodes}")
    yield from _node_problems(partition, request, site, _arm_and_stage(job))


def _node_problems(partition: Partition, asks: Resources, site: Site, owner: str) -> Iterator[Problem]:
    types = {kind: max(node.gpus.get(kind, 0) for node in partition.kinds) for node in partition.kinds for kind in node.gpus}
    if asks.gpus_per_node and site.gpu_type and site.gpu_type not in types:
        known = ", ".join(filter(None, types)) or "GPUs without a type: leave gpu_type out"
        yield Problem("site.gpu_type", f"partition {partition.name} has no {site.gpu_type}; it has {known}")
        return
    requirements: dict[str, tuple[float, Callable[[NodeKind], float]]] = {
        "gpus_per_node": (asks.gpus_per_node, lambda node: node.gpus.get(site.gpu_type, 0) if site.gpu_type else sum(node.gpus.values())),
        "cpus_per_gpu": (asks.cpus_per_gpu, lambda node: node.cpus // max(1, asks.gpus_per_node)),
        "mem_gb": (asks.mem_gb or 0, lambda node: node.mem_gb),
    }
    kinds = partition.kinds
    for name, (requested, value_of) in requirements.items():
        available = max((value_of(node) for node in kinds), default=0)
        if requested > available:
            reason = f"{requested:g} ({owner}) is more than the {available:g} that any such node of partition {partition.name} has"
            yield Problem(f"resources.{name}", f"{reason}; type resources.{name}={available:g}, or name another partition")
            return
        kinds = [node for node in kinds if value_of(node) >= requested]


def _too_long(job: Job, limit_min: int, of: str) -> Problem:
    hours = f"{limit_min / 60:.4g}"
    reason = f"{job.resources.hours:g} ({_arm_and_stage(job)}) is more than the {hours} of the {of}"
    return Problem("resources.hours", f"{reason}; type resources.hours={hours}: a run that needs longer is requeued and goes on")


def _arm_and_stage(job: Job) -> str:
    return f"{job.arm} {job.stage}"


def _refusals(distinct: list[Job], runs: int, launch: Launch) -> Iterator[Problem]:
    """Yield the refusals of `sbatch --test-only`, of one script per request in ``distinct`` and of the report's."""
    for job in distinct:
        if refusal := _refusal_reason(sbatch.runs_executor([job], None, launch, write=False).script(1)):
            field = next((name for words, name in REFUSALS.items() if words in refusal.lower()), "resources")
            yield Problem(field, f"SLURM would refuse {_arm_and_stage(job)}: {refusal}; ask for something else (sinfo, sacctmgr)")
    if refusal := _refusal_reason(sbatch.report_executor(launch, "report", None, runs, limits.report_limit_min(launch.site)).script(1)):
        yield Problem("site.report", f"SLURM would refuse the report: {refusal}; give it options of its own, such as {{partition: NAME}}")


def _refusal_reason(script: str) -> str | None:
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as file, sbatch.outside_of_jobs():
        file.write(script)
        file.flush()
        try:
            cluster.output("sbatch", "--test-only", file.name)
        except cluster.NoAnswer:
            return None  # too busy to answer; the submission itself will ask again
        except ConfigError as error:
            return str(error).removeprefix("sbatch failed: ")
    return None


# ----------------------------------------------------------------------------------------------------- disk, container


def image_problems(site: Site) -> Iterator[Problem]:
    """Yield a problem if the site's container is a file that does not exist."""
    if site.image is not None and "://" not in site.image and not Path(site.image).exists():
        yield Problem("site.image", f"there is no {site.image} here; build it (apptainer.def says how), or name where it is")


def _disk_problems(todo: Iterable[Job], launch: Launch) -> Iterator[Problem]:
    """Yield a problem if checkpoints or files need more than is free on the disk; quotas are not seen.

    Checkpoints count only if the parameters of their network were counted, for example by a dry run.
    """
    new = [job for job in todo if not job.is_trained]
    folder = nearest_existing(launch.sweep)
    disk, parameters = os.statvfs(folder), predict.parameters([job.run for job in new], launch)
    sizes = [_bytes(job.run, count) for job, count in zip(new, parameters, strict=True) if not (job.folder / LAST).exists()]
    # temporary files of one run only, since it is unknown how many train at once
    needed = sum(stays for stays, _ in sizes) + max((writing for _, writing in sizes), default=0)
    free_bytes = disk.f_bavail * disk.f_frsize
    advice = f"in {folder}; make room there, or name a folder elsewhere: --runs"
    if needed > free_bytes:
        reason = f"the checkpoints of {counted(len(new), 'run')} need {needed / 1e9:.3g} GB, and {free_bytes / 1e9:.3g} GB are free"
        yield Problem("", f"{reason} {advice}")
    if disk.f_files and (files := FILES_A_RUN * len(new)) > disk.f_favail:
        yield Problem("", f"{len(new)} runs make up to {files:,} files, and {disk.f_favail:,} (inodes) are free {advice}")


def _bytes(run: Run, parameters: int) -> tuple[int, int]:
    """Return (bytes of the checkpoints that a run keeps, further bytes while it trains: the one before the newest, and a half-written one).

    Each holds the weights, two moments and, if configured, an average, all in float32; the best one holds the weights alone.
    """
    copies = 3 + (run.loop.ema_decay is not None)
    kept = 1 + (int(run.loop.epochs // run.loop.keep_every) if run.loop.keep_every else 0)
    best = run.data.val_split is not None or run.data.val_fraction > 0
    return 4 * parameters * (copies * kept + best), 2 * 4 * parameters * copies
