"""What SLURM would refuse, or leave pending for ever, found before anything is queued: in its own tables, and by asking it."""

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
from jobs.slurm.limits import Nodes, OfUser, Partition
from vitssl.config import ConfigError, Problem, Run, Site, raise_first
from vitssl.config.sweep import Resources
from vitssl.files import nearest
from vitssl.run_folder import LAST
from vitssl.words import counted

FILES_A_RUN = 60  # of its folder and its jobs' logs; a run that restarts often leaves more
CLOSED = ("INACTIVE", "DRAIN")  # a partition that is DOWN takes jobs, and status says what they wait for
# what sbatch says of a job that it would refuse, and the field to change; the first that fits
REFUSALS = {
    "account": "site.account", "qos": "site.qos", "feature": "site.constraint", "partition": "site.partition",
    "time limit": "resources.hours", "memory": "resources.mem_gb", "gres": "resources.gpus_per_node",
}  # fmt: skip


def check(todo: list[Job], launch: Launch) -> int:
    """How many of the runs that are to be queued may be so now, besides the job that follows them.

    Raises:
        ConfigError: what SLURM, or a disk, has no place for, naming the limit and the field; nothing was queued.
    """
    alike = list({astuple(job.resources): job for job in reversed(todo)}.values())
    user = limits.of_user(launch.site)
    raise_first(_problems(todo, alike, launch, user))
    tightest = limits.room(launch.site, user)
    if tightest.room < 1:  # of the last job, which queues runs as soon as there is room for them, or makes the report
        advice = "submit again when some have ended (squeue --me), or end some (scancel)"
        raise ConfigError(f"SLURM can take no more jobs now: {tightest}; {advice}")
    raise_first(_refusals(alike, len(todo), launch))
    return tightest.room - 1


def check_disk(todo: Iterable[Job], launch: Launch) -> None:
    """Refuse runs whose checkpoints, or files, have no place in the folder of runs."""
    raise_first(_of_the_disk(todo, launch))


@contextmanager
def placed(spec: Spec, site_file: Path) -> Iterator[None]:
    """Add to an error of `check` the file that its field stands in, or the command line."""
    try:
        yield
    except ConfigError as error:
        head, _, name = error.field.partition(".")
        cli = spec.overrides.site if head == "site" else {key for fields in spec.overrides.resources.values() for key in fields}
        if error.place or head not in ("site", "resources"):
            raise
        file = str(site_file) if head == "site" else spec.file
        raise ConfigError(error.reason, error.field, CLI if is_set(name, cli) else file) from None


def _problems(todo: list[Job], alike: list[Job], launch: Launch, user: OfUser) -> Iterator[Problem]:
    """Those that follow from tables; ``alike`` is one job for each request of resources."""
    yield from of_the_image(launch.site)
    yield from _of_the_disk(todo, launch)
    open_to = limits.partitions(launch.site)
    for job in alike:
        yield from _of_partitions(open_to, job, launch.site)
        if user.minutes is not None and job.resources.hours * 60 > user.minutes:
            yield _too_long(job, user.minutes, f"MaxWall of {user.whose}")


def _of_partitions(open_to: list[Partition], job: Job, site: Site) -> Iterator[Problem]:
    """The first partition's, where none can take the job."""
    found = [next(_of_partition(partition, job, site), None) for partition in open_to]
    if found[0] is not None and None not in found:
        yield found[0]


def _of_partition(partition: Partition, job: Job, site: Site) -> Iterator[Problem]:
    asks, where = job.resources, f"partition {partition.name}"
    if partition.state in CLOSED:
        yield Problem("site.partition", f"{where} is {partition.state} and takes no jobs (sinfo); name another, or wait until it does")
    if partition.minutes is not None and asks.hours * 60 > partition.minutes:
        yield _too_long(job, partition.minutes, f"MaxTime of {where}")
    if asks.nodes > partition.nodes:
        reason = f"{asks.nodes} ({_whose(job)}) are more than the {partition.nodes} that a job may have in {where}"
        yield Problem("resources.nodes", f"{reason}; type resources.nodes={partition.nodes}")
    yield from _of_nodes(partition, asks, site, _whose(job))


