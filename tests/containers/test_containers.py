"""The Dockerfile, apptainer.def and constraints.txt say the same thing; with VITSSL_BUILD_IMAGE=1 Docker builds and runs the image."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read(name: str) -> str:
    """A recipe without its comments and with continued lines joined."""
    lines = (ROOT / name).read_text().replace("\\\n", " ").splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("#"))


def section(name: str) -> str:
    """A section of apptainer.def."""
    return re.search(rf"^%{name}\n(.*?)(?=^%|\Z)", read("apptainer.def"), re.MULTILINE | re.DOTALL).group(1)


def build_commands() -> tuple[list[list[str]], list[list[str]]]:
    """The words of every shell command that builds the image: Docker's, Apptainer's."""
    runs = re.findall(r"^RUN (?:--mount=\S+\s+)?(.*)$", read("Dockerfile"), re.MULTILINE)
    docker = [command for run in runs for command in run.split("&&")]
    return [shlex.split(command) for command in docker], [shlex.split(line) for line in section("post").splitlines() if line.strip()]


def those(commands: list[list[str]], *starts: str, without: str) -> list[list[str]]:
    """The commands that start with one of these words, without a word that they need not share."""
    return [[word for word in words if word != without] for words in commands if words[0] in starts]


def pins() -> list[tuple[str, str]]:
    """(package, version) of every line of constraints.txt."""
    found = (re.fullmatch(r"(\S+)==(\S+)", line).groups() for line in read("constraints.txt").splitlines())
    return [(canonicalize_name(name), version) for name, version in found]


# -------------------------------------------------------------------------------------------------------- constraints


def test_constraints_name_each_package_once():
    assert len(dict(pins())) == len(pins())


@pytest.mark.parametrize("dependency", [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["test"]])
def test_the_pinned_version_is_one_that_the_project_allows(dependency):
    requirement = Requirement(dependency)
    assert requirement.specifier.contains(dict(pins())[canonicalize_name(requirement.name)])


@pytest.mark.parametrize(("name", "version"), pins())
def test_whatever_a_pinned_package_requires_is_pinned_to_a_version_it_accepts(name, version):
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        pytest.skip("of another platform")
    if installed.version != version:
        pytest.skip("another version is installed here")
    for requirement in map(Requirement, installed.requires or []):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            assert requirement.specifier.contains(dict(pins())[canonicalize_name(requirement.name)]), requirement


# ------------------------------------------------------------------------------------------------------------ recipes


def test_both_images_start_from_the_same_python_which_the_project_allows():
    docker = re.search(r"^FROM (\S+)", read("Dockerfile"), re.MULTILINE).group(1)
    assert re.search(r"^From: (\S+)", read("apptainer.def"), re.MULTILINE).group(1) == docker
    version = re.fullmatch(r"python:(\d+\.\d+)-slim-\w+", docker).group(1)
    assert SpecifierSet(PROJECT["requires-python"]).contains(version)


def test_both_images_install_the_same_debian_packages():
    docker, apptainer = build_commands()
    assert those(docker, "apt-get", without="tini") == those(apptainer, "apt-get", without="")  # Apptainer starts no PID 1


def test_both_images_install_the_same_python_packages_by_the_constraints():
    docker, apptainer = build_commands()
    installs = those(apptainer, "pip", without="--no-cache-dir")
    assert those(docker, "python", "pip", without="--no-cache-dir") == those(apptainer, "python", "pip", without="--no-cache-dir")
    assert ["constraints.txt" in words for words in installs] == [True, False]
    assert ["--no-deps" in words for words in installs] == [False, True]


def test_both_images_hold_the_same_part_of_the_project():
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    copied = dict(line.split() for line in section("files").splitlines() if line.strip())
    assert sorted(copied) == sorted(line[1:] for line in ignore if line.startswith("!"))
    assert all(target == f"/opt/vitssl/{source}" for source, target in copied.items())
    assert all((ROOT / source).exists() for source in copied)


def test_both_images_start_the_launcher():
    assert 'ENTRYPOINT ["tini", "--", "python", "/workspace/jobs/submit.py"]' in read("Dockerfile")
    assert 'exec python /opt/vitssl/jobs/submit.py "$@"' in section("runscript")
    assert (ROOT / "jobs" / "submit.py").exists()


def test_dependencies_are_installed_before_the_source_is_copied():
    image = read("Dockerfile").split("FROM ")[-1]
    before, after = image.split("pip install --root-user-action ignore -c constraints.txt -r requirements.txt")
    copied = ["COPY --from=requirements /workspace/requirements.txt ./", "COPY constraints.txt ./"]
    assert re.findall("^COPY .*$", before, re.MULTILINE) == copied
    assert "COPY . ." in after


# -------------------------------------------------------------------------------------------------------------- build


@pytest.fixture(scope="session")
def image() -> str:
    """The image, built by Docker: 7 GB, minutes, and the package index."""
    if os.environ.get("VITSSL_BUILD_IMAGE") != "1" or shutil.which("docker") is None:
        pytest.skip("needs Docker and VITSSL_BUILD_IMAGE=1")
    subprocess.run(["docker", "build", "--network", "host", "-t", "vitssl:test", str(ROOT)], check=True)
    return "vitssl:test"


def test_the_image_runs_a_sweep_as_another_user_and_leaves_its_report(image, tmp_path):
    runs = tmp_path / "runs"
    runs.mkdir()
    user = os.getuid() or 1234
    os.chown(runs, user, -1)
    command = ["docker", "run", "--rm", "--network", "none", "--user", f"{user}:{user}", "-v", f"{runs}:/workspace/runs", image]
    subprocess.run([*command, "sweeps/quickstart.yaml", "--smoke"], check=True)
    report = runs / "quickstart-smoke" / "report" / "report.html"
    assert report.stat().st_size > 0
    assert report.stat().st_uid == user


def test_the_image_is_what_the_structure_test_says(image):
    if shutil.which("container-structure-test") is None:
        pytest.skip("needs container-structure-test")
    config = ROOT / "tests" / "containers" / "structure.yaml"
    subprocess.run(["container-structure-test", "test", "--image", image, "--config", str(config)], check=True)
