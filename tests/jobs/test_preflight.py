"""What is read of SLURM's tables, and what a job may ask of a partition; tests/slurm/test_limits.py has the real ones."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from jobs.plan.launch import Launch
from jobs.slurm import cluster, launcher, limits, preflight
from jobs.slurm.limits import NodeKind, Partition
from vitssl.config import Site
from vitssl.config.sweep import Resources

MIXED = Partition("gpu", "UP", 24 * 60, 4, [NodeKind({"a100": 4}, 64, 500), NodeKind({"v100": 2}, 128, 250), NodeKind({}, 256, 1000)])


@pytest.mark.parametrize(
    ("line", "nodes"),
    [
        ("gpu:2|4|512000", NodeKind({"": 2}, 4, 500)),
        ("gpu:a100:4(S:0-1),gpu:v100:2(S:2)|64|1024", NodeKind({"a100": 4, "v100": 2}, 64, 1)),
        ("(null)|8|2048", NodeKind({}, 8, 2)),
        ("gpu:2080ti:8(S:0,1),gpu:3090:4|8|2048", NodeKind({"2080ti": 8, "3090": 4}, 8, 2)),
        ("mps:gpu:100,gpu:1g.5gb:7|8|2048", NodeKind({"1g.5gb": 7}, 8, 2)),
        ("shard:8,gpu:h100_80gb:1|8|2048", NodeKind({"h100_80gb": 1}, 8, 2)),
    ],
)
def test_what_nodes_have(line, nodes) -> None:
    assert limits._node_kind(line) == nodes


def test_what_the_larger_nodes_of_a_partition_have_is_seen(monkeypatch) -> None:
    """Without -e, sinfo lists nodes together that differ, with what the smallest has."""

    def output(*words: str) -> str:
        return "gpu:4|32|262144\ngpu:4|128|1048576\n" if "-e" in words else "gpu:4|32+|262144+\n"

    monkeypatch.setattr(cluster, "output", output)
    table = {"PartitionName": "gpu", "TotalNodes": "4", "MaxNodes": "UNLIMITED", "State": "UP", "MaxTime": "UNLIMITED"}
    assert limits._partition(table).kinds == [NodeKind({"": 4}, 32, 256), NodeKind({"": 4}, 128, 1024)]


@pytest.mark.parametrize(
    ("asks", "gpu_type", "field"),
    [
        ({"gpus_per_node": 4, "cpus_per_gpu": 16, "mem_gb": 500}, None, None),
        ({"gpus_per_node": 5}, None, "resources.gpus_per_node"),
        ({"gpus_per_node": 4}, "v100", "resources.gpus_per_node"),
        ({"gpus_per_node": 2}, "h100", "site.gpu_type"),
        ({"gpus_per_node": 4, "cpus_per_gpu": 17}, None, "resources.cpus_per_gpu"),  # what has more cores has fewer GPUs
        ({"gpus_per_node": 1, "mem_gb": 501}, None, "resources.mem_gb"),
        ({"gpus_per_node": 0, "cpus_per_gpu": 256, "mem_gb": 1000}, "a100", None),
        ({"hours": 24}, None, None),
        ({"hours": 24.1}, None, "resources.hours"),
        ({"nodes": 5}, None, "resources.nodes"),
    ],
)
def test_what_a_partition_has_for_a_job(expand, asks, gpu_type, field) -> None:
    job = dataclasses.replace(expand("arms=[scratch]").jobs[0], resources=Resources(**asks))
    problem = next(preflight._partition_problems(MIXED, job, Site(gpu_type=gpu_type)), None)
    assert (problem and problem.field) == field


def test_a_part_leaves_out_what_starts_from_a_failed_run(expand) -> None:
    graph = expand("axes.data=[plain]", "axes.seed=[0,1]", "arms=[chain_short]")
    first, second = (job for job in graph.jobs if job.parents)
    first.folder.mkdir(parents=True)
    queued = {second.parents[0].identity: "7_1"}
    assert launcher._startable([first, second], queued) == [second]
    assert f"not started: {first.parents[0].name}, which it starts from, is not done" in (first.folder / "error.json").read_text()
    assert launcher._startable(graph.jobs, {}) == graph.jobs


@pytest.fixture
def accounting(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """{command: what it prints} of a cluster whose accounting holds limits; an empty answer of the others."""
    said = {"scontrol show config": "AccountingStorageEnforce = associations,limits\nMaxJobCount = 50\nClusterName = this\n"}

    def output(*words: str) -> str:
        answer = next((text for command, text in said.items() if " ".join(words).startswith(command)), "")
        if answer.startswith("silent: "):
            raise cluster.NoAnswer(answer.removeprefix("silent: "))
        return answer

    monkeypatch.setattr(cluster, "output", output)
    return said


def test_a_user_without_an_accounting_entry_has_no_known_limits(accounting) -> None:
    assert limits.user_limits(Site()) == limits.UserLimits()
    assert limits.room(Site()).name == "MaxJobCount"


@pytest.mark.parametrize(
    ("partition", "flags", "owner", "minutes", "most"),
    [
        ("gpu", "", "QOS of_gpu", 5, {"MaxSubmitJobsPerUser of QOS of_gpu": 3}),
        ("gpu", "DenyOnLimit,OverPartQOS", "QOS normal", 9, {"MaxSubmitJobsPerUser of QOS of_gpu": 3}),
        ("cpu", "", "QOS normal", 9, {"MaxSubmitJobs of {me} in account lab": 7}),
        ("gpu,cpu", "", "QOS normal", 9, {"MaxSubmitJobs of {me} in account lab": 7}),
        ("big", "", "QOS normal", 9, {"MaxSubmitJobs of {me} in account lab": 8}),
    ],
)
def test_of_several_limits_the_first_that_is_set_counts(accounting, partition, flags, owner, minutes, most) -> None:
    """That of the partition's QOS, of the job's, of the user's row for all partitions on this cluster, or for this one."""
    show, me = "sacctmgr -n -P show", cluster.me()
    accounting |= {
        "scontrol -o show partition": "\n".join(
            f"PartitionName={name} QoS={qos} Default=NO" for name, qos in (("gpu", "of_gpu"), ("cpu", "N/A"), ("big", "N/A"))
        ),
        f"{show} user {me} ": "lab\n",
        f"{show} assoc user={me} account=lab cluster=this ": "old|1|00:01:00|\n|8|00:08:00|\ncpu|7|00:07:00|\n",
        f"{show} qos of_gpu ": "3||00:05:00|\n",
        f"{show} qos normal ": f"||00:09:00|{flags}\n",
    }
    found = limits.user_limits(Site(partition=partition))
    assert (found.owner, found.minutes) == (owner, minutes)
    assert {limit.name: limit.most for limit in found.limits} == {name.format(me=me): number for name, number in most.items()}


