"""Real training on a real SLURM: a chain on two nodes and its report; preempted, or in a container, equal to the bit; evaluated later."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from jobs import submit
from jobs.slurm import cluster
from tests.slurm.commands import events, run_folder, sh, wait_for
from vitssl.files import read_json

SWEEP = Path(__file__).parent / "tiny.yaml"
WITHOUT_IMAGE = "needs the image that apptainer.def makes, VITSSL_SIF=PATH, and apptainer, or VITSSL_CONTAINER='how to enter it'"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "last.pt", weights_only=True)["model"]


@pytest.fixture(scope="module")
def undisturbed(cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a pretraining on two nodes, whose sweep has ended."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert submit.main([str(SWEEP), "--executor", "slurm", "--wait"]) == 0
    return run_folder(folder / "runs" / "tiny", "sslft-pretrain-s0")


@pytest.mark.release
def test_a_sweep_on_two_nodes(undisturbed: Path) -> None:
    sweep = undisturbed.parent
    assert len(list(sweep.glob("*/done.json"))) == 2
    assert (sweep / "report" / "report.html").exists()
    (start,) = events(undisturbed, "start")
    assert start["world_size"] == 2
    assert len(list(undisturbed.glob("emissions-0-*.json"))) == 2  # one tracker on each node


@pytest.mark.release
def test_an_evaluator_added_to_a_finished_sweep_is_evaluated_on_one_gpu_and_nothing_is_trained(place: Path, capsys) -> None:
    assert submit.main([str(SWEEP), "--executor", "local", "loop.epochs=1"]) == 0
    sweep = place / "runs" / "tiny"
    folders = [run_folder(sweep, stage) for stage in ("sslft-pretrain-s0", "sslft-finetune-s0")]
    trained = [contents(folder) for folder in folders]
    again = [str(SWEEP), "--executor", "slurm", "loop.epochs=1", "evals.knn={type: knn, k: 5}"]
    assert submit.main([*again, "--wait"]) == 0
    assert sorted(sweep.glob("sslft-*")) == sorted(folders)
    for folder, before in zip(folders, trained, strict=True):
        assert read_json(folder / "evals.json")["knn"]["metrics"]["count"] == 450
        changed = {name for name, content in contents(folder).items() if content != before.get(name)}
        assert changed == {"evals.json", "run.yaml", "job.json", "slurm.json"}, "no checkpoint, no metrics, no energy of an attempt"
        assert sacct(folder, "State,NNodes") == ["COMPLETED|1"] and "gres/gpu=1," in sacct(folder, "AllocTRES")[0]
    capsys.readouterr()
    assert submit.main(again) == 0
    assert "2 already done, 0 already in the queue, 0 submitted" in capsys.readouterr().out.replace("\n", " ")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.release
def test_a_preempted_run_equals_an_undisturbed_one(place: Path, undisturbed: Path) -> None:
    (start,) = events(undisturbed, "start")
    assert submit.main([str(SWEEP), "--executor", "slurm", "name=low", "site.partition=gpu-preempt"]) == 0
    preempted = run_folder(place / "runs" / "low", "sslft-pretrain-s0")
    assert preempted.name == undisturbed.name
    wait_for(lambda: any(event["step"] > 10 for event in events(preempted, "train")))
    # a job of the better partition takes every node
    sh("sbatch", "--partition=gpu", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap", "sleep 1")
    wait_for(lambda: (preempted / "done.json").exists(), timeout_s=120)

    first, second = events(preempted, "start")
    assert first["step"] == 0 and 10 < second["step"] < start["steps"]
    assert events(preempted, "end")[0]["reason"] == "stopped"
    assert equal(weights(undisturbed), weights(preempted))
    wait_for(lambda: sacct(preempted, "State") == ["REQUEUED", "COMPLETED"])


@pytest.mark.release
@pytest.mark.skipif("VITSSL_SIF" not in os.environ, reason=WITHOUT_IMAGE)
def test_requeued_in_a_container_a_run_equals_an_undisturbed_one_outside(place: Path, undisturbed: Path) -> None:
    site = [f"site.image={os.environ['VITSSL_SIF']}", f"site.container={os.environ.get('VITSSL_CONTAINER', 'apptainer exec')}"]
    assert submit.main([str(SWEEP), "--executor", "slurm", "name=inside", *site]) == 0
    inside = run_folder(place / "runs" / "inside", "sslft-pretrain-s0")
    wait_for(lambda: any(event["step"] > 10 for event in events(inside, "train")), timeout_s=300)
    sh("scontrol", "requeue", cluster.job_id(inside))
    wait_for(lambda: (inside.parent / "report" / "report.html").exists(), timeout_s=600)
    first, second = events(inside, "start")
    assert first["step"] == 0 and second["step"] > 10
    assert equal(weights(undisturbed), weights(inside))


def equal(expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor]) -> bool:
    return expected.keys() == found.keys() and all(torch.equal(expected[name], found[name]) for name in expected)


def sacct(folder: Path, fields: str) -> list[str]:
    """What SLURM recorded of each incarnation of a run's job."""
    return sh("sacct", "-X", "-n", "-P", "-D", "-j", cluster.job_id(folder), "-o", fields).split("\n")
