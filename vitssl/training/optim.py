"""Parameter groups, layer decay, optimisers, and schedules that are functions of the step alone.

The learning rate and the weight decay of every group are set before each step, so a resumed run needs no scheduler state.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import torch
from timm.optim import Lars
from torch import Tensor, nn

from vitssl import config
from vitssl.backbones.base import Backbone
from vitssl.config import ConfigError, Run, scaled_lr


def param_groups(model: nn.Module, backbone: Backbone, cfg: config.Optim) -> list[dict[str, Any]]:
    """Return parameter groups of equal learning-rate scale and equal weight decay (or none), in a fixed order.

    Weight decay applies to matrices, and to tokens and learned positions, as in SSAT's and DINO's code and MAE's pretraining. (MAE's
    fine-tuning, DeiT and timm leave tokens and positions out, which is ``optim.no_decay: [pos_embed, cls_token]``.) It does not apply to
    vectors and biases, unless ``optim.decay`` names them, nor to anything that ``optim.no_decay`` names.

    With layer decay d, a parameter of layer i of L has the scale d ** (L + 1 - i). Heads and the final norm have the scale 1, as in MAE's
    and BEiT's code; timm, and so its networks here, counts the norm with the last block.

    Raises:
        ConfigError: a pattern of ``optim.decay`` matches no parameter.
    """
    for pattern in cfg.decay:
        if not any(re.search(pattern, name) for name, _ in model.named_parameters()):
            raise ConfigError(f"{pattern!r} is in the name of no parameter, such as backbone.norm.weight", "optim.decay")
    groups: dict[tuple[float, bool], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        decayed = (parameter.ndim >= 2 or _named(name, cfg.decay)) and not _named(name, cfg.no_decay)
        scale = 1.0
        if cfg.layer_decay != 1 and name.startswith("backbone."):
            scale = cfg.layer_decay ** (backbone.num_layers + 1 - backbone.layer_id(name.removeprefix("backbone.")))
        group = groups.setdefault((scale, decayed), {"params": [], "lr_scale": scale, "decayed": decayed})
        group["params"].append(parameter)
    return [groups[key] for key in sorted(groups)]


def _named(name: str, patterns: list[str]) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


def make(model: nn.Module, backbone: Backbone, cfg: config.Optim) -> torch.optim.Optimizer:
    """Build AdamW, SGD or LARS over ``param_groups``, in forms that allow a parameter's first gradient to come later than that of others.

    AdamW and SGD are fused, which lets them skip a step of fp16 that overflowed without waiting for the GPU; LARS waits.

    LARS (You et al. 2017) scales the learning rate of parameters that may be decayed (matrices) by a thousandth of the ratio of the
    parameter's norm to its gradient's, even without weight decay, as in MAE's linear probing.
    """
    groups = param_groups(model, backbone, cfg)
    if cfg.name == "adamw":
        beta1, beta2 = cfg.betas
        return torch.optim.AdamW(groups, lr=0.0, betas=(beta1, beta2), weight_decay=0.0, fused=True)
    if cfg.name == "lars":
        adapted = [group | {"always_adapt": group["decayed"]} for group in groups]
        return Lars(adapted, lr=0.0, momentum=cfg.momentum, nesterov=cfg.nesterov)
    sgd = torch.optim.SGD(groups, lr=0.0, momentum=cfg.momentum, nesterov=cfg.nesterov, weight_decay=0.0, fused=True)
    for parameter in (p for group in sgd.param_groups for p in group["params"] if cfg.momentum):
        sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)  # all at once: torch's fused SGD needs all buffers or none
    return sgd


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * share))


def _linear(start: float, end: float, share: float) -> float:
    return start + (end - start) * share


def _constant(start: float, end: float, share: float) -> float:
    return start


SHAPES = {"cosine": _cosine, "linear": _linear, "constant": _constant}  # by name in optim.schedule


class Schedule:
    """The learning rate and the weight decay at each step.

    The learning rate rises linearly over ``loop.warmup_epochs``, then follows half a cosine or a straight line to ``min_lr``, or stays
    constant, over ``loop.schedule_epochs``. This horizon may lie beyond the trained epochs. The curve starts at the end of the warm-up
    (``loop.warmup_prefix``) or at its beginning. The weight decay follows half a cosine over the same horizon.
    """

    def __init__(self, run: Run, steps_per_epoch: float):
        optim, loop = run.optim, run.loop
        scale = (lambda lr: scaled_lr(optim, lr)) if optim.scale_all_lrs else (lambda lr: lr)
        self.shape, self.peak_lr = SHAPES[optim.schedule], scaled_lr(optim, optim.lr)
        self.min_lr, self.warmup_lr = scale(optim.min_lr), scale(optim.warmup_lr)
        self.warmup_steps = loop.warmup_epochs * steps_per_epoch
        self.schedule_start = self.warmup_steps if loop.warmup_prefix else 0.0
        self.horizon_steps = loop.horizon * steps_per_epoch
        self.decay_start = optim.weight_decay
        self.decay_end = optim.weight_decay if optim.weight_decay_end is None else optim.weight_decay_end

    def progress(self, step: int) -> float:
        """Return the share of the horizon that has passed, in [0, 1]."""
        return min(step / self.horizon_steps, 1.0)

    def lr(self, step: int) -> float:
        if step < self.warmup_steps:
            return self.warmup_lr + (self.peak_lr - self.warmup_lr) * step / self.warmup_steps
        share = min((step - self.schedule_start) / max(self.horizon_steps - self.schedule_start, 1e-9), 1.0)
        return self.shape(self.peak_lr, self.min_lr, share)

    def weight_decay(self, step: int) -> float:
        return _cosine(self.decay_start, self.decay_end, self.progress(step))

    def apply(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        lr, decay = self.lr(step), self.weight_decay(step)
        for group in optimizer.param_groups:
            group["lr"] = lr * group["lr_scale"]
            group["weight_decay"] = decay if group["decayed"] else 0.0


def clip_gradients(parameters: Iterable[nn.Parameter], cfg: config.Optim) -> Tensor:
    """Clip gradients by their global norm, or each tensor by its own norm (DINO, GMML); return the global norm before clipping."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm_T = torch.stack(torch._foreach_norm(gradients))
    total = torch.linalg.vector_norm(norm_T)
    if cfg.clip == "global":
        torch._foreach_mul_(gradients, (cfg.clip_norm / (total + 1e-6)).clamp(max=1.0))
    elif cfg.clip == "tensor":
        torch._foreach_mul_(gradients, (cfg.clip_norm / (norm_T + 1e-6)).clamp(max=1.0).unbind())
    return total


