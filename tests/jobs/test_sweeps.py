"""Every arm of the project's sweeps (of some with VITSSL_LONG=1 only) takes two real training steps and is evaluated and reported.

Many arms of different sweeps are the same tiny Run: it is trained once, and the other sweeps find it done.
"""

from __future__ import annotations

import csv
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from jobs import folders
from jobs.inputs import prepare
from jobs.plan import overrides, smoke, sweep
from jobs.plan import shards as plan_shards
from jobs.plan.cells import cells
from jobs.plan.graph import Job, link
from jobs.plan.launch import Launch
from tests.conftest import but_for_a_release
from tests.shipped import SWEEPS, skip_long
from vitssl import report, train
from vitssl.config import Run, Site, identity
from vitssl.costs import cost
from vitssl.data import shards
from vitssl.report.figures import style

ROOT = Path(__file__).resolve().parents[2]


# a smoke run takes the first value of every axis; these are of another kind
OTHERS = [
    ("cifar10_scarce_drloc", "axes.backbone=vit"),
    ("lut_ablation", "axes.protocol=probe"),
    ("mt_stl10", "axes.protocol=linear arms=[sit,mt_sit]"),
    ("ssat_lambda", "axes.lambda=1.0"),
    ("ssat_medical", "axes.backbone=vit_small"),
]
ALL = [*((path.stem, "") for path in SWEEPS), *OTHERS]
FEW = [("quickstart", "")]  # of a chain and of joint training
# of which every figure is drawn: several data sets, an axis of numbers, lengths, a teacher, other networks
DRAWN = {"quickstart", "ssat_vs_sslft", "ssat_medical", "ssat_lambda", "ssat_epochs", "mt_imagenet", "networks"}


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the finished runs of all sweeps and of both workers are, by identity."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if base.name.startswith("popen-") else base) / "trained"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def few_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards as those of digits with 50 of the images for testing, which take most of a smoke run's time."""
    images, labels = load_digits(return_X_y=True)
    pixels = (images / 16 * 255).astype(np.uint8).reshape(-1, 8, 8)
    folder = tmp_path_factory.mktemp("few")
    parts = {"train": slice(0, 1347), "test": slice(1347, 1397)}
    np.savez(
        folder / "digits.npz",
        **{f"{n}_images": pixels[p] for n, p in parts.items()},
        **{f"{n}_labels": labels[p] for n, p in parts.items()},
    )
    shards.build(f"npz:{folder / 'digits.npz'}", folder / "digits", workers=1, progress=False)
    return folder / "digits"


def train_once(job: Job, launch: Launch, trained: Path) -> None:
    """Train the job's Run, or take what an equal one of another sweep left, which ends at once."""
    equal = trained / job.identity
    if equal.exists():
        shutil.copytree(equal, job.folder)
    folders.write_run(job, launch)
    assert train.main([str(job.folder)]) == 0, job.name
    with suppress(FileExistsError):
        equal.symlink_to(job.folder)


@pytest.mark.parametrize(("name", "words"), but_for_a_release(ALL, FEW))
def test_every_arm_trains_evaluates_and_is_reported(
    name: str, words: str, tmp_path: Path, few_digits: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_long(f"{name} {words}".strip())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cost, "WARM_UP", 0)
    monkeypatch.setattr(cost, "ENOUGH_S", 0.0)  # measuring the speed of inference takes longer than the training
    (tmp_path / ".smoke").mkdir()
    (tmp_path / ".smoke" / "digits").symlink_to(few_digits)  # built and decoded once for all sweeps
    spec = smoke.narrow(sweep.read(ROOT / "sweeps" / f"{name}.yaml", overrides.parse(words.split()), everything=True))
    planned = cells(spec)
    for cell in planned:
        for stage in cell.stages:
            stage.run = smoke.shrink(stage.run, spec, tmp_path, stage.where, on_cpus=True)
            stage.run.loop.threads, stage.run.loop.device, stage.run.data.cache_dir = 1, "cpu", str(few_digits.with_name("cache"))
    prepare.build(prepare.shards(stage for cell in planned for stage in cell.stages), Site())
    graph = link(spec, planned, tmp_path / spec.name, plan_shards.fingerprint)
    launch = Launch(tmp_path / spec.name, "local", Site(), ROOT, commit=(None, True))
    launch.sweep.mkdir()
    folders.write_sweep(spec, graph, launch)
    for job in graph.jobs:
        train_once(job, launch, trained)
    monkeypatch.setattr(style, "FILES", style.FILES if (name, words) in FEW else {})
    if name not in DRAWN:
        monkeypatch.setattr(style, "save", lambda figure, path: f'<svg id="{path.name}" width="300pt"></svg>')  # most of a report's time
    report.write(launch.sweep)
    with (launch.sweep / "report" / "table.csv").open() as file:
        rows = list(csv.reader(file))
    shown = {cell for row in rows for cell in row}
    assert {cell.arm for cell in planned} <= shown


