"""The batch scripts of arrays of runs and of the report, the split of jobs into arrays, and the dependencies of arrays."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import submitit
from rich.console import Console
from submitit.core.utils import DelayedSubmission, JobPaths
from submitit.helpers import clean_env, environment_variables
from submitit.slurm.slurm import _make_sbatch_string

from jobs.command import set_up
from jobs.node import warning_s
from jobs.plan.graph import Graph, Job
from jobs.plan.launch import Launch
from jobs.site_profile import options
from jobs.slurm import cluster, limits
from vitssl.config import Site

NO_CAP = 10**6  # stands for no limit, for example on requeues after a time-out: a run may need more days than a partition grants
REPORT_MIN, RUNS_A_MIN = 10, 20  # the minutes that a report may take: a base, and one for each 20 runs
REPORT_WARNING_S = 10  # SLURM warns the report's job this long before its end, or up to a minute earlier


@contextmanager
def outside_of_jobs() -> Iterator[None]:
    """Hide the SLURM variables of a job that this launcher may run in, and the user's own.

    sbatch takes them for options, which win over those of a batch script. Variables that say which cluster is asked are kept. Partition,
    account and the like are in the site already (`site_profile.add_own`).
    """
    kept = {name: os.environ[name] for name in ("SLURM_CONF", "SLURM_CLUSTERS") if name in os.environ}
    with clean_env(), environment_variables(**kept):
        yield


class Executor(submitit.SlurmExecutor):
    """submitit's executor, which also works in a dry run on a machine without SLURM, and asks a busy controller again."""

    @classmethod
    def affinity(cls) -> int:
        return 2

    job_id = ""  # SLURM's id of the whole array, once it is queued

    def _internal_process_submissions(self, delayed_submissions: list[DelayedSubmission]) -> list[submitit.Job[Any]]:
        """Submit one job or an array as submitit does, but by `cluster.submit`, which asks a busy controller again."""
        folder, number = JobPaths.get_first_id_independent_folder(self.folder), len(delayed_submissions)
        folder.mkdir(parents=True, exist_ok=True)
        script = folder / f".submission_file_{uuid4().hex}.sh"
        script.write_text(self.script(number))
        pickles = [folder / f"{uuid4().hex}.pkl" for _ in delayed_submissions]
        for delayed, path in zip(delayed_submissions, pickles, strict=True):
            delayed.set_timeout(self.parameters.get("time", 5), self.max_num_timeout)
            delayed.dump(path)
        self.job_id = cluster.submit(script)
        ids = [f"{self.job_id}_{i}" for i in range(number)] if number > 1 else [self.job_id]
        tasks = list(range(self._num_tasks()))
        jobs: list[submitit.Job[Any]] = [submitit.SlurmJob(folder=self.folder, job_id=job_id, tasks=tasks) for job_id in ids]
        jobs[0].paths.move_temporary_file(script, "submission_file", keep_as_symlink=True)
        for job, path in zip(jobs, pickles, strict=True):
            job.paths.move_temporary_file(path, "submitted_pickle")
        return jobs

    def script(self, count: int) -> str:
        """Return the batch script of an array, as submitit would write it except for the file that it prints to.

        submitit makes a job's folder only after sbatch has returned the job's number. A job that starts before that could not open a file
        in that folder, and would fail for good.
        """
        output = self.folder.parent / f"{'%A_%a' if count > 1 else '%j'}_log.out"
        parameters = self.parameters | ({"map_count": count} if count > 1 else {})
        parameters["additional_parameters"] = {"output": str(output)} | parameters["additional_parameters"]
        return _make_sbatch_string(command=self._submitit_command_str, folder=self.folder, **parameters)


