from __future__ import annotations

import itertools

import numpy as np
import pytest

from vitssl.config import ConfigError, Data, Subset
from vitssl.data.index import Index
from vitssl.data.loading.subset import train_and_heldout


def make_index(train: list[int], test: list[int], unlabeled: int = 0) -> Index:
    """An index with so many images of each class, in the order of the classes; nothing lies on the disk."""
    labels = [k for k, n in enumerate(train) for _ in range(n)], [k for k, n in enumerate(test) for _ in range(n)], [-1] * unlabeled
    parts = [{"name": s, "split": s, "images": len(part)} for s, part in zip(("train", "test", "unlabeled"), labels, strict=True) if part]
    label = np.array([*labels[0], *labels[1], *labels[2]], dtype=np.int64)
    columns = {name: np.ones_like(label) for name in ("offset", "size", "height", "width", "crc32")}
    classes = [f"class {k}" for k in range(len(train))]
    return Index("/shards", "x", "", "", classes, [0.5] * 3, [0.5] * 3, parts, label=label, **columns)


INDEX = make_index([40, 20, 10], [4, 4, 4])


def split(index: Index = INDEX, need_labels: bool = True, evaluated: bool = True, **fields):
    return train_and_heldout(index, Data(shards="x", **fields), need_labels, evaluated)


def counts(index: Index, positions: np.ndarray) -> list[int]:
    return np.bincount(index.label[positions] + 1, minlength=len(index.classes) + 1)[1:].tolist()


def test_without_subsets_everything_is_used():
    parts = split()
    assert parts.train.tolist() == list(range(70)) and parts.test.tolist() == list(range(70, 82)) and len(parts.val) == 0
    assert np.array_equal(parts.labels, INDEX.label)


@pytest.mark.parametrize(
    ("subset", "expected"),
    [
        (Subset(fraction=0.1), [4, 2, 1]),
        (Subset(fraction=0.25), [10, 5, 3]),  # 2.5 is rounded up
        (Subset(fraction=0.01), [1, 1, 1]),  # at least one
        (Subset(fraction=1.0), [40, 20, 10]),
        (Subset(per_class=10), [10, 10, 10]),
    ],
)
def test_counts_by_hand(subset, expected):
    assert counts(INDEX, split(images=subset).train) == expected
    labelled = split(labels=subset, need_labels=False)
    assert len(labelled.train) == 70
    shown = labelled.train[labelled.labels[labelled.train] >= 0]
    assert counts(INDEX, shown) == expected
    assert np.array_equal(labelled.labels[shown], INDEX.label[shown])
    assert counts(INDEX, split(labels=subset).train) == expected


def test_without_a_seed_the_first_images_of_every_class_are_taken():
    assert split(images=Subset(per_class=2, seed=None)).train.tolist() == [0, 1, 40, 41, 60, 61]
    shuffled = make_index([40, 20, 10], [4, 4, 4])
    shuffled.label[:70] = np.random.default_rng(1).permutation(shuffled.label[:70])
    for k in range(3):
        taken = [i for i in split(shuffled, images=Subset(fraction=0.1, seed=None)).train if shuffled.label[i] == k]
        assert taken == np.flatnonzero(shuffled.label[:70] == k)[: len(taken)].tolist() and len(taken) == [4, 2, 1][k]


def test_plain_fraction_draws_from_all_alike():
    totals = np.zeros(3)
    for seed in range(200):
        chosen = split(images=Subset(fraction=0.1, balanced=False, seed=seed)).train
        assert len(chosen) == 7
        totals += counts(INDEX, chosen)
    # 1400 draws at 4/7, 2/7, 1/7; five standard deviations of the rarest are 65
    assert np.abs(totals - [800, 400, 200]).max() < 65


def test_same_seed_nests_and_other_seeds_differ():
    for balanced in (True, False):
        nested = [set(split(images=Subset(fraction=f, balanced=balanced)).train) for f in (0.1, 0.2, 0.5, 1.0)]
        assert all(small < large for small, large in itertools.pairwise(nested))
    small, large = (set(split(images=Subset(per_class=n)).train) for n in (3, 7))
    assert small < large
    again, other = (set(split(images=Subset(per_class=3, seed=seed)).train) for seed in (0, 1))
    assert again == small and other != small


def test_images_and_labels_are_drawn_apart():
    images = split(images=Subset(fraction=0.2)).train
    both = split(labels=Subset(fraction=0.2), need_labels=False)
    assert set(images) != set(both.train[both.labels[both.train] >= 0])


def test_images_thin_out_before_labels_are_hidden():
    parts = split(images=Subset(per_class=8), labels=Subset(fraction=0.5), need_labels=False)
    assert counts(INDEX, parts.train) == [8, 8, 8]
    assert counts(INDEX, parts.train[parts.labels[parts.train] >= 0]) == [4, 4, 4]


