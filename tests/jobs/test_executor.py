"""Which executor a submission takes where SLURM is, is not, or does not answer."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from jobs import submit
from jobs.plan import predict
from jobs.slurm import preflight
from tests.jobs.conftest import EXAMPLE, trained_by

HERE = Path(__file__).parent
WORDS = ["sweep.yaml", "axes.data=[plain]", "axes.seed=0", "arms=[scratch]", "resources.gpus_per_node=1", "loop.max_steps=1"]
SILENT = "but no SLURM cluster answers here"


@pytest.fixture
def run(place: Path, monkeypatch: pytest.MonkeyPatch):
    """`run(*words, slurm=False)`: submit the example on a machine without SLURM's commands, or with ones whose controller is silent."""
    trained_by("standin", monkeypatch)
    Path("sweep.yaml").write_text(EXAMPLE)
    Path("big.yaml").write_text("name: big\npartition: gpu\nprice_per_gpu_hour: 2\n")
    monkeypatch.setattr(predict, "predict_runs", lambda *_: [])
    path, which = os.environ["PATH"], shutil.which
    (place / "bin").mkdir()

    def made(*words: str, slurm: bool = False, says: str = "Unable to contact slurm controller") -> int:
        for name in ("sbatch", "scontrol"):
            (place / "bin" / name).write_text(f"#!/bin/sh\necho '{says}' >&2\nexit 1\n")
            (place / "bin" / name).chmod(0o755)
        monkeypatch.setenv("PATH", os.pathsep.join([str(place / "bin"), path]))
        monkeypatch.setattr(shutil, "which", lambda name, *more: which(name, *more) if slurm or name != "sbatch" else None)
        return submit.main([*WORDS, *words])

    return made


@pytest.mark.parametrize("slurm", [False, True])
@pytest.mark.parametrize("words", [["--site", "big.yaml"], ["site.partition=gpu"], ["--site", "slurm_a100"]])
def test_a_site_of_a_cluster_is_not_trained_on_this_machine(run, words, slurm, capsys) -> None:
    assert run(*words, slurm=slurm) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: the site ") and "names the partition gpu, " + SILENT in error and "--executor local" in error
    assert error.count("\n") == 1 and not Path("runs").exists()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ("gpu_type: a100", "gpu_type a100"),
        ("additional: {mail-type: FAIL, exclusive: ''}", "sbatch options mail-type, exclusive"),
        ("image: /shared/vitssl.sif", "image /shared/vitssl.sif"),
    ],
)
def test_no_profile_of_a_cluster_is_taken_for_this_machine(run, fields, named, capsys) -> None:
    Path("small.yaml").write_text(f"name: small\n{fields}\n")
    assert run("--site", "small.yaml") == 2
    assert capsys.readouterr().err.startswith(f"error: the site small names the {named}, {SILENT}; submit where one does, or train here")
    assert not Path("runs").exists()


def test_a_dry_run_shows_the_clusters_plan_and_says_so(run, monkeypatch, capfd) -> None:
    """With whom it is charged to, by this person's own variable; where the profile says it, that one's does not count."""
    for name, value in {"ACCOUNT": "mine", "PARTITION": "debug", "WCKEY": "thesis", "TIMELIMIT": "1"}.items():
        monkeypatch.setenv(f"SBATCH_{name}", value)
    assert run("--site", "big.yaml", "--dry-run", "--all-jobs") == 0
    shown = capfd.readouterr()
    notes = [line for line in shown.err.splitlines() if line.startswith("note: ")]
    assert notes == [
        f"note: the site big names the partition gpu, {SILENT}: this is the plan for it; --executor local shows this machine's"
    ]
    for option, scripts in {"partition=gpu": 2, "account=mine": 2, "wckey=thesis": 2, "time=1": 0}.items():  # the run's and the report's
        assert shown.out.count(f"#SBATCH --{option}\n") == scripts, option
    assert run("--site", "big.yaml", "--dry-run", "--all-jobs", "--executor", "local") == 0
    shown = capfd.readouterr()
    assert "#SBATCH" not in shown.out and "note: " not in shown.err


def test_a_silent_controller_is_an_error_and_no_reason_to_train_here(run, capsys) -> None:
    assert run(slurm=True) == 2
    assert capsys.readouterr().err == (
        f"error: SLURM is set up on this machine, {SILENT}; submit where one does, or train here with --executor local\n"
    )


def test_commands_that_know_of_no_cluster_are_no_reason_to_refuse(run) -> None:
    """As Debian's slurm-client leaves them: installed, and without a slurm.conf."""
    assert run(slurm=True, says="scontrol: fatal: Could not establish a configuration source") == 0


def test_what_is_asked_for_runs_here(run) -> None:
    assert run("--executor", "local", "--site", "big.yaml", slurm=True) == 0
    assert run() == 0


def test_a_site_without_a_cluster_runs_here_at_its_prices(run) -> None:
    Path("laptop.yaml").write_text("name: laptop\nprice_per_gpu_hour: 1\n")
    assert run("--site", "laptop.yaml") == 0


@pytest.mark.parametrize("words", [["--dry-run"], []])
def test_no_place_for_checkpoints_is_said_where_runs_train_here(run, words, monkeypatch, capsys) -> None:
    monkeypatch.setattr(preflight.predict, "parameters", lambda runs, _: [1000] * len(runs))
    there = SimpleNamespace(f_bavail=1, f_frsize=1000, f_files=0, f_favail=0)
    monkeypatch.setattr(preflight.os, "statvfs", lambda _: there)
    assert run(*words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: the checkpoints of 1 run need ") and "free in " in error and error.count("\n") == 1
    assert not Path("runs").exists()
