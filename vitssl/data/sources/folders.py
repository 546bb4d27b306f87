"""Folders of images: PATH/train/<class>/... with a test split beside it, or PATH/<class>/..., of which a share is held out.

Here files are only listed, not read.
"""

from __future__ import annotations

import os
import posixpath
import shlex
from collections import Counter
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from PIL import features

from vitssl.config import ConfigError
from vitssl.config.base import closest, did_you_mean
from vitssl.data import UNLABELLED
from vitssl.data.index_schema import holds_shards
from vitssl.data.sources import held_out, lists
from vitssl.data.sources.held_out import SHARES
from vitssl.data.sources.samples import Options, Sample, Source, refuse_repeated_options
from vitssl.data.sources.splits import (
    HELD_OUT,
    TRAIN,
    UNLABELED,
    UNLABELED_SPELLINGS,
    first_named,
    is_hidden,
    spelled,
    split_folders,
    subfolders,
    unlabeled_folders,
)
from vitssl.words import counted, first_few, has_control

UNREAD = (".heic", ".heif", ".jxl", ".dng", ".cr2", ".nef", ".arw")  # photos in formats that are not read
AVIF = (".avif",) if "avif" in features.modules and features.check("avif") else ()  # from Pillow 11.3 on
IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp", ".jp2", *AVIF)
MISSPELLED = 0.8  # how alike, of 1, a name must be to count as a misspelling of another
A_FIFTH = {"test": ["0.2"], "seed": ["0"]}


class NoTestSplit(ConfigError):
    """The error about a folder of classes without a test split; ``source`` is the same folder with a fifth of each class held out."""

    def __init__(self, root: Path, options: Options, found: str):
        self.found, self.source = f"folder:{root}: {found}", source_of(root, options | A_FIFTH)
        super().__init__(f"{self.found}; {shlex.quote(self.source)} holds out a fifth of each class for testing")


def source_of(root: Path, options: Options) -> str:
    """Return the source string of a folder with options."""
    query = "&".join(f"{key}={value}" for key, values in options.items() for value in values)
    return f"folder:{root}" + (f"?{query}" if query else "")


def existing(kind: str, path: str) -> Path:
    """Return the folder that a source names.

    Raises:
        ConfigError: there is no such folder.
    """
    root = Path(path).expanduser()
    if not os.path.isdir(root):  # also False for a name that is too long to be one
        raise ConfigError(f"{kind}:{root}: there is no such folder")
    return root


def open_folder(path: str, options: Options) -> Source:
    """List the images of a folder, with the shares of its classes that are held out as splits of their own.

    Raises:
        ConfigError: splits or classes are missing or ambiguous; the message is one line.
    """
    refuse_repeated_options(f"folder:{path}", options, {UNLABELED})
    root = existing("folder", path)
    folders = dict(zip(SHARES, split_folders(root, HELD_OUT), strict=False))
    hold_out = held_out.parse_hold_out(f"folder:{root}", options, "leave such classes out (classes=FILE)")
    if twice := next((split for split in hold_out.shares if split in folders), None):
        raise ConfigError(f"folder:{root}: {root / folders[twice]} is the {twice} split already; leave out {twice}={options[twice][-1]}")
    if _is_unlabeled(root, options):
        return _unlabeled_source(root, hold_out, options)
    train = _train_folder(root, folders, options)
    present = _class_names(root, train)
    classes = _chosen(present, train, root / options["classes"][-1]) if "classes" in options else present
    samples = _class_folders(root, train, classes, train)
    splits = held_out.divided(hold_out, classes, samples, [sample.name for sample in samples])
    for split, name in folders.items():
        if unknown := sorted(set(subfolders(root / name)) - set(present)):
            meant = did_you_mean(closest(unknown[0], present))
            raise ConfigError(f"{root / name / unknown[0]}: a class that {train} does not have{meant}")
        splits[split] = _class_folders(root, root / name, classes, train)
    read = [folder / name for folder in (train, *(root / held for held in folders.values())) for name in classes]
    read += [root / name for name in unlabeled_folders(root)]
    if unlabeled := [*_unlabeled_inside(root), *_unlabeled_elsewhere(root, options, read)]:
        splits[UNLABELED] = unlabeled
    return Source(root.resolve().name, classes, splits)


def _is_unlabeled(root: Path, options: Options) -> bool:
    """Whether no image has a label: the option ``unlabeled`` names the folder itself, or the folder holds nothing but unlabelled images."""
    if _is_whole(root, options):
        return True
    unlabeled = unlabeled_folders(root)
    return unlabeled == subfolders(root) and any(_images(root, root / name) for name in unlabeled)


def _is_whole(root: Path, options: Options) -> bool:
    """Whether the option ``unlabeled`` names the folder itself."""
    return root.resolve() in _named(root, options)


def _named(root: Path, options: Options) -> list[Path]:
    """Return the folders that the option ``unlabeled`` names."""
    return [(root / Path(path).expanduser()).resolve() for path in options.get(UNLABELED, ())]


