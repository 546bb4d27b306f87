"""Tars that stay where they are and serve as shards: what each of them holds, a link to it, and the classes that all of them have.

A build reads each tar once. It records a row for each image, as for shards that it writes itself (`writing`), and the name and label of
each sample. Once all tars are read, `images` returns the source with the images in them, as if it had listed them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO

import numpy as np

from vitssl.config import ConfigError
from vitssl.data import UNLABELLED
from vitssl.data.building import tars, writing
from vitssl.data.building.finishing import Records
from vitssl.data.pixels import decode
from vitssl.data.sources.samples import Sample, Source, Tars
from vitssl.reader import MOST_IMAGE_BYTES

MOST_CLASSES = 1_000_000
MOST_CLASS_NAME_CHARS = 200  # characters of a class's name
LARGEST_LABEL = 2**24  # bytes of a member that holds a label


def writer(source: Source) -> Callable[[tuple[writing.Job, list[Sample]]], int]:
    """Return the function that makes a shard of ``source`` from the shard's job and samples."""
    return partial(_link, source) if isinstance(source, Tars) else writing.write


def _link(source: Tars, task: tuple[writing.Job, list[Sample]]) -> int:
    """Read one tar, link to it, and write the record of what it holds. Return 1, the number of tars."""
    job, (tar,) = task
    reader = _Reader(source, str(tar.image), labelled=job.split != "unlabeled")
    reader.read()
    temporary = job.record_file.with_suffix(".tar")
    temporary.unlink(missing_ok=True)  # left by an interrupted build
    temporary.symlink_to(reader.path)
    reader.written.finish(job, temporary, samples=reader.samples)
    return 1


class _Reader:
    """A reader of one tar, with what it found so far."""

    def __init__(self, source: Tars, path: str, labelled: bool):
        self.source, self.path, self.labelled = source, path, labelled
        self.positions = {name: k for k, name in enumerate(source.classes)}
        self.written = writing.Written()
        self.samples: list[tuple[str, str | None]] = []  # name and label of each sample, usable or not

    def read(self) -> None:
        """Read the tar to its end, or up to where it is damaged, which is recorded as a sample that is left out."""
        try:
            with tars.open_tar(self.path) as stream:
                for sample in tars.samples(stream, self.path):
                    self._add(stream, sample)
            if not self.samples:
                raise ConfigError(f"{self.path}: holds no files that belong to a sample, such as 000.jpg")
        except ConfigError as error:
            self._leave_out("", error)

    def _leave_out(self, name: str, error: ConfigError) -> None:
        self.written.left_out.append((len(self.samples), str(error)))
        self.samples.append((name, None))

    def _add(self, stream: BinaryIO, sample: tars.TarSample) -> None:
        try:
            if sample.problem:
                raise ConfigError(f"{sample.where}: {sample.problem}")
            ending = _image_ending(sample, self.source.endings)
            label = self._label(stream, sample) if self.labelled else None
            image = self._image(stream, sample, ending)
        except ConfigError as error:
            self._leave_out(sample.key, error)
            return
        self.written.keep(sample.members[ending].offset_data, UNLABELLED, image)
        self.samples.append((f"{sample.key}.{ending}", label))

    def _image(self, stream: BinaryIO, sample: tars.TarSample, ending: str) -> writing.Stored:
        where = f"{sample.where}.{ending}"
        if sample.members[ending].size > MOST_IMAGE_BYTES:
            raise ConfigError(f"{where}: {sample.members[ending].size:,} bytes, more than {MOST_IMAGE_BYTES:,}, are not an image")
        encoded = _content(stream, sample, ending)
        pixels, scaled_from = decode.decode_file(encoded, where)
        if scaled_from and not np.array_equal(decode.decode(encoded, where), pixels):
            raise ConfigError(f"{where}: {scaled_from}, which shards hold scaled to 8 bits; unpack the tars and build from list: or csv:")
        return writing.Stored(encoded, pixels, scaled_from)

    def _label(self, stream: BinaryIO, sample: tars.TarSample) -> str:
        """Return the class of a sample as its tar writes it."""
        member, where = self.source.member, f"{sample.where}.{self.source.member}"
        if member not in sample.members:
            raise ConfigError(f"{sample.where}: has no member {member} with its label, but {sample.endings_text}; label=... says which has")
        if sample.members[member].size > LARGEST_LABEL:
            raise ConfigError(f"{where}: {sample.members[member].size:,} bytes, too many for a label")
        text = _text(_content(stream, sample, member), self.source.field, where)
        if problem := self._label_problem(text):
            raise ConfigError(f"{where}: {problem}")
        return text

    def _label_problem(self, text: str) -> str | None:
        """Return what is wrong with the text of a label, or None."""
        if not text or not text.isprintable() or len(text) > MOST_CLASS_NAME_CHARS:
            return f"expected a number or a name in a line, not {text[:50]!a}"
        if re.fullmatch(r"-[0-9]+", text):
            return f"label {text} is negative; put images without a class into tars of their own and name them by unlabeled=..."
        if self.positions and _position(text, self.positions) is None:
            return f"{text!r} is none of the {len(self.positions):,} classes in the file, by name or by number from 0"
        if not self.positions and _is_number(text) and int(text) >= MOST_CLASSES:
            return f"{text} as the number of a class would make more than {MOST_CLASSES:,} classes"
        return None


