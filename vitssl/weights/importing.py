"""Import of released weights into a run folder, from which runs can start, and which can be probed, evaluated and exported."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor, nn

from vitssl import config, model, records
from vitssl.checkpoints import tensor_files
from vitssl.config import NO_SHARDS, SCHEMA, ConfigError, Run
from vitssl.config.weights import RELEASED, imported_folder
from vitssl.costs import cost
from vitssl.data.index import load_index
from vitssl.files import check_place, hash_file, read_json, write_json
from vitssl.run_folder import COST, DONE, JOB, LAST, is_trained
from vitssl.weights import released, shapes
from vitssl.weights.layouts import HEAD, LAYOUT_TABLE, Layout, Names
from vitssl.weights.shapes import Tensors
from vitssl.words import counted, note

FIELDS, CLASSES = "vitssl.fields", "vitssl.classes"  # keys of a safetensors file's metadata, with values in JSON
# fields of the Run that an export writes there, since no shape tells them
EXPORTED_FIELDS = (
    "data.image_size", "data.eval_crop", "data.mean", "data.std", "backbone.num_heads", "backbone.attention_scale",
    "objectives.classify.pool",
)  # fmt: skip


def import_file(file: Path, layout: str, out: Path | None = None, settings: Sequence[str] = (), backbone: bool = False) -> Path:
    """Write the weights of ``file`` into a run folder, and return the folder.

    A folder that already holds them, from the same file and with the same fields, is left as it is.

    Args:
        file: the checkpoint.
        layout: whose names and keys the file has, one of ``vitssl.config.weights.LAYOUTS``.
        out: the folder; None: ``weights/<name>-<layout>-<hash of the content>``, and for a backbone alone with ``-backbone`` at the end.
        settings: fields of the Run as ``key=value``, which override those read from the shapes.
        backbone: leave out classifiers, decoders and heads, for images of other classes.

    Raises:
        ConfigError: ``file`` is not a checkpoint, a tensor is missing, unexpected or of another shape, or ``out`` holds something else.
    """
    content = tensor_files.read(file)
    if content.keys() >= {"model", "data", "progress"}:
        raise ConfigError("this is a run's own checkpoint: its folder needs no import, and `init_from` takes it too", place=str(file))
    exported_fields, names = _export_metadata(file)
    sha256 = hash_file(file)
    origin: dict[str, Any] = {"file": str(file.resolve()), "sha256": sha256, "layout": layout, "settings": sorted(settings)}
    origin |= {"backbone": True} if backbone else {}
    folder = out or imported_folder(layout, file, sha256)
    if backbone:
        exported_fields = {name: value for name, value in exported_fields.items() if not name.startswith("objectives.")}
        folder = out or folder.with_name(f"{folder.name}-backbone")  # a sweep may import the whole file too
    key = hashlib.sha256(json.dumps({**origin, "file": None}, sort_keys=True).encode()).hexdigest()[:12]
    if _is_imported(folder, key):
        return folder
    check_place(folder)
    try:
        tensors = _read(content, LAYOUT_TABLE[layout], file)
        if backbone:
            tensors.keep("backbone.")
        run = _run(tensors, content, LAYOUT_TABLE[layout], exported_fields, settings)
        network = model.build(run, _num_classes(tensors))
        _fill(network, tensors)
        tensor_files.check_finite(network.state_dict(), "", file)  # a number may overflow the network's type
        _compare_with_timm(tensors, content, layout, exported_fields, settings)
    except ConfigError as error:
        raise ConfigError(error.reason, error.field, error.place or str(file)) from None
    data = _data_facts(run, _num_classes(tensors), names)
    _write(folder, run, network, data, {"identity": key, "imported": origin | _training_facts(content)})
    return folder


def describe(folder: Path) -> str:
    """Return one line on an import: its network's sizes and positions, image size, normalisation and objectives."""
    run = config.load(folder)
    size, objectives = config.size_of(run.backbone), config.active(run.objectives)
    depths = "+".join(map(str, size.depths))
    heads = f", {size.num_heads} heads" if size.num_heads > 1 else ""
    positions = f", {run.backbone.positions} positions" if config.family_name(run.backbone) == "vit" else ""
    channels = "its own channel statistics" if run.data.mean else f"data.normalize={run.data.normalize}"
    network = f"{config.family_name(run.backbone)} of width {size.embed_dim}, depth {depths}{heads}{positions}"
    with_objectives = f" with {' and '.join(objectives)}" if objectives else ", no head"
    return f"{network}, for images of {run.data.image_size} px ({channels}){with_objectives}"


