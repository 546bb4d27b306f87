"""Every fenced command of README and the pages that it links to, run as written in a small world of made-up data.

Trainings are planned and predicted (`--dry-run`); the sweeps' arms are trained by tests/jobs/test_sweeps.py.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from jobs import submit
from tests.objectives.conftest import batch_of
from tests.shipped import SWEEPS
from tests.weights import releases
from vitssl import cli, config, model
from vitssl.checkpoints import tensor_files
from vitssl.config.methods import METHODS
from vitssl.data.index import load_index

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "sweeps" / "README.md", ROOT / "jobs" / "README.md", *sorted((ROOT / "vitssl" / "docs").glob("*.md"))]
ELSEWHERE = {
    r"python3 -m venv .*quickstart.yaml|\.venv/bin/(pip|pytest|ruff|mypy) .*": "what .ci/run runs",
    r"(mkdir -p runs && )?(docker|apptainer) .*": "a container engine, which tests/containers want",
    r".*vitssl shards build \"?'?(torchvision|list):.*": "a download; tests/data/test_paper_sets.py builds it from made-up files",
}


LONG = re.compile(r"sweeps/methods|name=with_gmml|mysite.yaml")  # many networks to count, for the README's line


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands() -> Iterator[pytest.param]:
    for page in PAGES:
        for block in blocks(page, "sh"):
            for line in re.sub(r"\\\n", "", block).splitlines():
                command = re.sub(r"\s+#.*", "", line).strip()
                why = next((why for pattern, why in ELSEWHERE.items() if re.fullmatch(pattern, command)), None)
                brief = page == ROOT / "README.md" and not LONG.search(command)
                marks = [pytest.mark.skip(reason=why)] if why else [] if brief else [pytest.mark.release]
                yield pytest.param(command, id=f"{page.relative_to(ROOT)}: {command[:70]}", marks=marks)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_nothing_is_left_to_be_filled_in(page):
    assert not re.findall(r"^[A-Z]+_[A-Z_]+$|TODO|FIXME|TBD", page.read_text(), re.MULTILINE)


def write_images(folder: Path, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(len(str(folder)))
    for i in range(count):
        Image.fromarray(rng.integers(0, 256, (24, 20, 3), dtype=np.uint8)).save(folder / f"{i}.jpg")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone's folder with the data, runs and files that the pages speak of, and a path on which the programs are found."""
    place = tmp_path_factory.mktemp("world")
    for name in ("jobs", "sweeps"):
        (place / name).symlink_to(ROOT / name)
    for name in ("cat", "dog"):
        write_images(place / "photos" / name, 44)
    write_images(place / "new_photos", 3)
    write_images(place, 1)
    (place / "0.jpg").rename(place / "seven.png")
    (site,) = blocks(ROOT / "jobs" / "README.md", "yaml")
    (place / "mysite.yaml").write_text(site)
    torch.save(releases.mae_encoder().content, place / "mae_pretrain_vit_base.pth")
    programs = place / "bin"
    programs.mkdir()
    python = f'exec {sys.executable} "$@"'
    dry = 'set -- "$@" --dry-run --executor local'
    planned = f'case "$*" in jobs/submit.py*--dry-run*) ;; jobs/submit.py*) {dry};; esac\n{python}'
    no_cluster = "exit 1"  # one that answers, as that of tests/slurm, is not mysite's and refuses what it has no nodes for
    for name, script in {"python": planned, "vitssl": f'exec {sys.executable} -m vitssl "$@"', "scontrol": no_cluster}.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    _train(place)
    return place