def _unlabeled_source(root: Path, hold_out: held_out.HoldOut, options: Options) -> Source:
    """List images without labels as the split for training, as `csv:` does: they are enough for a self-supervised task."""
    if needs_classes := next((name for name in (*hold_out.shares, "classes") if name in options), None):
        raise ConfigError(f"folder:{root}: {needs_classes}={options[needs_classes][-1]}: no image has a label; leave it out")
    whole = _is_whole(root, options)
    inside = [] if whole else _unlabeled_inside(root)
    read = [] if whole else [root / name for name in unlabeled_folders(root)]
    return Source(root.resolve().name, [], {"train": [*inside, *_unlabeled_elsewhere(root, options, read)]})


def _unlabeled_inside(root: Path) -> Iterator[Sample]:
    for name in unlabeled_folders(root):
        yield from (Sample(image, UNLABELLED, str(root / image)) for image in _images(root, root / name))


def _unlabeled_elsewhere(root: Path, options: Options, read: list[Path]) -> Iterator[Sample]:
    """Yield the images, at any depth, of the folders that the option ``unlabeled`` names, none of which may overlap those of ``read``."""
    named = _named(root, options)
    known = [folder.resolve() for folder in read] if named else []
    for path, folder in zip(options.get(UNLABELED, ()), named, strict=True):
        if not (images := _images(folder, folder)):
            missing = "there is no such folder" if not folder.is_dir() else f"no file in it ends in {' '.join(IMAGE_ENDINGS)}"
            raise ConfigError(f"folder:{root}: {UNLABELED}={path}: {folder}: {missing}; the path is relative to {root}")
        if twice := next((other for other in known if folder.is_relative_to(other) or other.is_relative_to(folder)), None):
            advice = "name the folders beside it instead" if twice.is_relative_to(folder) and twice != folder else "leave it out"
            raise ConfigError(f"folder:{root}: {UNLABELED}={path}: images in it are read already, from {twice}; {advice}")
        known.append(folder)
        place = f"{UNLABELED}/{folder.name}"
        yield from (Sample(posixpath.normpath(f"{place}/{image}"), UNLABELLED, str(folder / image)) for image in images)


def _train_folder(root: Path, folders: dict[str, str], options: Options) -> Path:
    """Return PATH/train, or PATH itself if it holds nothing but classes."""
    train = first_named(root, TRAIN)
    if train.is_dir():
        if "test" not in {*folders, *options}:
            raise NoTestSplit(root, options, f"no test split; expected {root}/test/<class>/<image> or {root}/val/<class>/<image>")
        return train
    if folders or unlabeled_folders(root) == subfolders(root):
        reason = f"there is no {train}; expected {root}/train/<class>/<image>, or {root}/<class>/<image>"
        unlabeled = shlex.quote(source_of(root, {UNLABELED: ["."]}))
        alone = f"; if no image has a label, which is enough for pretraining: {unlabeled}" if not folders and _images(root, root) else ""
        raise ConfigError(f"folder:{root}: {reason}{alone}")
    if "test" not in options:
        names = first_few(_class_names(root, root))
        raise NoTestSplit(root, options, f"there is no {train}; expected {root}/train/<class>/<image>, found the folders {names}")
    return root


def _class_names(root: Path, train: Path) -> list[str]:
    names = [name for name in subfolders(train) if train != root or spelled(name) != UNLABELED]
    if not names:
        raise ConfigError(f"folder:{root}: {train} holds no class folders")
    if without := next((name for name in names if name.lower().startswith(UNLABELED_SPELLINGS)), None):
        reason = "it would be a class; a folder of images without labels is called unlabeled, or named by &unlabeled=FOLDER from elsewhere"
        raise ConfigError(f"{train / without}: {reason}")
    if odd := next((name for name in names if has_control(name)), None):
        raise ConfigError(f"folder:{root}: {train}: the class folder {odd!r} has a control character in its name; rename it")
    if unwritable := next((os.fsencode(name) for name in names if any("\udc80" <= letter <= "\udcff" for letter in name)), None):
        raise ConfigError(f"folder:{root}: {train}: the name of the class folder {unwritable!r} is not UTF-8; rename it")
    return names


def _chosen(present: list[str], train: Path, file: Path) -> list[str]:
    """Return the classes that a file names by the lines or, unless a whole line is a class, their first words, in the order of all."""
    lines = [line.strip() for line in lists.read_text(file).splitlines() if line.strip()]
    known = set(present)
    names = {line if line in known else line.split()[0] for line in lines}
    if missing := sorted(names - known):
        raise ConfigError(f"{file}: class {missing[0]!r} has no folder {train / missing[0]}")
    if not names:
        raise ConfigError(f"{file}: names no classes; expected one on each line")
    return [name for name in present if name in names]


