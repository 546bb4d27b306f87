"""Pretrained weights of timm's hub, by name."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from torch import Tensor, nn

from vitssl.config import ConfigError, unknown_error
from vitssl.config.base import closest
from vitssl.data.loading.batch import Batch
from vitssl.model import Model

SUGGESTED = 3  # names that the message about an unknown name suggests, at most
CACHED = ("model.safetensors", "pytorch_model.bin")  # files of weights in a repository of the hub


def released(name: str) -> dict[str, Tensor]:
    """Return the pretrained weights of the model ``name`` of timm's hub.

    Raises:
        ConfigError: timm knows no such weights, or they cannot be downloaded here.
    """
    import timm

    check_released(name)
    _check_reachable(name)
    try:
        return timm.create_model(name, pretrained=True).state_dict()
    except (RuntimeError, OSError, ValueError) as error:
        raise ConfigError(f"timm:{name}: {str(error).splitlines()[0]}") from None


def _check_reachable(name: str) -> None:
    """Check that the file is cached or its hub's address can be resolved, as the hub's client tries for a minute and fails in twenty lines.

    Raises:
        ConfigError: neither is true.
    """
    import huggingface_hub
    import timm

    repository = getattr(timm.get_pretrained_cfg(name, allow_unregistered=True), "hf_hub_id", None)
    host = urlsplit(huggingface_hub.constants.ENDPOINT).hostname
    if not repository or host is None or getproxies():  # behind a proxy, the client does not resolve the address itself
        return
    if any(isinstance(huggingface_hub.try_to_load_from_cache(repository, file), str) for file in CACHED):
        return
    try:
        socket.getaddrinfo(host, 443)
    except OSError as error:
        reason = f"{host} cannot be reached from here ({error.strerror})"
        raise ConfigError(f"timm:{name}: {reason}; type `vitssl weights timm:{name} FILE` where it can, and copy the file") from None


def check_released(name: str) -> None:
    """Check that timm has pretrained weights of this name, without a download. Names in other hubs (``hf-hub:``) are not looked up.

    Raises:
        ConfigError: timm has none; the message suggests similar names.
    """
    import timm

    if ":" in name or timm.is_model_pretrained(name):
        return
    known = timm.list_pretrained()
    by_beginning: dict[str, list[str]] = {}  # people type only the beginning of a network's name
    for weights in known:
        by_beginning.setdefault(weights.split(".")[0][: len(name)], []).append(weights)
    similar = [weights for beginning in closest(name.split(".")[0], list(by_beginning)) for weights in by_beginning[beginning]][:SUGGESTED]
    reason = unknown_error(name, [], also=similar).reason if similar else f"{name!r} is not known (timm.list_pretrained() lists the names)"
    raise ConfigError(f"timm has no such weights: {reason}")


@torch.no_grad()
def check_same(name: str, tensors: dict[str, Tensor], network: Model, num_classes: int, size_px: int) -> None:
    """Check that ``network`` and timm's network ``name``, with the same ``tensors``, give the same output for an image.

    Equal shapes are not enough: a ResNet has the same with and without blur pooling, and the windows of a Swin may differ between stages.

    Raises:
        ConfigError: the outputs differ, or the tensors do not fit timm's network.
    """
    import timm

    theirs, ours = timm.create_model(name, num_classes=num_classes).eval(), network.eval()
    image_1CSS = torch.rand(1, 3, size_px, size_px, generator=torch.Generator().manual_seed(0))
    try:
        theirs.load_state_dict({name: value for name, value in tensors.items() if name in theirs.state_dict()})
    except RuntimeError:
        raise ConfigError(f"it says that it is timm's {name}, and its tensors are not those of that network") from None
    expected, actual = theirs(image_1CSS), ours.predict(Batch.of_images(image_1CSS))
    if actual is None:
        unnormed = theirs.forward_features(image_1CSS)  # type: ignore[operator]  # torch's stub takes it for a tensor
        expected = getattr(theirs, "fc_norm", nn.Identity())(unnormed)
        features = ours.backbone(ours.backbone.embed(image_1CSS))
        actual = features.sequence() if expected.dim() == 3 else features.map()
        expected = expected.permute(0, 3, 1, 2) if getattr(theirs, "output_fmt", "NCHW") == "NHWC" else expected
    if expected.shape != actual.shape or (expected - actual).abs().max() > 1e-3 * expected.abs().max():
        architecture = name.partition(".")[0]
        advice = "--set backbone.num_heads=N, if that is it, or"
        advice += f" train it as `backbone: {{name: timm, timm_model: {architecture}}}` with `init_from: timm:{name}`"
        raise ConfigError(f"timm's {name} makes other features of an image than this network of the same tensors; {advice}")
