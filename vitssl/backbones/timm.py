"""Any timm network that ends in a map or a grid of tokens: convolutional networks, and transformers that have no file here.

The features are timm's output without pooling and classifier. They are also the only intermediate layer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Set
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import timm
import torch
from timm.layers import DropPath
from timm.models import group_parameters
from torch import Tensor, nn

from vitssl import config
from vitssl.backbones import norms
from vitssl.backbones.base import Backbone, Embedded, Features
from vitssl.config import ConfigError, unknown_error
from vitssl.config.base import closest

FIELD = "backbone.timm_model"


def build(cfg: config.BackboneConfig, size_px: int, requires: Set[str] = frozenset()) -> TimmNetwork:
    return TimmNetwork(cfg, size_px)


class TimmNetwork(Backbone):
    """A backbone that wraps timm's network as ``network`` and gives it batch norms over the global batch.

    Raises:
        ConfigError: timm has no such network, or its output is not a grid with one token per ``patch_size`` pixels.
    """

    def __init__(self, cfg: config.BackboneConfig, size_px: int):
        super().__init__()
        self.network = create(cfg, size_px)
        norms.replace_batch_norms(self.network)
        output = _output(cfg, size_px)
        self.num_prefix_tokens = getattr(self.network, "num_prefix_tokens", 0) if output.dim() == 3 else 0
        self._channels_last = output.dim() == 4 and getattr(self.network, "output_fmt", "NCHW") == "NHWC"
        self._name, self._fixed_px = cfg.network, size_px if _is_fixed_size(cfg) else None
        self.embed_dim = output.shape[1 if output.dim() == 4 and not self._channels_last else -1]
        self.strides, self.widths, self.norm = (config.stride_px(cfg),), (self.embed_dim,), nn.Identity()
        _check_grid(cfg, size_px, self.features(output, self.grid(size_px)))
        # in evaluation mode some networks cache values computed from parameters, but a teacher's parameters change in this mode
        self._caching_modules = tuple(part for part in self.network.modules() if hasattr(part, "attention_bias_cache"))
        self._layer_ids = _layer_ids(self.network)

    @cached_property
    def num_layers(self) -> int:  # type: ignore[override]  # it may be set, too, but mypy takes a cached property for read-only
        """The number of timm's layers between stem and head. A kept part of the head, such as ConvNeXt's last norm, counts as head."""
        with torch.device("meta"):
            return max(_layer_ids(timm.create_model(self._name, num_classes=1)).values(), default=1) - 1

    def embed(self, images_BCHW: Tensor) -> Embedded:
        """Return the images unchanged, since passes share no computation.

        Raises:
            ConfigError: the network takes images of one size only, and these have another.
        """
        if self._fixed_px not in (None, images_BCHW.shape[-1]):
            reason = f"{self._name} takes images of {self._fixed_px} px alone, and a view has {images_BCHW.shape[-1]} px"
            raise ConfigError(f"{reason}; give data.views the same sizes, or take a network for any size", FIELD)
        return Embedded(images_BCHW, self.grid_of(images_BCHW))

    def forward(
        self, embedded: Embedded, keep_BM: Tensor | None = None, mask_BN: Tensor | None = None, out_indices: tuple[int, ...] = ()
    ) -> Features:
        assert keep_BM is None and mask_BN is None, "config lets no objective hide tokens of a network of timm"
        for part in self._caching_modules:
            part.attention_bias_cache = {}  # type: ignore[assignment]  # torch's stub allows tensors and modules alone
        features = self.features(self.network(embedded.tokens), embedded.grid)
        if features.grid != embedded.grid:
            raise ConfigError(f"{self._name} has {features.grid} tokens of an image in which {embedded.grid} are expected", FIELD)
        return features.with_sequence(features.sequence(), intermediates=dict.fromkeys(out_indices, features))

    def features(self, output: Tensor, grid: tuple[int, ...]) -> Features:
        """Make features of the ``output`` of timm's network, a map or tokens."""
        if output.dim() == 4:
            return Features.of_map(output.permute(0, 3, 1, 2) if self._channels_last else output)
        return Features.split(output, self.num_prefix_tokens, 0, grid)

    def layer_id(self, name: str) -> int:
        """Return the number of timm's layer group that the parameter belongs to; heads come after the last group.

        Raises:
            ConfigError: timm does not group this network's layers.
        """
        if not self._layer_ids:
            raise ConfigError("timm does not tell this network's layers apart; set it to 1", "optim.layer_decay")
        return self._layer_ids[name.removeprefix("network.")]

    def convert_state_dict(self, state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """Fit weights with timm's names as timm does, for example positions to another image size, and drop the pooling and classifier.

        Raises:
            ConfigError: timm cannot fit them, as they belong to another network.
        """
        rest = {name: value for name, value in state.items() if not name.startswith(prefix)}
        weights = {name.removeprefix(prefix).removeprefix("network."): value for name, value in state.items() if name.startswith(prefix)}
        expected = self.network.state_dict()
        fit = getattr(sys.modules[type(self.network).__module__], "checkpoint_filter_fn", None)
        if fit is not None and any(name not in weights or weights[name].shape != value.shape for name, value in expected.items()):
            try:
                weights = fit(weights, self.network)
            except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:  # for files of other networks
                reason = f"timm cannot fit these weights to {self._name} ({type(error).__name__}: {error}); name a file of that network"
                raise ConfigError(reason, "init_from") from None
        with torch.device("meta"):
            tail_names = timm.create_model(self._name).state_dict().keys() - expected.keys()  # parameters of pooling and classifier
        return rest | {f"{prefix}network.{name}": value for name, value in weights.items() if name not in tail_names}


def _layer_ids(network: nn.Module) -> dict[str, int]:
    """Return the layer id of each parameter by name; empty if timm does not group the network's layers."""
    make_matcher = getattr(network, "group_matcher", None)
    matcher = None if make_matcher is None else make_matcher(coarse=False)
    return {} if matcher is None else group_parameters(network, matcher, reverse=True)


def arguments(cfg: config.BackboneConfig, size_px: int) -> dict[str, Any]:
    """Return the keyword arguments of ``timm.create_model``."""
    size_options = {"img_size": size_px} if _is_fixed_size(cfg) else {}
    return {"num_classes": 0, "global_pool": "", **size_options, **({"drop_path_rate": cfg.drop_path} if cfg.drop_path else {})}


def create(cfg: config.BackboneConfig, size_px: int) -> nn.Module:
    """Create timm's network without pooling and classifier, initialised as timm does.

    Raises:
        ConfigError: timm has no network of this name, or cannot create it with the given config.
    """
    name = cfg.timm_model or ""
    if "." in name:
        architecture = name.partition(".")[0]
        raise ConfigError(f"{name} names weights too; write timm_model: {architecture}, and init_from: timm:{name}", FIELD)
    if name not in timm.list_models():  # does not list deprecated names
        if suggestions := closest(name, timm.list_models()):
            raise unknown_error(name, [], FIELD, also=suggestions)
        raise ConfigError(f"{name!r} is not known (timm.list_models() lists the names)", FIELD)
    with _timm_errors(cfg, size_px):
        network = timm.create_model(name, **arguments(cfg, size_px))
    _leave_dropout_to_the_run(network, cfg.drop_path)
    return network


def _leave_dropout_to_the_run(network: nn.Module, drop_path: float) -> None:
    """Switch off dropout, and also stochastic depth if ``drop_path`` is 0.

    A Run's backbone has no dropout, and stochastic depth only if the Run asks for it, but some of timm's networks have rates of their own,
    and not all accept them as an argument.
    """
    if hasattr(network, "drop_rate"):
        network.drop_rate = 0.0  # type: ignore[assignment]  # as above
    for part in network.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        elif isinstance(part, DropPath) and not drop_path:
            part.drop_prob = 0.0


def _is_fixed_size(cfg: config.BackboneConfig) -> bool:
    """Whether the network takes images of one size only."""
    pretrained = timm.get_pretrained_cfg(cfg.network)
    return pretrained is not None and pretrained.fixed_input_size


@contextmanager
def _timm_errors(cfg: config.BackboneConfig, size_px: int) -> Iterator[None]:
    """Return a context that turns the various errors of timm's code into a ConfigError."""
    try:
        yield
    except (AssertionError, AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        message = (str(error).strip().splitlines() or [type(error).__name__])[0]
        reason = f"timm refuses {cfg.timm_model} with {arguments(cfg, size_px)} for images of {size_px} px ({message})"
        raise ConfigError(reason, FIELD) from None


def _output(cfg: config.BackboneConfig, size_px: int) -> Tensor:
    """Return the network's output for one image, on the meta device, so that only its shape is known.

    Raises:
        ConfigError: the output is neither a map nor tokens.
    """
    with torch.device("meta"), torch.no_grad():
        network, image = create(cfg, size_px).eval(), torch.zeros(1, 3, size_px, size_px)
        with _timm_errors(cfg, size_px):
            output = network(image)
    if not isinstance(output, Tensor) or output.dim() not in (3, 4) or (output.dim() == 3 and output.shape[1] == 1):
        raise ConfigError(f"{cfg.timm_model} ends neither in a map nor in tokens", FIELD)
    return output


def _check_grid(cfg: config.BackboneConfig, size_px: int, features: Features) -> None:
    N, expected = features.tokens_BND.shape[1], (size_px // config.stride_px(cfg)) ** 2
    if expected == N and (features.grid[0] == features.grid[-1]):
        return
    side = round(N**0.5)
    if side * side != N or size_px % side:
        raise ConfigError(f"{cfg.timm_model} has {N} tokens of an image of {size_px} px, which are no even grid", FIELD)
    found = f"{cfg.timm_model} has {side} x {side} tokens of an image of {size_px} px"
    raise ConfigError(f"{found}, not one per {config.stride_px(cfg)} px; set patch_size: {size_px // side}", "backbone.patch_size")