def loss_scaler(device: torch.device, precision: str) -> torch.amp.GradScaler:
    """Return a dynamic loss scaler (Micikevicius et al. 2018), which does nothing for any precision but fp16.

    The loss is scaled up, so that fp16 does not round its gradients to zero. A step whose gradients overflow is skipped and halves the
    scale.
    """
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")


def without_overflow(norm: Tensor, scaler: torch.amp.GradScaler) -> Tensor:
    """Return ``norm``, or 0 if it is not finite while the loss was scaled up: that step is skipped, which is no divergence."""
    if not scaler.is_enabled():
        return norm
    scaled = scaler.scale(torch.ones_like(norm)) > 1
    return torch.where(scaled & ~torch.isfinite(norm), 0.0, norm)


class Ema:
    """A moving average of the model's floating-point state, updated once per optimiser step; counters are copied."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self._current = model.state_dict()  # kept: it shares memory with the weights, and to collect it takes a CPU half a millisecond
        self.average: dict[str, Tensor] = {name: value.clone() for name, value in self._current.items()}
        floating = [name for name, value in self._current.items() if value.is_floating_point()]
        self._averages, self._currents = [self.average[name] for name in floating], [self._current[name] for name in floating]
        self._counters = self._current.keys() - set(floating)

    def load(self, average: dict[str, Tensor]) -> None:
        """Continue from an average with the same names and shapes."""
        for name, value in self.average.items():
            value.copy_(average[name])

    @torch.no_grad()
    def update(self) -> None:
        torch._foreach_lerp_(self._averages, self._currents, 1 - self.decay)
        for name in self._counters:
            self.average[name].copy_(self._current[name])
