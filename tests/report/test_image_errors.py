"""What the test images, which all seeds share, leave open of a difference."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
import scipy.stats
from sklearn.metrics import roc_auc_score

from tests.report.test_evaluations import predictions
from vitssl.evaluators.metrics import area_under_curve, prediction_metrics
from vitssl.files import read_json, write_json
from vitssl.report.findings.advice import recommendation
from vitssl.report.findings.sentences import findings, sentences
from vitssl.report.results.best import best
from vitssl.report.results.collect import collect
from vitssl.report.results.grid import lay_out
from vitssl.report.results.image_errors import PARTS, estimate_image_errors
from vitssl.report.results.saved_files import Predictions
from vitssl.report.results.stats import Difference, ImageErrors, difference
from vitssl.report.tables.main_table import table

pytestmark = pytest.mark.usefixtures("without_plots")

PAIRED = "Student's t, paired over 3 seeds"
NORMAL = scipy.stats.norm.ppf(0.975)


def of_half(mean: float, half: float) -> Difference:
    """Of three seeds whose interval reaches so far to either side."""
    return Difference(mean, PAIRED, 3, half / scipy.stats.t.ppf(0.975, 2))


def saved(folder, right_SN, labels_N=None) -> list:
    """Files of seeds that were right of these images."""
    labels_N = np.zeros(len(right_SN[0]), dtype=int) if labels_N is None else labels_N
    files = []
    for seed, right_N in enumerate(right_SN):
        (folder / str(seed)).mkdir(parents=True)
        predictions(folder / str(seed), labels_N, np.where(right_N, labels_N, 1 - labels_N))
        files.append(folder / str(seed) / "predictions-test.npz")
    return files


def test_of_one_seed_it_is_mcnemars(tmp_path):
    """Of n images b are right in one arm alone and c in the other: the variance of (b - c) / n is (b + c - (b - c)^2 / n) / n^2, with
    n (n - 1) in place of n^2 where it is estimated from these images."""
    n, b, c = 50, 9, 4
    one, other = np.arange(n) < 20 + b, (np.arange(n) < 20) | (np.arange(n) >= n - c)
    found = estimate_image_errors(saved(tmp_path / "one", [one]), saved(tmp_path / "other", [other]))
    assert found.error == pytest.approx(100 * sqrt((b + c - (b - c) ** 2 / n) / (n * (n - 1)))) and found.count == n
    assert found.chance == 0


def test_it_is_as_a_bootstrap_over_images_has_it(tmp_path):
    draw = np.random.default_rng(0)
    hard_N = draw.random(200)
    arms = [draw.random((3, 200)) < share * hard_N for share in (0.9, 0.7)]
    found = estimate_image_errors(*(saved(tmp_path / name, arm) for name, arm in zip("ab", arms, strict=True)))
    gap_N = arms[0].mean(0) - arms[1].mean(0)
    again = [gap_N[draw.integers(0, 200, 200)].mean() for _ in range(4000)]
    assert np.hypot(found.error, found.chance) == pytest.approx(100 * np.std(again), rel=0.05)


def test_seeds_that_are_right_by_chance_alone_spread_by_as_much_as_it_says(tmp_path):
    draw = np.random.default_rng(0)
    likely_N = draw.random(150)
    found = estimate_image_errors(*(saved(tmp_path / name, draw.random((40, 150)) < likely_N) for name in "ab"))
    again = [(draw.random((2, 40, 150)) < likely_N).mean((1, 2)) @ (1, -1) for _ in range(1500)]
    assert found.chance == pytest.approx(100 * np.std(again), rel=0.06) and found.error < 0.5 * found.chance


def test_seeds_that_happen_to_agree_make_no_interval_narrow(tmp_path):
    """Each of three seeds is right on 40 of 60 images against 36, but on others: no spread over seeds, and yet what chance does to each."""
    draw = np.random.default_rng(2)
    arms = [np.array([draw.permutation(60) < right for _ in range(3)]) for right in (40, 36)]
    found = estimate_image_errors(*(saved(tmp_path / name, arm) for name, arm in zip("ab", arms, strict=True)))
    by_seed = difference(*(dict(enumerate(100 * arm.mean(1))) for arm in arms))
    both = by_seed.with_image_errors(found)
    assert by_seed.constant and both.high - both.mean == pytest.approx(NORMAL * np.hypot(found.error, found.chance))
    assert found.chance > 3 and both.open
    said = "by chance in single images, since 3 seeds happen to vary less, combined in quadrature with the error over 60 test images"
    assert both.how == said


def test_of_other_images_or_without_predictions_it_is_not_known(tmp_path):
    one = saved(tmp_path / "one", [np.ones(4, dtype=bool)])
    other = saved(tmp_path / "other", [np.ones(4, dtype=bool)], labels_N=np.array([0, 0, 0, 1]))
    assert (
        estimate_image_errors(one, other) is None
        and estimate_image_errors(one, [tmp_path / "none.npz"]) is None
        and estimate_image_errors(one, []) is None
    )


@pytest.mark.parametrize(("images", "better", "told"), [(50, 1, False), (50, 20, True)])
def test_an_arm_is_the_best_where_images_and_seeds_say_so(sweep, images, better, told):
    """In each of three seeds the same images more than scratch: no spread, and yet of one image of fifty nothing follows."""
    right = {"scratch": np.arange(images) < 20, "ssat": np.arange(images) < 20 + better}
    folder = sweep({arm: 100 * float(right_N.mean()) for arm, right_N in right.items()}, {"seed": [0, 1, 2]}, columns=None)
    for arm, right_N in right.items():
        for path in folder.glob(f"{arm}-*"):
            predictions(path, np.zeros(images, dtype=int), np.where(right_N, 0, 1))
    grid = lay_out(collect(folder))
    sentence, advice = best(grid, None), recommendation(grid, None)
    assert sentence.startswith(
        "The best arm by top-1 is ssat: 80.00 ± 0.00 % (3 seeds)" if told else "3 seeds cannot tell ssat and scratch apart"
    )
    assert f"{100 * better / images:+.2f} [" in sentence
    assert ("Worse: scratch" in advice) is told
    row = grid.rows[[row.arm.name for row in grid.rows].index("ssat")]
    assert grid.against_baseline(row, None).how == f"{PAIRED}, combined in quadrature with the error over 50 test images"


def test_a_caption_names_the_arms_of_each_kind_of_interval(sweep):
    """Each seed of ssat is right on other images but as many; those of sslft are right on more and more."""
    draw = np.random.default_rng(0)
    counts = {"scratch": (40, 40, 40), "ssat": (60, 60, 60), "sslft": (45, 60, 75)}
    folder = sweep({arm: (lambda at, of=of: float(of[at["seed"]])) for arm, of in counts.items()}, {"seed": [0, 1, 2]}, columns=None)
    for arm, of in counts.items():
        for seed, right in enumerate(of):
            path = next(folder.glob(f"{arm}-{'finetune' if arm == 'sslft' else 'train'}-{seed}"))
            predictions(path, np.zeros(100, dtype=int), 1 - (draw.permutation(100) < right))
    grid = lay_out(collect(folder))
    (shown,) = [table(part) for part in grid.parts]
    images = "combined in quadrature with the error over 100 test images"
    chance = f"by chance in single images, since 3 seeds happen to vary less, {images}"
    assert f"(ssat: {chance}; sslft: {PAIRED}, {images})" in shown.caption


def test_of_several_data_sets_it_names_the_set_too(sweep):
    """ssat's seeds are right on other images but as many, and on svhn on more and more; sslft's agree on both."""
    draw = np.random.default_rng(0)
    right = {("ssat", "cifar10"): (60, 60, 60), ("ssat", "svhn"): (45, 60, 75)}
    axes = {"data": ["cifar10", "svhn"], "seed": [0, 1, 2]}
    folder = sweep({"scratch": 40.0, "sslft": 55.0, "ssat": lambda at: float(right["ssat", at["data"]][at["seed"]])}, axes)
    for arm, usual in (("scratch", 40), ("sslft", 55), ("ssat", None)):
        for data, images in (("cifar10", 100), ("svhn", 200)):
            for seed in (0, 1, 2):
                percent = usual or right[arm, data][seed]
                hits = draw.permutation(images) < percent * images // 100
                predictions(
                    folder / f"{arm}-{'finetune' if arm == 'sslft' else 'train'}-{data}-{seed}", np.zeros(images, dtype=int), 1 - hits
                )
    (shown,) = [table(part, ["accuracy", "baseline"]) for part in lay_out(collect(folder)).parts]
    chance = "by chance in single images, since 3 seeds happen to vary less, combined in quadrature with the error over"
    paired = f"{PAIRED}, combined in quadrature with the error over 200 test images"
    assert f"({chance} 100 test images; svhn, sslft: {chance} 200 test images; svhn, ssat: {paired})" in shown.caption


def test_equal_runs_in_two_rows_are_the_same(sweep):
    """As those of the arm whose cost the others are given."""
    folder = sweep({"scratch": 40.0, "ssat": lambda at: 40.0 + 2 * at["seed"]}, {"seed": [0, 1, 2]}, columns=None)
    for seed in (0, 1, 2):
        predictions(folder / f"ssat-train-{seed}", np.zeros(50, dtype=int), np.where(np.arange(50) < 20 + seed, 0, 1))
    grid = lay_out(collect(folder))
    row = grid.rows[1]
    assert str(grid.gap(row, replace(row), None)) == "same in each seed"


def test_the_interval_is_as_wide_as_both_say():
    """Squares of half widths: 3 over seeds and 4 over images are 5."""
    seeds = of_half(10.0, 3.0)
    both = seeds.with_image_errors(ImageErrors(1200, 4 / NORMAL, 1.0))
    assert (both.low, both.high) == (pytest.approx(5.0), pytest.approx(15.0)) and not both.open
    assert both.how == f"{PAIRED}, combined in quadrature with the error over 1,200 test images"
    assert of_half(4.5, 3.0).with_image_errors(ImageErrors(9, 4 / NORMAL, 0.0)).open
    assert seeds.with_image_errors(ImageErrors(9, 0.0, 0.0)).high == pytest.approx(13.0)
    assert seeds.with_image_errors(ImageErrors(9, 0.0, 5 / NORMAL)).high == pytest.approx(15.0)


def test_of_two_seeds_images_make_no_interval():
    few = Difference(10.0, "2 seeds are too few for an interval", 2, 1.0)
    assert few.with_image_errors(ImageErrors(9, 1.0, 0.0)) == few


def test_where_equal_seeds_and_equal_images_leave_no_spread_there_is_no_interval():
    same = Difference(0.0, PAIRED, 3)
    assert same.with_image_errors(ImageErrors(9, 0.0, 0.0)) == same


@pytest.mark.parametrize("seeds", [2, 6])
@pytest.mark.parametrize("luck", ["own", "shared"])
def test_the_error_over_images_is_that_of_very_many_seeds(tmp_path, seeds, luck):
    """Arms that have another chance each to be right on an image: the spread of the difference of these chances, whatever the seeds.

    Arms of one seed train on the same draw of images, and so may be right of the same ones.
    """
    draw = np.random.default_rng(0)
    likely = {name: draw.random(4000) for name in "ab"}
    luck_SN = {name: draw.random((seeds, 4000)) for name in "ab"} if luck == "own" else dict.fromkeys("ab", draw.random((seeds, 4000)))
    found = estimate_image_errors(*(saved(tmp_path / name, luck_SN[name] < likely[name]) for name in "ab"))
    assert found.error == pytest.approx(100 * np.std(likely["a"] - likely["b"]) / sqrt(4000), rel=0.05)


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("of_images", [0.0, 0.25])
def test_it_holds_the_true_difference_about_as_often_as_it_says(seeds, of_images):
    """Of arms whose images and seeds both differ at random; by seeds alone too few intervals do where images favour an arm."""
    draw, images, truth, trials = np.random.default_rng(1), 60, 10.0, 1000
    held = {"both": 0, "seeds": 0}
    for _ in range(trials):
        shared_N, of_seed_S1 = of_images * draw.standard_normal(images), 0.03 * draw.standard_normal((seeds, 1))
        gap_SN = truth / 100 + shared_N + of_seed_S1 + 0.3 * draw.standard_normal((seeds, images))
        by_seed = difference(dict(enumerate(100 * gap_SN.mean(1))), dict.fromkeys(range(seeds), 0.0))
        over_images, by_chance = gap_SN.mean(0).var(ddof=1) / images, gap_SN.var(0, ddof=1).mean() / seeds / images
        errors = ImageErrors(images, 100 * sqrt(max(0.0, over_images - by_chance)), 100 * sqrt(by_chance))
        for name, gap in (("both", by_seed.with_image_errors(errors)), ("seeds", by_seed)):
            held[name] += gap.low <= truth <= gap.high
    assert 0.93 <= held["both"] / trials <= 0.995
    assert (held["seeds"] / trials < 0.92) == (of_images > 0)


# ---------------------------------------------------------------------------------------------------- metrics besides top-1


def drawn(N: int = 400, K: int = 7, seed: int = 0) -> tuple[Predictions, np.ndarray]:
    """Predictions of unequal classes, one of which has no image, and the probabilities that they are of."""
    draw = np.random.default_rng(seed)
    labels_N = draw.choice(K - 1, N, p=np.arange(1, K) / np.arange(1, K).sum())
    scores_NK = draw.standard_normal((N, K)) + 1.5 * np.eye(K)[labels_N]
    p_NK = np.exp(scores_NK) / np.exp(scores_NK).sum(1, keepdims=True)
    top5_N = (p_NK >= np.sort(p_NK, axis=1)[:, -5:-4])[np.arange(N), labels_N]
    loss_N = -np.log(p_NK[np.arange(N), labels_N]).astype(np.float32)
    names, auc_N = [str(k) for k in range(K)], area_under_curve(p_NK[:, :-1], labels_N)
    return Predictions(names, labels_N, p_NK.argmax(1), p_NK.max(1).astype(np.float32), top5_N, loss_N, auc_N), p_NK


def subset(saved: Predictions, p_NK: np.ndarray, chosen_N: np.ndarray) -> Predictions:
    parts = (saved.labels_N, saved.predicted_N, saved.confidence_N, saved.top5_N, saved.loss_N)
    auc_N = area_under_curve(p_NK[chosen_N, :-1], saved.labels_N[chosen_N])
    return Predictions(saved.classes, *(part_N[chosen_N] for part_N in parts), auc_N)


def test_what_images_add_has_the_metric_for_its_mean():
    saved, p_NK = drawn()
    measured = prediction_metrics(p_NK, saved.labels_N) | {"loss": saved.loss_N.mean(), "top5": 100 * saved.top5_N.mean()}
    measured["auc"] = 100 * np.mean([roc_auc_score(saved.labels_N == k, p_NK[:, k]) for k in range(p_NK.shape[1] - 1)])
    measured["top1"] = 100 * (saved.predicted_N == saved.labels_N).mean()
    for name, parts in PARTS.items():
        assert parts(saved).mean() == pytest.approx(measured[name], rel=1e-5), name


@pytest.fixture(scope="module")
def draws() -> list[Predictions]:
    """2,000 other draws of the images."""
    saved, p_NK = drawn()
    rng, N = np.random.default_rng(1), len(saved.labels_N)
    return [subset(saved, p_NK, rng.integers(N, size=N)) for _ in range(2000)]


@pytest.mark.parametrize("name", PARTS)
def test_its_spread_is_that_of_the_metric_over_other_draws_of_the_images(name, draws):
    """Against a bootstrap: to the share that 2,000 draws and the linearisation leave. It is too wide for ECE, whose bins are near 0: more
    draws of these fold over."""
    saved, _ = drawn()
    N, again = len(saved.labels_N), [PARTS[name](other).mean() for other in draws]
    low, high = (1.0, 1.3) if name == "ece" else (0.93, 1.07)
    assert low < PARTS[name](saved).std(ddof=1) / sqrt(N) / np.std(again) < high


def test_recalls_of_few_images_spread_as_samples_do():
    """Each class's n - 1: 1 of 4 and 2 of 3 right, and half of both."""
    hits_N, sure = np.array([1, 0, 0, 0, 1, 1, 0]), np.ones(7, np.float32)
    labels_N = np.array([0] * 4 + [1] * 3)
    saved = Predictions(["a", "b"], labels_N, np.where(hits_N, labels_N, 1 - labels_N), sure, hits_N > 0, 1 - sure)
    parts_N = PARTS["balanced_accuracy"](saved)
    assert parts_N.mean() == pytest.approx(50 * (1 / 4 + 2 / 3))
    variance = 50**2 * (hits_N[:4].var(ddof=1) / 4 + hits_N[4:].var(ddof=1) / 3)
    assert parts_N.var(ddof=0) / 7 == pytest.approx(variance)