@pytest.mark.parametrize(
    ("whole", "optional"),
    [(False, True), (False, False), pytest.param(True, True, marks=pytest.mark.release)],
    ids=["first_values", "without_optional_arms", "all_values"],
)
@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_arm_expands_at_the_values_of_the_axes(path: Path, whole: bool, optional: bool) -> None:
    spec = sweep.read(path, everything=optional)
    if not whole:
        spec.axes = {name: dict([next(iter(values.items()))]) for name, values in spec.axes.items()}
    assert {cell.arm for cell in cells(spec)} == {name for name, arm in spec.arms.items() if arm.stages}


def test_table_3_is_six_rows_and_four_schedules_share_two_pretrainings(tmp_path: Path) -> None:
    spec = sweep.read(ROOT / "sweeps" / "ssat_vs_sslft.yaml")
    assert list(spec.arms) == ["scratch", "sslft_50_50", "sslft_50_100", "sslft_100_50", "sslft_100_100", "ssat"]
    graph = link(spec, cells(spec), tmp_path, lambda run: run.data.shards)
    assert len(graph.cells) == 6 * 2 * 3
    stages = [job.stage for job in graph.jobs]
    assert (stages.count("train"), stages.count("pretrain"), stages.count("finetune")) == (12, 12, 24)


def test_the_papers_cost_stands_beside_imagenet_only() -> None:
    path = ROOT / "sweeps" / "ssat_vs_sslft.yaml"
    assert folders._published_cost(sweep.read(path).arms["ssat"], sweep.read(path)) is None
    spec = sweep.read(path, overrides.parse(["axes.data=imagenet"]))
    assert folders._published_cost(spec.arms["ssat"], spec) == {"gmacs": "1.67", "gpu_hours": 78, "kg_co2e": 7.55, "column": "imagenet"}


def test_the_quickstart_has_few_labels_and_many_images() -> None:
    planned = cells(sweep.read(ROOT / "sweeps" / "quickstart.yaml"))
    images = {(cell.arm, stage.name): plan_shards.num_images(stage.run) for cell in planned for stage in cell.stages}
    assert images == {("scratch", "train"): 30, ("sslft", "pretrain"): 600, ("sslft", "finetune"): 30, ("ssat", "train"): 600}


def _chain(name: str, arm: str, **axes: object) -> list[Run]:
    """The stages of one cell, at seed 0."""
    chosen = {"arms": arm, "axes.seed": 0, **{f"axes.{axis}": label for axis, label in axes.items()}}
    spec = sweep.read(ROOT / "sweeps" / f"{name}.yaml", overrides.parse([f"{key}={value}" for key, value in chosen.items()]))
    (cell,) = cells(spec)
    return [stage.run for stage in cell.stages]


def _run(name: str, arm: str, **axes: object) -> Run:
    """The last stage of one cell, at seed 0."""
    return _chain(name, arm, **axes)[-1]


CIFAR10_SSAT = [
    ("ssat_backbones", "vit_tiny_ssat", {"data": "cifar10"}),
    ("ssat_tasks", "mae", {"data": "cifar10"}),
    ("ssat_decoder", "ssat", {"data": "cifar10"}),
    ("ssat_lambda", "ssat", {"data": "cifar10", "lambda": 0.1}),
]
CIFAR100_SCRATCH = [
    ("ssat_backbones", "vit_tiny", {"data": "cifar100"}),
    ("ssat_tasks", "scratch", {"data": "cifar100"}),
    ("ssat_lambda", "ssat", {"data": "cifar100", "lambda": 1.0}),
    ("ssat_epochs", "scratch", {"loop.epochs": 100}),
    ("ssat_perspective", "scratch", {"data": "cifar100", "backbone": "vit_tiny"}),
]
IMAGENET_SSAT = [
    ("ssat_imagenet", "ssat", {"data": "imagenet", "backbone": "vit_tiny"}),
    ("ssat_subsets", "ssat", {"fraction": 1.0}),
    ("ssat_perspective", "ssat", {"data": "imagenet", "backbone": "vit_tiny"}),
]