def _of_nodes(partition: Partition, asks: Resources, site: Site, whose: str) -> Iterator[Problem]:
    types = {kind: max(node.gpus.get(kind, 0) for node in partition.kinds) for node in partition.kinds for kind in node.gpus}
    if asks.gpus_per_node and site.gpu_type and site.gpu_type not in types:
        known = ", ".join(filter(None, types)) or "GPUs without a type: leave gpu_type out"
        yield Problem("site.gpu_type", f"partition {partition.name} has no {site.gpu_type}; it has {known}")
        return
    tallest: dict[str, tuple[float, Callable[[Nodes], float]]] = {
        "gpus_per_node": (asks.gpus_per_node, lambda node: node.gpus.get(site.gpu_type, 0) if site.gpu_type else sum(node.gpus.values())),
        "cpus_per_gpu": (asks.cpus_per_gpu, lambda node: node.cpus // max(1, asks.gpus_per_node)),
        "mem_gb": (asks.mem_gb or 0, lambda node: node.mem_gb),
    }
    kinds = partition.kinds
    for name, (wanted, has) in tallest.items():
        most = max((has(node) for node in kinds), default=0)
        if wanted > most:
            reason = f"{wanted:g} ({whose}) is more than the {most:g} that any such node of partition {partition.name} has"
            yield Problem(f"resources.{name}", f"{reason}; type resources.{name}={most:g}, or name another partition")
            return
        kinds = [node for node in kinds if has(node) >= wanted]


def _too_long(job: Job, limit_min: int, of: str) -> Problem:
    hours = f"{limit_min / 60:.4g}"
    reason = f"{job.resources.hours:g} ({_whose(job)}) is more than the {hours} of the {of}"
    return Problem("resources.hours", f"{reason}; type resources.hours={hours}: a run that needs longer is requeued and goes on")


def _whose(job: Job) -> str:
    return f"{job.arm} {job.stage}"


def _refusals(alike: list[Job], runs: int, launch: Launch) -> Iterator[Problem]:
    """What sbatch itself says of the scripts that it would not queue."""
    for job in alike:
        if said := _said_of(sbatch.of_runs([job], None, launch, write=False).script(1)):
            field = next((of for words, of in REFUSALS.items() if words in said.lower()), "resources")
            yield Problem(field, f"SLURM would refuse {_whose(job)}: {said}; ask for something else (sinfo, sacctmgr)")
    if said := _said_of(sbatch.of_report(launch, "report", None, runs, limits.report_limit_min(launch.site)).script(1)):
        yield Problem("site.report", f"SLURM would refuse the report: {said}; give it options of its own, such as {{partition: NAME}}")


def _said_of(script: str) -> str | None:
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as file, sbatch.outside_of_jobs():
        file.write(script)
        file.flush()
        try:
            cluster.output("sbatch", "--test-only", file.name)
        except cluster.Silent:
            return None  # too busy to say: the submission itself asks again
        except ConfigError as error:
            return str(error).removeprefix("sbatch failed: ")
    return None


# ----------------------------------------------------------------------------------------------------- disk, container


def of_the_image(site: Site) -> Iterator[Problem]:
    """A file that is not there."""
    if site.image is not None and "://" not in site.image and not Path(site.image).exists():
        yield Problem("site.image", f"there is no {site.image} here; build it (apptainer.def says how), or name where it is")


def _of_the_disk(todo: Iterable[Job], launch: Launch) -> Iterator[Problem]:
    """Checkpoints whose network was counted, by a dry run for example, and files, against what is free; quotas are not seen."""
    new = [job for job in todo if not job.is_trained]
    folder = nearest(launch.sweep)
    free, parameters = os.statvfs(folder), predict.parameters([job.run for job in new], launch)
    sizes = [_bytes(job.run, known) for job, known in zip(new, parameters, strict=True) if not (job.folder / LAST).exists()]
    needed = sum(stays for stays, _ in sizes) + max((writing for _, writing in sizes), default=0)  # how many train at once is unknown
    there = free.f_bavail * free.f_frsize
    advice = f"in {folder}; make room there, or name a folder elsewhere: --runs"
    if needed > there:
        reason = f"the checkpoints of {counted(len(new), 'run')} need {needed / 1e9:.3g} GB, and {there / 1e9:.3g} GB are free"
        yield Problem("", f"{reason} {advice}")
    if free.f_files and (files := FILES_A_RUN * len(new)) > free.f_favail:
        yield Problem("", f"{len(new)} runs make up to {files:,} files, and {free.f_favail:,} (inodes) are free {advice}")


def _bytes(run: Run, parameters: int) -> tuple[int, int]:
    """What stays of a run's checkpoints, and what more there is while it trains: the one before the newest, and one half written.

    Weights and two moments each, in float32, and an average; of the best one the weights alone.
    """
    copies = 3 + (run.loop.ema_decay is not None)
    kept = 1 + (int(run.loop.epochs // run.loop.keep_every) if run.loop.keep_every else 0)
    best = run.data.val_split is not None or run.data.val_fraction > 0
    return 4 * parameters * (copies * kept + best), 2 * 4 * parameters * copies
