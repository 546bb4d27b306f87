"""``vitssl COMMAND``: parses arguments, calls the package and prints; no logic. A user's mistake is one line and exit code 2."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vitssl import sweep_folder, version
from vitssl.arguments import Parser, guarded
from vitssl.cli import shards, weights
from vitssl.cli.base import (
    add_runs,
    add_set,
    add_weights,
    agreed,
    checked_run_folder,
    checked_run_folders,
    command,
    names,
    not_negative,
    note_checkpoint,
    positive,
    resolve_best,
    runs_and_classes,
)
from vitssl.config import ConfigError
from vitssl.config.evals import FEATURE_KINDS, KINDS
from vitssl.files import check_place, write_json
from vitssl.words import counted, listed, printable

if TYPE_CHECKING:
    from vitssl.trained import Trained

_TRAINS = "`python jobs/submit.py SWEEP` trains, for example sweeps/quickstart.yaml"
ELSEWHERE = dict.fromkeys(("train", "run", "submit", "sweep", "pretrain", "finetune"), _TRAINS)
ELSEWHERE |= {"status": "`python jobs/status.py runs/NAME` says how a sweep gets on", "cancel": "`python jobs/cancel.py runs/NAME` ends it"}
ELSEWHERE |= dict.fromkeys(("log", "logs"), "`python jobs/status.py runs/NAME --log RUN` prints a run's log")
ELSEWHERE |= {"retry": "`python jobs/retry.py runs/NAME` tries again what failed"}


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    return guarded(lambda: _called(arguments))


def _called(arguments: argparse.Namespace) -> int | None:
    resolve_best(arguments)
    return arguments.call(arguments)


class _Version(argparse.Action):
    """The action of ``--version``: prints the version, and asks git for the commit only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(version.describe())
        parser.exit()


EMA = {"--ema": "--weights ema"}


def _parser() -> argparse.ArgumentParser:
    parser = Parser("vitssl", description="Train Vision Transformers on scarce data; jobs/submit.py runs sweeps.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version, and the commit if this is a git checkout")
    parser.elsewhere = ELSEWHERE
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    shards.add_parser(commands)
    settings = {f"--{f.name}": f"--set {f.name}=VALUE" for kind in KINDS.values() for f in dataclasses.fields(kind)} | EMA
    help_text = "evaluate a run: the accuracy of its classifier, or of a probe on its features"
    add = command(commands, "evaluate", _evaluate, help_text, settings)
    add("folders", nargs="+", metavar="folder", type=Path, help="run folder; each prints a line of JSON, accuracies in percent")
    add("--type", default="classification", help=f"{', '.join(KINDS)}; of these {listed(FEATURE_KINDS)} look at features")
    add("--shards", help="other shards, of the same classes or some of them, by their names")
    add("--split", default="test", help="train, val (held out) or test as defined by the run's data, or a split of the shards")
    add_set(add, "fields of the evaluator, for example --type knn --set k=10")
    add_weights(add, choices=None)  # the evaluator's config checks the choice
    add = command(
        commands, "predict", _predict, "predict class probabilities of images", dict.fromkeys(("--out", "--output"), "--csv") | EMA
    )
    add("folder", type=Path, help="run folder; for several, such as the seeds of an arm, probabilities are averaged")
    add("images", nargs="+", type=Path, help="image files, or folders that are searched for images recursively")
    add("--csv", type=Path, metavar="OUT", help="file to write, with a row per image: path, class, probability, and a column per class")
    add_weights(add, ("model", "ema"), "ema: averaged weights, if the run has loop.ema_decay; best: --checkpoint best.pt")
    add = command(commands, "images", _images, "list the images that a run uses as CSV: what for, and which labels it sees")
    add("folder", type=Path, help="run folder or run.yaml")
    add = command(commands, "cost", _cost, "show MACs and parameters of a run, trained or not")
    add_runs(add)
    weights.add_parsers(commands)
    add = command(commands, "report", _report, "write tables, plots and pages of a sweep")
    folders_help = "sweep folder, for example runs/quickstart, or its name in runs/"
    add("folders", nargs="+", type=sweep_folder.find_sweep, metavar="folder", help=folders_help)
    columns_help = "columns of the main table and table.tex, comma-separated, for example accuracy,baseline,gmacs,kwh; baseline is the"
    add("--columns", type=names, help=f"{columns_help} difference from the baseline, difference that from the paper's number")
    add("--out", type=Path, metavar="FOLDER", help="folder for the report of one sweep, which may be read-only (default: its report/)")
    _analyze_parser(commands)
    add = command(commands, "prune", _prune, "delete what no run needs any more (checkpoints of epochs, old sources), after asking")
    add(
        "runs",
        type=sweep_folder.find_sweep,
        help="folder of all sweeps, for example runs, or of one, or its name; last and best checkpoints stay",
    )
    add("--yes", action="store_true", help="delete without asking")
    add = command(commands, "fields", _fields, "list all fields with type, default and meaning, and what to type for a method")
    help_text = "part of a dotted name, such as warmup, a pattern such as 'optim.*', a method, or words of a meaning"
    add("pattern", nargs="?", default="", help=help_text)
    add = command(commands, "bench", _bench, "measure speed on this machine, as ratios of alternatives timed side by side")
    add("--images", type=Path, help="folder of class folders with images; default: the digits as 32-px JPEG files")
    add("--only", type=names, default=[], help="comparisons to make, comma-separated; default: all that this machine can run")
    add("--repeats", type=positive, default=7, help="measured rounds per comparison")
    add("--json", type=Path, help="also write the figures to this file")
    return parser