def test_validation_is_stratified_disjoint_and_keeps_its_labels():
    parts = split(val_fraction=0.2, labels=Subset(per_class=1), need_labels=False)
    assert counts(INDEX, parts.val) == [8, 4, 2] and counts(INDEX, parts.train) == [32, 16, 8]
    assert not set(parts.val) & set(parts.train)
    assert np.array_equal(parts.labels[parts.val], INDEX.label[parts.val])
    assert np.array_equal(parts.labels[parts.test], INDEX.label[parts.test])
    assert set(split(val_fraction=0.2, val_seed=1).val) != set(parts.val)


def test_the_area_under_a_curve_needs_held_out_images_of_every_class():
    assert counts(INDEX, split(val_fraction=0.2, val_metric="auc").val) == [8, 4, 2]
    index = make_index([40, 20, 1], [4, 4, 4])  # the one image of the last class stays in training
    with pytest.raises(ConfigError, match=r"data\.val_metric: auc needs held-out images of every class, and there are none of class 2$"):
        split(index, val_fraction=0.2, val_metric="auc")
    assert counts(index, split(index, val_fraction=0.2, val_metric="loss").val) == [8, 4, 0]
    split(index, val_fraction=0.2, val_metric="auc", evaluated=False)  # a stage without classifier
    with pytest.raises(ConfigError, match=r"data\.val_metric: of 3 classes, top-5 is always 100 %; choose another$"):
        split(val_fraction=0.2, val_metric="top5")


def test_validation_comes_out_of_the_subset():
    parts = split(images=Subset(per_class=10), val_fraction=0.3)
    assert counts(INDEX, parts.train) == [7, 7, 7] and counts(INDEX, parts.val) == [3, 3, 3]


def test_a_split_of_the_shards_may_be_held_out():
    """It is none of the training images, so that all of those are trained on."""
    index = make_index([40, 20, 10], [4, 4, 4], unlabeled=7)
    parts = split(index, val_split="unlabeled", evaluated=False)
    assert parts.val.tolist() == list(range(82, 89)) and counts(index, parts.train) == [40, 20, 10] and len(parts.test) == 12
    with pytest.raises(ConfigError, match=r"data\.val_split: 7 of the 7 images of unlabeled have no label"):
        split(index, val_split="unlabeled")
    with pytest.raises(ConfigError, match=r"data\.val_split: test shares images with those that are trained or tested on"):
        split(index, val_split="test")
    with pytest.raises(ConfigError, match=r"data\.val_split: .*nowhere"):
        split(index, val_split="nowhere")


def test_a_class_of_one_image_is_not_held_out():
    index = make_index([1, 10], [1, 1])
    parts = split(index, val_fraction=0.5)
    assert counts(index, parts.val) == [0, 5] and counts(index, parts.train) == [1, 5]


def test_unlabelled_images():
    index = make_index([10, 10], [2, 2], unlabeled=40)
    fields = {"train_split": "train+unlabeled"}
    assert len(split(index, need_labels=False, **fields).train) == 60
    assert len(split(index, need_labels=True, **fields).train) == 20
    thinned = split(index, need_labels=False, images=Subset(fraction=0.5), **fields)
    assert counts(index, thinned.train) == [5, 5] and (index.label[thinned.train] == -1).sum() == 20
    few = split(index, need_labels=False, images=Subset(per_class=2), **fields)
    assert counts(index, few.train) == [2, 2] and (index.label[few.train] == -1).sum() == 40
    # the labelled images of a subset do not depend on whether unlabelled ones are there too
    assert set(split(index, images=Subset(per_class=2)).train) < set(few.train)


@pytest.mark.parametrize("labels", [Subset(fraction=0.1), Subset(per_class=1)])
def test_of_unlabelled_images_no_labels_are_drawn(labels):
    """A sweep that hides labels may pretrain on images that have none."""
    parts = split(make_index([10, 10], [2, 2], unlabeled=40), need_labels=False, evaluated=False, train_split="unlabeled", labels=labels)
    assert len(parts.train) == 40


