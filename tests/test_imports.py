"""Who may import whom (the architecture's layers), from the code's own syntax trees."""

from __future__ import annotations

import ast
import functools
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PARTS = {
    "vitssl.backbones": {"base", "layers", "masked_tokens", "norms", "sl_vit"},
    "vitssl.objectives": {"base", "corruption", "decoders", "heads", "inpainting", "losses", "masking", "step", "teacher"},
}
FILED = {"atomic", "files", "reader", "records", "run_folder", "run_names", "run_state", "sweep_folder"}
CORE = FILED | {"config", "dist", "backbones", "data", "objectives", "pool"}
LOG = {"training.log"}
COUNTED = {"costs.cost", "costs.macs"}
ENERGY = {"costs.emissions", "costs.intensity"}  # without torch
MESSAGES = {"arguments", "terminal", "words"}
MIDDLE = COUNTED | {"model", "checkpoints", "training.optim"}
# module or package -> the modules and packages of vitssl that it may import, besides its own parts
ALLOWED = {
    "atomic": set(),
    "config": {"atomic", "reader", "words"},
    "reader": set(),
    "records": {"config", "words"},
    "files": {"atomic", "config", "reader", "records"},
    "run_names": {"config", "words"},
    "run_folder": {"config", "files", "run_names"},
    "run_state": {"config", "files", "run_folder"},
    "sweep_folder": {"config", "files", "run_folder"},
    "dist": {"config"},
    "loopback": set(),
    "pool": {"config", "terminal"},
    "backbones": {"config", "dist"},
    "data": {"atomic", "config", "files", "pool", "reader", "records", "terminal", "variables", "words"},
    "views": {"config", "data"},
    "objectives": {"config", "dist", "backbones", "data"},
    "model": CORE,
    "costs.macs": set(),
    "costs.cost": {"backbones", "config", "data", "dist", "model", "pool"} | COUNTED,
    "costs.intensity": {"config", "reader"},
    "costs.workload": set(),
    "costs.emissions": {"config", "costs.intensity", "costs.workload", "files"},
    "checkpoints": CORE | {"paths"},
    "evaluators": CORE | {"checkpoints", "model", "views", "words"},
    "training.stopping": {"variables"},
    "training.memory": set(),
    "training.loggers": {"config", "files", "run_folder"},
    "training.log": {"atomic", "config", "dist", "files", "run_folder", "terminal", "training.loggers", "variables", "words"},
    "training.optim": {"backbones", "config"},
    "training.passes": {"config", "data", "dist"},
    "training.pictures": CORE | {"evaluators", "model", "views"},
    "training.train_state": CORE | MIDDLE | {"evaluators", "training.memory", "training.passes", "training.pictures", "views"},
    "training.evaluate": CORE | LOG | {"checkpoints", "evaluators", "trained", "training.stopping", "training.train_state"},
    "training.lines": LOG | {"dist", "training.evaluate", "training.train_state", "words"},
    "training.attempt": {"config", "costs.emissions", "dist", "files", "run_folder", "variables", "words"},
    "train": CORE | MIDDLE | {"training", "words"},
    "trained": CORE | MIDDLE | {"evaluators", "paths", "views", "words"},
    "analysis": CORE | {"paths", "report", "trained"},
    "weights": CORE | MIDDLE | {"report", "trained", "words"},
    "bench": CORE | MIDDLE | {"train", "training.memory", "training.passes", "training.train_state", "views"},
    "report": {"atomic", "config", "files", "records", "run_folder", "run_state", "sweep_folder", "terminal", "version", "words"} | ENERGY,
    "words": set(),
    "terminal": {"words"},
    "arguments": {"config", "files", "words"},
    "variables": set(),
    "version": {"files", "variables"},
    "paths": {"config", "data", "files", "run_folder", "run_names", "sweep_folder", "words"},
    "cli.fields": {"config", "words"},
    "cli.features": CORE | {"evaluators", "paths", "trained"},
    "cli.images": {"config", "data"},
    "cli.predict": {"atomic", "config", "paths", "terminal", "trained", "words"},
    "cli.prune": {"checkpoints", "config", "files", "run_folder", "sweep_folder", "version", "words"},
    "cli": None,  # anything, inside the function that needs it
    "training": set(),
    "costs": set(),
    "__main__": {"cli"},
    "__init__": {"trained"},
    # without torch: the energy mix, what a data set holds, and which images a Run trains on
    "jobs": {*MESSAGES, *FILED, *ENERGY, "config", "data", "report", "training.stopping", "variables", "version"},
}
FILES = sorted([*(ROOT / "vitssl").rglob("*.py"), *(ROOT / "jobs").rglob("*.py")])


