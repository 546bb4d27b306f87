"""Views equal torchvision's and Pillow's, and are functions of (seed, view, step) and the image's row alone."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torchvision.transforms import functional as tv

from vitssl.config import Blur, ColorOp, ColorStep, ConfigError, Gray, Jitter, Solarize, View
from vitssl.data.loading.batch import RawBatch
from vitssl.data.pixels.layout import shape_of, unbind_images
from vitssl.views import EvalView, TrainViews
from vitssl.views.augment import parse_policy
from vitssl.views.color_steps import color_ops
from vitssl.views.crop import crop_windows, random_resized
from vitssl.views.erase import erase_at_once, erase_one_by_one
from vitssl.views.image_op import apply
from vitssl.views.pipeline import CHUNK_FLOATS, _chunks
from vitssl.views.random import StepRandom

MEAN, STD = [0.45, 0.5, 0.4], [0.2, 0.25, 0.3]
CPU = torch.device("cpu")
RAGGED = [(40, 56), (32, 32), (90, 31), (25, 64), (48, 48), (33, 80), (61, 60), (30, 45)]
ALL = slice(0, len(RAGGED))
EVERYTHING = View(
    auto_augment="rand-m9-mstd0.5-inc1",
    color=[
        ColorStep(jitter=Jitter(strength=[0.4, 0.4, 0.2, 0.1])),
        ColorStep(gray=Gray(prob=0.3)),
        ColorStep(one_of=[ColorOp(blur=Blur()), ColorOp(solarize=Solarize())]),
    ],
    count=2,
)


def photos() -> list[Image.Image]:
    samples = [Image.fromarray(i) for i in load_sample_images().images]
    return [samples[k % 2].resize((width, height)) for k, (height, width) in enumerate(RAGGED)]


def raw_batch(rows: slice = ALL, step: int = 3) -> RawBatch:
    """A slice of the one global batch of these tests, padded no more than it must be."""
    images, (heights, widths) = photos()[rows], np.array(RAGGED[rows]).T
    canvas = torch.zeros(len(images), 3, heights.max(), widths.max(), dtype=torch.uint8)
    for k, image in enumerate(images):
        canvas[k, :, : image.height, : image.width] = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    numbers = torch.arange(len(RAGGED))[rows]
    return RawBatch(canvas, torch.tensor(RAGGED[rows]), numbers % 5 - 1, 100 + numbers, step, rows, len(RAGGED), float(len(images)))


def views(size: int = 24, seed: int = 0, device: torch.device = CPU, **named: View) -> TrainViews:
    return TrainViews(named, image_size=size, mean=MEAN, std=STD, num_classes=4, seed=seed, device=device)


def levels(images: torch.Tensor) -> torch.Tensor:
    """Undo the normalisation: [0, 255]."""
    return (images * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]) * 255


def pixels(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float()


# ---------------------------------------------------------------------------------------------------------------- crop


def test_random_resized_equals_a_slow_loop():
    view, sizes = View(scale=[0.3, 1.0], ratio=[0.5, 2.0]), np.array(RAGGED)
    corners, crops = random_resized(view, StepRandom(0, "main", 1, raw_batch()), sizes)
    random = StepRandom(0, "main", 1, raw_batch())
    shape, place = random.uniform("crop/shape", 10, 2), random.uniform("crop/place", 2)
    for k, (height, width) in enumerate(RAGGED):
        for area_u, ratio_u in shape[k]:
            area = height * width * (0.3 + 0.7 * area_u)
            ratio = math.exp(math.log(0.5) + ratio_u * math.log(4))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if w <= width and h <= height:
                break
        else:
            pytest.fail("choose another seed: no attempt fits")
        assert crops[k].tolist() == [h, w]
        assert corners[k].tolist() == [int(place[k, 0] * (height - h + 1)), int(place[k, 1] * (width - w + 1))]


@pytest.mark.parametrize(
    ("size", "crop", "corner", "ratio"),
    [
        ((100, 10), (13, 10), (43, 0), [3 / 4, 4 / 3]),
        ((10, 100), (10, 13), (0, 43), [3 / 4, 4 / 3]),
        ((9, 9), (9, 9), (0, 0), [3 / 4, 4 / 3]),
        ((5, 1), (1, 1), (2, 0), [2.0, 3.0]),  # a height of 1 / 2 would be rounded to no pixel
    ],
)
def test_without_a_fitting_attempt_the_centre_is_taken(size, crop, corner, ratio):
    view = View(scale=[3.0, 3.0], ratio=ratio)  # larger than any image
    corners, crops = random_resized(view, StepRandom(0, "main", 1, raw_batch()), np.array([size] * len(RAGGED)))
    assert (crops == crop).all() and (corners == corner).all()


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_train_view_equals_pillow(interpolation):
    view = View(interpolation=interpolation, scale=[0.1, 1.0])
    rows, columns = crop_windows(view, 40, StepRandom(0, "main", 1, raw_batch()), np.array(RAGGED))
    ours = levels(views(40, main=view)(raw_batch()).views["main"])
    assert ours.shape == (len(RAGGED), 3, 40, 40) and 0 < columns.flip.sum() < len(RAGGED)
    for k, image in enumerate(photos()):
        left, top = columns.start[k], rows.start[k]
        box = (left, top, left + columns.length[k], top + rows.length[k])
        theirs = image.crop(box).resize((40, 40), getattr(Image.Resampling, interpolation.upper()))
        theirs = theirs.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if columns.flip[k] else theirs
        assert (ours[k] - pixels(theirs)).abs().max() <= 1.01


def test_pad_crops_equal_torchvision():
    view = View(crop="pad", pad_px=5, hflip=0.0)
    rows, columns = crop_windows(view, 24, StepRandom(0, "main", 1, raw_batch()), np.array(RAGGED))
    ours = levels(views(main=view)(raw_batch()).views["main"])
    for k, image in enumerate(photos()):
        padded = tv.pad(tv.resize(image, 24, tv.InterpolationMode.BICUBIC), 5, padding_mode="reflect")
        theirs = tv.crop(padded, rows.offset[k] + 5, columns.offset[k] + 5, 24, 24)
        assert (ours[k] - pixels(theirs)).abs().max() <= 1.01
    assert len(set(rows.offset)) > 2 and rows.offset.min() >= -5


def test_resize_takes_the_whole_image():
    ours = levels(views(main=View(crop="resize", hflip=0.0))(raw_batch()).views["main"])
    for k, image in enumerate(photos()):
        assert (ours[k] - pixels(image.resize((24, 24), Image.Resampling.BICUBIC))).abs().max() <= 1.01


@pytest.mark.parametrize(("size", "share"), [(24, 0.875), (24, 1.0), (33, 0.9), (64, 0.7)])
def test_eval_view_equals_torchvision(size, share):
    batch = EvalView(size, share, MEAN, STD, CPU)(raw_batch())
    for k, image in enumerate(photos()):
        theirs = tv.center_crop(tv.resize(image, int(size / share), tv.InterpolationMode.BICUBIC), size)
        assert (levels(batch.views["main"][k]) - pixels(theirs)).abs().max() <= 1.01
    assert torch.equal(batch.targets["main"], raw_batch().labels_B) and torch.equal(batch.index_B, raw_batch().index_B)


def test_policies_and_colours_are_carried_out_on_the_crops():
    view = View(auto_augment="original", color=[ColorStep(gray=Gray(prob=0.5))])
    crops = levels(views(main=View())(raw_batch()).views["main"]).round()
    random, fill = StepRandom(0, "main", 1, raw_batch()), (torch.tensor(MEAN) * 255).round()
    image_ops = [*parse_policy("original").sample(random).image_ops(24, fill, "bicubic"), *color_ops(view.color, random)]
    apply(image_ops, crops, ALL)
    assert len(image_ops) > 3 and torch.allclose(levels(views(main=view)(raw_batch()).views["main"]), crops, atol=0.01)


# ------------------------------------------------------------------------------------------------------ random numbers


@pytest.mark.parametrize("view", [View(scale=[0.2, 1.0]), EVERYTHING, View(crop="pad")], ids=["crop", "everything", "pad"])
@pytest.mark.parametrize("cuts", [(4, 8), (1, 3, 8)])
def test_views_do_not_depend_on_how_the_global_batch_is_cut(view, cuts):
    make = views(main=view)
    whole = make(raw_batch()).views["main"].unflatten(0, (view.count, len(RAGGED)))
    start = 0
    for stop in cuts:
        part = make(raw_batch(slice(start, stop))).views["main"].unflatten(0, (view.count, stop - start))
        # sums of other sizes may round a pixel the other way
        assert (part != whole[:, start:stop]).float().mean() < 1e-3
        start = stop


def test_views_do_not_depend_on_the_size_of_the_chunks(monkeypatch):
    whole = views(main=EVERYTHING)(raw_batch()).views["main"]
    monkeypatch.setitem(CHUNK_FLOATS, "cpu", 3 * 3 * 90 * 80)  # three images of the largest height and width
    assert (views(main=EVERYTHING)(raw_batch()).views["main"] != whole).float().mean() < 1e-3


def test_views_are_functions_of_seed_name_and_step():
    make = views(main=EVERYTHING, second=EVERYTHING)
    first, again, later = make(raw_batch(step=3)), views(main=EVERYTHING)(raw_batch(step=3)), make(raw_batch(step=4))
    assert torch.equal(first.views["main"], again.views["main"])
    other_seed = views(seed=1, main=EVERYTHING)(raw_batch(step=3))
    for other in (first.views["second"], later.views["main"], other_seed.views["main"]):
        assert not torch.equal(first.views["main"], other)


def test_copies_are_independent_and_crop_major():
    one, two = View(scale=[0.1, 0.5]), View(scale=[0.1, 0.5], count=2)
    batch = views(main=two)(raw_batch())
    first, second = batch.views["main"].chunk(2)
    assert torch.equal(first, views(main=one)(raw_batch()).views["main"]) and not torch.equal(first, second)
    assert torch.equal(batch.targets["main"], raw_batch().labels_B.repeat(2)) and len(batch.index_B) == len(RAGGED)


def test_one_augmentation_does_not_move_another():
    plain = views(main=View())(raw_batch()).views["main"]
    erased = views(main=View(erasing_prob=1.0))(raw_batch()).views["main"]
    same = (plain == erased).all(1)
    assert same.any((1, 2)).all() and (~same).any((1, 2)).all()  # the same crops, with a box of noise in each
    solarized = levels(views(main=View(color=[ColorStep(solarize=Solarize())]))(raw_batch()).views["main"])
    torch.testing.assert_close(solarized, torch.where(levels(plain).round() < 128, levels(plain), 255 - levels(plain)), atol=0.01, rtol=0)


def test_erasing_noise_depends_on_step_and_row_only():
    make = views(main=View(erasing_prob=1.0))
    assert torch.equal(make(raw_batch()).views["main"], make(raw_batch()).views["main"])
    assert not torch.equal(make(raw_batch()).views["main"][4:], make(raw_batch(slice(4, 8))).views["main"])


# ------------------------------------------------------------------------------------------------------------- targets


def test_targets_are_labels_unless_the_view_mixes():
    batch = views(main=View(), second=View(mixup_alpha=0.8, cutmix_alpha=1.0, count=2))(raw_batch())
    assert batch.targets["main"].dtype == torch.int64 and torch.equal(batch.targets["main"], raw_batch().labels_B)
    mixed = batch.targets["second"]
    assert mixed.shape == (2 * len(RAGGED), 4) and mixed.dtype == torch.float32
    labelled = (raw_batch().labels_B >= 0).sum()
    assert mixed.sum() == pytest.approx(2 * labelled) and mixed.min() >= 0 and mixed.sum(1).max() <= 1 + 1e-6


def test_a_view_that_mixes_now_and_then_always_gives_rows():
    batch = views(main=View(mixup_alpha=0.8, mix_prob=0.0))(raw_batch())
    assert torch.equal(batch.targets["main"].sum(1), (raw_batch().labels_B >= 0).float())
    assert torch.equal(batch.views["main"], views(main=View())(raw_batch()).views["main"])


def test_raw_batch_stays_as_it_was():
    raw, before = raw_batch(), raw_batch()
    views(main=dataclasses.replace(EVERYTHING, mixup_alpha=0.8, erasing_prob=1.0))(raw)
    assert torch.equal(raw.pixels, before.pixels) and torch.equal(raw.labels_B, before.labels_B)


def test_views_have_their_own_sizes():
    batch = views(main=View(), local=View(size=10, count=3))(raw_batch())
    assert batch.views["main"].shape == (8, 3, 24, 24) and batch.views["local"].shape == (24, 3, 10, 10)


def test_a_policy_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match=r"^data\.views\.local\.auto_augment: "):
        views(local=View(auto_augment="rand-z1"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_views_on_a_gpu_equal_the_cpus_and_never_wait_for_it():
    view, cuda = dataclasses.replace(EVERYTHING, mixup_alpha=0.8), torch.device("cuda")
    on_cpu = views(main=view)(raw_batch())
    make = views(device=cuda, main=view)
    make(raw_batch())
    torch.cuda.set_sync_debug_mode("error")
    try:
        on_gpu = make(raw_batch())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    # one level that falls to the other side in the resampling may become many levels in equalize or autocontrast
    apart = (levels(on_gpu.views["main"].cpu()) - levels(on_cpu.views["main"])).abs() > 2
    assert apart.float().mean() < 0.01
    torch.testing.assert_close(on_gpu.targets["main"].cpu(), on_cpu.targets["main"])


# ------------------------------------------------------------------------------------------- images one after the other


def flat(raw: RawBatch) -> RawBatch:
    """The same images without padding."""
    return dataclasses.replace(raw, pixels=torch.cat([image.flatten() for image in unbind_images(raw.pixels, raw.sizes_B2.numpy())]))


@pytest.mark.parametrize("chunk", [1, 3 * 100 * 100, 3 * 10**9])
def test_views_of_images_that_lie_one_after_the_other_are_those_of_padded_ones(monkeypatch, chunk):
    expected = views(a=EVERYTHING, b=View(crop="resize"))(raw_batch()).views
    expected["main"] = EvalView(24, 0.875, MEAN, STD, CPU)(raw_batch()).views["main"]
    monkeypatch.setitem(CHUNK_FLOATS, "cpu", chunk)
    found = views(a=EVERYTHING, b=View(crop="resize"))(flat(raw_batch())).views
    found["main"] = EvalView(24, 0.875, MEAN, STD, CPU)(flat(raw_batch())).views["main"]
    for name, view in expected.items():
        assert found[name].shape == view.shape
        difference = (levels(found[name]) - levels(view)).abs()
        assert (difference < 0.01).float().mean() > 0.999, name  # a sum in another order may be rounded to the next level


def test_views_of_a_wide_and_a_high_image_need_no_more_memory_than_the_images():
    """Padded to one size these two would take 21 GB."""
    generator = np.random.default_rng(0)
    sizes = [(1, 60000), (60000, 1), (32, 32)]
    images = [torch.from_numpy(generator.integers(0, 256, (3, *size), dtype=np.uint8)) for size in sizes]
    numbers, pixels = torch.arange(3), torch.cat([image.flatten() for image in images])
    raw = RawBatch(pixels, torch.tensor(sizes), numbers, numbers, 0, slice(0, 3), 3, 3.0)
    assert len(shape_of(np.array(sizes))) == 1
    together = views(main=View(crop="resize", hflip=0.0))(raw).views["main"]
    for k, image in enumerate(images):
        alone = RawBatch(image[None], torch.tensor(sizes[k : k + 1]), numbers[:1], numbers[:1], 0, slice(0, 1), 1, 1.0)
        assert torch.equal(views(main=View(crop="resize", hflip=0.0))(alone).views["main"][0], together[k])


@pytest.mark.parametrize(("images", "chunks"), [(1, 24), (5, 6), (8, 3), (15, 3), (16, 2), (24, 1), (99, 1)])
def test_a_chunk_holds_whole_copies_or_a_part_of_one(images, chunks, monkeypatch):
    """Each output row shows its image, however they are cut."""
    monkeypatch.setitem(CHUNK_FLOATS, "cpu", 3 * images * 90 * 80 + 2)
    raw = raw_batch()
    parts = list(_chunks(raw.pixels, raw.sizes_B2.numpy(), 3, 24))
    assert len(parts) == chunks and max(len(shown) for _, shown in parts) <= images
    assert [row for part, _ in parts for row in range(part.start, part.stop)] == list(range(24))
    assert torch.equal(torch.cat([shown for _, shown in parts]), raw.pixels.repeat(3, 1, 1, 1))


# ------------------------------------------------------------------------------------------------ of several slices together


@pytest.mark.parametrize("of_flat", [[], [1], [0, 1, 2]])
@pytest.mark.parametrize("chunk", [3 * 24 * 24, 3 * 10**9])
@pytest.mark.parametrize("erase", [erase_one_by_one, erase_at_once])
def test_views_of_several_slices_are_those_of_each(monkeypatch, of_flat, chunk, erase):
    """Of other steps and rows, and so of other sizes and orders of colours; the noise of erasing and the mixing are a slice's own."""
    raws = [raw_batch(), raw_batch(slice(0, 4), step=4), raw_batch(slice(4, 8), step=5)]
    raws = [flat(raw) if k in of_flat else raw for k, raw in enumerate(raws)]
    monkeypatch.setattr("vitssl.views.erase.erase_one_by_one", erase)
    mixing = dataclasses.replace(EVERYTHING, erasing_prob=0.5, cutmix_alpha=1.0)
    make = views(main=mixing, small=View(size=10, count=3, erasing_prob=0.5), resized=View(crop="resize"))
    expected = [make(raw) for raw in raws]
    monkeypatch.setitem(CHUNK_FLOATS, "cpu", chunk)
    for found, alone in zip(make.make_batches(raws), expected, strict=True):
        assert torch.equal(found.index_B, alone.index_B) and found.labelled == alone.labelled and found.views.keys() == alone.views.keys()
        for name, view in alone.views.items():
            assert found.views[name].shape == view.shape and found.views[name].is_contiguous()
            assert found.views[name].untyped_storage().nbytes() == 4 * view.numel()  # none keeps the memory of the others
            difference = (levels(found.views[name]) - levels(view)).abs()
            assert (difference < 0.01).float().mean() > 0.999, name  # a sum in another order may be rounded to the next level
            torch.testing.assert_close(found.targets[name], alone.targets[name])


def test_a_gpu_makes_small_batches_together_and_large_ones_alone():
    make = views(size=224, device=torch.device("meta"), main=View())
    make._device = torch.device("cuda")
    assert [make.slices_at_once(size, 32 * 32) for size in (1, 32, 64, 100, 128, 200, 1024)] == [8, 8, 8, 5, 4, 2, 1]
    assert [make.slices_at_once(8, px) for px in (500 * 375, 4000 * 3000)] == [8, 1]
    assert [views(size=224, main=View()).slices_at_once(size, 32 * 32) for size in (1, 1024)] == [1, 1]
