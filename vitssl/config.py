"""A Run: the one typed, validated description of one training job.

Pretraining, joint training, fine-tuning and probing are values of a Run, never kinds of job. This file holds every field,
what each backbone offers and what each objective needs, and the checks that span fields. It imports no torch, so that
a launcher on a login node can read, check and hash Runs without the training environment.

A field marked with ``_free()`` does not change the result (paths, workers, logging): it stays out of the Run's identity.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Optional

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException


class ConfigError(ValueError):
    """A mistake that the user can mend. The message is one line: what is wrong, which field, what to do."""


def _free(default: Any) -> Any:
    return field(default=default, metadata={"identity": False})


@dataclass
class Subset:
    """A seeded part of the training images: either a share of them or a number per class."""

    fraction: Optional[float] = None  # in (0, 1]
    per_class: Optional[int] = None
    balanced: bool = True  # with `fraction`: the same share of every class; False draws from all images alike
    seed: int = 0


@dataclass
class View:
    """One named augmentation of the batch, made on the device. Magnitudes follow timm and torchvision."""

    count: int = 1  # how many independent copies of this view per image (stacked crop-major)
    size: Optional[int] = None  # pixels; None takes data.image_size
    crop: Literal["random_resized", "pad", "resize"] = "random_resized"
    scale: list[float] = field(default_factory=lambda: [0.08, 1.0])  # crop area / image area
    ratio: list[float] = field(default_factory=lambda: [3 / 4, 4 / 3])  # crop width / crop height
    pad_px: int = 4  # `crop: pad` resizes to `size`, pads by this much (reflecting) and crops back
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"
    hflip: float = 0.5
    auto_augment: str = ""  # timm's names: rand-m9-mstd0.5-inc1, original (AutoAugment, ImageNet); also cifar10
    color_jitter: list[float] = field(default_factory=list)  # brightness, contrast, saturation, hue; empty = off
    color_jitter_prob: float = 1.0
    grayscale_prob: float = 0.0
    blur_prob: float = 0.0
    blur_sigma: list[float] = field(default_factory=lambda: [0.1, 2.0])  # pixels
    solarize_prob: float = 0.0
    erasing_prob: float = 0.0  # timm's RandomErasing, mode pixel, one box
    mixup_alpha: float = 0.0
    cutmix_alpha: float = 0.0
    mix_prob: float = 1.0  # of mixing a batch at all, when mixup or cutmix is on
    switch_prob: float = 0.5  # of cutmix rather than mixup, when both are on


@dataclass
class Views:
    main: View = field(default_factory=View)
    second: Optional[View] = None
    local: Optional[View] = None


@dataclass
class Data:
    shards: str = _free("???")  # folder written by `vitssl shards build`
    source: Optional[str] = _free(None)  # what the launcher builds `shards` from where the folder does not exist
    sha256: Optional[str] = None  # fingerprint of the shards' content; the launcher fills it in, training verifies it
    train_split: str = "train"  # splits joined by "+", as in train+unlabeled
    test_split: str = "test"
    images: Optional[Subset] = None  # fewer images, for every objective
    labels: Optional[Subset] = None  # fewer labels: the other images stay, unlabelled
    val_fraction: float = 0.0  # of the training images, held out and evaluated as "val"
    val_seed: int = 0
    repeats: int = 1  # repeated augmentation: copies of an image in a batch; an epoch keeps its number of samples
    image_size: int = 224  # pixels
    normalize: Literal["dataset", "imagenet", "half"] = "dataset"  # channel statistics
    eval_crop: float = 0.875  # evaluation: resize the short side to image_size / eval_crop, centre-crop image_size
    cache_px: Optional[int] = None  # resize the short side once, in the cache, to this many pixels
    cache_gb: float = _free(16.0)  # decoded sets up to this size are cached, larger ones are streamed
    cache_dir: Optional[str] = _free(None)  # node-local; None takes $TMPDIR
    device_cache_gb: float = _free(1.0)  # decoded sets up to this size live in GPU memory
    workers: int = _free(4)  # decoding processes, per GPU, when streaming
    views: Views = field(default_factory=Views)


@dataclass
class Backbone:
    name: Literal["vit_pico", "vit_tiny", "vit_small", "vit_base", "vit_large"] = "vit_tiny"
    patch_size: int = 16  # pixels
    positions: Literal["learned", "sincos"] = "learned"
    embed_dim: Optional[int] = None  # None takes the named size's
    depth: Optional[int] = None
    num_heads: Optional[int] = None
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    drop_path: float = 0.0  # of the last block; the rate grows linearly from 0
    init: Literal["trunc_normal", "xavier"] = "trunc_normal"  # timm/DeiT's, or MAE's
    frozen: bool = False  # a linear probe: no gradient, evaluation mode
    fused_attention: bool = _free(True)


@dataclass
class Classify:
    weight: float = 1.0
    view: str = "main"
    pool: Literal["cls", "mean"] = "cls"
    label_smoothing: float = 0.0


@dataclass
class Mae:
    weight: float = 1.0
    view: str = "main"
    mask_ratio: float = 0.75
    decoder_dim: int = 512
    decoder_depth: int = 8
    decoder_heads: int = 16
    normalize_targets: bool = False  # per-patch normalised pixels


@dataclass
class Objectives:
    """One optional field per objective; null is off."""

    classify: Optional[Classify] = None
    mae: Optional[Mae] = None


@dataclass
class Optim:
    name: Literal["adamw", "sgd"] = "adamw"
    batch_size: int = 256  # images per optimiser step over all GPUs
    lr: float = 1e-3  # base rate, before lr_rule
    lr_rule: Literal["none", "batch/256", "batch/512", "sqrt_batch"] = "batch/256"  # sqrt_batch: sqrt(B) / 4 (LUT)
    min_lr: float = 1e-6
    warmup_lr: float = 0.0
    scale_all_lrs: bool = False  # lr_rule scales min_lr and warmup_lr too
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    momentum: float = 0.9  # sgd
    weight_decay: float = 0.05
    weight_decay_end: Optional[float] = None  # cosine from weight_decay to this
    no_decay: list[str] = field(default_factory=list)  # name patterns, besides vectors and biases
    layer_decay: float = 1.0
    clip: Literal["none", "global", "tensor"] = "none"
    clip_norm: float = 1.0


@dataclass
class Loop:
    epochs: int = 100
    schedule_epochs: Optional[int] = None  # horizon of the cosine; None takes `epochs`
    warmup_epochs: float = 5.0
    max_steps: Optional[int] = None  # stop after so many optimiser steps, the schedule unchanged
    micro_batch_size: Optional[int] = _free(None)  # images per GPU and forward; more are accumulated
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    compile: bool = _free(False)
    ema_decay: Optional[float] = None  # also evaluates the moving average of the weights
    device: Literal["auto", "cpu", "cuda"] = _free("auto")
    threads: int = _free(2)  # CPU threads per process; part of what "equal to the bit" means
    eval_every: int = _free(1)  # epochs; 0 evaluates at the end only
    log_every: int = _free(10)  # steps
    checkpoint_minutes: float = _free(5.0)  # a killed run loses at most this
    keep_every: int = _free(0)  # epochs; also keep a checkpoint of its own, 0 = never


@dataclass
class Run:
    seed: int = 0
    data: Data = field(default_factory=Data)
    backbone: Backbone = field(default_factory=Backbone)
    objectives: Objectives = field(default_factory=Objectives)
    optim: Optim = field(default_factory=Optim)
    loop: Loop = field(default_factory=Loop)
    init_from: Optional[str] = None  # a run folder, a checkpoint file, or (in a sweep) a stage: where weights start
    init_objectives: list[str] = field(default_factory=list)  # objectives that start from there too, besides the backbone
    init_except: list[str] = field(default_factory=list)  # name patterns that may be missing, unexpected or of other shape


@dataclass
class Site:
    """Where jobs run: the fields of a site profile (jobs/sites/*.yaml)."""

    name: str = "local"
    partition: Optional[str] = None
    account: Optional[str] = None
    qos: Optional[str] = None
    constraint: Optional[str] = None
    gpu: Optional[str] = None  # name of the board, for the predictions and the report
    gpu_power_w: float = 230.0  # board power, for the estimate "GPU-hours x board power"
    gpu_tflops: Optional[float] = None  # peak in the Run's precision, for predictions; None measures or assumes
    price_per_gpu_hour: float = 0.0
    currency: str = "USD"
    country: str = "USA"  # ISO 3166-1 alpha-3, for the grid's carbon intensity
    intensity_kg_per_kwh: Optional[float] = None  # overrides the country's
    estimate_kg_per_kwh: float = 0.432  # of the estimate, as the SSAT paper's Table 3
    image: Optional[str] = None  # container (.sif) that training runs in
    container: str = "apptainer exec --nv"  # how to enter it
    binds: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)  # shell lines before the job
    env: dict[str, str] = field(default_factory=dict)
    additional: dict[str, str] = field(default_factory=dict)  # further sbatch options


# name -> (embed_dim, depth, num_heads); pico is ours, for demonstrations and tests
VIT_SIZES = {
    "vit_pico": (96, 4, 3),
    "vit_tiny": (192, 12, 3),
    "vit_small": (384, 12, 6),
    "vit_base": (768, 12, 12),
    "vit_large": (1024, 24, 16),
}
IMAGENET_STATISTICS = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
# What a backbone can do, and what an objective asks of it. `keep`: drop tokens before the first block.
OFFERS = {name: {"cls", "keep"} for name in VIT_SIZES}
NEEDS = {"classify": set(), "mae": {"keep"}}
# Objectives that can use an image only with its label; where no other is active, unlabelled images are left out.
NEEDS_LABELS = {"classify"}


def active(objectives: Objectives) -> dict[str, Any]:
    """The objectives that are on, by name, in the order of the fields."""
    return {f.name: v for f in dataclasses.fields(objectives) if (v := getattr(objectives, f.name)) is not None}


def backbone_shape(backbone: Backbone) -> tuple[int, int, int]:
    """(embed_dim, depth, num_heads) with the overrides applied."""
    named = VIT_SIZES[backbone.name]
    own = (backbone.embed_dim, backbone.depth, backbone.num_heads)
    return tuple(o if o is not None else n for o, n in zip(own, named, strict=True))  # type: ignore[return-value]


def views_of(run: Run) -> dict[str, View]:
    """The views that the active objectives read, by name, in the order of the fields.

    A view that is configured but read by nobody is not made.
    """
    asked = {objective.view for objective in active(run.objectives).values()}
    views = {f.name: getattr(run.data.views, f.name) for f in dataclasses.fields(run.data.views)}
    return {name: view for name, view in views.items() if name in asked and view is not None}


def view_px(data: Data, view: str) -> int:
    """Side of a view's square images, in pixels."""
    return getattr(data.views, view).size or data.image_size


def statistics(data: Data, mean: list[float], std: list[float]) -> tuple[list[float], list[float]]:
    """Channel mean and std, in [0, 1] units, for ``data.normalize``; the arguments are the data set's own."""
    return {"dataset": (mean, std), "imagenet": IMAGENET_STATISTICS, "half": ([0.5] * 3, [0.5] * 3)}[data.normalize]


def scaled_lr(optim: Optim, lr: float) -> float:
    """``lr`` under the rule for the global batch size: B/256 (MAE), B/512 (DeiT), sqrt(B)/4 (LUT's code)."""
    size = optim.batch_size
    return lr * {"none": 1.0, "batch/256": size / 256, "batch/512": size / 512, "sqrt_batch": size**0.5 / 4}[optim.lr_rule]


# ---------------------------------------------------------------------------------------------------------------- load


def merge(schema: type, *layers: Any, where: str = "") -> Any:
    """Merge YAML-like layers over a dataclass and return the filled dataclass.

    Args:
        schema: the dataclass, for example ``Run``.
        layers: dicts (whose keys may be dotted paths), OmegaConf nodes or lists of ``key=value``; later ones win.
        where: the file or the arm that the layers come from, for the error's first words.

    Raises:
        ConfigError: an unknown key, a wrong type or a missing value; one line that names the field.
    """
    prefix = f"{where}: " if where else ""
    base = _schema(schema)
    required: set[str] = set()  # `???` in a layer asks a later one for the value; OmegaConf would keep the default in silence
    try:
        for layer in layers:
            node = OmegaConf.from_dotlist(layer) if isinstance(layer, list) else OmegaConf.create(undotted(layer))
            _refuse_scalars(node, prefix)
            asked = OmegaConf.missing_keys(node)
            required = {key for key in required if OmegaConf.select(node, key) is None} | asked
            base = OmegaConf.merge(base, node)
        missing = sorted(OmegaConf.missing_keys(base) | required)
        if missing:
            raise ConfigError(f"{prefix}{missing[0]} is not set")
        return OmegaConf.to_object(base)
    except OmegaConfBaseException as error:
        raise ConfigError(prefix + _one_line(error)) from None


@functools.cache
def _schema(schema: type) -> Any:
    # half of the time that merging takes, and merging leaves it as it is
    return OmegaConf.structured(schema)


def undotted(layer: Any) -> Any:
    """``{"loop.epochs": 50}`` as ``{"loop": {"epochs": 50}}``, at every depth; what is written twice is merged in order."""
    if OmegaConf.is_config(layer):
        layer = OmegaConf.to_container(layer)
    if not isinstance(layer, dict):
        return layer
    merged: dict[str, Any] = {}
    for key, value in layer.items():
        nested = undotted(value)
        for part in reversed(str(key).split(".")):
            nested = {part: nested}
        _update(merged, nested)
    return merged


def _update(into: dict[str, Any], new: dict[str, Any]) -> None:
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _update(into[key], value)
        else:
            into[key] = value


def _refuse_scalars(node: Any, prefix: str) -> None:
    """`objectives.mae: true` is a natural mistake and OmegaConf's message for it names no field."""
    objectives = OmegaConf.select(node, "objectives", default=None)
    if not OmegaConf.is_dict(objectives):
        return
    for name, value in objectives.items():
        if value is not None and not OmegaConf.is_dict(value):
            raise ConfigError(f"{prefix}objectives.{name}: {value!r} is not a set of fields; write {{}} for its defaults, null for off")


def _one_line(error: OmegaConfBaseException) -> str:
    text = re.sub(r"\s+(reference_type|object_type|full_key)[=:].*", "", " ".join(str(error).split()))
    key = str(getattr(error, "full_key", None) or "")
    return f"{key}: {text}" if key and not text.startswith(key) else text


def load(folder: str | Path) -> Run:
    """The Run of a run folder (its ``run.yaml``), checked."""
    path = Path(folder) / "run.yaml"
    if not path.is_file():
        raise ConfigError(f"{path} does not exist: this is not a run folder")
    run = merge(Run, OmegaConf.load(path), where=str(path))
    check(run, where=str(path))
    return run


def save(run: Run, folder: str | Path) -> None:
    """Write ``run.yaml`` with every default stored explicitly."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    OmegaConf.save(OmegaConf.structured(run), Path(folder) / "run.yaml")


# ------------------------------------------------------------------------------------------------------------ identity


def identity(run: Run) -> str:
    """Hash (12 hex digits) of the fields that define the result."""
    text = json.dumps(_defining(run), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _defining(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        fields = (f for f in dataclasses.fields(value) if f.metadata.get("identity", True))
        return {f.name: _defining(getattr(value, f.name)) for f in fields}
    if isinstance(value, list):
        return [_defining(v) for v in value]
    return value


# -------------------------------------------------------------------------------------------------------------- checks


def check(run: Run, where: str = "") -> None:
    """Refuse impossible values and combinations.

    Raises:
        ConfigError: the first problem found, naming ``where`` and the field.
    """
    prefix = f"{where}: " if where else ""
    # lazily: a later check may rely on an earlier one
    for problem in chain(_objective_problems(run), _data_problems(run.data), _backbone_problems(run), _optim_problems(run)):
        raise ConfigError(prefix + problem)


def _objective_problems(run: Run):
    objectives = active(run.objectives)
    if not objectives:
        yield "objectives: none is on; set at least one, for example objectives.classify: {}"
    made = {f.name for f in dataclasses.fields(run.data.views) if getattr(run.data.views, f.name) is not None}
    for name, objective in objectives.items():
        lacking = NEEDS[name] - OFFERS[run.backbone.name]
        if lacking:
            yield f"objectives.{name}: backbone.name={run.backbone.name} does not offer {', '.join(sorted(lacking))}"
        if objective.view not in made:
            yield f"objectives.{name}.view: there is no data.views.{objective.view}; the Run has {', '.join(sorted(made))}"
        if objective.weight < 0:
            yield f"objectives.{name}.weight: {objective.weight} is negative"
    if run.backbone.frozen and set(objectives) != {"classify"}:
        yield "backbone.frozen: only a classify Run (a probe) can train on a frozen backbone"
    for name, patterns in (("init_except", run.init_except), ("optim.no_decay", run.optim.no_decay)):
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                yield f"{name}: {pattern!r} is not a regular expression ({error})"
    for name in run.init_objectives:
        if name not in objectives:
            yield f"init_objectives: {name} is not an active objective; the Run has {', '.join(objectives)}"
    yield from _term_problems(run, run.objectives)


def _term_problems(run: Run, objectives: Objectives):
    if (classify := objectives.classify) and not 0 <= classify.label_smoothing < 1:
        yield f"objectives.classify.label_smoothing: {classify.label_smoothing} is not in [0, 1)"
    if mae := objectives.mae:
        if not 0 < mae.mask_ratio < 1:
            yield f"objectives.mae.mask_ratio: {mae.mask_ratio} is not between 0 and 1"
        patch_size = max(1, run.backbone.patch_size)  # 0 is refused further below
        tokens = (view_px(run.data, mae.view) // patch_size) ** 2
        if int(tokens * (1 - mae.mask_ratio)) < 1:
            yield f"objectives.mae.mask_ratio: {mae.mask_ratio} keeps none of the {tokens} tokens; lower it or use smaller patches"
        for name in ("decoder_dim", "decoder_depth", "decoder_heads"):
            if getattr(mae, name) < 1:
                yield f"objectives.mae.{name}: {getattr(mae, name)} is less than 1"
        if mae.decoder_dim % mae.decoder_heads or mae.decoder_dim % 4:
            yield f"objectives.mae.decoder_dim: {mae.decoder_dim} must be a multiple of decoder_heads={mae.decoder_heads} and of 4"


def _data_problems(data: Data):
    for name in ("images", "labels"):
        subset = getattr(data, name)
        if subset is None:
            continue
        if (subset.fraction is None) == (subset.per_class is None):
            yield f"data.{name}: set exactly one of fraction and per_class"
        if subset.fraction is not None and not 0 < subset.fraction <= 1:
            yield f"data.{name}.fraction: {subset.fraction} is not in (0, 1]"
        if subset.per_class is not None and subset.per_class < 1:
            yield f"data.{name}.per_class: {subset.per_class} is less than 1"
    if not 0 <= data.val_fraction < 1:
        yield f"data.val_fraction: {data.val_fraction} is not in [0, 1)"
    if not 0 < data.eval_crop <= 1:
        yield f"data.eval_crop: {data.eval_crop} is not in (0, 1]"
    for name, seed in (("val_seed", data.val_seed), *((f"{n}.seed", s.seed) for n in ("images", "labels") if (s := getattr(data, n)))):
        if seed < 0:
            yield f"data.{name}: {seed} is negative"
    if data.workers < 0:
        yield f"data.workers: {data.workers} is negative"
    for name in ("repeats", "image_size"):
        if getattr(data, name) < 1:
            yield f"data.{name}: {getattr(data, name)} is less than 1"
    for f in dataclasses.fields(data.views):
        if (view := getattr(data.views, f.name)) is not None:
            yield from _view_problems(f"data.views.{f.name}", view, view.size or data.image_size)


def _view_problems(name: str, view: View, size_px: int):
    if view.crop == "pad" and not 0 <= view.pad_px < size_px:
        yield f"{name}.pad_px: {view.pad_px} pixels cannot be reflected from a view of {size_px} px"
    if view.count < 1:
        yield f"{name}.count: {view.count} is less than 1"
    for key, low, high in (("scale", 0.0, 1.0), ("ratio", 0.0, 100.0), ("blur_sigma", 0.0, 100.0)):
        pair = getattr(view, key)
        if len(pair) != 2 or not low < pair[0] <= pair[1] <= high:
            yield f"{name}.{key}: {pair} is not a rising pair of numbers in ({low:g}, {high:g}]"
    for f in dataclasses.fields(view):
        if (f.name.endswith("_prob") or f.name == "hflip") and not 0 <= getattr(view, f.name) <= 1:
            yield f"{name}.{f.name}: {getattr(view, f.name)} is not a probability"
        if f.name.endswith("_alpha") and getattr(view, f.name) < 0:
            yield f"{name}.{f.name}: {getattr(view, f.name)} is negative"
    if view.color_jitter and len(view.color_jitter) != 4:
        yield f"{name}.color_jitter: {view.color_jitter} is not [brightness, contrast, saturation, hue]"
    if view.auto_augment and not re.fullmatch(r"rand(-(m|mstd|inc|n|p)\d+\.?\d*)*|original|cifar10", view.auto_augment):
        yield f"{name}.auto_augment: {view.auto_augment!r} is none of rand-m9-mstd0.5-inc1 (and the like), original, cifar10"


def _backbone_problems(run: Run):
    backbone, (embed_dim, depth, num_heads) = run.backbone, backbone_shape(run.backbone)
    sizes = {"patch_size": backbone.patch_size, "embed_dim": embed_dim, "depth": depth, "num_heads": num_heads}
    for name, value in sizes.items():
        if value < 1:
            yield f"backbone.{name}: {value} is less than 1"
            return
    if embed_dim % num_heads:
        yield f"backbone.num_heads: {num_heads} does not divide embed_dim={embed_dim}"
    if backbone.positions == "sincos" and embed_dim % 4:
        yield f"backbone.positions: sincos needs an embed_dim that is a multiple of 4, not {embed_dim}"
    if backbone.mlp_ratio <= 0:
        yield f"backbone.mlp_ratio: {backbone.mlp_ratio} is not positive"
    if not 0 <= backbone.drop_path < 1:
        yield f"backbone.drop_path: {backbone.drop_path} is not in [0, 1)"
    for name in views_of(run):
        size = view_px(run.data, name)
        if size % backbone.patch_size:
            yield f"backbone.patch_size: {backbone.patch_size} does not divide the {size} px of data.views.{name}"
    if run.data.image_size % backbone.patch_size:
        yield f"backbone.patch_size: {backbone.patch_size} does not divide data.image_size={run.data.image_size}"


def _optim_problems(run: Run):
    optim, loop = run.optim, run.loop
    for name, value, low in (
        ("seed", run.seed, 0),
        ("optim.batch_size", optim.batch_size, 1),
        ("optim.lr", optim.lr, 0),
        ("optim.weight_decay", optim.weight_decay, 0),
        ("optim.min_lr", optim.min_lr, 0),
        ("optim.warmup_lr", optim.warmup_lr, 0),
        ("optim.momentum", optim.momentum, 0),
        ("loop.checkpoint_minutes", loop.checkpoint_minutes, 0),
        ("loop.epochs", loop.epochs, 1),
        ("loop.warmup_epochs", loop.warmup_epochs, 0),
        ("loop.threads", loop.threads, 1),
        ("loop.log_every", loop.log_every, 1),
        ("loop.eval_every", loop.eval_every, 0),
        ("loop.keep_every", loop.keep_every, 0),
    ):
        if value < low:
            yield f"{name}: {value} is less than {low}"
    if not 0 < optim.layer_decay <= 1:
        yield f"optim.layer_decay: {optim.layer_decay} is not in (0, 1]"
    if optim.clip != "none" and optim.clip_norm <= 0:
        yield f"optim.clip_norm: {optim.clip_norm} is not positive"
    if len(optim.betas) != 2 or not all(0 <= b < 1 for b in optim.betas):
        yield f"optim.betas: {optim.betas} is not a pair in [0, 1)"
    if loop.schedule_epochs is not None and loop.schedule_epochs < loop.epochs:
        yield f"loop.schedule_epochs: {loop.schedule_epochs} is shorter than loop.epochs={loop.epochs}"
    if loop.warmup_epochs >= (loop.schedule_epochs or loop.epochs):
        yield f"loop.warmup_epochs: {loop.warmup_epochs:g} leaves nothing of the {loop.schedule_epochs or loop.epochs} epochs to train"
    if loop.ema_decay is not None and not 0 < loop.ema_decay < 1:
        yield f"loop.ema_decay: {loop.ema_decay} is not in (0, 1)"
    if loop.max_steps is not None and loop.max_steps < 1:
        yield f"loop.max_steps: {loop.max_steps} is less than 1"
    if loop.micro_batch_size is not None and loop.micro_batch_size < 1:
        yield f"loop.micro_batch_size: {loop.micro_batch_size} is less than 1"