def _is_imported(folder: Path, key: str) -> bool:
    """Whether ``folder`` already holds the import that ``key`` identifies.

    Raises:
        ConfigError: it holds something else.
    """
    if not folder.exists():
        return False
    job = read_json(folder / JOB)
    if job.get("identity") == key:
        return is_trained(folder)  # otherwise the import was interrupted, and is written again
    if "imported" in job:
        raise ConfigError(f"{folder} holds an import of another file, or with other fields; delete it, or name another folder")
    if any(folder.iterdir()):
        raise ConfigError(f"{folder} exists and is not an import; name another folder")
    return False


def _training_facts(content: dict[str, Any]) -> dict[str, Any]:
    """Return what the file says about its training."""
    epoch = content.get("epoch")
    return {"epoch": epoch} if isinstance(epoch, int | float) else {}


# -------------------------------------------------------------------------------------------------------------- tensors


def _read(content: dict[str, Any], layout: Layout, file: Path) -> Tensors:
    """Return the file's tensors under our names.

    Raises:
        ConfigError: the file holds no network of this layout, or a tensor that no network can take over.
    """
    present = [key for key in layout.parts if key in content]
    if present and (missing := [key for key in layout.parts if key not in content]):
        raise ConfigError(f"it has {present[0]!r} and no {missing[0]!r}, which files of this layout have")
    if not present and (wrapper := next((key for key in ("state_dict_ema", "state_dict") if key in content), None)):
        content = content[wrapper]
    tensors = Tensors()
    for key, names in layout.parts.items() if present else [("", layout.bare)]:
        bare = _strip_prefixes(content[key] if key else content)
        if not bare:
            raise ConfigError(f"{key!r} holds no tensors" if key else f"it holds no tensors; files of this layout have {_listed(layout)}")
        tensor_files.check_finite(bare, key, file)
        _rename(layout.prepare(bare), names, tensors, f"{key}: " if len(layout.parts) > 1 and key else "")
    return tensors


def _strip_prefixes(content: Any) -> dict[str, Tensor]:
    """Return a network's tensors without the prefixes that DDP and moving averages put before their names."""
    tensors = {name: value for name, value in content.items() if isinstance(value, Tensor)} if isinstance(content, dict) else {}
    for prefix in ("ema.", "module."):
        if tensors and all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
    return tensors


def _rename(bare: dict[str, Tensor], names: Names, tensors: Tensors, place: str) -> None:
    """Add a network's tensors to ``tensors`` under our names; in messages, ``place`` tells which network of the file they belong to."""
    kept = [(place + old, new) for old, new in names if new is not None]
    tensors.names = sorted([*tensors.names, *kept], key=lambda pair: -len(pair[1]))
    for name, value in bare.items():
        renamed = next((new + name.removeprefix(old) if new is not None else None for old, new in names if name.startswith(old)), name)
        if renamed is not None:
            tensors[renamed], tensors.origin[renamed] = value, place + name


def _listed(layout: Layout) -> str:
    return " and ".join(repr(key) for key in layout.parts)


def _fill(network: model.Model, tensors: Tensors) -> None:
    """Load every tensor into the network.

    Raises:
        ConfigError: a tensor is missing, unexpected or of another shape; the message names the first one.
    """
    theirs: dict[str, Tensor] = network.backbone.convert_state_dict(dict(tensors), prefix="backbone.")
    ours = network.state_dict()
    # compared in the size that they have in the file: the conversion resizes them
    tables = [name for name in ours.keys() & tensors.keys() if name.endswith("relative_position_bias_table")]
    if problems := tensor_files.mismatches(ours, theirs | {name: tensors[name] for name in tables}):
        raise ConfigError(tensor_files.first_of({tensors.name_in_file(name): problem for name, problem in problems.items()}))
    network.load_state_dict(theirs)


# ------------------------------------------------------------------------------------------------------------------ run


def _run(tensors: Tensors, content: dict[str, Any], layout: Layout, exported_fields: dict[str, Any], settings: Sequence[str]) -> Run:
    """Return the network's Run: its fields from the shapes, overridden by an export's notes, and both by the user's ``settings``."""
    fields = shapes.fields(tensors) | layout.objectives(tensors, content) | {"data.shards": NO_SHARDS, "data.normalize": "imagenet"}
    fields |= _timm_data_fields(_released_as(content)) | exported_fields
    set_fields = [word.partition("=")[0] for word in settings]
    if fields.get("backbone.num_heads", 1) is None and "backbone.num_heads" not in set_fields:
        width = tensors.shape("backbone.norm.weight", 1)[0] if "backbone.norm.weight" in tensors else "this"
        reason = f"the file does not state the number of heads, and width {width} is not a multiple of 64; add --set backbone.num_heads=N"
        raise ConfigError(reason)
    run = config.merge(Run, config.nested(fields), list(settings), where="--set" if settings else "")
    config.check(run, to_train=False)
    if run.data.shards == NO_SHARDS and config.statistics(run.data, [], [])[0] == []:
        raise ConfigError("dataset computes statistics from images; add --shards SHARDS", "data.normalize")
    return run


