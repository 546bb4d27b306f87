"""The pretrained weights of timm's hub, by name."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from torch import Tensor, nn

from vitssl.config import ConfigError, unknown
from vitssl.config.base import closest
from vitssl.data.loading.batch import Batch
from vitssl.model import Model

SUGGESTED = 3  # names of weights
CACHED = ("model.safetensors", "pytorch_model.bin")  # in a repository of the hub


def released(name: str) -> dict[str, Tensor]:
    """The pretrained weights of a model of timm's hub.

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
    """Is the file cached, or its hub known by the name server? Its client tries for a minute, and says so in twenty lines.

    Raises:
        ConfigError: it is neither.
    """
    import huggingface_hub
    import timm

    repository = getattr(timm.get_pretrained_cfg(name, allow_unregistered=True), "hf_hub_id", None)
    host = urlsplit(huggingface_hub.constants.ENDPOINT).hostname
    if not repository or host is None or getproxies():  # which the client asks in place of a name server
        return
    if any(isinstance(huggingface_hub.try_to_load_from_cache(repository, file), str) for file in CACHED):
        return
    try:
        socket.getaddrinfo(host, 443)
    except OSError as error:
        reason = f"{host} cannot be reached from here ({error.strerror})"
        raise ConfigError(f"timm:{name}: {reason}; type `vitssl weights timm:{name} FILE` where it can, and copy the file") from None


def check_released(name: str) -> None:
    """Does timm have pretrained weights of this name? Nothing is downloaded; what a hub has (``hf-hub:``) is not looked up.

    Raises:
        ConfigError: it has none; with the names that look like it.
    """
    import timm

    if ":" in name or timm.is_model_pretrained(name):
        return
    known = timm.list_pretrained()
    begins: dict[str, list[str]] = {}  # a network's name is longer than what people type of it
    for one in known:
        begins.setdefault(one.split(".")[0][: len(name)], []).append(one)
    near = [one for likeness in closest(name.split(".")[0], list(begins)) for one in begins[likeness]][:SUGGESTED]
    reason = unknown(name, [], also=near).reason if near else f"{name!r} is not known (timm.list_pretrained() lists the names)"
    raise ConfigError(f"timm has no such weights: {reason}")


@torch.no_grad()
def check_same(name: str, tensors: dict[str, Tensor], network: Model, num_classes: int, size_px: int) -> None:
    """Does a network make of an image what timm's of this name makes of it with these tensors? Shapes do not tell all: a ResNet that blurs
    has those of one that does not, and a Swin's windows may differ from stage to stage.

    Raises:
        ConfigError: it does not.
    """
    import timm

    theirs, ours = timm.create_model(name, num_classes=num_classes).eval(), network.eval()
    image_1CSS = torch.rand(1, 3, size_px, size_px, generator=torch.Generator().manual_seed(0))
    try:
        theirs.load_state_dict({name: value for name, value in tensors.items() if name in theirs.state_dict()})
    except RuntimeError:
        raise ConfigError(f"it says that it is timm's {name}, and its tensors are not those of that network") from None
    wanted, found = theirs(image_1CSS), ours.predict(Batch.of_images(image_1CSS))
    if found is None:
        wanted = getattr(theirs, "fc_norm", nn.Identity())(theirs.forward_features(image_1CSS))
        features = ours.backbone(ours.backbone.embed(image_1CSS))
        found = features.sequence() if wanted.dim() == 3 else features.map()
        wanted = wanted.permute(0, 3, 1, 2) if getattr(theirs, "output_fmt", "NCHW") == "NHWC" else wanted
    if wanted.shape != found.shape or (wanted - found).abs().max() > 1e-3 * wanted.abs().max():
        bare = name.partition(".")[0]
        advice = "--set backbone.num_heads=N, if that is it, or"
        advice += f" train it as `backbone: {{name: timm, timm_model: {bare}}}` with `init_from: timm:{name}`"
        raise ConfigError(f"timm's {name} makes other features of an image than this network of the same tensors; {advice}")
