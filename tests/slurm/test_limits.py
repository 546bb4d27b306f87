"""A cluster that takes little at once, on a real SLURM of its own: what is refused before anything is queued, and what goes in parts."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from jobs import cancel, retry, status, submit
from jobs.plan import predict
from jobs.slurm import cluster as slurm
from jobs.slurm import limits
from tests.jobs.standin import HELD_AT
from tests.slurm.commands import goes_on, held, is_done, kill_task, run_folder, sh, starts, wait_for
from tests.slurm.conftest import running
from vitssl.config import Site

pytestmark = pytest.mark.release
SWEEP = str(Path(__file__).with_name("standin.yaml"))
SHORT = "resources.hours=0.05"
SEEDS = "axes.seed=[" + ",".join(map(str, range(20, 38))) + "]"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Beside the other tests' cluster."""
    knobs = {"ARRAY": 4, "JOBS": 15, "JOB_AGE": 2, "MAX_TIME": 3, "ENFORCE": "limits", "PREEMPT_SIGNAL": 0, "PORT": 23800, "PREFIX": "few"}
    with running(f"/tmp/{tmp_path_factory.mktemp('few').parent.name}-few", **knobs):
        sh("scontrol", "update", "partitionname=gpu-preempt", "state=drain", "maxnodes=2")
        yield


def refusal(capsys, *words: str) -> str:
    """What a submission, and its dry run, say in one line; nothing is queued."""
    said = []
    for more in ((), ("--dry-run",)):
        assert submit.main([SWEEP, "--executor", "slurm", "arms=[direct]", *words, *more]) == 2
        said.append(capsys.readouterr().err.splitlines()[-1].removeprefix("error: "))
    assert said[0] == said[1] and not sh("squeue", "-h", "--me")
    return said[0]


