"""Finding the runs and images that paths on the command line mean. This imports no torch, so that a mistake is reported at once."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path

from vitssl.config import ConfigError, classifies, load
from vitssl.data.sources.folders import IMAGE_ENDINGS, other_endings, photos_to_convert, walk_images
from vitssl.files import check_new
from vitssl.run_folder import RUN, folders_named
from vitssl.run_names import refuse_several
from vitssl.sweep_folder import is_sweep
from vitssl.words import counted, note

NO_RUNS = ("report", "source", "submitit")  # folders in a sweep's folder that are not runs


def find_run_folder(path: Path) -> Path:
    """Return the run folder that ``path`` means: that folder, the run.yaml in it, or as much of its name as stands for no other run.

    Raises:
        ConfigError: ``path`` is a sweep's folder or another file, or stands for several runs (`run_names.matches`).
    """
    if path.name == RUN and path.is_file():
        return path.parent
    if path.is_file():
        raise ConfigError(f"{path} is not a run; name a run folder (runs/<sweep>/<run>), or the run.yaml in it")
    if is_sweep(path):
        example = next((f", for example {run_yaml.parent}" for run_yaml in sorted(path.glob(f"*/{RUN}"))), "")
        raise ConfigError(f"{path} is the folder of a whole sweep; name one of its runs{example}")
    if not path.exists():
        matches = folders_named(path)
        if len(matches) > 1 and path.name.endswith("*"):
            raise ConfigError(f"{path} came here as it is; leave out its quotes, so that the shell writes out the {len(matches)} runs")
        refuse_several(str(path), [run.name for run in matches], _pattern_advice(path, matches))
        if matches:
            return matches[0]
        if suggestion := _most_alike(path):
            raise ConfigError(f"there is no folder {path}; name a run, such as {suggestion}")
    run_yamls = sorted(path.glob(f"*/*/{RUN}")) or sorted((Path("runs") / path.name).glob(f"*/{RUN}"))
    if not (path / RUN).is_file() and run_yamls:
        raise ConfigError(f"{path} is not a run folder; name one, such as {run_yamls[0].parent}")
    return path


def _pattern_advice(path: Path, runs: Sequence[Path]) -> str:
    """Return the end of an error that says how to name all of ``runs``, if their names begin with that of ``path``; otherwise empty."""
    begin = path.name.rstrip("-")
    dash = "-" if all(run.name.startswith(f"{begin}-") for run in runs) else ""
    is_pattern = all(run.name.startswith(begin) for run in runs)
    return f", or where several may be named {path.with_name(begin)}{dash}*" if is_pattern else ""


def find_run_folders(paths: Sequence[Path]) -> list[Path]:
    """Return the folders of several runs, without other contents of a sweep's folder: ``runs/NAME/*`` names its files and report too.

    Raises:
        ConfigError: as for `find_run_folder`.
    """
    others = [path for path in paths if is_sweep(path.parent) and not is_run(path) and (path.is_file() or path.name in NO_RUNS)]
    named = [path for path in paths if path not in others]
    return [find_run_folder(path) for path in named or paths[:1]]


def _most_alike(path: Path) -> Path | None:
    """Return the run whose sweep and name are most like those of ``path``, which does not exist; None if there is no run.

    It takes the first place that has runs: beside ``path``, in the folders beside it, in those beside its parent, in ``runs/``.
    """
    parent, grandparent = path.parent, path.parent.parent
    places = (parent, f"*/{RUN}"), (parent, f"*/*/{RUN}"), (grandparent, f"*/*/{RUN}"), (Path("runs"), f"*/*/{RUN}")
    candidates = next((runs for folder, pattern in places if (runs := sorted(run_yaml.parent for run_yaml in folder.glob(pattern)))), [])

    def alike(run: Path) -> tuple[float, ...]:
        beginning = run.name[: len(path.name)]
        return tuple(SequenceMatcher(None, *pair).ratio() for pair in ((run.parent.name, path.parent.name), (beginning, path.name)))

    return max(candidates, key=alike, default=None)


def is_run(path: Path) -> bool:
    """Whether ``path`` is a run folder, or the run.yaml in one."""
    return (path / RUN).is_file() or (path.name == RUN and path.is_file())


def runs_and_images(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Split ``paths`` into the runs, which come first (the first path is always one), and the images after them.

    Raises:
        ConfigError: there are only runs, or a run is named twice or after images.
    """
    are_runs = [is_run(path) or (not path.exists() and bool(folders_named(path))) for path in paths]
    count = (are_runs.index(False) if False in are_runs else len(paths)) or 1
    runs, images = list(paths[:count]), list(paths[count:])
    if not is_run(runs[0]) and (late_run := next(filter(is_run, images), None)):
        if is_sweep(runs[0].parent):  # the user named everything in a sweep's folder
            arm = runs[0].parent / late_run.name.partition("-")[0]
            raise ConfigError(f"{runs[0]} is not a run; name the runs of one arm, such as {arm}-*")
        raise ConfigError(f"{late_run} is a run; name runs first, then images: vitssl predict {late_run} {runs[0]}")
    if not images:
        raise ConfigError(f"{runs[-1]} is a run; name images too, or folders of images")
    in_sweep = is_sweep(runs[0].parent)
    if stray := next((path for path in images if in_sweep and path.parent == runs[0].parent), None):
        arm = runs[0].parent / runs[0].name.partition("-")[0]
        raise ConfigError(f"{stray} is not a run; name the runs of one arm, such as {arm}-*")
    if duplicate := next((path for i, path in enumerate(runs) if path in runs[:i]), None):
        raise ConfigError(f"{duplicate} is named twice; each run counts once")
    return runs, images


