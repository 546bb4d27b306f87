"""Lists of image files and their classes, in the layouts in which data sets are published.

    text    a line for each image: its path, white space or a comma, its label (DomainNet, SoybeanLocal, Cotton80); or several columns,
            of which the first is the path and one the label
    .json   a list of {"name": path, "label": class} (Chaoyang), or COCO's images, annotations and categories (iNaturalist)
    .mat    arrays `file_list` and `labels` (Stanford Dogs)
    CUB     images.txt, image_class_labels.txt, train_test_split.txt, classes.txt, each with an image's or class's id first

Here lists are read, not images. Whatever is wrong with a list is a ConfigError of one line that names the file.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from vitssl.config import ConfigError
from vitssl.reader import read_whole
from vitssl.words import counted

# a .mat of 12,000 images takes half a second and one of a million (130 MB) twenty, since each path in it is a separate cell
READ_S, READ_BYTES_PER_S = 20, 1e6
READ_MAT = """
import io, json, resource, sys
from scipy.io import loadmat
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (300, 300))  # should its parent be killed
content = loadmat(io.BytesIO(sys.stdin.buffer.read()), variable_names=["file_list", "labels"])
paths, labels = content["file_list"].ravel(), content["labels"].ravel()
json.dump([[str(path.item()) for path in paths], [str(label) for label in labels]], sys.stdout)
"""


class Row(NamedTuple):
    """One image of a list."""

    where: str  # file and line, for messages
    path: str  # relative to the folder of the images
    label: str  # the class as the list writes it; "" if it is unlabelled
    name: str  # what to call the class, if all images of it agree
    group: str = ""  # the group that it must stay with; "" if its path is its only group
    certain: bool = True  # False for a line of text in which the label, its last word, may be but a part of a column or not the label


def read_list(file: Path, label: int | None = None) -> list[Row]:
    """Read the images of a list file, whose layout follows from its ending.

    Args:
        label: the number of the column of text that holds the label; None takes the last.
    """
    reader = {".json": _json_rows, ".mat": _mat_rows}.get(file.suffix.lower())
    if reader and label:
        raise ConfigError(f"{file}: label={label} is a column of lists of text, and this is none; leave it out")
    if reader:
        return list(reader(file))
    return list(_text_rows(file) if label is None else _rows_of_columns(file, label))


def read_class_list(file: Path, name: str) -> list[Row]:
    """Read the images of one class, in the folder of its name, from a file with a file name on each line (COVID-CT)."""
    return [Row(where, f"{name}/{line}", name, name) for where, line in _lines(file)]


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    """Yield (file:number, stripped text) of each line that is not blank."""
    for number, line in enumerate(read_text(file).split("\n"), 1):
        if line.strip():
            yield f"{file}:{number}", line.strip()


def read_text(file: Path) -> str:
    """Return the text of a list file.

    Raises:
        ConfigError: there is no such file, or it is not text.
    """
    try:
        return io.TextIOWrapper(io.BytesIO(read_whole(file)), "utf-8-sig").read()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: not a text file in UTF-8") from None


def _text_rows(file: Path) -> Iterator[Row]:
    for where, line in _lines(file):
        label = re.split(r"[\s,]", line)[-1]
        path = _without_separators(line[: len(line) - len(label)])
        if not path or not label:
            raise ConfigError(f"{where}: expected an image's path and its label, not {line[:80]!r}")
        yield _row(where, path, label, _columns(line) == [path, label])


def _rows_of_columns(file: Path, label: int) -> Iterator[Row]:
    for where, line in _lines(file):
        columns = _columns(line)
        if len(columns) < label:
            raise ConfigError(f"{where}: {counted(len(columns), 'column')}, of which label={label} is none")
        path, value = columns[0], columns[label - 1]
        if not path or not value:
            raise ConfigError(f"{where}: expected an image's path in column 1 and its label in column {label}, not {line[:80]!r}")
        yield _row(where, path, value)


def _columns(line: str) -> list[str]:
    """Split a line at tabs if it has any, else at commas, else at blanks."""
    separator = next((separator for separator in "\t," if separator in line), None)
    return [column.strip() for column in line.split(separator)]


def _without_separators(text: str) -> str:
    """Strip white space and commas from the end. A pattern would scan a line of nothing else once for each of its characters."""
    end = len(text)
    while end and (text[end - 1].isspace() or text[end - 1] == ","):
        end -= 1
    return text[:end]


def _row(where: str, path: str, label: str, certain: bool = True) -> Row:
    """Return a row that names no class: a number is called after the folder of its images."""
    return Row(where, path, label, PurePosixPath(path).parent.name if label.isdecimal() else label, certain=certain)


def _json_rows(file: Path) -> Iterator[Row]:
    text = read_text(file)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError
        raise ConfigError(f"{file}: not JSON ({error})") from None
    try:
        if isinstance(content, dict):
            yield from _coco_rows(file, content)
        else:
            for number, record in enumerate(content):
                yield _row(f"{file}: entry {number}", _written(record["name"]), _written(record["label"]))
    except (KeyError, TypeError):
        raise ConfigError(f"{file}: expected a list of {{name, label}}, or COCO's images, annotations and categories") from None


def _written(value: object) -> str:
    """Return a name or a number of a JSON list as text; raise a TypeError for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise TypeError
    return str(value)