def _analyze_parser(commands: argparse._SubParsersAction) -> None:
    add = command(
        commands, "analyze", _analyze, "analyse trained networks: writes numbers and a figure to the run folder, shown in its report"
    )
    add("folders", nargs="+", type=Path, metavar="folder", help="run folder")
    add(
        "analysis",
        choices=("attention", "tokens", "maps", "grad-cam", "selections", "mask-attention"),
        help="how far the heads of each block look, and at which tokens; how alike an image's tokens are after each block, and how many "
        "directions images differ in; pictures of what the class token and some patches look at; pictures of where images speak for "
        "their class; which patches masked tokens select; how much the class token attends to each masked token",
    )
    add("--images", type=positive, help="number of images to draw (default: 1000; for maps and grad-cam 10)")
    add("--seed", type=not_negative, default=0, help="random seed of the draw of images (default: %(default)s)")
    add("--shards", help="shards to use in place of the run's, with any classes")
    add("--split", help="split of the shards, or several joined by + (default: the run's test split)")
    add_weights(add)


def _evaluate(arguments: argparse.Namespace) -> None:
    from vitssl.config.evals import parse
    from vitssl.paths import classifying_runs

    folders = checked_run_folders(arguments.folders, arguments.checkpoint)
    if arguments.type not in FEATURE_KINDS and len(folders) > 1:
        folders = classifying_runs(folders)
    fields = {name: getattr(arguments, name) for name in ("type", "shards", "split", "weights")}
    if repeated := next((name for word in arguments.fields if (name := word.partition("=")[0]) in fields), None):
        raise ConfigError(f"write --{repeated} in its place", f"--set {repeated}")
    try:
        cfg = parse(arguments.type, fields, arguments.fields)
        from vitssl.training.evaluate import evaluate_folder

        for folder in folders:
            which = {"run": folder.resolve().name, "type": cfg.type, "split": cfg.split}
            print(json.dumps(which | evaluate_folder(folder, cfg, arguments.checkpoint)), flush=True)
        note_checkpoint(folders, arguments.checkpoint, arguments.weights)
    except ConfigError as error:  # names the option that was typed instead of the config's field
        prefix = f"evals.{arguments.type}"
        owner, _, last = error.field.rpartition(".")
        typed = f"--{last}" if last in fields else f"--set {last}"
        raise ConfigError(error.reason, typed if owner == prefix else "" if error.field == prefix else error.field, error.place) from None