@pytest.mark.parametrize(
    ("arm", "data", "others"),
    [("ssat", "cifar10", CIFAR10_SSAT), ("scratch", "cifar100", CIFAR100_SCRATCH), ("ssat", "imagenet", IMAGENET_SSAT)],
    ids=["cifar10_ssat", "cifar100_scratch", "imagenet_ssat"],
)
def test_a_number_that_several_tables_of_the_ssat_paper_print_is_one_run(arm: str, data: str, others: list) -> None:
    table_3 = identity(_run("ssat_vs_sslft", arm, data=data))
    assert {other[0]: identity(_run(other[0], other[1], **other[2])) for other in others} == {other[0]: table_3 for other in others}


def test_the_rows_of_table_4_differ_in_the_auxiliary_task_alone() -> None:
    rows = {}
    for arm in ("simclr", "dino", "mae"):
        run = _run("ssat_tasks", arm, data="cifar10")
        assert getattr(run.objectives, arm).weight + run.objectives.classify.weight == pytest.approx(1)
        setattr(run.objectives, arm, None)
        run.data.views.second = run.data.views.local = None
        rows[arm] = identity(run)
    assert len(set(rows.values())) == 1


FLOWERS = {"data": "flowers102"}
FROM_FLOWERS = FLOWERS | {"pretrain": "flowers102"}
GMML_TABLES = {  # arm of Table 1 -> where other tables and figures have it
    "random": [("gmml_transfer", "random", FLOWERS | {"backbone": "vit_tiny"}), ("gmml_imagenet", "random", FLOWERS)],
    "gmml": [("gmml_longer", "gmml", FLOWERS | {"pretrain.loop.epochs": 800})],
    "gmml_3000": [
        ("gmml_transfer", "flowers102", FLOWERS | {"backbone": "vit_tiny"}),
        ("gmml_imagenet", "gmml", FLOWERS),
        ("gmml_longer", "gmml", FLOWERS | {"pretrain.loop.epochs": 3000}),
    ],
    "gmml_small": [("gmml_transfer", "flowers102", FLOWERS | {"backbone": "vit_small"}), ("gmml_vs_mae", "gmml", FROM_FLOWERS)],
    "mae_small": [("gmml_vs_mae", "mae", FROM_FLOWERS)],
}


@pytest.mark.parametrize("arm", GMML_TABLES)
def test_what_several_tables_of_the_gmml_paper_print_is_one_chain_of_runs(arm: str) -> None:
    table_1 = [identity(run) for run in _chain("gmml_small", arm, **FLOWERS)]
    for name, other, axes in GMML_TABLES[arm]:
        assert [identity(run) for run in _chain(name, other, **axes)] == table_1, name


def test_a_pretraining_of_gmmls_table_2_feeds_all_targets(tmp_path: Path) -> None:
    spec = sweep.read(ROOT / "sweeps" / "gmml_transfer.yaml", overrides.parse(["axes.seed=0"]))
    jobs = link(spec, cells(spec), tmp_path, lambda run: run.data.shards).jobs
    pretrainings = {job.identity: job for job in jobs if job.stage == "pretrain"}
    assert [job.arm for job in pretrainings.values()] == ["mnist", "flowers102", "pets", "aircraft"]
    targets = Counter(job.parents[0].identity for job in jobs if job.parents)
    assert targets == dict.fromkeys(pretrainings, len(spec.axes["data"]))


def test_pretrained_on_imagenet_both_rows_of_gmmls_table_4_are_one_run_there() -> None:
    on_imagenet = {arm: [identity(run) for run in _chain("gmml_imagenet", arm, data="imagenet")] for arm in ("gmml", "gmml_imagenet")}
    assert on_imagenet["gmml"] == on_imagenet["gmml_imagenet"]
    assert _chain("gmml_imagenet", "deit", data="imagenet")[-1].init_from is None