def _coco_rows(file: Path, content: dict) -> Iterator[Row]:
    names = {category["id"]: _written(category["name"]) for category in content["categories"]}
    labels: dict[int, list[int]] = {}
    for annotation in content["annotations"]:
        labels.setdefault(annotation["image_id"], []).append(annotation["category_id"])
    for image in content["images"]:
        where, categories = f"{file}: image {json.dumps(image['id'])[:80]}", labels.get(image["id"], [])
        if len(categories) != 1 or categories[0] not in names:
            raise ConfigError(f"{where}: expected one annotation with a known category, found the categories {categories[:5]}")
        yield Row(where, _written(image["file_name"]), _written(categories[0]), names[categories[0]])


def _mat_rows(file: Path) -> Iterator[Row]:
    """Yield the rows of a .mat file.

    scipy reads it in a process of its own: a damaged file can end it by a signal, keep it busy, or ask for any amount of memory.
    """
    try:
        content = read_whole(file)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from None
    limit_s = READ_S + len(content) / READ_BYTES_PER_S
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # each of its threads takes up some of the memory that is allowed
    try:
        result = subprocess.run(
            [sys.executable, "-P", "-c", READ_MAT], input=content, capture_output=True, check=False, timeout=limit_s, env=environment
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{file}: not read within {limit_s:.0f} s; it is damaged, or no list") from None
    if result.returncode:
        reason = (result.stderr.decode("utf-8", "replace").strip().splitlines() or ["it is damaged"])[-1]
        raise ConfigError(f"{file}: expected a MATLAB file with file_list and labels ({reason[:200]})")
    paths, labels = json.loads(result.stdout)
    if len(paths) != len(labels):
        raise ConfigError(f"{file}: {len(paths)} entries in file_list but {len(labels)} in labels")
    for number, (path, label) in enumerate(zip(paths, labels, strict=True)):
        yield _row(f"{file}: entry {number}", path, label)


# ----------------------------------------------------------------------------------------------------------------- CUB


def read_cub(root: Path) -> dict[str, list[Row]]:
    """Read the splits "train" and "test" of CUB-200-2011's layout, which NABirds shares; paths are relative to images/."""
    paths, names = _by_id(root / "images.txt"), _by_id(root / "classes.txt")
    labels, training = _by_id(root / "image_class_labels.txt"), _by_id(root / "train_test_split.txt")
    splits: dict[str, list[Row]] = {"train": [], "test": []}
    for image, path in paths.items():
        label = _entry(labels, image, root / "image_class_labels.txt", "image")
        name = _entry(names, label, root / "classes.txt", "class")
        flag = _entry(training, image, root / "train_test_split.txt", "image")
        if flag not in ("0", "1"):
            raise ConfigError(f"{root / 'train_test_split.txt'}: image {image}: expected 1 (training) or 0, not {flag!r}")
        splits["train" if flag == "1" else "test"].append(Row(f"{root / 'images.txt'}: image {image}", path, label, name))
    return splits


def _by_id(file: Path) -> dict[str, str]:
    """Return what follows the id on each line of ``file``, by id."""
    pairs = (line.partition(" ") for _, line in _lines(file))
    return {key: value.strip() for key, _, value in pairs}


def _entry(entries: dict[str, str], key: str, file: Path, what: str) -> str:
    if key not in entries:
        raise ConfigError(f"{file}: no line for {what} {key}")
    return entries[key]
