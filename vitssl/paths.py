"""What a person names on the command line, as the runs and the images that are meant; without torch, so that a mistake is told at once."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path

from vitssl.config import ConfigError, classifies, load
from vitssl.data.sources.folders import IMAGE_ENDINGS, other_endings, photos_to_convert, walk_images
from vitssl.files import check_new, runs_that_begin
from vitssl.sweep_folder import is_sweep
from vitssl.words import counted, note

NO_RUNS = ("report", "source", "submitit")  # folders in a sweep's


def run_folder(path: Path) -> Path:
    """The folder of a run, from that folder, the run.yaml in it, or the beginning of its name that no other run's has.

    Raises:
        ConfigError: it is a sweep's folder, or another file, or several runs begin so.
    """
    if path.name == "run.yaml" and path.is_file():
        return path.parent
    if path.is_file():
        raise ConfigError(f"{path} is not a run; name a run folder (runs/<sweep>/<run>), or the run.yaml in it")
    if is_sweep(path):
        example = next((f", for example {run_yaml.parent}" for run_yaml in sorted(path.glob("*/run.yaml"))), "")
        raise ConfigError(f"{path} is the folder of a whole sweep; name one of its runs{example}")
    if not path.exists():
        begun = runs_that_begin(path)
        if len(begun) == 1:
            return begun[0]
        if begun and path.name.endswith("*"):
            raise ConfigError(f"{path} came here as it is; leave out its quotes, so that the shell writes out the {len(begun)} runs")
        if begun:
            plain = path.with_name(path.name.rstrip("-*"))
            every = f"{plain}-*" if all(run.name.startswith(f"{plain.name}-") for run in begun) else f"{plain}*"
            several = f"name one, such as {begun[0]}, or where several may be named {every}"
            raise ConfigError(f"{path} begins the names of {len(begun)} runs; {several}")
        if near := _most_alike(path):
            raise ConfigError(f"there is no folder {path}; name a run, such as {near}")
    found = sorted(path.glob("*/*/run.yaml")) or sorted((Path("runs") / path.name).glob("*/run.yaml"))
    if not (path / "run.yaml").is_file() and found:
        raise ConfigError(f"{path} is not a run folder; name one, such as {found[0].parent}")
    return path


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """The folders of several runs, without what else a sweep's folder holds: ``runs/NAME/*`` names its files, report and source too.

    Raises:
        ConfigError: as `run_folder`.
    """
    beside = [path for path in paths if is_sweep(path.parent) and not is_run(path) and (path.is_file() or path.name in NO_RUNS)]
    meant = [path for path in paths if path not in beside]
    return [run_folder(path) for path in meant or paths[:1]]


def _most_alike(path: Path) -> Path | None:
    """The run beside a path that is not there, or in the folders beside, of the sweep and the name that are most like it."""
    beside, above = path.parent, path.parent.parent
    places = (beside, "*/run.yaml"), (beside, "*/*/run.yaml"), (above, "*/*/run.yaml"), (Path("runs"), "*/*/run.yaml")
    there = next((runs for folder, pattern in places if (runs := sorted(found.parent for found in folder.glob(pattern)))), [])

    def alike(run: Path) -> tuple[float, ...]:
        begun = run.name[: len(path.name)]
        return tuple(SequenceMatcher(None, *words).ratio() for words in ((run.parent.name, path.parent.name), (begun, path.name)))

    return max(there, key=alike, default=None)


def is_run(path: Path) -> bool:
    """Is it a run folder, or the run.yaml in one?"""
    return (path / "run.yaml").is_file() or (path.name == "run.yaml" and path.is_file())


def runs_and_images(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """What was typed, as the runs that come first (the first path is meant as one) and the images after them.

    Raises:
        ConfigError: there are only runs, or one is there twice or after images.
    """
    named = [is_run(path) or (not path.exists() and bool(runs_that_begin(path))) for path in paths]
    count = (named.index(False) if False in named else len(paths)) or 1
    runs, images = list(paths[:count]), list(paths[count:])
    if not is_run(runs[0]) and (later := next(filter(is_run, images), None)):
        if is_sweep(runs[0].parent):  # all that a sweep's folder holds
            arm = runs[0].parent / later.name.partition("-")[0]
            raise ConfigError(f"{runs[0]} is not a run; name the runs of one arm, such as {arm}-*")
        raise ConfigError(f"{later} is a run; name runs first, then images: vitssl predict {later} {runs[0]}")
    if not images:
        raise ConfigError(f"{runs[-1]} is a run; name images too, or folders of images")
    of_sweep = is_sweep(runs[0].parent)
    if caught := next((path for path in images if of_sweep and path.parent == runs[0].parent), None):
        arm = runs[0].parent / runs[0].name.partition("-")[0]
        raise ConfigError(f"{caught} is not a run; name the runs of one arm, such as {arm}-*")
    if twice := next((path for i, path in enumerate(runs) if path in runs[:i]), None):
        raise ConfigError(f"{twice} is named twice; each run counts once")
    return runs, images


def that_classify(folders: Sequence[Path]) -> list[Path]:
    """Of several runs those that have a classifier; that others are left out is said, since `arm-*` names an arm's pretraining too.

    Raises:
        ConfigError: none has one; it names the first.
    """
    able = [folder for folder in folders if classifies(load(folder))]
    if not able:
        advice = f"vitssl features {folders[0]} SHARDS features.npz, or vitssl.load(RUN).features(images), gives its features"
        raise ConfigError(f"{folders[0]}: this run has no classify objective, so it predicts no classes; {advice}")
    note_left_out([folder for folder in folders if folder not in able], "without a classifier")
    return able


def note_left_out(folders: Sequence[Path], which: str) -> None:
    """That a command leaves some runs out, if there are any."""
    if folders:
        note(f"{counted(len(folders), 'run')} {which} {'is' if len(folders) == 1 else 'are'} left out, such as {folders[0]}")


def image_files(paths: Sequence[Path]) -> list[Path]:
    """The files among some paths, and the images in the folders among them, at any depth and sorted.

    Raises:
        ConfigError: a path that does not exist, or a folder without images.
    """
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path} does not exist; name images, or folders of images")
        if is_run(path):
            raise ConfigError(f"{path} is a run; name runs first, then images, or folders of images")
        found = [Path(parent, name) for parent, names in walk_images(path) for name in names] if path.is_dir() else [path]
        if not found:
            raise ConfigError(f"{path} holds no images: no file ends in {' '.join(IMAGE_ENDINGS)}")
        files += found
        if path.is_dir() and (photos := photos_to_convert(other_endings(path))):
            note(f"not all files in {path} are read; {photos}")
    return files


def check_out(out: Path, example: str = "predictions.csv") -> None:
    """Refuse, before images are read, a file that cannot be written.

    Raises:
        ConfigError: it exists, or no file can be written there.
    """
    if out.is_dir():
        raise ConfigError(f"{out} is a folder; name a file, such as {out / example}")
    check_new(out)


def check_npz(out: Path) -> None:
    """Refuse a file of arrays that could not be written, or would be called something else.

    Raises:
        ConfigError: naming it.
    """
    if out.suffix != ".npz" and not out.is_dir():
        raise ConfigError(f"{out}: several arrays are an .npz file; name {out.with_suffix('.npz')}")
    check_out(out, "features.npz")


def check_weights_file(path: Path) -> None:
    """Refuse what is no file.

    Raises:
        ConfigError: naming it.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name the file of weights in it")
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; name a file of weights that does")
