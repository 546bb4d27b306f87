"""Commands that take weights from other code, and give weights and features to it."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

from vitssl.cli.base import add_runs, add_set, add_weights, checked_run_folder, command, note_checkpoint, runs_and_classes
from vitssl.config import ConfigError, Run
from vitssl.config.weights import LAYOUTS, RELEASED
from vitssl.files import check_new
from vitssl.words import listed, note


def add_parsers(commands: argparse._SubParsersAction) -> None:
    """Add the commands weights, fits, import, export and features."""
    add = command(commands, "weights", _weights, "download released weights into a file for init_from")
    add("name", help="timm:NAME, for example timm:deit_tiny_patch16_224.fb_in1k")
    add("out", type=Path, nargs="?", help="file to write; without it, only check that these weights exist")
    add_runs(command(commands, "fits", _fits, "check that a run's network can be made, and that the weights it starts from fit it"))
    add = command(commands, "import", _import, "turn a file of released weights into a run folder, to start from, probe or evaluate")
    add("file", type=Path, help="checkpoint as released, or .safetensors")
    add("--out", type=Path, help="run folder (default: weights/NAME-LAYOUT-HASH)")
    add("--as", required=True, choices=LAYOUTS, dest="layout", help="code base whose parameter names the file uses")
    add("--shards", help="images to evaluate it on; they also name its classes")
    add("--backbone", action="store_true", help="leave out classifiers, decoders and heads, for images of other classes")
    add_set(add, "fields that cannot be read off the weights' shapes, such as backbone.num_heads=3")
    add = command(commands, "export", _export, "export a run's network in a format that other code loads", {"--format": "--to"})
    add("folder", type=Path, help="run folder")
    add("out", type=Path, help="file to write; for huggingface a folder")
    add("--to", required=True, choices=("timm", "safetensors", "huggingface", "onnx"), help="huggingface: timm's layout, with a model card")
    add_weights(add)
    add("--backbone", action="store_true", help="leave out the classifier")
    add = command(commands, "features", _features, "write the features of all images of a split to a file of NumPy arrays")
    add("folder", type=Path, help="run folder")
    add("shards", type=Path, help="shards of the images, with any classes")
    add("out", type=Path, help="file to write, such as features.npz")
    add("--split", default="test", help="a split of the shards, or several joined by + (default: %(default)s)")
    add_weights(add)
    add(
        "--blocks",
        type=int,
        nargs="+",
        default=[],
        help="also the features of these blocks, before the final norm: 0 is the first, -1 the last",
    )
    add("--tokens", action="store_true", help="also every patch token, besides their mean")


def _weights(arguments: argparse.Namespace) -> None:
    from vitssl.checkpoints import tensor_files
    from vitssl.weights.released import check_released, released

    name = arguments.name.removeprefix(RELEASED)
    if arguments.out is None:
        check_released(name)
        if ":" in name:
            raise ConfigError(f"only a download tells whether there is a {name}; name a file: vitssl weights {RELEASED}{name} weights.pt")
        print(f"timm has {name}; to download it, name a file: vitssl weights {RELEASED}{name} {name}.pt")
        return
    check_new(arguments.out)
    weights = released(name)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    tensor_files.save(arguments.out, {"model": weights, "source": arguments.name})
    print(arguments.out)


def _fits(arguments: argparse.Namespace) -> None:
    folders, runs, classes = runs_and_classes(arguments)
    for folder, cfg, num_classes in zip(folders, runs, classes, strict=True):
        problem = {}
        try:
            _start(cfg, num_classes)
        except ConfigError as error:
            if not arguments.json:
                raise ConfigError(error.reason, error.field, error.place or str(folder)) from None
            problem = {"reason": error.reason, "field": error.field, "place": error.place}
        print(json.dumps(problem) if arguments.json else f"{folder}: {cfg.init_from or 'the network'} fits")


def _start(one: Run, num_classes: int) -> None:
    """Check a network as the start of a training does, and make a step on views of all sizes; without weights, on shapes alone.

    Raises:
        ConfigError: the network cannot be made, or the weights do not fit it.
    """
    from vitssl import model
    from vitssl.checkpoints import pretrained
    from vitssl.costs import cost, macs
    from vitssl.training import optim

    with nullcontext() if one.init_from else macs.shapes_only():
        network = model.build(one, num_classes)
        if one.init_from is not None:
            pretrained.init_from(network, network.backbone, one)
        optim.param_groups(network, network.backbone, one.optim)
    cost.measure(one, num_classes)


def _import(arguments: argparse.Namespace) -> None:
    from vitssl.paths import check_weights_file

    check_weights_file(arguments.file)
    from vitssl.weights.importing import describe, import_file

    shards = [f"data.shards={arguments.shards}"] if arguments.shards else []
    folder = import_file(arguments.file, arguments.layout, arguments.out, [*arguments.fields, *shards], arguments.backbone)
    print(describe(folder), file=sys.stderr)
    print(folder)


def _export(arguments: argparse.Namespace) -> None:
    folder = checked_run_folder(arguments.folder)
    from vitssl.weights.exporting import export

    instruction = export(folder, arguments.out, arguments.to, arguments.weights, arguments.checkpoint, arguments.backbone)
    note_checkpoint([folder], arguments.checkpoint, arguments.weights)
    print(arguments.out)
    print(f"load it with {instruction}", file=sys.stderr)


def _features(arguments: argparse.Namespace) -> None:
    from vitssl.data.index import load_index
    from vitssl.paths import check_npz

    if arguments.shards.suffix == ".npz" or (arguments.folder / "index.json").is_file():
        raise ConfigError("the run comes first, then shards and the file to write: vitssl features RUN SHARDS features.npz")
    folder = checked_run_folder(arguments.folder)
    check_npz(arguments.out)
    load_index(arguments.shards).where(arguments.split)
    from vitssl.cli import features
    from vitssl.trained import load

    trained = load(folder, arguments.checkpoint, weights=arguments.weights)
    note_checkpoint([folder], arguments.checkpoint, arguments.weights)
    arrays = features.write(trained, arguments.shards, arguments.out, arguments.split, arguments.blocks, arguments.tokens)
    shown = ", ".join(f"{name} {tuple(array.shape)}" for name, array in arrays.items())
    print(f"{arguments.out}: {shown}")
    parts = Counter(arrays["part"].tolist()) if "part" in arrays else Counter()
    if len(parts) > 1:
        counts = listed(f"{count:,} for {part or 'nothing'}" for part, count in sorted(parts.items()))
        note(f"of {arguments.split} the run had {counts}, as the array part says of each image")