def _predict(arguments: argparse.Namespace) -> int:
    from vitssl.paths import check_out, classifying_runs, image_files, runs_and_images

    if arguments.csv is not None:
        check_out(arguments.csv)
    run_paths, image_paths = runs_and_images([arguments.folder, *arguments.images])
    folders, files = classifying_runs(checked_run_folders(run_paths)), image_files(image_paths)

    from vitssl.cli.predict import check_runs, predict
    from vitssl.trained import load

    runs = [load(folder, arguments.checkpoint, weights=arguments.weights) for folder in folders]
    check_runs(runs)
    note_checkpoint(folders, arguments.checkpoint, arguments.weights)
    return 2 if predict(runs, files, arguments.csv) else 0


def _images(arguments: argparse.Namespace) -> None:
    from vitssl.cli import images

    images.write(checked_run_folder(arguments.folder), sys.stdout)


def _cost(arguments: argparse.Namespace) -> None:
    folders, runs, classes = runs_and_classes(arguments)
    from vitssl.costs import cost

    for folder, measured in zip(folders, cost.measure_all(runs, classes), strict=True):
        if len(runs) > 1 and not arguments.json:
            print(f"{folder}:")
        print(json.dumps(measured) if arguments.json else cost.table(measured))


def _report(arguments: argparse.Namespace) -> None:
    from vitssl import report
    from vitssl.report.tables import main_table

    main_table.check(arguments.columns or [])
    if arguments.out is not None and len(arguments.folders) > 1:
        raise ConfigError(f"one folder for the reports of {len(arguments.folders)} sweeps; name one sweep", "--out")
    for sweep in [report.read(folder, arguments.out) for folder in arguments.folders]:  # all are read before any report is written
        page = report.write(sweep, arguments.columns)
        print(report.summary(sweep, columns=arguments.columns))
        print(f"report: {page}")


def _analyze(arguments: argparse.Namespace) -> None:
    folders = checked_run_folders(arguments.folders, arguments.checkpoint)
    note_checkpoint(folders, arguments.checkpoint, arguments.weights)
    from vitssl.analysis import KINDS, analyze_each
    from vitssl.analysis.base import DrawnImages
    from vitssl.trained import load

    def loaded(folder: Path) -> Trained:
        return load(folder, arguments.checkpoint, weights=arguments.weights)

    def draw_of(trained: Trained) -> DrawnImages:
        return DrawnImages(trained, arguments.images or KINDS[arguments.analysis].images, arguments.split, arguments.shards, arguments.seed)

    for figure in analyze_each(folders, arguments.analysis, loaded, draw_of):
        print(figure, flush=True)


def _prune(arguments: argparse.Namespace) -> None:
    from vitssl.cli import prune

    if not (leftovers := prune.find_leftovers(arguments.runs)):
        print(f"{arguments.runs}: nothing to remove")
        return
    print(printable(prune.listing(leftovers)))
    if not arguments.yes and not agreed("Remove all of it?"):
        print("nothing was removed")
        return
    number, size = prune.remove(leftovers)
    print(f"removed {prune.in_units(size)} in {counted(number, 'place')}")


def _fields(arguments: argparse.Namespace) -> None:
    from vitssl.cli import fields

    print(fields.listing(arguments.pattern))


def _bench(arguments: argparse.Namespace) -> None:
    if arguments.json:
        if arguments.json.is_dir():
            raise ConfigError(f"{arguments.json} is a folder; name a file", "--json")
        check_place(arguments.json)
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
    from vitssl import bench

    figures = bench.run(arguments.images, arguments.only, arguments.repeats)
    print(bench.table(figures))
    if arguments.json:
        write_json(arguments.json, figures)