def imports(path: Path) -> set[str]:
    """Full dotted names of everything imported from the project or from torch."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] in ("vitssl", "torch", "jobs")}


def layer(path: Path) -> str:
    """Its own row, or its package's."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return "jobs" if parts[0] == "jobs" else next((name for name in (".".join(parts[1:3]), parts[1]) if name in ALLOWED), parts[1])


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_follow_the_layers(path):
    own = layer(path)
    assert own in ALLOWED, f"{path.name} has no row in the table of layers"
    allowed = ALLOWED[own]
    if allowed is None:
        return
    for name in imports(path):
        head, *rest = name.split(".")
        if head == "torch":
            assert own not in {"config", "jobs", "report", *FILED}, f"{own} must not import torch"
        if head == "vitssl" and rest and rest[0] != "__version__":
            assert {rest[0], ".".join(rest[:2])} & (allowed | {own}), f"{own} imports {name}"


@pytest.mark.parametrize("package", sorted(PARTS))
def test_no_backbone_or_objective_knows_another(package):
    folder = ROOT / package.replace(".", "/")
    concrete = {p.stem for p in folder.glob("*.py")} - PARTS[package] - {"__init__"}
    for path in folder.glob("*.py"):
        for name in imports(path):
            if name.startswith(f"{package}."):
                assert name.split(".")[2] not in concrete - {path.stem}, f"{path.name} imports {name}"


def test_objectives_know_no_concrete_backbone():
    for path in (ROOT / "vitssl" / "objectives").glob("*.py"):
        named = {name.split(".")[2] for name in imports(path) if name.startswith("vitssl.backbones.")}
        assert named <= PARTS["vitssl.backbones"], f"{path.name} imports {named}"


# package -> what none of its modules reaches, by whatever way
APART = {
    "vitssl.data.pixels": ["vitssl.data.index", "vitssl.data.sources", "vitssl.data.building", "vitssl.data.loading"],
    "vitssl.data.sources": ["vitssl.data.index", "vitssl.data.building", "vitssl.data.loading"],
    "vitssl.data.loading": ["vitssl.data.building", "vitssl.data.sources.opening"],
    "vitssl.report.results": [f"vitssl.report.{name}" for name in ("tables", "figures", "findings", "pages")],
    "vitssl.report.tables": [f"vitssl.report.{name}" for name in ("figures", "findings", "pages")],
    "vitssl.report.figures": [f"vitssl.report.{name}" for name in ("tables", "findings", "pages")],
    "vitssl.report.findings": [f"vitssl.report.{name}" for name in ("tables", "figures", "pages")],
    "jobs.plan": ["jobs.folders", "jobs.inputs", "jobs.slurm", "jobs.local", "jobs.display"],
    "jobs.inputs": ["jobs.local", "jobs.display"],
    "jobs.slurm": ["jobs.inputs", "jobs.local", "jobs.display"],
}


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def imported() -> dict[str, set[str]]:
    """{module: modules of the project that it imports}."""
    known = {module(path) for path in FILES} - {"vitssl"}  # which imports `trained` for those only who ask it for `load`
    named = {module(path): imports(path) for path in FILES}
    return {name: {at for one in names for at in (one, one.rpartition(".")[0]) if at in known} for name, names in named.items()}


@pytest.mark.parametrize("package", APART)
def test_packages_keep_apart(package):
    reached, way = {name for name in imported() if name.startswith(f"{package}.")}, {}
    assert len(reached) > 2
    new = set(reached)
    while new:
        way |= {other: name for name in new for other in imported()[name] - reached}
        new = set().union(*(imported()[name] for name in new)) - reached
        reached |= new
    for other in APART[package]:
        wrong = [name for name in reached if name == other or name.startswith(f"{other}.")]
        assert not wrong, f"{package} reaches {wrong[0]} by {way.get(wrong[0])}"


def test_views_know_of_the_data_only_its_batches():
    for path in (ROOT / "vitssl" / "views").glob("*.py"):
        named = {".".join(name.split(".")[:4]) for name in imports(path) if name.startswith("vitssl.data")}
        assert named <= {"vitssl.data.loading.batch", "vitssl.data.pixels.layout"}, f"{path.name} imports {named}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_module_is_importable(path):
    """Some are imported only where they are needed; all that they ask of other packages is there."""
    importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))


def test_the_launcher_and_the_report_run_without_torch():
    launcher = "jobs.submit, jobs.slurm.launcher, jobs.plan.predict, jobs.status, jobs.cancel, jobs.retry"
    code = f"import sys, {launcher}, vitssl.paths, vitssl.report, vitssl.cli.prune; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