def runs_executor(jobs: list[Job], dependency: str | None, launch: Launch, write: bool) -> Executor:
    """Return the executor for an array of runs of equal resources; with ``write``, write the list of folders that its script reads."""
    resources = jobs[0].resources
    digest = hashlib.sha256("".join(job.identity for job in jobs).encode()).hexdigest()[:12]
    list_file = launch.sweep / "submitit" / f"folders-{digest}.txt"
    if write:
        list_file.parent.mkdir(parents=True, exist_ok=True)
        list_file.write_text("".join(f"{job.folder}\n" for job in jobs))
    executor = Executor(launch.sweep / "submitit" / "%j", max_num_timeout=NO_CAP)
    kind = f"{launch.site.gpu_type}:" if launch.site.gpu_type else ""
    gpus = {"gpus_per_node": f"{kind}{resources.gpus_per_node}"} if resources.gpus_per_node else {}
    memory = {"mem": f"{round(resources.mem_gb * 1024)}MB"} if resources.mem_gb else {}
    extra = {option: str(value) for option, value in options(launch.site).items()} | launch.site.additional  # also options without a field
    executor.update_parameters(
        job_name=f"{launch.sweep.name}-{jobs[0].arm}-{jobs[0].stage}", time=round(resources.hours * 60), nodes=resources.nodes,
        cpus_per_task=resources.cpus_per_gpu * max(1, resources.gpus_per_node),
        signal_delay_s=warning_s(resources.hours),
        setup=_setup(launch, list_file), array_parallelism=launch.site.max_parallel or NO_CAP,
        **gpus, **memory, **_common(launch.site, launch, extra, dependency, *site_dependencies(launch.site)),
    )  # fmt: skip
    return executor


def site_dependencies(site: Site) -> list[str | None]:
    """Return the dependencies, in sbatch's syntax, that a site sets for all runs; None for each field that is not set."""
    return ["afterany:" + ":".join(site.after) if site.after else None, site.additional.get("dependency")]


def _options(additional: dict[str, str]) -> dict[str, str | bool]:
    """Return a site's further options of sbatch, but not its dependency, which has to be joined with those of the jobs.

    True stands for an option without a value (`exclusive: true`), False for one to omit.
    """
    flags = {"true": True, "": True, "false": False}
    return {name: flags.get(value.lower(), value) for name, value in additional.items() if name != "dependency"}


def _common(site: Site, launch: Launch, additional: dict[str, str], *dependencies: str | None) -> dict[str, Any]:
    dependency = ",".join(filter(None, dependencies)) or None
    fields = {"partition": site.partition, "account": site.account, "qos": site.qos, "constraint": site.constraint}
    extra: dict[str, Any] = {"chdir": str(launch.source), "requeue": True, **_options(additional)}
    if dependency is not None:
        extra["kill-on-invalid-dep"] = "yes"
    return {
        **{key: value for key, value in fields.items() if value is not None and key not in extra},
        "ntasks_per_node": 1,
        "dependency": dependency,
        "wckey": None,  # not submitit's default, which clusters that check keys refuse; a site's key is in `additional`
        "additional_parameters": {name: value for name, value in extra.items() if value is not False},
        "stderr_to_stdout": True,
    }


def _setup(launch: Launch, listed: Path) -> list[str]:
    """Return the batch script's lines before srun: the site's setup, the choice of the run, and what happens at its end (`batch.sh`)."""
    return [
        *set_up(launch.site, launch.source),
        'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"',
        f'run=$(sed -n "$((${{SLURM_ARRAY_TASK_ID:-0}} + 1))p" {shlex.quote(str(listed))})',
        # for the last element of an array, SLURM_JOB_ID is the id of the whole array
        "job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}; job=${job:-$SLURM_JOB_ID}",
        f'mkdir -p {shlex.quote(str(listed.parent))}/"$job"',  # for srun's output, since submitit may not have made it yet
        f". {shlex.quote(str(launch.source / 'jobs' / 'batch.sh'))}",
    ]


