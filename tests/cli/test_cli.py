"""The command line itself: versions, ways to start it, environments that it is not in, pipes that close."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import torch

import vitssl
from jobs.environment import NEEDED
from vitssl import cli, train, version
from vitssl.arguments import Parser, guarded

ROOT = Path(__file__).parents[2]


def start(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = {"PYTHONPATH": str(ROOT)}
    return subprocess.run(words, cwd=cwd, env=os.environ | paths | environment, capture_output=True, text=True, check=False)


def test_a_short_option_may_have_its_value_with_it() -> None:
    parser = Parser("status")
    parser.add_argument("-n", "--lines", type=int)
    parser.add_argument("-f", "--follow", action="store_true")
    assert [parser.parse_args(words).lines for words in (["-n40"], ["-fn", "40"], ["-fn40"], ["-n", "40"])] == [40] * 4


def test_the_version_has_its_commit_where_it_is_a_checkout(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(version, "ROOT", tmp_path)
    monkeypatch.delenv("VITSSL_REVISION", raising=False)

    def shown() -> str:
        with pytest.raises(SystemExit) as ended:
            cli.main(["--version"])
        assert ended.value.code == 0
        return capsys.readouterr().out

    assert shown() == f"vitssl {vitssl.__version__}\n"
    (tmp_path / "README.md").write_text("first")
    author = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    sha = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout[:12]
    assert shown() == f"vitssl {vitssl.__version__}, commit {sha}\n"
    (tmp_path / "README.md").write_text("second")
    assert shown() == f"vitssl {vitssl.__version__}, commit {sha}, changed since\n"
    shutil.rmtree(tmp_path / ".git")
    monkeypatch.setenv("VITSSL_REVISION", "abc123")  # a container's
    assert shown() == f"vitssl {vitssl.__version__}, commit abc123\n"


def test_the_package_is_a_command(tmp_path) -> None:
    ended = start(sys.executable, "-m", "vitssl", "fields", "optim.momentum", cwd=tmp_path)
    assert ended.returncode == 0 and "optim.momentum: number, default 0.9" in ended.stdout, ended.stderr


def test_load_is_named_before_it_is_imported() -> None:
    code = "import sys, vitssl; assert 'load' in dir(vitssl) and '__version__' in dir(vitssl); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.release
def test_it_works_from_the_folder_that_holds_the_clone(tmp_path) -> None:
    """There, a folder of the package's name stands first on the path, and is not the package."""
    (tmp_path / "vitssl").symlink_to(ROOT)
    code = "import vitssl; assert vitssl.__version__; from vitssl import config; print(callable(vitssl.load))"
    assert start(sys.executable, "-c", code, cwd=tmp_path).stdout == "True\n"
    assert start(sys.executable, "-m", "vitssl", "--version", cwd=tmp_path).stdout.startswith("vitssl ")
    shown = start(sys.executable, "vitssl/jobs/submit.py", "quickstart", "lr=1", cwd=tmp_path)
    assert "did you mean optim.lr?" in shown.stderr and shown.returncode == 2


def test_a_reader_that_has_left_is_no_traceback(tmp_path) -> None:
    ended = start("bash", "-c", f"set -o pipefail; {sys.executable} -m vitssl fields | head -1", cwd=tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "A sweep file\n", "")


def test_a_reader_that_leaves_before_a_short_output_is_no_traceback(tmp_path) -> None:
    ended = start("bash", "-c", f"set -o pipefail; {sys.executable} -m vitssl fields optim.momentum | true", cwd=tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_a_full_disk_is_one_line_whichever_error_says_so(capsys, tmp_path):
    """/dev/full takes nothing; torch.save makes another error of it."""

    def write() -> None:
        with open("/dev/full", "wb") as stream:
            stream.write(b"x")
            stream.flush()

    def save() -> None:
        with open("/dev/full", "wb", buffering=0) as stream:
            torch.save({"a": torch.zeros(100_000)}, stream)

    for call in (write, save):
        assert guarded(call) == 2
        said = "error: No space left on device where a file was to be written; make room, or choose another place\n"
        assert capsys.readouterr().err == said
    with pytest.raises(RuntimeError, match="another"):
        guarded(lambda: (_ for _ in ()).throw(RuntimeError("another")))


def test_letters_that_a_terminal_lacks_do_not_end_a_command(monkeypatch):
    """Python's stdout raises UnicodeEncodeError: a report was written, and then its summary a traceback."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert guarded(lambda: print("74.49 \u00b1 4.26 %")) == 0
    assert out.buffer.getvalue() == b"74.49 ? 4.26 %\n"


@pytest.mark.parametrize("script", ["submit", "status", "cancel", "retry"])
def test_ctrl_c_before_a_script_has_begun_is_one_line(script, tmp_path):
    (tmp_path / "omegaconf.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    ended = start(sys.executable, str(ROOT / "jobs" / f"{script}.py"), cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "interrupted\n")


# -------------------------------------------------------------------------------------------- outside of the environment


@pytest.mark.parametrize("script", ["submit", "status", "cancel"])
def test_a_python_without_the_packages_says_what_to_type(script, tmp_path) -> None:
    """-S: without its site-packages, as the system's python3 is."""
    copy = tmp_path / "clone"
    shutil.copytree(ROOT / "jobs", copy / "jobs", ignore=shutil.ignore_patterns("__pycache__"))
    words = [sys.executable, "-S", f"jobs/{script}.py", "a b.yaml"]
    ended = start(*words, cwd=copy, PYTHONPATH="")
    make = "python3 -m venv .venv && .venv/bin/pip install -e . && "
    again = f".venv/bin/python jobs/{script}.py 'a b.yaml'\n"
    begins = f"error: this Python ({sys.executable}) has no codecarbon, numpy, omegaconf, PIL, psutil, rich, submitit, yaml; "
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"{begins}activate vitssl's environment, or create it: {make}{again}"
    (copy / ".venv" / "bin").mkdir(parents=True)
    (copy / ".venv" / "bin" / "python").touch()
    ended = start(*words, cwd=copy, PYTHONPATH="")
    assert (ended.returncode, ended.stderr) == (2, f"{begins}type: {again}")
    ended = start(sys.executable, "-S", f"../jobs/{script}.py", cwd=copy / ".venv", PYTHONPATH="")
    assert ended.stderr.endswith(f"; type: {'bin/python'} ../jobs/{script}.py\n")


def test_all_that_the_scripts_import_is_asked_for() -> None:
    code = "import sys, jobs.submit, jobs.slurm.launcher, jobs.plan.predict, jobs.status, jobs.cancel; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True).stdout.split()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    depends = {re.match(r"[\w-]+", line)[0] for line in project["dependencies"]}
    ours = {module for module, distributions in packages_distributions().items() if depends & {d.lower() for d in distributions}}
    assert {"omegaconf", "rich"} <= ours & set(loaded) <= set(NEEDED)


def test_a_python_without_the_packages_says_so_in_one_line() -> None:
    bare = subprocess.run([sys.executable, "-S", "-m", "vitssl"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert bare.returncode == 2 and re.fullmatch(r"error: this Python \(.*\) has no \w+; activate vitssl's environment, .*\n", bare.stderr)


def test_what_trains_a_run_names_the_command_for_sweeps(capsys) -> None:
    assert train.main([str(ROOT / "sweeps" / "quickstart.yaml")]) == 2
    assert capsys.readouterr().err.endswith("quickstart.yaml is not a run folder; to train a sweep: python jobs/submit.py SWEEP\n")