REFUSED = {
    (): f"{SWEEP}: resources.hours: 0.1 (direct train) is more than the 0.05 of the MaxTime of partition gpu; type resources.hours=0.05: ",
    (SHORT, "site.partition=gp"): "command line: site.partition: 'gp' is not known (did you mean gpu?)",
    (SHORT, "site.partition=gpu-preempt"): "command line: site.partition: partition gpu-preempt is DRAIN and takes no jobs (sinfo); name",
    (SHORT, "resources.nodes=5"): "command line: resources.nodes: 5 (direct train) are more than the 4 that a job may have in ",
    (SHORT, "resources.gpus_per_node=4"): "command line: resources.gpus_per_node: 4 (direct train) is more than the 2 that any such node ",
    (SHORT, "site.gpu_type=a100"): "command line: site.gpu_type: partition gpu has no a100; it has GPUs without a type: leave gpu_type out",
    (SHORT, "resources.cpus_per_gpu=5"): "command line: resources.cpus_per_gpu: 5 (direct train) is more than the 4 that any such node ",
    (SHORT, "site.account=nobodys"): "command line: site.account: SLURM would refuse direct train: allocation failure: Invalid account",
    (SHORT, "site.constraint=h100"): "command line: site.constraint: SLURM would refuse direct train: allocation failure: Invalid feature",
    (SHORT, "site.report={partition: gpu-preempt}"): "command line: site.report: SLURM would refuse the report: allocation failure: ",
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_what_could_not_run_is_refused_before_anything_is_queued(standin, words, monkeypatch, capsys) -> None:
    monkeypatch.setattr(predict, "predict_runs", lambda *_: [])  # the costs of the dry run, which are not asked for here, take seconds
    said = refusal(capsys, "optim.batch_size=60", *words)
    assert said.startswith(REFUSED[words]), said


def test_a_container_that_is_not_there_is_refused(standin, capsys) -> None:
    words = [SWEEP, "--executor", "slurm", "arms=[direct]", SHORT, "site.image=/nowhere/vitssl.sif"]
    assert submit.main(words) == 2
    assert capsys.readouterr().err.startswith("error: command line: site.image: there is no /nowhere/vitssl.sif here; build it")


def test_any_of_several_partitions_will_do(standin) -> None:
    sweep = standin("arms=[direct]", SHORT, "site.partition='gpu-preempt,gpu'", "site.report={partition: gpu}", "--wait")
    assert is_done(run_folder(sweep, "direct"))


@pytest.fixture
def preemptible(cluster: None) -> Iterator[str]:
    """A partition whose jobs those of `gpu` preempt, by SIGTERM alone."""
    sh("scontrol", "update", "partitionname=gpu-preempt", "state=up", "maxnodes=unlimited")
    yield "gpu-preempt"
    sh("scontrol", "update", "partitionname=gpu-preempt", "state=drain", "maxnodes=2")


def test_a_job_that_is_preempted_by_term_alone_saves_and_goes_on(standin, hold, preemptible) -> None:
    folder = run_folder(standin("arms=[direct]", SHORT, f"site.partition={preemptible}", "site.report={partition: gpu}"), "direct")
    wait_for(lambda: held(folder))
    sh("sbatch", "--partition=gpu", "--nodes=4", "--exclusive", "--time=1", "--output=/dev/null", "--wrap", "sleep 1")
    goes_on(folder, hold)
    wait_for(lambda: is_done(folder))
    assert starts(folder) == [0, HELD_AT]


@pytest.fixture
def at_most(cluster: None) -> Iterator[None]:
    """Two jobs of a user at once, of two minutes each."""
    words = ["sacctmgr", "-i", "modify", "user", "root", "set"]
    sh(*words, "maxsubmit=2", "maxwall=2")
    yield
    sh(*words, "maxsubmit=-1", "maxwall=-1")


def test_limits_of_the_user_are_known(standin, at_most: None, capsys) -> None:
    said = refusal(capsys, SHORT)
    assert said.startswith("command line: resources.hours: 0.05 (direct train) is more than the 0.03333 of the MaxWall of account root; ")
    for _ in range(2):
        sh("sbatch", "--hold", "--time=1", "--output=/dev/null", "--wrap", "true")
    assert submit.main([SWEEP, "--executor", "slurm", "arms=[direct]", "resources.hours=0.03"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: SLURM can take no more jobs now: 2 of 2 jobs in use (MaxSubmitJobs of root in account root); ")


@pytest.fixture
def of_the_partition(cluster: None) -> Iterator[None]:
    """A QOS of the partition gpu, by which jobs may take a minute."""
    sh("sacctmgr", "-i", "add", "qos", "of_gpu")
    sh("sacctmgr", "-i", "modify", "qos", "of_gpu", "set", "maxwall=1")
    sh("scontrol", "update", "partitionname=gpu", "qos=of_gpu")
    yield
    sh("scontrol", "update", "partitionname=gpu", "qos=")


def test_limits_of_a_partitions_qos_are_known_and_count_before_the_users(standin, at_most: None, of_the_partition: None, capsys) -> None:
    said = refusal(capsys, "resources.hours=0.03")
    assert said.startswith("command line: resources.hours: 0.03 (direct train) is more than the 0.01667 of the MaxWall of QOS of_gpu; ")


@pytest.mark.parametrize(("options", "said"), [("size=20k", " GB are free in "), ("size=100m,nr_inodes=90", " (inodes) are free in ")])
def test_a_disk_without_place_is_told_in_time(standin, place: Path, options, said, capsys) -> None:
    disk = place / "disk"
    disk.mkdir()
    sh("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk))
    try:
        words = [SWEEP, "--executor", "slurm", "arms=[direct]", "axes.seed=[0,1]", SHORT, "--runs", str(disk), "--dry-run"]
        assert submit.main(words) == 2
        assert said in (error := capsys.readouterr().err) and f"{disk}; make room there, or name a folder elsewhere: --runs" in error
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_sweep_larger_than_the_queue_goes_from_submission_to_report(standin, capsys) -> None:
    sweep = standin("arms=[chain]", SEEDS, SHORT)
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(r" \d+ runs wait: job \d+ queues them when there is room; the last such job makes the report Report: /", shown)
    killed = set()

    def the_report_is_there() -> bool:
        for folder in sweep.glob("chain-*-s2[0257]-*"):
            if folder not in killed and (folder / "last.pt").exists() and not is_done(folder):
                killed.add(folder)
                with suppress(subprocess.CalledProcessError, ProcessLookupError):  # it may be done meanwhile
                    kill_task(folder)
        assert len(sh("squeue", "-h", "-r", "-t", "all").splitlines()) <= 15
        return (sweep / "report" / "report.html").exists()

    wait_for(the_report_is_there, timeout_s=540)
    folders = [path.parent for path in sweep.glob("*/run.yaml")]
    assert len(folders) == 36 and all(is_done(folder) for folder in folders)
    assert {len(starts(folder)) for folder in folders} == {1, 2}
    assert {folder for folder in folders if len(starts(folder)) == 2} <= killed
    assert slurm.unqueued_count(sweep) == 0


def test_what_is_cancelled_is_not_queued_later_and_what_is_retried_keeps_the_rest(standin, hold: Path, capsys) -> None:
    sweep = standin("arms=[direct,chain]", SEEDS, SHORT)
    wait_for(lambda: slurm.unqueued_count(sweep) > 0)
    first, rest = run_folder(sweep, "direct-s20"), slurm.job_id(sweep)
    wait_for(lambda: held(first))
    capsys.readouterr()
    assert cancel.main([str(sweep), "direct-s20", "chain", "direct-s37"]) == 0
    assert f"37 runs that job {rest} would have queued later will not be queued\n" in capsys.readouterr().out
    assert status.main([str(sweep)]) == 0
    assert f" wait: job {rest}, pending, queues them when there is room\n" in capsys.readouterr().out
    wait_for(lambda: not slurm.queued([first]))
    # there is room for one job, which has to queue the rest from now on, once SLURM has forgotten the one that was cancelled
    wait_for(lambda: limits.room(Site()).room > 0)
    assert retry.main([str(sweep), "direct-s20"]) == 0
    assert slurm.unqueued_count(sweep) > 0 and slurm.job_id(sweep) != rest
    hold.unlink()
    wait_for(lambda: (sweep / "report" / "report.html").exists(), timeout_s=300)
    left_out = {path.parent for path in sweep.glob("*/run.yaml") if not is_done(path.parent)}
    assert left_out == {run_folder(sweep, "direct-s37"), *sweep.glob("chain-*")}