def report_min(runs: int, limit_min: int | None) -> int:
    """Return how many minutes the report of a sweep of ``runs`` runs may take."""
    return min(REPORT_MIN + runs // RUNS_A_MIN, limit_min or NO_CAP)


def report_executor(launch: Launch, name: str, dependency: str | None, runs: int, limit_min: int | None) -> Executor:
    """Return the executor for a sweep's report, or for the job that queues its next part; ``runs`` and ``limit_min`` bound its time.

    Only the report (``name`` is "report") also waits for what the site says: the runs of a next part must not.
    """
    executor, site = Executor(launch.sweep / "submitit" / "%j"), launch.site
    site_dependency = site.report.get("dependency") if name == "report" else None
    if "partition" in site.report:  # its nodes need not have the features that the runs need
        site = dataclasses.replace(site, constraint=None)
    executor.update_parameters(
        job_name=f"{launch.sweep.name}-{name}", time=report_min(runs, limit_min),
        nodes=1, cpus_per_task=1, signal_delay_s=REPORT_WARNING_S,
        setup=[*set_up(launch.site, launch.source), f'mkdir -p {shlex.quote(str(launch.sweep / "submitit"))}/"$SLURM_JOB_ID"'],
        **_common(site, launch, site.report, dependency, site_dependency),
    )  # fmt: skip
    return executor


# --------------------------------------------------------------------------------------------------------------- arrays


def arrays_of(todo: list[Job], queued: dict[str, str], limit: int | None = None) -> Iterator[list[Job]]:
    """Split jobs into arrays: same arm, stage and resources, equally many unfinished parents, at most SLURM's array size."""
    groups: dict[Any, list[Job]] = {}
    waiting = {job.identity for job in todo} | set(queued)
    for job in todo:
        kind = sum(parent.identity in waiting for parent in job.parents)
        groups.setdefault((_depth(job), job.arm, job.stage, kind, dataclasses.astuple(job.resources)), []).append(job)
    size = limit or limits.max_array_size()
    # by depth, parents first: a run that two arms share can make a later group the parent of an earlier one
    for jobs in (groups[key] for key in sorted(groups, key=lambda key: key[0])):
        for first in range(0, len(jobs), size):
            yield from _aligned(jobs[first : first + size], queued)


def _depth(job: Job) -> int:
    return 1 + max((_depth(parent) for parent in job.parents), default=-1)


def _aligned(jobs: list[Job], queued: dict[str, str]) -> Iterator[list[Job]]:
    """Yield all jobs in one list if they have no pending parents, or an array in the same order; otherwise a list per set of parents."""
    parents = [_pending(job, queued) for job in jobs]
    if not any(parents) or _mirror(parents) is not None:
        yield jobs
        return
    by_parents: dict[tuple[str, ...], list[Job]] = {}
    for job, ids in zip(jobs, parents, strict=True):
        by_parents.setdefault(tuple(ids), []).append(job)
    yield from by_parents.values()


def _pending(job: Job, queued: dict[str, str]) -> list[str]:
    """Return SLURM's ids of the parents that are not done. Parents come first in a graph, so they are queued by now."""
    return [queued[parent.identity] for parent in job.parents if parent.identity in queued and not parent.is_trained]


def _mirror(parents: list[list[str]]) -> str | None:
    """Return the array whose elements 0, 1, 2, ... are the only ``parents`` of the jobs, in this order; None if there is none."""
    if len(parents) < 2 or any(len(ids) != 1 for ids in parents):
        return None
    array = parents[0][0].split("_")[0]
    return array if [ids[0] for ids in parents] == [f"{array}_{i}" for i in range(len(parents))] else None


def dependency_of(jobs: list[Job], queued: dict[str, str]) -> str | None:
    """Return the dependency of an array of jobs, in sbatch's syntax; None if they wait for no job."""
    parents = [_pending(job, queued) for job in jobs]
    if not any(parents):
        return None
    # SLURM cancels an element without a counterpart in the other array at once, so aftercorr needs a parent for each
    if (array := _mirror(parents)) is not None:
        return f"aftercorr:{array}"
    return "afterok:" + ":".join(parents[0])


# -------------------------------------------------------------------------------------------------------------- dry run


def show_scripts(graph: Graph, launch: Launch, console: Console) -> None:
    """Print the batch script of every array that a submission would queue."""
    queued: dict[str, str] = {}
    todo = [job for job in graph.jobs if not job.is_done]
    launch.source = launch.sweep / "source" / "HASH"
    has_cluster = cluster.answers()
    limit, report_limit = (None, limits.report_limit_min(launch.site)) if has_cluster else (1000, None)
    for number, jobs in enumerate(arrays_of(todo, queued, limit), start=1):
        dependency = dependency_of(jobs, queued)
        for index, job in enumerate(jobs):
            queued[job.identity] = f"JOB{number}_{index}" if len(jobs) > 1 else f"JOB{number}"
        console.rule(f"JOB{number}: {jobs[0].arm} {jobs[0].stage} x {len(jobs)}")
        for job in jobs:
            console.print(f"# {job.folder}", soft_wrap=True)
        print(runs_executor(jobs, dependency, launch, write=False).script(len(jobs)))
    console.rule("the report, when all others have ended")
    print(report_executor(launch, "report", "afterany:..." if todo else None, len(graph.jobs), report_limit).script(1))
