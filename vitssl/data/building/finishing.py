"""The end of a build: the index and the findings, from the records of all shards."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from vitssl import pool
from vitssl.config import ConfigError
from vitssl.data import UNLABELLED
from vitssl.data.building import findings, near_duplicates
from vitssl.data.building.writing import Job
from vitssl.data.index import COLUMNS, Index, fingerprint
from vitssl.data.sources.samples import Sample, Source, group_numbers

BAD_IMAGES = "bad_images.txt"
SHOWN = 20  # bad images that are printed
FLAT = 1 / 255  # standard deviation of pixels in [0, 1] below which there is nothing to see

Records = list[tuple[Job, dict[str, Any]]]
Signatures = dict[str, np.ndarray]  # by split: (N, D), one for each image
Samples = dict[str, list[Sample]]  # by split: the images of the signatures


def refuse_bad_images(out: Path, records: Records) -> None:
    """Write the images that could not be used to a file, and print the first of them to stderr.

    Raises:
        ConfigError: there are such images.
    """
    reasons = list(dict.fromkeys(reason for _, record in records for _, reason in record["left_out"]))
    (out / BAD_IMAGES).unlink(missing_ok=True)
    if not reasons:
        return
    (out / BAD_IMAGES).write_text("".join(f"{reason}\n" for reason in reasons), "utf-8", "surrogateescape")
    if len(reasons) == 1:
        raise ConfigError(f"{reasons[0]}; repair or delete it, or give `vitssl shards build` --skip-bad, which leaves it out")
    more = [f"... and {len(reasons) - SHOWN:,} more"] if len(reasons) > SHOWN else []
    print("\n".join([*reasons[:SHOWN], *more]), file=sys.stderr)
    where = f"listed in {out / BAD_IMAGES}"
    raise ConfigError(f"{len(reasons):,} images cannot be used, {where}; repair or delete them, or give `vitssl shards build` --skip-bad")


def index_of(source: Source, listed: str, out: Path, records: Records) -> Index:
    """Return the index of the shards that were written.

    Raises:
        ConfigError: no image of a split or of one of its classes is left, or the images of a split show nothing.
    """
    rows = np.array([row for _, record in records for row in record["rows"]], dtype=np.int64).reshape(-1, len(COLUMNS))
    shards = [record["shard"] for _, record in records if record["shard"]]
    moments = {split: _moments(split, records) for split in source.splits}
    columns: dict[str, Any] = dict(zip(COLUMNS, rows.T.copy(), strict=True))
    index = Index(out, source.name, listed, "", source.classes, *moments["train"], shards, **columns)
    if source.grouped:
        index.group = group_numbers(source.splits[job.split][i] for job, record in records for i in _kept(job, record))
    _refuse_emptied(source, index)
    for split, (mean, std) in moments.items():
        if max(std) < FLAT:
            reason = f"all pixels are nearly equal (mean {sum(mean) / 3:.4f}, standard deviation {max(std):.4f} on a scale of 0 to 1)"
            raise ConfigError(f"{source.name}: there is nothing to see in the images of {split}, {reason}; look at some, or save them anew")
    index.sha256 = fingerprint(index)
    return index


def _moments(split: str, records: Records) -> tuple[list[float], list[float]]:
    """Return the mean and the standard deviation of a split's pixels, RGB in [0, 1]."""
    totals = np.sum([np.array(record["totals"], dtype=object) for job, record in records if job.split == split], axis=0)
    mean, std = [], []
    for number, first, second in totals.T.tolist():
        mean.append(first / (255 * max(number, 1)))
        std.append((number * second - first**2) ** 0.5 / (255 * max(number, 1)))
    return mean, std


def _refuse_emptied(source: Source, index: Index) -> None:
    """Raise a ConfigError if none of the images of a split, or of a class in it, could be used."""
    if len(index) == sum(len(samples) for samples in source.splits.values()):
        return
    for split, samples in source.splits.items():
        if split not in index.splits:
            raise ConfigError(f"{source.name}: no image of split {split!r} can be used")
        left = np.unique(index.label[index.where(split)])
        if lost := sorted({sample.label for sample in samples if sample.label != UNLABELLED} - set(left.tolist())):
            raise ConfigError(f"{source.name}: no image of class {source.classes[lost[0]]!r} in split {split!r} can be used")


def find(source: Source, records: Records, progress: bool) -> findings.Findings:
    """Return the findings of a build: what its records say, near-duplicates across splits, and equal images within a split."""
    scaled: Counter[str] = sum((Counter(record["scaled"]) for _, record in records), Counter())
    bad = [(job.split, source.splits[job.split][i], reason) for job, record in records for i, reason in record["left_out"]]
    left_out = [[split, sample.name, reason.removeprefix(f"{_place(sample)}: ")] for split, sample, reason in bad]
    signatures, samples = {}, {}  # by split, of the images that were kept
    for split in source.splits:
        parts = [(job, record) for job, record in records if job.split == split]
        signatures[split] = np.concatenate([np.load(job.signatures) for job, _ in parts])
        samples[split] = [source.splits[split][i] for job, record in parts for i in _kept(job, record)]
    return findings.Findings(dict(scaled), left_out, _near_duplicates(signatures, samples, progress), _equal(signatures, samples))


def _place(sample: Sample) -> str:
    """Return what a message calls an image."""
    return sample.image if isinstance(sample.image, str) else sample.name


def _near_duplicates(signatures: Signatures, samples: Samples, progress: bool) -> list[list]:
    compared = sum(len(signatures[split]) for split, _ in near_duplicates.pairs_of(list(signatures)))
    with pool.progress_bar("near-duplicates", compared, progress and compared > 0) as advance:
        matches = list(near_duplicates.find(signatures, advance))
    return [[a.split, samples[a.split][a.position].name, a.of_split, samples[a.of_split][a.of_position].name, a.likeness] for a in matches]


def _equal(signatures: Signatures, samples: Samples) -> list[list]:
    rows = []
    for split, of_split in samples.items():
        pairs = ((of_split[position], of_split[first]) for position, first in near_duplicates.equal(signatures[split]))
        rows += [[split, sample.name, first.name, sample.label == first.label] for sample, first in pairs]
    return rows


def _kept(job: Job, record: dict[str, Any]) -> np.ndarray:
    """Return the numbers, within their split, of the images of a shard that were not left out."""
    return np.setdiff1d(np.arange(job.start, job.stop), [number for number, _ in record["left_out"]])