def _released_as(content: dict[str, Any]) -> str | None:
    """Return the name in timm's hub of the network in a file that `vitssl weights` wrote; None for other files."""
    source = content.get("source")
    return source.removeprefix(RELEASED) if "model" in content and isinstance(source, str) and source.startswith(RELEASED) else None


def _compare_with_timm(
    tensors: Tensors, content: dict[str, Any], layout: str, exported_fields: dict[str, Any], settings: Sequence[str]
) -> None:
    """Check that the network made here from a released file is timm's, with the user's backbone fields, at the image size of its training.

    Raises:
        ConfigError: it is not.
    """
    name = _released_as(content)
    if name is None:
        return
    if ":" in name:
        note(f"{name} is not compared with timm's network, as its name is not timm's")
        return
    backbone_settings = [word for word in settings if word.startswith("backbone.")]
    run = _run(tensors, content, LAYOUT_TABLE[layout], exported_fields, backbone_settings)
    network = model.build(run, _num_classes(tensors))
    _fill(network, tensors)
    released.check_same(name, content["model"], network, _num_classes(tensors), run.data.image_size)


def _timm_data_fields(name: str | None) -> dict[str, Any]:
    """Return the image size, channel statistics and crop that timm uses for a network of its hub, as fields of ``data``."""
    import timm

    cfg = timm.get_pretrained_cfg(name) if name is not None else None
    if cfg is None:
        return {}
    return {"data.image_size": cfg.input_size[-1], "data.mean": list(cfg.mean), "data.std": list(cfg.std), "data.eval_crop": cfg.crop_pct}


def _num_classes(tensors: Tensors) -> int:
    """Return the number of classes of the classifier; 0 without one."""
    return tensors.shape(f"{HEAD}weight", 2)[0] if f"{HEAD}weight" in tensors else 0


def _export_metadata(file: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the fields and class names that an export of this project wrote beside its tensors; none for other files."""
    if not tensor_files.is_safetensors(file):
        return {}, []
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata() or {}
    try:
        fields, classes = (json.loads(metadata.get(name, empty)) for name, empty in ((FIELDS, "{}"), (CLASSES, "[]")))
    except (ValueError, RecursionError) as error:  # json raises ValueError for a number of 5,000 digits
        raise ConfigError(f"its metadata are damaged ({error})", place=str(file)) from None
    if not isinstance(fields, dict) or not isinstance(classes, list):
        raise ConfigError("its metadata are damaged (not those of an export)", place=str(file))
    for field, problem in records.problems([str], classes):
        raise ConfigError(f"its metadata are damaged ({CLASSES}{field}: {problem})", place=str(file))
    return {name: fields[name] for name in EXPORTED_FIELDS if name in fields}, classes


def _data_facts(run: Run, num_classes: int, names: list[str]) -> dict[str, Any]:
    """Return what a checkpoint holds about its images: class names and channel statistics.

    Classes are named by numbers if neither the shards nor the file names them.

    Raises:
        ConfigError: the shards have other classes than the file.
    """
    classes, mean, std = names if len(names) == num_classes else [str(number) for number in range(num_classes)], [], []
    if run.data.shards != NO_SHARDS:
        index = load_index(run.data.shards)
        if num_classes and len(index.classes) != num_classes:
            raise ConfigError(
                f"they have {counted(len(index.classes), 'class', 'classes')}, and the classifier of the file {num_classes};"
                " --backbone leaves it out, and the images can be probed",
                "--shards",
            )
        if names and len(names) == num_classes and names != index.classes:
            k = next(k for k in range(num_classes) if names[k] != index.classes[k])
            differing = f"their class {k + 1} is {index.classes[k]}, and the classifier's {names[k]}"
            raise ConfigError(f"{differing}; --backbone leaves it out, and the images can be probed", "--shards")
        classes, mean, std = index.classes, index.mean, index.std
    mean, std = config.statistics(run.data, mean, std)
    return {"classes": classes, "mean": list(mean), "std": list(std)}


def _write(folder: Path, run: Run, network: nn.Module, data: dict[str, Any], facts: dict[str, Any]) -> None:
    """Write the files of a finished run, ``done.json`` last."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / JOB, {"schema": SCHEMA, "name": folder.name, "arm": "import", "stage": "import", "axes": {}, **facts})
    config.save(run, folder)
    tensor_files.save(folder / LAST, {"model": network.state_dict(), "ema": None, "data": data})
    write_json(folder / COST, cost.measure(run, len(data["classes"])))
    write_json(folder / DONE, {"step": 0, "epochs": 0.0, "time_s": 0.0, "test": None, "test_best": None})
