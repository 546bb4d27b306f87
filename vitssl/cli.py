"""``vitssl COMMAND``: parse, call, print; no logic. A user's mistake is one line and exit code 2."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from vitssl.config import ConfigError
from vitssl.config.weights import LAYOUTS


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        return arguments.call(arguments) or 0
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # a full disk, a folder without write permission
        if error.filename is None:
            raise
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("vitssl", description="Train Vision Transformers on scarce data; sweeps are run by jobs/submit.py.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _shards_parser(commands)
    add = _command(commands, "evaluate", _evaluate, "what an evaluator finds in a run: its accuracy, or what its features are worth")
    add("folder", type=Path, help="run folder")
    add("--type", default="classification", help="classification (the run's classifier), knn or linear (on its features)")
    add("--shards", help="other shards with the same classes")
    add("--split", default="test", help="train, val (held out) or test as the run's data say, or a split of the shards")
    add("--weights", default="model", help="model, ema (a run with loop.ema_decay keeps them) or teacher")
    add("--ema", action="store_const", const="ema", dest="weights", help="the same as --weights ema")
    add("--set", nargs="+", default=[], dest="fields", metavar="field=value", help="fields of the type, for example --type knn --set k=10")
    add("--checkpoint", default="last.pt", help="a file of the run folder, for example best.pt")
    add = _command(commands, "predict", _predict, "class probabilities of image files")
    add("folder", type=Path, help="run folder")
    add("images", nargs="+", type=Path)
    add("--ema", action="store_true", help="by the averaged weights, which a run with loop.ema_decay keeps")
    add = _command(commands, "cost", _cost, "MACs and parameters of a run, before or after it was trained")
    add("runs", nargs="+", type=Path, metavar="run", help="run folder or run.yaml")
    add("--classes", type=_numbers, help="comma-separated numbers of classes, one for each run, where their shards do not exist yet")
    add("--json", action="store_true", help="one line for each run")
    _weights_parsers(commands)
    add = _command(commands, "report", _report, "tables, plots and pages of a sweep")
    add("folder", type=Path, help="sweep folder, for example runs/quickstart")
    add("--columns", type=_names, help="comma-separated columns of the main table and table.tex, for example accuracy,gmacs,kwh")
    _analyze_parser(commands)
    add = _command(commands, "bench", _bench, "speed on this machine, as ratios measured side by side")
    add("--images", type=Path, help="folder of class folders with images; default: the digits as 32-px JPEG files")
    add("--only", default="", help="comma-separated names of the comparisons to make; default: all that this machine can")
    add("--repeats", type=_positive, default=7, help="measured rounds per comparison")
    add("--json", type=Path, help="write the figures there too")
    return parser


def _command(commands: argparse._SubParsersAction, name: str, call: object, help_text: str):
    parser = commands.add_parser(name, help=help_text, description=help_text)
    parser.set_defaults(call=call)
    return parser.add_argument


def _positive(text: str) -> int:
    return _at_least(1, text)


def _not_negative(text: str) -> int:
    return _at_least(0, text)


def _at_least(least: int, text: str) -> int:
    if not text.lstrip("-").isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text} is no whole number of at least {least}")
    return int(text)


def _numbers(text: str) -> list[int]:
    return [_positive(part) for part in text.split(",")]


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _shards_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("shards", help="build, check or describe WebDataset shards")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    add = _command(actions, "build", _shards_build, "write tar shards and index.json; continues an interrupted build")
    sources = "digits, folder:PATH, folder:PATH?test=0.2 (holds out a fifth of each class), torchvision:NAME, "
    add("source", help=f"{sources}list:PATH?train=FILE&test=FILE, cub:PATH, npz:FILE, idx:PATH or csv:FILE")
    add("out", type=Path)
    add("--workers", type=int, default=None, help="processes; default: one per core")
    add("--skip-bad", action="store_true", help="leave out images that cannot be read; `shards info` names them")
    add("--rebuild", action="store_true", help="replace the shards in OUT, which stay until the new ones are whole")
    add = _command(actions, "verify", _shards_verify, "read every byte and decode every image")
    add("folder", type=Path)
    add = _command(actions, "info", _shards_info, "counts, classes, statistics")
    add("folder", type=Path)


def _analyze_parser(commands: argparse._SubParsersAction) -> None:
    add = _command(commands, "analyze", _analyze, "a look into trained networks: numbers and a figure, in the run folder and its report")
    add("folders", nargs="+", type=Path, metavar="folder", help="run folder")
    add("analysis", choices=("selections", "mask-attention"), help="what masked tokens select; how much the class token attends to each")
    add("--images", type=_positive, default=1000, help="how many, drawn by --seed (default: %(default)s)")
    add("--seed", type=_not_negative, default=0, help="of the draw of images")
    add("--shards", help="other shards than the run's, with any classes")
    add("--split", help="of the shards, or several joined by + (default: the run's test split)")
    add("--weights", default="model", choices=("model", "ema", "teacher"))
    add("--checkpoint", default="last.pt", help="a file of the run folder, for example best.pt")


def _weights_parsers(commands: argparse._SubParsersAction) -> None:
    """What comes from other code, and goes to it."""
    add = _command(commands, "weights", _weights, "download released weights into a file for init_from")
    add("name", help="timm:NAME, for example timm:deit_tiny_patch16_224.fb_in1k")
    add("out", type=Path)
    add = _command(commands, "import", _import, "a file of released weights as a run folder: a start, or to be probed and evaluated")
    add("file", type=Path, help="a checkpoint as the release wrote it, or .safetensors")
    add("--out", type=Path, help="run folder (default: weights/NAME-LAYOUT-HASH)")
    add("--as", required=True, choices=LAYOUTS, dest="layout", help="whose names and keys the file has")
    add("--shards", help="images to evaluate it on, which name its classes")
    add(
        "--set",
        nargs="+",
        default=[],
        dest="fields",
        metavar="field=value",
        help="fields that no shape tells, such as backbone.num_heads=3",
    )
    add = _command(commands, "export", _export, "a run's network as what other code loads")
    add("folder", type=Path, help="run folder")
    add("out", type=Path, help="file; for huggingface a folder")
    add("--to", required=True, choices=("timm", "safetensors", "huggingface", "onnx"), help="huggingface: timm's layout, with a model card")
    add("--weights", default="model", choices=("model", "ema", "teacher"), help="of a teacher there is the backbone alone")
    add("--checkpoint", default="last.pt", help="a file of the run folder, for example best.pt")
    add("--backbone", action="store_true", help="without the classifier")
    add = _command(commands, "features", _features, "features of all images of a split, as NumPy arrays in a file")
    add("folder", type=Path, help="run folder")
    add("shards", type=Path, help="shards, with any classes")
    add("out", type=Path, help="a file, such as features.npz")
    add("--split", default="test", help="a split of the shards, or several joined by + (default: %(default)s)")
    add("--weights", default="model", choices=("model", "ema", "teacher"))
    add("--checkpoint", default="last.pt", help="a file of the run folder, for example best.pt")
    add("--blocks", type=int, nargs="+", default=[], help="of these too, before the final norm: 0 is the first, -1 the last")
    add("--tokens", action="store_true", help="every patch token, besides their mean")


def _shards_build(arguments: argparse.Namespace) -> None:
    from vitssl.data import shards

    build = shards.rebuild if arguments.rebuild else shards.build
    build(arguments.source, arguments.out, workers=arguments.workers, skip_bad=arguments.skip_bad, progress=True)
    print(shards.info(arguments.out))


def _shards_verify(arguments: argparse.Namespace) -> int:
    from vitssl.data import shards

    problems = shards.verify(arguments.folder)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if problems:
        return 2
    print(f"{arguments.folder}: every shard and image is as it was written")
    return 0


def _shards_info(arguments: argparse.Namespace) -> None:
    from vitssl.data import shards

    print(shards.info(arguments.folder))


def _evaluate(arguments: argparse.Namespace) -> None:
    from vitssl.config.evals import parse
    from vitssl.evaluate import evaluate_folder

    fields = {name: getattr(arguments, name) for name in ("type", "shards", "split", "weights")}
    cfg = parse(arguments.type, fields, arguments.fields)
    print(json.dumps(evaluate_folder(arguments.folder, cfg, arguments.checkpoint)))
    _note_unfinished(arguments.folder)


def _predict(arguments: argparse.Namespace) -> None:
    from vitssl.evaluate import load

    trained = load(arguments.folder, ema=arguments.ema)
    _note_unfinished(arguments.folder)
    for path, probabilities in zip(arguments.images, trained.predict(arguments.images), strict=True):
        best = probabilities.topk(min(5, len(trained.classes)))
        shown = "  ".join(f"{trained.classes[k]} {p:.3f}" for p, k in zip(best.values.tolist(), best.indices.tolist(), strict=True))
        print(f"{path}  {shown}")


def _note_unfinished(path: Path) -> None:
    from vitssl.evaluate import run_folder

    if not (run_folder(path) / "done.json").exists():
        print(f"note: {path} is not finished; these are the weights of its newest checkpoint", file=sys.stderr)


def _cost(arguments: argparse.Namespace) -> None:
    from vitssl import config, cost
    from vitssl.data.index import load_index
    from vitssl.evaluate import run_folder

    runs = [config.load(run_folder(path)) for path in arguments.runs]
    classes = arguments.classes or [len(load_index(run.data.shards).classes) for run in runs]
    if len(classes) != len(runs):
        raise config.ConfigError(f"{len(classes)} numbers for {len(runs)} runs", "--classes")
    for path, measured in zip(arguments.runs, cost.measure_all(runs, classes), strict=True):
        if len(runs) > 1 and not arguments.json:
            print(f"{path}:")
        print(json.dumps(measured) if arguments.json else cost.table(measured))


def _weights(arguments: argparse.Namespace) -> None:
    from vitssl import state

    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    state.save(arguments.out, {"model": state.released(arguments.name.removeprefix("timm:")), "source": arguments.name})
    print(arguments.out)


def _import(arguments: argparse.Namespace) -> None:
    from vitssl.weights.importing import describe, import_file

    shards = [f"data.shards={arguments.shards}"] if arguments.shards else []
    folder = import_file(arguments.file, arguments.layout, arguments.out, [*arguments.fields, *shards])
    print(describe(folder), file=sys.stderr)
    print(folder)


def _export(arguments: argparse.Namespace) -> None:
    from vitssl.weights.exporting import export

    how = export(arguments.folder, arguments.out, arguments.to, arguments.weights, arguments.checkpoint, arguments.backbone)
    _note_unfinished(arguments.folder)
    print(arguments.out)
    print(f"load it with {how}", file=sys.stderr)


def _features(arguments: argparse.Namespace) -> None:
    from vitssl import features
    from vitssl.evaluate import load

    trained = load(arguments.folder, arguments.checkpoint, weights=arguments.weights)
    _note_unfinished(arguments.folder)
    arrays = features.write(trained, arguments.shards, arguments.out, arguments.split, arguments.blocks, arguments.tokens)
    shown = ", ".join(f"{name} {tuple(array.shape)}" for name, array in arrays.items())
    print(f"{arguments.out}: {shown}")


def _report(arguments: argparse.Namespace) -> None:
    from vitssl import report

    page = report.write(arguments.folder, arguments.columns)
    print(report.summary(arguments.folder, columns=arguments.columns))
    print(f"report: {page}")


def _analyze(arguments: argparse.Namespace) -> None:
    from vitssl.analysis import analyze, check
    from vitssl.analysis.base import Sample
    from vitssl.evaluate import load

    runs = [load(folder, arguments.checkpoint, weights=arguments.weights) for folder in arguments.folders]
    samples = [Sample(trained, arguments.images, arguments.split, arguments.shards, arguments.seed) for trained in runs]
    for trained in runs:
        check(trained)
        _note_unfinished(trained.folder)
    for trained, sample in zip(runs, samples, strict=True):
        print(analyze(trained, arguments.analysis, sample))


def _bench(arguments: argparse.Namespace) -> None:
    from vitssl import bench

    figures = bench.run(arguments.images, [n for n in arguments.only.split(",") if n], arguments.repeats)
    print(bench.table(figures))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    sys.exit(main())
