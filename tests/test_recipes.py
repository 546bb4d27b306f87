"""What a sweep's Runs compute, held against numbers of the code that it stands for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from jobs.plan import overrides, sweep
from jobs.plan.cells import cells
from vitssl import config, model
from vitssl.config import Run
from vitssl.data.loading.batch import RawBatch
from vitssl.training import optim
from vitssl.views import EvalView

SWEEPS = Path(__file__).resolve().parents[1] / "sweeps"
SSAT_STATISTICS = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))  # of its public code, for CIFAR-10


def runs(name: str, words: str = "") -> dict[tuple[str, str], Run]:
    """{(arm, stage): the Run} of the first seed."""
    planned = cells(sweep.read(SWEEPS / f"{name}.yaml", overrides.parse([*words.split(), "axes.seed=0"]), everything=True))
    return {(cell.arm, stage.name): stage.run for cell in planned for stage in cell.stages}


def images_of_cifar_kind(count: int = 64) -> torch.Tensor:
    """Images whose channels have CIFAR-10's mean and standard deviation over pixels."""
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(count, 3, 32, 32, generator=generator) * 12**0.5 - 3**0.5
    return ((noise * std[:, None, None] + mean[:, None, None]).clamp(0, 1) * 255).round().byte()


@pytest.mark.parametrize("name", ["ssat_vs_sslft", "ssat_backbones", "ssat_decoder", "ssat_lambda", "ssat_tasks"])
def test_ssats_targets_have_the_mean_square_of_its_public_code(name):
    """Targets that are not normalised enter the loss by their square: with the pixels' deviations lambda 0.1 acts like 0.147."""
    images_BCHW = images_of_cifar_kind()
    mean, std = (np.array(values)[:, None, None] for values in SSAT_STATISTICS)
    theirs = np.mean(((images_BCHW.numpy() / 255 - mean) / std) ** 2)
    B = len(images_BCHW)
    raw = RawBatch(images_BCHW, torch.full((B, 2), 32), torch.zeros(B).long(), torch.arange(B), 0, slice(0, B), B, float(B))
    for run in runs(name, "axes.data=cifar10").values():
        ours = config.statistics(run.data, [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])
        view = EvalView(32, 1.0, *ours, torch.device("cpu"))(raw).views["main"]
        assert view.square().mean().item() == pytest.approx(theirs, rel=1e-5)


@pytest.mark.release
def test_every_other_sweep_with_ssat_on_cifar_10_says_that_its_statistics_are_the_pixels():
    """Own recipes, or another code's, whose lambda acts otherwise."""
    for path in (path for path in SWEEPS.glob("*.yaml") if "objectives.mae" in path.read_text() and "cifar10" in path.read_text()):
        spec = sweep.read(path, overrides.parse(["axes.seed=0"]), everything=True)
        planned = [stage for cell in cells(spec) for stage in cell.stages if "cifar10" in stage.run.data.shards]
        joint = [
            s.run for s in planned if s.run.objectives.mae and s.run.objectives.classify and not s.run.objectives.mae.normalize_targets
        ]
        if any(run.data.normalize == "dataset" for run in joint):
            assert any("acts" in note and "0.147" in note for note in spec.notes), path.name


@pytest.mark.parametrize("name", ["drloc_scratch", "drloc_ablation", "drloc_in100_epochs", "drloc_variants"])
def test_drlocs_cvt_decays_its_58_norm_tensors(name):
    """Of four dimensions in its code, where nothing of two dimensions or more escapes the decay."""
    words = "axes.data=cifar10" if name == "drloc_scratch" else "axes.epochs=100" if name == "drloc_in100_epochs" else ""
    chosen = {key: run for key, run in runs(name, words).items() if run.backbone.name == "cvt_13"}
    assert chosen
    for run in list(chosen.values())[:2]:
        network = model.build(run, 10)
        names = {id(p): n for n, p in network.named_parameters()}
        groups = optim.param_groups(network, network.backbone, run.optim)
        decayed = {names[id(p)] for g in groups if g["decayed"] for p in g["params"] if p.ndim == 1}
        norms = {n for n in names.values() if n.startswith("backbone.") and ".bn." not in n and "norm" in n}
        assert decayed == norms and len(decayed) == 58
        assert run.backbone.batch_norm == "per_gpu"


def test_the_teacher_of_locality_guidance_is_its_codes():
    chosen = runs("ssat_sota", "axes.data=cifar100 arms=[guidance,guidance_ssat]")
    teacher = model.build(chosen["guidance", "teacher"], 100)
    assert sum(p.numel() for p in teacher.parameters()) == 861_620
    assert chosen["guidance", "teacher"].optim.nesterov
    for arm in ("guidance", "guidance_ssat"):
        run = chosen[arm, "train"]
        network, schedule = model.build(run, 100), optim.Schedule(run, steps_per_epoch=390.0)
        assert network.objectives["classify"].head.weight.abs().max() == 0 and run.objectives.classify.label_smoothing == 0
        assert network.backbone.cls_token.std().item() == pytest.approx(0.02, rel=0.2)
        groups = optim.param_groups(network, network.backbone, run.optim)
        spared = {id(p) for g in groups if not g["decayed"] for p in g["params"]}
        assert {id(network.backbone.cls_token), id(network.backbone.pos_embed)} <= spared
        assert schedule.lr(0) == 5e-7
        # hidden under the warm-up: at its end the cosine has already fallen
        epochs = np.cos(np.pi * 20 / 300)
        assert schedule.lr(20 * 390) == pytest.approx(5e-6 + (5e-4 - 5e-6) * 0.5 * (1 + epochs))


def test_gani_et_als_pretraining_rate_is_for_256_images():
    run = runs("ssat_sota", "axes.data=cifar10 arms=[vit_sslft]")["vit_sslft", "pretrain"]
    assert config.scaled_lr(run.optim, run.optim.lr) == pytest.approx(1e-4 * 512 / 256)