def classifying_runs(folders: Sequence[Path]) -> list[Path]:
    """Return the runs that have a classifier, with a note on those left out, since `arm-*` names an arm's pretraining too.

    Raises:
        ConfigError: no run has a classifier; the error names the first run.
    """
    classifying = [folder for folder in folders if classifies(load(folder))]
    if not classifying:
        advice = f"vitssl features {folders[0]} SHARDS features.npz, or vitssl.load(RUN).features(images), gives its features"
        raise ConfigError(f"{folders[0]}: this run has no classify objective, so it predicts no classes; {advice}")
    note_left_out([folder for folder in folders if folder not in classifying], "without a classifier")
    return classifying


def note_left_out(folders: Sequence[Path], which: str) -> None:
    """Print a note that a command leaves some runs out, if there are any."""
    if folders:
        note(f"{counted(len(folders), 'run')} {which} {'is' if len(folders) == 1 else 'are'} left out, such as {folders[0]}")


def image_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files among ``paths``, and the images in the folders among them, at any depth and sorted.

    Raises:
        ConfigError: a path that does not exist, or a folder without images.
    """
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path} does not exist; name images, or folders of images")
        if is_run(path):
            raise ConfigError(f"{path} is a run; name runs first, then images, or folders of images")
        images = [Path(parent, name) for parent, names in walk_images(path) for name in names] if path.is_dir() else [path]
        if not images:
            raise ConfigError(f"{path} holds no images: no file ends in {' '.join(IMAGE_ENDINGS)}")
        files += images
        if path.is_dir() and (photos := photos_to_convert(other_endings(path))):
            note(f"not all files in {path} are read; {photos}")
    return files


def check_out(out: Path, example: str = "predictions.csv") -> None:
    """Refuse, before images are read, an output file that cannot be written.

    Raises:
        ConfigError: ``out`` exists, or no file can be written there.
    """
    if out.is_dir():
        raise ConfigError(f"{out} is a folder; name a file, such as {out / example}")
    check_new(out)


def check_npz(out: Path) -> None:
    """Refuse an output file of arrays that cannot be written, or whose name does not end in .npz, which would be added to it.

    Raises:
        ConfigError: names the file.
    """
    if out.suffix != ".npz" and not out.is_dir():
        raise ConfigError(f"{out}: several arrays are an .npz file; name {out.with_suffix('.npz')}")
    check_out(out, "features.npz")


def check_weights_file(path: Path) -> None:
    """Refuse a path to weights that is not a file.

    Raises:
        ConfigError: names the path.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name the file of weights in it")
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; name a file of weights that does")
