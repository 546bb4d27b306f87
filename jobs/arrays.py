"""Which jobs share an array, and what an array waits for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from jobs import limits
from jobs.folders import is_trained
from jobs.graph import Job


def arrays_of(todo: list[Job], queued: dict[str, str], limit: int | None = None) -> Iterator[list[Job]]:
    """Split jobs into arrays: same arm and stage, same resources, same kind of waiting, at most SLURM's array size."""
    groups: dict[Any, list[Job]] = {}
    waiting = {job.identity for job in todo} | set(queued)
    for job in todo:
        kind = sum(parent.identity in waiting for parent in job.parents)
        groups.setdefault((_depth(job), job.arm, job.stage, kind, dataclasses.astuple(job.resources)), []).append(job)
    size = limit or limits.max_array_size()
    # parents first: a run that two arms share makes a later group the parent of an earlier one
    for jobs in (groups[key] for key in sorted(groups, key=lambda key: key[0])):
        for first in range(0, len(jobs), size):
            yield from _aligned(jobs[first : first + size], todo, queued)


def _depth(job: Job) -> int:
    return 1 + max((_depth(parent) for parent in job.parents), default=-1)


def _aligned(jobs: list[Job], todo: list[Job], queued: dict[str, str]) -> Iterator[list[Job]]:
    """The whole list if its parents are an array in the same order; else one list per set of parents."""
    parents = [_pending(job, queued) for job in jobs]
    if not any(parents) or _mirror(parents) is not None:
        yield jobs
        return
    by_parents: dict[tuple[str, ...], list[Job]] = {}
    for job, ids in zip(jobs, parents, strict=True):
        by_parents.setdefault(tuple(ids), []).append(job)
    yield from by_parents.values()


def _pending(job: Job, queued: dict[str, str]) -> list[str]:
    """SLURM's ids of the parents that are not done. Parents come first in a graph, so those are queued by now."""
    return [queued[parent.identity] for parent in job.parents if parent.identity in queued and not is_trained(parent)]


def _mirror(parents: list[list[str]]) -> str | None:
    """The array whose elements 0, 1, 2, ... are the only parents of these jobs, in this order."""
    if len(parents) < 2 or any(len(ids) != 1 for ids in parents):
        return None
    array = parents[0][0].split("_")[0]
    return array if [ids[0] for ids in parents] == [f"{array}_{i}" for i in range(len(parents))] else None


def dependency_of(jobs: list[Job], queued: dict[str, str]) -> str | None:
    parents = [_pending(job, queued) for job in jobs]
    if not any(parents):
        return None
    # an element without a counterpart in the other array would be cancelled at once
    if (array := _mirror(parents)) is not None:
        return f"aftercorr:{array}"
    return "afterok:" + ":".join(parents[0])
