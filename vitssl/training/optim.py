"""Parameter groups, layer decay and the schedules, which are functions of the step alone.

Learning rate and weight decay of every group are set before each step, so a resumed run needs no scheduler state.
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
    """Groups of equal (learning-rate scale, weight decay or none), in a fixed order.

    Vectors and biases are not decayed, unless ``optim.decay`` names them, nor what ``optim.no_decay`` names; tokens and learned
    positions are, as in SSAT's and DINO's code and MAE's pretraining (MAE's fine-tuning, DeiT and timm leave them out, which is
    ``optim.no_decay: [pos_embed, cls_token]``). With layer decay d a parameter of layer i of L has the scale d ** (L + 1 - i);
    heads and the final norm have 1 (MAE's and BEiT's code; timm counts the norm with the last block, and so do its own networks here).

    Raises:
        ConfigError: a pattern of ``optim.decay`` that matches no parameter.
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
    """AdamW, SGD or LARS over ``param_groups``, in forms that allow a parameter's first gradient to come later than others'; fused, AdamW
    and SGD skip a step of fp16 that overflowed without waiting for the GPU, and LARS waits.

    LARS (You et al. 2017) scales the rate of what may be decayed, matrices that is, by a thousandth of the ratio of its norm to its
    gradient's, without weight decay too, as in MAE's linear probing.
    """
    groups = param_groups(model, backbone, cfg)
    if cfg.name == "adamw":
        return torch.optim.AdamW(groups, lr=0.0, betas=tuple(cfg.betas), weight_decay=0.0, fused=True)
    if cfg.name == "lars":
        adapted = [group | {"always_adapt": group["decayed"]} for group in groups]
        return Lars(adapted, lr=0.0, momentum=cfg.momentum, nesterov=cfg.nesterov)
    made = torch.optim.SGD(groups, lr=0.0, momentum=cfg.momentum, nesterov=cfg.nesterov, weight_decay=0.0, fused=True)
    for parameter in (p for group in made.param_groups for p in group["params"] if cfg.momentum):
        made.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)  # all at once: fused, torch wants all or none
    return made


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * share))


def _linear(start: float, end: float, share: float) -> float:
    return start + (end - start) * share


def _constant(start: float, end: float, share: float) -> float:
    return start


SHAPES = {"cosine": _cosine, "linear": _linear, "constant": _constant}  # of optim.schedule


class Schedule:
    """Learning rate and weight decay at a step.

    Linear warm-up over ``loop.warmup_epochs``, then half a cosine or a straight line to ``min_lr`` over ``loop.schedule_epochs``, a
    horizon that may lie beyond the epochs trained; it counts from the end of the warm-up (``loop.warmup_prefix``) or from its beginning.
    Updated every step.
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
        """Share of the horizon that has passed, in [0, 1]."""
        return min(step / self.horizon_steps, 1.0)

    def lr(self, step: int) -> float:
        if step < self.warmup_steps:
            return self.warmup_lr + (self.peak_lr - self.warmup_lr) * step / self.warmup_steps
        after = min((step - self.schedule_start) / max(self.horizon_steps - self.schedule_start, 1e-9), 1.0)
        return self.shape(self.peak_lr, self.min_lr, after)

    def weight_decay(self, step: int) -> float:
        return _cosine(self.decay_start, self.decay_end, self.progress(step))

    def apply(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        lr, decay = self.lr(step), self.weight_decay(step)
        for group in optimizer.param_groups:
            group["lr"] = lr * group["lr_scale"]
            group["weight_decay"] = decay if group["decayed"] else 0.0


def clip_gradients(parameters: Iterable[nn.Parameter], cfg: config.Optim) -> Tensor:
    """Clip by the global norm, or each tensor by its norm (DINO, GMML); gives the global norm before clipping."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm_T = torch.stack(torch._foreach_norm(gradients))
    total = torch.linalg.vector_norm(norm_T)
    if cfg.clip == "global":
        torch._foreach_mul_(gradients, (cfg.clip_norm / (total + 1e-6)).clamp(max=1.0))
    elif cfg.clip == "tensor":
        torch._foreach_mul_(gradients, (cfg.clip_norm / (norm_T + 1e-6)).clamp(max=1.0).unbind())
    return total


def loss_scaler(device: torch.device, precision: str) -> torch.amp.GradScaler:
    """Dynamic loss scaling (Micikevicius et al. 2018): gradients that fp16 would round to zero are computed of a larger loss, and a step
    whose gradients overflow is left out and halves the scale. For any other precision it does nothing."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")


def without_overflow(norm: Tensor, scaler: torch.amp.GradScaler) -> Tensor:
    """The norm of the gradients; 0 where it is not finite and the loss was scaled up, which is no divergence: that step is left out."""
    if not scaler.is_enabled():
        return norm
    scaled = scaler.scale(torch.ones_like(norm)) > 1
    return torch.where(scaled & ~torch.isfinite(norm), 0.0, norm)


class Ema:
    """A moving average of the model's floating-point state, moved once per optimiser step; counters are copied."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self._current = model.state_dict()  # which share the memory of the weights; to collect them takes a CPU half a millisecond
        self.average = {name: value.clone() for name, value in self._current.items()}
        floating = [name for name, value in self._current.items() if value.is_floating_point()]
        self._lists = [[tensors[name] for name in floating] for tensors in (self.average, self._current)]
        self._counters = self._current.keys() - set(floating)

    def load(self, average: dict[str, Tensor]) -> None:
        """Go on from an average of the same names and shapes."""
        for name, value in self.average.items():
            value.copy_(average[name])

    @torch.no_grad()
    def update(self) -> None:
        torch._foreach_lerp_(*self._lists, 1 - self.decay)
        for name in self._counters:
            self.average[name].copy_(self._current[name])