def test_a_classifier_beside_another_objective_needs_a_labelled_image():
    with pytest.raises(ConfigError, match=r"data\.train_split: no image of unlabeled has a label to learn to classify from"):
        split(make_index([10, 10], [2, 2], unlabeled=40), need_labels=False, train_split="unlabeled")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"images": Subset(per_class=15)}, r"data\.images\.per_class: 15 is more than these classes have: class 2 \(10\)"),
        ({"labels": Subset(per_class=30)}, r"data\.labels\.per_class: 30 .*: class 1 \(20\), class 2 \(10\)"),
        ({"labels": Subset(per_class=10), "val_fraction": 0.1}, r"class 2 \(9\)"),
        ({"train_split": "train+unlabeled"}, r"data\.train_split: .*no split 'unlabeled'; it has train, test"),
        ({"test_split": "val"}, r"data\.test_split: .*no split 'val'"),
        ({"test_split": "train"}, r"data\.test_split: train shares images with data\.train_split=train"),
    ],
)
def test_errors_name_field_and_class(fields, message):
    with pytest.raises(ConfigError, match=message) as error:
        split(**fields)
    assert "\n" not in str(error.value)


def test_nothing_to_train_on_or_to_hold_out():
    index = make_index([1, 1], [1, 1], unlabeled=5)
    with pytest.raises(ConfigError, match=r"data\.train_split: no labelled images of unlabeled are left"):
        split(index, train_split="unlabeled")
    with pytest.raises(ConfigError, match=r"data\.val_fraction: 2 labelled images in 2 classes leave none"):
        split(index, val_fraction=0.5)
    with pytest.raises(ConfigError, match=r"data\.val_fraction: no image of this stage has a label, so none can be held out"):
        split(make_index([], [], unlabeled=5), train_split="unlabeled", val_fraction=0.5, need_labels=False)
    with pytest.raises(ConfigError, match=r"data\.test_split: 5 of the 5 images of unlabeled have no label"):
        split(index, test_split="unlabeled")


def test_who_does_not_classify_needs_no_test_split():
    unlabelled = make_index([], [], unlabeled=6)
    parts = train_and_heldout(unlabelled, Data(shards="x", train_split="unlabeled"), need_labels=False, is_evaluated=False)
    assert parts.train.tolist() == list(range(6)) and len(parts.test) == 0
    with pytest.raises(ConfigError, match=r"data\.test_split: .*there is no split 'test'; it has unlabeled"):
        train_and_heldout(unlabelled, Data(shards="x", train_split="unlabeled"), need_labels=False)


def test_a_redraw_follows_the_seed_of_the_run() -> None:
    def drawn(run_seed: int, **fields) -> list[int]:
        data = Data(shards="x", labels=Subset(per_class=3, **fields))
        return train_and_heldout(INDEX, data, need_labels=True, run_seed=run_seed).train.tolist()

    assert drawn(0) == drawn(1) == drawn(0, redraw=True) != drawn(1, redraw=True)
    assert drawn(1, redraw=True) == drawn(0, seed=1) and drawn(2, seed=3, redraw=True) == drawn(0, seed=5)


def test_folds_take_turns_as_the_test_set():
    """Five seeds test each labelled image once; folds, and classes in them, differ by an image at most; the next five draw anew."""
    index = make_index([41, 22, 7], [4, 4, 4], unlabeled=9)
    parts = [fold(index, seed) for seed in range(10)]
    for turn in (parts[:5], parts[5:]):
        assert np.array_equal(np.sort(np.concatenate([part.test for part in turn])), np.arange(70))
        sizes = np.array([counts(index, part.test) for part in turn])
        assert (np.ptp(sizes, axis=0) <= 1).all() and np.ptp(sizes.sum(1)) == 0
    for part in parts:
        assert np.array_equal(
            np.sort(np.concatenate([part.test, part.train])), np.r_[0:70, 82:91]
        )  # not the split test; all without a label
    assert not any(np.array_equal(one.test, other.test) for one, other in itertools.combinations(parts, 2))


def test_a_fold_is_tested_whatever_else_is_held_out_or_hidden():
    index = make_index([40, 20, 10], [4, 4, 4], unlabeled=9)
    whole = fold(index, 3)
    for fields in ({"images": Subset(per_class=5)}, {"val_fraction": 0.25}, {"labels": Subset(fraction=0.1)}):
        part = fold(index, 3, **fields)
        assert np.array_equal(part.test, whole.test) and not np.isin(np.concatenate([part.train, part.val]), part.test).any()
    assert counts(index, fold(index, 3, images=Subset(per_class=5)).train) == [5, 5, 5]
    pretrained = train_and_heldout(index, Data(shards="x", train_split="train+unlabeled", folds=5), False, is_evaluated=False, run_seed=3)
    assert np.array_equal(pretrained.test, whole.test) and not np.isin(pretrained.train, whole.test).any()


def test_more_folds_than_a_class_has_images_are_refused():
    with pytest.raises(ConfigError, match=r"data\.folds: 11 is more than these classes have: class 2 \(10\)"):
        train_and_heldout(INDEX, Data(shards="x", folds=11), True)


