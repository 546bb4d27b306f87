"""The check that the weights that a field of a Run names fit the network that the Run describes."""

from __future__ import annotations

import dataclasses
import shlex
from typing import Any

from vitssl.config import evals
from vitssl.config.backbones import BackboneConfig, family_name, size_of
from vitssl.config.base import ConfigError, teachers
from vitssl.config.methods import flow
from vitssl.config.run import Run
from vitssl.words import counted

# fields of a backbone that say how it is trained or computed, not which weights it has
HOW_TRAINED = ("drop_path", "init", "cls_token_std", "interpolate_antialias", "batch_norm", "frozen", "fused_attention")


def check_fits(run: Run, field: str, theirs: Run, where: str = "") -> None:
    """Check that the weights that a field names are of the network that the Run describes: its backbone, or ``<field>_backbone``.

    A model can then be built, counted and loaded without its teacher's folder, and no job is queued that cannot start.

    Args:
        run: the Run that has the field.
        field: one of ``checkpoints(run)``: init_from, whose weights need not fit if ``init_except`` is set, or a teacher's.
        theirs: the Run whose weights this field names.
        where: the file or place that the error begins with.

    Raises:
        ConfigError: the networks differ in more than how the teacher was trained, or the other Run lacks the weights that are wanted.
    """
    if field == "init_from":
        if run.init_weights == "ema" and theirs.loop.ema_decay is None:
            raise ConfigError("that run has no averaged weights (loop.ema_decay)", "init_weights", where)
        if run.init_weights == "teacher" and not evals.has_teacher(theirs):
            raise ConfigError("that run has no objective whose teacher follows the backbone", "init_weights", where)
        if run.init_weights == "teacher" and run.init_objectives:
            raise ConfigError("a teacher has a backbone only; leave this out with init_weights: teacher", "init_objectives", where)
    if field == "init_from" and not run.init_except:
        needed, given = _network(run.backbone), _network(theirs.backbone)
        for name in needed:
            if needed[name] != given[name]:
                reason = f"those weights are from a backbone with {name} {given[name]}, but this one has {needed[name]}"
                advice = "; if that is intended, set init_except: [^backbone.inserted]" if name == "masked_tokens" else ""
                raise ConfigError(reason + advice, field, where)
    teacher_backbone = teachers(run).get(f"{field}_backbone")
    if teacher_backbone is None:
        return
    described, trained = dataclasses.asdict(teacher_backbone), dataclasses.asdict(theirs.backbone)
    if differ := {name: value for name, value in trained.items() if value != described[name] and name not in HOW_TRAINED}:
        name, path = next(iter(differ)), f"{field}_backbone"
        reason = f"{flow(described[name])} does not match the teacher's Run, which has {flow(differ[name])}"
        raise ConfigError(f"{reason}; set {shlex.quote(f'{path}={flow(differ)}')}", f"{path}.{name}", where)


def _network(backbone: BackboneConfig) -> dict[str, Any]:
    """Return the properties that two backbones must share so that the weights of one fit the other."""
    size, size_fields = size_of(backbone), ("embed_dim", "depths", "num_heads", "mlp_ratio", "patch_size")
    return {
        "family": family_name(backbone),
        **{name: getattr(size, name) for name in size_fields},
        "timm_model": backbone.timm_model,
        "attention_scale": backbone.attention_scale,
        "reg_tokens": backbone.reg_tokens,
        "layer_scale": "a number" if backbone.layer_scale else None,
        "masked_tokens": _queries(backbone),
    }


def _queries(backbone: BackboneConfig) -> str | None:
    """Return which blocks have learned queries of masked tokens, in words; None if none has. The number of tokens may change."""
    masked = backbone.masked_tokens
    if masked is None or masked.selection == "random":
        return None
    return f"learned in the last {counted(masked.blocks, 'block')}"
