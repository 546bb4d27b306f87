"""A Run: the one typed, validated description of one training job.

Pretraining, joint training, fine-tuning and probing are values of a Run, never kinds of job. This package holds every field,
what each backbone offers and what each objective needs, and the checks that span fields. It imports no torch, so that
a launcher on a login node can read, check and hash Runs without the training environment.

Every field is in one of these: `run.py` (Run, Optim, Loop), `data.py` and `color.py`, `backbones.py`, `objectives.py`, and `site.py`
for the profile of the place where jobs run.
"""

from vitssl.config.backbones import FAMILIES, SIZES, Backbone, module, offers, patch_px, size_of, stage_strides_px, stride_px
from vitssl.config.base import ConfigError, as_it_was, assign, checkpoint_fields, checkpoints, parts_of, teachers, unstarted
from vitssl.config.color import Blur, ColorOp, ColorStep, Gray, Jitter, Solarize
from vitssl.config.data import STATISTICS, Data, Subset, View, Views, statistics, view_px
from vitssl.config.identity import identity
from vitssl.config.merging import dotted, load, merge, read_yaml, save, undotted
from vitssl.config.objectives import Classify, Dino, Drloc, Locality, Mae, Objective, Objectives, Simclr, active, horizon_epochs
from vitssl.config.run import Loop, Optim, Run, active_views, check, check_fits, classifies, needs_labels, refuse_unread, scaled_lr
from vitssl.config.site import Site

__all__ = [
    "FAMILIES",
    "SIZES",
    "STATISTICS",
    "Backbone",
    "Blur",
    "Classify",
    "ColorOp",
    "ColorStep",
    "ConfigError",
    "Data",
    "Dino",
    "Drloc",
    "Gray",
    "Jitter",
    "Locality",
    "Loop",
    "Mae",
    "Objective",
    "Objectives",
    "Optim",
    "Run",
    "Simclr",
    "Site",
    "Solarize",
    "Subset",
    "View",
    "Views",
    "active",
    "active_views",
    "as_it_was",
    "assign",
    "check",
    "check_fits",
    "checkpoint_fields",
    "checkpoints",
    "classifies",
    "dotted",
    "horizon_epochs",
    "identity",
    "load",
    "merge",
    "module",
    "needs_labels",
    "offers",
    "parts_of",
    "patch_px",
    "read_yaml",
    "refuse_unread",
    "save",
    "scaled_lr",
    "size_of",
    "stage_strides_px",
    "statistics",
    "stride_px",
    "teachers",
    "undotted",
    "unstarted",
    "view_px",
]