def test_what_another_draw_of_images_does_not_change_has_no_interval():
    """Always right of one class and never of the other: whatever their shares are in a draw, the mean of the recalls is a half."""
    sure, right = np.ones(100, np.float32), np.arange(100) < 90
    saved = Predictions(["often", "rare"], np.arange(100) // 90, np.zeros(100, dtype=int), sure, right, 1 - right.astype(np.float32))
    assert PARTS["balanced_accuracy"](saved) == pytest.approx(np.full(100, 50.0))
    assert PARTS["auc"](saved) is None


def test_each_fold_has_images_of_its_own_whatever_their_classes(sweep):
    """Folds may have the same labels: what single images tell is left out, and the interval is wider for what folds train on alike."""
    stages = {"scratch": [("train", {"objectives.classify": {}, "data.folds": 3})]}
    stages["ssat"] = [("train", {"objectives": {"classify": {}, "mae": {}}, "data.folds": 3})]
    top1 = {"scratch": lambda at: 70.0 - at["seed"], "ssat": lambda at: 71.0 + at["seed"] ** 2}
    folder = sweep(top1, {"seed": [0, 1, 2]}, stages=stages, columns=None)
    for path in folder.glob("*-train-*"):
        predictions(path, np.zeros(60, dtype=int), np.arange(60) % 2)
    grid = lay_out(collect(folder))
    gap = grid.gap(grid.rows[1], grid.rows[0], None)
    assert gap.num_images is None and gap.mean == pytest.approx(np.mean([1, 3, 7]))
    assert gap.high - gap.mean == pytest.approx(scipy.stats.t.ppf(0.975, 2) * np.std([1, 3, 7], ddof=1) * sqrt(1 / 3 + 1 / 2))
    said = " ".join(sentences(findings(grid)))
    assert "tested on (3 of 3 tested so far). Near-duplicates between folds were not searched for." in said
    assert "on 3 folds of cifar10, one per seed, after" in table(grid).caption
    for path in folder.glob("*/job.json"):
        job = read_json(path)
        write_json(path, job | {"data": job["data"] | {"groups": 20}})
    said = sentences(findings(lay_out(collect(folder))))
    assert any(line.startswith("Cross-validation by groups of images that belong together: each seed") for line in said)
