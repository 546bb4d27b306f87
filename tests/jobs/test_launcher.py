"""Which jobs share an array, what waits for what, and the batch script; no SLURM needed (tests/slurm has a real one)."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from jobs.command import NodeInfo
from jobs.plan.graph import Graph
from jobs.plan.launch import Launch
from jobs.slurm import cluster, sbatch
from jobs.slurm.sbatch import arrays_of, dependency_of
from vitssl.config import Site, merge


def plan(graph: Graph, limit: int = 1000, queued: dict[str, str] | None = None) -> dict[str, tuple[list[str], str | None]]:
    """{array: (elements, dependency)}, as a submission would number them from 1."""
    queued = dict(queued or {})
    todo = [job for job in graph.jobs if job.identity not in queued and not (job.folder / "done.json").exists()]
    arrays: dict[str, tuple[list[str], str | None]] = {}
    for number, jobs in enumerate(arrays_of(todo, queued, limit), start=1):
        dependency = dependency_of(jobs, queued)
        arrays[str(number)] = ([job.name.rsplit("-", 1)[0] for job in jobs], dependency)
        queued |= {job.identity: f"{number}_{i}" if len(jobs) > 1 else f"{number}" for i, job in enumerate(jobs)}
    return arrays


def finish(graph: Graph, *names: str) -> None:
    for job in graph.jobs:
        if job.name.startswith(names):
            job.folder.mkdir(parents=True)
            (job.folder / "done.json").write_text('{"step": 0, "epochs": 0.0}')


def test_arrays_of_arm_and_stage_chained_element_by_element(expand) -> None:
    arrays = plan(expand("axes.data=[plain]"))
    assert arrays == {
        "1": (["scratch-plain-s0", "scratch-plain-s1"], None),
        "2": (["chain_short-pretrain-plain-s0", "chain_short-pretrain-plain-s1"], None),
        "3": (["chain_short-finetune-plain-s0", "chain_short-finetune-plain-s1"], "aftercorr:2"),
        "4": (["chain_long-finetune-plain-s0", "chain_long-finetune-plain-s1"], "aftercorr:2"),
    }


def test_a_single_job_is_no_array(expand) -> None:
    arrays = plan(expand("axes.data=[plain]", "axes.seed=[0]", "arms=[chain_short]"))
    assert arrays["2"] == (["chain_short-finetune-plain-s0"], "afterok:1")


def test_children_of_finished_parents_wait_for_nothing(expand) -> None:
    graph = expand("axes.data=[plain]", "axes.seed=[0,1,2]", "arms=[chain_short]")
    finish(graph, "chain_short-pretrain-plain-s1")
    arrays = plan(graph)
    assert arrays["1"][0] == ["chain_short-pretrain-plain-s0", "chain_short-pretrain-plain-s2"]
    # the elements of the two arrays correspond, though seed 1 is missing from both
    assert arrays["2"] == (["chain_short-finetune-plain-s0", "chain_short-finetune-plain-s2"], "aftercorr:1")
    assert arrays["3"] == (["chain_short-finetune-plain-s1"], None)


def test_lists_that_do_not_correspond_wait_parent_by_parent(expand) -> None:
    graph = expand("axes.data=[plain]", "axes.seed=[0,1,2]", "arms=[chain_short]")
    finish(graph, "chain_short-finetune-plain-s0")
    arrays = plan(graph)
    assert len(arrays["1"][0]) == 3
    assert list(arrays.values())[1:] == [
        (["chain_short-finetune-plain-s1"], "afterok:1_1"),
        (["chain_short-finetune-plain-s2"], "afterok:1_2"),
    ]


def test_parents_that_are_queued_already_are_waited_for(expand) -> None:
    graph = expand("axes.data=[plain]", "axes.seed=[0,1]", "arms=[chain_short]")
    queued = {job.identity: f"77_{5 + i}" for i, job in enumerate(j for j in graph.jobs if j.stage == "pretrain")}
    assert [dependency for _, dependency in plan(graph, queued=queued).values()] == ["afterok:77_5", "afterok:77_6"]


def test_arrays_are_split_at_the_clusters_limit(expand) -> None:
    arrays = plan(expand("axes.data=[plain]", "axes.seed=[0,1,2,3,4]", "arms=[chain_short]"), limit=2)
    assert [len(names) for names, _ in arrays.values()] == [2, 2, 1, 2, 2, 1]
    assert [dependency for _, dependency in arrays.values()] == [None, None, None, "aftercorr:1", "aftercorr:2", "afterok:3"]


def test_unequal_resources_are_not_in_one_array(expand, place: Path) -> None:
    graph = expand("arms=[scratch,opt_in]")
    assert [len(jobs) for jobs in arrays_of(graph.jobs, {}, 1000)] == [4, 4]


@pytest.fixture
def script(expand, place: Path) -> str:
    graph = expand("arms=[scratch]")
    site = Site(
        partition="long",
        gpu_type="a100",
        account="me",
        env={"NCCL_SOCKET_IFNAME": "ib0"},
        setup=["module load x"],
        additional={"mail-type": "FAIL"},
    )
    launch = Launch(place / "runs" / "example", "slurm", site, place / "source" / "abc", commit=(None, True))
    return sbatch.runs_executor(graph.jobs, "afterok:5", launch, write=False).script(4)


def test_the_batch_script_asks_for_what_the_sweep_and_the_site_say(script: str, place: Path) -> None:
    for option in (
        "--array=0-3%4", "--partition=long", "--account=me", "--nodes=1", "--ntasks-per-node=1", "--gpus-per-node=a100:2",
        "--cpus-per-task=2", "--time=60", "--signal=USR2@180", "--dependency=afterok:5", "--kill-on-invalid-dep=yes", "--mail-type=FAIL",
        "--requeue", f"--chdir={place}/source/abc",
    ):  # fmt: skip
        assert f"#SBATCH {option}\n" in script
    lines = script.split("\n")
    assert lines.index("module load x") < lines.index("export NCCL_SOCKET_IFNAME=ib0") < lines.index(f". {place}/source/abc/jobs/batch.sh")


@pytest.mark.parametrize(("limit", "array"), [(None, "0-299%300"), (2, "0-299%2")])
def test_no_more_of_an_array_run_at_once_than_the_site_says(expand, place: Path, limit, array) -> None:
    launch = Launch(place / "runs" / "example", "slurm", Site(max_parallel=limit), place / "source" / "abc", commit=(None, True))
    assert f"#SBATCH --array={array}\n" in sbatch.runs_executor(expand("arms=[scratch]").jobs, None, launch, write=False).script(300)


@pytest.mark.parametrize("runs", ["runs", "my runs", "jürgen's"])
@pytest.mark.parametrize(("count", "output"), [(1, "%j_log.out"), (4, "%A_%a_log.out")])
def test_a_batch_script_prints_to_a_file_in_a_folder_that_is_there_before_the_job(expand, place: Path, runs: str, count, output) -> None:
    """Submitit would make it print into a folder that is made only once the job is queued."""
    launch = Launch(place / runs / "example", "slurm", Site(), place / "source" / "abc", commit=(None, True))
    written = sbatch.runs_executor(expand("arms=[scratch]").jobs, None, launch, write=False).script(count)
    assert f"#SBATCH --output={shlex.quote(f'{place}/{runs}/example/submitit/{output}')}\n" in written


def test_sbatch_does_not_see_the_job_that_the_launcher_runs_in_but_the_same_cluster(monkeypatch) -> None:
    kept = {"SLURM_CONF": "/etc/other.conf", "SLURM_CLUSTERS": "second"}
    for name, value in (kept | {"SLURM_JOB_ID": "7", "SBATCH_TIMELIMIT": "1", "SBATCH_MEM_BIND": "none"}).items():
        monkeypatch.setenv(name, value)
    with sbatch.outside_of_jobs():
        assert {name: value for name, value in os.environ.items() if name.startswith(("SLURM", "SBATCH"))} == kept
    assert os.environ["SLURM_JOB_ID"] == "7"


def test_flags_of_sbatch_are_flags(expand, place: Path) -> None:
    site = merge(Site, {"additional": {"exclusive": True, "contiguous": "", "requeue": False, "nice": 0, "mail-type": "none"}})
    launch = Launch(place / "runs" / "example", "slurm", site, place / "source" / "abc", commit=(None, True))
    lines = sbatch.runs_executor(expand("arms=[scratch]").jobs, None, launch, write=False).script(4).split("\n")
    assert {"#SBATCH --exclusive", "#SBATCH --contiguous", "#SBATCH --nice=0", "#SBATCH --mail-type=none"} <= set(lines)
    assert not any("requeue" in line for line in lines if line.startswith("#SBATCH"))


@pytest.mark.parametrize(
    ("options", "sent"), [({}, []), ({"wckey": "false"}, []), ({"wckey": "thesis"}, ["#SBATCH --wckey=thesis"])], ids=str
)
def test_jobs_have_no_wckey_but_the_sites(expand, place: Path, options, sent) -> None:
    launch = Launch(place / "runs" / "example", "slurm", Site(additional=options, report=options), place / "source", commit=(None, True))
    runs = sbatch.runs_executor(expand("arms=[scratch]").jobs, None, launch, write=False)
    for executor in (runs, sbatch.report_executor(launch, "report", None, 3, None)):
        assert [line for line in executor.script(1).split("\n") if "--wckey" in line] == sent


def test_the_report_has_resources_of_its_own(place: Path) -> None:
    site = Site(partition="gpu", qos="long", additional={"nodelist": "n[1-2]", "exclusive": "true"}, report={"partition": "cpu"})
    launch = Launch(place / "runs" / "example", "slurm", site, place / "source" / "abc", commit=(None, True))
    for runs, limit, minutes in ((3, None, 10), (300, None, 25), (300, 3, 3)):
        lines = sbatch.report_executor(launch, "report", "afterany:1", runs, limit).script(1).split("\n")
        found = {line for line in lines if any(name in line for name in ("partition", "qos", "nodelist", "time", "exclusive"))}
        assert found == {"#SBATCH --partition=cpu", "#SBATCH --qos=long", f"#SBATCH --time={minutes}"}


@pytest.mark.parametrize(
    ("report", "asked"), [({"partition": "cpu"}, False), ({}, True), ({"partition": "cpu", "constraint": "h100"}, True)]
)
def test_a_report_on_another_partition_needs_no_features_of_the_runs_nodes(place: Path, report, asked) -> None:
    site = Site(partition="gpu", constraint="h100", report=report)
    launch = Launch(place / "runs" / "example", "slurm", site, place / "source" / "abc", commit=(None, True))
    assert ("#SBATCH --constraint=h100\n" in sbatch.report_executor(launch, "report", None, 3, None).script(1)) == asked


def test_what_is_of_the_runs_jobs_alone_the_report_does_not_have(expand, place: Path) -> None:
    site = Site(mail_type="FAIL,END", mail_user="me@x.org", nice=0, exclude="n[1-3],n7", reservation="course", additional={"exclusive": ""})
    launch = Launch(place / "runs" / "example", "slurm", site, place / "source" / "abc", commit=(None, True))
    options = {
        "#SBATCH --mail-type=FAIL,END", "#SBATCH --mail-user=me@x.org", "#SBATCH --nice=0", "#SBATCH --exclude='n[1-3],n7'",
        "#SBATCH --reservation=course", "#SBATCH --exclusive",
    }  # fmt: skip
    assert options <= set(sbatch.runs_executor(expand("arms=[scratch]").jobs, None, launch, write=False).script(4).split("\n"))
    assert not options & set(sbatch.report_executor(launch, "report", None, 3, None).script(1).split("\n"))


@pytest.mark.parametrize(("limit", "minutes"), [("3:00", 3), ("1:02:00", 62), ("2-00:00:00", 2880), ("infinite", None), ("n/a", None)])
def test_time_limits_are_read(limit, minutes) -> None:
    assert cluster.minutes(limit) == minutes


@pytest.mark.parametrize("own", ["afterok:5", None])
def test_what_the_site_waits_for_is_joined_to_what_the_runs_wait_for(expand, place: Path, own) -> None:
    graph, site = expand("arms=[scratch]"), Site(after=["7", "8_1"], additional={"dependency": "singleton"})
    launch = Launch(place / "runs" / "example", "slurm", site, place / "source" / "abc", commit=(None, True))
    script = sbatch.runs_executor(graph.jobs, own, launch, write=False).script(4)
    (found,) = [line for line in script.split("\n") if "--dependency" in line]
    assert found == f"#SBATCH --dependency={'afterok:5,' if own else ''}afterany:7:8_1,singleton"
    assert "#SBATCH --kill-on-invalid-dep=yes\n" in script


@pytest.mark.parametrize(("name", "dependency"), [("report", "afterany:3:4,afterok:9"), ("rest", "afterany:3:4")])
def test_the_report_alone_waits_for_what_its_options_name(place: Path, name, dependency) -> None:
    site = Site(after=["7"], additional={"dependency": "singleton"}, report={"dependency": "afterok:9"})
    launch = Launch(place / "runs" / "example", "slurm", site, place / "source" / "abc", commit=(None, True))
    lines = sbatch.report_executor(launch, name, "afterany:3:4", 3, None).script(1).split("\n")
    assert [line for line in lines if "--dependency" in line] == [f"#SBATCH --dependency={dependency}"]
    assert "#SBATCH --kill-on-invalid-dep=yes" in lines


def test_the_batch_script_is_a_script(script: str) -> None:
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_ports_are_below_the_ephemeral_range_and_move_with_a_requeue() -> None:
    places = [NodeInfo(2, 0, "a", "a", job, restart) for job in (1, 999, 5240341, 2**31) for restart in range(3)]
    assert all(20000 <= place.port() < 32768 for place in places)
    assert len({place.port() for place in places}) == len(places)
