"""A Run: the one typed, validated description of one training job.

Pretraining, joint training, fine-tuning and probing are values of a Run, never kinds of job. This package holds every field,
what each backbone offers and what each objective needs, and the checks that span fields. It imports no torch, so that
a launcher on a login node can read, check and hash Runs without the training environment.

Every field is in one of these: `run.py` (Run, Optim, Loop), `data.py`, `backbones.py`, `objectives.py`, and `site.py` for the
profile of the place where jobs run.
"""

from vitssl.config.backbones import OFFERS, VIT_SIZES, Backbone, backbone_shape
from vitssl.config.base import ConfigError
from vitssl.config.data import IMAGENET_STATISTICS, Data, Subset, View, Views, statistics, view_px
from vitssl.config.merging import load, merge, save, undotted
from vitssl.config.objectives import Classify, Mae, Objective, Objectives, active
from vitssl.config.run import Loop, Optim, Run, check, identity, needs_labels, scaled_lr, views_of
from vitssl.config.site import Site

__all__ = [
    "IMAGENET_STATISTICS",
    "OFFERS",
    "VIT_SIZES",
    "Backbone",
    "Classify",
    "ConfigError",
    "Data",
    "Loop",
    "Mae",
    "Objective",
    "Objectives",
    "Optim",
    "Run",
    "Site",
    "Subset",
    "View",
    "Views",
    "active",
    "backbone_shape",
    "check",
    "identity",
    "load",
    "merge",
    "needs_labels",
    "save",
    "scaled_lr",
    "statistics",
    "undotted",
    "view_px",
    "views_of",
]