def _class_folders(root: Path, folder: Path, classes: list[str], train: Path) -> list[Sample]:
    samples = []
    for label, name in enumerate(classes):
        images = _images(root, folder / name)
        if not (folder / name).is_dir():
            raise ConfigError(f"{folder}: there is no folder {name}, which {train} has; every class is in both")
        if not images and holds_shards(folder / name):
            raise ConfigError(f"{folder / name}: holds shards, and would be a class; move it out of {folder}")
        if not images:
            reason = f"no images for class {name!r}; remove the folder, or put files in that end in {' '.join(IMAGE_ENDINGS)}"
            raise ConfigError(f"{folder / name}: {reason}")
        samples += [Sample(image, label, str(root / image)) for image in images]
    return samples


def _images(root: Path, folder: Path) -> list[str]:
    """Return the paths of the images in ``folder`` at any depth, relative to ``root``, sorted."""
    return sorted(_walk(root, folder)) if folder.is_dir() else []


def _walk(root: Path, folder: Path) -> Iterator[str]:
    for parent, names in walk_images(folder):
        relative = Path(parent).relative_to(root).as_posix()
        if odd := next((name for name in (relative, *names) if has_control(name)), None):
            raise ConfigError(f"folder:{root}: {odd!r} has a line break or another control character; rename it")
        yield from (f"{relative}/{name}" for name in names)


def walk_images(folder: str | Path, above: tuple[str, ...] = ()) -> Iterator[tuple[str, list[str]]]:
    """Yield a folder and those below it, each with the names of its images, sorted.

    Hidden files and folders are left out. Links are followed, except those to a folder in ``above``, which would lead in a circle.

    Raises:
        OSError: a folder cannot be read.
    """
    if (real := os.path.realpath(folder)) in above:
        return
    with os.scandir(folder) as scan:
        entries = sorted((entry for entry in scan if not is_hidden(entry.name)), key=lambda entry: entry.name)
    yield str(folder), [entry.name for entry in entries if entry.name.lower().endswith(IMAGE_ENDINGS) and not entry.is_dir()]
    for entry in entries:
        if entry.is_dir():
            yield from walk_images(entry.path, (*above, real))


def notes(path: str, options: Options) -> Iterator[str]:
    """Yield notes about what a folder of images holds and a build leaves out or may misunderstand."""
    root = Path(path).expanduser()
    if not root.is_dir():
        return
    if not _is_whole(root, options):
        yield from _class_notes(root, options)
    for name in unlabeled_folders(root):
        if not any(images for _, images in walk_images(root / name)):
            yield f"{root / name} holds no images"
    if endings := other_endings(root):
        counts = ", ".join(f"{number:,} {ending}" for ending, number in endings.most_common(5))
        advice = f"; {photos}" if (photos := photos_to_convert(endings)) else ""
        yield f"left out, as no images by their names: {counted(endings.total(), 'file')} ({counts}){advice}"


def _class_notes(root: Path, options: Options) -> Iterator[str]:
    class_parents = [""]
    if (train := first_named(root, TRAIN)).is_dir():
        class_parents += [train.name, *split_folders(root, HELD_OUT)[: len(SHARES)]]
        used = [*class_parents[1:], *unlabeled_folders(root)]
        named = _named(root, options)
        ignored = [name for name in subfolders(root) if name not in used and (root / name).resolve() not in named]
        if ignored:
            names = f"{train.name}, {' or '.join(HELD_OUT)}, {UNLABELED}"
            yield f"left out, as no splits by their names: {first_few(ignored)} in {root}; a split is called {names}"
    for name in subfolders(root / (class_parents[1] if class_parents[1:] else "")):
        misspelled = name.lower().startswith("un") and get_close_matches(name.lower(), UNLABELED_SPELLINGS, cutoff=MISSPELLED)
        if misspelled and spelled(name) != UNLABELED:
            yield f"{name} is taken for a class; if its images have no labels, call it {UNLABELED}"
    for folder in (root / name for name in class_parents):
        if loose := next(walk_images(folder))[1] if folder.is_dir() else []:
            yield f"left out, in no class's folder: {counted(len(loose), 'image')} in {folder} itself ({first_few(loose)})"


def photos_to_convert(endings: Counter[str]) -> str:
    """Return what to do about photos among the files that are left out, or an empty string if there are none."""
    photos = [ending for ending in endings if ending in UNREAD]
    return f"those that end in {' or '.join(photos)} are photos: convert them to .jpg" if photos else ""


def other_endings(root: str | Path) -> Counter[str]:
    """Return how many files of each ending, such as .heic, a folder holds that are not taken for images. Hidden files do not count."""
    endings: Counter[str] = Counter()
    for parent, names, files in os.walk(root):
        names[:] = [name for name in names if not is_hidden(name)]
        suffixes = (Path(parent, name).suffix.lower() or name for name in files if not is_hidden(name))
        endings.update(ending for ending in suffixes if ending not in IMAGE_ENDINGS)
    return endings