def _train(place: Path) -> None:
    """A quickstart of one run and two steps, under the names of the sweeps that the pages look at; and a run with masked tokens."""
    words = ["arms=[ssat]", "axes.seed=0", "loop.max_steps=2", "--executor", "local", "--runs", str(place / "runs")]
    shards = place / "shards" / "digits"
    assert submit.main([str(ROOT / "sweeps" / "quickstart.yaml"), *words, f"data.shards={shards}", "data.source=digits"]) == 0
    (place / "shards" / "flowers102").symlink_to("digits")
    shutil.copytree(place / "runs" / "quickstart", place / "runs" / "ssat_vs_sslft")
    record = place / "runs" / "ssat_vs_sslft" / "sweep.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"file": str(ROOT / "sweeps" / "ssat_vs_sslft.yaml")}))
    (run,) = (place / "runs" / "quickstart").glob("ssat-*")
    (place / "runs" / "own_images").mkdir()
    for seed in (0, 1):
        (place / "runs" / "own_images" / f"ssat-equal_epochs-vit_pico_64px-s{seed}-0123456789ab").symlink_to(run)
    tiny = {"backbone": {"name": "vit_pico", "masked_tokens": {"count": 2, "blocks": 1}, "patch_size": 4}, "data.image_size": 16}
    masked = config.merge(config.Run, tiny, {"data.shards": str(shards), "data.cache_dir": str(place / "cache"), "objectives.classify": {}})
    folder, index = place / "runs" / "mt_stl10" / "mt_sit-pretrain-s0", load_index(shards)
    config.save(masked, folder)
    content = {"model": model.build(masked, 10).state_dict(), "ema": None}
    tensor_files.save(folder / "last.pt", content | {"data": {"classes": index.classes, "mean": index.mean, "std": index.std}})
    (folder / "done.json").write_text('{"step": 0, "epochs": 0.0}')