def test_accounting_that_does_not_answer_is_not_taken_for_one_without_limits(accounting) -> None:
    accounting["sacctmgr"] = "silent: sacctmgr failed: Connection refused"
    with pytest.raises(cluster.NoAnswer):
        limits.user_limits(Site())


def test_a_full_cluster_is_told_by_its_own_number_and_what_is_left_to_others(accounting) -> None:
    accounting["squeue"] = "\n".join(map(str, range(45)))
    full = limits.room(Site())
    assert full.room == 0 and str(full) == "45 of 50 jobs in use (MaxJobCount); 5 are reserved for others"


@pytest.mark.parametrize(
    ("fields", "copies"),
    [((), 2 * 3 + 2 * 3), (("loop.keep_every=5", "loop.ema_decay=0.9", "data.val_fraction=0.1"), 2 * (4 * 3 + 1) + 2 * 4)],
)
def test_a_disk_needs_place_for_what_stays_and_for_a_checkpoint_that_is_written(expand, monkeypatch, fields, copies) -> None:
    graph = expand("axes.data=[plain]", "arms=[scratch]", *fields)  # two runs of ten epochs
    launch = Launch(graph.jobs[0].folder.parent, "slurm", Site(), Path(), commit=(None, True))
    monkeypatch.setattr(preflight.predict, "parameters", lambda runs, _: [1000] * len(runs))
    for spare, refused in ((-1, True), (0, False)):
        there = SimpleNamespace(f_bavail=4000 * copies + spare, f_frsize=1, f_files=0, f_favail=0)
        monkeypatch.setattr(preflight.os, "statvfs", lambda _, there=there: there)
        assert bool(list(preflight._disk_problems(graph.jobs, launch))) == refused


def test_a_persons_own_ways_of_looking_at_the_queue_hide_nothing(tmp_path, monkeypatch) -> None:
    (tmp_path / "squeue").write_text("#!/bin/sh\nenv\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for name in ("SQUEUE_STATES", "SQUEUE_PARTITION", "SINFO_PARTITION", "SLURM_TIME_FORMAT"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("SLURM_CONF", "kept")
    said = cluster.output("squeue")
    assert "SLURM_CONF=kept" in said and not any(name in said for name in ("SQUEUE_", "SINFO_", "TIME_FORMAT"))
