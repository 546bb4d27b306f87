"""Which runs a word names, and that no word names fewer or more runs than people are used to."""

from __future__ import annotations

import hashlib

import pytest

from vitssl.config import ConfigError
from vitssl.run_names import matches, refuse_several


def sweep_of(arms: dict[str, tuple[str, ...]], seeds: tuple[int, ...] = (0, 1, 2, 10)) -> list[str]:
    """Names as of a sweep's run folders, from its arms with their stages, and the axis values of each."""
    plain = ["-".join(filter(None, (arm, value, f"s{seed}"))) for arm, values in arms.items() for value in values for seed in seeds]
    return sorted(f"{name}-{hashlib.sha256(name.encode()).hexdigest()[:12]}" for name in plain)


ARMS = ("ssat", "sl_ssat", "sslft-pretrain", "sslft-finetune")
SWEEPS = {
    "seeds": sweep_of(dict.fromkeys(ARMS, ("",)), tuple(range(11))),
    "values": sweep_of(dict.fromkeys(ARMS, ("equal_epochs", "equal_macs"))),
    "numbers": sweep_of(dict.fromkeys(ARMS, ("per_class5", "per_class50", "lr0.1"))),
    "pretraining_shared": sweep_of({arm: ("",) if arm.endswith("-pretrain") else ("per_class5", "per_class50") for arm in ARMS}),
}


def whole(words: list[str]) -> list[str]:
    """The names without their hashes."""
    return [word.rpartition("-")[0] for word in words]


@pytest.mark.parametrize(
    ("sweep", "word", "named"),
    [
        ("seeds", "ssat-s1", ["ssat-s1"]),  # neither s10 nor sl_ssat
        ("seeds", "sslft-s1", ["sslft-finetune-s1", "sslft-pretrain-s1"]),
        ("values", "ssat-s1", ["ssat-equal_epochs-s1", "ssat-equal_macs-s1"]),
        ("values", "ssat-equal_macs-s1", ["ssat-equal_macs-s1"]),
        ("values", "sslft-pretrain-s10", ["sslft-pretrain-equal_epochs-s10", "sslft-pretrain-equal_macs-s10"]),
        ("values", "ssat-equal_e-s1", []),  # words are whole
        ("values", "ssat-s1-equal_macs", []),  # and in order
        ("values", "ssat-equal_m*", [f"ssat-equal_macs-s{seed}" for seed in (0, 1, 10, 2)]),
        ("numbers", "ssat-per_class5", [f"ssat-per_class5-s{seed}" for seed in (0, 1, 10, 2)]),
        ("numbers", "", []),
    ],
)
def test_a_word_stands_for_the_runs_that_it_fits_best(sweep: str, word: str, named: list[str]) -> None:
    assert whole(matches(word, SWEEPS[sweep])) == named


def test_a_hash_may_be_cut_and_left_out() -> None:
    names = SWEEPS["seeds"]
    for name in names:
        assert all(matches(name[:end], names) == [name] for end in range(len(name) - 10, len(name) + 1))
        assert matches(name.rpartition("-")[0], names) == [name]


def test_a_number_is_never_taken_apart() -> None:
    """`cancel.py ssat-s1` stopped s10 of a sweep without s1."""
    names = ["ssat-s10-aaaaaaaaaaaa", "ssat-lr10.5-s3-bbbbbbbbbbbb", "ssat-lr1e-4-s0-cccccccccccc"]
    for word in ("ssat-s1", "s1", "t-s10", "5-s3", "ssat-lr1", "lr10"):
        assert matches(word, names, anywhere=True) == [], word
    for word, name in (("s10", names[0]), ("lr10.5", names[1]), ("lr1e-4-s0", names[2]), ("lr10.5-s3", names[1])):
        assert matches(word, names, anywhere=True) == [name]


def test_an_arm_is_not_taken_for_another_whose_name_ends_so() -> None:
    """Before there was one rule, mae-s1 was the only convmae-s1 in a sweep of which mae has more axes."""
    names = sweep_of({"convmae": ("",), "mae": ("mask0.5", "mask0.75")})
    assert whole(matches("mae-s1", names, anywhere=True)) == ["mae-mask0.5-s1", "mae-mask0.75-s1"]


def test_several_runs_are_refused_by_name() -> None:
    refuse_several("ssat", [])
    refuse_several("ssat", ["ssat-s0-0123"])
    with pytest.raises(ConfigError, match=r"^file: init_from: ssat stands for 2 runs: ssat-s0-0123 and ssat-s1-4567; name one, or all$"):
        refuse_several("ssat", ["ssat-s0-0123", "ssat-s1-4567"], ", or all", "init_from", "file")


def test_words_may_begin_within_a_name() -> None:
    names = [f"sslft-{stage}-equal_epochs-s{seed}-{seed:012x}" for stage in ("pretrain", "finetune") for seed in (0, 1, 10)]
    assert matches("finetune-s1", names, anywhere=True) == ["sslft-finetune-equal_epochs-s1-000000000001"]
    assert len(matches("s1", names, anywhere=True)) == 2 and matches("finetune-s1", names) == []