LUT_PRETRAININGS = {  # arm of Table 1, at 400 epochs -> where the other tables have it
    "mae": [("lut_ablation", "mae"), ("lut_weight", "mae")],
    "lut": [("lut_ablation", "lut"), ("lut_weight", "weight_25")],
}


@pytest.mark.parametrize("arm", LUT_PRETRAININGS)
def test_what_several_tables_of_the_lut_paper_print_is_one_chain_of_runs(arm: str) -> None:
    table_1 = _chain("lut_imagenet", arm, backbone="vit_base")
    table_1[0].loop.epochs = 400
    for name, other in LUT_PRETRAININGS[arm]:
        assert [identity(run) for run in _chain(name, other, protocol="finetune")] == [identity(run) for run in table_1], name


def test_a_pretraining_of_luts_table_1_feeds_the_whole_grid_of_tables_2_and_3(tmp_path: Path) -> None:
    spec = sweep.read(ROOT / "sweeps" / "lut_transfer.yaml", overrides.parse(["axes.seed=0"]))
    jobs = link(spec, cells(spec), tmp_path, lambda run: run.data.shards).jobs
    pretrainings = {job.arm: job for job in jobs if job.stage == "pretrain"}
    for arm, job in pretrainings.items():
        table_1 = _chain("lut_imagenet", arm, backbone="vit_base")[0]
        table_1.data.sha256 = job.run.data.sha256
        assert identity(table_1) == job.identity
    targets = Counter(job.parents[0].arm for job in jobs if job.parents)
    assert targets == dict.fromkeys(["mae", "lut"], 3 * 3 * len(spec.axes["data"]))


@pytest.mark.parametrize(("name", "arms"), [("mt_transfer", {}), ("mt_granularity", {"mt_dino_4": "mt_dino", "mt_dino_28": None})])
def test_a_pretraining_of_the_masked_tokens_papers_table_5_feeds_its_other_tables(name: str, arms: dict) -> None:
    axes = {"masked_tokens": 28} if name == "mt_granularity" else {}
    for arm in ("dino", "mt_dino_4", "mt_dino_28"):
        if (other := arms.get(arm, arm)) is None:
            continue
        assert identity(_chain(name, other, data="covid_ct", **axes)[0]) == identity(_chain("mt_imagenet", arm, labels=0.1)[0])


def test_figure_3_at_4_masked_tokens_is_tables_6_to_8() -> None:
    for data in ("cub", "soybean_local", "cotton80", "covid_ct"):
        table = _chain("mt_transfer", "mt_dino_4", data=data)
        for arm in ("mt_dino", "mt_dino_pretrained"):
            figure = _chain("mt_granularity", arm, data=data, masked_tokens=4)
            figure[1].init_from = table[1].init_from  # the first stage, whatever it is called
            assert [identity(run) for run in figure] == [identity(run) for run in table]


def test_a_probe_shares_its_pretraining_with_the_fine_tuning(tmp_path: Path) -> None:
    spec = sweep.read(ROOT / "sweeps" / "lut_ablation.yaml", overrides.parse(["axes.seed=0"]))
    jobs = link(spec, cells(spec), tmp_path, lambda run: run.data.shards).jobs
    assert Counter(job.stage for job in jobs) == {"pretrain": 12, "downstream": 24}
    probes = [job.run for job in jobs if job.axes.get("protocol") == "probe"]
    assert len(probes) == 12 and all(run.backbone.frozen and run.optim.name == "lars" for run in probes)


def test_a_teacher_of_table_7_guides_both_rows(tmp_path: Path) -> None:
    spec = sweep.read(ROOT / "sweeps" / "ssat_sota.yaml", overrides.parse(["arms=[guidance,guidance_ssat]"]))
    jobs = link(spec, cells(spec), tmp_path, lambda run: run.data.shards).jobs
    assert [job.stage for job in jobs].count("teacher") == 2 * 3
    assert all(job.run.objectives.locality.teacher == str(job.parents[0].folder) for job in jobs if job.stage == "train")


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_published_number_has_a_cell(path: Path) -> None:
    spec = sweep.read(path, everything=True)
    labels = {str(label) for values in spec.axes.values() for label in values}
    for name, arm in spec.arms.items():
        left = [arm.published]
        while left:
            value = left.pop()
            if isinstance(value, dict):
                assert {str(key) for key in value} <= labels, name
                left += value.values()
