"""What a run leaves of what it saw and gave back: small pictures, made without a random draw of the training's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import MAE, SSAT
from tests.objectives.conftest import declared
from vitssl import config, model, train
from vitssl.data.loading.batch import Batch
from vitssl.data.loading.loader import EvalLoader
from vitssl.objectives.masking import TokenMask, normalize_patches, patchify, reconstruction_images
from vitssl.training import pictures
from vitssl.training.train_state import TrainState

CLASSIFY = {"objectives.classify": {}}
SIMMIM = {"objectives.mae": {"hide": "mask", "decoder": "pixel_shuffle", "loss": "l1"}}
CONVMAE = {"backbone": {"name": "swin_pico", "embed_dim": 16, "depth": None, "depths": [1, 1], "window_size": 2}}
CONVMAE["objectives.mae"] = {"decoder_dim": 16, "decoder_depth": 1, "decoder_heads": 2, "hide": "mask", "fuse": True}
NORMALIZED = {"objectives.mae": MAE["objectives.mae"] | {"normalize_targets": True}}
GAP = pictures.GAP_PX


def opened(path: Path) -> np.ndarray:
    """The images of a strip's rows, (rows, COUNT, H, W, 3), without the gaps between them, which alone are transparent."""
    pixels = np.asarray(Image.open(path))
    side = pixels.shape[1] // pictures.COUNT
    cells = pixels.reshape(pixels.shape[0] // side, side, pictures.COUNT, side, 4).transpose(0, 2, 1, 3, 4)
    alpha = cells[..., 3]
    assert (alpha[:, :, :-GAP, :-GAP] == 255).all() and not alpha[:, :, -GAP:].any() and not alpha[:, :, :, -GAP:].any()
    return cells[:, :, :-GAP, :-GAP, :3]


@pytest.fixture
def folder(make_run, digits, tmp_path):
    def make(name: str, *layers) -> Path:
        config.save(make_run({"loop": {"max_steps": 3, "eval_every": 0}}, *layers, shards=digits), tmp_path / name)
        return tmp_path / name

    return make


def test_views_are_the_first_batchs_as_the_network_saw_them(folder):
    """Augmented, and back from zero mean and unit variance: what the view is, to half a grey level."""
    run = folder("run", CLASSIFY, {"data.views.second": {"hflip": 1.0}, "objectives.simclr": {}})
    assert train.main([str(run)]) == 0
    train_state = TrainState(run, config.load(run))
    (raw,) = next(train_state.loader.batches(0, 1))
    for name, view_BCHW in train_state.views(raw).views.items():
        (shown,) = opened(run / f"views-{name}.png")
        pixels = (view_BCHW[: pictures.COUNT] * 0.5 + 0.5).clamp(0, 1) * 255  # normalize: half
        assert np.abs(shown - pixels.permute(0, 2, 3, 1).numpy()).max() <= 0.5 + 1e-3
    assert {path.name for path in run.glob("*.png")} == {"views-main.png", "views-second.png"}


def test_what_is_recorded_changes_no_weight_and_no_metric(folder, monkeypatch):
    with_pictures, without = folder("with", SSAT), folder("without", SSAT)
    assert train.main([str(with_pictures)]) == 0
    for name in ("record_views", "record_reconstructions"):
        monkeypatch.setattr(pictures, name, lambda *_: None)
    assert train.main([str(without)]) == 0
    assert list(with_pictures.glob("*.png")) and not list(without.glob("*.png"))
    one, other = (torch.load(run / "last.pt", weights_only=True)["model"] for run in (with_pictures, without))
    assert all(torch.equal(one[name], other[name]) for name in other)
    assert (with_pictures / "evals.json").read_text() == (without / "evals.json").read_text()


def test_a_picture_that_is_there_stays(folder):
    """A requeued job that begins anew does not write it again."""
    run = folder("run", CLASSIFY)
    (run / "views-main.png").write_bytes(b"of the first attempt")
    assert train.main([str(run)]) == 0
    assert (run / "views-main.png").read_bytes() == b"of the first attempt"


def test_a_large_view_is_shrunk(tmp_path):
    batch = Batch({"main": torch.zeros(9, 3, 224, 224)}, {}, torch.arange(9), 9.0)
    pictures.record_views(tmp_path, batch, ([0.5] * 3, [0.5] * 3))
    (shown,) = opened(tmp_path / "views-main.png")
    assert shown.shape == (pictures.COUNT, pictures.MOST_PX, pictures.MOST_PX, 3) and (np.abs(shown - 127.5) <= 0.5).all()


def test_reconstructions_are_of_the_same_test_images_for_every_run(folder, digits):
    """Eight, evenly over the split: what is seen, what is given back, and the image as it is evaluated."""
    one, other = folder("one", SSAT), folder("other", MAE, {"seed": 1})
    for run in (one, other):
        assert train.main([str(run)]) == 0
    a, b = (opened(run / "reconstructions-mae.png") for run in (one, other))
    assert len(a) == 3 and (a[2] == b[2]).all() and (a[1] != b[1]).any()
    train_state = TrainState(one, config.load(one))
    test = train_state.split.test
    raw = next(iter(EvalLoader(train_state.index, test, train_state.index.label, train_state.run.data, batch_size=len(test))))
    pixels = train_state.subject.view(raw).views["main"][np.linspace(0, len(test) - 1, 8).astype(int)] * 127.5 + 127.5
    assert np.abs(a[2] - pixels.clamp(0, 255).permute(0, 2, 3, 1).numpy()).max() <= 0.5 + 1e-3


@pytest.mark.parametrize(
    ("name", "layer"),
    [("mae", MAE), ("mae", SIMMIM), ("mae", CONVMAE), ("mae", NORMALIZED), *((n, declared("CURVE")[n]) for n in ("gmml", "lut", "sit"))],
)
def test_every_objective_that_reconstructs_gives_its_view_back(make_run, name, layer):
    """What is seen differs from the images, and so does what is given back; both are images of their size."""
    run = make_run(layer)
    network = model.build(run, 10)
    cfg = config.active(run.objectives)[name]
    px = config.view_px(run.data, cfg.view)
    images_BCHW = torch.rand(8, 3, px, px, generator=torch.Generator().manual_seed(0)) + 0.5
    batch = Batch({cfg.view: images_BCHW}, {}, torch.arange(8), 8.0)
    network.train()
    before = torch.random.get_rng_state()
    first, again = (pictures._reconstructed(network, network.objectives[name], batch, run) for _ in range(2))
    assert torch.equal(before, torch.random.get_rng_state()) and network.training, "the training's generators are as they were"
    seen, given, image = first
    assert seen.shape == given.shape == image.shape and torch.equal(image, images_BCHW)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True)), "its own draws are seeded"
    assert (seen != image).any() and (given != seen).any() and given.isfinite().all()
    if name in ("mae", "lut"):
        hidden = (seen == 0).all(1, keepdim=True).expand_as(seen)
        assert torch.equal(seen[~hidden], image[~hidden]) and torch.equal(given[~hidden], image[~hidden])
        assert hidden.float().mean().item() == pytest.approx(1 - cfg.num_kept(run) / cfg.num_tokens(run), abs=1e-6)


def test_normalised_predictions_get_their_patchs_mean_back(make_run):
    """A predicted patch of mean 0 and deviation 1 is one of the true patch's."""
    images_BCHW = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    mask = TokenMask(torch.zeros(2, 0, dtype=torch.int64), torch.ones(2, 16, dtype=torch.bool))
    cfg = config.active(make_run(NORMALIZED).objectives)["mae"]
    _, given = reconstruction_images(normalize_patches(patchify(images_BCHW, 2)), images_BCHW, mask, 2, cfg)
    assert torch.allclose(given, images_BCHW, atol=1e-3)


def test_objectives_without_a_picture_leave_none(folder):
    run = folder("run", CLASSIFY)
    assert train.main([str(run)]) == 0
    assert not list(run.glob("reconstructions-*"))
