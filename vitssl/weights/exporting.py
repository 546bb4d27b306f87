"""Export of a run's network for other code: a file with timm's names, safetensors, a folder in the layout of timm's hub, or ONNX."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
from safetensors import torch as safetensors
from torch import nn

from vitssl import config
from vitssl.atomic import write_atomically, write_text_atomically
from vitssl.checkpoints import tensor_files
from vitssl.config import ConfigError
from vitssl.files import check_new, write_json
from vitssl.report.pages import card
from vitssl.run_folder import LAST
from vitssl.trained import Trained, load
from vitssl.weights import onnx, timm_names
from vitssl.weights.importing import CLASSES, FIELDS


def export(folder: Path, out: Path, to: str, weights: str = "model", checkpoint: str = LAST, backbone: bool = False) -> str:
    """Write a run's network to a file or folder; return a line that says how to load it.

    Args:
        folder: the run folder.
        out: a file, or a folder for huggingface.
        to: one of ``KINDS``.
        weights: model, ema, or teacher, of which only the backbone is exported.
        checkpoint: a file of the run folder.
        backbone: leave the classifier out.

    Raises:
        ConfigError: the format cannot hold this network, or ``out`` exists.
    """
    if not (to == "huggingface" and out.is_dir() and not any(out.iterdir())):
        check_new(out)
    trained = load(folder, checkpoint, device="cpu", weights=weights)
    classifier = config.classifies(trained.run) and weights != "teacher" and not backbone
    if trained.run.backbone.masked_tokens is not None and to != "safetensors":
        raise ConfigError(
            "timm, Hugging Face and ONNX exports do not support masked tokens; export --to safetensors --backbone (our parameter names)",
            "backbone.masked_tokens",
            str(folder),
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        return KINDS[to](trained, out, classifier)
    except ConfigError as error:
        raise ConfigError(error.reason, error.field, error.place or str(trained.folder)) from None


def _as_timm(trained: Trained, classifier: bool) -> tuple[nn.Module, timm_names.Architecture]:
    """Return timm's model with all of the run's weights, and the call that creates it."""
    architecture = timm_names.architecture(trained.run, len(trained.classes) if classifier else 0)
    network = timm.create_model(architecture.name, **architecture.args)
    network.load_state_dict(timm_names.named_tensors(trained.model, trained.run, classifier), strict=True)
    return network.eval(), architecture


def _to_timm(trained: Trained, out: Path, classifier: bool) -> str:
    network, architecture = _as_timm(trained, classifier)
    tensor_files.save(out, network.state_dict())
    return _loaded(architecture, f"torch.load({str(out)!r})", trained)


def _loaded(architecture: timm_names.Architecture, tensors: str, trained: Trained) -> str:
    """Return Python code that loads ``tensors`` into timm's model and makes the transform of the images that it was evaluated on."""
    size, crop = trained.run.data.image_size, trained.run.data.eval_crop
    mean, std = (tuple(round(value, 6) for value in values) for values in (trained.mean, trained.std))
    transform = f"timm.data.create_transform({size}, interpolation='bicubic', mean={mean}, std={std}, crop_pct={crop})"
    return f"model = {architecture.call()}; model.load_state_dict({tensors}); model.eval(); transform = {transform}{_resize_note(trained)}"


def _resize_note(trained: Trained) -> str:
    """Return a Python comment on what is done to images before the transform; empty if nothing is."""
    shrunk = card.shrunk(trained.run.data.cache_px)
    return f"  # {shrunk}" if shrunk else ""


def _metadata(trained: Trained, classifier: bool) -> dict[str, str]:
    """Return metadata that no shape tells: the fields of a Run that an import reads, and the class names."""
    run, size = trained.run, config.size_of(trained.run.backbone)
    fields = {
        "data.image_size": run.data.image_size,
        "data.eval_crop": run.data.eval_crop,
        "data.mean": trained.mean,
        "data.std": trained.std,
    }
    if (family := config.family_name(run.backbone)) in ("vit", "t2t", "cvt"):
        fields["backbone.num_heads"] = size.num_heads
    if family == "t2t":
        fields["backbone.attention_scale"] = run.backbone.attention_scale
    if classifier and run.objectives.classify is not None:
        fields["objectives.classify.pool"] = run.objectives.classify.pool
    return {"format": "pt", FIELDS: json.dumps(fields), CLASSES: json.dumps(trained.classes if classifier else [])}


def _to_safetensors(trained: Trained, out: Path, classifier: bool) -> str:
    tensors = timm_names.named_tensors(trained.model, trained.run, classifier)
    write_atomically(out, safetensors.save(tensors, _metadata(trained, classifier)))
    tensors_of_file = f"safetensors.torch.load_file({str(out)!r})"
    architecture = timm_names.same_in_timm(trained.run, len(trained.classes) if classifier else 0)
    return tensors_of_file if architecture is None else _loaded(architecture, tensors_of_file, trained)


def _to_huggingface(trained: Trained, out: Path, classifier: bool) -> str:
    """Write a folder in timm's layout, ``config.json``, ``model.safetensors`` and a model card; return how to load it."""
    network, architecture = _as_timm(trained, classifier)
    run, size = trained.run, trained.run.data.image_size
    pretrained: dict[str, Any] = network.pretrained_cfg  # type: ignore[assignment]  # torch's stub allows tensors and modules alone
    feeding = {"input_size": [3, size, size], "fixed_input_size": pretrained["fixed_input_size"], "interpolation": "bicubic"}
    feeding |= {"crop_pct": run.data.eval_crop, "crop_mode": "center", "mean": trained.mean, "std": trained.std}
    modules = {"first_conv": pretrained["first_conv"], "classifier": pretrained["classifier"]}
    content = {
        "architecture": architecture.name,
        "num_classes": architecture.args["num_classes"],
        "num_features": network.num_features,
        "global_pool": architecture.args["global_pool"],
        **({"label_names": trained.classes} if classifier else {}),
        "model_args": architecture.args,
        "pretrained_cfg": {"tag": "vitssl", "num_classes": architecture.args["num_classes"], "pool_size": None, **feeding, **modules},
    }
    out.mkdir(exist_ok=True)
    write_atomically(out / "model.safetensors", safetensors.save(network.state_dict(), _metadata(trained, classifier)))
    write_json(out / "config.json", content)
    write_text_atomically(out / "README.md", card.text(trained.folder, classifier, trained.checkpoint, trained.weights))
    transform = "timm.data.create_transform(**timm.data.resolve_model_data_config(model))"
    return f"model = timm.create_model({f'local-dir:{out}'!r}, pretrained=True).eval(); transform = {transform}{_resize_note(trained)}"


def _to_onnx(trained: Trained, out: Path, classifier: bool) -> str:
    onnx.write(trained, out, classifier)
    return f"onnxruntime.InferenceSession({str(out)!r}).run(None, {{'images': normalised_images}})"


KINDS: dict[str, Callable[[Trained, Path, bool], str]] = {
    "timm": _to_timm,
    "safetensors": _to_safetensors,
    "huggingface": _to_huggingface,
    "onnx": _to_onnx,
}
