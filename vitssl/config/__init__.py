"""A Run: the one typed, validated description of one training job.

Pretraining, joint training, fine-tuning and probing are Runs with different values, not different kinds of job. This package
holds every field, what each backbone can do and what each objective requires, and the checks that span fields. It imports no
torch, so that a launcher on a login node can read, check and hash Runs without the training environment.

The fields are declared in `run.py` (Run, Optim, Loop), `data.py` and `color.py`, `backbones.py`, `masked_tokens.py`, the files of
`objectives/`, `evals.py`, `sweep.py`, and `site.py` (the profile of the place where jobs run). `weights.py` defines how weights from
outside are named, and `metrics.py` what evaluators measure.
"""

from vitssl.config.backbones import FAMILIES, SIZES, BackboneConfig, capabilities, family_name, size_of, stage_strides_px, stride_px
from vitssl.config.base import (
    ConfigError,
    Problem,
    assign,
    checkpoints,
    raise_first,
    teachers,
    unknown_error,
    without_checkpoints,
)
from vitssl.config.checks import check, check_slices, refuse_inactive_fields, refuse_rising_lr
from vitssl.config.color import Blur, ColorOp, ColorStep, Gray, Jitter, Solarize
from vitssl.config.data import Data, Subset, View, Views, statistics, view_px
from vitssl.config.fields import checkpoint_fields
from vitssl.config.fits import check_fits
from vitssl.config.identity import SCHEMA, identifying, identity
from vitssl.config.masked_tokens import MaskedTokens
from vitssl.config.merging import dotted, fill, load, merge, nested, save, save_fields
from vitssl.config.objectives import ObjectiveConfig, Objectives, active
from vitssl.config.reading import read_value, read_yaml
from vitssl.config.run import (
    Loop,
    Optim,
    Run,
    active_views,
    classifies,
    inactive_fields,
    label_objectives,
    labelled_rows,
    labels_part_of_batches,
    needs_labels,
    reads_labels,
    scaled_lr,
    slices,
    total_steps,
    uses_cuda_graph,
)
from vitssl.config.site import Site
from vitssl.config.weights import NO_SHARDS