def _image_ending(sample: tars.TarSample, endings: tuple[str, ...]) -> str:
    image_endings = [ending for ending in sample.members if ending in endings]
    if not image_endings:
        raise ConfigError(f"{sample.where}: has no image ({', '.join(endings)}), but {sample.endings_text}")
    if len(image_endings) > 1:
        raise ConfigError(f"{sample.where}: has several images, {' and '.join(sorted(image_endings))}; image=... says which is meant")
    return image_endings[0]


def _content(stream: BinaryIO, sample: tars.TarSample, ending: str) -> bytes:
    return os.pread(stream.fileno(), sample.members[ending].size, sample.members[ending].offset_data)


def _text(content: bytes, field: tuple[str, ...], where: str) -> str:
    """Return the text of a label, or of the ``field`` of JSON that holds it."""
    try:
        value = json.loads(content) if field else content.decode("utf-8-sig")
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: is not {'JSON' if field else 'text in UTF-8'} ({error})") from None
    for depth, key in enumerate(field):
        if not isinstance(value, dict) or key not in value:
            raise ConfigError(f"{where}: has no field {'.'.join(field[: depth + 1])}")
        value = value[key]
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ConfigError(f"{where}: {'.'.join(field)} is {ascii(value)[:50]}, neither a whole number nor a name")
    return str(value).strip()


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _position(text: str, positions: dict[str, int]) -> int | None:
    """Return the position of a class that is given by its name or number, or None if there is no such class."""
    if text in positions:
        return positions[text]
    return int(text) if _is_number(text) and int(text) < len(positions) else None


# ------------------------------------------------------------------------------------------------- when all tars are read


def images(source: Source, records: Records) -> tuple[Source, Records]:
    """Return a source with the images in its tars and their classes, and its records to match; other sources and records as they are.

    Raises:
        ConfigError: a class does not occur in training; the message names tar and member.
    """
    if not isinstance(source, Tars):
        return source, records
    classes, numbered = (source.classes, True) if source.classes else _classes(records)
    positions = {name: k for k, name in enumerate(classes)}
    splits: dict[str, list[Sample]] = {split: [] for split in source.splits}
    numbered_records = []
    for job, record in records:
        samples, tar, start = splits[job.split], source.splits[job.split][job.start], len(splits[job.split])
        for name, text in record["samples"]:
            label = _position(text or "", positions) if numbered else positions.get(text or "")
            if text is not None and label is None:
                raise ConfigError(f"{tar.image}: {name}: class {text!r} of split {job.split!r} does not occur in the train split")
            place = f"{tar.name}: {name}" if name else tar.name
            samples.append(Sample(place, UNLABELLED if label is None else label, tar.image))
        numbered_records.append((replace(job, start=start, stop=len(samples)), _numbered(record, samples[start:], start)))
    return Source(source.name, classes, splits), numbered_records


def _classes(records: Records) -> tuple[list[str], bool]:
    """Return the classes of the training tars, and whether they are given as numbers."""
    labels = {text for job, record in records if job.split == "train" for _, text in record["samples"] if text is not None}
    if all(map(_is_number, labels)):
        return [str(k) for k in range(1 + max(map(int, labels), default=-1))], True
    return sorted(labels), False


def _numbered(record: dict[str, Any], samples: list[Sample], start: int) -> dict[str, Any]:
    """Return a tar's record with the labels of its images, and with its samples numbered within the split."""
    left_out = {number for number, _ in record["left_out"]}
    labels = [sample.label for number, sample in enumerate(samples) if number not in left_out]
    rows = [(offset, size, label, *rest) for (offset, size, _, *rest), label in zip(record["rows"], labels, strict=True)]
    return record | {"rows": rows, "left_out": [(start + number, reason) for number, reason in record["left_out"]]}