@pytest.mark.parametrize("command", list(commands()))
def test_a_command_of_the_docs_runs_as_written(command: str, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "own_images" in command and not (photos := world / "shards" / "photos").exists():  # by a line of the README, where that was run
        assert cli.main(["shards", "build", f"folder:{world / 'photos'}?test=0.2&seed=0", str(photos)]) == 0
    monkeypatch.chdir(world)
    environment = os.environ | {"PATH": f"{world / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    alone = command.startswith("vitssl ") and not re.search(r"[;|>&]", re.sub(r"'[^']*'", "", command))
    asked = f"printf '%s\\0' {command}" if alone else command  # its words as the shell makes them, of which this process is the program
    result = subprocess.run(["bash", "-euo", "pipefail", "-c", asked], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0 and "Traceback" not in result.stderr, f"{command}\n{result.stdout[-2000:]}\n{result.stderr[-2000:]}"
    if alone:
        assert cli.main(result.stdout.split("\0")[1:-1]) == 0, command


@pytest.mark.release
def test_the_python_of_the_docs_runs(world: Path) -> None:
    for page in PAGES:
        for block in blocks(page, "python"):
            subprocess.run([sys.executable, "-c", block], cwd=world, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})


def test_the_example_of_an_objective_learns(make_run) -> None:
    """The weights of its head and the backbone's get a gradient, and a head that knows nothing guesses among four."""
    (code,) = blocks(ROOT / "vitssl" / "docs" / "contributing.md", "python")
    example: dict[str, Any] = {}
    exec(code, example)
    run = make_run({"objectives.classify": {}})
    network = model.build(run, 10).train()
    objective = example["Rotation"](example["RotationConfig"](), run, network.backbone, 10)
    torch.nn.init.zeros_(objective.head.weight)
    batch = batch_of(torch.randn(6, 3, 8, 8))
    loss = objective(network.step(batch), batch, torch.zeros(()))["rotation"]
    assert loss.item() == pytest.approx(math.log(4))
    torch.nn.init.normal_(objective.head.weight)
    objective(network.step(batch), batch, torch.zeros(()))["rotation"].backward()
    assert objective.head.weight.grad.any() and network.backbone.blocks[0].attn.qkv.weight.grad.any()


@pytest.mark.release
@pytest.mark.parametrize(("page", "name"), [("README.md", "mine"), ("sweeps/README.md", "first")])
def test_the_complete_example_of_a_sweep_is_one(page: str, name: str, world: Path) -> None:
    example = next(block for block in blocks(ROOT / page, "yaml") if f"name: {name}" in block)
    assert len([line for line in example.splitlines() if line.strip()]) <= 18
    (world / f"{name}.yaml").write_text(example.replace("shards/photos", str(world / "shards" / "digits")))
    assert submit.main([str(world / f"{name}.yaml"), "--executor", "local", "--dry-run", "--runs", str(world / "runs")]) == 0


def test_the_readme_is_short_and_links_to_what_is_there() -> None:
    lines = [line for line in PAGES[0].read_text().splitlines() if not line.startswith("|")]
    assert len(lines) <= 127, "a new method needs a row of its table, and no more"
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_file_that_the_page_on_the_architecture_names_is_there() -> None:
    text = (ROOT / "vitssl" / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`((?:vitssl|jobs|sweeps|tests)/[^`]*)`", text))
    assert len(named) > 20 and not [name for name in sorted(named) if not (ROOT / name).exists()]


def test_the_readme_says_what_to_type_for_every_method() -> None:
    """By the name of an arm; where it is none, that it is made by fields; and which these are the sweeps' page says."""
    fields = {m.title: f"`{m.words}`{f' ({m.note})' if m.note else ''}" for m in METHODS}
    short = [f"| {m.title}: {m.about} | `{m.arm}` | [{m.sweep}](sweeps/{m.sweep}.yaml) |" for m in METHODS if m.arm]
    others = [m.title for m in METHODS if not m.arm]
    paragraph = next(part for part in PAGES[0].read_text().split("\n\n") if "(sweeps/README.md#methods-as-fields) a method" in part)
    assert others and all(title.lower() in " ".join(paragraph.lower().split()) for title in others)
    assert [row for row in table_rows(PAGES[0]) if row.endswith(".yaml) |")] == short
    whole = [f"| {m.title} | {fields[m.title]} |" for m in METHODS]
    assert [row for row in table_rows(ROOT / "sweeps" / "README.md") if row in whole] == whole


def table_rows(page: Path) -> list[str]:
    return [line for line in page.read_text().splitlines() if re.match(r"\| [A-Z]", line)]


def test_the_named_sizes_are_those_of_the_page() -> None:
    """Of the families that have fields for them."""
    rows = []
    for family in config.FAMILIES.values():
        for name, size in family.sizes.items() if "num_heads" in family.reads else ():
            patch = str(size.patch_size) if "patch_size" in family.reads else ""
            cells = (f"`{name}`", str(size.embed_dim), ", ".join(map(str, size.depths)), str(size.num_heads), patch)
            rows.append("".join(f"| {cell} ".replace("|  ", "| ") for cell in cells) + "|")
    assert "\n".join(rows) in (ROOT / "sweeps" / "README.md").read_text()


def test_the_arm_of_a_method_trains_its_objectives() -> None:
    arms = yaml.safe_load((ROOT / "sweeps" / "methods.yaml").read_text())["arms"]
    for m in (m for m in METHODS if m.arm and "stages" not in m.fields):
        wanted = m.fields.get("objectives", {}).keys() | {name.split(".")[1] for name in m.fields if name.startswith("objectives.")}
        stages = arms[m.arm]["stages"].values()
        trained = {name for stage in stages for name in stage.get("objectives", {})}
        trained |= {name.split(".")[1] for stage in stages for name in stage if name.startswith("objectives.")}
        assert wanted <= trained, m.title


def test_yaml_of_the_docs_is_yaml() -> None:
    for page in PAGES:
        for block in blocks(page, "yaml"):
            assert yaml.safe_load(block)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git repository here")
def test_every_sweep_of_the_repository_is_listed():
    """What tests run is what the page lists."""
    listed = subprocess.run(["git", "ls-files", "sweeps"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    known = sorted(name for name in listed if name.endswith(".yaml"))
    assert [f"sweeps/{path.name}" for path in SWEEPS] == known, "git add it, and list it in sweeps/README.md"
