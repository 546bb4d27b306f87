"""A Run: the one typed, validated description of one training job.

Pretraining, joint training, fine-tuning and probing are values of a Run, never kinds of job. This package holds every field,
what each backbone can do and what each objective requires, and the checks that span fields. It imports no torch, so that
a launcher on a login node can read, check and hash Runs without the training environment.

Every field is in one of these: `run.py` (Run, Optim, Loop), `data.py`, `backbones.py`, a file of `objectives/`, and `site.py` for the
profile of the place where jobs run.
"""

from vitssl.config.backbones import FAMILIES, SIZES, BackboneConfig, capabilities, module, patch_px, size_of, stage_strides_px, stride_px
from vitssl.config.base import ConfigError, Problem, assign, checkpoint_fields, checkpoints, parts_of, teachers, unknown, unstarted
from vitssl.config.data import STATISTICS, Data, Subset, View, Views, statistics, view_px
from vitssl.config.identity import identity
from vitssl.config.merging import dotted, fill, load, merge, nested, read_value, read_yaml, save
from vitssl.config.objectives import ObjectiveConfig, Objectives, active, horizon_epochs
from vitssl.config.run import Loop, Optim, Run, check, check_fits, classifies, needs_labels, refuse_unread, scaled_lr, views_of
from vitssl.config.site import Site

__all__ = [
    "FAMILIES",
    "SIZES",
    "STATISTICS",
    "BackboneConfig",
    "ConfigError",
    "Data",
    "Loop",
    "ObjectiveConfig",
    "Objectives",
    "Optim",
    "Problem",
    "Run",
    "Site",
    "Subset",
    "View",
    "Views",
    "active",
    "assign",
    "capabilities",
    "check",
    "check_fits",
    "checkpoint_fields",
    "checkpoints",
    "classifies",
    "dotted",
    "fill",
    "horizon_epochs",
    "identity",
    "load",
    "merge",
    "module",
    "needs_labels",
    "nested",
    "parts_of",
    "patch_px",
    "read_value",
    "read_yaml",
    "refuse_unread",
    "save",
    "scaled_lr",
    "size_of",
    "stage_strides_px",
    "statistics",
    "stride_px",
    "teachers",
    "unknown",
    "unstarted",
    "view_px",
    "views_of",
]