def grouped(seed: int) -> Index:
    """Groups of 1 to 8 images, most of one class, some with unlabelled images."""
    rng = np.random.default_rng(seed)
    index = make_index([60, 40, 30], [4, 4, 4], unlabeled=20)
    groups = [np.sort(rng.integers(first, first + n, size)) for first, n, size in ((0, 18, 60), (16, 14, 40), (40, 10, 30))]
    index.group = np.concatenate([*groups, np.arange(100, 112), rng.integers(0, 50, 20)])
    return index


@pytest.mark.parametrize("seed", range(20))
def test_folds_and_what_is_held_out_are_whole_groups(seed):
    index = grouped(seed)
    parts = [train_and_heldout(index, Data(shards="x", train_split="train+unlabeled", folds=5), False, run_seed=s) for s in range(5)]
    assert np.array_equal(np.sort(np.concatenate([part.test for part in parts])), np.arange(130)), "each labelled image once"
    largest = np.bincount(index.group[:130]).max()
    for part in parts:
        assert not set(index.group[part.test]) & set(index.group[part.train]), "unlabelled ones of a tested group neither"
        assert np.abs(np.array(counts(index, part.test)) - [12, 8, 6]).max() <= largest and min(counts(index, part.test)) > 0
    again = train_and_heldout(index, Data(shards="x", train_split="train+unlabeled", folds=5), False, run_seed=5)
    assert not any(np.array_equal(again.test, part.test) for part in parts), "the next five draw anew"
    heldout = train_and_heldout(index, Data(shards="x", train_split="train+unlabeled", val_fraction=0.2), False)
    assert not set(index.group[heldout.val]) & set(index.group[heldout.train]) and min(counts(index, heldout.val)) > 0
    assert abs(len(heldout.val) - 26) <= largest and min(counts(index, heldout.train)) > 0


def test_other_seeds_draw_other_folds_whatever_the_sizes_of_groups():
    """All of which differ, as those of patients may."""
    sizes = range(20, 60)
    index = make_index([sum(sizes) // 2, sum(sizes) - sum(sizes) // 2], [4, 4])
    index.group = np.r_[np.repeat(np.arange(40), sizes), np.arange(100, 108)]
    tested = [train_and_heldout(index, Data(shards="x", folds=5), True, run_seed=seed).test for seed in range(10)]
    alike = [len(np.intersect1d(one, other)) / len(np.union1d(one, other)) for one in tested[:5] for other in tested[5:]]
    assert max(alike) < 0.6 and np.ptp([len(test) for test in tested]) < 0.1 * len(index) / 5


def test_a_class_without_images_is_not_asked_for():
    index = make_index([40, 20, 10], [4, 4, 4])
    index.group = np.arange(len(index))
    parts = train_and_heldout(index, Data(shards="x", images=Subset(fraction=0.5, balanced=False, seed=None), val_fraction=0.3), True)
    assert counts(index, parts.train) == [24, 0, 0] and counts(index, parts.val) == [11, 0, 0]


def test_what_folds_test_on_is_of_no_group_that_is_held_out():
    index = make_index([40, 20, 10], [4, 4, 4])
    index.group = np.r_[np.arange(70) // 2, np.zeros(12, np.int64)]  # the split test is of the first image's group
    with pytest.raises(ConfigError, match=r"data.val_split: test shares images with those that are trained or tested on"):
        train_and_heldout(index, Data(shards="x", folds=5, val_split="test"), True)


def test_groups_of_one_image_are_as_none():
    """The same sizes of folds and classes in them."""
    index = make_index([41, 22, 7], [4, 4, 4])
    index.group = np.arange(len(index))
    sizes = np.array([counts(index, train_and_heldout(index, Data(shards="x", folds=5), True, run_seed=seed).test) for seed in range(5)])
    assert (np.ptp(sizes, axis=0) <= 1).all() and np.ptp(sizes.sum(1)) <= 1


def test_a_class_in_fewer_groups_than_folds_is_named():
    index = make_index([40, 20, 10], [4, 4, 4])
    index.group = np.r_[np.arange(60), np.full(10, 60), np.arange(61, 73)]
    with pytest.raises(ConfigError, match=r"data\.folds: 5 is more than the groups that these classes are in: class 2 \(1\)"):
        train_and_heldout(index, Data(shards="x", folds=5), True)
    with pytest.raises(ConfigError, match=r"data\.val_fraction: too few groups in class 2 \(1\), for one each for train and val"):
        train_and_heldout(index, Data(shards="x", val_fraction=0.2), True)


def fold(index: Index, seed: int, **fields):
    return train_and_heldout(index, Data(shards="x", train_split="train+unlabeled", folds=5, **fields), False, run_seed=seed)
